//! A queue that serves callers in turn. Pure.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Jobs by caller. `turns` names each caller that has a job waiting and may have one more running.
pub(super) struct FairQueue<J> {
    callers: HashMap<Arc<str>, Lane<J>>,
    turns: VecDeque<Arc<str>>,
    max_running: usize,
}

struct Lane<J> {
    waiting: VecDeque<J>,
    running: usize,
}

impl<J> FairQueue<J> {
    /// A queue in which one caller has at most so many jobs running.
    pub(super) fn new(max_running: usize) -> FairQueue<J> {
        FairQueue { callers: HashMap::new(), turns: VecDeque::new(), max_running }
    }

    /// Adds a job of a caller behind its others.
    pub(super) fn push(&mut self, caller: &Arc<str>, job: J) {
        let idle = || Lane { waiting: VecDeque::new(), running: 0 };
        let lane = self.callers.entry(Arc::clone(caller)).or_insert_with(idle);
        if lane.waiting.is_empty() && lane.running < self.max_running {
            self.turns.push_back(Arc::clone(caller));
        }
        lane.waiting.push_back(job);
    }

    /// The next job, which runs until [`FairQueue::finish`].
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, J)> {
        let caller = self.turns.pop_front()?;
        let lane = self.callers.get_mut(&caller)?;
        let job = lane.waiting.pop_front()?;
        lane.running += 1;
        if !lane.waiting.is_empty() && lane.running < self.max_running {
            self.turns.push_back(Arc::clone(&caller));
        }
        Some((caller, job))
    }

    /// A job of a caller has ended.
    pub(super) fn finish(&mut self, caller: &Arc<str>) {
        let Some(lane) = self.callers.get_mut(caller) else { return };
        let was_full = lane.running == self.max_running;
        lane.running -= 1;
        if !lane.waiting.is_empty() {
            if was_full {
                self.turns.push_back(Arc::clone(caller));
            }
        } else if lane.running == 0 {
            self.callers.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(jobs: &[(&str, u32)]) -> FairQueue<u32> {
        let mut queue = FairQueue::new(2);
        jobs.iter().for_each(|(caller, job)| queue.push(&Arc::from(*caller), *job));
        queue
    }

    fn pop(queue: &mut FairQueue<u32>) -> Option<u32> {
        queue.pop().map(|(_, job)| job)
    }

    #[test]
    fn callers_are_served_in_turn() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        let order: Vec<_> = std::iter::from_fn(|| {
            let (caller, job) = queue.pop()?;
            queue.finish(&caller);
            Some(job)
        })
        .collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert!(queue.callers.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn one_caller_runs_no_more_than_its_share() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("a", 3), ("b", 4)]);
        assert_eq!(
            [pop(&mut queue), pop(&mut queue), pop(&mut queue)],
            [Some(1), Some(4), Some(2)]
        );
        assert_eq!(pop(&mut queue), None);
        queue.push(&"a".into(), 5);
        assert_eq!(pop(&mut queue), None);
        queue.finish(&"b".into());
        assert_eq!(pop(&mut queue), None);
        queue.finish(&"a".into());
        assert_eq!([pop(&mut queue), pop(&mut queue)], [Some(3), None]);
        queue.finish(&"a".into());
        assert_eq!(pop(&mut queue), Some(5));
    }
}
