//! Printers: processes that live all the time and print numbered lines, and who reads them.
//!
//! Each is read by a follower that comes again after each break with its cursor, or by repeated
//! reads, or by two of them. Everybody must see every line once, up to the last.

use std::sync::Arc;
use std::time::Duration;

use procyard::grpc::pb::{self, follow_response::Message};
use tokio::task::JoinSet;

use crate::calls::{Caller, Failure, STUCK};
use crate::promise::Promise;
use crate::transcript::Transcript;
use crate::world::{Client, Counts, World};
use crate::{play, specs};

/// How many there are.
const PRINTERS: u64 = 50;
/// Size of their transcripts: what they print in minutes, so that no outage drops anything, and in a
/// long run all the same something to be dropped.
const TRANSCRIPT: u64 = 1 << 20;
/// How long a read waits for news.
const POLL: Duration = Duration::from_secs(2);

pub(crate) fn spawn(world: &Arc<World>, load: &mut JoinSet<()>) {
    for number in 0..PRINTERS {
        load.spawn(printer(Caller::new(world, "printer", number), number));
    }
}

async fn printer(mut caller: Caller, number: u64) {
    let world = caller.world.clone();
    let (lines, pause) = (1 + caller.random.below(5), 20 + caller.random.below(80));
    let program = play::command(&["print", &lines.to_string(), &pause.to_string()]);
    let Ok(program) = program else { return world.violation(format!("printer: {program:?}")) };
    let (id, spec) = specs::new(&world, "printer", &Promise::exits(0), specs::argv(program));
    let io = if number.is_multiple_of(2) { None } else { specs::terminal() };
    let spec = pb::Spec { io, transcript_bytes: TRANSCRIPT, ..spec };
    if caller.start(specs::start(&id, &spec, None)).await.is_none() {
        return;
    }
    Counts::add(&world.counts.starts, 1);
    let second = (number % 10 == 3).then(|| {
        let another = Caller::new(&world, "second follower", number);
        tokio::spawn(follow_to_the_end(another, id.clone()))
    });
    if number % 5 == 2 {
        read_to_the_end(&mut caller, &id).await;
    } else {
        follow_to_the_end(caller, id).await;
    }
    if let Some(second) = second {
        let _ = second.await;
    }
}

async fn follow_to_the_end(mut caller: Caller, id: String) {
    let mut transcript = Transcript::new();
    follow(&mut caller, &id, &mut transcript).await;
    caller.world.check(&id, transcript.whole());
}

/// Follows a process to its end, across all breaks.
pub(crate) async fn follow(caller: &mut Caller, id: &str, transcript: &mut Transcript) {
    let what = format!("Follow of {id}");
    loop {
        let since_seq = Some(transcript.next_seq);
        let follow = |mut client: Client| {
            let heartbeat_interval = Some(specs::span(Duration::from_secs(1)));
            let id = id.to_owned();
            let request =
                pb::FollowRequest { id, since_seq, heartbeat_interval, ..Default::default() };
            async move { client.follow(request).await }
        };
        let answer = caller.ask(&what, follow).await;
        let Some(mut stream) = caller.granted(&what, answer) else { return };
        loop {
            let message = match tokio::time::timeout(STUCK, stream.message()).await {
                Ok(Ok(Some(message))) => message.message,
                Ok(Ok(None)) => return wrong(caller, &what, "ended without an end"),
                Ok(Err(status)) => match caller.failure(&what, &status) {
                    Failure::Broken => break,
                    failure => return wrong(caller, &what, &format!("{failure:?}")),
                },
                Err(_) => return wrong(caller, &what, "neither news nor a heartbeat"),
            };
            match message {
                Some(Message::Chunk(chunk)) => take(caller, id, transcript, &[chunk]),
                Some(Message::Heartbeat(_)) => {}
                Some(Message::End(end)) => {
                    let process = end.process.unwrap_or_default();
                    return caller.world.check(id, Promise::kept(&process));
                }
                other => return wrong(caller, &what, &format!("{other:?}")),
            }
        }
        caller.pause().await;
    }
}

/// Reads a process to its end, one read after the other.
async fn read_to_the_end(caller: &mut Caller, id: &str) {
    let mut transcript = Transcript::new();
    let what = format!("Read of {id}");
    loop {
        let since_seq = Some(transcript.next_seq);
        let read = |mut client: Client| {
            let (id, wait) = (id.to_owned(), Some(specs::span(POLL)));
            let request = pb::ReadRequest { id, since_seq, wait, ..pb::ReadRequest::default() };
            async move { client.read(request).await }
        };
        let answer = caller.ask(&what, read).await;
        let Some(answer) = caller.granted(&what, answer) else { return };
        if let Some(gap) = answer.gap {
            return wrong(caller, &what, &format!("{gap:?}"));
        }
        take(caller, id, &mut transcript, &answer.chunks);
        let next = answer.cursor.map_or(0, |cursor| cursor.next_seq);
        if next != transcript.next_seq {
            let found = format!("expected cursor {}, found {next}", transcript.next_seq);
            return wrong(caller, &what, &found);
        }
        if answer.ended {
            return caller.world.check(id, transcript.whole());
        }
    }
}

fn take(caller: &Caller, id: &str, transcript: &mut Transcript, chunks: &[pb::Chunk]) {
    let before = transcript.lines;
    for chunk in chunks {
        caller.world.check(id, transcript.take(chunk));
    }
    Counts::add(&caller.world.counts.lines, transcript.lines - before);
}

fn wrong(caller: &Caller, what: &str, how: &str) {
    caller.world.violation(format!("{what}: {how}"));
}
