//! What a process may reach: the words for it, on both sides. Pure data.

use serde::{Deserialize, Serialize};

/// What a process may reach, as it was asked for. The default: all that its user may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Which files it may write.
    pub files: Files,
    /// With [`Files::WorkspaceWrite`], directories below which it may write as well.
    pub writable: Vec<String>,
    /// A PID namespace, with a `/proc` of its own. Needs `own_mounts`.
    pub own_pids: bool,
    /// A mount namespace.
    pub own_mounts: bool,
    /// A network namespace, with loopback.
    pub own_network: bool,
    /// It never gains privileges. Part of every sandbox that [is closed](Sandbox::is_closed).
    pub no_new_privileges: bool,
}

/// Which files a process may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Files {
    /// All that its user may.
    #[default]
    Unrestricted,
    /// None but some devices and the file that `PROCYARD_OUTPUT` names.
    ReadOnly,
    /// The same, and whatever lies below its directory and `writable`.
    WorkspaceWrite,
}

/// Which parts of a sandbox can be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Files can be kept from being written.
    pub files: bool,
    /// A PID namespace.
    pub own_pids: bool,
    /// A mount namespace.
    pub own_mounts: bool,
    /// A network namespace.
    pub own_network: bool,
}

impl Sandbox {
    /// The fields of it that ask for something that `parts` does not have.
    pub fn missing(&self, parts: &Parts) -> Vec<&'static str> {
        let Sandbox { files, writable: _, own_pids, own_mounts, own_network, no_new_privileges: _ } =
            self;
        let missing = [
            ("files", *files != Files::Unrestricted && !parts.files),
            ("own_pids", *own_pids && !parts.own_pids),
            ("own_mounts", *own_mounts && !parts.own_mounts),
            ("own_network", *own_network && !parts.own_network),
        ];
        missing.into_iter().filter_map(|(field, missing)| missing.then_some(field)).collect()
    }

    /// Whether it keeps a process from reaching something, and not only from gaining privileges.
    pub fn is_closed(&self) -> bool {
        let Sandbox { files, writable: _, own_pids, own_mounts, own_network, no_new_privileges: _ } =
            self;
        *files != Files::Unrestricted || *own_pids || *own_mounts || *own_network
    }

    /// Whether it has mounts or a network that commands beside it are to share.
    pub fn has_rooms(&self) -> bool {
        self.own_mounts || self.own_network
    }
}

impl Parts {
    /// The fields of a sandbox that can be had.
    pub fn fields(&self) -> Vec<&'static str> {
        let Parts { files, own_pids, own_mounts, own_network } = *self;
        let fields = [
            ("files", files),
            ("own_pids", own_pids),
            ("own_mounts", own_mounts),
            ("own_network", own_network),
        ];
        fields.into_iter().filter_map(|(field, had)| had.then_some(field)).collect()
    }
}
