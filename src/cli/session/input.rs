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
//!
//! A restarted process counts from 0, and the restart is noticed by its count only. What was sent by
//! then was most likely sent after the restart, since a count follows each key soon: what the new count
//! does not have is sent again. Where the new count has nothing, it may all have reached the process
//! before the restart, or be on its way: it is not sent again, and for a while the count is expected to
//! grow by it.

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
/// Counts without a change after which bytes in doubt are taken for those of the process before the
/// restart: with the pauses between them, about a second.
const MAX_UNCHANGED_COUNTS: u32 = 8;

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
    /// Bytes that are no longer kept, and that the count may yet grow by.
    in_doubt: u64,
    /// How often the count has not changed since then.
    unchanged_counts: u32,
    end: End,
}

/// A process of an id: its run, and how often that was restarted. Each counts its own input.
type Life = (u32, u32);

/// How much input a process has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    life: Life,
    /// False: it waits for its turn or its restart.
    is_launched: bool,
    accepted: u64,
}

impl Count {
    /// One that is yet to be launched was given nothing: what is counted was its predecessor's.
    pub(super) fn of(process: &pb::Process) -> Count {
        let is_launched = !matches!(
            process.state(),
            pb::State::Queued | pb::State::Backoff | pb::State::Starting
        );
        let counted = process.stdin.unwrap_or_default().accepted_bytes;
        let accepted = if is_launched { counted } else { 0 };
        Count { life: (process.run, process.restarts), is_launched, accepted }
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
        self.sent > 0 || self.in_doubt > 0
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
        (self.bytes, self.sent, self.in_doubt) = (0, 0, 0);
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

    /// Drops what has arrived by this count.
    pub(super) fn settle(&mut self, count: Count) {
        let mut taken = if count.life == self.life {
            let given = count.accepted.saturating_sub(self.accepted);
            self.accepted += given;
            given - self.settle_doubt(given)
        } else {
            self.begin_life(count)
        };
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

    /// Another process of the id counts from here on. Returns how much of what was sent is dropped.
    fn begin_life(&mut self, count: Count) -> u64 {
        let sent = self.kept.iter().take(self.sent).map(|piece| piece.len() as u64).sum();
        (self.life, self.accepted) = (count.life, count.accepted);
        // A process that is yet to be launched takes nothing that was sent before.
        self.in_doubt = if count.is_launched && count.accepted == 0 { sent } else { 0 };
        self.unchanged_counts = 0;
        if count.accepted == 0 { sent } else { count.accepted.min(sent) }
    }

    /// How many of the bytes that a process was given were those in doubt.
    fn settle_doubt(&mut self, given: u64) -> u64 {
        let settled = given.min(self.in_doubt);
        self.in_doubt -= settled;
        self.unchanged_counts = if given == 0 { self.unchanged_counts + 1 } else { 0 };
        if self.unchanged_counts >= MAX_UNCHANGED_COUNTS {
            self.in_doubt = 0;
        }
        settled
    }

    /// A connection has been made: all that did not arrive by an earlier one is sent again.
    pub(super) fn resume(&mut self, count: Count, is_open: bool, terminal: bool) {
        self.settle(count);
        (self.sent, self.in_doubt) = (0, 0);
        // A terminal has no end to be asked for: to type that character twice is worse than not at
        // all.
        if self.end == End::Sent && is_open && !terminal {
            self.end = End::Due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(accepted: u64) -> Count {
        Count { life: (1, 0), is_launched: true, accepted }
    }

    /// The count after a restart.
    fn restarted(accepted: u64) -> Count {
        Count { life: (1, 1), ..count(accepted) }
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
            input.resume(count(10), true, false);
            for piece in ["ab", "cd", "ef"] {
                input.put(piece.into());
            }
            assert_eq!(typed(&mut input), b"abcdef");
            input.resume(count(10 + arrived), true, false);
            assert_eq!(typed(&mut input), &b"abcdef"[arrived as usize..]);
            input.settle(count(16));
            assert!(!input.is_unsettled() && input.bytes == 0);
        }
    }

    #[test]
    fn what_others_type_does_not_count_for_what_comes_later() {
        let mut input = Input::default();
        input.resume(count(0), true, false);
        input.put("ab".into());
        typed(&mut input);
        input.settle(count(100));
        input.put("cd".into());
        input.resume(count(100), true, false);
        assert_eq!(typed(&mut input), b"cd");
        // One that was started again has nothing of what was typed to the one before.
        input.put("ef".into());
        input.resume(restarted(0), true, false);
        assert_eq!(typed(&mut input), b"ef");
    }

    #[test]
    fn process_that_is_yet_to_be_launched_was_given_nothing() {
        let accepted = |state: pb::State| {
            let stdin = pb::Stdin { open: true, accepted_bytes: 5, pending_bytes: 0 };
            Count::of(&pb::Process {
                state: state.into(),
                stdin: Some(stdin),
                ..Default::default()
            })
            .accepted
        };
        for state in [pb::State::Queued, pb::State::Backoff, pb::State::Starting] {
            assert_eq!(accepted(state), 0);
        }
        assert_eq!(accepted(pb::State::Running), 5);
    }

    /// An input that was sent when the count of a restarted process was first seen.
    fn sent_at_restart(count_seen: Count) -> Input {
        let mut input = Input::default();
        input.resume(count(7), true, false);
        input.put("ab".into());
        typed(&mut input);
        input.settle(count_seen);
        input.put("cdef".into());
        typed(&mut input);
        input
    }

    #[test]
    fn input_on_its_way_at_a_restart_does_not_count_for_later_input() {
        let mut input = sent_at_restart(restarted(0));
        input.resume(restarted(2), true, false);
        assert_eq!(typed(&mut input), b"cdef");

        let mut input = sent_at_restart(restarted(1));
        input.settle(restarted(3));
        input.resume(restarted(4), true, false);
        assert_eq!(typed(&mut input), b"ef");
    }

    #[test]
    fn input_after_a_restart_is_sent_again_if_it_did_not_arrive() {
        let mut input = Input::default();
        input.resume(count(7), true, false);
        for piece in ["ab", "cdef"] {
            input.put(piece.into());
        }
        typed(&mut input);
        input.resume(restarted(2), true, false);
        assert_eq!(typed(&mut input), b"cdef");
    }

    #[test]
    fn input_before_a_restart_is_not_waited_for() {
        let waiting = Count { is_launched: false, ..restarted(0) };
        let mut input = sent_at_restart(waiting);
        input.resume(restarted(2), true, false);
        assert_eq!(typed(&mut input), b"ef");

        let mut input = sent_at_restart(restarted(0));
        for _ in 0..MAX_UNCHANGED_COUNTS {
            input.settle(restarted(0));
        }
        input.resume(restarted(2), true, false);
        assert_eq!(typed(&mut input), b"ef");
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
        input.resume(count(10), true, false);
        input.put("ab".into());
        typed(&mut input);
        input.settle(count(9));
        input.resume(count(11), true, false);
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
        input.resume(count(2), true, false);
        assert!(matches!(input.send(), Some(Message::Eof(_))));
        input.resume(count(2), false, false);
        assert!(!input.has_unsent());
    }
}
