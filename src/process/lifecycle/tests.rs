//! The lifecycle against sentences, and against a model of a keeper and its tree.

use proptest::prelude::*;

use super::*;
use crate::process::Usage;

const SECOND: u64 = 1_000_000_000;

fn stop(seconds: u64) -> Stop {
    Stop { signal: libc::SIGTERM, grace: Duration::from_secs(seconds) }
}

fn order(seconds: u64) -> Happening {
    Happening::Stop(Order { why: Cause::Killed, stop: stop(seconds) })
}

fn someone(pid: u32) -> Descendant {
    Descendant { pid, command: "x".into() }
}

pub(super) fn exit(status: Status, lingering: Vec<Descendant>) -> Exit {
    let usage = Usage::default();
    Exit {
        status,
        core_dumped: false,
        time: 0,
        usage,
        final_seq: 1,
        lingering,
        oom_kills: 0,
        killed: false,
        own_cpu_micros: None,
    }
}

fn exited(lingering: Vec<Descendant>) -> Happening {
    Happening::Exited(exit(Status::Signal(15), lingering))
}

fn signalled(signal: i32, members: Vec<Descendant>) -> Happening {
    let outcome = TreeSignal { members, ..TreeSignal::default() };
    Happening::Signalled { signal, outcome }
}

fn seen(members: Vec<Descendant>) -> Happening {
    Happening::Seen { outcome: TreeSignal { members, ..TreeSignal::default() } }
}

/// The keeper is asked at once which processes are left, and finds none.
fn look_and_find_none(life: &mut Life) -> Ended {
    let look = life.wake_at().unwrap();
    assert_eq!(life.apply(Happening::Tick { stop: stop(10) }, look).asks, [Ask::Look]);
    life.apply(seen(vec![]), look).ended.unwrap()
}

/// SIGKILL has left these.
fn left(pids: &[u32], leader_remains: bool) -> Happening {
    let error = "operation not permitted".to_owned();
    let unkillable =
        |pid: &u32| Unkillable { process: someone(*pid), start_ticks: 1, error: error.clone() };
    let unkillable = pids.iter().map(unkillable).collect();
    let outcome = TreeSignal { unkillable, leader_remains, ..TreeSignal::default() };
    Happening::Signalled { signal: libc::SIGKILL, outcome }
}

fn running() -> Life {
    let mut life = Life::new();
    let then = life.apply(Happening::Started(Running::default()), 0);
    assert_eq!(then.events, [Kind::Started]);
    life
}

#[test]
fn what_exits_by_itself_is_over_at_once_whoever_lives_on() {
    let mut life = running();
    let then = life.apply(Happening::Exited(exit(Status::Code(3), vec![someone(9)])), 1);
    assert_eq!(then.ended.unwrap().cause, Cause::Exited);
    assert_eq!(life, Life::Exited);
}

#[test]
fn what_was_being_ended_is_ended_in_the_same_way_after_a_new_beginning() {
    let told = |signal, seconds| Stop { signal, grace: Duration::from_secs(seconds) };
    for (order, asked, at_last) in [
        (told(libc::SIGTERM, 0), libc::SIGKILL, vec![]),
        (told(libc::SIGKILL, 60), libc::SIGKILL, vec![]),
        (told(libc::SIGINT, 60), libc::SIGINT, vec![Ask::Signal(libc::SIGKILL)]),
    ] {
        let mut life = running();
        let _ = life.apply(Happening::Stop(Order { why: Cause::Killed, stop: order }), 0);
        let ending = life.ending().unwrap();
        let mut life = Life::resume_stopping(ending);
        // What is usual for it is another signal and a shorter grace.
        let stop = ending.again(stop(10), SECOND);
        let then = life.apply(Happening::Stop(Order { why: ending.why, stop }), SECOND);
        assert_eq!(then.asks, [Ask::Signal(asked)]);
        assert_eq!(life.apply(Happening::Tick { stop }, 59 * SECOND).asks, []);
        assert_eq!(life.apply(Happening::Tick { stop }, 60 * SECOND).asks, at_last);
    }
}

#[test]
fn a_stop_that_is_obeyed_needs_no_kill() {
    let mut life = running();
    let then = life.apply(order(10), 0);
    assert_eq!((then.events, then.asks), (vec![Kind::Stopping], vec![Ask::Signal(libc::SIGTERM)]));
    assert_eq!(life.apply(signalled(libc::SIGTERM, vec![someone(7)]), 1), Consequence::default());
    assert_eq!(life.apply(exited(vec![]), 2).ended, None);
    let ended = look_and_find_none(&mut life);
    assert_eq!((ended.cause, ended.reached), (Cause::Killed, vec![someone(7)]));
}

