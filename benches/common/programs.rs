//! The programs that are started.
//!
//! `/bin/true` spends most of its life on being linked, which hides what a start costs here, so
//! there is also a static program that does nothing. It is written without a libc, and by its
//! arguments it idles, floods or tells the time as well.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::Result;

pub(crate) const TRUE: &str = "/bin/true";
/// A shell line that returns what is typed on a terminal as it is, and says when it is ready to.
pub(crate) const RETURN: &str = "stty raw -echo; echo ready; exec cat";
pub(crate) const READY: &[u8] = b"ready\n";
const SOURCE: &str = include_str!("child.c");

/// The procyard that is measured; `PROCYARD_BINARY` names another one than that of this build.
pub(crate) fn procyard() -> String {
    std::env::var("PROCYARD_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_procyard").into())
}

/// The static program, or why there is none.
pub(crate) struct Programs {
    child: std::result::Result<Child, String>,
}

struct Child {
    path: String,
    #[expect(dead_code, reason = "the program is deleted with it")]
    directory: TempDir,
}

impl Programs {
    pub(crate) fn compile() -> Programs {
        Programs { child: compile().map_err(|error| error.to_string()) }
    }

    /// Path of the static program.
    pub(crate) fn child(&self) -> Result<&str> {
        let child = self.child.as_ref().map_err(String::as_str)?;
        Ok(&child.path)
    }
}

fn compile() -> Result<Child> {
    let directory = tempfile::tempdir()?;
    let [source, program]: [PathBuf; 2] = ["child.c", "child"].map(|n| directory.path().join(n));
    std::fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-static", "-nostdlib", "-O2", "-fno-stack-protector", "-o"]);
    let output = cc.arg(&program).arg(&source).output().map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cc: {}", complaint.lines().next().unwrap_or_default()).into());
    }
    let path = program.into_os_string().into_string();
    Ok(Child { path: path.map_err(|path| format!("{} is not UTF-8", path.display()))?, directory })
}
