//! From what was asked for to what the keeper starts.
//!
//! Owns the environment of a process. Everything here is worked out at each start, from the spec
//! and from what this server has.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use super::confining::Confiner;
use super::limits;
use super::outputs::Outputs;
use super::scripts::Scripts;
use crate::process::{
    Environment, Io, Launch, Mode, Overflow, Program, Record, Spec, Streams, User,
};
use crate::transcript::ring::MIN_CAPACITY;

/// What a clean environment begins with, as far as the server has it.
const BASE: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// Where programs are looked for when not even the server has a PATH.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Parts of names that look like secrets.
const SECRET: [&str; 8] =
    ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "PRIVATE", "APIKEY"];
/// Last words of names that look like secrets.
const SECRET_END: [&str; 5] = ["KEY", "PASS", "PWD", "AUTH", "COOKIE"];

/// Begins the names of procyard's own variables.
const OWN: &str = "PROCYARD_";

type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

/// What this server has to give to the processes that it starts.
pub(super) struct Ground {
    env: Variables,
    /// Where scripts are handed over.
    pub(super) scripts: Scripts,
    /// Where programs leave what they set.
    pub(super) outputs: Outputs,
    /// Where they may run and what they may reach.
    pub(super) confiner: Arc<Confiner>,
}

impl Ground {
    /// The environment of this process, and the directories for scripts and outputs.
    pub(super) fn new(state_dir: &Path, confiner: Arc<Confiner>) -> Ground {
        let env = std::env::vars_os();
        let env = env.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
        let (scripts, outputs) = (Scripts::new(state_dir), Outputs::new(state_dir));
        Ground { env, scripts, outputs, confiner }
    }

    /// The launch of a process. A script is written where the launch says.
    pub(super) fn launch(&self, record: &Record) -> io::Result<Launch> {
        let spec = &record.spec;
        self.outputs.remove_previous(record);
        if spec.has_output_made() {
            self.outputs.make_for(record, spec.user.as_ref());
        }
        let io = match spec.streams {
            Streams::Pipes { stdin, merge_stderr } => Io::Pipes { stdin, merge_stderr },
            Streams::Terminal { size, .. } => Io::Terminal(size),
        };
        Ok(Launch {
            id: record.id.to_string(),
            run: record.launch,
            first_seq: record.first_seq,
            continues: record.restarts.count > 0,
            args: self.args(record)?,
            io,
            ring_bytes: spec.transcript_bytes,
            overflow: overflow(record),
            ..self.surroundings(record, Confiner::confine)
        })
    }

    /// How a command is started beside a process: as the process itself, but on pipes of its own,
    /// where nobody reads along. Its arguments and its run are left to be said.
    pub(super) fn beside(&self, record: &Record) -> Launch {
        let id = format!("{}/probe", record.id);
        let surroundings = self.surroundings(record, Confiner::confine_beside);
        let mut beside = Launch { id, ring_bytes: MIN_CAPACITY, ..surroundings };
        // What the process sets is its own to say.
        beside.env.retain(|(name, _)| name != b"PROCYARD_OUTPUT");
        beside
    }

    /// All that a process shares with the commands beside it, but for how each is kept in.
    fn surroundings(&self, record: &Record, confine: fn(&Confiner, &Spec, &mut Launch)) -> Launch {
        let spec = &record.spec;
        let mut launch = Launch {
            env: self.variables(record).into_iter().collect(),
            user: spec.user.clone(),
            rlimits: limits::rlimits(&spec.limits),
            nice: spec.limits.nice,
            limits: limits::of_tree(&spec.limits),
            ..Launch::new("", [b""; 0])
        };
        confine(&self.confiner, spec, &mut launch);
        launch
    }

    fn args(&self, record: &Record) -> io::Result<Vec<Vec<u8>>> {
        let bytes = |args: &[String]| args.iter().map(|arg| arg.clone().into_bytes()).collect();
        Ok(match &record.spec.program {
            Program::Shell(line) => bytes(&["/bin/sh".into(), "-c".into(), line.clone()]),
            Program::Argv(args) => bytes(args),
            Program::RawArgv(args) => args.clone(),
            Program::Script(script) => {
                let path = self.scripts.write(record, script)?;
                let mut args: Vec<Vec<u8>> = bytes(&script.interpreter);
                args.push(path.into_os_string().into_vec());
                args
            }
            Program::LeftOut => Vec::new(),
        })
    }

