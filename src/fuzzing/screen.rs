//! Terminals: whatever is printed on one makes a picture of its size, the same however the output
//! is cut.

use super::input::Input;
use crate::process::Size;
use crate::terminal::{Picture, Screen};

/// Size, another size and where it is taken on, how the output is cut, the output.
pub fn screen(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (size, other) = (size(&mut input), size(&mut input));
    let (resized, seed) = (usize::from(input.byte()), input.byte());
    let pieces = input.pieces(seed, 40);
    let whole = picture(&[input.0], size);
    is_of(&whole, size);
    assert_eq!(picture(&pieces, size), whole);
    let mut screen = Screen::new(size, true);
    for (at, piece) in pieces.iter().enumerate() {
        if at == resized {
            screen.resize(other);
        }
        screen.feed(piece);
    }
    is_of(&screen.picture(), if pieces.len() > resized { other } else { size });
}

/// Small ones, in which everything happens at some edge.
fn size(input: &mut Input<'_>) -> Size {
    Size { rows: 1 + input.below(30) as u16, cols: 1 + input.below(90) as u16 }
}

fn picture(pieces: &[&[u8]], size: Size) -> Picture {
    let mut screen = Screen::new(size, false);
    pieces.iter().for_each(|piece| screen.feed(piece));
    screen.picture()
}

fn is_of(picture: &Picture, size: Size) {
    assert_eq!((picture.size, picture.rows.len()), (size, size.rows.into()));
    assert!(picture.cursor.0 < size.rows && picture.cursor.1 < size.cols, "{picture:?}");
}