#[test]
fn descendants_that_an_exit_does_not_list_are_awaited_and_then_killed() {
    let mut life = running();
    let _ = life.apply(order(10), 0);
    let _ = life.apply(signalled(libc::SIGTERM, vec![someone(7)]), 1);
    assert_eq!(life.apply(exited(vec![]), 2).ended, None);
    for _ in 0..2 {
        let look = life.wake_at().unwrap();
        assert_eq!(life.apply(Happening::Tick { stop: stop(10) }, look).asks, [Ask::Look]);
        let outcome = TreeSignal { may_miss_some: true, ..TreeSignal::default() };
        assert_eq!(life.apply(Happening::Seen { outcome }, look).ended, None);
    }
    let then = life.apply(Happening::Tick { stop: stop(10) }, 10 * SECOND);
    assert_eq!(then.asks, [Ask::Signal(libc::SIGKILL)]);
    let ended = life.apply(signalled(libc::SIGKILL, vec![someone(8)]), 11 * SECOND).ended.unwrap();
    assert_eq!(ended.reached, [someone(7), someone(8)]);
}

#[test]
fn an_exit_that_overtakes_the_answer_to_a_signal_waits_for_it() {
    let mut life = running();
    let _ = life.apply(order(10), 0);
    assert_eq!(life.apply(exited(vec![]), 1).ended, None);
    let _ = life.apply(signalled(libc::SIGTERM, vec![someone(7)]), 2);
    let ended = look_and_find_none(&mut life);
    assert_eq!(ended.reached, [someone(7)]);
}

#[test]
fn descendants_that_outlive_a_stopped_process_are_awaited_and_then_killed() {
    let mut life = running();
    let _ = life.apply(order(10), 0);
    let _ = life.apply(signalled(libc::SIGTERM, vec![someone(7), someone(8)]), 1);
    assert_eq!(life.apply(exited(vec![someone(8)]), 2).ended, None);
    let look = life.wake_at().unwrap();
    assert_eq!(life.apply(Happening::Tick { stop: stop(10) }, look).asks, [Ask::Look]);
    let then = life.apply(seen(vec![someone(8)]), look);
    assert_eq!(then, Consequence::default());
    let then = life.apply(Happening::Tick { stop: stop(10) }, 10 * SECOND);
    assert_eq!(then.asks, [Ask::Signal(libc::SIGKILL)]);
    let ended = life.apply(signalled(libc::SIGKILL, vec![someone(8)]), 11 * SECOND).ended.unwrap();
    assert_eq!(ended.reached, [someone(7), someone(8)]);
}

#[test]
fn unkillable_descendant_is_named_by_the_end_of_its_leader() {
    for exit_first in [true, false] {
        let mut life = running();
        let _ = life.apply(order(0), 0);
        let steps = [exited(vec![someone(8), someone(9)]), left(&[9], false)];
        let mut steps = steps.to_vec();
        if !exit_first {
            steps.reverse();
        }
        let then = life.apply(steps[0].clone(), 1);
        assert_eq!((then.ended, then.kill_failed), (None, false));
        let ended = life.apply(steps[1].clone(), 2).ended.unwrap();
        assert_eq!((ended.cause, &ended.unkillable[0].process), (Cause::Killed, &someone(9)));
        assert_eq!(ended.exit.unwrap().lingering, [someone(9)]);
    }
}

#[test]
fn unkillable_leader_stays_stopping_and_is_killed_again() {
    let mut life = running();
    let _ = life.apply(order(0), 0);
    let then = life.apply(left(&[7], true), SECOND);
    assert!(then.kill_failed && then.ended.is_none() && life.has_unkillable_leader());
    assert_eq!(life.unkillable()[0].process, someone(7));
    let retry = life.wake_at().unwrap();
    assert!(retry > SECOND);
    let tick = Happening::Tick { stop: stop(10) };
    assert_eq!(life.apply(tick.clone(), retry).asks, [Ask::Signal(libc::SIGKILL)]);
    assert_eq!(life.wake_at(), None, "the keeper has not answered");
    assert!(life.apply(left(&[7], true), retry + 1).kill_failed);
    // Another order does not wait for the next attempt.
    assert_eq!(life.apply(order(0), retry + 2).asks, [Ask::Signal(libc::SIGKILL)]);
    let _ = life.apply(left(&[7], true), retry + 3);
    // It ends by itself and leaves a descendant, which is killed like any other.
    assert_eq!(life.apply(exited(vec![someone(8)]), retry + 4).ended, None);
    assert_eq!(life.wake_at(), Some(retry + 4));
    assert_eq!(life.apply(tick, retry + 4).asks, [Ask::Signal(libc::SIGKILL)]);
    let ended = life.apply(signalled(libc::SIGKILL, vec![someone(8)]), retry + 5).ended.unwrap();
    assert_eq!((ended.unkillable, ended.exit.unwrap().lingering), (vec![], vec![]));
}

