//! The server is killed: how long until everybody who followed a process is told of it again.
//!
//! Followers come again at once with their cursors, and wait where the keeper listens until there is
//! a server. Each must miss nothing. The clock runs from the kill until the last of them has got
//! something that was printed after it.

use std::time::{Duration, Instant, SystemTime};

use procyard::grpc::pb::{self, follow_response::Message};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::calls::finish;
use crate::common::Result;
use crate::common::figures::{Measured, Series};
use crate::common::suite::Bench;
use crate::yard::{self, Client, Settings, Yard, argv};

/// Connections that the followers share.
const CONNECTIONS: usize = 10;
/// A server that lived longer than a second is replaced at once when it dies.
const STEADY: Duration = Duration::from_millis(1100);
/// Kills in each round of the bench: at least ten in all when it is not quick.
const KILLS: usize = 2;

/// What there is when the server is killed.
#[derive(Clone, Copy)]
pub(crate) struct Crowd {
    live: usize,
    finished: usize,
    /// Between two lines of a process. The last follower waits that long for its line in any case.
    pulse: &'static str,
}

pub(crate) const FEW: Crowd = Crowd { live: 10, finished: 0, pulse: "2" };
pub(crate) const SOME: Crowd = Crowd { live: 100, finished: 0, pulse: "5" };

/// A thousand print so seldom that printing is no load of its own.
pub(crate) fn many(bench: &Bench) -> Crowd {
    Crowd { live: bench.many, finished: 10 * bench.many, pulse: "200" }
}

/// Milliseconds from the kill until all followers were told something newer.
pub(crate) fn until_all_flow(bench: &Bench, crowd: Crowd) -> Result<Measured> {
    let child = bench.programs.child()?;
    // It tells of each server that dies.
    let yard = Yard::open_with(|command| {
        command.env("RUST_LOG", "error");
    })?;
    yard.run(async |client| finish(client, child, crowd.finished).await)?;
    let clients: Vec<Client> =
        (0..CONNECTIONS).map(|_| yard.connect(Settings::Tuned)).collect::<Result<_>>()?;
    // Nothing is newer than the first kill before there is one.
    let (kill, killed) = watch::channel(SystemTime::now());
    let (tell, mut told) = mpsc::unbounded_channel();
    let followers = yard.run(async |client| {
        let mut followers = JoinSet::new();
        for client_of_its_own in clients.iter().cycle().take(crowd.live) {
            let id = yard::start(client, argv(&[child, "pulse", crowd.pulse]), None).await?;
            let follower = Follower {
                client: client_of_its_own.clone(),
                id,
                next_seq: 1,
                killed: killed.clone(),
                tell: tell.clone(),
            };
            followers.spawn(follower.follow());
        }
        all_tell(&mut told, crowd.live).await?;
        Ok(followers)
    })?;
    let series = Series::take(KILLS * bench.rounds, || {
        yard.run(async |_| {
            tokio::time::sleep(STEADY).await;
            let begin = Instant::now();
            yard.serve.kill_server()?;
            kill.send(SystemTime::now())?;
            all_tell(&mut told, crowd.live).await?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        })
    })?;
    drop(followers);
    Ok(Measured::Single(series))
}

/// Waits until each follower has told once that it flows.
async fn all_tell(told: &mut mpsc::UnboundedReceiver<Result<()>>, followers: usize) -> Result<()> {
    for _ in 0..followers {
        told.recv().await.ok_or("there are no followers")??;
    }
    Ok(())
}

struct Follower {
    client: Client,
    id: String,
    next_seq: u64,
    /// When the server was killed last.
    killed: watch::Receiver<SystemTime>,
    /// Told once after each kill, when something newer has come.
    tell: mpsc::UnboundedSender<Result<()>>,
}

impl Follower {
    async fn follow(mut self) {
        let mut waiting = true;
        loop {
            match self.until_broken(&mut waiting).await {
                Ok(()) => {}
                Err(error) => {
                    let _ = self.tell.send(Err(error));
                    return;
                }
            }
        }
    }

    /// Takes what comes until the server is gone.
    async fn until_broken(&mut self, waiting: &mut bool) -> Result<()> {
        let request = pb::FollowRequest {
            id: self.id.clone(),
            since_seq: Some(self.next_seq),
            ..pb::FollowRequest::default()
        };
        let Ok(stream) = self.client.follow(request).await else { return Ok(()) };
        let mut stream = stream.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            let Some(Message::Chunk(chunk)) = message.message else { continue };
            if chunk.seq != self.next_seq {
                return Err(format!("chunk {} came for {}", chunk.seq, self.next_seq).into());
            }
            self.next_seq += 1;
            let printed = SystemTime::try_from(chunk.time.unwrap_or_default())?;
            *waiting |= self.killed.has_changed()?;
            if *waiting && printed > *self.killed.borrow_and_update() {
                *waiting = false;
                self.tell.send(Ok(()))?;
            }
        }
        Ok(())
    }
}
