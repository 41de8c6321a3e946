//! How much one caller may have, and all of them together. Pure.
//!
//! Owns what is counted for that: live processes and those whose descendants may print on, the room
//! of their transcripts, and how fast they were started. What is over is bounded by what is kept of
//! it (`retention`); as long as its transcript is in memory, all callers together are charged for it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::error::Error;
use crate::process::{Moment, Record, Spec};
use crate::transcript::ring::Ring;

/// A second, on the clock of [`Moment`]s. As much as this may be started at once.
const SECOND: u64 = 1_000_000_000;

/// When something may have ended or been freed meanwhile.
pub const LATER: Duration = Duration::from_secs(1);

/// Callers who have nothing that lives, whose last starts are remembered. Beyond, they are forgotten
/// as soon as their starts no longer count.
const MOST_IDLE: usize = 1024;

/// How much somebody may have; none: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Processes that are not finished.
    pub live: Option<u64>,
    /// Bytes that their transcripts may take.
    pub transcript_bytes: Option<u64>,
    /// Starts, of new processes and by Run.
    pub starts_per_second: Option<u64>,
    /// Streams that are open: Follow, Watch, Attach and Sleep.
    pub streams: Option<u64>,
    /// Other calls that are under way, with answers that were not sent yet.
    pub calls: Option<u64>,
    /// Bytes of requests that still arrive, and of answers that were not sent yet.
    pub held_bytes: Option<u64>,
}

/// How much there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of each caller.
    pub each: Quota,
    /// Of all callers together.
    pub all: Quota,
}

/// What there is a bound of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Processes that are not finished, or of which something may print on.
    LiveProcesses,
    /// What their transcripts may take.
    TranscriptBytes,
    /// How fast processes begin.
    StartsPerSecond,
    /// Streams that are open.
    Streams,
    /// Streams that look at each event.
    Watches,
    /// Calls that are under way.
    Calls,
    /// Bytes of requests and answers that calls hold.
    HeldBytes,
    /// Processes that wait in queues.
    QueuedProcesses,
    /// Memory that the specs of these take.
    QueuedBytes,
}

impl Bound {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Bound::LiveProcesses => "live_processes",
            Bound::TranscriptBytes => "transcript_bytes",
            Bound::StartsPerSecond => "starts_per_second",
            Bound::Streams => "streams",
            Bound::Watches => "watches",
            Bound::Calls => "calls",
            Bound::HeldBytes => "held_bytes",
            Bound::QueuedProcesses => "queued_processes",
            Bound::QueuedBytes => "queued_bytes",
        }
    }

    /// The same for people.
    pub fn words(self) -> &'static str {
        match self {
            Bound::LiveProcesses => "live processes",
            Bound::TranscriptBytes => "bytes of transcripts",
            Bound::StartsPerSecond => "starts per second",
            Bound::Streams => "streams",
            Bound::Watches => "streams of Watch and of Sleep with wake_on",
            Bound::Calls => "calls at a time",
            Bound::HeldBytes => "bytes of requests and answers at a time",
            Bound::QueuedProcesses => "processes that wait in queues",
            Bound::QueuedBytes => "bytes of specs that wait in queues",
        }
    }
}

/// A bound that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// What there is too much of.
    pub what: Bound,
    /// How much there may be.
    pub most: u64,
    /// How much there is.
    pub used: u64,
    /// It is the bound of all callers together, not of this one.
    pub of_all: bool,
    /// When a retry may help; none: never, as what was asked for is more than there may be.
    pub retry: Option<Duration>,
}

impl Reached {
    /// A bound that may no longer be reached in a second.
    pub fn for_now(what: Bound, most: u64, used: u64, of_all: bool) -> Reached {
        Reached { what, most, used, of_all, retry: Some(LATER) }
    }
}

/// What there is.
#[derive(Debug, Default)]
pub(super) struct Usage {
    quotas: Quotas,
    all: Used,
    callers: HashMap<String, Used>,
    /// Rings of processes that are not counted: not yet written to a file, or still being read. No
    /// more than there were counted processes since the last start, and those that live on.
    lingering: Vec<Weak<Ring>>,
}

#[derive(Debug, Default)]
struct Used {
    live: u64,
    /// What the transcripts of the live may take.
    transcript_bytes: u64,
    /// What those of others take, as of the last start.
    lingering_bytes: u64,
    /// When all that was started would have been, had it been started evenly.
    even: Moment,
}

impl Usage {
    pub(super) fn new(quotas: Quotas) -> Usage {
        Usage { quotas, ..Usage::default() }
    }

    /// Processes that are not finished.
    #[cfg(test)]
    pub(super) fn live(&self) -> u64 {
        self.all.live
    }

