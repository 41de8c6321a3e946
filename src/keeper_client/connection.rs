//! The task that owns the socket to the keeper.
//!
//! Sends requests, gives each answer to whoever asked, and keeps the state that was reported of
//! each process where its [`Output`]s see it. An output exists from the moment a process is
//! known until it is released, so that no report can come too early.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot, watch};

use super::growth::{Counted, Growth};
use super::link::Link;
use super::{Adopted, Output, Progress, Report, Spawned, Welcome, Written};
use crate::failpoint::{self, Point};
use crate::process::{InputState, Refused, TreeSignal};
use crate::protocol::{self, decode, pb, socket};
use crate::transcript::Ring;
use pb::from_keeper::Body;
use pb::reply::Result as Answer;
use pb::to_keeper::Body as Asked;

/// Bytes on their way out beyond which no further request is taken.
const CROWDED: usize = 1 << 20;

/// A request without its number. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Request {
    encoded: Bytes,
    then: Then,
}

impl Request {
    pub(super) fn new(body: Asked) -> Result<Request, Refused> {
        let then = Then::of(&body);
        let mut message = pb::ToKeeper { request: u64::MAX, body: Some(body) };
        if protocol::too_long(&message) {
            return Err(Refused::Invalid("more than 16 MiB in one request".into()));
        }
        message.request = 0;
        Ok(Request { encoded: message.encode_to_vec().into(), then })
    }

    pub(super) fn len(&self) -> usize {
        self.encoded.len()
    }
}

/// A request and who waits for its answer.
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Result<Answered, Refused>>,
}

/// An answer in the project's own words.
#[derive(Debug)]
pub(super) enum Answered {
    Welcome(Welcome),
    Adopted(Vec<Adopted>),
    Spawned(Spawned),
    Written(Written),
    Killed(TreeSignal),
    Done,
}

struct Pending {
    answer: oneshot::Sender<Result<Answered, Refused>>,
    then: Then,
}

/// What becomes of the known state of a process when a request succeeds. Reports say the same, but
/// come only with other news, and whoever asked must not see the state of before.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// It begins, with an input that is open or not.
    Begins {
        open: bool,
    },
    /// Its input is further on.
    Writes(u64),
    /// It is forgotten.
    Releases(u64),
}

impl Then {
    fn of(asked: &Asked) -> Then {
        match asked {
            Asked::Spawn(spawn) => Then::Begins {
                open: match spawn.io {
                    Some(pb::spawn::Io::Terminal(_)) => true,
                    Some(pb::spawn::Io::Pipes(pb::Pipes { stdin, .. })) => stdin,
                    None => false,
                },
            },
            Asked::WriteInput(write) => Then::Writes(write.key),
            Asked::Release(release) => Then::Releases(release.key),
            _ => Then::Nothing,
        }
    }
}

pub(super) struct Connection {
    link: Arc<Link>,
    asks: mpsc::Receiver<Ask>,
    reports: mpsc::UnboundedSender<Report>,
    inbox: BytesMut,
    /// Descriptors that came and were not announced yet.
    fds: VecDeque<OwnedFd>,
    last_request: u64,
    pending: HashMap<u64, Pending>,
    outputs: HashMap<u64, Known>,
    growth: Growth,
    /// What an adoption under way has brought so far.
    adopted: Vec<Adopted>,
}

/// What is known of a process.
struct Known {
    progress: watch::Sender<Progress>,
    /// How much of its ring was counted; none: it is not known yet whose ring it goes on with.
    counted: Option<Counted>,
}

impl Known {
    /// Counts what it has printed since the last time.
    fn count(&mut self, growth: &Growth) {
        if let (Some(ring), Some(counted)) = (&self.progress.borrow().ring, &mut self.counted) {
            growth.count(ring, counted);
        }
    }
}

impl Connection {
    pub(super) fn new(
        link: Arc<Link>,
        asks: mpsc::Receiver<Ask>,
        reports: mpsc::UnboundedSender<Report>,
        growth: Growth,
    ) -> Connection {
        Connection {
            link,
            asks,
            reports,
            inbox: BytesMut::new(),
            fds: VecDeque::new(),
            last_request: 0,
            pending: HashMap::new(),
            outputs: HashMap::new(),
            growth,
            adopted: Vec::new(),
        }
    }

