//! The supervisor's loop: one input, what follows from it, and doing that.
//!
//! Owns the order of commit and action. Changes that come while a commit is under way share the
//! next one. An action is done when the changes before it are committed, so that an answer means
//! that what it says is recorded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::QueuedCall;
use super::archives::Archives;
use super::caller_turns::CallerTurns;
use super::effects::{Action, Effects};
use super::launch::Ground;
use super::output_turns::OutputTurns;
use super::registry::Registry;
use super::state::{Input, Now, State};
use super::worker_pool::WorkerPool;
use crate::events::EventLog;
use crate::failpoint::{self, Point};
use crate::keeper_client::{Keeper, Report, Reports};
use crate::metrics::supervising::Supervising;
use crate::store::{Commit, Store, StoreError};
use crate::telemetry::request::{RequestId, within};

/// Inputs that are taken in one go at most, before what follows from them is committed.
const MOST_AT_ONCE: usize = 256;

/// How long inputs are taken in one go, before other tasks of the server's thread have a turn: one that
/// selects among all records takes milliseconds.
const MAX_BATCH_TIME: Duration = Duration::from_millis(5);

/// How long what nobody waits for waits for company. A crash meanwhile costs nothing: the keeper
/// knows what it started.
const PATIENCE: Duration = Duration::from_millis(2);

/// Pause before a commit that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How long a commit may take before what is asked of the keeper waits for it no more: usual ones
/// take less than a millisecond, and few on a busy disk as much as this.
const SLOW: Duration = Duration::from_millis(250);

/// How long calls have to finish when another server takes over: all but those that wait for
/// something take milliseconds. What is left ends with an error that says to come again.
const FINISHING: Duration = Duration::from_millis(500);

/// What the supervisor works with.
pub(super) struct Actor {
    pub(super) state: State,
    pub(super) keeper: Keeper,
    pub(super) reports: Reports,
    pub(super) store: Store,
    pub(super) registry: Arc<Registry>,
    pub(super) events: Arc<EventLog>,
    pub(super) ground: Arc<Ground>,
    /// Structured outputs that are read, and not recorded yet.
    pub(super) output_turns: OutputTurns,
    pub(super) archives: Arc<Archives>,
    pub(super) workers: Arc<WorkerPool>,
    /// Attempts of readiness commands that are made and launched.
    pub(super) attempts: CallerTurns,
    /// Signals to trees that the keeper was asked for.
    pub(super) tree_signals: CallerTurns,
    pub(super) calls: mpsc::Receiver<QueuedCall>,
    /// Of the call that was taken last, until it is applied: for the log alone.
    pub(super) request: Option<RequestId>,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) queue: Queue,
    /// Told of what is done, and never asked.
    pub(super) metrics: Supervising,
}

/// How far the supervisor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// What was there is being taken over.
    Recovering,
    /// Serving.
    Serving,
    /// Told to stop: nothing begins any more.
    Stopping,
    /// Everything that ran has ended, and that is recorded.
    AllOver,
    /// Told that another server takes over: nobody waits for anything any more, everything that
    /// runs runs on.
    Retiring,
    /// The same, and calls had time to finish: whatever is left ends.
    Retired,
    /// The keeper is gone.
    Orphaned,
}

impl Stage {
    /// Another server takes over, or has.
    pub fn is_retirement(self) -> bool {
        matches!(self, Stage::Retiring | Stage::Retired)
    }
}

/// What waits for its commit.
pub(super) struct Queue {
    /// Gathered for the next commit.
    gathered: Effects,
    /// Under way, and what is done then.
    committing: Option<(Commit, Effects)>,
    /// Not before this moment, because a commit has failed.
    retry_at: Option<Instant>,
    /// How often it has failed in a row.
    failures: u64,
    /// When the commit under way began.
    began: Option<Instant>,
    /// When it takes long.
    slow_at: Option<Instant>,
    /// It does.
    slow: bool,
    /// Not before this moment, because nobody waits for what was gathered.
    patient_until: Option<Instant>,
    /// When nothing is waited for any more, because another server takes over.
    retired_at: Option<Instant>,
    /// Answers of the keeper: no more than questions were asked, of which each process has few.
    answers: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
}

