//! Which chunks need not be kept any longer for this reader. Pure.
//!
//! Room is made early enough that a process never waits for the acknowledgement alone, and in
//! large steps: what was acknowledged stays readable until its room is needed.

/// What a chunk takes besides its bytes, rounded up.
const PER_CHUNK: u64 = 48;
/// The transcript that a process has unless it was given another.
const USUAL: u64 = 8 << 20;
/// At least so many steps to a transcript.
const STEPS: u64 = 8;

/// What was written, and what of it was told.
#[derive(Debug)]
pub(super) struct Acknowledging {
    step: u64,
    /// What was written since it was told.
    unread: u64,
    /// Up to which chunk.
    seq: u64,
    under_way: bool,
}

impl Acknowledging {
    /// For a transcript of this size; 0: the usual one.
    pub(super) fn of(transcript_bytes: u64) -> Acknowledging {
        let size = if transcript_bytes == 0 { USUAL } else { transcript_bytes };
        Acknowledging { step: size / STEPS, unread: 0, seq: 0, under_way: false }
    }

    /// Nobody here wants what came up to this chunk: returns what to acknowledge now, if anything.
    pub(super) fn pass_over(&mut self, seq: u64) -> Option<u64> {
        (self.seq, self.under_way) = (seq, seq > 0);
        (seq > 0).then_some(seq)
    }

    /// Chunks up to this one were written: returns what to acknowledge now, if anything.
    pub(super) fn written(&mut self, seq: u64, chunks: u64, bytes: u64) -> Option<u64> {
        self.unread += bytes + chunks * PER_CHUNK;
        self.seq = self.seq.max(seq);
        self.due()
    }

    /// What was told last is known: returns what to acknowledge next.
    pub(super) fn done(&mut self) -> Option<u64> {
        self.under_way = false;
        self.due()
    }

    fn due(&mut self) -> Option<u64> {
        if self.under_way || self.unread < self.step {
            return None;
        }
        (self.under_way, self.unread) = (true, 0);
        Some(self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wanted_makes_room_at_once() {
        assert_eq!(Acknowledging::of(0).pass_over(0), None);
        let mut acks = Acknowledging::of(0);
        assert_eq!(acks.pass_over(7), Some(7));
        assert_eq!(acks.written(8, 1, USUAL), None);
        assert_eq!(acks.done(), Some(8));
    }

    #[test]
    fn room_is_made_in_steps_one_at_a_time() {
        let mut acks = Acknowledging::of(64 << 10);
        assert_eq!(acks.written(1, 1, 100), None);
        assert_eq!(acks.written(2, 1, 8 << 10), Some(2));
        assert_eq!(acks.written(3, 1, 8 << 10), None);
        assert_eq!(acks.done(), Some(3));
        assert_eq!(acks.done(), None);
        // Chunks of a byte take room, too.
        assert_eq!(acks.written(300, 297, 297), Some(300));
    }
}
