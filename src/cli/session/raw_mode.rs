//! The terminal that somebody sits at, while all keys go to a process.
//!
//! Whatever happens, it is given back as it was: when the session is over, and on a panic. Signals
//! that would end us are waited for by the session.

use std::io;
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::grpc::pb;

/// Rows and columns that a terminal may have here.
const MOST: u16 = 1000;

/// How the terminal was before.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// While it lives, keys are passed on as they are typed.
#[derive(Debug)]
pub(in crate::cli) struct RawMode(());

impl RawMode {
    /// Begins it, of the terminal that is stdin.
    pub(in crate::cli) fn begin() -> io::Result<RawMode> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                usual(panic);
            }));
        });
        let before = tcgetattr(rustix::stdio::stdin())?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let mode = RawMode(());
        mode.again();
        Ok(mode)
    }

    /// Begins it again: a shell that has stopped us has set its own.
    pub(in crate::cli) fn again(&self) {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut raw) = before.clone() {
            raw.make_raw();
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw);
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before);
    }
}

/// The size of the window; none if there is no window.
pub(in crate::cli) fn window() -> Option<pb::TerminalSize> {
    let size = tcgetwinsize(rustix::stdio::stdout());
    let size = size.or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    let within = |length: u16| u32::from(length.min(MOST));
    let known = size.ws_row > 0 && size.ws_col > 0;
    known.then(|| pb::TerminalSize { rows: within(size.ws_row), cols: within(size.ws_col) })
}
