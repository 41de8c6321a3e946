//! The keeper as the server sees it: a handle with a verb for everything that can be asked.
//!
//! Owns the connection (`connection`, `link`) and the way to a process's output (`output`). Knows no
//! policy: it asks, and it tells what was answered and what was reported. Output never passes
//! through here: the keeper's reports say how far a ring has grown, and whoever reads it reads
//! the shared memory.

mod connection;
mod growth;
mod link;
mod output;

use std::io;
use std::os::unix::net::UnixStream;

use tokio::sync::{mpsc, oneshot};

use crate::failpoint::{self, Point};
use crate::process::{
    Descendant, Enforceable, Exit, InputState, KillDomain, Launch, Parts, Refused, Size,
    TreeSignal, step,
};
use crate::protocol::{self, Version, pb};
use connection::{Answered, Ask, Connection, Request};
use link::Link;
use pb::to_keeper::Body;

pub use growth::Growth;
pub use link::Heartbeat;
pub use output::{Follower, Output, Progress};

/// Requests on their way to the connection. More callers than this wait for their place: each
/// of them is waiting for an answer anyway.
const ASKS: usize = 256;

/// A handle to the keeper. Cheap to clone; when the last one is gone the connection ends.
#[derive(Clone)]
pub struct Keeper {
    asks: mpsc::Sender<Ask>,
    version: Version,
    growth: Growth,
    heartbeat: Heartbeat,
}

/// Why a request brought no answer to its question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeeperError {
    /// The keeper said no, and nothing changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The keeper is gone, and whether it was done is not known.
    #[error("the connection to the keeper is gone")]
    Disconnected,
}

/// What the keeper said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of the protocol that is spoken.
    pub version: u32,
    /// Its pid.
    pub pid: u32,
    /// How it ends trees.
    pub kill_domain: KillDomain,
    /// Which limits of whole trees it can enforce.
    pub limits: Enforceable,
    /// Which parts of a sandbox it can put up; none: it is too old to confine anyone.
    pub sandbox: Option<Parts>,
    /// Servers that it has started, this one among them; 0: it is too old to count them, or starts
    /// none.
    pub server_starts: u64,
}

/// A launch as it is sent to the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EncodedLaunch(Request);

impl EncodedLaunch {
    /// Bytes that are sent.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// A process that was started.
#[derive(Clone, Debug)]
pub struct Spawned {
    /// The keeper's number for it.
    pub key: u64,
    /// Its pid: information, never identity.
    pub pid: u32,
    /// When it was started, nanoseconds since 1970.
    pub start_time: u64,
    /// An earlier spawn of the same id and run had started it.
    pub existed: bool,
    /// The earlier run that it goes on from. It was released, and whoever waits for more of its
    /// output is told that there is none; what it printed stands before the new run's.
    pub continued: Option<u64>,
    /// The way to its output.
    pub output: Output,
}

/// A process that the keeper held when it was asked.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The keeper's number for it.
    pub key: u64,
    /// Its public id.
    pub id: String,
    /// Which run of it.
    pub run: u32,
    /// Its pid, also after its end.
    pub pid: u32,
    /// When it was started, nanoseconds since 1970.
    pub start_time: u64,
    /// The size that its terminal has now; none: it runs on pipes, or its terminal has ended, or a
    /// program of it gave the terminal a size that none can be asked for.
    pub size: Option<Size>,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
    /// The way to its output.
    pub output: Output,
}

/// Bytes to be typed.
#[derive(Clone, Debug, Default)]
pub struct Write {
    /// Where they begin in all input of the process; none: at its end. With an offset, a repeated
    /// write is no second write.
    pub offset: Option<u64>,
    /// The bytes.
    pub data: bytes::Bytes,
    /// Ends the input: closes a pipe, types the EOF character on a terminal.
    pub eof: bool,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How far the input is now.
    pub input: InputState,
    /// Bytes that the write added: what had been taken before is not among them.
    pub added: u64,
}

