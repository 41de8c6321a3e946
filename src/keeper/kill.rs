//! Signals to whole trees: TERM and others once, KILL until nothing is left.
//!
//! Owns the kills that are under way. Each look at a tree has three steps: the keeper's orphans are
//! placed, the tree is visited, and what was found is signalled. A tree may have thousands of
//! processes, so a look is done in slices, between which output is captured and processes are
//! started.
//!
//! SIGKILL is sent to every member that can be found, again and again, until none is left: a killed
//! process can fork no more, and what was forked before is below a killed process, or an orphan by
//! now. Each death brings a SIGCHLD sooner or later, which is when the next look is taken. What
//! SIGKILL does not end in time is named in the answer. A kill continues after such an answer while
//! it finds processes that the look before had not found: the tree still forks.

mod progress;

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::held::OwnChildren;
use super::link::Link;
use super::requests::check_signal;
use super::tree::{self, Group, KilledGroups, LeafMembers, Member, Walk, Which};
use super::turns::{BUDGET, KILL_TICK, Keeper};
use crate::process::{Descendant, Refused, TreeSignal, Unkillable};
use crate::protocol::pb;
use crate::protocol::pb::reply::Result as Answer;
use progress::{Named, Progress};

/// Most of those ended that an answer lists; a bomb may have any number.
const MOST_LISTED: usize = 10_000;

/// Most remaining processes that an answer lists.
const MAX_UNKILLABLE_LISTED: usize = 100;

/// Looks for those who missed a signal: enough for a few generations of newborns.
const MOST_LOOKS: u32 = 4;

/// A signal to a tree that is under way.
pub(super) struct Kill {
    key: u64,
    /// 0 only asks which processes there are.
    signal: i32,
    /// The request that is answered; none: no request, or it was answered.
    pub(super) request: Option<u64>,
    reached: BTreeMap<i32, Descendant>,
    looks: u32,
    /// The processes that the previous look sent SIGKILL to: pid and start time.
    tried: HashMap<i32, u64>,
    /// None before the first SIGKILL.
    progress: Option<Progress>,
    /// It was answered with what remains, and continues.
    answered: bool,
    stage: Stage,
}

/// How far a kill is in the look that is under way.
enum Stage {
    /// It has not begun.
    Due,
    /// It visits its tree.
    Walking(Walk),
    /// It signals what it found.
    Signalling(Found),
    /// It is done, or came after the look began.
    Looked,
}

/// What a walk has found.
struct Found {
    /// The members that were not signalled yet.
    members: Vec<Member>,
    /// The tree had no member.
    is_empty: bool,
    /// Some took the signal for the first time.
    some_new: bool,
    /// The members that SIGKILL was sent to: pid and start time.
    tried: HashMap<i32, u64>,
    unkillable: Vec<Unkillable>,
}

/// What came of a slice of a kill.
enum Slice {
    /// The time was up.
    Unfinished,
    /// This look is done.
    Looked,
    /// The kill is over, and was answered.
    Over,
}

impl Kill {
    /// A SIGKILL that is repeated until nothing is left.
    pub(super) fn new(key: u64, request: Option<u64>) -> Kill {
        Kill::with(key, libc::SIGKILL, request)
    }

    fn with(key: u64, signal: i32, request: Option<u64>) -> Kill {
        Kill {
            key,
            signal,
            request,
            reached: BTreeMap::new(),
            looks: 0,
            tried: HashMap::new(),
            progress: None,
            answered: false,
            stage: Stage::Looked,
        }
    }

    fn is_kill(&self) -> bool {
        self.signal == libc::SIGKILL
    }

    /// Which processes a look that began at `now` names as unkillable.
    fn named(&self, now: Instant) -> Named {
        let progress = self.progress.filter(|_| !self.answered);
        progress.map_or(Named::None, |progress| progress.named(now))
    }

    /// Sends SIGKILL to a member, and names it if it should have ended by now.
    fn kill(&mut self, member: &Member, found: &mut Found, named: Named) {
        let (pid, start) = member.identity();
        let again = self.tried.get(&pid) == Some(&start);
        found.tried.insert(pid, start);
        if named.includes(again) && found.unkillable.len() < MAX_UNKILLABLE_LISTED {
            found.unkillable.push(member.kill_failure());
        } else if tree::signal(member, libc::SIGKILL)
            && !again
            && let Some(progress) = &mut self.progress
        {
            progress.reached_new(Instant::now());
        }
    }

