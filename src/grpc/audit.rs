//! The audit log: one line for each call that changes something, with who, what, which process and
//! what came of it.
//!
//! Owns its words. What was changed is at level info, and goes to the audit file as well if there is one
//! (`telemetry::audit_file`); `telemetry::changes` bounds the lines of one caller. A call that succeeds and
//! changes nothing, as its ticket says, is not in the audit file, and its lines are bounded like refusals; what was refused is at level warn, and `telemetry::refusals` bounds its
//! lines. Every line has `caller`, `call`, `process` and `result`; that of a kill of many
//! has `selector` and `count` as well. A line has names, ids and labels and nothing that was sent
//! besides: no variable, no input, no code. It is written when what the call changes is decided, or
//! when its client has left; what a Start or WriteStdin waits for afterwards has no line.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use super::clip::clip;
use super::pb;
use crate::access::Caller;
use crate::supervisor::{CallTicket, Supervisor};
use crate::telemetry::refusals::UNCHANGED;
use crate::telemetry::{AUDIT_TARGET, changes, refusals};

/// Most bytes of a name that a caller sent: an id that is one fits.
const NAME: usize = 64;
/// Most bytes of a selector.
const SELECTOR: usize = 256;
/// Processes that are named, of those that one call has ended.
const NAMED: usize = 8;

/// A call that is to have its line.
pub(super) struct Audit {
    caller: Arc<Caller>,
    ticket: Arc<CallTicket>,
    call: &'static str,
    process: String,
    /// Of a kill of many: who was meant, and how many that were.
    selector: Option<String>,
    count: Option<u64>,
    /// The request was converted, and what it asks for may be under way.
    begun: bool,
    /// It has its line, or shall have none.
    done: bool,
}

/// What the line of an answer tells.
pub(super) trait Told {
    /// Ids of the processes that it is about; none: that which was asked for.
    fn processes(&self) -> Option<String> {
        None
    }

    /// How many they are, where there may be many.
    fn count(&self) -> Option<u64> {
        None
    }

    /// What came of the call.
    fn result(&self) -> &'static str {
        "ok"
    }
}

impl Audit {
    /// A call for a process.
    pub(super) fn new(supervisor: &Supervisor, call: &'static str, process: &str) -> Audit {
        let (caller, process) = (Arc::clone(supervisor.caller()), clip(process, NAME));
        let ticket = supervisor.shared_ticket();
        let (selector, count) = (None, None);
        Audit { caller, ticket, call, process, selector, count, begun: false, done: false }
    }

    /// A call to kill.
    pub(super) fn of_kill(supervisor: &Supervisor, request: &pb::KillRequest) -> Audit {
        use pb::kill_request::Target;
        let (id, selector) = match &request.target {
            Some(Target::Id(id)) => (id.as_str(), None),
            Some(Target::Selector(selector)) => ("", Some(clip(&words(selector), SELECTOR))),
            None => ("", None),
        };
        let mut audit = Audit::new(supervisor, "Kill", id);
        audit.selector = selector;
        audit
    }

    /// No line unless the call changes something.
    pub(super) fn only_if(mut self, changes: bool) -> Audit {
        self.done = !changes;
        self
    }

    /// Converts the request, and logs its refusal. A client that cancels meanwhile has changed nothing.
    pub(super) async fn convert<T>(
        &mut self,
        conversion: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        conversion.await.inspect_err(|refused| self.log_refusal(&result(refused)))
    }

    /// Makes the call, and tells what came of it.
    pub(super) async fn of<T: Told>(
        mut self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        self.begun = true;
        let answer = call.await;
        match &answer {
            Ok(answer) => {
                self.process = answer.processes().unwrap_or(std::mem::take(&mut self.process));
                self.count = answer.count().filter(|_| self.selector.is_some());
                match self.ticket.is_changed() {
                    true => self.log_change(answer.result()),
                    false => self.log_unchanged(answer.result()),
                }
            }
            // What was changed has its line, also if that cannot be answered.
            Err(failed) if self.ticket.is_changed() || is_unknown(failed) => {
                self.log_change(&result(failed));
            }
            Err(refused) => self.log_refusal(&result(refused)),
        }
        answer
    }

    fn log_unchanged(&mut self, result: &str) {
        let Audit { caller, call, process, selector, count, .. } = self;
        let (caller, process) = (caller.name.as_str(), process.as_str());
        if std::mem::replace(&mut self.done, true) || !refusals::has_line(caller, UNCHANGED) {
            return;
        }
        let selector = selector.as_deref();
        tracing::info!(name: UNCHANGED, target: AUDIT_TARGET, caller, call, process, result, selector, count);
    }

    fn log_change(&mut self, result: &str) {
        let Audit { caller, call, process, selector, count, .. } = self;
        let (caller, process) = (caller.name.as_str(), process.as_str());
        if std::mem::replace(&mut self.done, true) || !changes::has_line(caller, call) {
            return;
        }
        let selector = selector.as_deref();
        tracing::info!(target: AUDIT_TARGET, caller, call, process, result, selector, count);
    }

    fn log_refusal(&mut self, result: &str) {
        let Audit { caller, call, process, selector, .. } = self;
        let (caller, process) = (caller.name.as_str(), process.as_str());
        if std::mem::replace(&mut self.done, true) || !refusals::has_line(caller, result) {
            return;
        }
        let selector = selector.as_deref();
        tracing::warn!(target: AUDIT_TARGET, caller, call, process, result, selector);
    }
}

