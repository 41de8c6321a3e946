//! What was typed, until it is known to have arrived. Pure.
//!
//! A process counts the bytes that it was given, and that count survives the server. What was sent
//! is kept until the count has passed it; when a connection is lost, the count tells what has
//! arrived, and the rest is sent again: nothing is lost, and nothing is typed twice.
//!
//! Where others type to the same process at the same time, their bytes count as ours. The count is
//! looked at soon after each key, so this concerns what was typed within a moment before the loss:
//! of that a key may then be missing. It is never typed twice, unless it is the connection alone that
//! is lost, and not the server at its other end: what that has got already it may type later.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::grpc::pb;
use crate::grpc::pb::attach_request::Message;

/// Bytes that are kept at most. A process that does not read has 1 MiB of them, and the connection
/// some more.
const MOST_KEPT: usize = 4 << 20;
/// What a piece takes besides its bytes, about: many small ones are much, too.
const PER_PIECE: usize = 128;
/// From this on, the count is asked for at once.
const MANY: usize = 1 << 20;

/// What was typed.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// The count at the first byte that is kept.
    accepted: u64,
    /// Which process of this id it was that counted.
    life: Life,
    kept: VecDeque<Bytes>,
    bytes: usize,
    /// How many of those that are kept were sent.
    sent: usize,
    end: End,
}

/// A process of an id: its run, and how often that was restarted. Each counts its own input.
pub(super) type Life = (u32, u32);

/// Which one a process is.
pub(super) fn life(process: &pb::Process) -> Life {
    (process.run, process.restarts)
}

/// What it was given so far. One that is yet to be launched was given nothing: what is counted was
/// its predecessor's.
pub(super) fn given(process: &pb::Process) -> pb::Stdin {
    let stdin = process.stdin.unwrap_or_default();
    match process.state() {
        pb::State::Queued | pb::State::Backoff | pb::State::Starting => {
            pb::Stdin { accepted_bytes: 0, ..stdin }
        }
        _ => stdin,
    }
}

/// Whether the input is at its end.
#[derive(Debug, Default, PartialEq, Eq)]
enum End {
    /// It goes on.
    #[default]
    No,
    /// To be sent after all the rest.
    Due,
    Sent,
}

impl Input {
    /// Whether more may be typed.
    pub(super) fn has_room(&self) -> bool {
        self.bytes + PER_PIECE * self.kept.len() < MOST_KEPT && self.end == End::No
    }

