//! The window when a process was left that has drawn on it.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::{Left, modes};
use crate::cli::client::Client;
use crate::cli::print;
use crate::cli::trouble::Trouble;
use crate::grpc::pb;

/// How long is asked where the cursor is.
const PATIENCE: Duration = Duration::from_secs(1);
/// Colours and attributes off.
const PLAIN: &str = "\x1b[0m";

/// Makes a window usable again: undoes the modes that the process has chosen and not undone. If it
/// has ended by itself, colours and the cursor's place are as it wanted them.
pub(in crate::cli) async fn tidy(
    client: Client,
    id: &str,
    terminal: bool,
    left: &Result<Left, Trouble>,
) {
    let by_itself = match left {
        Ok(Left::Ended(process)) => process.exit.as_ref().is_some_and(|exit| exit.code.is_some()),
        Ok(Left::Detached { .. } | Left::Asked(_) | Left::Canceled(_)) | Err(_) => false,
        Ok(Left::Unwritable(_)) => return,
    };
    if !terminal || !io::stdout().is_terminal() {
        return;
    }
    let alternate = modes::leave();
    if !by_itself {
        write(PLAIN);
        if !alternate && column(client, id).await > 0 {
            write("\r\n");
        }
    }
}

/// Where the cursor is in its row; 0 if nobody knows.
async fn column(mut client: Client, id: &str) -> u32 {
    let asked = client.screen(pb::ScreenRequest { id: id.into() });
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    answer.ok().and_then(Result::ok).map_or(0, |screen| screen.into_inner().cursor_col)
}

fn write(text: &str) {
    let _ = print::to_stdout(text.as_bytes());
}
