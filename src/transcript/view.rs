//! How an answer shows a transcript. Pure data.

/// How an answer shows a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Most bytes of output in one answer.
    pub max_bytes: usize,
}

impl View {
    /// Most that can be asked for in one answer.
    pub const MAX_BYTES: usize = 3 << 20;
}

impl Default for View {
    fn default() -> View {
        View { max_bytes: 1 << 20 }
    }
}
