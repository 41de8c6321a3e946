//! Screen: what a terminal shows now.

use prost::Message;

use super::from_proto::ScreenOrder;
use super::pb;
use crate::process::Size;
use crate::supervisor::{Error, SCREEN_BYTES, Supervisor};
use crate::terminal::Picture;

/// Bytes of a screen with its attributes; with its text it is below the 4 MiB that clients take.
const MOST_ANSI: usize = 2 << 20;

pub(super) async fn screen(
    supervisor: &Supervisor,
    order: ScreenOrder,
) -> Result<pb::ScreenResponse, Error> {
    let ScreenOrder { id } = order;
    let entry = supervisor.find(&id)?;
    let (picture, next_seq) = supervisor.screen(&entry).await?;
    let Picture { rows, cursor, cursor_visible, alternate, title, ansi, modes, size } = picture;
    let Size { rows: height, cols } = size;
    // A screen as large as can be is within what clients take; its colours may not be.
    let ansi = if ansi.len() > MOST_ANSI { String::new() } else { ansi };
    let answer = pb::ScreenResponse {
        rows,
        cursor_row: cursor.0.into(),
        cursor_col: cursor.1.into(),
        alternate,
        title,
        ansi: ansi.into(),
        size: Some(pb::TerminalSize { rows: height.into(), cols: cols.into() }),
        cursor_visible,
        next_seq,
        modes: modes.into(),
    };
    supervisor.ticket().release(SCREEN_BYTES.saturating_sub(answer.encoded_len()));
    Ok(answer)
}