    fn variables(&self, record: &Record) -> Variables {
        let spec = &record.spec;
        let Environment { set, inherit, inherit_all } = &spec.env;
        let mut variables = Variables::new();
        variables.insert(b"PATH".into(), USUAL_PATH.into());
        let passes = |name: &str| {
            BASE.contains(&name)
                || inherit.iter().any(|pattern| pattern == name)
                || !is_private(name)
                    && (*inherit_all || inherit.iter().any(|pattern| begins(name, pattern)))
        };
        for (name, value) in &self.env {
            if std::str::from_utf8(name).map_or(*inherit_all, passes) {
                variables.insert(name.clone(), value.clone());
            }
        }
        if let Some(user) = &spec.user {
            variables.extend(of_user(user, &fs::read_to_string("/etc/passwd").unwrap_or_default()));
        }
        let term = match &spec.streams {
            Streams::Terminal { term, .. } => Some(("TERM".to_owned(), term.clone())),
            Streams::Pipes { .. } => None,
        };
        let run = ("PROCYARD_RUN".to_owned(), record.run.to_string());
        let set = set.iter().map(|(name, value)| (name.clone(), value.clone()));
        let all = term.into_iter().chain(set).chain([run]);
        variables.extend(all.map(|(name, value)| (name.into_bytes(), value.into_bytes())));
        let output = self.outputs.path(record).into_os_string().into_vec();
        variables.insert(b"PROCYARD_OUTPUT".into(), output);
        variables
    }
}

fn begins(name: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix))
}

/// Passes only when it is named exactly.
fn is_private(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let last = upper.rsplit('_').next().unwrap_or_default();
    upper.starts_with(OWN)
        || SECRET.iter().any(|part| upper.contains(part))
        || upper.contains('_') && SECRET_END.contains(&last)
}

/// What tells a process who it is.
fn of_user(user: &User, passwd: &str) -> Variables {
    let uid = user.uid.to_string();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = entry.into_iter().find(|fields| fields.len() >= 7 && fields[2] == uid);
    let (name, home, shell) = match &entry {
        Some(fields) => (fields[0], fields[5], fields[6]),
        None => (uid.as_str(), "/", "/bin/sh"),
    };
    [("USER", name), ("LOGNAME", name), ("HOME", home), ("SHELL", shell)]
        .map(|(name, value)| (name.into(), value.into()))
        .into_iter()
        .collect()
}

/// What happens when the transcript is full. A foreground process was started by the client that reads
/// it; when it runs again, no reader is known, and it must not wait for one.
fn overflow(record: &Record) -> Overflow {
    match (record.spec.mode, record.run) {
        (Mode::Foreground, 2..) => Overflow::DropOldest,
        _ => record.spec.overflow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::record;
    use crate::process::{Limits, Spec};
    use crate::supervisor::Confinement;

    #[test]
    fn names_that_look_like_secrets_are_private() {
        for name in
            ["AWS_ACCESS_KEY", "GITHUB_TOKEN", "db_password", "MYSQL_PWD", "PROCYARD_LISTEN"]
        {
            assert!(is_private(name), "{name}");
        }
        for name in ["PATH", "PWD", "EDITOR", "KEYBOARD_LAYOUT", "MONKEY"] {
            assert!(!is_private(name), "{name}");
        }
    }

    #[test]
    fn a_user_is_described_by_the_password_file_or_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:7:7::/home/ann:/bin/zsh\n";
        let user = |uid| User { uid, gid: 0, groups: Vec::new() };
        let home = |uid| of_user(&user(uid), passwd)[&b"HOME"[..]].clone();
        assert_eq!((home(7), home(8)), (b"/home/ann".to_vec(), b"/".to_vec()));
    }

    #[test]
    fn a_command_beside_a_process_has_all_of_its_surroundings_and_streams_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let confiner = Confiner::new(Confinement::default(), None);
        let ground = Ground::new(place.path(), Arc::new(confiner));
        let mut spec = Spec::clone(&record("a", 1).spec);
        spec.program = Program::Shell("true".into());
        spec.streams = Streams::Pipes { stdin: true, merge_stderr: true };
        spec.cwd = "/tmp".into();
        spec.env.set.insert("NEW".into(), "1".into());
        spec.limits = Limits { open_files: 9, nice: Some(3), ..Limits::default() };
        let record = Record { spec: spec.into(), launch: 2, ..record("a", 1) };
        let mut launch = ground.launch(&record).unwrap();
        launch.env.retain(|(name, _)| name != b"PROCYARD_OUTPUT");
        assert!(launch.env.contains(&(b"NEW".to_vec(), b"1".to_vec())));
        let beside = ground.beside(&record);
        let meant = Launch {
            id: "a/probe".into(),
            run: 1,
            args: Vec::new(),
            io: Io::Pipes { stdin: false, merge_stderr: false },
            ring_bytes: MIN_CAPACITY,
            ..launch
        };
        assert_eq!(beside, meant);
    }
}
