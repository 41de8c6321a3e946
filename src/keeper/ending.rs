//! Ends: of processes, of orphans, of the server and of the keeper itself.
//!
//! The end of a process, in this order and without a timer: the zombie is seen and kept, so that
//! its pid and group stay its own; what it printed is drained; descendants that live on are
//! found; the exit is recorded with the final cursor; then it is reaped.

use std::time::{Duration, Instant};

use super::controllers::Confined;
use super::held::OwnChildren;
use super::kill::Kill;
use super::reap::{self, Zombie};
use super::server::Source;
use super::tree::{self, Member, Pass, UNKNOWN_OWNER_TIMEOUT, Walk, Which};
use super::turns::{BUDGET, KILL_TICK, Keeper, wall_clock};
use crate::process::Exit;
use crate::protocol::pb;

/// How long the server may take to end what runs, once the keeper was told to stop.
const STOP: Duration = Duration::from_secs(20);
/// How long what was killed may take to be gone.
const LAST: Duration = Duration::from_secs(5);

/// Most descendants of a process that its exit lists as living on.
const MAX_LINGERING_LISTED: usize = 256;

/// How long after a look at cgroups that could not be removed another is taken.
const LATE_SWEEP: Duration = Duration::from_secs(1);

/// The keeper was told to stop.
pub(super) enum Stop {
    /// The server is ending what runs.
    Asked { until: Instant },
    /// Everything left is being killed.
    Killing { until: Instant },
}

/// How far the search for the descendants of a process that has ended is.
pub(super) enum ExitSearch {
    /// It places orphans.
    Orphans(Pass),
    /// It visits the tree.
    Members(Walk),
}

impl Stop {
    pub(super) fn due(&self, now: Instant) -> Duration {
        match self {
            Stop::Asked { until } => until.saturating_duration_since(now),
            Stop::Killing { .. } => KILL_TICK,
        }
    }
}

