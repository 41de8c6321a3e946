//! The options that say what is to be run, each a field of the API's `Spec`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;

use super::readiness::ReadinessOptions;
use crate::cli::filter::label;
use crate::cli::trouble::Trouble;
use crate::cli::words::read_span;
use crate::grpc::pb;
use crate::grpc::to_proto::duration;

/// What a command on this machine has from here, so that it finds what it would find here.
const FROM_HERE: [&str; 1] = ["PATH"];
/// With a terminal, also how that is to be spoken to.
const FROM_TERMINAL: [&str; 2] = ["COLORTERM", "LANG"];

/// What is to be run.
#[derive(clap::Args)]
pub(super) struct SpecOptions {
    /// Its id. The default is made of the command's name. If a process with it is there and was
    /// started just so, that one is followed.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) id: Option<String>,
    /// A name, by which other commands find it.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// What it is for, in one line.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Its directory. The default is this one, or on another machine the server's.
    #[arg(long, short = 'C', value_name = "PATH")]
    cwd: Option<PathBuf>,
    /// A variable, with its value or as it is here. From here it has PATH and its directory, and
    /// else what the server gives: variables, umask, limits. Repeatable.
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// COMMAND is a line for sh.
    #[arg(long)]
    shell: bool,
    /// A label. Repeatable.
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Whose it is.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    owner: Option<String>,
    /// What it belongs to.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    workspace: Option<String>,
    /// Waits for its turn in a queue.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// How long it may run, such as 30s or 1h30m.
    #[arg(long, value_name = "SPAN", value_parser = read_span)]
    timeout: Option<Duration>,
    /// A service of this name, of which one is live at a time.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(super) service: Option<String>,
    /// When a service is started again, after pauses that grow up to a minute.
    #[arg(long, value_name = "WHEN", requires = "service")]
    restart: Option<When>,
    /// Give up after N restarts. The default is to never give up.
    #[arg(long, value_name = "N", requires = "restart", value_parser = clap::value_parser!(u32).range(1..))]
    max_restarts: Option<u32>,
    #[command(flatten)]
    readiness: ReadinessOptions,
    /// The signal that asks it to end, by name or number. The default is TERM, on a terminal HUP.
    #[arg(long, value_name = "SIGNAL", value_parser = NonEmptyStringValueParser::new())]
    stop_signal: Option<String>,
    /// How long it may take to end, until it is killed.
    #[arg(long, value_name = "SPAN", value_parser = read_span)]
    grace: Option<Duration>,
    /// Memory of it and its descendants, such as 512M.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// CPUs of it and its descendants, such as 1.5.
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Processes and threads of it and its descendants.
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
    /// How much of its output is kept, such as 64M: the newest. The default is 8M.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    transcript: Option<u64>,
    /// What to run, with its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// When a service is started again.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    /// When it did not succeed.
    OnFailure,
    /// However it ended.
    Always,
}

