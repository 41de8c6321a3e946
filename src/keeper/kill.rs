//! Ending whole trees.
//!
//! Owns the kills that are under way. SIGKILL is sent to every member that can be found, again
//! and again, until none is left: whoever was killed can fork no more, and whoever was forked
//! before is below someone killed, or an orphan by now. Each death brings a SIGCHLD sooner or
//! later, which is when the next look is taken.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use super::link::Link;
use super::requests::check_signal;
use super::tree::{self, Member};
use super::turns::{KILL_TICK, Keeper};
use crate::process::{Descendant, Refused};
use crate::protocol::pb;
use crate::protocol::pb::reply::Result as Answer;

/// Looks in a row that must find nobody while some orphan's owner is unknown: a process in the
/// middle of an exec shows no cookie for a moment.
const QUIET_LOOKS: u32 = 3;

/// Most of those ended that an answer lists; a bomb may have any number.
const MOST_LISTED: usize = 10_000;

/// Looks for those who missed a signal: enough for a few generations of newborns.
const MOST_LOOKS: u32 = 4;

/// A kill under way.
pub(super) struct Kill {
    key: u64,
    /// Who is to be answered; none: nobody any more.
    pub(super) request: Option<u64>,
    ended: BTreeMap<i32, Descendant>,
    quiet: u32,
}

impl Kill {
    pub(super) fn new(key: u64, request: Option<u64>) -> Kill {
        Kill { key, request, ended: BTreeMap::new(), quiet: 0 }
    }
}

impl Keeper {
    /// Signals a whole tree. None: it will be answered when the last one is gone.
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
        if signal == libc::SIGKILL {
            self.kills.push(Kill::new(key, Some(request)));
            self.kills_due = true;
            return None;
        }
        let members = self.signal_tree(key, signal);
        let members = members.iter().map(|member| member.describe().into()).collect();
        Some(Ok(Answer::Killed(pb::Killed { members })))
    }

    /// Sends a signal to everyone of a tree, and returns those who were there to take it. Whoever
    /// was forked before its parent was signalled, but after the look, is found by the next look;
    /// whoever forks on after the signal does so by its own choice.
    fn signal_tree(&mut self, key: u64, signal: i32) -> Vec<Member> {
        // Meant to end it; but who is stopped takes nothing but KILL before it is continued.
        let ends = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT].contains(&signal);
        let mut reached: Vec<Member> = Vec::new();
        for _ in 0..if signal == 0 { 1 } else { MOST_LOOKS } {
            self.forest.refresh(&self.held, true);
            let known: HashSet<i32> = reached.iter().map(|member| member.pid).collect();
            let mut members = self.members(key);
            members.retain(|member| !known.contains(&member.pid) && tree::signal(member, signal));
            if members.is_empty() {
                break;
            }
            for member in members.iter().filter(|_| ends) {
                tree::signal(member, libc::SIGCONT);
            }
            reached.append(&mut members);
        }
        reached
    }

    /// Takes another look at what is being killed, and answers for what is gone.
    pub(super) fn advance_kills(&mut self) {
        let due = self.kills_due || self.last_look.elapsed() >= KILL_TICK;
        // A look takes longer the more zombies there are, so those are reaped first, but not for
        // ever; and by the time that a kill is answered, the exit must have been told.
        let reaping = self.sweep_due && self.last_look.elapsed() < 5 * KILL_TICK;
        let crowded = self.link.as_ref().is_some_and(Link::crowded);
        if self.kills.is_empty() || !due || reaping || crowded {
            return;
        }
        self.kills_due = false;
        self.last_look = Instant::now();
        self.forest.refresh(&self.held, true);
        let mut kills = std::mem::take(&mut self.kills);
        kills.retain_mut(|kill| {
            let over = self.look(kill);
            if let (true, Some(request)) = (over, kill.request) {
                let leader = self.held.get(kill.key).map(|held| held.pid);
                let mut members: Vec<_> = std::mem::take(&mut kill.ended).into_iter().collect();
                members.sort_by_key(|(pid, _)| Some(*pid) != leader);
                let members = members.into_iter().map(|(_, member)| member.into()).collect();
                self.reply(request, Answer::Killed(pb::Killed { members }));
            }
            !over
        });
        self.kills = kills;
    }

    /// Kills who can be found. True: nobody is left.
    fn look(&mut self, kill: &mut Kill) -> bool {
        let members = self.members(kill.key);
        let Some(held) = self.held.get_mut(kill.key) else { return true };
        for member in members.iter().take(MOST_LISTED.saturating_sub(kill.ended.len())) {
            kill.ended.entry(member.pid).or_insert_with(|| member.describe());
        }
        // Of those who are not reaped yet, dead or alive, the groups are still their own; and the
        // kernel lets nobody fork away from a group that is signalled.
        let leader = held.pidfd.is_some().then_some(held.pid);
        held.killed = true;
        for group in leader.into_iter().chain(self.forest.groups(kill.key)) {
            let _ = tree::signal_group(group, libc::SIGKILL);
        }
        for member in &members {
            tree::signal(member, libc::SIGKILL);
        }
        if let (Some(cgroups), Some(leaf), false) =
            (&self.cgroups, &mut held.leaf, members.is_empty())
        {
            cgroups.kill(leaf);
        }
        // Whoever died since the keeper's children were listed may have left it a child: only a
        // look that finds nobody, not even a zombie, shows that nobody is left.
        let gone = held.exit.is_some() && self.forest.roots(kill.key).is_empty();
        if !members.is_empty() || !gone {
            kill.quiet = 0;
            return false;
        }
        kill.quiet += 1;
        kill.quiet >= QUIET_LOOKS || self.forest.all_placed()
    }

    /// Everyone of a tree, the process itself first.
    pub(super) fn members(&self, key: u64) -> Vec<Member> {
        let Some(held) = self.held.get(key) else { return Vec::new() };
        let leader = held.pidfd.is_some().then_some(held.pid);
        let roots = leader.into_iter().chain(self.forest.roots(key)).collect();
        let mut members = self.forest.below(roots);
        if let (Some(cgroups), Some(leaf)) = (&self.cgroups, &held.leaf) {
            let known: HashSet<i32> = members.iter().map(|member| member.pid).collect();
            let others = cgroups.pids(leaf).into_iter().filter(|pid| !known.contains(pid));
            members.extend(others.filter_map(|pid| Member::find(pid, || cgroups.holds(leaf, pid))));
        }
        members.sort_by_key(|member| Some(member.pid) != leader);
        members
    }
}
