//! Arbitrary bytes, taken from the front: figures first, then what they are about.

/// What is left of the bytes. Where there is none, it is nought.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub(super) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    /// The next byte, as a number below another.
    pub(super) fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    /// The next two bytes.
    pub(super) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next eight bytes.
    pub(super) fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Cuts the rest into pieces of 1 byte to `longest`, as another number says.
    pub(super) fn pieces(&self, seed: u8, longest: usize) -> Vec<&'a [u8]> {
        let (mut rest, mut random) = (self.0, u32::from(seed) + 1);
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let length = 1 + (random >> 16) as usize % longest;
            let (piece, behind) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        pieces
    }
}
