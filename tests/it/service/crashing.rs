//! The server dies between any two steps of what it does: the next one ends in a state that the
//! contract allows, and a call that is made again agrees with it.
//!
//! Owns the world that a crash happens in, and what must be true after every one. What is crashed
//! is in the files below, each operation with the points that it passes. With `failpoints` only.

mod completing;
mod ending;
mod new_keeper;
mod rerunning;
mod starting;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use procyard::failpoint::Point;
use procyard::grpc::pb::{self, Kind, State};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::service::*;
use crate::support::{Gate, alive, soon, until};

/// Where a server is ended: at the nth time that it comes there.
type At = (Point, u32);

/// Worlds at a time. Each waits for its processes most of the time.
const WORLDS: usize = 4;

/// The points that an operation passes, in their order.
struct Points {
    /// The last step before which what was asked for is not recorded.
    unrecorded: &'static [At],
    /// What was asked for is recorded.
    recorded: &'static [At],
    /// The server is ended, and the next one on its way back, too.
    twice: &'static [(At, At)],
}

/// All that any operation passes.
const ALL: &[&Points] = &[
    &starting::START,
    &starting::BROKEN,
    &starting::SCRIPT,
    &starting::QUEUE,
    &starting::ADMIT,
    &completing::COMPLETE,
    &completing::SILENT,
    &completing::FILE,
    &completing::RESTART,
    &ending::KILL,
    &ending::STUBBORN,
    &ending::KILL_SERVICE,
    &ending::KILL_PAUSED,
    &ending::TIMEOUT,
    &ending::CANCEL,
    &ending::DELETE,
    &ending::DELETE_LIVE,
    &rerunning::RUN,
    &rerunning::FORCE,
    &rerunning::FORCE_FILED,
    &rerunning::FLOOD,
    &rerunning::FLOOD_QUEUED,
];

#[test]
fn there_is_no_point_at_which_no_server_was_ended() {
    let ats = |points: &&Points| {
        let twice = points.twice.iter().flat_map(|(first, then)| [*first, *then]);
        points.unrecorded.iter().chain(points.recorded).copied().chain(twice).collect::<Vec<_>>()
    };
    let passed: HashSet<Point> = ALL.iter().flat_map(ats).map(|(point, _)| point).collect();
    let missing = Point::ALL.iter().filter(|point| !passed.contains(point));
    assert_eq!(missing.collect::<Vec<_>>(), [&Point::CallAsked; 0]);
}

/// Does an operation in as many worlds as it has points, and ends the server of each at another.
async fn at_each<F, D>(points: &Points, operation: F)
where
    F: Fn(World) -> D + Copy + Send + 'static,
    D: Future<Output = ()> + Send + 'static,
{
    let once = |recorded: bool| move |at: &At| (vec![*at], recorded);
    let twice = points
        .twice
        .iter()
        .map(|(first, then)| (vec![*first, *then], !points.unrecorded.contains(first)));
    let unrecorded = points.unrecorded.iter().map(once(false));
    let crashes = unrecorded.chain(points.recorded.iter().map(once(true))).chain(twice);
    let turns = Arc::new(Semaphore::new(WORLDS));
    let mut worlds = JoinSet::new();
    for (crash, recorded) in crashes {
        let turns = Arc::clone(&turns);
        worlds.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let name = format!("{crash:?}");
            let done = tokio::spawn(operation(World::new(crash, recorded))).await;
            done.is_err().then_some(name)
        });
    }
    let failed: Vec<String> = worlds.join_all().await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "ended at {}", failed.join(", or at "));
}

/// A service that will crash.
struct World {
    service: TestService,
    crash: Vec<At>,
    /// What was asked for is recorded when the server is ended.
    recorded: bool,
    gate: Gate,
}

