//! `procyard install`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{failed, printed};
use crate::support::binary;
use crate::support::service::TestService;
use crate::support::tty::Tty;

fn install(to: &Path) -> Command {
    let mut command = Command::new(binary());
    command.arg("install").arg(to).stdin(Stdio::null());
    command
}

fn version_of(program: &Path) -> String {
    let mut command = Command::new(program);
    command.arg("--version");
    printed(command)
}

#[test]
fn a_copy_of_it_lies_where_it_was_told_and_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("procyard");
    let mut tty = Tty::start(install(directory.path()));
    tty.expect(path.to_str().unwrap());
    assert_eq!(tty.ended(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(version_of(&path), format!("procyard {}\n", env!("CARGO_PKG_VERSION")));
    // The copy copies itself, under another name.
    let other = directory.path().join("other");
    let mut command = Command::new(&path);
    command.arg("install").arg(&other);
    printed(command);
    assert_eq!(version_of(&other), version_of(&path));
    // Nothing else is left there.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn one_that_runs_is_replaced_and_runs_on() {
    let mut service = TestService::start_from_copy();
    let path = service.directory.path().join("procyard");
    let before = std::fs::metadata(&path).unwrap().ino();
    printed(service.procyard(&["install", path.to_str().unwrap()]));
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), before);
    assert!(version_of(&path).starts_with("procyard "));
    assert_eq!(printed(service.procyard(&["healthcheck", "--timeout", "1m"])), "SERVING\n");
    assert!(service.child.try_wait().unwrap().is_none());
}

#[test]
fn what_cannot_be_is_told_in_a_line_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (code, said) = failed(install(&directory.path().join("missing/procyard")));
    assert_eq!(code, 1);
    assert!(said.contains("missing/procyard"), "{said}");
    // A directory stands where the file would.
    std::fs::create_dir_all(directory.path().join("procyard/x")).unwrap();
    let (code, _) = failed(install(directory.path()));
    assert_eq!(code, 1);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}
