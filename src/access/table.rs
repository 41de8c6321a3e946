//! All calls, and who may make them: the only place that says so. Pure.

use super::grant::Role;

/// A call of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The RPC's name.
    pub name: &'static str,
    /// What it does to processes.
    pub does: Does,
    /// Its answer is a stream, which has a bound of its own.
    pub is_stream: bool,
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

const fn unary(name: &'static str, does: Does) -> Call {
    Call { name, does, is_stream: false }
}

const fn stream(name: &'static str, does: Does) -> Call {
    Call { name, does, is_stream: true }
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 17] = [
        unary("Start", Change),
        unary("Get", Look),
        unary("List", Look),
        unary("Read", Look),
        stream("Follow", Look),
        unary("Wait", Look),
        unary("WriteStdin", Change),
        unary("Resize", Change),
        unary("Signal", Change),
        unary("Kill", Change),
        unary("Run", Change),
        unary("Delete", Change),
        stream("Watch", Look),
        stream("Attach", Change),
        unary("Screen", Look),
        stream("Sleep", Look),
        unary("GetServerInfo", Look),
    ];

    /// The call of that name.
    pub fn named(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|call| call.name == name)
    }
}