#[test]
fn a_stop_before_the_start_is_kept_until_then() {
    let mut life = Life::new();
    assert_eq!(life.apply(order(10), 0), Consequence::default());
    let then = life.apply(Happening::Started(Running::default()), 1);
    assert_eq!(then.events, [Kind::Started, Kind::Stopping]);
    assert_eq!(then.asks, [Ask::Signal(libc::SIGTERM)]);
}

#[test]
fn a_second_stop_hurries_and_does_not_change_the_cause() {
    let mut life = running();
    let first = Order { why: Cause::TimedOut, stop: stop(10) };
    let _ = life.apply(Happening::Stop(first), 0);
    assert_eq!(life.apply(order(0), 1).asks, [Ask::Signal(libc::SIGKILL)]);
    assert_eq!(life.apply(order(0), 2), Consequence::default(), "it is being killed already");
    let _ = life.apply(signalled(libc::SIGTERM, vec![]), 3);
    let _ = life.apply(exited(vec![]), 3);
    let ended = life.apply(signalled(libc::SIGKILL, vec![someone(1)]), 4).ended.unwrap();
    assert_eq!(ended.cause, Cause::TimedOut);
}

#[test]
fn repeated_stops_yield_one_request_at_a_time_and_the_last_signal() {
    let mut life = running();
    let told = |signal| {
        let stop = Stop { signal, grace: Duration::from_secs(10) };
        Happening::Stop(Order { why: Cause::Killed, stop })
    };
    assert_eq!(life.apply(told(libc::SIGTERM), 0).asks, [Ask::Signal(libc::SIGTERM)]);
    for n in 0..1000 {
        let signal = if n % 2 == 0 { libc::SIGHUP } else { libc::SIGINT };
        assert_eq!(life.apply(told(signal), 1).asks, []);
    }
    let then = life.apply(signalled(libc::SIGTERM, vec![someone(7)]), 2);
    assert_eq!(then.asks, [Ask::Signal(libc::SIGINT)]);
    assert_eq!(life.apply(signalled(libc::SIGINT, vec![someone(7)]), 3), Consequence::default());
    // SIGKILL does not wait for an answer, and nothing is sent to a tree that is gone.
    let _ = life.apply(told(libc::SIGTERM), 4);
    let _ = life.apply(told(libc::SIGHUP), 5);
    assert_eq!(life.apply(order(0), 6).asks, [Ask::Signal(libc::SIGKILL)]);
    let _ = life.apply(exited(vec![]), 7);
    assert_eq!(life.apply(signalled(libc::SIGTERM, vec![]), 8).asks, []);
    let then = life.apply(signalled(libc::SIGKILL, vec![]), 9);
    assert_eq!((then.asks, then.ended.unwrap().cause), (vec![], Cause::Killed));
}

#[test]
fn a_process_whose_time_is_over_is_stopped() {
    let mut life = Life::new();
    let _ = life.apply(Happening::Started(Running { deadline: Some(5), ..Running::default() }), 0);
    assert_eq!(life.wake_at(), Some(5));
    let tick = Happening::Tick { stop: stop(10) };
    assert_eq!(life.apply(tick.clone(), 4), Consequence::default());
    assert_eq!(life.apply(tick, 5).events, [Kind::Stopping]);
}

#[test]
fn a_queued_process_starts_when_its_turn_comes_and_ends_at_once_when_it_is_killed() {
    let mut life = Life::Queued;
    assert!(life.apply(Happening::Admitted, 0).start);
    assert_eq!(life, Life::new());
    let mut life = Life::Queued;
    let ended = life.apply(order(10), 0).ended.unwrap();
    assert_eq!((ended.cause, ended.exit), (Cause::CanceledInQueue, None));
    assert!(!life.apply(Happening::Admitted, 1).start, "its turn came too late");
}