    /// Lists a member that took the signal.
    fn list(&mut self, member: &Member) {
        if self.reached.len() < MOST_LISTED {
            self.reached.insert(member.pid, member.describe());
        }
    }

    /// Signals a member that was found.
    fn signal(&mut self, member: &Member, found: &mut Found, named: Named) {
        let known = self.reached.contains_key(&member.pid);
        let took = match self.signal {
            // Also a process that may not be signalled is there.
            0 => true,
            libc::SIGKILL => {
                self.kill(member, found, named);
                true
            }
            _ if known => false,
            signal => tree::signal(member, signal),
        };
        // Meant to end it; but who is stopped takes nothing but KILL before it is continued.
        let ends = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];
        if took && ends.contains(&self.signal) {
            tree::signal(member, libc::SIGCONT);
        }
        if took && !known {
            found.some_new = true;
            self.list(member);
        }
    }
}

impl Keeper {
    /// Signals a whole tree. None: it will be answered when that is done; after SIGKILL, when the
    /// last one is gone.
    pub(super) fn kill_tree(
        &mut self,
        request: u64,
        kill: &pb::KillTree,
    ) -> Option<Result<Answer, Refused>> {
        let pb::KillTree { key, signal } = *kill;
        if self.held.get(key).is_none() {
            return Some(Err(Refused::UnknownProcess));
        }
        // 0 is no signal: it only asks who is there.
        if let (true, Err(refused)) = (signal != 0, check_signal(signal)) {
            return Some(Err(refused));
        }
        let kill = Kill::with(key, signal, Some(request));
        if kill.is_kill() {
            // It does what a kill that was answered would continue to do.
            self.kills.retain(|other| !(other.answered && other.key == key));
        }
        self.kills.push(kill);
        self.kills_due = true;
        None
    }

    /// Whether a look is under way and only waits for its next slice.
    pub(super) fn is_looking(&self) -> bool {
        self.look.is_some() && !self.link.as_ref().is_some_and(Link::crowded)
    }

    /// Looks at what is being killed, for a slice of time, and answers for what is gone and for what
    /// SIGKILL does not end in time.
    pub(super) fn advance_kills(&mut self) {
        if self.kills.is_empty() {
            self.look = None;
            return self.forest.forget_kills();
        }
        // By the time that a kill is answered, the exit must have been told.
        if self.link.as_ref().is_some_and(Link::crowded) {
            return;
        }
        let until = Instant::now() + BUDGET;
        loop {
            if self.look.is_none() && !self.begin_look() {
                return;
            }
            if !self.advance_look(until) {
                return;
            }
            self.look = None;
        }
    }

    /// Begins another look, if one is due.
    fn begin_look(&mut self) -> bool {
        let due = self.kills_due || self.last_look.elapsed() >= KILL_TICK;
        // A look takes longer the more zombies there are, so those are reaped first, but not for
        // ever.
        let reaping = self.sweep_due && self.last_look.elapsed() < 5 * KILL_TICK;
        if self.kills.is_empty() || !due || reaping {
            return false;
        }
        self.kills_due = false;
        self.last_look = Instant::now();
        for kill in &mut self.kills {
            kill.stage = Stage::Due;
        }
        self.look = Some(self.forest.begin_pass(Which::Unplaced));
        true
    }

    /// Continues a look. True: it is done.
    fn advance_look(&mut self, until: Instant) -> bool {
        // Nothing is reaped in a slice, so that what is found out about all children counts for it.
        self.all_children_judged = None;
        let Some(pass) = &mut self.look else { return true };
        let (table, spawner, helpers) = (&self.held, &self.spawner, &self.stream_helpers);
        let known = OwnChildren { table, spawner, helpers, cgroups: self.cgroups.as_ref() };
        if !self.forest.advance(pass, &known, Some(until)) {
            return false;
        }
        let mut in_time = true;
        let mut kills = std::mem::take(&mut self.kills);
        kills.retain_mut(|kill| {
            if !in_time {
                return true;
            }
            let slice = self.advance_kill(kill, until);
            in_time = !matches!(slice, Slice::Unfinished) && Instant::now() < until;
            !matches!(slice, Slice::Over)
        });
        self.kills = kills;
        in_time
    }

