//! A program as the kernel takes it: C strings, candidate paths, and why it could not be started.
//!
//! Owns the conversion of a [`Launch`]. Nothing here touches a process.

use std::ffi::{CString, c_char};
use std::os::fd::BorrowedFd;
use std::ptr;

use super::child::{Failure, Step};
use super::fence::Fence;
use super::{COOKIE, Failed, FailedChild, OUTPUT};
use crate::process::{Launch, Refused, User};

/// What the child needs of a [`Launch`], in the form that the kernel takes.
pub(in crate::keeper) struct Program {
    pub(super) candidates: Vec<CString>,
    /// They come of a search in `PATH`.
    searched: bool,
    /// The first is a way to a file that is held open, which tells people nothing.
    held: bool,
    pub(super) args: CStrings,
    pub(super) env: CStrings,
    pub(super) cwd: Option<CString>,
    pub(super) user: Option<User>,
    pub(super) rlimits: Vec<(u32, u64)>,
    pub(super) nice: Option<i32>,
    pub(super) oom_score_adj: Option<CString>,
    /// Files by which it joins the cgroups that limit it.
    pub(super) joins: Vec<CString>,
    pub(super) fence: Fence,
}

/// Strings as exec takes them: pointers ended by null, with what they point to.
pub(super) struct CStrings {
    pub(super) pointers: Vec<*const c_char>,
    /// What they point to.
    strings: Vec<CString>,
}

impl CStrings {
    fn new(strings: Vec<CString>) -> CStrings {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        CStrings { pointers, strings }
    }

    fn first(&self) -> Option<&CString> {
        self.strings.first()
    }
}

impl Program {
    /// Checks and converts everything, so that nothing is left to fail but the kernel.
    pub(in crate::keeper) fn new(launch: &Launch) -> Result<Program, Refused> {
        let invalid = |what: String| Refused::Invalid(what);
        let nul = |what: &str| invalid(format!("{what} has a NUL byte"));
        if launch.id.is_empty() {
            return Err(invalid("no id".into()));
        }
        let Some(first) = launch.args.first().filter(|first| !first.is_empty()) else {
            return Err(invalid("no program".into()));
        };
        // The cookie by which the keeper finds descendants again is the keeper's to set. It comes
        // first, then the file that names the state directory: of a large environment only the
        // beginning is searched.
        let cookie = (COOKIE.to_vec(), launch.id.as_bytes().to_vec());
        let is_output = |(name, _): &&(Vec<u8>, Vec<u8>)| name == OUTPUT;
        let output = launch.env.iter().filter(is_output);
        let given = launch.env.iter().filter(|pair| pair.0 != COOKIE && !is_output(pair));
        let mut env = Vec::with_capacity(launch.env.len() + 1);
        for (name, value) in [&cookie].into_iter().chain(output).chain(given) {
            let shown = String::from_utf8_lossy(name);
            if name.is_empty() || name.contains(&b'=') {
                return Err(invalid(format!("the variable name {shown:?} is empty or has an '='")));
            }
            let pair = [name, &b"="[..], value].concat();
            env.push(CString::new(pair).map_err(|_| nul(&format!("the variable {shown:?}")))?);
        }
        let mut args = Vec::with_capacity(launch.args.len());
        for (n, arg) in launch.args.iter().enumerate() {
            args.push(CString::new(&arg[..]).map_err(|_| nul(&format!("argument {n}")))?);
        }
        let cwd = match &launch.cwd[..] {
            [] => None,
            cwd => Some(CString::new(cwd).map_err(|_| nul("the working directory"))?),
        };
        let path = launch.env.iter().rev().find(|(name, _)| name == b"PATH");
        let path = path.map_or(&b"/bin:/usr/bin"[..], |(_, value)| value);
        let score = launch.oom_score_adj.map(|score| CString::new(score.to_string()));
        Ok(Program {
            candidates: candidates(first, path),
            searched: !first.contains(&b'/'),
            held: false,
            args: CStrings::new(args),
            env: CStrings::new(env),
            cwd,
            user: launch.user.clone(),
            rlimits: launch.rlimits.clone(),
            nice: launch.nice,
            oom_score_adj: score.transpose().map_err(|_| nul("the OOM score"))?,
            joins: Vec::new(),
            fence: Fence::new(launch)?,
        })
    }