impl SpecOptions {
    /// The program's name, or the line.
    pub(super) fn program(&self) -> String {
        self.command.first().map(|first| first.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Size of the transcript; 0: the usual one.
    pub(super) fn transcript_bytes(&self) -> u64 {
        self.transcript.unwrap_or_default()
    }

    /// What is to be run, but for its streams. `local`: what is here is there, too.
    pub(super) fn spec(&self, local: bool, terminal: bool) -> Result<pb::Spec, Trouble> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let mode = if self.service.is_some() { pb::Mode::Service } else { pb::Mode::Background };
        Ok(pb::Spec {
            program: Some(self.to_run()?),
            cwd: self.directory(local)?,
            env: Some(pb::Environment {
                set: self.variables(local, terminal)?,
                ..Default::default()
            }),
            name: text(&self.name),
            description: text(&self.description),
            labels: self.label.iter().cloned().collect(),
            owner: text(&self.owner),
            workspace: text(&self.workspace),
            mode: mode.into(),
            service: text(&self.service),
            restart: self.restart.map(|when| self.restarted(when)),
            readiness: self.readiness.to_proto(),
            queue: text(&self.queue),
            timeout: self.timeout.map(duration),
            stop: self.stop(terminal),
            limits: self.limits(),
            transcript_bytes: self.transcript_bytes(),
            ..Default::default()
        })
    }

    fn restarted(&self, when: When) -> pb::Restart {
        let policy = match when {
            When::OnFailure => pb::restart::Policy::OnFailure,
            When::Always => pb::restart::Policy::Always,
        };
        let max_restarts = self.max_restarts.unwrap_or_default();
        pb::Restart { policy: policy.into(), max_restarts, ..Default::default() }
    }

    fn to_run(&self) -> Result<pb::spec::Program, Trouble> {
        let strings = self.command.iter().map(|arg| arg.to_str().map(str::to_owned));
        let strings: Option<Vec<String>> = strings.collect();
        match (self.shell, strings) {
            (true, Some(words)) => Ok(pb::spec::Program::Shell(words.join(" "))),
            (true, None) => Err(Trouble::new("a line for sh must be UTF-8")),
            (false, Some(args)) => {
                Ok(pb::spec::Program::Argv(pb::Argv { args, raw_args: Vec::new() }))
            }
            (false, None) => {
                let raw = self.command.iter().map(|arg| arg.as_bytes().to_vec().into());
                Ok(pb::spec::Program::Argv(pb::Argv { args: Vec::new(), raw_args: raw.collect() }))
            }
        }
    }

    fn directory(&self, local: bool) -> Result<String, Trouble> {
        let given = match (&self.cwd, local) {
            (Some(path), true) => std::path::absolute(path)?,
            (Some(path), false) => path.clone(),
            (None, true) => std::env::current_dir().map_err(|error| {
                Trouble::new(format!("the current directory: {error}; -C gives another"))
            })?,
            (None, false) => return Ok(String::new()),
        };
        let text = |path: &Path| path.to_str().map(str::to_owned);
        text(&given).ok_or_else(|| Trouble::new(format!("the directory {given:?} must be UTF-8")))
    }

    fn variables(&self, local: bool, terminal: bool) -> Result<HashMap<String, String>, Trouble> {
        let here = |name: &str| std::env::var_os(name);
        let mut set = HashMap::new();
        let mut put = |name: &str, value: OsString| match String::from_utf8(value.into_vec()) {
            Ok(value) => {
                set.insert(name.to_owned(), value);
                Ok(())
            }
            Err(_) => Err(Trouble::new(format!("the variable {name} must be UTF-8"))),
        };
        let shown = if terminal { FROM_TERMINAL.as_slice() } else { &[] };
        for name in FROM_HERE.iter().chain(shown).filter(|_| local) {
            here(name).map(|value| put(name, value)).transpose()?;
        }
        for (name, value) in std::env::vars_os().filter(|_| local && terminal) {
            if let Some(name) = name.to_str().filter(|name| name.starts_with("LC_")) {
                put(name, value)?;
            }
        }
        for given in &self.env {
            match given.split_once('=') {
                Some((name, value)) => put(name, value.into())?,
                // One that is not set here is not set there, as for any other command.
                None => here(given).map(|value| put(given, value)).transpose()?.unwrap_or(()),
            }
        }
        Ok(set)
    }

    /// Interactive shells ignore TERM; they end, as all that has a terminal, when that hangs up.
    fn stop(&self, terminal: bool) -> Option<pb::Stop> {
        let usual = terminal.then(|| "HUP".to_owned());
        let signal = self.stop_signal.clone().or(usual);
        (signal.is_some() || self.grace.is_some()).then(|| pb::Stop {
            signal: signal.unwrap_or_default(),
            grace: self.grace.map(duration),
        })
    }

    fn limits(&self) -> Option<pb::Limits> {
        let given = self.memory.is_some() || self.cpus.is_some() || self.processes.is_some();
        given.then(|| pb::Limits {
            memory_bytes: self.memory.unwrap_or_default(),
            cpus: self.cpus.unwrap_or_default(),
            processes: self.processes.unwrap_or_default(),
            ..Default::default()
        })
    }
}

/// Reads a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let bad = || "a number of bytes is needed, such as 65536, 64K, 512M or 2G".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        spec: SpecOptions,
    }

    fn spec(args: &[&str]) -> pb::Spec {
        Cli::try_parse_from([&["run"], args].concat()).unwrap().spec.spec(false, false).unwrap()
    }

    #[test]
    fn a_command_begins_at_its_name_or_behind_two_dashes() {
        let args = ["echo", "-e", "--id", "x"].map(String::from).to_vec();
        let argv = pb::spec::Program::Argv(pb::Argv { args, raw_args: Vec::new() });
        assert_eq!(spec(&["echo", "-e", "--id", "x"]).program, Some(argv.clone()));
        assert_eq!(spec(&["--", "echo", "-e", "--id", "x"]).program, Some(argv));
        let line = spec(&["--shell", "a |", "b"]).program;
        assert_eq!(line, Some(pb::spec::Program::Shell("a | b".into())));
        assert!(Cli::try_parse_from(["run", "--no-such-option", "echo"]).is_err());
    }

    #[test]
    fn readiness_is_given_one_way_and_with_its_timeout() {
        use pb::readiness::Probe;
        let readiness = |args: &[&str]| spec(&[args, &["true"]].concat()).readiness;
        assert_eq!(readiness(&[]), None);
        let port = readiness(&["--ready-port", "8080", "--ready-timeout", "30s"]).unwrap();
        assert_eq!(port.probe, Some(Probe::TcpPort(8080)));
        assert_eq!(port.timeout, Some(duration(Duration::from_secs(30))));
        let printed = readiness(&["--ready-prints", "up"]).unwrap();
        assert_eq!(printed.probe, Some(Probe::OutputRegex("up".into())));
        assert_eq!(readiness(&["--ready-exec", "a b"]).unwrap().exec, ["/bin/sh", "-c", "a b"]);
        for wrong in [
            &["--ready-port", "1", "--ready-prints", "x"][..],
            &["--ready-port", "0"],
            &["--ready-timeout", "1s"],
        ] {
            let args = [&["run"], wrong, &["true"]].concat();
            assert!(Cli::try_parse_from(args).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn elsewhere_nothing_of_this_machine_is_told() {
        let elsewhere = spec(&["-e", "A=b=c", "-e", "procyard_is_not_set", "true"]);
        assert_eq!(elsewhere.cwd, "");
        let set = elsewhere.env.unwrap().set;
        assert_eq!(set, HashMap::from([("A".to_owned(), "b=c".to_owned())]));
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(
            ["0", "65536", "64K", "512MiB", "2g"].map(|text| size(text).unwrap()),
            [0, 65_536, 65_536, 512 << 20, 2 << 30]
        );
        for bad in ["", "M", "1x", "-1", "1.5G", "99999999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
