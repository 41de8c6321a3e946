//! Going on: a run that takes the place of an earlier run of its id.
//!
//! Owns what passes from one to the other: the ring, and whoever the earlier one left behind. All
//! of it passes after the new run was started, so that a start that fails changes nothing.

use super::output::Sink;
use super::turns::{Keeper, tell, wall_clock};
use crate::process::{Launch, Refused};

impl Keeper {
    /// The run that a launch goes on from, if it is to go on and something is held.
    pub(super) fn earlier(&self, launch: &Launch) -> Result<Option<u64>, Refused> {
        match self.held.newest(&launch.id).filter(|_| launch.continues) {
            Some((_, held)) if held.exit.is_none() => Err(Refused::StillRunning),
            newest => Ok(newest.map(|(key, _)| key)),
        }
    }

    /// Puts a run that was just started in the place of an earlier one. Nothing of the new one was
    /// read yet, so that what the earlier one's outputs still hold comes first. A descendant that
    /// goes on writing to them is cut off: it would mix into the new run for ever.
    pub(super) fn go_on(&mut self, earlier: u64, key: u64) {
        if let Some(before) = self.held.get_mut(earlier) {
            before.drain(earlier, wall_clock(), &self.poller, &mut self.stream_helpers);
            before.end_outputs(&self.poller);
        }
        // For the last time, with an exit that may not have been told yet.
        self.tell_at_once(earlier);
        // Whoever ends the process means those, too.
        self.forest.inherit(earlier, key);
        if let Some(cgroups) = &self.cgroups {
            self.held.inherit_leaves(earlier, key, cgroups);
        }
        if let (Some(before), Some(held)) = (self.forget(earlier), self.held.get_mut(key)) {
            held.sink.go_on_with(before.sink);
        }
        // Before the answer: whoever asked for the start finds the ring.
        self.tell_at_once(key);
    }

    /// Lets a run that was just started come after an earlier one that it does not go on from. What
    /// the outputs of that one still hold is counted, and whoever goes on writing to them is cut
    /// off: no number is given twice.
    pub(super) fn come_after(&mut self, id: &str, sink: &mut Sink) {
        let Some((earlier, _)) = self.held.newest(id) else { return };
        let before = self.held.get_mut(earlier).filter(|before| before.exit.is_some());
        let Some(before) = before else { return };
        before.drain(earlier, wall_clock(), &self.poller, &mut self.stream_helpers);
        before.end_outputs(&self.poller);
        sink.begin_at(before.sink.next_seq());
        self.held.has_news(earlier);
    }

    /// Reports the state of a process without waiting for room: there is one start at most for
    /// each request that was taken.
    fn tell_at_once(&mut self, key: u64) {
        if let Some(link) = self.link.as_mut().filter(|link| link.adopted) {
            tell(link, &mut self.held, &[key], false);
        }
    }
}