    /// How many a caller has, and what they may print.
    #[cfg(test)]
    pub(super) fn of(&self, caller: &str) -> (u64, u64) {
        self.callers.get(caller).map_or((0, 0), |used| (used.live, used.transcript_bytes))
    }

    /// Whether a caller may begin a process like this now. If so, the start is counted.
    pub(super) fn admit(&mut self, caller: &str, spec: &Spec, now: Moment) -> Result<(), Error> {
        let Quotas { each, all } = self.quotas;
        self.forget_idle(now);
        self.all.lingering_bytes = self.lingering_bytes();
        let used = self.callers.entry(caller.to_owned()).or_default();
        let even = used.check(&each, false, spec.transcript_bytes, now)?;
        self.all.even = self.all.check(&all, true, ring_bytes(spec), now)?;
        used.even = even;
        Ok(())
    }

    /// One is among the living from here on, and its ring, if it has one, is what it may take.
    pub(super) fn begin(&mut self, record: &Record, ring: Option<&Arc<Ring>>) {
        self.all.live += 1;
        self.all.transcript_bytes += ring_bytes(&record.spec);
        let used = self.callers.entry(record.by.clone()).or_default();
        used.live += 1;
        used.transcript_bytes += record.spec.transcript_bytes;
        self.lingering.retain(|lingering| !is_same(lingering, ring));
    }

    /// One is not any more.
    pub(super) fn end(&mut self, record: &Record) {
        self.all.live -= 1;
        self.all.transcript_bytes -= ring_bytes(&record.spec);
        if let Some(used) = self.callers.get_mut(&record.by) {
            used.live -= 1;
            used.transcript_bytes -= record.spec.transcript_bytes;
        }
    }

    /// Charges all callers for a ring that no counted process has, as long as it is in memory.
    pub(super) fn linger(&mut self, ring: Option<&Arc<Ring>>) {
        if let Some(ring) = ring
            && !self.lingering.iter().any(|lingering| is_same(lingering, Some(ring)))
        {
            self.lingering.push(Arc::downgrade(ring));
        }
    }

    fn lingering_bytes(&mut self) -> u64 {
        self.lingering.retain(|ring| ring.strong_count() > 0);
        self.lingering.iter().filter_map(Weak::upgrade).map(|ring| ring.memory()).sum()
    }

    fn forget_idle(&mut self, now: Moment) {
        if self.callers.len() > MOST_IDLE {
            self.callers.retain(|_, used| used.live > 0 || used.even > now);
        }
    }
}

impl Used {
    /// Whether there may be one more. If so, what `even` becomes by it.
    fn check(&self, quota: &Quota, of_all: bool, bytes: u64, now: Moment) -> Result<Moment, Error> {
        let reached = |what, most, used| Reached::for_now(what, most, used, of_all);
        let taken = self.transcript_bytes.saturating_add(self.lingering_bytes);
        let room = |most| reached(Bound::TranscriptBytes, most, taken);
        if let Some(most) = quota.transcript_bytes.filter(|most| bytes > *most) {
            return Err(Error::Quota(Reached { retry: None, ..room(most) }));
        }
        if let Some(most) = quota.live.filter(|most| self.live >= *most) {
            return Err(Error::Quota(reached(Bound::LiveProcesses, most, self.live)));
        }
        let with_it = taken.saturating_add(bytes);
        if let Some(most) = quota.transcript_bytes.filter(|most| with_it > *most) {
            return Err(Error::Quota(room(most)));
        }
        let Some(most) = quota.starts_per_second else { return Ok(now) };
        let even = self.even.max(now).saturating_add(SECOND / most.max(1));
        match even.saturating_sub(now.saturating_add(SECOND)) {
            0 => Ok(even),
            early => {
                let retry = Some(Duration::from_nanos(early));
                let reached = reached(Bound::StartsPerSecond, most, most);
                Err(Error::Quota(Reached { retry, ..reached }))
            }
        }
    }
}

/// Memory that the ring of a process may take.
fn ring_bytes(spec: &Spec) -> u64 {
    spec.overflow.ring_bytes(spec.transcript_bytes)
}

