//! The options of the supervisor, as `serve` takes them and hands them on to the server.

mod access;
mod quotas;

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::BoolishValueParser;
use rustix::process::getuid;

use crate::config::DefaultStateDir;
use crate::server;
use crate::server::credentials::token_file::DEFAULT_NAMES;
use crate::store::{StateDir, StoreError};
use crate::supervisor::{Capacity, Confinement, Keep, Rules, is_within};
use crate::telemetry::file::previous;
use crate::telemetry::{Format, audit_file};
use access::AccessOptions;
use quotas::QuotaOptions;

/// What the supervisor keeps, and where.
#[derive(clap::Args, Clone)]
pub(super) struct Options {
    /// Where records, events and finished transcripts are kept. The default is
    /// $XDG_STATE_HOME/procyard or ~/.local/state/procyard, /tmp/procyard-UID/state where the home
    /// directory cannot be written, for root /var/lib/procyard.
    #[arg(long, value_name = "PATH", env = "PROCYARD_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Finished processes that are kept at most; the oldest go first. The newest one stays until
    /// another finishes.
    #[arg(long, value_name = "N", env = "PROCYARD_KEEP_FINISHED", default_value_t = 10_000)]
    keep_finished: usize,
    /// How long a finished process is kept, in hours.
    #[arg(long, value_name = "HOURS", env = "PROCYARD_KEEP_HOURS", default_value_t = 168)]
    keep_hours: u64,
    /// What finished processes and their transcripts take at most, in memory and on disk, in MiB.
    #[arg(long, value_name = "MIB", env = "PROCYARD_KEEP_MIB", default_value_t = 1024)]
    keep_mib: u64,
    /// Events that are kept at most.
    #[arg(long, value_name = "N", env = "PROCYARD_KEEP_EVENTS", default_value_t = 100_000)]
    keep_events: u64,
    /// Processes that may run at a time; others wait in their queue, or are refused if they have
    /// none. The default is no bound.
    #[arg(long, value_name = "N", env = "PROCYARD_MAX_RUNNING", value_parser = at_least_one)]
    max_running: Option<usize>,
    /// How many of a queue may run at a time: 1 of a queue that is not named. Repeatable; in the
    /// environment separated by commas.
    #[arg(long, value_name = "NAME=N", env = "PROCYARD_QUEUE", value_delimiter = ',', value_parser = queue)]
    queue: Vec<(String, usize)>,
    #[command(flatten)]
    quotas: QuotaOptions,
    #[command(flatten)]
    pub(super) access: AccessOptions,
    /// A directory that processes may have for their own, and all below it, once links are followed.
    /// Repeatable; in the environment separated by commas. The default is any directory.
    #[arg(long, value_name = "PATH", env = "PROCYARD_ROOT", value_delimiter = ',')]
    root: Vec<PathBuf>,
    /// The directory of processes that ask for none. The default is the first --root, else where
    /// procyard was started.
    #[arg(long, value_name = "PATH", env = "PROCYARD_CWD")]
    cwd: Option<PathBuf>,
    /// No process ever gains privileges, such as by sudo.
    #[arg(long, env = "PROCYARD_NO_NEW_PRIVILEGES", value_parser = BoolishValueParser::new())]
    no_new_privileges: bool,
    /// How logs are written.
    #[arg(long, value_name = "FORMAT", env = "PROCYARD_LOG_FORMAT", default_value = "text")]
    pub(super) log_format: Format,
    /// A file for the log instead of stderr. When it has 8 MiB it becomes PATH.1, and begins anew.
    #[arg(long, value_name = "PATH", env = "PROCYARD_LOG_FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// A file for the audit lines of changes, besides the log. When it has 32 MiB it becomes PATH.1, and
    /// a new one begins. The default is that of --log-file with .audit at its end if the log is a
    /// regular file, else none; a default that cannot be opened is a warning.
    #[arg(long, value_name = "PATH", env = "PROCYARD_AUDIT_FILE")]
    audit_file: Option<PathBuf>,
}

