//! Watchers: who is told of every event, across all breaks, and holds them against each other.
//!
//! One watches everything and must see every number; one watches an owner. Each follows the life of
//! every process by `life`, and at the end, when nothing happens any more, asks for all events that
//! are kept once more: they must be the same.

mod life;

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use procyard::grpc::pb::{self, watch_response::Message};
use tokio::task::JoinSet;

use crate::calls::{Caller, Failure, STUCK};
use crate::specs;
use crate::world::{Client, Counts, World};
use life::Life;

/// Events that are compared at the end: as many as a server keeps.
const COMPARED: usize = 100_000;

pub(crate) fn spawn(world: &Arc<World>) -> JoinSet<()> {
    let mut watchers = JoinSet::new();
    for (number, owner) in [None, Some("odd")].into_iter().enumerate() {
        let caller = Caller::new(world, "watcher", number as u64);
        let watcher = Watcher {
            caller,
            owner,
            seen: 0,
            kept: VecDeque::new(),
            lives: HashMap::new(),
            known: 0,
        };
        watchers.spawn(watcher.watch());
    }
    watchers
}

struct Watcher {
    caller: Caller,
    owner: Option<&'static str>,
    /// The last event.
    seen: u64,
    /// Numbers and contents of the newest ones.
    kept: VecDeque<(u64, u64)>,
    /// Of processes that were not deleted yet.
    lives: HashMap<String, Life>,
    /// Processes that it was ever told of.
    known: u64,
}

impl Watcher {
    /// Watches until the world has stopped and all that happened was told.
    async fn watch(mut self) {
        while let Some(newest) = self.until_broken().await {
            if newest > 0 {
                return self.end(newest).await;
            }
            self.caller.pause().await;
        }
    }

    /// 0: the stream broke. Another number: the world has settled, and that is the newest event.
    /// None: there is no use to go on.
    async fn until_broken(&mut self) -> Option<u64> {
        let mut stream = self.open(self.seen, false).await?;
        loop {
            let message = match tokio::time::timeout(STUCK, stream.message()).await {
                Ok(Ok(Some(message))) => message.message,
                Ok(Err(status)) => match self.caller.failure("Watch", &status) {
                    Failure::Broken => return Some(0),
                    failure => return self.wrong(format!("{failure:?}")),
                },
                Ok(Ok(None)) => return self.wrong("ended by itself".into()),
                Err(_) => return self.wrong("neither news nor a heartbeat".into()),
            };
            match message {
                Some(Message::Event(event)) => self.event(&event),
                Some(Message::Heartbeat(heartbeat)) => {
                    // It is how far the stream is, also over events of others.
                    let newest = self.caller.world.settled();
                    if newest.is_some_and(|newest| heartbeat.seq >= newest) {
                        return newest;
                    }
                }
                other => return self.wrong(format!("{other:?}")),
            }
        }
    }

    async fn open(
        &mut self,
        after: u64,
        replay_only: bool,
    ) -> Option<tonic::Streaming<pb::WatchResponse>> {
        let owner = self.owner.unwrap_or_default().to_owned();
        let request = pb::WatchRequest {
            selector: Some(pb::Selector { owner, ..pb::Selector::default() }),
            since_event: Some(after),
            heartbeat_interval: Some(specs::span(Duration::from_secs(1))),
            replay_only,
            ..pb::WatchRequest::default()
        };
        let watch = |mut client: Client| {
            let request = request.clone();
            async move { client.watch(request).await }
        };
        let answer = self.caller.ask("Watch", watch).await;
        self.caller.granted("Watch", answer)
    }

    fn event(&mut self, event: &pb::Event) {
        let world = self.caller.world.clone();
        let expected = self.seen + 1;
        let in_order =
            if self.owner.is_none() { event.seq == expected } else { event.seq >= expected };
        if !in_order {
            let (seq, id) = (event.seq, &event.process_id);
            world.violation(format!("{id}: expected event {expected}, found {seq}"));
        }
        self.seen = event.seq;
        self.kept.push_back((event.seq, digest(event)));
        if self.kept.len() > COMPARED {
            self.kept.pop_front();
        }
        self.live(event);
        if self.owner.is_none() {
            Counts::add(&world.counts.events, 1);
        }
    }

    /// The event as a part of its process's life.
    fn live(&mut self, event: &pb::Event) {
        let world = self.caller.world.clone();
        let id = &event.process_id;
        if !world.knows(id) {
            return world
                .violation(format!("{id}: event {} of one that nobody started", event.seq));
        }
        let life = self.lives.entry(id.clone()).or_insert_with(|| {
            self.known += 1;
            Life::new()
        });
        world.check(id, life.take(event));
        if event.kind() == pb::Kind::Deleted {
            world.check(id, life.over());
            self.lives.remove(id);
        }
    }

    /// Everything was told: is it all, and is it the same when it is told again?
    async fn end(&mut self, newest: u64) {
        let world = self.caller.world.clone();
        for (id, life) in &self.lives {
            world.check(id, life.settled());
        }
        let (begun, known) = (world.begun(self.owner), self.known);
        if begun != known {
            self.wrong::<()>(format!("expected events of {begun} processes, found {known}"));
        }
        let Some(mut stream) = self.open(0, true).await else { return };
        let kept = std::mem::take(&mut self.kept);
        // The server may keep some more than were kept here.
        let oldest = kept.front().map_or(u64::MAX, |(seq, _)| *seq);
        let mut kept = kept.into_iter();
        let mut told = 0;
        loop {
            match stream.message().await {
                Ok(None) => break,
                Ok(Some(pb::WatchResponse { message: Some(Message::Event(event)) })) => {
                    told = event.seq;
                    let found = Some((event.seq, digest(&event)));
                    if told >= oldest && kept.find(|(seq, _)| *seq >= told) != found {
                        self.wrong::<()>(format!("event {} is told otherwise again", event.seq));
                    }
                }
                // What is no longer kept was not compared either.
                Ok(Some(_)) => {}
                Err(status) => {
                    self.wrong::<()>(format!("again: {status}"));
                    return;
                }
            }
        }
        if self.owner.is_none() && told != newest {
            self.wrong::<()>(format!("again: expected events up to {newest}, found {told}"));
        }
    }

    fn wrong<T>(&self, what: String) -> Option<T> {
        let owner = self.owner.map(|owner| format!(" of {owner}")).unwrap_or_default();
        self.caller.world.violation(format!("Watch{owner} after event {}: {what}", self.seen));
        None
    }
}

/// What an event says, but for what grows with its process.
fn digest(event: &pb::Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    let process = event.process.as_ref();
    event.process_id.hash(&mut hasher);
    event.kind.hash(&mut hasher);
    event.time.map(|time| (time.seconds, time.nanos)).hash(&mut hasher);
    process
        .map(|process| (process.run, process.restarts, process.state, process.pid))
        .hash(&mut hasher);
    hasher.finish()
}
