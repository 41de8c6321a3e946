//! Requests to domain words: the edge where everything a client sends is checked.
//!
//! Owns what may be asked for: ranges, defaults, required fields, as the protos say. A file for
//! each proto, and a few for what they share. Every conversion names every field of its message,
//! so that a new one is a compile error; every bad field of a request is reported, not only the
//! first (`problems`). Looks at nothing but the request: whether a directory exists, or a
//! process, is not found out here.

mod attach;
mod environment;
mod events;
mod input;
mod lifecycle;
mod limits;
mod pattern;
mod problems;
mod program;
mod records;
mod sandbox;
mod spec;
mod transcript;
mod values;
mod view;
mod wait;
mod work;

pub use attach::{AttachMessage, AttachOrder};
pub use events::{SleepOrder, WatchOrder};
pub use input::{ResizeOrder, ScreenOrder, SignalOrder, Typed, WriteOrder};
pub use lifecycle::{DeleteOrder, KillOrder, KillTarget, RunOrder, StartOrder};
pub use pattern::MayHaveRegex;
pub use records::{GetOrder, ListOrder, page_token};
pub use transcript::{FollowOrder, ReadOrder};
pub use wait::WaitOrder;

#[cfg(test)]
pub(in crate::grpc) use problems::refused;
