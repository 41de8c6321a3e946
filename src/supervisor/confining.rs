//! Where processes may run and what they may reach: what this server was told, and what its keeper
//! can do.
//!
//! Owns the roots and the default directory. Whether a directory lies below a root is decided by the
//! kernel, in the child, where it cannot change any more; what is looked up here only decides how a
//! refusal is worded, and what is refused before it waits in a queue.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::error::Error;
use crate::process::{Launch, Parts, Sandbox, Spec, step};

/// What a server is told about all its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Real paths that working directories lie in or below; none: anywhere.
    pub roots: Vec<PathBuf>,
    /// Working directory of whoever asks for none; none: the first root, else the keeper's own.
    pub cwd: Option<PathBuf>,
    /// Nobody ever gains privileges.
    pub no_new_privileges: bool,
}

/// The same, with what the keeper can do.
pub(super) struct Confiner {
    told: Confinement,
    /// None: it is too old to confine anyone.
    parts: Option<Parts>,
}

impl Confiner {
    pub(super) fn new(told: Confinement, parts: Option<Parts>) -> Confiner {
        Confiner { told, parts }
    }

    /// Refuses what this keeper would not keep in, all reasons at once.
    pub(super) fn check(&self, spec: &Spec) -> Result<(), Error> {
        let mut missing = spec.sandbox.missing(&self.parts.unwrap_or_default());
        if self.parts.is_none() {
            let no_new_privileges = self.sandbox(spec).no_new_privileges;
            missing.extend(no_new_privileges.then_some("no_new_privileges"));
            missing.extend((!self.told.roots.is_empty()).then_some("roots"));
        }
        if missing.is_empty() { Ok(()) } else { Err(Error::SandboxUnsupported(missing)) }
    }

    /// Refuses directories that lead outside of all roots as it is. Looks at the disk.
    pub(super) fn look(&self, spec: &Spec) -> Result<(), Error> {
        let cwd = self.cwd(spec);
        let writable = spec.sandbox.writable.iter().map(PathBuf::from);
        match cwd.into_iter().chain(writable).find(|path| !self.leads_inside(path)) {
            Some(path) => Err(not_allowed(&path).about(spec)),
            None => Ok(()),
        }
    }

    /// Whether there is something to look at.
    pub(super) fn has_roots(&self) -> bool {
        !self.told.roots.is_empty()
    }

    /// Adds to a launch what keeps it in.
    pub(super) fn confine(&self, spec: &Spec, launch: &mut Launch) {
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        launch.cwd = self.cwd(spec).as_ref().map(bytes).unwrap_or_default();
        launch.roots = self.told.roots.iter().map(bytes).collect();
        launch.sandbox = self.sandbox(spec);
    }

    /// The same for a command beside a process, which has the mounts of that one: there the keeper's
    /// own directory is none that it begins in.
    pub(super) fn confine_beside(&self, spec: &Spec, launch: &mut Launch) {
        self.confine(spec, launch);
        if launch.cwd.is_empty()
            && spec.sandbox.own_mounts
            && let Ok(own) = std::env::current_dir()
        {
            launch.cwd = own.into_os_string().into_vec();
        }
    }

    /// What a refusal says to whoever asked: nobody learns what there is outside of the roots. Looks
    /// at the disk.
    pub(super) fn explain(&self, error: Error) -> Error {
        match error {
            Error::SpawnFailed { step, errno, path }
                if [step::DIRECTORY, step::LINK].contains(&&step[..]) && self.has_roots() =>
            {
                let path = PathBuf::from(OsString::from(path));
                if !self.leads_inside(&path) {
                    return not_allowed(&path);
                }
                Error::SpawnFailed { step, errno, path: path.to_string_lossy().into_owned() }
            }
            error => error,
        }
    }

    fn cwd(&self, spec: &Spec) -> Option<PathBuf> {
        match spec.cwd.as_str() {
            "" => self.told.cwd.clone().or_else(|| self.told.roots.first().cloned()),
            cwd => Some(cwd.into()),
        }
    }

    fn sandbox(&self, spec: &Spec) -> Sandbox {
        let mut sandbox = spec.sandbox.clone();
        sandbox.no_new_privileges |= self.told.no_new_privileges;
        sandbox
    }

    /// Whether a path, as far as it can be followed, stays below a root. A link that leads nowhere
    /// might lead anywhere.
    fn leads_inside(&self, path: &Path) -> bool {
        let mut known = path;
        loop {
            if let Ok(real) = known.canonicalize() {
                return is_within(&real, &self.told.roots);
            }
            let link = known.symlink_metadata().is_ok_and(|found| found.is_symlink());
            match known.parent() {
                Some(parent) if !link => known = parent,
                _ => return self.told.roots.is_empty(),
            }
        }
    }
}

/// Whether a real path lies in or below one of these; of none, everything does.
pub fn is_within(real: &Path, roots: &[PathBuf]) -> bool {
    roots.is_empty() || roots.iter().any(|root| real.starts_with(root))
}

fn not_allowed(path: &Path) -> Error {
    Error::CwdNotAllowed { writable: false, path: path.to_string_lossy().into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Files;

    fn confiner(roots: &[&Path], parts: Option<Parts>) -> Confiner {
        let roots = roots.iter().map(|root| root.to_path_buf()).collect();
        Confiner::new(Confinement { roots, ..Confinement::default() }, parts)
    }

    #[test]
    fn a_keeper_that_is_too_old_is_asked_to_confine_nobody() {
        let everything = Sandbox {
            files: Files::ReadOnly,
            own_pids: true,
            own_mounts: true,
            own_network: true,
            no_new_privileges: true,
            ..Sandbox::default()
        };
        let plain = Spec::unknown();
        let spec = Spec { sandbox: everything, ..Spec::unknown() };
        assert_eq!(confiner(&[], None).check(&plain), Ok(()));
        let roots = confiner(&[Path::new("/")], None).check(&plain);
        assert_eq!(roots, Err(Error::SandboxUnsupported(vec!["roots"])));
        let all = ["files", "own_pids", "own_mounts", "own_network", "no_new_privileges"];
        let refused = confiner(&[], None).check(&spec);
        assert_eq!(refused, Err(Error::SandboxUnsupported(all.into())));
        let parts = Parts { own_mounts: true, own_network: true, ..Parts::default() };
        let refused = confiner(&[], Some(parts)).check(&spec);
        assert_eq!(refused, Err(Error::SandboxUnsupported(vec!["files", "own_pids"])));
    }

    #[test]
    fn what_is_outside_is_refused_alike_whether_or_not_it_is_there() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let (root, other) = (place.join("root"), place.join("other"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, root.join("out")).unwrap();
        std::os::unix::fs::symlink(&root, other.join("in")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("dangling")).unwrap();
        let confiner = confiner(&[&root], Some(Parts::default()));
        let errno = libc::ENOENT;
        let explain = |path: &str| {
            let path = root.join(path).to_str().unwrap().to_owned();
            let is_told = |step: &str| {
                let error = Error::SpawnFailed { step: step.into(), errno, path: path.clone() };
                confiner.explain(error.clone()) == error
            };
            let told = is_told(step::DIRECTORY);
            assert_eq!(told, is_told(step::LINK), "{path}");
            told.then_some(())
        };
        let told = ["none", "none/none", "out/../root/none", "../other/in/none"];
        let hidden = ["..", "../none", "../other", "out", "out/none", "out/in/../none", "dangling"];
        for path in told {
            assert_eq!(explain(path), Some(()), "{path}");
        }
        for path in hidden {
            assert_eq!(explain(path), None, "{path}");
        }
    }
}