impl World {
    fn new(crash: Vec<At>, recorded: bool) -> World {
        let directory = tempfile::tempdir().unwrap();
        let points = directory.path().join("points");
        std::fs::create_dir(&points).unwrap();
        let change = |command: &mut std::process::Command| {
            command.env("PROCYARD_FAILPOINTS", &points).env("RUST_LOG", "error");
        };
        let child = TestService::command(directory.path(), change).spawn().unwrap();
        let gate = Gate::new(directory.path());
        World { service: TestService { child, directory }, crash, recorded, gate }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.service.directory.path().join(name)
    }

    /// A shell line that leaves a trace of each launch first.
    fn line(&self, line: &str) -> String {
        format!("echo launch >>{}; {line}", self.path("trace").display())
    }

    fn launches(&self) -> usize {
        std::fs::read_to_string(self.path("trace")).unwrap_or_default().lines().count()
    }

    /// A shell line that waits until the gate is opened.
    fn wait(&self) -> String {
        format!("read x <{}", self.gate.path)
    }

    /// Lets one of those who wait go on.
    fn open_gate(&self) {
        std::fs::write(&self.gate.path, "\n").unwrap();
    }

    /// Does something of which the server dies, and finds the next one. What came of it is
    /// nobody's to say: the answer may have been on its way.
    async fn crash<T>(&self, act: impl Future<Output = T>) -> Client {
        for (point, times) in &self.crash {
            self.arm(*point, *times);
        }
        let all = self.crash.len();
        let reached = until("every point was reached", || self.died().len() == all);
        soon(async { tokio::join!(act, reached) }).await;
        self.next_server().await
    }

    /// A client of the server that comes after those that died of a point.
    async fn next_server(&self) -> Client {
        until("the servers are dead", || !self.died().into_iter().any(alive)).await;
        let served = async {
            loop {
                let mut client = self.service.client().await;
                // A server that was dying may have taken the connection.
                if client.get_server_info(pb::GetServerInfoRequest {}).await.is_ok() {
                    return client;
                }
            }
        };
        soon(served).await
    }

    /// Has a server end at the nth time that it comes to a point.
    fn arm(&self, point: Point, times: u32) {
        // All at once: the server may look at any time.
        std::fs::write(self.path("arming"), times.to_string()).unwrap();
        std::fs::rename(self.path("arming"), self.path("points").join(point.name())).unwrap();
    }

    /// The servers that died of a point.
    fn died(&self) -> Vec<u32> {
        let files = std::fs::read_dir(self.path("points")).unwrap().flatten();
        files.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
    }

    /// What must be true after whatever happened, when all that runs is ended and all is freed:
    /// nothing is left of anything, and everything was told once.
    async fn end(self, mut client: Client, launches: usize) {
        self.nothing_is_left(&mut client, launches).await;
        // A server that is to stop waits for its clients.
        drop(client);
        soon(tokio::task::spawn_blocking(|| drop(self))).await.unwrap();
    }

    async fn nothing_is_left(&self, client: &mut Client, launches: usize) {
        let records = list(client).await;
        let live = |process: &&pb::Process| process.state() != State::Exited;
        let pids = records.iter().filter(live).map(|process| process.pid).collect::<HashSet<_>>();
        let lingering = records.iter().flat_map(|process| &process.lingering);
        let known: HashSet<u32> = lingering.map(|one| one.pid).chain(pids.clone()).collect();
        let held = || self.service.inmates().into_iter().collect::<HashSet<_>>();
        until("nobody runs without a record", || held().is_subset(&known)).await;
        assert!(pids.is_subset(&held()), "one is said to run and does not: {records:?}");
        for process in &records {
            soon(client.kill(kill_at_once(&process.id))).await.unwrap();
        }
        until("nobody runs", || self.service.inmates().is_empty()).await;
        self.all_is_filed(client).await;
        assert_eq!(self.launches(), launches, "each launch leaves one trace");
        for files in ["state/scripts", "state/outputs"] {
            until(&format!("{files} is empty"), || is_empty(&self.path(files))).await;
        }
        for pb::Process { id, .. } in records {
            let delete = pb::DeleteRequest { id, ..Default::default() };
            soon(client.delete(delete)).await.unwrap();
        }
        until("no transcript is left", || self.rings() == 0 && self.files() == 0).await;
        told_once(&events(client).await);
    }

