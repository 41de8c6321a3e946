//! `procyard server`: started by the keeper, with the link as descriptor 3.

use std::error::Error;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::options::Options;
use crate::server;

/// The server that `serve` starts and restarts; not to be run by hand.
#[derive(clap::Args)]
pub(super) struct Server {
    /// How many listening sockets follow the link, from descriptor 4 on.
    #[arg(long, default_value_t = 0)]
    listeners: i32,
    /// One more follows them, for metrics.
    #[arg(long)]
    metrics: bool,
    #[command(flatten)]
    pub(super) options: Options,
}

impl Server {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let inherited = |fd| {
            // SAFETY: only asks whether the descriptor is open, and keeps it from children.
            let open = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != -1;
            // SAFETY: open, and nothing else in this process knows it yet.
            open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        };
        // The kernel named it after the descriptor that it was started from.
        // SAFETY: takes a string that ends with NUL; touches nothing else.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"procyard".as_ptr()) };
        let missing = "this command is started by `procyard serve`, with its sockets";
        let link = UnixStream::from(inherited(3).ok_or(missing)?);
        let listeners: Option<Vec<OwnedFd>> = (4..4 + self.listeners).map(inherited).collect();
        let metrics =
            if self.metrics { Some(inherited(4 + self.listeners).ok_or(missing)?) } else { None };
        let sockets = server::Sockets { listeners: listeners.ok_or(missing)?, metrics };
        // As long as this is open the keeper waits to hear why.
        let heard = link.try_clone()?;
        let served = server::run(link, sockets, &self.options.for_server());
        if let Err(error) = &served {
            tracing::error!(%error, "the server cannot go on");
        }
        drop(heard);
        served
    }
}