    fn advance_kill(&mut self, kill: &mut Kill, until: Instant) -> Slice {
        loop {
            kill.stage = match std::mem::replace(&mut kill.stage, Stage::Looked) {
                Stage::Due => Stage::Walking(self.walk(kill.key)),
                Stage::Walking(mut walk) => {
                    if !self.forest.advance_walk(&mut walk, self.cgroups.as_ref(), Some(until)) {
                        kill.stage = Stage::Walking(walk);
                        return Slice::Unfinished;
                    }
                    Stage::Signalling(self.begin_signals(kill, walk))
                }
                Stage::Signalling(mut found) => {
                    let named = kill.named(self.last_look);
                    while let Some(member) = found.members.pop() {
                        kill.signal(&member, &mut found, named);
                        if Instant::now() >= until {
                            kill.stage = Stage::Signalling(found);
                            return Slice::Unfinished;
                        }
                    }
                    return self.end_look(kill, found, named);
                }
                Stage::Looked => return Slice::Looked,
            }
        }
    }

    /// A walk through the tree of a process, as far as it is known.
    pub(super) fn walk(&self, key: u64) -> Walk {
        let Some(held) = self.held.get(key) else { return Walk::default() };
        let leader = held.pidfd.is_some().then_some(held.pid);
        let roots = leader.into_iter().chain(self.forest.roots(key)).collect();
        let leaf = self.cgroups.as_ref().zip(held.leaf.as_ref());
        let leaf = leaf.map(|(cgroups, leaf)| LeafMembers::list(cgroups, leaf));
        self.forest.walk(roots, leaf)
    }

    /// Remembers whose the members of a tree are, and, before they are killed one by one, kills
    /// their groups: the kernel lets no process fork away from a group that is signalled.
    fn begin_signals(&mut self, kill: &mut Kill, walk: Walk) -> Found {
        let Walk { mut members, groups, .. } = walk;
        // The last is signalled first: the leader, before it exits because a child has.
        members.reverse();
        self.forest.remember(kill.key, &members);
        if let (true, Some(held)) = (kill.is_kill(), self.held.get_mut(kill.key)) {
            held.killed = true;
            // Also if no member lives: a tracer may hold zombies.
            let mut progress = kill.progress.unwrap_or_else(|| Progress::begin(Instant::now()));
            for orphan in self.forest.kill_orphans(kill.key) {
                progress.reached_new(Instant::now());
                kill.list(&orphan);
            }
            kill.progress = Some(progress);
            let leader = held.pidfd.is_some().then_some(held.pid);
            // Of those who are not reaped yet, dead or alive, the groups are still their own.
            let unreaped = |group: &&Group| {
                Some(group.root) == leader || self.forest.is_orphan(group.root, group.root_start)
            };
            let mut killed_groups = KilledGroups::default();
            groups.iter().filter(unreaped).for_each(|group| killed_groups.kill(group));
            if let (Some(cgroups), Some(leaf), false) =
                (&self.cgroups, &mut held.leaf, members.is_empty())
            {
                cgroups.kill(leaf);
            }
        }
        let (is_empty, tried) = (members.is_empty(), HashMap::new());
        Found { members, is_empty, some_new: false, tried, unkillable: Vec::new() }
    }

    /// Judges what a look has found.
    fn end_look(&mut self, kill: &mut Kill, found: Found, named: Named) -> Slice {
        kill.looks += 1;
        if kill.is_kill() {
            return self.end_kill_look(kill, found, named);
        }
        // A process that was forked before its parent was signalled, but after the look, is
        // found by the next look; one that forks on after the signal does so by its own choice.
        if found.some_new && kill.signal != 0 && kill.looks < MOST_LOOKS {
            self.kills_due = true;
            return Slice::Looked;
        }
        self.answer_kill(kill, Vec::new());
        Slice::Over
    }

