//! Character sets: which one is in use, and the line drawing set of the VT100.

/// The sets of a terminal. Two are enough: nobody shifts to G2 and G3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charsets {
    sets: [Charset; 2],
    /// G1 is in use.
    shifted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Charset {
    #[default]
    Ascii,
    LineDrawing,
}

impl Charsets {
    /// Chooses a set: `ESC ( 0` and the like.
    pub(super) fn choose(&mut self, place: u8, set: u8) {
        let place = usize::from(place == b')');
        self.sets[place] = if set == b'0' { Charset::LineDrawing } else { Charset::Ascii };
    }

    /// Shift out to G1, or in to G0.
    pub(super) fn shift(&mut self, out: bool) {
        self.shifted = out;
    }

    /// The character that is meant.
    pub(super) fn map(&self, character: char) -> char {
        match self.sets[usize::from(self.shifted)] {
            Charset::Ascii => character,
            Charset::LineDrawing => line_drawing(character),
        }
    }
}

fn line_drawing(character: char) -> char {
    const DRAWN: [char; 32] = [
        '\u{a0}', '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺',
        '⎻', '─', '⎼', '⎽', '├', '┤', '┴', '┬', '│', '≤', '≥', 'π', '≠', '£', '·',
    ];
    match character {
        '_'..='~' => DRAWN[character as usize - '_' as usize],
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_only_in_their_set() {
        let mut sets = Charsets::default();
        assert_eq!(sets.map('q'), 'q');
        sets.choose(b'(', b'0');
        let drawn: String = "lqkxmjtuvwn~A".chars().map(|c| sets.map(c)).collect();
        assert_eq!(drawn, "┌─┐│└┘├┤┴┬┼·A");
        sets.choose(b'(', b'B');
        sets.choose(b')', b'0');
        assert_eq!(sets.map('q'), 'q');
        sets.shift(true);
        assert_eq!(sets.map('q'), '─');
        sets.shift(false);
        assert_eq!(sets.map('q'), 'q');
    }
}