    /// The same, joining cgroups by these files.
    pub(in crate::keeper) fn joining(mut self, files: Vec<CString>) -> Program {
        self.joins = files;
        self
    }

    /// The same, by this way to its file if there is one, and by the path if that fails.
    pub(in crate::keeper) fn through(mut self, way: Option<CString>) -> Program {
        self.held |= way.is_some();
        self.candidates.splice(0..0, way);
        self
    }

    /// The same with the mounts and the network of a living process, where it was to have some of
    /// its own.
    pub(in crate::keeper) fn beside(mut self, pidfd: BorrowedFd<'_>) -> Result<Program, Refused> {
        let pidfd = rustix::io::fcntl_dupfd_cloexec(pidfd, 0).map_err(Failure::of_descriptors);
        self.fence.beside(pidfd.map_err(|failure| self.refuse(failure))?);
        Ok(self)
    }

    pub(super) fn fail(&self, failure: Failure, child: FailedChild) -> Failed {
        Failed { failure, refused: self.refuse(failure), child }
    }

    /// A failure in words, with the path that it speaks of.
    pub(in crate::keeper) fn refuse(&self, failure: Failure) -> Refused {
        let path = match failure.step {
            Step::Exec if self.held => self.args.first(),
            // Found in no directory: no path is the one that is missing.
            Step::Exec if failure.errno == libc::ENOENT && self.searched => self.args.first(),
            Step::Exec => self.candidates.get(failure.candidate),
            Step::Directory | Step::Link | Step::Outside => {
                match failure.candidate.checked_sub(1) {
                    Some(n) => self.fence.writable.get(n),
                    None => self.cwd.as_ref(),
                }
            }
            _ => None,
        };
        let path = path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let Failure { step, errno, .. } = failure;
        // Of these, no more could be had: of pids and memory, or of namespaces.
        let scarce = [libc::EAGAIN, libc::ENOMEM].contains(&errno);
        let step = match step {
            Step::Clone if self.fence.namespaces != 0 && !scarce => Step::Confine,
            step => step,
        };
        Refused::SpawnFailed { step: step.words().into(), errno, path }
    }
}

/// The paths to try, in order: the program itself if it names a file, else every directory of
/// `PATH`, where an empty one is the working directory. NULs were refused before.
fn candidates(program: &[u8], path: &[u8]) -> Vec<CString> {
    let tries: Vec<Vec<u8>> = if program.contains(&b'/') {
        vec![program.to_vec()]
    } else {
        path.split(|byte| *byte == b':')
            .map(|dir| if dir.is_empty() { &b"."[..] } else { dir })
            .map(|dir| [dir, &b"/"[..], program].concat())
            .collect()
    };
    tries.into_iter().filter_map(|path| CString::new(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_path_and_a_path_is_not() {
        let paths = |program: &[u8]| candidates(program, b"/a::/b");
        assert_eq!(paths(b"x"), [c"/a/x".to_owned(), c"./x".to_owned(), c"/b/x".to_owned()]);
        assert_eq!(paths(b"./x"), [c"./x".to_owned()]);
    }

    #[test]
    fn variables_that_are_searched_for_come_first() {
        let mut launch = Launch::new("a", ["x"]);
        let names = ["A", "PROCYARD_ID", "PROCYARD_OUTPUT", "Z"];
        launch.env = names.map(|name| (name.into(), b"1".to_vec())).into();
        let program = Program::new(&launch).unwrap();
        let expected = [c"PROCYARD_ID=a", c"PROCYARD_OUTPUT=1", c"A=1", c"Z=1"];
        assert_eq!(program.env.strings, expected.map(ToOwned::to_owned));
    }

    #[test]
    fn what_the_kernel_cannot_take_is_refused_with_its_place() {
        let refusal = |launch: Launch| match Program::new(&launch) {
            Err(Refused::Invalid(what)) => what,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        };
        assert_eq!(refusal(Launch::new("a", [""])), "no program");
        assert_eq!(refusal(Launch::new("a", ["x", "y\0"])), "argument 1 has a NUL byte");
        let mut launch = Launch::new("a", ["x"]);
        launch.env = vec![(b"A=B".to_vec(), b"".to_vec())];
        assert_eq!(refusal(launch), "the variable name \"A=B\" is empty or has an '='");
    }
}
