//! Signals that this program gets in place of a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Those that are waited for. One that was ignored by whoever started us stays ignored, as it would
/// in any command: `nohup` and `&` rely on that.
const AWAITED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];
/// Signals that may wait: more than one would send by hand.
const MOST_WAITING: usize = 64;

/// Signals, in the order of their coming.
pub(in crate::cli) struct Signals {
    coming: mpsc::Receiver<i32>,
    put_back: Option<i32>,
}

impl Signals {
    /// From now on they do not end this program.
    pub(in crate::cli) fn begin() -> io::Result<Signals> {
        let (tell, signals) = mpsc::channel(MOST_WAITING);
        for number in AWAITED.into_iter().filter(|number| !is_ignored(*number)) {
            let mut stream = signal(SignalKind::from_raw(number))?;
            let tell = tell.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && tell.send(number).await.is_ok() {}
            });
        }
        Ok(Signals { coming: signals, put_back: None })
    }

    /// The next one. Whoever stops waiting for it misses none.
    pub(in crate::cli) async fn next(&mut self) -> i32 {
        if let Some(number) = self.put_back.take() {
            return number;
        }
        match self.coming.recv().await {
            Some(number) => number,
            // All are ignored.
            None => std::future::pending().await,
        }
    }

    /// Has this one come again.
    pub(in crate::cli) fn put_back(&mut self, number: i32) {
        self.put_back = Some(number);
    }

    /// Waits for the second signal that asks this program to end; the first is told, too.
    pub(in crate::cli) async fn second(&mut self, first: &mut Option<i32>) -> i32 {
        loop {
            let number = self.next().await;
            if ends(number) && first.replace(number).is_some() {
                return number;
            }
        }
    }
}

/// Ends this program by SIGINT, if it is that: a shell that runs it in a loop learns only by this
/// that ^C was meant for the loop, too. Other signals are told by the exit code.
pub(in crate::cli) fn end_by(number: i32) {
    if number == libc::SIGINT {
        // SAFETY: gives a signal its usual meaning and sends it to this process, which has put its
        // terminal in order.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::raise(libc::SIGINT);
        }
    }
}

/// Whether a signal asks a program to end.
pub(super) fn ends(number: i32) -> bool {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&number)
}

fn is_ignored(number: i32) -> bool {
    // SAFETY: only asks; what is asked for is plain data, for which zeros do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