/// What happened by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A process has exited, and all it printed can be read.
    Exited {
        /// Which.
        key: u64,
        /// How.
        exit: Exit,
    },
    /// After an exit: nothing can write to its outputs any more.
    Drained {
        /// Which.
        key: u64,
    },
    /// The keeper was told to stop: the server ends what runs, then itself.
    Shutdown,
    /// Another server is about to take the place of this one, which ends itself and nothing else.
    Retire,
}

/// What happens by itself, in order. Ends when the connection does.
pub struct Reports {
    /// Unbounded, yet bounded: two for each process that the keeper holds, and two.
    receiver: mpsc::UnboundedReceiver<Report>,
}

impl Reports {
    /// The next report; none: the keeper is gone.
    pub async fn next(&mut self) -> Option<Report> {
        self.receiver.recv().await
    }

    /// The next report, if there is one already.
    pub fn try_next(&mut self) -> Option<Report> {
        self.receiver.try_recv().ok()
    }
}

impl Keeper {
    /// Speaks to a keeper, of this version or the one before. Nothing is reported before
    /// [`Keeper::adopt`]. To a server that takes another's place, the keeper answers when that one
    /// is gone.
    pub async fn connect(link: UnixStream) -> io::Result<(Keeper, Reports, Welcome)> {
        link.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(link)?;
        let (asks, asked) = mpsc::channel(ASKS);
        let (reports, receiver) = mpsc::unbounded_channel();
        let growth = Growth::default();
        let link = Link::new(stream);
        let heartbeat = link.heartbeat();
        tokio::spawn(Connection::new(link, asked, reports, growth.clone()).run());
        let (version, welcome) = match hello(&asks, protocol::VERSION).await {
            // A keeper of the version before knows no newer one, and is told again.
            Err(KeeperError::Refused(newer @ Refused::Version(_))) => {
                hello(&asks, protocol::BEFORE).await.map_err(|older| match older {
                    KeeperError::Refused(Refused::Version(_)) => newer.into(),
                    other => other,
                })
            }
            answer => answer,
        }
        .map_err(io::Error::other)?;
        Ok((Keeper { asks, version, growth, heartbeat }, Reports { receiver }, welcome))
    }

    /// How much output there was since this connection began.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    /// What a busy server beats with.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Says that clients are about to be let in. From then on the keeper expects beats.
    pub async fn serving(&self) -> Result<(), KeeperError> {
        self.done(Body::Serving(pb::Serving {})).await
    }

    /// Gives a sign of life, and waits for the keeper's.
    pub async fn beat(&self) -> Result<(), KeeperError> {
        self.done(Body::Beat(pb::Beat {})).await
    }

    /// Everything that the keeper holds, living and finished, with its output. From here on,
    /// changes are reported.
    pub async fn adopt(&self) -> Result<Vec<Adopted>, KeeperError> {
        match self.ask(Body::Adopt(pb::Adopt {})).await? {
            Answered::Adopted(adopted) => Ok(adopted),
            other => Err(unexpected(&other)),
        }
    }

    /// Encodes a launch, which takes a while if it is large.
    /// One that is confined is refused where the keeper is too old to know of that.
    pub fn encode(&self, launch: Launch) -> Result<EncodedLaunch, KeeperError> {
        if !launch.limits.is_none() && !self.version.confines() {
            let (step, errno) = (step::LIMIT_TREE.into(), libc::EOPNOTSUPP);
            return Err(Refused::SpawnFailed { step, errno, path: String::new() }.into());
        }
        if launch.is_confined() && !self.version.confines() {
            let version = self.version.number();
            let what = format!("a keeper of version {version} cannot confine a process");
            return Err(Refused::Version(what).into());
        }
        Ok(EncodedLaunch(Request::new(Body::Spawn(launch.into()))?))
    }

    /// Starts a process. A repeated spawn of the same id and run finds the first.
    pub async fn spawn(&self, launch: Launch) -> Result<Spawned, KeeperError> {
        self.spawn_encoded(self.encode(launch)?).await
    }

    /// Starts a process whose launch was encoded.
    pub async fn spawn_encoded(&self, launch: EncodedLaunch) -> Result<Spawned, KeeperError> {
        match send(&self.asks, launch.0).await? {
            Answered::Spawned(spawned) => Ok(spawned),
            other => Err(unexpected(&other)),
        }
    }