    /// Runs until the keeper is gone or nobody holds a handle. Whoever still waits learns it by
    /// the end of their channel.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.serve().await {
            tracing::debug!(%error, "the connection to the keeper ended");
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        loop {
            let mut interest = Interest::READABLE;
            if self.link.queued() > 0 {
                interest |= Interest::WRITABLE;
            }
            tokio::select! {
                ask = self.asks.recv(), if self.link.queued() < CROWDED => {
                    let Some(ask) = ask else { return Ok(()) };
                    self.ask(ask);
                    while self.link.queued() < CROWDED
                        && let Ok(ask) = self.asks.try_recv()
                    {
                        self.ask(ask);
                    }
                    self.link.send()?;
                    failpoint::reach(Point::KeeperAsked);
                }
                ready = self.link.stream.ready(interest) => {
                    let ready = ready?;
                    if ready.is_writable() {
                        self.link.send()?;
                    }
                    if ready.is_readable() || ready.is_read_closed() {
                        self.receive()?;
                    }
                }
            }
        }
    }

    fn ask(&mut self, Ask { request: Request { encoded, then }, answer }: Ask) {
        self.last_request += 1;
        self.link.push_request(self.last_request, &encoded);
        self.pending.insert(self.last_request, Pending { answer, then });
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            let Connection { link, inbox, fds, .. } = self;
            let stream = &link.stream;
            let received =
                stream.try_io(Interest::READABLE, || socket::receive(stream, inbox, fds));
            match received {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            while let Some(message) =
                decode::<pb::FromKeeper>(&mut self.inbox).map_err(io::Error::other)?
            {
                match message.body {
                    Some(Body::Reply(reply)) => self.reply(reply),
                    Some(Body::Reports(reports)) => {
                        reports.reports.into_iter().try_for_each(|report| self.report(report))?;
                    }
                    Some(Body::Shutdown(pb::Shutdown {})) => self.tell(Report::Shutdown),
                    Some(Body::Retire(pb::Retire {})) => self.tell(Report::Retire),
                    // A newer keeper may tell more than this server understands.
                    None => {}
                }
            }
        }
    }

    fn reply(&mut self, reply: pb::Reply) {
        let pb::Reply { request, result } = reply;
        let Some(pending) = self.pending.remove(&request) else { return };
        let answered = match result {
            Some(Answer::Welcome(welcome)) => Ok(Answered::Welcome(Welcome {
                version: welcome.version,
                kill_domain: welcome.kill_domain().into(),
                pid: welcome.pid,
                limits: welcome.limits.unwrap_or_default().into(),
                sandbox: welcome.sandbox.map(Into::into),
                server_starts: welcome.server_starts,
            })),
            Some(Answer::Adopted(pb::Adopted {})) => {
                Ok(Answered::Adopted(std::mem::take(&mut self.adopted)))
            }
            Some(Answer::Spawned(pb::Spawned { key, pid, start_time, existed, continued })) => {
                let continued = Some(continued).filter(|earlier| *earlier != 0);
                let earlier = continued.and_then(|earlier| self.outputs.remove(&earlier));
                let open = matches!(pending.then, Then::Begins { open: true });
                let input = InputState { open, ..InputState::default() };
                let progress = Progress { input, ..Progress::default() };
                let output = self.output_of(key, progress);
                if let Some(known) = self.outputs.get_mut(&key) {
                    let before = earlier.and_then(|earlier| earlier.counted);
                    known.counted.get_or_insert(before.unwrap_or_default());
                    known.count(&self.growth);
                }
                Ok(Answered::Spawned(Spawned { key, pid, start_time, existed, continued, output }))
            }
            Some(Answer::Written(pb::Written { input, added })) => {
                let input = input.unwrap_or_default().into();
                if let Then::Writes(key) = pending.then
                    && let Some(known) = self.outputs.get(&key)
                {
                    known.progress.send_modify(|progress| progress.input = input);
                }
                Ok(Answered::Written(Written { input, added }))
            }
            Some(Answer::Killed(killed)) => killed.try_into().map(Answered::Killed),
            Some(Answer::Done(pb::Done {})) => {
                if let Then::Releases(key) = pending.then {
                    self.outputs.remove(&key);
                }
                Ok(Answered::Done)
            }
            Some(Answer::Refusal(refusal)) => Err(refusal.into()),
            None => Err(Refused::Invalid("an answer that this server does not know".into())),
        };
        // Whoever asked may have stopped waiting.
        let _ = pending.answer.send(answered);
    }

    /// The output of a process, known from now on.
    fn output(&mut self, key: u64) -> Output {
        self.output_of(key, Progress::default())
    }

    /// The same, of a process that is this far unless something was reported of it already.
    fn output_of(&mut self, key: u64, progress: Progress) -> Output {
        let known = self
            .outputs
            .entry(key)
            .or_insert_with(|| Known { progress: watch::Sender::new(progress), counted: None });
        Output::new(known.progress.subscribe())
    }

    fn report(&mut self, report: pb::Report) -> io::Result<()> {
        let pb::Report { key, held, ring, next_seq, input, exit, drained, awaits_reader } = report;
        let ring = if ring { Some(self.next_ring()?) } else { None };
        let exit =
            exit.map(crate::process::Exit::try_from).transpose().map_err(io::Error::other)?;
        let output = self.output(key);
        let news_of_drain = drained && !output.progress().drained;
        if let Some(known) = self.outputs.get_mut(&key) {
            known.progress.send_modify(|progress| {
                progress.ring = ring.or(progress.ring.take());
                progress.next_seq = next_seq;
                progress.input = input.unwrap_or_default().into();
                if let Some(exit) = &exit {
                    progress.final_seq = Some(exit.final_seq);
                    progress.status = Some(exit.status);
                }
                progress.drained = drained;
                progress.awaits_reader = awaits_reader;
            });
            if held.is_some() && known.counted.is_none() {
                // An earlier server has counted it.
                let ring = known.progress.borrow().ring.clone();
                known.counted =
                    Some(ring.map_or_else(Counted::default, |ring| Counted::all_of(&ring)));
            }
            known.count(&self.growth);
        }
        if let Some(held) = held {
            let pb::Held { id, run, pid, start_time, rows, cols } = held;
            let size = protocol::size(rows, cols).ok();
            self.adopted.push(Adopted { key, id, run, pid, start_time, size, exit, output });
            return Ok(());
        }
        if let Some(exit) = exit {
            self.tell(Report::Exited { key, exit });
        }
        if news_of_drain {
            self.tell(Report::Drained { key });
        }
        Ok(())
    }

    /// Maps the ring whose descriptor came with the message that is being read.
    fn next_ring(&mut self) -> io::Result<Arc<Ring>> {
        let fd =
            self.fds.pop_front().ok_or_else(|| io::Error::other("a ring without descriptor"))?;
        Ok(Arc::new(Ring::open(fd)?))
    }

    fn tell(&self, report: Report) {
        // Nobody may be listening.
        let _ = self.reports.send(report);
    }
}
