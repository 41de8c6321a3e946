//! What the calls of one caller may hold at a time: places, bytes for requests and answers, screens, a read of
//! stored events.
//!
//! Owns the counting. What streams hold of output that was not sent is bounded apart ([`stream_output`]). A
//! call counts from its headers on until its answer was sent or its client has
//! left; streams count by themselves (`server::call_budget`). Memory for a large answer is reserved before
//! the answer is made, so that a client that does not read its answers holds no more than its
//! caller's budget, and one answer more; so is memory for a record in a message of a stream. A call that waits for room while it holds some could wait for
//! others that do the same: one call of each caller may exceed the budget for that. Threads are shared by `worker_pool`, under the same names of callers.

mod stream_output;

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::error::Error;
use super::quota::{Bound, Quota, Reached};
use super::thread_share::{ThreadShare, ThreadTurn};
use stream_output::{StreamOutput, StreamShare};

/// Bytes of one permit.
const UNIT: usize = 1024;

/// Bytes of each call that are not counted: as many as fit into what a connection buffers anyway.
const FREE_BYTES: usize = 16 << 10;

/// Part of what calls may hold that streams may, besides: they hold only what their clients do not read.
const STREAMS_PART: usize = 4;

/// How long a call waits for answers of the same caller to be read before it is refused.
const BYTES_TIMEOUT: Duration = Duration::from_secs(5);

/// Screens of one caller that are worked out at a time.
const SCREENS_PER_CALLER: usize = 2;

/// Calls of one caller that are on their way to the actor at a time. Each of the others waits in its handler,
/// and leaves no trace when it is cancelled.
const ACTOR_CALLS_PER_CALLER: usize = 4;

/// Reads of one caller from the store that are under way or wait for their turn. All callers' reads follow each
/// other, so with one of each they take turns.
const STORE_READS_PER_CALLER: usize = 1;

/// The budgets of all callers that have calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallerBudgets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_calls: Option<u64>,
    max_bytes: usize,
    bytes_timeout: Duration,
    /// Callers with a call or stream under way.
    callers: Mutex<HashMap<String, Account>>,
}

#[derive(Debug)]
struct Account {
    calls: u64,
    budget: Arc<CallerBudget>,
}

#[derive(Debug)]
struct CallerBudget {
    bytes: Arc<Semaphore>,
    /// The right to exceed `bytes`, which one call has at a time.
    excess: Arc<Semaphore>,
    screens: Arc<Semaphore>,
    store_reads: Semaphore,
    /// The turn of a large request to be decoded.
    large_requests: Arc<Semaphore>,
    actor_calls: Arc<Semaphore>,
    thread: ThreadShare,
    streams: Arc<StreamShare>,
}

/// One call or stream, and what it holds of its caller's budget until this is dropped.
#[derive(Debug)]
pub struct CallTicket {
    budgets: CallerBudgets,
    caller: String,
    budget: Arc<CallerBudget>,
    /// It is a call, not a stream.
    is_call: bool,
    /// It has changed something: it is not refused any more.
    has_changed: AtomicBool,
    held: Mutex<Held>,
    output: StreamOutput,
    /// Bytes that are held for messages of a stream that are not in its data yet.
    message_bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
    excess: Option<OwnedSemaphorePermit>,
}

/// The right of a call to be on its way to the actor.
#[derive(Debug)]
pub(super) struct ActorPlace {
    _permit: OwnedSemaphorePermit,
    _ticket: Arc<CallTicket>,
}

/// What allows a call to hold more.
enum Room {
    Within(OwnedSemaphorePermit),
    Beyond(OwnedSemaphorePermit),
}

impl CallerBudgets {
    /// Budgets by what each caller may have.
    pub fn new(each: Quota) -> CallerBudgets {
        let bytes = each.held_bytes.unwrap_or(u64::MAX);
        let most = Semaphore::MAX_PERMITS.min(u32::MAX as usize) * UNIT;
        let max_bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(most);
        let (max_calls, bytes_timeout) = (each.calls, BYTES_TIMEOUT);
        let callers = Mutex::default();
        CallerBudgets(Arc::new(Shared { max_calls, max_bytes, bytes_timeout, callers }))
    }

    /// A ticket for a call of a caller.
    pub fn enter_call(&self, caller: &str) -> Result<CallTicket, Error> {
        self.enter(caller, true)
    }

    /// A ticket for a stream of a caller, which is not counted here.
    pub fn enter_stream(&self, caller: &str) -> Result<CallTicket, Error> {
        self.enter(caller, false)
    }