    /// Types into a process: all of it or nothing is taken.
    pub async fn write(&self, key: u64, write: Write) -> Result<Written, KeeperError> {
        let Write { offset, data, eof } = write;
        match self.ask(Body::WriteInput(pb::WriteInput { key, offset, data, eof })).await? {
            Answered::Written(written) => Ok(written),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the input of a process.
    pub async fn close(&self, key: u64) -> Result<Written, KeeperError> {
        self.write(key, Write { eof: true, ..Write::default() }).await
    }

    /// Sets the size of a terminal.
    pub async fn resize(&self, key: u64, size: Size) -> Result<(), KeeperError> {
        let (rows, cols) = (size.rows.into(), size.cols.into());
        self.done(Body::Resize(pb::Resize { key, rows, cols })).await
    }

    /// Sends one signal to a process, or to its group.
    pub async fn signal(&self, key: u64, signal: i32, group: bool) -> Result<(), KeeperError> {
        self.done(Body::Signal(pb::Signal { key, signal, group })).await
    }

    /// Sends one signal to the whole tree. KILL is repeated until nothing is left, and answered
    /// then, or after 4 s with what remains; any other is sent once; TERM, HUP, INT and QUIT are
    /// followed by CONT.
    pub async fn signal_tree(&self, key: u64, signal: i32) -> Result<TreeSignal, KeeperError> {
        match self.ask(Body::KillTree(pb::KillTree { key, signal })).await? {
            Answered::Killed(outcome) => Ok(outcome),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends one signal to the whole tree and returns the processes that took it.
    pub async fn kill_tree(&self, key: u64, signal: i32) -> Result<Vec<Descendant>, KeeperError> {
        self.signal_tree(key, signal).await.map(|outcome| outcome.members)
    }

    /// Who of a tree is there now.
    pub async fn members(&self, key: u64) -> Result<Vec<Descendant>, KeeperError> {
        self.kill_tree(key, 0).await
    }

    /// Lets a blocking ring forget all chunks up to `seq`.
    pub async fn acknowledge(&self, key: u64, seq: u64) -> Result<(), KeeperError> {
        self.done(Body::Acknowledge(pb::Acknowledge { key, seq })).await
    }

    /// Lets the keeper forget a finished process. Its output can be read on as long as someone
    /// holds it.
    pub async fn release(&self, key: u64) -> Result<(), KeeperError> {
        failpoint::reach(Point::ReleaseAsked);
        self.done(Body::Release(pb::Release { key })).await
    }

    async fn done(&self, body: Body) -> Result<(), KeeperError> {
        match self.ask(body).await? {
            Answered::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, body: Body) -> Result<Answered, KeeperError> {
        ask(&self.asks, body).await
    }
}

/// Says who speaks, in one version.
async fn hello(asks: &mpsc::Sender<Ask>, version: u32) -> Result<(Version, Welcome), KeeperError> {
    let release = env!("CARGO_PKG_VERSION").into();
    match ask(asks, Body::Hello(pb::Hello { version, release })).await? {
        Answered::Welcome(welcome) => {
            let version = Version::of_keeper(welcome.version).map_err(Refused::Version)?;
            Ok((version, welcome))
        }
        other => Err(unexpected(&other)),
    }
}

async fn ask(asks: &mpsc::Sender<Ask>, body: Body) -> Result<Answered, KeeperError> {
    send(asks, Request::new(body)?).await
}

async fn send(asks: &mpsc::Sender<Ask>, request: Request) -> Result<Answered, KeeperError> {
    let (answer, answered) = oneshot::channel();
    let gone = |_| KeeperError::Disconnected;
    asks.send(Ask { request, answer }).await.map_err(|_| KeeperError::Disconnected)?;
    Ok(answered.await.map_err(gone)??)
}

fn unexpected(answer: &Answered) -> KeeperError {
    Refused::Invalid(format!("the keeper answered another question: {answer:?}")).into()
}
