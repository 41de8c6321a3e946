//! The unit files: what they promise is what the supervisor does.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{binary, have};

/// What a unit file says, line by line.
struct Unit {
    path: PathBuf,
    text: &'static str,
    lines: Vec<(String, String)>,
}

impl Unit {
    fn read(name: &str) -> Unit {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd").join(name);
        // Whoever runs the test may not be able to read them there.
        let text = match name {
            "procyard.service" => include_str!("../../../../deploy/systemd/procyard.service"),
            "procyard.socket" => include_str!("../../../../deploy/systemd/procyard.socket"),
            "user/procyard.service" => {
                include_str!("../../../../deploy/systemd/user/procyard.service")
            }
            "user/procyard.socket" => {
                include_str!("../../../../deploy/systemd/user/procyard.socket")
            }
            _ => panic!("there is no {name}"),
        };
        let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
        let lines = lines.filter_map(|line| line.split_once('='));
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Unit { path, text, lines }
    }

    /// What is said of something, which must be said once.
    fn get(&self, name: &str) -> &str {
        let mut values = self.lines.iter().filter(|(found, _)| found == name);
        let (_, value) = values.next().unwrap_or_else(|| panic!("no {name}= in {:?}", self.path));
        assert!(values.next().is_none(), "{name}= is there twice");
        value
    }

    fn has(&self, name: &str) -> bool {
        self.lines.iter().any(|(found, _)| found == name)
    }

    fn seconds(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap()
    }
}

const SERVICES: [&str; 2] = ["procyard.service", "user/procyard.service"];
const SOCKETS: [&str; 2] = ["procyard.socket", "user/procyard.socket"];

#[test]
fn a_unit_asks_for_what_the_supervisor_does() {
    for name in SERVICES {
        let unit = Unit::read(name);
        assert_eq!((unit.get("Type"), unit.get("NotifyAccess")), ("notify", "main"));
        assert_eq!((unit.get("KillMode"), unit.get("Delegate")), ("mixed", "yes"));
        assert_eq!((unit.get("Restart"), unit.get("OOMPolicy")), ("on-failure", "continue"));
        assert_eq!(unit.get("Requires"), "procyard.socket");
        // It takes 25 s itself, and 5 s more while one server takes another's place.
        assert!(unit.seconds("TimeoutStopSec") > 30);
        // A server has 60 s until it serves, and another may have its turn.
        assert!(unit.seconds("TimeoutStartSec") >= 120);
        // All that is run would have less than its user has, and sandboxes would not work.
        for refused in ["NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectControlGroups"] {
            assert!(!unit.has(refused), "{refused}");
        }
    }
    let system = Unit::read(SERVICES[0]);
    assert_eq!(
        (system.get("StateDirectory"), system.get("StateDirectoryMode")),
        ("procyard", "0711")
    );
    assert_eq!(system.get("Environment"), "PROCYARD_STATE_DIR=%S/procyard");
    for needed in ["CAP_SETUID", "CAP_SYS_ADMIN", "CAP_KILL", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE"]
    {
        assert!(!system.get("CapabilityBoundingSet").contains(needed), "{needed}");
    }
}

#[test]
fn a_socket_is_where_commands_look_for_it_and_its_users_alone() {
    let places = ["/run/procyard.sock", "%t/procyard.sock"];
    for (name, place) in SOCKETS.into_iter().zip(places) {
        let unit = Unit::read(name);
        assert_eq!((unit.get("ListenStream"), unit.get("SocketMode")), (place, "0600"));
        // One process for all connections.
        assert!(!unit.has("Accept"));
    }
}

#[test]
fn the_commands_of_a_unit_are_commands() {
    for (unit, home) in SERVICES.into_iter().zip(["/usr/local/bin/", "%h/.local/bin/"]) {
        let unit = Unit::read(unit);
        for (name, command) in [("ExecStart", "serve"), ("ExecReload", "upgrade")] {
            let line = unit.get(name).replace("%t/", "/run/user/1/");
            let line = line.strip_prefix(home).unwrap();
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(words[..2], ["procyard", command]);
            // It looks at all that comes before it is asked to help.
            let parsed = Command::new(binary()).args(&words[1..]).arg("--help").output().unwrap();
            assert!(parsed.status.success(), "{line}: {parsed:?}");
        }
    }
}

#[test]
fn systemd_understands_every_line() {
    if !have(&["systemd-analyze"]) {
        return;
    }
    for (service, socket, manager) in
        [(SERVICES[0], SOCKETS[0], "--system"), (SERVICES[1], SOCKETS[1], "--user")]
    {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args([manager, "verify"]).env("XDG_RUNTIME_DIR", directory.path());
        for name in [service, socket] {
            let unit = Unit::read(name);
            // What is to be executed has to be there.
            let text = unit.text.replace("/usr/local/bin/procyard", &binary());
            let text = text.replace("%h/.local/bin/procyard", &binary());
            let copy = directory.path().join(unit.path.file_name().unwrap());
            std::fs::write(&copy, text).unwrap();
            command.arg(copy);
        }
        let verified = command.output().unwrap();
        let said = String::from_utf8_lossy(&verified.stderr);
        // It has its own opinion of what is missing on a machine without it.
        let ours: Vec<_> = said.lines().filter(|line| line.contains("procyard")).collect();
        assert!(ours.is_empty(), "{ours:#?}");
    }
}