impl Options {
    /// Where records and events are kept.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(state_dir_here)
    }

    /// Files that may be in the state directory before procyard has used it.
    pub(super) fn named_files(&self) -> Vec<PathBuf> {
        let mut files = self.access.named_files(&self.state_dir());
        let logs = [self.log_file.clone(), self.audit_file()].into_iter().flatten();
        files.extend(logs.flat_map(|log| [previous(&log), log]));
        files
    }

    /// Where changes are recorded apart from the log: beside it by default, unless it is a device or a
    /// pipe.
    pub(super) fn audit_file(&self) -> Option<PathBuf> {
        let is_regular = |log: &&Path| fs::metadata(log).map_or(true, |found| found.is_file());
        let beside = || self.log_file.as_deref().filter(is_regular).map(audit_file::beside);
        self.audit_file.clone().or_else(beside)
    }

    /// Refuses logs in the place of procyard's own files in the state directory.
    pub(super) fn check_logs(&self) -> Result<(), String> {
        let audit_file = self.audit_file();
        let logs = [("--log-file", &self.log_file), ("--audit-file", &audit_file)];
        for (option, log) in logs {
            let Some(log) = log else { continue };
            if StateDir::is_reserved(&self.state_dir(), log, &DEFAULT_NAMES) {
                return Err(format!(
                    "cannot use {option} {}: the name is of a file that procyard keeps in its state \
                     directory; choose another",
                    log.display()
                ));
            }
        }
        Ok(())
    }

    /// Whether the user chose the audit file, so that procyard does not run without it.
    pub(super) fn requires_audit_file(&self) -> bool {
        self.audit_file.is_some()
    }

    /// Follows the links of all directories, once and for all: whoever changes them later changes
    /// nothing here. Refused: what is not there, and a default that none could have.
    pub(super) fn resolve(&mut self) -> Result<(), Box<dyn Error>> {
        for (option, path) in self
            .root
            .iter_mut()
            .map(|root| ("--root", root))
            .chain(self.cwd.iter_mut().map(|cwd| ("--cwd", cwd)))
        {
            let refused = |why: String| format!("{option} {}: {why}", path.display());
            let real = path.canonicalize().map_err(|error| refused(error.to_string()))?;
            if !real.is_dir() {
                return Err(refused("it is not a directory".into()).into());
            }
            // The server is told by the same option.
            if option == "--root" && real.as_os_str().as_bytes().contains(&b',') {
                return Err(refused("its real path has a comma".into()).into());
            }
            *path = real;
        }
        match &self.cwd {
            Some(cwd) if !is_within(cwd, &self.root) => {
                Err(format!("--cwd {}: it is not below a --root", cwd.display()).into())
            }
            _ => Ok(()),
        }
    }

    /// The same for the server that is started.
    pub(super) fn for_server(&self) -> server::Options {
        server::Options {
            state_dir: self.state_dir(),
            max_events: self.keep_events,
            access: self.access.for_server(),
            rules: self.rules(),
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            keep: Keep {
                count: self.keep_finished,
                age: Duration::from_secs(self.keep_hours.saturating_mul(3600)),
                bytes: self.keep_mib.saturating_mul(1 << 20),
                output_bytes: Keep::MAX_OUTPUT_BYTES,
            },
            capacity: Capacity {
                all: self.max_running,
                queues: self.queue.iter().cloned().collect(),
                quotas: self.quotas.for_server(),
            },
            confinement: Confinement {
                roots: self.root.clone(),
                cwd: self.cwd.clone(),
                no_new_privileges: self.no_new_privileges,
            },
        }
    }

    /// The same as arguments.
    pub(super) fn to_args(&self) -> Vec<OsString> {
        let Options {
            state_dir: _,
            keep_finished,
            keep_hours,
            keep_mib,
            keep_events,
            max_running,
            queue,
            quotas,
            access,
            root,
            cwd,
            no_new_privileges,
            log_format,
            log_file,
            audit_file,
        } = self;
        let numbers = [
            ("--keep-finished", keep_finished.to_string()),
            ("--keep-hours", keep_hours.to_string()),
            ("--keep-mib", keep_mib.to_string()),
            ("--keep-events", keep_events.to_string()),
            ("--log-format", log_format.to_string()),
        ];
        let max_running = max_running.map(|most| ("--max-running", most.to_string()));
        let queues = queue.iter().map(|(name, size)| ("--queue", format!("{name}={size}")));
        let mut args = vec!["--state-dir".into(), self.state_dir().into_os_string()];
        let numbers = numbers.into_iter().chain(max_running).chain(queues);
        args.extend(quotas.to_args());
        args.extend(access.to_args());
        args.extend(numbers.flat_map(|(name, value)| [name.into(), value.into()]));
        let roots = root.iter().map(|root| ("--root", root));
        let log_file = log_file.iter().map(|path| ("--log-file", path));
        let logs = log_file.chain(audit_file.iter().map(|path| ("--audit-file", path)));
        let paths = roots.chain(cwd.iter().map(|cwd| ("--cwd", cwd))).chain(logs);
        args.extend(paths.flat_map(|(name, path)| [name.into(), path.clone().into_os_string()]));
        args.extend(no_new_privileges.then(|| "--no-new-privileges".into()));
        args
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number from 1 on".into())
}

fn queue(text: &str) -> Result<(String, usize), String> {
    let (name, size) = text.rsplit_once('=').ok_or("a name and a number, as builds=2")?;
    if name.is_empty() {
        return Err("a name and a number, as builds=2".into());
    }
    Ok((name.to_owned(), at_least_one(size)?))
}

/// The state directory that is meant here, unless an option says otherwise: that of the
/// environment, or else the usual one. All commands take the same, so that they meet.
pub(super) fn state_dir_here() -> PathBuf {
    named_state_dir().unwrap_or_else(|| DefaultStateDir::find().path)
}

/// The state directory that the environment names.
pub(super) fn named_state_dir() -> Option<PathBuf> {
    let named = std::env::var_os("PROCYARD_STATE_DIR").filter(|path| !path.is_empty());
    named.map(PathBuf::from)
}

/// Why a state directory cannot be used, with what to do if it is the default one.
pub(super) fn state_dir_problem(path: &Path, error: &StoreError) -> String {
    let can_be_elsewhere =
        matches!(error, StoreError::Directory { .. } | StoreError::NotOurs { .. });
    if !can_be_elsewhere || named_state_dir().is_some() || path != DefaultStateDir::find().path {
        return error.to_string();
    }
    let serve = "pass --state-dir PATH to `procyard serve`";
    match getuid().is_root() {
        true => format!("{error}; {serve}"),
        false => {
            format!("{error}; set XDG_STATE_HOME to a directory that you can write to, or {serve}")
        }
    }
}
