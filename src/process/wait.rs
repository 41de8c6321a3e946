//! What is waited for. Pure data; the waiting itself is done elsewhere.

use std::time::Duration;

use regex::bytes::Regex;

/// What is waited for. The end of the process always wakes, and so does the timeout.
#[derive(Clone, Debug)]
pub struct WaitFor {
    /// What is awaited.
    pub until: Until,
    /// How long; none: as long as the client does.
    pub timeout: Option<Duration>,
}

/// What is awaited.
#[derive(Clone, Debug)]
pub enum Until {
    /// The end of the process.
    Exit,
    /// That the process is ready.
    Ready,
    /// Output that matches, of any one stream.
    Output(Regex),
    /// A pause of this length in the output.
    Quiet(Duration),
}
