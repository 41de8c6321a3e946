//! What a client of HTTP/2 says is followed alike however it is cut; only an authority changes,
//! and nothing of another protocol does.

use super::input::Input;
use crate::server::authority::{Frames, PREFACE};

/// Whether the preface goes before it, how the bytes are cut, the bytes.
pub fn header_block(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (speaks, seed) = (input.byte() & 1 == 0, input.byte());
    let preface = if speaks { &PREFACE[..] } else { &[] };
    let said = [preface, input.0].concat();
    let mut whole = said.clone();
    Frames::new().follow(&mut whole);
    let mut frames = Frames::new();
    let mut followed = Vec::new();
    for piece in Input(&said).pieces(seed, 24) {
        let mut piece = piece.to_vec();
        frames.follow(&mut piece);
        followed.extend(piece);
    }
    assert_eq!(followed, whole);
    if !said.starts_with(PREFACE) {
        assert_eq!(whole, said, "another protocol");
    }
    let changed = said.iter().zip(&whole).filter(|(before, after)| before != after);
    assert!(changed.into_iter().all(|(_, after)| [b'X', 0xfc].contains(after)));
}