    /// Whether all that was typed has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.end != End::Due
    }

    /// Whether something was sent that may not have arrived.
    pub(super) fn is_unsettled(&self) -> bool {
        self.sent > 0
    }

    /// Whether so much of it is that the count is wanted at once.
    pub(super) fn is_much(&self) -> bool {
        self.bytes > MANY
    }

    /// Types more.
    pub(super) fn put(&mut self, typed: Bytes) {
        if !typed.is_empty() {
            self.bytes += typed.len();
            self.kept.push_back(typed);
        }
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        self.end = End::Due;
    }

    /// Nobody takes it: what was not sent never will be.
    pub(super) fn give_up(&mut self) {
        self.kept.clear();
        (self.bytes, self.sent) = (0, 0);
        self.end = End::Sent;
    }

    /// What was sent went nowhere.
    pub(super) fn forget_sent(&mut self) {
        self.bytes -= self.kept.drain(..self.sent).map(|piece| piece.len()).sum::<usize>();
        self.sent = 0;
    }

    /// Whether there is something to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.kept.len() || self.end == End::Due
    }

    /// The next message to be sent.
    pub(super) fn send(&mut self) -> Option<Message> {
        if let Some(piece) = self.kept.get(self.sent) {
            self.sent += 1;
            return Some(Message::Data(piece.clone()));
        }
        let due = self.end == End::Due;
        due.then(|| {
            self.end = End::Sent;
            Message::Eof(pb::EndOfInput {})
        })
    }

    /// The process has been given so many bytes.
    pub(super) fn settle(&mut self, life: Life, accepted: u64) {
        // It counts anew when it was started again: what was sent went to the one before.
        let anew = life != self.life;
        let mut taken = if anew { u64::MAX } else { accepted.saturating_sub(self.accepted) };
        self.accepted = if anew { accepted } else { accepted.max(self.accepted) };
        self.life = life;
        while self.sent > 0
            && taken > 0
            && let Some(first) = self.kept.front_mut()
        {
            let part = first.len().min(usize::try_from(taken).unwrap_or(usize::MAX));
            first.advance(part);
            taken -= part as u64;
            self.bytes -= part;
            if first.is_empty() {
                self.kept.pop_front();
                self.sent -= 1;
            }
        }
    }

    /// A connection has been made: all that did not arrive by an earlier one is sent again.
    pub(super) fn resume(&mut self, life: Life, stdin: &pb::Stdin, terminal: bool) {
        self.settle(life, stdin.accepted_bytes);
        self.sent = 0;
        // A terminal has no end to be asked for: to type that character twice is worse than not at
        // all.
        if self.end == End::Sent && stdin.open && !terminal {
            self.end = End::Due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Life = (1, 0);

    fn stdin(accepted_bytes: u64) -> pb::Stdin {
        pb::Stdin { open: true, accepted_bytes, pending_bytes: 0 }
    }

    fn typed(input: &mut Input) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Message::Data(data)) = input.send() {
            all.extend_from_slice(&data);
        }
        all
    }

    #[test]
    fn what_did_not_arrive_is_sent_again_and_nothing_else() {
        for arrived in 0..=6 {
            let mut input = Input::default();
            input.resume(FIRST, &stdin(10), false);
            for piece in ["ab", "cd", "ef"] {
                input.put(piece.into());
            }
            assert_eq!(typed(&mut input), b"abcdef");
            input.resume(FIRST, &stdin(10 + arrived), false);
            assert_eq!(typed(&mut input), &b"abcdef"[arrived as usize..]);
            input.settle(FIRST, 16);
            assert!(!input.is_unsettled() && input.bytes == 0);
        }
    }

    #[test]
    fn what_others_type_does_not_count_for_what_comes_later() {
        let mut input = Input::default();
        input.resume(FIRST, &stdin(0), false);
        input.put("ab".into());
        typed(&mut input);
        input.settle(FIRST, 100);
        input.put("cd".into());
        input.resume(FIRST, &stdin(100), false);
        assert_eq!(typed(&mut input), b"cd");
        // One that was started again has nothing of what was typed to the one before.
        input.put("ef".into());
        input.resume((1, 1), &stdin(0), false);
        assert_eq!(typed(&mut input), b"ef");
    }

    #[test]
    fn one_that_is_yet_to_be_launched_was_given_nothing() {
        let process = |state: pb::State| pb::Process {
            state: state.into(),
            stdin: Some(stdin(5)),
            ..Default::default()
        };
        for state in [pb::State::Queued, pb::State::Backoff, pb::State::Starting] {
            assert_eq!(given(&process(state)), stdin(0));
        }
        assert_eq!(given(&process(pb::State::Running)), stdin(5));
    }

    #[test]
    fn what_was_sent_in_vain_is_forgotten_and_the_rest_is_not() {
        let mut input = Input::default();
        input.put("ab".into());
        input.send();
        input.put("cd".into());
        input.forget_sent();
        assert_eq!((typed(&mut input), input.bytes), (b"cd".to_vec(), 2));
    }

    #[test]
    fn a_smaller_count_of_the_same_process_changes_nothing() {
        let mut input = Input::default();
        input.resume(FIRST, &stdin(10), false);
        input.put("ab".into());
        typed(&mut input);
        input.settle(FIRST, 9);
        input.resume(FIRST, &stdin(11), false);
        assert_eq!(typed(&mut input), b"b");
    }

    #[test]
    fn the_end_is_sent_after_all_and_again_if_it_did_not_arrive() {
        let mut input = Input::default();
        input.put("ab".into());
        input.end();
        assert!(matches!(input.send(), Some(Message::Data(_))));
        assert!(matches!(input.send(), Some(Message::Eof(_))));
        assert!(!input.has_unsent() && !input.has_room());
        input.resume(FIRST, &stdin(2), false);
        assert!(matches!(input.send(), Some(Message::Eof(_))));
        input.resume(FIRST, &pb::Stdin { open: false, ..stdin(2) }, false);
        assert!(!input.has_unsent());
    }
}