    /// Judges what a look of a SIGKILL has found.
    fn end_kill_look(&mut self, kill: &mut Kill, found: Found, named: Named) -> Slice {
        let Found { is_empty, mut unkillable, tried, .. } = found;
        kill.tried = tried;
        if is_empty && self.is_gone(kill.key) {
            self.answer_kill(kill, Vec::new());
            return Slice::Over;
        }
        if named != Named::None {
            unkillable.extend(self.held_zombies(kill.key));
        }
        // Another tree may bring orphans faster than looks can tell whose they are.
        let is_late = named == Named::All && is_empty && self.has_exited(kill.key);
        if is_late || !unkillable.is_empty() {
            self.answer_kill(kill, unkillable);
            kill.answered = true;
        }
        let stuck = kill.progress.is_some_and(|progress| progress.is_stuck(self.last_look));
        if kill.answered && stuck { Slice::Over } else { Slice::Looked }
    }

    /// Whether a tree is gone in which a look has found no member.
    fn is_gone(&mut self, key: u64) -> bool {
        // A process that died since the keeper's children were listed may have left it a child: the
        // tree is gone when all children are known, and none of them, not even a zombie, is of it.
        self.has_exited(key) && self.forest.roots(key).is_empty() && self.all_children_judged()
    }

    /// Whether it is known of all children of the keeper whose they are.
    fn all_children_judged(&mut self) -> bool {
        let all_judged = self.all_children_judged.unwrap_or_else(|| {
            self.forest.knows_all(&self.own_children()) && self.forest.all_judged(Instant::now())
        });
        *self.all_children_judged.insert(all_judged)
    }

    /// Whether the process that began a tree has ended, and was reaped.
    fn has_exited(&self, key: u64) -> bool {
        self.held.get(key).is_none_or(|held| held.exit.is_some())
    }

    fn answer_kill(&mut self, kill: &mut Kill, unkillable: Vec<Unkillable>) {
        let may_miss_some = kill.signal == 0 && kill.reached.is_empty() && !self.is_gone(kill.key);
        let held = self.held.get(kill.key);
        let leader_remains = !unkillable.is_empty() && held.is_some_and(|held| held.exit.is_none());
        if let (Some(held), false) = (held, unkillable.is_empty()) {
            tracing::warn!(process = &*held.id, ?unkillable, "processes remain after SIGKILL");
        }
        let Some(request) = kill.request.take() else { return };
        let leader = held.map(|held| held.pid);
        let mut reached = std::mem::take(&mut kill.reached);
        for one in &unkillable {
            reached.remove(&one.process.pid.cast_signed());
        }
        let mut members: Vec<_> = reached.into_iter().collect();
        members.sort_by_key(|(pid, _)| Some(*pid) != leader);
        let members = members.into_iter().map(|(_, member)| member).collect();
        let outcome = TreeSignal { members, unkillable, leader_remains, may_miss_some };
        self.reply(request, Answer::Killed(outcome.into()));
    }

    /// The zombies of a tree that a tracer holds.
    fn held_zombies(&self, key: u64) -> Vec<Unkillable> {
        let leader = self.held.get(key).filter(|held| held.pidfd.is_some()).map(|held| held.pid);
        let children = leader.into_iter().chain(self.forest.roots(key));
        children.filter_map(tree::held_zombie).take(MAX_UNKILLABLE_LISTED).collect()
    }

    /// Logs what remains when the keeper itself ends.
    pub(super) fn log_remaining(&self) {
        for key in self.held.keys() {
            let living = self.members(key, MAX_UNKILLABLE_LISTED).into_iter();
            let mut unkillable: Vec<_> = living.map(|member| member.kill_failure()).collect();
            unkillable.extend(self.held_zombies(key));
            if let (Some(held), false) = (self.held.get(key), unkillable.is_empty()) {
                tracing::error!(process = &*held.id, ?unkillable, "processes still run");
            }
        }
    }

    /// The members of a tree, as many as `most`, the process itself first.
    pub(super) fn members(&self, key: u64, most: usize) -> Vec<Member> {
        let mut walk = self.walk(key);
        walk.most = most;
        self.forest.advance_walk(&mut walk, self.cgroups.as_ref(), None);
        let leader = self.held.get(key).filter(|held| held.pidfd.is_some()).map(|held| held.pid);
        walk.members.sort_by_key(|member| Some(member.pid) != leader);
        walk.members
    }
}

#[cfg(test)]
mod tests;
