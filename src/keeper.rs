//! The keeper: the small process that children belong to.
//!
//! It starts processes, captures what they print into rings, types into them, sees them end and
//! kills their trees; it starts the server and starts it again when it dies. Single-threaded and
//! synchronous; no network, no disk on its way. It knows nothing of queues, services, timeouts
//! or owners: all that is the server's, which asks for everything it wants done (`requests`).
//!
//! To be read in this order: `turns` is the loop and the state; `requests`, `start`, `continuing`,
//! `ending` and `kill` are what it does; `held` is what it holds; `helper`, `stream_helpers` and `raw` are how it never
//! waits; `spawn`, `streams`, `output`, `ring`,
//! `input`, `terminal`, `reap`, `tree`, `cgroup`, `controllers` and `memory` are how; `link`, `pulse`, `server`, `binary` and
//! `upgrade` are the other process; `notify` is who started this one; `left` is what a killed
//! keeper leaves.

mod binary;
mod cgroup;
mod continuing;
mod controllers;
mod ending;
mod held;
mod helper;
mod input;
mod kill;
mod left;
mod link;
#[cfg(test)]
mod locked_pipe;
mod memory;
mod notify;
mod output;
mod owner_wait;
mod poller;
mod pulse;
mod raw;
mod reap;
mod requests;
mod ring;
mod server;
mod spawn;
mod start;
mod stream_helpers;
mod streams;
mod terminal;
mod tree;
mod turns;
mod upgrade;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use crate::process::Launch;
use owner_wait::OwnerWait;
use poller::{EventFlags, Poller, Token};
use server::{Source, Started};
use spawn::Spawner;
use stream_helpers::StreamHelpers;
use tree::Forest;
use turns::Keeper;

pub use left::{Leftovers, end_what_was_left};
pub use memory::{cgroup_memory_limit, lower_oom_score};
pub use notify::Notify;
pub use tree::signal_leftovers;
pub use upgrade::answer_path;

/// Descriptors without which a keeper could start but hold hardly a process.
const LEAST_DESCRIPTORS: u64 = 48;
/// Below it are the standard descriptors and those that the keeper has a use for at their place.
const FIRST_KEPT: i32 = 16;

/// Where the keeper's server comes from.
pub enum Servers {
    /// The keeper starts it, with the link as descriptor 3 and these listening sockets from 4 on.
    Start {
        /// How.
        launch: Box<Launch>,
        /// What it will accept from.
        listeners: Vec<OwnedFd>,
        /// Where whoever asks for an upgrade is answered.
        state_dir: PathBuf,
        /// Who is told what becomes of the supervisor.
        notify: Notify,
    },
    /// It connects by itself to this socket.
    Connect(OwnedFd),
}

/// A process that was made fit to be a keeper.
pub struct Ground {
    spawner: Spawner,
    signals: OwnedFd,
    forest: Forest,
    /// Memory is limited, and the keeper's OOM score could not be lowered.
    exposed_to_oom: bool,
}