#[test]
fn a_process_that_is_not_ready_in_time_is_stopped_for_that() {
    let mut life = Life::new();
    let running = Running { deadline: Some(9), ready_by: Some(5), ..Running::default() };
    let _ = life.apply(Happening::Started(running), 0);
    assert_eq!(life.wake_at(), Some(5));
    assert_eq!(life.apply(Happening::Tick { stop: stop(10) }, 9).events, [Kind::Stopping]);
    assert_eq!(life.ending().unwrap().why, Cause::ReadinessFailed);
}

#[test]
fn want_of_memory_is_the_cause_unless_there_was_another_before() {
    let killed = || Exit { oom_kills: 1, ..exit(Status::Signal(libc::SIGKILL), Vec::new()) };
    let running = Running::default();
    let mut life = Life::new();
    let _ = life.apply(Happening::Started(running), 0);
    let then = life.apply(Happening::Exited(killed()), 1);
    assert_eq!(then.ended.unwrap().cause, Cause::OutOfMemory);
    let mut life = Life::new();
    let _ = life.apply(Happening::Started(Running { ready_by: Some(5), ..running }), 0);
    let then = life.apply(Happening::Exited(killed()), 1);
    assert_eq!(then.ended.unwrap().cause, Cause::ReadinessFailed);
}

#[test]
fn what_exits_before_it_is_ready_has_failed_and_afterwards_has_exited() {
    for (ready, cause) in [(false, Cause::ReadinessFailed), (true, Cause::Signaled)] {
        let mut life = Life::new();
        let running = Running { ready_by: Some(5), ..Running::default() };
        let _ = life.apply(Happening::Started(running), 0);
        if ready {
            assert_eq!(life.apply(Happening::Ready, 1).events, [Kind::Ready]);
        }
        assert_eq!(life.apply(exited(vec![]), 2).ended.unwrap().cause, cause);
    }
}

#[test]
fn a_pause_ends_with_a_start_unless_a_stop_comes_before() {
    let mut life = running();
    let _ = life.apply(exited(vec![]), 1);
    life.pause(5);
    let tick = Happening::Tick { stop: stop(10) };
    assert_eq!((life.wake_at(), life.apply(tick.clone(), 4)), (Some(5), Consequence::default()));
    let mut stopped = life.clone();
    assert!(life.apply(tick.clone(), 5).start);
    assert_eq!(stopped.apply(order(10), 4).ended.unwrap().cause, Cause::Killed);
    assert_eq!(stopped.apply(tick, 5), Consequence::default());
}

#[test]
fn who_is_wanted_to_be_over_is_not_started_again_whatever_it_was_stopped_for() {
    for (wanted, why) in [(false, Cause::TimedOut), (true, Cause::Killed), (true, Cause::Shutdown)]
    {
        let mut life = running();
        let _ = life.apply(Happening::Stop(Order { why: Cause::TimedOut, stop: stop(10) }), 0);
        let _ = life.apply(Happening::Stop(Order { why, stop: stop(10) }), 1);
        assert_eq!(life.ending().unwrap().for_good, wanted);
        for _ in 0..2 {
            let _ = life.apply(signalled(libc::SIGTERM, vec![]), 2);
        }
        let _ = life.apply(exited(vec![]), 3);
        let ended = look_and_find_none(&mut life);
        assert_eq!((ended.cause, ended.for_good), (Cause::TimedOut, wanted));
    }
}

#[test]
fn a_stop_after_the_end_changes_nothing() {
    let mut life = running();
    let _ = life.apply(exited(vec![]), 1);
    assert_eq!(life.apply(order(0), 2), Consequence::default());
    assert_eq!(life.wake_at(), None);
}

/// What a keeper and a tree might do next.
#[derive(Clone, Debug)]
enum Move {
    /// Somebody orders a stop with this grace.
    Stop(u64),
    /// Time passes, in milliseconds.
    Pass(u64),
    /// The keeper answers its oldest request.
    Answer,
    /// The process itself exits, if it runs.
    Exit,
    /// One descendant ends.
    Leave,
    /// The descendants change their parents whenever the keeper looks for them, for one look.
    Miss,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        (0..20u64).prop_map(Move::Stop),
        (1..4000u64).prop_map(Move::Pass),
        Just(Move::Answer),
        Just(Move::Answer),
        Just(Move::Exit),
        Just(Move::Leave),
        Just(Move::Miss),
    ];
    proptest::collection::vec(one, 0..60)
}

