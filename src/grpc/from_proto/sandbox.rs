//! What a process may reach.

use super::problems::{Problems, Reported};
use super::values::{MAX_PATH_BYTES, short};
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::process::{Files, Sandbox};

/// Most writable directories: each is entered while the keeper waits.
const WRITABLE: usize = 64;

/// The field `spec.sandbox`. What one part needs of the others is filled in.
pub(super) fn sandbox(
    problems: &mut Problems,
    sandbox: Option<pb::Sandbox>,
) -> Result<Sandbox, Reported> {
    let pb::Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges } =
        sandbox.unwrap_or_default();
    let files = self::files(problems, files);
    let writable = self::writable(problems, writable);
    let (files, writable) = (files?, writable?);
    if !writable.is_empty() && files != Files::WorkspaceWrite {
        let problem = "is given: only with FILES_WORKSPACE_WRITE";
        return Err(problems.add("spec.sandbox.writable", problem));
    }
    let own_mounts = own_mounts || own_pids;
    let mut sandbox =
        Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges };
    sandbox.no_new_privileges |= sandbox.is_closed();
    Ok(sandbox)
}

fn files(problems: &mut Problems, number: i32) -> Result<Files, Reported> {
    use pb::sandbox::Files as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified | Wire::Unrestricted) => Ok(Files::Unrestricted),
        Ok(Wire::ReadOnly) => Ok(Files::ReadOnly),
        Ok(Wire::WorkspaceWrite) => Ok(Files::WorkspaceWrite),
        Err(_) => {
            let right = "one of FILES_UNRESTRICTED, FILES_READ_ONLY, FILES_WORKSPACE_WRITE";
            Err(problems.add("spec.sandbox.files", format_args!("is {number}: {right}")))
        }
    }
}

fn writable(problems: &mut Problems, paths: Vec<String>) -> Result<Vec<String>, Reported> {
    if paths.len() > WRITABLE {
        let problem = format_args!("has {} paths: at most {WRITABLE}", paths.len());
        return Err(problems.add("spec.sandbox.writable", problem));
    }
    for (at, path) in paths.iter().enumerate() {
        let field = format!("spec.sandbox.writable[{at}]");
        if !path.starts_with('/') {
            problems.add(&field, format_args!("is {}: an absolute path", quoted(path)));
        } else {
            // What is wrong with it is reported; there is nothing else to do.
            let _ = short(problems, &field, path, MAX_PATH_BYTES);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use crate::supervisor::Error;

    fn read(wire: pb::Sandbox) -> Result<Sandbox, Error> {
        Problems::collect(|problems| sandbox(problems, Some(wire)))
    }

    #[test]
    fn what_one_part_needs_of_the_others_is_filled_in() {
        assert_eq!(read(pb::Sandbox::default()), Ok(Sandbox::default()));
        let pids = read(pb::Sandbox { own_pids: true, ..Default::default() }).unwrap();
        assert_eq!((pids.own_mounts, pids.no_new_privileges), (true, true));
        let files = pb::sandbox::Files::ReadOnly.into();
        let read_only = read(pb::Sandbox { files, ..Default::default() }).unwrap();
        assert_eq!((read_only.files, read_only.no_new_privileges), (Files::ReadOnly, true));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let writable = |files: pb::sandbox::Files, paths: &[&str]| {
            let writable = paths.iter().map(|path| (*path).to_owned()).collect();
            refused(read(pb::Sandbox { files: files.into(), writable, ..Default::default() }))
        };
        let field = "spec.sandbox.writable";
        assert_eq!(
            writable(pb::sandbox::Files::ReadOnly, &["/a"]),
            [format!("{field}: is given: only with FILES_WORKSPACE_WRITE")]
        );
        let write = pb::sandbox::Files::WorkspaceWrite;
        let told = writable(write, &["a", "/b", "", "/c\0"]);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0], format!("{field}[0]: is \"a\": an absolute path"));
        let many = writable(write, &["/a"; 65]);
        assert_eq!(many, [format!("{field}: has 65 paths: at most 64")]);
        let unknown = refused(read(pb::Sandbox { files: 9, ..Default::default() }));
        assert!(unknown[0].starts_with("spec.sandbox.files: is 9: one of"), "{unknown:?}");
    }
}
