//! All calls, and who may make them: the only place that says so. Pure.

use super::grant::Role;

/// A call of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The RPC's name.
    pub name: &'static str,
    /// What it does to processes.
    pub does: Does,
    /// How many messages go each way.
    pub shape: Shape,
    /// Bytes of a request message at most.
    pub max_request: usize,
    /// Fields of a request message at most: each value, each element of a list, and of a map each entry, key
    /// and value.
    pub max_fields: usize,
}

/// How many messages a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One request and one answer.
    Unary,
    /// One request and a stream of answers.
    ServerStream,
    /// A stream of requests and a stream of answers.
    BidiStream,
}

/// Bytes of a request message that brings a program or input: 1 MiB of either fits well.
pub const MAX_LARGE_REQUEST: usize = 4 << 20;

/// Bytes of any other request message.
///
/// The server decodes requests on its only thread, so a method gets no more than it needs. The largest
/// that it needs is a selector whose texts and labels are all at their limits: 75 KiB.
pub const MAX_REQUEST: usize = 128 << 10;

/// Fields of a request message that brings a program.
///
/// The server decodes requests on its only thread, which takes as long for an empty field as for a kilobyte of
/// text. The kernel gives a program less than 2 MiB of arguments and variables, so no program gets more of them.
pub const MAX_PROGRAM_FIELDS: usize = 128 << 10;

/// Fields of any other request message: the largest one that it needs has 1000 keys.
pub const MAX_FIELDS: usize = 4 << 10;

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
    let (max_request, max_fields) = (MAX_REQUEST, MAX_FIELDS);
    Call { name, does, shape: Shape::Unary, max_request, max_fields }
}

const fn stream(name: &'static str, does: Does) -> Call {
    Call { shape: Shape::ServerStream, ..unary(name, does) }
}

impl Call {
    const fn with_large_request(self) -> Call {
        Call { max_request: MAX_LARGE_REQUEST, ..self }
    }

    const fn with_program(self) -> Call {
        Call { max_fields: MAX_PROGRAM_FIELDS, ..self.with_large_request() }
    }

    /// Its answer is a stream, which has a bound of its own.
    pub fn is_stream(self) -> bool {
        self.shape != Shape::Unary
    }

    /// All of them.
    pub const ALL: [Call; 17] = [
        unary("Start", Change).with_program(),
        unary("Get", Look),
        unary("List", Look),
        unary("Read", Look),
        stream("Follow", Look),
        unary("Wait", Look),
        unary("WriteStdin", Change).with_large_request(),
        unary("Resize", Change),
        unary("Signal", Change),
        unary("Kill", Change),
        unary("Run", Change),
        unary("Delete", Change),
        stream("Watch", Look),
        Call { shape: Shape::BidiStream, ..unary("Attach", Change).with_large_request() },
        unary("Screen", Look),
        stream("Sleep", Look),
        unary("GetServerInfo", Look),
    ];

    /// The call of that name.
    pub fn named(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|call| call.name == name)
    }
}
