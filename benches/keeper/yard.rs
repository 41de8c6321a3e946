//! A keeper of its own, with this process in its server's place.
//!
//! Owns the keeper's process, the connection and the runtime that serves it: one thread, as a
//! server's would be. When it is dropped the keeper ends, and with it all that it held.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use procyard::keeper_client::{Keeper, Report, Reports, Spawned};
use procyard::process::{Io, Launch, Size, Status};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::{Result, programs};

pub(crate) const PIPES: Io = Io::Pipes { stdin: false, merge_stderr: false };
pub(crate) const TERMINAL: Io = Io::Terminal(Size { rows: 24, cols: 80 });
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// No measurement takes that long; what does is stuck.
const STUCK: Duration = Duration::from_secs(60);

pub(crate) struct Yard {
    client: Client,
    runtime: Runtime,
    process: Process,
}

/// What a server has of its keeper.
pub(crate) struct Client {
    pub(crate) keeper: Keeper,
    reports: Reports,
    launched: u64,
}

struct Process {
    child: Child,
    #[expect(dead_code, reason = "the socket is deleted with it")]
    directory: TempDir,
}

impl Yard {
    pub(crate) fn open() -> Result<Yard> {
        let directory = tempfile::tempdir()?;
        let control = directory.path().join("control");
        let mut command = Command::new(programs::procyard());
        command.arg("keeper").arg("--control").arg(&control);
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        // SAFETY: one system call, which is safe between fork and exec.
        unsafe {
            // A keeper waits for the next server when one is gone; none would come.
            command.pre_exec(|| {
                let end = rustix::process::Signal::TERM;
                Ok(rustix::process::set_parent_process_death_signal(Some(end))?)
            });
        }
        let process = Process { child: command.spawn()?, directory };
        let begin = Instant::now();
        let link = loop {
            match UnixStream::connect(&control) {
                Ok(link) => break link,
                Err(error) if begin.elapsed() > Duration::from_secs(10) => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let (keeper, reports, _) = Keeper::connect(link).await?;
            keeper.adopt().await?;
            Result::Ok(Client { keeper, reports, launched: 0 })
        })?;
        Ok(Yard { client, runtime, process })
    }

    /// The keeper's pid.
    pub(crate) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Has something done by the server.
    pub(crate) fn run<T>(&mut self, job: impl AsyncFnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let Yard { client, runtime, .. } = self;
        runtime.block_on(async { tokio::time::timeout(STUCK, job(client)).await? })
    }
}

impl Client {
    /// A launch with an id of its own and the usual environment.
    pub(crate) fn launch(&mut self, args: &[&str], io: Io) -> Launch {
        self.launched += 1;
        let id = format!("bench-{}", self.launched);
        let mut launch = Launch::new(id.clone(), args);
        launch.io = io;
        launch.env = vec![("PATH".into(), PATH.into()), ("PROCYARD_ID".into(), id.into())];
        launch
    }

    pub(crate) async fn start(&mut self, args: &[&str], io: Io) -> Result<Spawned> {
        let launch = self.launch(args, io);
        Ok(self.keeper.spawn(launch).await?)
    }

    /// Waits for the next exit, whosever it is.
    pub(crate) async fn exited(&mut self) -> Result<(u64, Status)> {
        loop {
            match self.reports.next().await.ok_or("the keeper is gone")? {
                Report::Exited { key, exit } => return Ok((key, exit.status)),
                Report::Drained { .. } | Report::Shutdown | Report::Retire => {}
            }
        }
    }

    /// Starts processes that live until the yard is gone, and waits for their first lines.
    pub(crate) async fn fill(
        &mut self,
        program: &str,
        count: usize,
        line: Option<&str>,
    ) -> Result<()> {
        let args: Vec<&str> = [program, "idle"].into_iter().chain(line).collect();
        for _ in 0..count {
            let mut spawned = self.start(&args, PIPES).await?;
            if line.is_some() {
                spawned.output.wait_until(|progress| progress.next_seq > 1).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let begin = Instant::now();
        // The first asks the server to end what runs, which it does not; the second hurries.
        while begin.elapsed() < Duration::from_secs(30) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            std::thread::sleep(Duration::from_millis(2));
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
        }
        // Its children die with it: the kernel sees to that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
