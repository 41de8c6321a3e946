//! All calls, and who may make them: the only place that says so. Pure.

use super::grant::Role;

/// A call of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The RPC's name.
    pub name: &'static str,
    /// What it does to processes.
    pub does: Does,
}

/// What a call does to processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Looks at them.
    Look,
    /// Makes, changes or ends them.
    Change,
}

impl Does {
    /// The least role that may do it.
    pub fn needs(self) -> Role {
        match self {
            Does::Look => Role::Viewer,
            Does::Change => Role::Operator,
        }
    }
}

use Does::{Change, Look};

impl Call {
    /// All of them.
    pub const ALL: [Call; 17] = [
        Call { name: "Start", does: Change },
        Call { name: "Get", does: Look },
        Call { name: "List", does: Look },
        Call { name: "Read", does: Look },
        Call { name: "Follow", does: Look },
        Call { name: "Wait", does: Look },
        Call { name: "WriteStdin", does: Change },
        Call { name: "Resize", does: Change },
        Call { name: "Signal", does: Change },
        Call { name: "Kill", does: Change },
        Call { name: "Run", does: Change },
        Call { name: "Delete", does: Change },
        Call { name: "Watch", does: Look },
        Call { name: "Attach", does: Change },
        Call { name: "Screen", does: Look },
        Call { name: "Sleep", does: Look },
        Call { name: "GetServerInfo", does: Look },
    ];

    /// The call of that name.
    pub fn named(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|call| call.name == name)
    }
}