impl Queue {
    /// Where answers go.
    pub(super) fn answers(&self) -> mpsc::UnboundedSender<Input> {
        self.answers.0.clone()
    }

    pub(super) fn new(gathered: Effects) -> Queue {
        Queue {
            gathered,
            committing: None,
            retry_at: None,
            failures: 0,
            began: None,
            slow_at: None,
            slow: false,
            patient_until: None,
            retired_at: None,
            answers: mpsc::unbounded_channel(),
        }
    }
}

enum Woken {
    Input(Input),
    Committed(Result<(), StoreError>),
    Due,
    Retry,
    Slow,
    PatienceOver,
    Retired,
    KeeperGone,
    NobodyLeft,
}

impl Actor {
    /// Runs until the keeper is gone, another server takes over, or nobody can call any more.
    pub(super) async fn run(mut self) {
        self.flush();
        loop {
            let mut is_busy = false;
            match self.select().await {
                Woken::Input(input) => is_busy = self.take(input),
                Woken::Committed(result) => self.committed(result),
                Woken::Due => {}
                Woken::Retry => {
                    self.queue.retry_at = None;
                    let effects = self.state.try_again(now());
                    self.gather(effects);
                }
                Woken::Slow => self.hurry(),
                Woken::PatienceOver => {
                    self.queue.patient_until = None;
                    self.queue.gathered.patient = false;
                }
                // Whoever still waits for an answer learns that there is none. What was begun is
                // gone on with by the next server, as if this one had died.
                Woken::Retired => return self.reach(Stage::Retired),
                Woken::KeeperGone => return self.reach(Stage::Orphaned),
                Woken::NobodyLeft => return,
            }
            self.tick();
            self.flush();
            self.keeper.heartbeat().beat_if_overdue();
            if is_busy {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn select(&mut self) -> Woken {
        let wake_at = self.state.wake_at(now()).map(instant);
        let Queue { retry_at, slow_at, patient_until, retired_at, .. } = self.queue;
        let at = |at: Option<Instant>| at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            result = committed(&mut self.queue.committing) => Woken::Committed(result),
            report = self.reports.next() => match report {
                Some(report) => Woken::Input(Input::Report(report)),
                None => Woken::KeeperGone,
            },
            Some(answer) = self.queue.answers.1.recv() => Woken::Input(answer),
            call = self.calls.recv() => match call {
                Some(call) => Woken::Input(self.input_of(call)),
                None => Woken::NobodyLeft,
            },
            () = tokio::time::sleep_until(at(wake_at)), if wake_at.is_some() => Woken::Due,
            () = tokio::time::sleep_until(at(retry_at)), if retry_at.is_some() => Woken::Retry,
            () = tokio::time::sleep_until(at(slow_at)), if slow_at.is_some() => Woken::Slow,
            () = tokio::time::sleep_until(at(patient_until)), if patient_until.is_some() => {
                Woken::PatienceOver
            }
            () = tokio::time::sleep_until(at(retired_at)), if retired_at.is_some() => {
                Woken::Retired
            }
        }
    }

    /// What time brings comes when it is due, however much else there is to do.
    fn tick(&mut self) {
        let now = now();
        if self.state.wake_at(now).is_some_and(|at| at <= now.moment) {
            failpoint::reach(Point::TimeCome);
            let effects = self.state.apply(Input::Tick, now);
            self.gather(effects);
        }
    }

    /// Applies an input, and others that are there already: they will share a commit. True: there may be
    /// more, but other tasks come first.
    fn take(&mut self, input: Input) -> bool {
        let begin = Instant::now();
        let mut next = Some(input);
        let mut taken = 0;
        while let Some(input) = next.take() {
            match &input {
                Input::Report(Report::Shutdown) => self.reach(Stage::Stopping),
                Input::Report(Report::Retire) => self.retire(),
                // The caller has left before anything was done.
                Input::Call(_, call) if call.is_abandoned() => {
                    next = self.ready();
                    continue;
                }
                _ => {}
            }
            next = self.state.overtaken(&input);
            if let Some(input) = self.delay_output(input) {
                let request = self.request.take();
                let effects = within(request.as_ref(), || self.state.apply(input, now()));
                self.gather(effects);
            }
            taken += 1;
            if next.is_some() {
                continue;
            }
            if taken >= MOST_AT_ONCE || begin.elapsed() >= MAX_BATCH_TIME {
                return true;
            }
            next = self.ready();
        }
        false
    }

    /// Another server takes over. Nothing is recorded of that.
    fn retire(&mut self) {
        self.queue.retired_at = Some(Instant::now() + FINISHING);
        self.reach(Stage::Retiring);
    }

    /// An input that is there already.
    fn ready(&mut self) -> Option<Input> {
        let report = self.reports.try_next().map(Input::Report);
        let answer = report.or_else(|| self.queue.answers.1.try_recv().ok());
        answer.or_else(|| {
            let call = self.calls.try_recv().ok()?;
            Some(self.input_of(call))
        })
    }

    fn input_of(&mut self, call: QueuedCall) -> Input {
        let QueuedCall { caller, request, call, _place } = call;
        self.request = request;
        Input::Call(caller, call)
    }

    /// Keeps what follows until it is committed. While that fails or takes long, what changes
    /// nothing and what is asked of the keeper does not wait: who is to be ended must end, recorded
    /// or not.
    fn gather(&mut self, mut effects: Effects) {
        if self.queue.retry_at.is_some() || self.queue.slow {
            let urgent = effects.take_urgent();
            self.perform(urgent);
        }
        self.queue.gathered.append(effects);
    }

    /// Commits what was gathered, if no commit is under way; without changes it is done at once.
    fn flush(&mut self) {
        if self.queue.committing.is_some()
            || self.queue.retry_at.is_some()
            || self.queue.gathered.is_empty()
        {
            return;
        }
        if self.queue.gathered.patient {
            let until = &mut self.queue.patient_until;
            until.get_or_insert_with(|| Instant::now() + PATIENCE);
            return;
        }
        self.queue.patient_until = None;
        let mut effects = std::mem::take(&mut self.queue.gathered);
        let changes = std::mem::take(&mut effects.changes);
        if changes.is_empty() {
            self.perform(effects);
            return;
        }
        // The changes go along and come back should they fail: see `committed`.
        effects.changes = changes.clone();
        failpoint::reach(Point::CommitHanded);
        self.queue.committing = Some((self.store.commit(changes), effects));
        let now = Instant::now();
        (self.queue.began, self.queue.slow_at) = (Some(now), Some(now + SLOW));
    }

    fn committed(&mut self, result: Result<(), StoreError>) {
        let Some((_, mut effects)) = self.queue.committing.take() else { return };
        (self.queue.slow_at, self.queue.slow) = (None, false);
        let began = self.queue.began.take();
        let Err(error) = result else {
            began.iter().for_each(|began| self.metrics.committed(began.elapsed()));
            failpoint::reach(Point::CommitHeard);
            let failures = std::mem::take(&mut self.queue.failures);
            if failures > 0 {
                tracing::info!(failures, "commits succeed again");
            }
            self.perform(effects);
            return;
        };
        if self.queue.failures == 0 {
            tracing::error!(%error, "a commit failed and will be tried again");
        }
        self.queue.failures += 1;
        self.metrics.not_committed();
        effects.append(std::mem::take(&mut self.queue.gathered));
        let refused = self.state.not_committed(&mut effects, &error.to_string());
        let mut urgent = effects.take_recovered();
        urgent.append(effects.take_urgent());
        self.queue.gathered = effects;
        self.queue.retry_at = Some(Instant::now() + RETRY);
        self.perform(urgent);
        self.perform(refused);
    }

    /// A commit takes long: what cannot wait does not.
    fn hurry(&mut self) {
        (self.queue.slow_at, self.queue.slow) = (None, true);
        if *self.stage.borrow() == Stage::Recovering
            && let Some((_, effects)) = &mut self.queue.committing
        {
            // Nobody was let in yet: all of it was there before.
            let recovered = effects.take_recovered();
            self.perform(recovered);
        }
        let committing = self.queue.committing.iter_mut().map(|(_, effects)| effects);
        let urgent: Vec<Effects> = committing
            .chain([&mut self.queue.gathered])
            .filter(|effects| !effects.changes.is_empty())
            .map(Effects::take_urgent)
            .collect();
        urgent.into_iter().for_each(|urgent| self.perform(urgent));
    }

    fn perform(&mut self, effects: Effects) {
        for action in effects.actions {
            self.act(action);
        }
        failpoint::reach(Point::Performed);
    }

    /// Tells how far the supervisor is. It only ever goes on.
    fn reach(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let further = *now < stage;
            *now = stage.max(*now);
            further
        });
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Enter(entry) => self.registry.enter(&entry),
            Action::Publish(entry, seen) => entry.publish(seen),
            Action::Finish(record) => {
                self.registry.finished(record.birth);
                self.remove_output(record);
            }
            Action::Leave(record) => {
                self.registry.leave(&record);
                // A descendant may have written it after the end.
                self.remove_output(record);
            }
            Action::Tell(event) => {
                tracing::debug!(seq = event.seq, process = %event.record.id, "{:?}", event.kind);
                self.metrics.told(&event);
                self.events.publish(event);
                failpoint::reach(Point::EventTold);
            }
            Action::Spawn { record, earlier } => self.spawn(record, earlier),
            Action::Probe { record, entry, held } => self.probe(&record, &entry, held),
            // The task of the attempt asks the keeper, or says that it does not.
            Action::BeginAttempt(attempt) => drop(attempt.send(())),
            Action::Ask { id, by, key, ask } => self.ask(id, &by, key, ask),
            Action::AskLeftovers { id, leftovers, ask } => self.ask_leftovers(id, leftovers, ask),
            Action::KillRest { key, seen } => self.kill_rest(key, seen),
            Action::Release(key) => self.release(key),
            Action::KillStray { id, by, key } => self.free_rest(id, &by, key, Vec::new()),
            Action::FreeRest { id, by, key, replies } => self.free_rest(id, &by, key, replies),
            Action::Archive { record, key, ring } => self.archive(record, key, ring),
            Action::RemoveTranscript { birth, run } => self.remove_transcript(birth, run),
            Action::RemoveScript(record) => self.remove_script(record),
            // Whoever asked may have gone: a process is not theirs to take along.
            Action::AnswerStart(reply, answer) => drop(reply.send(answer)),
            Action::AnswerKill(reply, answer) => drop(reply.send(answer)),
            Action::AnswerKillAll(reply, answers) => drop(reply.send(Ok(answers))),
            Action::AnswerDelete(reply, answer) => drop(reply.send(answer)),
            Action::EndOutputTurn(turn) => drop(turn),
            Action::Recovered => self.reach(Stage::Serving),
            Action::AllOver => self.reach(Stage::AllOver),
        }
    }
}

/// How the commit under way fared; never, if there is none.
async fn committed(committing: &mut Option<(Commit, Effects)>) -> Result<(), StoreError> {
    match committing {
        Some((commit, _)) => commit.await,
        None => std::future::pending().await,
    }
}

/// The time.
pub(super) fn now() -> Now {
    let monotonic = clock_gettime(ClockId::Monotonic);
    let nanos = |seconds: i64, nanos: i64| {
        seconds.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(nanos.cast_unsigned())
    };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        moment: nanos(monotonic.tv_sec, monotonic.tv_nsec),
        wall: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// A moment as the runtime's timers know it, an hour ahead at most: then one looks again.
fn instant(moment: u64) -> Instant {
    let ahead = Duration::from_nanos(moment.saturating_sub(now().moment));
    Instant::now() + ahead.min(Duration::from_secs(3600))
}