impl Ground {
    /// Makes this process a keeper: it adopts orphans, holds no descriptor but the standard ones and
    /// those that are kept, has `/dev/null` for stdin, and reads its signals instead of being
    /// interrupted by them. To be called first, with a single thread.
    pub fn take(kept: &mut [OwnedFd]) -> io::Result<Ground> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        if let Some(few) = limit.filter(|limit| *limit < LEAST_DESCRIPTORS) {
            let least = LEAST_DESCRIPTORS;
            let what =
                format!("at most {few} open files are allowed, {least} are needed: ulimit -n");
            return Err(io::Error::other(what));
        }
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        drop(null);
        close_all_but(kept)?;
        let forest = Forest::new(std::process::id().cast_signed());
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let exposed_to_oom = memory::lower_oom_score(memory::KEEPER_OOM_SCORE).is_err()
            && memory::cgroup_memory_limit().is_some();
        let scores = memory::OomScores::of_children(exposed_to_oom);
        let (spawner, signals) = (Spawner::new(scores)?, take_signals()?);
        Ok(Ground { spawner, signals, forest, exposed_to_oom })
    }

    /// Keeps, until told to stop by SIGTERM or SIGINT and all has ended.
    pub fn keep(mut self, servers: Servers) -> io::Result<()> {
        let poller = Poller::new()?;
        let source = match servers {
            Servers::Start { launch, listeners, state_dir, notify } => {
                Source::Started(Box::new(Started::new(launch, listeners, state_dir, notify)?))
            }
            Servers::Connect(listener) => {
                rustix::fs::fcntl_setfl(&listener, OFlags::NONBLOCK)?;
                poller.add(&listener, Token::Control, EventFlags::IN)?;
                Source::Control(listener)
            }
        };
        let mut cgroups = cgroup::Cgroups::probe(&mut self.spawner);
        let controllers = controllers::Controllers::probe(cgroups.as_mut());
        let sandbox = self.spawner.probe_sandbox();
        let mut keeper = Keeper {
            poller,
            signals: self.signals,
            spawner: self.spawner,
            forest: self.forest,
            controllers,
            cgroups,
            sandbox,
            stream_helpers: StreamHelpers::new()?,
            unmap_written: self.exposed_to_oom,
            held: held::Table::default(),
            link: None,
            source,
            upgrade: None,
            starts: VecDeque::new(),
            busy: Vec::new(),
            starting: Vec::new(),
            adopt_request: None,
            kills: Vec::new(),
            look: None,
            exit_search: None,
            owner_wait: OwnerWait::new(Instant::now()),
            stalled: Vec::new(),
            retry_at: None,
            sweep_due: false,
            last_sweep: Instant::now(),
            serve_due: false,
            held_back: false,
            kills_due: false,
            all_children_judged: None,
            last_look: Instant::now(),
            stop: None,
        };
        let domain = keeper.kill_domain();
        let limits = keeper.controllers.enforceable();
        let exposed_to_oom = self.exposed_to_oom;
        let pid = std::process::id();
        tracing::info!(pid, kill_domain = ?domain, ?limits, exposed_to_oom, "keeping");
        keeper.run()
    }
}

/// Closes whatever this process was started with but the standard descriptors and some others, which
/// move to where they are in nobody's way.
fn close_all_but(kept: &mut [OwnedFd]) -> io::Result<()> {
    for fd in &mut *kept {
        *fd = rustix::io::fcntl_dupfd_cloexec(&*fd, FIRST_KEPT)?;
    }
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for last in kept.into_iter().chain([u32::MAX]) {
        // The kernel refuses an empty range.
        // SAFETY: nothing else above the standard descriptors was opened by this process yet.
        unsafe { libc::syscall(libc::SYS_close_range, first, last - 1, 0) };
        first = last.saturating_add(1);
    }
    Ok(())
}

/// Default dispositions and all signals blocked, so that a child has nothing to undo but the
/// mask; those that mean something are read from a descriptor. Faults stay as they are.
fn take_signals() -> io::Result<OwnedFd> {
    let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: changes this process's own dispositions and mask, before any handler was installed
    // that anything relies on; the structures are initialized by the calls that take them.
    unsafe {
        // The kernel's structure, all zero: default, without flags. Not through libc, which refuses
        // its own two signals, that its posix_spawn may have left ignored.
        let action = [0_usize; 4];
        for signal in 1..=64 {
            // KILL and STOP refuse, and are default already.
            let none = std::ptr::null_mut::<libc::c_void>();
            libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), none, 8);
        }
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut blocked);
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];
        for signal in faults.into_iter().chain([libc::SIGTRAP, libc::SIGSYS, libc::SIGTSTP]) {
            libc::sigdelset(&raw mut blocked, signal);
        }
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut()))?;
        let mut read: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut read);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut read, signal);
        }
        let fd = libc::signalfd(-1, &raw const read, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
        check(if fd >= 0 { 0 } else { -1 })?;
        Ok(std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}