impl Drop for Audit {
    /// The client has cancelled. What it asked for is done all the same, if that had begun; if not, the
    /// line is bounded like that of a refusal, because such a call needs no right to change anything.
    fn drop(&mut self) {
        match self.begun {
            true => self.log_change("unanswered"),
            false => self.log_refusal("unanswered"),
        }
    }
}

/// A stay at a process that has begun, whose end is to have its line as well.
pub(super) struct Stay(Arc<Caller>, String);

impl Stay {
    /// Somebody is attached.
    pub(super) fn attached(supervisor: &Supervisor, process: &str) -> Stay {
        Stay(Arc::clone(supervisor.caller()), process.to_owned())
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let Stay(caller, process) = self;
        let (caller, process) = (caller.name.as_str(), process.as_str());
        if changes::has_line(caller, "Attach") {
            let result = "ended";
            tracing::info!(target: AUDIT_TARGET, caller, call = "Attach", process, result);
        }
    }
}

/// Whether a failure leaves open what came of a call: the server ends, and the next one may go on with it.
fn is_unknown(failed: &Status) -> bool {
    failed.code() == Code::Unavailable
}

/// A refusal: its code, and the reason that `status` has given it.
pub(crate) fn result(refused: &Status) -> String {
    let code: Code = refused.code();
    match refused.get_details_error_info() {
        Some(info) => format!("{code:?} {}", info.reason),
        None => format!("{code:?}"),
    }
}

/// What a selector asks for.
fn words(selector: &pb::Selector) -> String {
    let pb::Selector {
        states,
        outcomes,
        r#ref: reference,
        name,
        service,
        owner,
        workspace,
        labels,
        mode,
        queue,
    } = selector;
    let named = [
        ("owner", owner),
        ("workspace", workspace),
        ("ref", reference),
        ("name", name),
        ("service", service),
        ("queue", queue),
    ];
    let named = named.into_iter().filter(|(_, value)| !value.is_empty());
    let named = named.map(|(field, value)| format!("{field}={}", clip(value, NAME)));
    let states = states.iter().map(|state| word(*state, pb::State::as_str_name));
    let outcomes = outcomes.iter().map(|outcome| word(*outcome, pb::Outcome::as_str_name));
    let mode = Some(*mode).filter(|mode| *mode != 0);
    let mode = mode.map(|mode| word(mode, pb::Mode::as_str_name));
    let labels: BTreeMap<_, _> = labels.iter().collect();
    let labels = labels
        .into_iter()
        .map(|(name, value)| format!("label={}={}", clip(name, NAME), clip(value, NAME)));
    let all: Vec<_> = named.chain(states).chain(outcomes).chain(mode).chain(labels).collect();
    if all.is_empty() { "all".into() } else { all.join(" ") }
}

/// The name of an enum's number, if it has one.
fn word<T: TryFrom<i32>>(number: i32, name: fn(&T) -> &'static str) -> String {
    T::try_from(number).map_or_else(|_| number.to_string(), |value| name(&value).to_owned())
}

impl<T: Told> Told for Response<T> {
    fn processes(&self) -> Option<String> {
        self.get_ref().processes()
    }

    fn count(&self) -> Option<u64> {
        self.get_ref().count()
    }

    fn result(&self) -> &'static str {
        self.get_ref().result()
    }
}

impl Told for pb::KillResponse {
    fn processes(&self) -> Option<String> {
        let first = self.processes.iter().take(NAMED).map(|one| one.id.as_str());
        Some(first.collect::<Vec<_>>().join(","))
    }

    fn count(&self) -> Option<u64> {
        Some(self.processes.len() as u64 + self.not_listed)
    }
}

impl Told for pb::ReadResponse {}
impl Told for pb::ResizeResponse {}
impl Told for pb::SignalResponse {}
impl Told for pb::RunResponse {}
impl Told for pb::DeleteResponse {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Error;

    fn process(n: u32) -> pb::Process {
        pb::Process { id: format!("p{n}"), ..Default::default() }
    }

    #[test]
    fn of_many_that_were_killed_the_number_and_the_first_are_told() {
        let killed = |processes: u32, not_listed| {
            let processes = (0..processes).map(process).collect();
            let answer = pb::KillResponse { processes, not_listed, ..Default::default() };
            (answer.count().unwrap(), answer.processes().unwrap())
        };
        assert_eq!(killed(0, 0), (0, String::new()));
        assert_eq!(killed(2, 0), (2, "p0,p1".into()));
        assert_eq!(killed(1, 1), (2, "p0".into()));
        assert_eq!(killed(9, 0), (9, "p0,p1,p2,p3,p4,p5,p6,p7".into()));
    }

    #[test]
    fn a_selector_is_told_in_a_bounded_line() {
        let labels = [("b", "2"), ("a", "1")].map(|(name, value)| (name.into(), value.into()));
        let selector = pb::Selector {
            owner: "o".repeat(100),
            states: vec![pb::State::Running.into(), 99],
            labels: labels.into(),
            ..Default::default()
        };
        let expected = "STATE_RUNNING 99 label=a=1 label=b=2";
        assert_eq!(words(&selector), format!("owner={}… {expected}", "o".repeat(64)));
        assert_eq!(words(&pb::Selector::default()), "all");
    }

    #[test]
    fn a_refusal_is_told_by_its_code_and_reason() {
        assert_eq!(result(&Error::NotFound("a".into()).into()), "NotFound PROCESS_NOT_FOUND");
        assert_eq!(result(&Status::internal("x")), "Internal");
    }
}
