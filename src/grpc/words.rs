//! Enums: domain words to numbers on the wire and back, side by side.
//!
//! Matches without a catch-all both ways, so that a new word is a compile error here.

use super::pb;
use crate::events::Kind;
use crate::process::{Cause, KillDomain, Mode, Outcome, Overflow, State};
use crate::transcript::Stream;

/// A word that may stand in a request.
pub(super) trait Word: Copy + PartialEq {
    /// The word for a number; none: it stands for nothing.
    fn known(number: i32) -> Option<Self>;
    /// All of them, for people.
    fn choices() -> String;
}

macro_rules! same_words {
    ($($name:ident { $($word:ident),* })*) => {$(
        impl From<$name> for pb::$name {
            fn from(word: $name) -> pb::$name {
                match word {
                    $($name::$word => pb::$name::$word),*
                }
            }
        }
        impl Word for $name {
            fn known(number: i32) -> Option<$name> {
                match pb::$name::try_from(number).ok()? {
                    pb::$name::Unspecified => None,
                    $(pb::$name::$word => Some($name::$word)),*
                }
            }
            fn choices() -> String {
                [$(pb::$name::$word.as_str_name()),*].join(", ")
            }
        }
    )*};
}

same_words! {
    State { Queued, Starting, Running, Stopping, Backoff, Exited }
    Outcome { Succeeded, Failed, Canceled, TimedOut }
    Cause {
        Exited, Signaled, Killed, TimedOut, OutOfMemory, ReadinessFailed, StartFailed,
        CanceledInQueue, Shutdown, Lost, GaveUp
    }
    Mode { Background, Service, Foreground }
    Stream { Stdout, Stderr, Terminal }
    Kind { Queued, Started, Ready, Stopping, Completed, Restarting, RunAgain, Deleted }
    Overflow { DropOldest, Block }
    KillDomain { Cgroup, Walk }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T: Word>() -> Vec<T> {
        (-1..100).filter_map(T::known).collect()
    }

    #[test]
    fn what_stands_for_nothing_is_no_word() {
        for number in [i32::MIN, -1, 0, 99, i32::MAX] {
            assert_eq!(Stream::known(number), None, "{number}");
        }
    }

    #[test]
    fn every_word_reads_back() {
        for state in all::<State>() {
            assert_eq!(State::known(pb::State::from(state).into()), Some(state));
        }
        for kind in all::<Kind>() {
            assert_eq!(Kind::known(pb::Kind::from(kind).into()), Some(kind));
        }
        assert_eq!((all::<State>().len(), all::<Kind>().len(), all::<Cause>().len()), (6, 8, 11));
    }

    #[test]
    fn choices_are_spelled_as_in_the_proto() {
        assert_eq!(Stream::choices(), "STREAM_STDOUT, STREAM_STDERR, STREAM_TERMINAL");
    }
}