    fn enter(&self, caller: &str, is_call: bool) -> Result<CallTicket, Error> {
        let mut callers = self.lock();
        let calls = callers.get(caller).map_or(0, |account| account.calls);
        if let Some(most) = self.0.max_calls.filter(|most| is_call && calls >= *most) {
            let reached = Reached::for_now(Bound::Calls, most, calls, false);
            return Err(Error::TooManyCalls(reached));
        }
        let account = match callers.get_mut(caller) {
            Some(account) => account,
            None => callers.entry(caller.to_owned()).or_insert_with(|| self.account()),
        };
        account.calls += u64::from(is_call);
        let (budget, caller) = (Arc::clone(&account.budget), caller.to_owned());
        let (has_changed, held) = (AtomicBool::new(false), Mutex::default());
        let output = StreamOutput::new(Arc::clone(&budget.streams));
        let (budgets, message_bytes) = (self.clone(), AtomicUsize::new(0));
        Ok(CallTicket {
            budgets,
            caller,
            budget,
            is_call,
            has_changed,
            held,
            output,
            message_bytes,
        })
    }

    fn account(&self) -> Account {
        let bytes = Arc::new(Semaphore::new(self.0.max_bytes.div_ceil(UNIT)));
        let screens = Arc::new(Semaphore::new(SCREENS_PER_CALLER));
        let excess = Arc::new(Semaphore::new(1));
        let store_reads = Semaphore::new(STORE_READS_PER_CALLER);
        let large_requests = Arc::new(Semaphore::new(1));
        let streams = Arc::new(StreamShare::new(self.0.max_bytes / STREAMS_PART));
        let budget = CallerBudget {
            bytes,
            excess,
            screens,
            store_reads,
            large_requests,
            actor_calls: Arc::new(Semaphore::new(ACTOR_CALLS_PER_CALLER)),
            thread: ThreadShare::default(),
            streams,
        };
        Account { calls: 0, budget: Arc::new(budget) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Account>> {
        self.0.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallTicket {
    fn drop(&mut self) {
        let mut callers = self.budgets.lock();
        if let Some(account) = callers.get_mut(&self.caller) {
            account.calls -= u64::from(self.is_call);
            // The account's own and this one: no other call or stream is left.
            if Arc::strong_count(&account.budget) == 2 {
                callers.remove(&self.caller);
            }
        }
    }
}

impl CallTicket {
    /// It is a call, not a stream.
    pub fn is_call(&self) -> bool {
        self.is_call
    }

    /// Reserves room for so many more bytes. Waits for a while until answers of the same caller
    /// were read. What is larger than the whole budget takes all of it.
    pub async fn hold(&self, bytes: usize) -> Result<(), Error> {
        let is_changed = self.is_changed();
        let may_exceed = is_changed || self.lock().permit.is_some();
        self.reserve(bytes, may_exceed, !is_changed).await
    }

    /// Reserves room for a message that arrives, within the budget. Fails if none comes for a while, also when
    /// the call has changed something: the message has not, and what it waits for may wait for data of the same
    /// connection, whose window this message takes.
    pub async fn hold_arriving(&self, bytes: usize) -> Result<(), Error> {
        self.reserve(bytes, false, true).await
    }

    async fn reserve(
        &self,
        bytes: usize,
        may_exceed: bool,
        has_timeout: bool,
    ) -> Result<(), Error> {
        let missing = {
            let held = self.lock();
            let needed = self.units(held.bytes.saturating_add(bytes));
            if held.excess.is_some() { 0 } else { needed.saturating_sub(held.units()) }
        };
        let room = match missing {
            0 => None,
            missing => Some(self.acquire(missing, may_exceed, has_timeout).await?),
        };
        let mut held = self.lock();
        held.bytes = held.bytes.saturating_add(bytes);
        match room {
            Some(Room::Within(more)) => match &mut held.permit {
                Some(permit) => permit.merge(more),
                none => *none = Some(more),
            },
            Some(Room::Beyond(excess)) => held.excess = Some(excess),
            None => {}
        }
        Ok(())
    }

    /// The call has changed something: a refusal would say that it did not.
    pub fn has_changed(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// Whether the call has changed something.
    pub fn is_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Gives so many bytes back.
    pub fn release(&self, bytes: usize) {
        let mut held = self.lock();
        held.bytes = held.bytes.saturating_sub(bytes);
        let needed = self.units(held.bytes);
        if needed <= held.units() {
            held.excess = None;
        }
        let unused = held.units().saturating_sub(needed) as usize;
        drop(held.permit.as_mut().and_then(|permit| permit.split(unused)));
    }

    /// Bytes that this stream may hold at present of output that was not sent, and that it or this call may
    /// read from a file in advance.
    pub fn stream_room(&self) -> usize {
        self.output.room()
    }

    /// Ready when this stream may make its next message.
    pub fn poll_stream_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.output.poll_room(cx)
    }

    /// This stream has made a message of so many bytes.
    pub fn message_made(&self, bytes: usize) {
        self.output.made(bytes);
    }

    /// So many bytes of this stream's messages were sent, or will never be.
    pub fn output_sent(&self, bytes: usize) {
        self.output.sent(bytes);
    }

    /// This call or stream keeps so many bytes that it has read from a file in advance. False: it may not.
    pub(super) fn keep_read_ahead(&self, bytes: usize) -> bool {
        self.output.keep_read_ahead(bytes)
    }

    /// So many of the held bytes are for the message of a stream that is made now. They are given back when the
    /// stream's next data, which has that message, was sent.
    pub fn release_when_sent(&self, bytes: usize) {
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes to be given back when data that is made now was sent.
    pub fn take_message_bytes(&self) -> usize {
        self.message_bytes.swap(0, Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// The turn of this call among those of its caller that read stored events.
    pub(super) async fn store_turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.budget.store_reads.acquire().await.map_err(|_| Error::ShuttingDown)
    }

    /// The turn of this call among those of its caller whose large requests are decoded.
    pub async fn large_request_turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let turn = Arc::clone(&self.budget.large_requests).acquire_owned().await;
        turn.map_err(|_| Error::ShuttingDown)
    }

    /// The place of this call among those of its caller that are on their way to the actor. The call counts as one
    /// of its caller's until this is dropped, also when it is cancelled.
    pub(super) async fn actor_place(self: &Arc<Self>) -> Result<ActorPlace, Error> {
        let permit = Arc::clone(&self.budget.actor_calls).acquire_owned().await;
        let permit = permit.map_err(|_| Error::ShuttingDown)?;
        Ok(ActorPlace { _permit: permit, _ticket: Arc::clone(self) })
    }

    /// The turn of this call or stream among those of its caller that do something on the server's thread.
    pub(super) async fn thread_turn(&self) -> ThreadTurn<'_> {
        self.budget.thread.turn().await
    }

    /// The turn of this call among the screens of its caller.
    pub(super) async fn screen_turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let turn = Arc::clone(&self.budget.screens).acquire_owned().await;
        turn.map_err(|_| Error::ShuttingDown)
    }

    /// Waits for room. A call that may exceed the budget does so when no other call does.
    async fn acquire(
        &self,
        units: u32,
        may_exceed: bool,
        has_timeout: bool,
    ) -> Result<Room, Error> {
        let CallerBudget { bytes, excess, .. } = &*self.budget;
        let within = Arc::clone(bytes).acquire_many_owned(units);
        let beyond = async {
            match may_exceed {
                true => Arc::clone(excess).acquire_owned().await,
                false => pending().await,
            }
        };
        let acquired = async {
            tokio::select! {
                biased;
                permit = within => permit.map(Room::Within),
                permit = beyond => permit.map(Room::Beyond),
            }
        };
        let acquired = match has_timeout {
            true => timeout(self.budgets.0.bytes_timeout, acquired).await,
            false => Ok(acquired.await),
        };
        match acquired {
            Ok(room) => room.map_err(|_| Error::ShuttingDown),
            Err(_) => Err(self.too_many_bytes()),
        }
    }

    fn too_many_bytes(&self) -> Error {
        let most = self.budgets.0.max_bytes;
        let free = self.budget.bytes.available_permits() * UNIT;
        let used = most.saturating_sub(free);
        let (most, used) = (most as u64, used as u64);
        Error::TooManyCalls(Reached::for_now(Bound::HeldBytes, most, used, false))
    }

    /// Permits for so many bytes.
    fn units(&self, bytes: usize) -> u32 {
        let counted = bytes.saturating_sub(FREE_BYTES).min(self.budgets.0.max_bytes);
        u32::try_from(counted.div_ceil(UNIT)).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn units(&self) -> u32 {
        let units = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MEBIBYTE: usize = 1 << 20;

    fn budgets(calls: u64, bytes: usize) -> CallerBudgets {
        let (calls, held_bytes) = (Some(calls), Some(bytes as u64));
        let budgets = CallerBudgets::new(Quota { calls, held_bytes, ..Quota::default() });
        let mut shared = Arc::into_inner(budgets.0).unwrap();
        shared.bytes_timeout = Duration::from_millis(10);
        CallerBudgets(Arc::new(shared))
    }

    /// Whether a call could go on its way to the actor at once.
    fn actor_place(ticket: CallTicket) -> Option<ActorPlace> {
        Arc::new(ticket).actor_place().now_or_never().map(Result::unwrap)
    }

    #[test]
    fn few_calls_of_one_caller_are_on_their_way_to_the_actor() {
        let budgets = budgets(ACTOR_CALLS_PER_CALLER as u64 + 1, MEBIBYTE);
        let mut places = Vec::new();
        for _ in 0..ACTOR_CALLS_PER_CALLER {
            places.push(actor_place(budgets.enter_call("a").unwrap()).unwrap());
        }
        assert!(actor_place(budgets.enter_call("a").unwrap()).is_none());
        assert!(actor_place(budgets.enter_call("b").unwrap()).is_some());
        // The calls have gone. They count as long as the actor has not passed them.
        let _another = budgets.enter_call("a").unwrap();
        assert!(budgets.enter_call("a").is_err());
        places.pop();
        assert!(actor_place(budgets.enter_call("a").unwrap()).is_some());
    }

    fn limit(refused: Error) -> (Bound, u64) {
        let Error::TooManyCalls(reached) = refused else { panic!("{refused}") };
        assert!(reached.retry.is_some() && !reached.of_all);
        (reached.what, reached.most)
    }

    #[test]
    fn call_counts_until_its_ticket_is_dropped() {
        let budgets = budgets(2, MEBIBYTE);
        let first = budgets.enter_call("a").unwrap();
        let _second = budgets.enter_call("a").unwrap();
        assert_eq!(limit(budgets.enter_call("a").unwrap_err()), (Bound::Calls, 2));
        // Streams have their own bound, and other callers their own budget.
        let stream = budgets.enter_stream("a").unwrap();
        drop(budgets.enter_call("b").unwrap());
        drop(first);
        drop(budgets.enter_call("a").unwrap());
        assert_eq!(budgets.lock().keys().collect::<Vec<_>>(), ["a"]);
        drop((_second, stream));
        assert!(budgets.lock().is_empty());
    }

    #[tokio::test]
    async fn call_is_refused_when_no_room_comes() {
        let budgets = budgets(9, 3 * MEBIBYTE);
        let (first, second) = (budgets.enter_call("a").unwrap(), budgets.enter_call("a").unwrap());
        first.hold(2 * MEBIBYTE).await.unwrap();
        second.hold(FREE_BYTES).await.unwrap();
        let refused = second.hold(2 * MEBIBYTE).await.unwrap_err();
        assert_eq!(limit(refused), (Bound::HeldBytes, 3 * MEBIBYTE as u64));
        let both = tokio::join!(biased; second.hold(2 * MEBIBYTE), async {
            first.release(MEBIBYTE);
        });
        assert_eq!(both.0, Ok(()));
        drop((first, second));
        // More than there is takes all there is.
        let third = budgets.enter_call("a").unwrap();
        third.hold(100 * MEBIBYTE).await.unwrap();
        third.release(100 * MEBIBYTE);
        budgets.enter_call("a").unwrap().hold(3 * MEBIBYTE).await.unwrap();
    }

    #[tokio::test]
    async fn one_call_that_has_changed_something_exceeds_the_budget() {
        let budgets = budgets(9, 3 * MEBIBYTE);
        let [unread, first, second] = [(); 3].map(|()| budgets.enter_call("a").unwrap());
        unread.hold(3 * MEBIBYTE).await.unwrap();
        first.has_changed();
        second.has_changed();
        first.hold(MEBIBYTE).await.unwrap();
        first.hold(MEBIBYTE).await.unwrap();
        let is_waiting = timeout(Duration::from_millis(50), second.hold(MEBIBYTE)).await.is_err();
        assert!(is_waiting);
        first.release(2 * MEBIBYTE);
        second.hold(MEBIBYTE).await.unwrap();
    }

    #[tokio::test]
    async fn message_that_arrives_is_refused_without_room_after_a_change_too() {
        let budgets = budgets(9, 3 * MEBIBYTE);
        let [unread, call] = [(); 2].map(|()| budgets.enter_call("a").unwrap());
        unread.hold(2 * MEBIBYTE).await.unwrap();
        call.has_changed();
        call.hold_arriving(MEBIBYTE / 2).await.unwrap();
        let waited = timeout(Duration::from_secs(10), call.hold_arriving(2 * MEBIBYTE)).await;
        assert_eq!(limit(waited.unwrap().unwrap_err()), (Bound::HeldBytes, 3 * MEBIBYTE as u64));
        assert_eq!(call.held_bytes(), MEBIBYTE / 2);
    }

    #[tokio::test]
    async fn calls_that_hold_bytes_do_not_wait_for_each_other() {
        let budgets = budgets(9, 3 * MEBIBYTE);
        let [first, second] = [(); 2].map(|()| budgets.enter_call("a").unwrap());
        let more = async |call: CallTicket| {
            call.has_changed();
            call.hold(MEBIBYTE).await
        };
        let half = 3 * MEBIBYTE / 2;
        first.hold(half).await.unwrap();
        second.hold(half).await.unwrap();
        let both = async { tokio::join!(more(first), more(second)) };
        let both = timeout(Duration::from_secs(10), both).await.unwrap();
        assert_eq!(both, (Ok(()), Ok(())));
    }
}
