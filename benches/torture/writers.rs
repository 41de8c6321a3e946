//! Writers: processes that return what they are given, and who gives them numbered lines.
//!
//! Each write says where it begins. After a break it is repeated as it was, and what comes back must
//! be the lines, each once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use procyard::grpc::pb::{self, Cause, spec, write_stdin_request::Input};
use tokio::task::JoinSet;

use crate::calls::{Caller, Failure};
use crate::printers::follow;
use crate::promise::Promise;
use crate::specs::{self, until_output};
use crate::transcript::Transcript;
use crate::world::{Client, Counts, World};

/// How many there are.
const WRITERS: u64 = 8;
/// Bytes of one write at most, about.
const MOST: u64 = 6000;
/// Lines that may be on their way there and back: some hundred KiB, below what may pend.
const AHEAD: u64 = 20_000;
/// Longest pause between two writes, in milliseconds.
const PAUSE: u64 = 60;

pub(crate) fn spawn(world: &Arc<World>, load: &mut JoinSet<()>) {
    for number in 0..WRITERS {
        load.spawn(writer(Caller::new(world, "writer", number), number % 2 == 1));
    }
}

async fn writer(mut caller: Caller, on_terminal: bool) {
    let world = caller.world.clone();
    let (promise, line, io) = if on_terminal {
        // What is typed into a raw terminal does not end it.
        let line = "stty raw -echo && echo 0 && exec cat";
        (Promise::ends(Cause::Killed, libc::SIGTERM), line, specs::terminal())
    } else {
        let pipes = pb::Pipes { stdin: true, merge_stderr: false };
        (Promise::exits(0), "echo 0; exec cat", Some(spec::Io::Pipes(pipes)))
    };
    let (id, spec) = specs::new(&world, "writer", &promise, specs::shell(line));
    let spec = pb::Spec { io, transcript_bytes: 1 << 20, ..spec };
    // Before it has said so, a terminal is not raw.
    let Some(_) = caller.start(specs::start(&id, &spec, Some(until_output("0\n")))).await else {
        return;
    };
    Counts::add(&world.counts.starts, 1);
    let returned = Arc::new(AtomicU64::new(0));
    let reading = {
        let reader = Caller::new(&world, "reader", caller.random.below(1000));
        tokio::spawn(read_back(reader, id.clone(), returned.clone()))
    };
    let mut input = Lines { offset: 0, number: 0 };
    while !world.stopped() {
        let pause = caller.random.millis(PAUSE);
        tokio::time::sleep(pause).await;
        if input.number < returned.load(Ordering::Relaxed) + AHEAD {
            let size = 1 + caller.random.below(MOST);
            let data = input.next(if caller.random.percent(80) { size / 50 } else { size });
            if write(&mut caller, &id, &mut input, data).await.is_none() {
                break;
            }
        }
    }
    finish(&mut caller, &id, on_terminal, &mut input).await;
    let _ = reading.await;
}

/// What is written: where it is.
struct Lines {
    offset: u64,
    number: u64,
}

impl Lines {
    /// Lines of about so many bytes, and at least one.
    fn next(&mut self, size: u64) -> Vec<u8> {
        let mut data = Vec::new();
        while data.is_empty() || (data.len() as u64) < size {
            self.number += 1;
            data.extend_from_slice(format!("{}\n", self.number).as_bytes());
        }
        data
    }
}

async fn write(caller: &mut Caller, id: &str, input: &mut Lines, data: Vec<u8>) -> Option<()> {
    let (what, offset) = (format!("WriteStdin to {id}"), input.offset);
    input.offset += data.len() as u64;
    let data = bytes::Bytes::from(data);
    let write = |mut client: Client| {
        let request = pb::WriteStdinRequest {
            id: id.to_owned(),
            input: Some(Input::Data(data.clone())),
            offset: Some(offset),
            ..pb::WriteStdinRequest::default()
        };
        async move { client.write_stdin(request).await }
    };
    let answer = caller.ask(&what, write).await;
    let taken = caller.granted(&what, answer)?.accepted_bytes;
    if taken != input.offset {
        let expected = input.offset;
        caller.world.violation(format!("{what}: expected {expected} bytes taken, found {taken}"));
        return None;
    }
    Counts::add(&caller.world.counts.inputs, 1);
    Some(())
}

/// Says the last line and ends it.
async fn finish(caller: &mut Caller, id: &str, on_terminal: bool, input: &mut Lines) {
    let last = format!("last {}\n", input.number).into_bytes();
    if write(caller, id, input, last).await.is_none() {
        return;
    }
    if on_terminal {
        caller.wait(id, until_output("last [0-9]+\n")).await;
        caller.kill(id, None).await;
        return;
    }
    let (what, offset) = (format!("end of input to {id}"), Some(input.offset));
    let end = |mut client: Client| {
        let id = id.to_owned();
        let request = pb::WriteStdinRequest { id, eof: true, offset, ..Default::default() };
        async move { client.write_stdin(request).await }
    };
    match caller.ask(&what, end).await {
        // An end that was taken, and whose answer was lost, cannot be repeated.
        Err(Failure::Refused(reason)) if reason == "NOT_RUNNING" || reason == "STDIN_NOT_OPEN" => {}
        answer => drop(caller.granted(&what, answer)),
    }
}

/// Follows what comes back, and tells how far that is.
async fn read_back(mut caller: Caller, id: String, returned: Arc<AtomicU64>) {
    let mut transcript = Transcript::new();
    transcript.telling(returned);
    follow(&mut caller, &id, &mut transcript).await;
    caller.world.check(&id, transcript.whole());
}