fn is_same(lingering: &Weak<Ring>, ring: Option<&Arc<Ring>>) -> bool {
    ring.is_some_and(|ring| std::ptr::eq(lingering.as_ptr(), Arc::as_ptr(ring)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::record;

    fn quota(live: u64, mib: u64, starts: u64) -> Quota {
        let some = |most: u64| Some(most).filter(|most| *most > 0);
        Quota {
            live: some(live),
            transcript_bytes: some(mib << 20),
            starts_per_second: some(starts),
            ..Quota::default()
        }
    }

    fn usage(each: Quota, all: Quota) -> Usage {
        Usage::new(Quotas { each, all })
    }

    fn start(usage: &mut Usage, caller: &str, now: Moment) -> Result<(), Reached> {
        let record = Record { by: caller.into(), ..record("p", 1) };
        match usage.admit(caller, &record.spec, now) {
            Ok(()) => usage.begin(&record, None),
            Err(Error::Quota(reached)) => return Err(reached),
            Err(other) => panic!("{other}"),
        }
        Ok(())
    }

    fn end(usage: &mut Usage, caller: &str) {
        usage.end(&Record { by: caller.into(), ..record("p", 1) });
    }

    fn refused(result: Result<(), Reached>) -> (Bound, u64, bool) {
        let reached = result.unwrap_err();
        assert!(reached.retry.unwrap() > Duration::ZERO);
        (reached.what, reached.used, reached.of_all)
    }

    #[test]
    fn each_caller_has_so_many_and_all_have_so_many() {
        let mut usage = usage(quota(2, 0, 0), quota(3, 0, 0));
        start(&mut usage, "a", 0).unwrap();
        start(&mut usage, "a", 0).unwrap();
        assert_eq!(refused(start(&mut usage, "a", 0)), (Bound::LiveProcesses, 2, false));
        start(&mut usage, "b", 0).unwrap();
        assert_eq!(refused(start(&mut usage, "b", 0)), (Bound::LiveProcesses, 3, true));
        end(&mut usage, "a");
        start(&mut usage, "b", 0).unwrap();
        assert_eq!(usage.live(), 3);
    }

    #[test]
    fn transcripts_are_counted_by_what_they_may_take() {
        let mut usage = usage(quota(0, 20, 0), Quota::default());
        start(&mut usage, "a", 0).unwrap();
        start(&mut usage, "a", 0).unwrap();
        let reached = (Bound::TranscriptBytes, 16 << 20, false);
        assert_eq!(refused(start(&mut usage, "a", 0)), reached);
        start(&mut usage, "b", 0).unwrap();
        end(&mut usage, "a");
        start(&mut usage, "a", 0).unwrap();
    }

    #[test]
    fn ring_counts_for_all_callers_until_nothing_maps_it() {
        let mut usage = usage(Quota::default(), quota(0, 9, 0));
        let (ring, _fd) = Ring::create(2 << 20, 1).unwrap();
        ring.header().head.store(2 << 20, std::sync::atomic::Ordering::Relaxed);
        let (ring, taken) = (Arc::new(ring), 2 << 20);
        usage.linger(Some(&ring));
        usage.linger(Some(&ring));
        let (what, used, of_all) = refused(start(&mut usage, "a", 0));
        assert_eq!((what, of_all), (Bound::TranscriptBytes, true));
        assert!((taken..2 * taken).contains(&used), "{used}");
        drop(ring);
        start(&mut usage, "a", 0).unwrap();
    }

    #[test]
    fn ring_of_a_counted_process_is_charged_once() {
        let mut usage = usage(Quota::default(), quota(0, 16, 0));
        let (ring, _fd) = Ring::create(1 << 20, 1).unwrap();
        let ring = Arc::new(ring);
        usage.linger(Some(&ring));
        usage.begin(&record("p", 1), Some(&ring));
        start(&mut usage, "a", 0).unwrap();
    }

    #[test]
    fn what_can_never_fit_is_not_asked_to_come_again() {
        for (each, all) in [(quota(1, 7, 0), quota(0, 0, 0)), (quota(0, 0, 0), quota(1, 7, 0))] {
            let reached = start(&mut usage(each, all), "a", 0).unwrap_err();
            assert_eq!((reached.what, reached.retry), (Bound::TranscriptBytes, None));
        }
    }

    #[test]
    fn starts_come_at_their_rate_after_a_second_full_at_once() {
        let mut usage = usage(quota(0, 0, 4), Quota::default());
        for _ in 0..4 {
            start(&mut usage, "a", 0).unwrap();
        }
        let reached = start(&mut usage, "a", 0).unwrap_err();
        assert_eq!(reached.retry, Some(Duration::from_millis(250)));
        // A refused one counts for nothing.
        assert_eq!(start(&mut usage, "a", 0), Err(reached));
        start(&mut usage, "a", SECOND / 4).unwrap();
        start(&mut usage, "a", SECOND / 4).unwrap_err();
        for _ in 0..4 {
            start(&mut usage, "a", 10 * SECOND).unwrap();
        }
        start(&mut usage, "a", 10 * SECOND).unwrap_err();
    }

    #[test]
    fn who_has_nothing_and_waits_for_nothing_is_forgotten() {
        let mut usage = usage(quota(0, 0, 4), Quota::default());
        for n in 0..2 * MOST_IDLE {
            let caller = n.to_string();
            start(&mut usage, &caller, n as u64 * SECOND).unwrap();
            end(&mut usage, &caller);
        }
        assert!(usage.callers.len() <= MOST_IDLE + 2);
    }
}
