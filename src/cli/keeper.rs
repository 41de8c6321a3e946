//! `procyard keeper`: a keeper whose server connects by itself.

use std::error::Error;
use std::path::PathBuf;

use crate::config::{Reach, listen_at};
use crate::keeper::{Ground, Servers};

/// A keeper whose server connects by itself: for tests and debuggers.
#[derive(clap::Args)]
pub(super) struct Keeper {
    /// The socket that the server connects to. One server at a time; the next adopts.
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
}

impl Keeper {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let ground = Ground::take(&mut [])?;
        let listening = listen_at(&self.control, Reach::Owner);
        let (socket, _file) =
            listening.map_err(|error| format!("{}: {error}", self.control.display()))?;
        Ok(ground.keep(Servers::Connect(socket))?)
    }
}
