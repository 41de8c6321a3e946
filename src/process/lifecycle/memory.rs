//! Whether a process ended for want of memory, from what the keeper and the kernel told. Pure.
//!
//! The kernel counts whom it killed in a tree and does not say who they were. So whoever ended by
//! SIGKILL counts as one of them unless something else is known that may have sent it. A SIGKILL of
//! somebody outside cannot be told apart.

use std::time::Duration;

use crate::process::{Exit, Status, signal};

/// The kernel counts ticks for a limit of CPU time, and time for what was used; where the machine
/// itself was held up, the ticks are more. From this part of the limit on it may be used up.
const LEAST_PART: u32 = 4;

/// It counts as one of those whom the kernel killed for want of memory.
pub(super) fn ran_out(exit: &Exit, cpu_limit: Option<Duration>) -> bool {
    exit.oom_kills > 0
        && exit.status == Status::Signal(signal::KILL)
        && !exit.killed
        && cpu_limit.is_none_or(|limit| cpu_time(exit) * LEAST_PART < limit)
}

/// The CPU time that it used itself; where that is not known, with those that it waited for.
fn cpu_time(exit: &Exit) -> Duration {
    let with_others = || exit.usage.user_micros.saturating_add(exit.usage.system_micros);
    Duration::from_micros(exit.own_cpu_micros.unwrap_or_else(with_others))
}

#[cfg(test)]
mod tests {
    use super::super::tests::exit;
    use super::*;

    fn killed() -> Exit {
        Exit { oom_kills: 1, ..exit(Status::Signal(libc::SIGKILL), Vec::new()) }
    }

    #[test]
    fn only_a_kill_that_nobody_else_is_known_to_have_sent_is_for_want_of_memory() {
        assert!(ran_out(&killed(), None));
        assert!(!ran_out(&Exit { oom_kills: 0, ..killed() }, None));
        assert!(!ran_out(&Exit { killed: true, ..killed() }, None));
        for status in [Status::Code(137), Status::Signal(libc::SIGTERM)] {
            assert!(!ran_out(&Exit { status, ..killed() }, None));
        }
    }

    #[test]
    fn from_a_quarter_of_its_cpu_time_on_that_may_have_been_used_up() {
        let limit = Some(Duration::from_secs(4));
        let own = |micros| Exit { own_cpu_micros: Some(micros), ..killed() };
        assert!(ran_out(&own(999_999), limit));
        assert!(!ran_out(&own(1_000_000), limit));
        assert!(ran_out(&own(1_000_000), None), "it has no limit");
        // What others used is no reason, unless it cannot be told apart.
        let mut busy = own(0);
        (busy.usage.user_micros, busy.usage.system_micros) = (600_000, 400_000);
        assert!(ran_out(&busy, limit));
        busy.own_cpu_micros = None;
        assert!(!ran_out(&busy, limit));
    }
}
