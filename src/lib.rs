//! procyard runs other people's processes and never loses one, nor a byte they print.
//!
//! One binary, two processes: the *keeper* holds the children and captures what they print, the
//! *server* has everything that has meaning. ARCHITECTURE.md has the map. In reading order:

#[cfg(not(target_os = "linux"))]
compile_error!("procyard runs on Linux: it is built on pidfds, memfds and subreapers");

pub mod process;
pub mod terminal;
pub mod transcript;

pub mod protocol;

pub mod keeper;

pub mod keeper_client;

pub mod access;

pub mod events;
pub mod store;

pub mod supervisor;

pub mod grpc;

pub mod server;

pub mod metrics;

pub mod config;

pub mod cli;
pub mod telemetry;

pub mod failpoint;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