/// A keeper with one tree: what is true, whatever the lifecycle believes.
#[derive(Default)]
struct Model {
    now: u64,
    running: bool,
    /// News of the exit is on its way or has come.
    told: bool,
    descendants: u32,
    /// The next exit or look does not find the descendants.
    misses: bool,
    requests: Vec<Ask>,
    events: Vec<Kind>,
    ends: usize,
    first_order: Option<Moment>,
    shortest: Option<Moment>,
}

impl Model {
    fn happen(&mut self, life: &mut Life, happening: Happening) {
        let then = life.apply(happening, self.now);
        if then.ended.is_some() {
            self.ends += 1;
            assert!(self.told, "completed before the exit was told");
            if self.events.contains(&Kind::Stopping) {
                assert_eq!(self.descendants, 0, "completed with descendants left");
                assert!(self.requests.is_empty(), "completed with answers outstanding");
            }
        }
        self.events.extend(then.events);
        self.requests.extend(then.asks);
    }

    fn left(&self) -> Vec<Descendant> {
        let descendants = (0..self.descendants).map(|n| someone(100 + n));
        self.running.then(|| someone(1)).into_iter().chain(descendants).collect()
    }

    fn exit(&mut self, life: &mut Life) {
        if std::mem::take(&mut self.running) {
            self.told = true;
            let lingering = if self.misses { Vec::new() } else { self.left() };
            self.happen(life, exited(lingering));
        }
    }

    /// The keeper does what it was asked first.
    fn answer(&mut self, life: &mut Life) {
        if self.requests.is_empty() {
            return;
        }
        match self.requests.remove(0) {
            Ask::Signal(libc::SIGKILL) => {
                let members = self.left();
                self.descendants = 0;
                self.exit(life);
                self.happen(life, signalled(libc::SIGKILL, members));
            }
            Ask::Signal(signal) => {
                let members = self.left();
                self.happen(life, signalled(signal, members));
            }
            Ask::Look if std::mem::take(&mut self.misses) => {
                let outcome = TreeSignal { may_miss_some: true, ..TreeSignal::default() };
                self.happen(life, Happening::Seen { outcome });
            }
            Ask::Look => {
                let members = self.left();
                self.happen(life, seen(members));
            }
        }
    }

    fn tick(&mut self, life: &mut Life) {
        self.happen(life, Happening::Tick { stop: stop(10) });
    }

    fn make(&mut self, life: &mut Life, next: &Move) {
        match *next {
            Move::Stop(seconds) => {
                let kill_at = after(self.now, Duration::from_secs(seconds));
                self.first_order.get_or_insert(self.now);
                self.shortest = Some(self.shortest.map_or(kill_at, |known| known.min(kill_at)));
                self.happen(life, order(seconds));
            }
            Move::Pass(milliseconds) => {
                self.now += milliseconds * 1_000_000;
                self.tick(life);
            }
            Move::Answer => self.answer(life),
            Move::Exit => self.exit(life),
            Move::Miss => self.misses = true,
            Move::Leave => self.descendants = self.descendants.saturating_sub(1),
        }
    }
}

proptest! {
    #[test]
    fn every_life_ends_once_with_its_tree_and_in_time(
        moves in moves(), descendants in 0..4u32, stubborn in any::<bool>(),
    ) {
        let mut life = Life::new();
        let mut model = Model { running: true, descendants, ..Model::default() };
        model.happen(&mut life, Happening::Started(Running::default()));
        for next in &moves {
            let obeys = !stubborn || !matches!(next, Move::Exit | Move::Leave);
            if obeys {
                model.make(&mut life, next);
            }
            if let (Some(kill_at), Life::Stopping(_)) = (model.shortest, &life) {
                let due = life.wake_at().is_some_and(|at| at <= kill_at);
                let killing = model.requests.contains(&Ask::Signal(libc::SIGKILL));
                prop_assert!(due || killing || model.told || model.ends > 0
                    || matches!(&life, Life::Stopping(stopping) if stopping.killing));
            }
        }
        // Whatever happened, it can be ended, and is then over.
        model.make(&mut life, &Move::Stop(0));
        while !model.requests.is_empty() {
            model.answer(&mut life);
        }
        prop_assert_eq!(&life, &Life::Exited);
        let count = |kind| model.events.iter().filter(|event| **event == kind).count();
        prop_assert_eq!(count(Kind::Started), 1);
        prop_assert_eq!(model.ends, 1);
        prop_assert!(count(Kind::Stopping) <= 1);
        prop_assert_eq!(life.wake_at(), None);
    }
}
