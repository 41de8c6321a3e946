//! procyard from outside: real processes under a real keeper.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "`pub` here is for the modules of this binary")]

mod support;

mod adoption;
mod capture;
mod child_state;
mod clock;
mod commands;
mod continuing;
mod documents;
mod ending;
mod exhaustion;
mod input;
mod killing;
mod lingering;
mod output;
mod readiness;
mod service;
mod slow_exec;
mod spawning;
mod supervising;
mod surviving;
mod versions;
mod volume;
