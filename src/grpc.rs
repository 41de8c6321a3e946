//! The public API on the wire: `procyard.v1`.
//!
//! Owns the messages (`pb`) and what they mean: requests become domain words (`from_proto`),
//! domain words become answers (`to_proto`), and refusals become statuses (`status`). The only
//! place that knows both sides; nothing here decides anything.

pub mod from_proto;
pub mod to_proto;

mod attach;
pub(crate) mod audit;
pub(crate) mod clip;
pub mod encoded_value;
mod follow;
pub mod framework;
pub mod info;
mod input;
mod lifecycle;
mod output;
mod paced_stream;
mod records;
mod screen;
pub mod service;
mod sleep;
mod status;
#[cfg(test)]
mod tests;
mod watch;
mod watch_limit;
mod words;

pub use encoded_value::EncodedValue;

/// The messages and the service, as generated from `proto/procyard/v1`.
pub mod pb {
    #![allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated; the proto has the words"
    )]
    tonic::include_proto!("procyard.v1");

    /// All files of the API, for reflection.
    pub const FILE_DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/procyard.v1.bin"));
}
