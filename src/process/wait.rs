//! What is waited for. Pure data; the waiting itself is done elsewhere.

use std::time::Duration;

use crate::transcript::OutputRegex;

/// What is waited for. The end of the process always wakes, and so does the timeout.
#[derive(Clone, Debug)]
pub struct WaitFor {
    /// What is awaited.
    pub until: Until,
    /// How long; none: as long as the client does.
    pub timeout: Option<Duration>,
}

impl WaitFor {
    /// Bytes that its regex takes.
    pub fn compiled_bytes(&self) -> usize {
        match &self.until {
            Until::Output(regex) => regex.compiled_bytes(),
            Until::Exit | Until::Ready | Until::Quiet(_) => 0,
        }
    }
}

/// What is awaited.
#[derive(Clone, Debug)]
pub enum Until {
    /// The end of the process.
    Exit,
    /// That the process is ready.
    Ready,
    /// Output that matches, of any one stream.
    Output(OutputRegex),
    /// A pause of this length in the output.
    Quiet(Duration),
}