impl Keeper {
    /// SIGCHLD: someone ended. SIGTERM and SIGINT: stop; a second one hurries. SIGHUP: upgrade.
    pub(super) fn read_signals(&mut self) {
        let mut info = [0; 32 * size_of::<libc::signalfd_siginfo>()];
        let len = rustix::io::read(&self.signals, &mut info).unwrap_or(0);
        for one in info[..len].chunks_exact(size_of::<libc::signalfd_siginfo>()) {
            // The structure begins with signal, errno, code and pid.
            let field = |n: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| one[4 * n + byte]));
            match field(0) {
                libc::SIGCHLD => self.sweep_due = true,
                libc::SIGTERM | libc::SIGINT => self.ask_to_stop(),
                // The kernel's own tells of a terminal that went away.
                libc::SIGHUP if field(2) != libc::SI_KERNEL => {
                    self.ask_to_upgrade(field(3).cast_unsigned());
                }
                signal => tracing::info!(signal, "ignored; SIGTERM and SIGINT stop"),
            }
        }
    }

    /// Sees to all that have ended, as far as the budget of a turn goes.
    pub(super) fn sweep(&mut self) {
        let begin = Instant::now();
        let late = self.late_sweep_due().is_some_and(|due| due <= begin);
        if !std::mem::take(&mut self.sweep_due) && !late {
            return;
        }
        self.kills_due = true;
        while let Some(zombie) = reap::peek() {
            if let Some(key) = self.held.by_pid(zombie.pid) {
                let Some(lingering) = self.find_lingering(key, zombie.pid, begin + BUDGET) else {
                    // A wait for owners has a time of its own.
                    self.sweep_due = self.owner_wait.next_look().is_none();
                    return;
                };
                self.finish(key, zombie, &lingering);
            } else if self.spawner.is_starting(zombie.pid) {
                // Its helper is about to say what came of it; then it is looked at again.
                self.spawner.continue_helper(zombie.pid);
                return;
            } else if self.spawner.is_helper(zombie.pid) {
                if let Some(finished) = self.spawner.lose_helper(zombie.pid) {
                    self.finish_start(finished);
                }
            } else if self.stream_helpers.owns(zombie.pid) {
                self.lose_stream_helper(zombie.pid);
            } else if self.forest.is_reader(zombie.pid) {
                self.forest.lose_reader(zombie.pid);
            } else {
                reap::reap(zombie.pid);
                self.forest.forget(zombie.pid);
                self.spawner.forget_child(zombie.pid);
                if self.held.server == Some(zombie.pid) {
                    self.server_ended(&zombie);
                } else if self.held.candidate == Some(zombie.pid) {
                    self.candidate_ended(zombie.status);
                }
            }
            if begin.elapsed() > BUDGET {
                self.sweep_due = true;
                return;
            }
        }
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.remaining.sweep();
        }
        self.controllers.remaining.sweep();
        self.last_sweep = Instant::now();
    }

    /// When an exit looks at orphans again, or cgroups that could not be removed are tried again: the
    /// last process there may have been one whose exit the keeper is not told of.
    pub(super) fn late_sweep_due(&self) -> Option<Instant> {
        let no_leaves = self.cgroups.as_ref().is_none_or(|cgroups| cgroups.remaining.is_empty());
        let none = no_leaves && self.controllers.remaining.is_empty();
        let removal = (!none).then(|| self.last_sweep + LATE_SWEEP);
        self.owner_wait.next_look().into_iter().chain(removal).min()
    }

    fn finish(&mut self, key: u64, zombie: Zombie, lingering: &[Member]) {
        let time = wall_clock();
        // Asked again: what was found out over several turns may have changed meanwhile.
        let leaf_is_empty = lingering.is_empty() && self.is_leaf_empty(key);
        // An output ends only when the keeper has closed the child's ends.
        self.stream_helpers.finish_closes();
        let Some(held) = self.held.get_mut(key) else { return };
        held.drain(key, time, &self.poller, &mut self.stream_helpers);
        held.end_input(&self.poller);
        let Zombie { pid, status, core_dumped, usage } = zombie;
        let confined = held.confined.take();
        let oom_kills = confined.as_ref().map_or(0, Confined::oom_kills);
        let own_cpu_micros = if oom_kills > 0 { tree::cpu_micros(pid) } else { None };
        held.exit = Some(Box::new(Exit {
            status,
            core_dumped,
            time,
            usage,
            final_seq: held.sink.next_seq(),
            lingering: lingering.iter().map(Member::describe).collect(),
            oom_kills,
            killed: held.killed,
            own_cpu_micros,
        }));
        let leaf = held.leaf.take_if(|_| leaf_is_empty);
        reap::reap(pid);
        self.held.reaped(key);
        if let (Some(cgroups), Some(leaf)) = (&mut self.cgroups, leaf) {
            self.held.leaf_freed(&leaf);
            cgroups.give_back(leaf, true);
        }
        if let Some(confined) = confined {
            self.controllers.give_back(confined);
        }
        // A descendant may go on printing into a ring that has room again.
        self.resume(key);
        self.held.has_news(key);
    }

    /// Finds the descendants that live on after a process, for a slice of time: it may have left any
    /// number of orphans, and zombies that their parents do not reap. None: the search continues in
    /// the next turn.
    fn find_lingering(&mut self, key: u64, pid: i32, until: Instant) -> Option<Vec<Member>> {
        let under_way = self.exit_search.take_if(|(of, _)| *of == pid);
        if under_way.is_none() {
            // The exit of an older process comes first.
            self.exit_search = None;
            self.owner_wait.end(Instant::now());
        }
        let mut search = match under_way {
            Some((_, search)) => search,
            None if self.has_no_descendant(key) => return Some(Vec::new()),
            None if self.knows_owners() => self.walk_lingering(key),
            None => ExitSearch::Orphans(self.forest.begin_pass(Which::New)),
        };
        loop {
            let done = match &mut search {
                ExitSearch::Orphans(pass) => {
                    let (table, spawner, helpers) =
                        (&self.held, &self.spawner, &self.stream_helpers);
                    let cgroups = self.cgroups.as_ref();
                    let known = OwnChildren { table, spawner, helpers, cgroups };
                    self.forest.advance(pass, &known, Some(until))
                }
                ExitSearch::Members(walk) => {
                    self.forest.advance_walk(walk, self.cgroups.as_ref(), Some(until))
                }
            };
            search = match search {
                unfinished if !done => {
                    self.exit_search = Some((pid, unfinished));
                    return None;
                }
                ExitSearch::Orphans(_) if self.wait_for_owners(key) => {
                    let pass = self.forest.begin_pass(Which::New);
                    self.exit_search = Some((pid, ExitSearch::Orphans(pass)));
                    return None;
                }
                ExitSearch::Orphans(_) if self.has_no_descendant(key) => return Some(Vec::new()),
                ExitSearch::Orphans(_) => self.walk_lingering(key),
                ExitSearch::Members(walk) => return Some(walk.members),
            };
        }
    }

    /// Whether the owner of each of the keeper's children is known.
    fn knows_owners(&self) -> bool {
        self.forest.knows_all(&self.own_children()) && self.forest.unknown_since().is_none()
    }

    /// Waits until owners are known, if the exit of this process may. In the middle of an exec, an
    /// orphan has no environment, and without a leaf nothing else says whose it is.
    fn wait_for_owners(&mut self, key: u64) -> bool {
        let now = Instant::now();
        let is_new = |since| now.duration_since(since) < UNKNOWN_OWNER_TIMEOUT;
        let may_become_known = !self.forest.knows_all(&self.own_children())
            || self.forest.unknown_since().is_some_and(is_new);
        let has_leaf = self.held.get(key).is_none_or(|held| held.leaf.is_some());
        let waits = may_become_known && !has_leaf && self.owner_wait.extend(now);
        if !waits {
            self.owner_wait.end(now);
        }
        waits
    }

    /// Begins to search for living descendants, once it is known whose the orphans are.
    fn walk_lingering(&self, key: u64) -> ExitSearch {
        if self.forest.is_empty() {
            return ExitSearch::Members(Walk::default());
        }
        let mut walk = self.walk(key);
        walk.most = MAX_LINGERING_LISTED;
        ExitSearch::Members(walk)
    }

    /// Whether no descendant of a process lives on, as far as its leaf tells; an earlier run may have
    /// left some outside of it.
    fn has_no_descendant(&self, key: u64) -> bool {
        self.is_leaf_empty(key) && self.forest.roots(key).is_empty()
    }

    /// Whether a process has a leaf in which no process lives.
    fn is_leaf_empty(&self, key: u64) -> bool {
        let leaf = self.held.get(key).and_then(|held| held.leaf.as_ref());
        let leaf = self.cgroups.as_ref().zip(leaf);
        leaf.is_some_and(|(cgroups, leaf)| cgroups.is_empty(leaf))
    }

    fn server_ended(&mut self, zombie: &Zombie) {
        self.held.server = None;
        if self.is_replacing() {
            tracing::info!(pid = zombie.pid, status = ?zombie.status, "the old server has ended");
        } else if self.stop.is_none() {
            tracing::warn!(pid = zombie.pid, status = ?zombie.status, "the server died");
        }
        if let Source::Started(started) = &mut self.source {
            started.ended(Instant::now());
        }
        self.upgrade_lost_server(zombie.status);
    }

    pub(super) fn ask_to_stop(&mut self) {
        if self.stop.is_none() && self.postpones_stop() {
            return;
        }
        self.abandon_upgrade();
        if let Some(notify) = self.notify() {
            notify.stopping();
        }
        let now = Instant::now();
        match (&mut self.stop, &mut self.link) {
            (None, Some(link)) => {
                tracing::info!("stopping; a second signal hurries");
                link.push(pb::from_keeper::Body::Shutdown(pb::Shutdown {}), Vec::new());
                self.stop = Some(Stop::Asked { until: now + STOP });
            }
            // Nobody is there to be asked.
            (None, None) => self.stop = Some(Stop::Asked { until: now }),
            (Some(Stop::Asked { until }), _) => *until = now,
            (Some(Stop::Killing { .. }), _) => {}
        }
    }

    /// When the server has ended what it could, or its time is up: kills what is left.
    pub(super) fn advance_stop(&mut self) {
        let now = Instant::now();
        match &self.stop {
            Some(Stop::Asked { until }) if self.link.is_none() || *until <= now => {}
            _ => return,
        }
        self.stop = Some(Stop::Killing { until: now + LAST });
        self.kill_server();
        for key in self.held.keys() {
            self.kills.push(Kill::new(key, None));
        }
        self.kills_due = true;
    }

    /// Everything has ended, or would not in time.
    pub(super) fn stopped(&mut self) -> bool {
        let Some(Stop::Killing { until }) = &self.stop else { return false };
        let stopped = Instant::now() >= *until || self.all_ended();
        if stopped {
            self.log_remaining();
        }
        stopped
    }

    fn all_ended(&mut self) -> bool {
        let servers = [self.held.server, self.held.candidate];
        if !self.kills.is_empty() || self.is_starting() || servers.iter().any(Option::is_some) {
            return false;
        }
        // Those that no process could be found for.
        let (table, spawner, helpers) = (&self.held, &self.spawner, &self.stream_helpers);
        let known = OwnChildren { table, spawner, helpers, cgroups: self.cgroups.as_ref() };
        self.forest.refresh(&known);
        let left = self.forest.everyone();
        for member in &left {
            tree::signal(member, libc::SIGKILL);
        }
        left.is_empty()
    }
}