    /// When all is over, each transcript is in one file, as it was before, and in no other place.
    async fn all_is_filed(&self, client: &mut Client) {
        let mut before = Vec::new();
        for process in list(client).await {
            before.push((process.id.clone(), kept(client, &process.id).await));
        }
        let printed = before.iter().filter(|(_, chunks)| !chunks.is_empty()).count();
        let filed = || self.rings() == 0 && self.files() == printed;
        until("every transcript is in a file", filed).await;
        for (id, chunks) in before {
            let transcript = get(client, &id).await.transcript.unwrap();
            let bytes: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
            assert_eq!(transcript.total_bytes - transcript.dropped_bytes, bytes as u64);
            assert_eq!(kept(client, &id).await, chunks);
        }
    }

    /// Transcripts that the keeper holds.
    fn rings(&self) -> usize {
        self.ring_files().count()
    }

    fn ring_files(&self) -> impl Iterator<Item = PathBuf> {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.service.child.id())).unwrap();
        let is_ring = |path: &PathBuf| {
            let link = std::fs::read_link(path).unwrap_or_default();
            link.to_string_lossy().starts_with("/memfd:procyard-ring")
        };
        fds.flatten().map(|fd| fd.path()).filter(is_ring)
    }

    /// Files that have, or were to have, transcripts.
    fn files(&self) -> usize {
        std::fs::read_dir(self.path("state/transcripts")).unwrap().count()
    }

    /// Waits until nothing is left in the keeper's memory.
    async fn filed(&self) {
        until("transcripts are in files", || self.rings() == 0).await;
    }
}

/// Each event has a number of its own, and each run completes once and last, but for its deletion.
fn told_once(events: &[pb::Event]) {
    assert!(events.is_sorted_by(|one, next| one.seq < next.seq), "{events:?}");
    let mut over = HashSet::new();
    for event in events {
        let run = (&event.process_id, event.process.as_ref().unwrap().run);
        match event.kind() {
            Kind::Completed => assert!(over.insert(run), "{run:?} has completed twice"),
            Kind::Deleted => assert!(over.contains(&run), "{run:?} has not completed"),
            kind => assert!(!over.contains(&run), "{kind:?} comes after the end of {run:?}"),
        }
    }
}

/// All that is kept of a transcript.
async fn kept(client: &mut Client, id: &str) -> Vec<pb::Chunk> {
    let mut request = pb::ReadRequest { id: id.into(), ..Default::default() };
    let mut chunks = Vec::new();
    loop {
        let answer = soon(client.read(request.clone())).await.unwrap().into_inner();
        assert_eq!(answer.gap, None);
        request.since_seq = Some(answer.cursor.unwrap().next_seq);
        chunks.extend(answer.chunks);
        if answer.ended {
            return chunks;
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

/// A process that must be running, as itself.
fn runs(process: &pb::Process) {
    assert_eq!(process.state(), State::Running);
    assert!(alive(process.pid));
}

/// Waits until it is told that a run of a process was started.
async fn started(client: &mut Client, id: &str, run: u32) {
    let mut watcher = Watcher::since(client, 0).await;
    loop {
        let pb::Event { process_id, process, .. } = watcher.next(Kind::Started).await;
        if process_id == id && process.unwrap().run == run {
            return;
        }
    }
}

/// Waits until a process has printed something, and nothing else.
async fn prints(client: &mut Client, id: &str, text: &str) {
    let all = async {
        while printed(client, id).await != text {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon(all).await;
}

/// A call that is made again: done, or refused because the first one is recorded.
fn again<T: std::fmt::Debug>(world: &World, answer: Result<T, tonic::Status>, why: (Code, &str)) {
    match world.recorded {
        true => assert_eq!(refusal(answer), (why.0, why.1.into())),
        false => drop(answer.unwrap()),
    }
}
