//! Transcripts: what a process printed, as numbered chunks in a bounded ring.
//!
//! Owns the words for output (chunk, stream, gap), the layout of a ring in shared memory
//! and reading it by cursor, and the format of files in which transcripts outlive their ring.
//! Never writes a ring: the keeper alone does (`keeper::ring`).

pub mod archive;
pub mod matcher;
mod output_regex;
pub mod reader;
pub mod ring;
mod view;

use bytes::Bytes;

pub use archive::Archive;
pub use matcher::{Match, Matcher};
pub use output_regex::{OutputRegex, RegexError};
pub use reader::{Batch, COST as CHUNK_COST, Reader};
pub use ring::Ring;
pub use view::{Answer, Grep, Omitted, View, Viewer};

/// Where a chunk came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Standard output on a pipe, with standard error in it when merged.
    Stdout = 1,
    /// Standard error on a pipe.
    Stderr = 2,
    /// All that a terminal shows.
    Terminal = 3,
}

/// A piece of output, as it was read from the process in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the chunk: without holes over all streams of a process.
    pub seq: u64,
    /// Where it came from.
    pub stream: Stream,
    /// Bytes of this stream before it.
    pub offset: u64,
    /// When the keeper read it, nanoseconds since 1970.
    pub time: u64,
    /// The bytes, as printed.
    pub data: Bytes,
}

/// Chunks that were overwritten before they could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing chunk.
    pub from_seq: u64,
    /// Last missing chunk.
    pub to_seq: u64,
    /// Bytes in them; none when the reader began inside the gap and cannot know.
    pub dropped_bytes: Option<u64>,
}

/// How much there is in a transcript, and was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// The oldest chunk that is kept.
    pub first_seq: u64,
    /// Number that the next chunk will have.
    pub next_seq: u64,
    /// Bytes that were ever printed.
    pub total_bytes: u64,
    /// Of these, bytes that are no longer kept.
    pub dropped_bytes: u64,
    /// When the newest chunk came, nanoseconds since 1970; 0: there was none.
    pub last_time: u64,
}
