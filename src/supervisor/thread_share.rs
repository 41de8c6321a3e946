//! How long one caller has the server's thread before others have it.
//!
//! What is short is done on the one thread that serves all callers, such as reading a batch of output. A caller may
//! have hundreds of streams and calls that all do so, and each of them would delay everything that others wait for.
//! When those of one caller have had the thread for a while in all, one of them continues each time that every other
//! task has run. Nothing is held while one waits: a stream whose client does not read is not polled, and would hold it
//! as long.
//!
//! Connections have such shares, too: one for those of each caller, and of each origin without a caller. What a share
//! counts there is all time of their tasks, and what waits is the next read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long one caller has the thread: about as long as a batch of 64 KiB in tiny chunks takes.
const MAX_TIME: Duration = Duration::from_micros(200);

/// What the tasks of one caller have had of the thread.
#[derive(Debug)]
pub struct ThreadShare {
    /// Nanoseconds since the tasks of others have run.
    used: AtomicU64,
    /// How often they have.
    round: AtomicU64,
    /// The last one in which a task continued that had waited for long.
    late_round: AtomicU64,
    /// Those that wait for a round.
    waiting: AtomicUsize,
    /// How often [`ThreadShare::poll`] has polled one of its tasks.
    polls: AtomicU64,
    /// Nanoseconds from the creation of the share to the begin of the last such poll.
    poll_begin: AtomicU64,
    creation: Instant,
}

impl Default for ThreadShare {
    fn default() -> ThreadShare {
        let [used, round, late_round, polls, poll_begin] = Default::default();
        let (waiting, creation) = (AtomicUsize::new(0), Instant::now());
        ThreadShare { used, round, late_round, waiting, polls, poll_begin, creation }
    }
}

/// One that waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(share: &ThreadShare) -> Waiting<'_> {
        share.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&share.waiting)
    }

    /// How many wait.
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A turn, until this is dropped. What takes long checks whether there is time left.
pub(super) struct ThreadTurn<'a> {
    share: &'a ThreadShare,
    begin: Instant,
}

impl ThreadShare {
    pub(super) async fn turn(&self) -> ThreadTurn<'_> {
        self.available().await;
        ThreadTurn { share: self, begin: Instant::now() }
    }

    /// Polls a task whose time counts.
    pub fn poll<T>(&self, poll: impl FnOnce() -> T) -> T {
        let turn = ThreadTurn { share: self, begin: Instant::now() };
        let begin = turn.begin.saturating_duration_since(self.creation);
        self.poll_begin.store(nanos(begin), Ordering::Relaxed);
        self.polls.fetch_add(1, Ordering::Relaxed);
        poll()
    }

    /// How often a task was polled: the same number during one poll.
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Whether the task that is being polled may do more.
    pub fn has_time(&self) -> bool {
        let poll_begin = self.poll_begin.load(Ordering::Relaxed);
        let time = nanos(self.creation.elapsed()).saturating_sub(poll_begin);
        time + self.used.load(Ordering::Relaxed) < nanos(MAX_TIME)
    }

    /// Whether others have to run first.
    fn is_used_up(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= nanos(MAX_TIME)
    }

    /// Returns when others have run, unless it is not used up. In which order tasks that yield run again is
    /// not known, so one of those that have waited for as many rounds as tasks wait returns in each round, too.
    pub async fn available(&self) {
        if !self.is_used_up() {
            return;
        }
        let waiting = Waiting::new(self);
        let mut rounds = 0;
        while self.is_used_up() {
            let round = self.round.load(Ordering::Relaxed);
            tokio::task::yield_now().await;
            let next = round + 1;
            let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            if self.round.compare_exchange(round, next, set, failed).is_ok() {
                self.used.store(0, Ordering::Relaxed);
                return;
            }
            rounds += 1;
            let round = self.round.load(Ordering::Relaxed);
            let has_waited = rounds >= waiting.count();
            if has_waited && self.late_round.swap(round, Ordering::Relaxed) != round {
                return;
            }
        }
    }
}

impl ThreadTurn<'_> {
    /// Whether this turn may do more.
    pub(super) fn has_time(&self) -> bool {
        self.begin.elapsed() < MAX_TIME
    }
}

impl Drop for ThreadTurn<'_> {
    fn drop(&mut self) {
        self.share.used.fetch_add(nanos(self.begin.elapsed()), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use super::*;

    const TASKS: usize = 20;
    const TURNS: usize = 10;

    /// The turns of one caller, each of which takes longer than it should, and the rounds of another task meanwhile.
    #[tokio::test]
    async fn other_tasks_run_between_two_turns_of_one_caller() {
        let share = Arc::new(ThreadShare::default());
        let turns = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (share, turns) = (Arc::clone(&share), Arc::clone(&turns));
                tokio::spawn(async move {
                    for _ in 0..TURNS {
                        let turn = share.turn().await;
                        while turn.has_time() {}
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut before = 0;
        while before < TASKS * TURNS {
            tokio::task::yield_now().await;
            let now = turns.load(Ordering::Relaxed);
            // One that begins a round, and one that has waited for long.
            assert!(now <= before + 2, "{} turns in a row", now - before);
            before = now;
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn every_task_of_a_caller_has_turns() {
        const TASKS: usize = 5;
        let share = Arc::new(ThreadShare::default());
        let turns: Arc<[AtomicUsize; TASKS]> = Arc::default();
        for n in 0..TASKS {
            let (share, turns) = (Arc::clone(&share), Arc::clone(&turns));
            tokio::spawn(async move {
                loop {
                    let turn = share.turn().await;
                    while turn.has_time() {}
                    turns[n].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = || turns.each_ref().map(|turns| turns.load(Ordering::Relaxed));
        while all().iter().sum::<usize>() < 50 * TASKS {
            tokio::task::yield_now().await;
        }
        assert!(all().iter().all(|turns| *turns >= 10), "{:?}", all());
    }

    #[tokio::test]
    async fn turn_that_is_not_polled_holds_up_no_other() {
        let share = ThreadShare::default();
        share.used.store(nanos(MAX_TIME), Ordering::Relaxed);
        let mut unpolled = Box::pin(share.turn());
        let first_poll = std::future::poll_fn(|cx| Poll::Ready(unpolled.as_mut().poll(cx)));
        assert!(first_poll.await.is_pending());
        drop(share.turn().await);
        drop(share.turn().await);
        drop(unpolled.await);
    }
}
