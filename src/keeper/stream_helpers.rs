//! System calls on the pipes and terminals of processes, made by helpers.
//!
//! The kernel locks a pipe while a call works on it, and a process that has an end can hold that lock
//! for as long as it likes: with a `splice` from an idle socket, or a `write` from memory that does not
//! answer. Every other call on the pipe waits for the lock meanwhile, also one that must not block, and
//! no signal ends the wait. The size of a terminal and its last close have such locks, too. So helpers
//! make these calls. The keeper waits for a helper, since most calls take a microsecond, but not for one
//! that is late: an event tells when that is done. A stream whose last call was late is not waited for,
//! except at the exit of its process. Only `poll`, and reads and writes of a terminal's master, take no
//! lock that a process can hold.

use std::cell::{RefCell, UnsafeCell};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::helper::{self, Helper, Job};
use super::poller::Token;
use super::raw;
use crate::process::Size;

/// How long the keeper waits for a call.
const CALL_TIMEOUT: Duration = Duration::from_millis(5);
/// The same when much time was spent on late calls, which may take one part of this many of the
/// keeper's time.
const MIN_CALL_TIMEOUT: Duration = Duration::from_micros(200);
const LATENESS_SHARE: u32 = 20;
const MAX_LATENESS_CREDIT: Duration = Duration::from_millis(50);

/// Most bytes of a write, and of a read of an ordinary pipe: as many as it holds.
pub(super) const CALL_BYTES: usize = 64 << 10;
/// Size that a pipe is given once a read has found it full.
pub(super) const BUSY_PIPE: usize = 1 << 20;
/// Most bytes of a read of such a pipe. To wake a helper costs more than to read an ordinary pipe.
pub(super) const BULK_BYTES: usize = 256 << 10;

/// Late calls beyond which the process of the oldest is killed.
const MAX_LATE_CALLS: usize = 256;
/// How long a call is late before it counts among these: a process that does not lock its streams may be
/// slow for a moment, as many others are.
const MIN_LATENESS: Duration = Duration::from_secs(1);
/// Most helpers. Beyond the late calls, these are stuck at pipes that the kill of a process did not
/// unlock.
const MAX_HELPERS: usize = 1024;
/// Stuck helpers beyond which no process is started, and how long a call takes by which a helper counts.
const MAX_STUCK_HELPERS: usize = 512;
const STUCK_AFTER: Duration = Duration::from_millis(20);
/// Idle helpers that are kept.
const MAX_IDLE_HELPERS: usize = 8;
/// Bytes of a terminal's settings (`struct termios` of the kernel), with room to spare, and the place of the
/// character that ends input: behind four words of flags and the line discipline.
const SETTINGS_BYTES: usize = 128;
const SETTINGS_EOF: usize = 17 + libc::VEOF;
/// Buffers of a size that are kept.
const MAX_IDLE_BUFFERS: usize = 1;

/// The keeper's end of a stream, or the end of a pipe that a child is about to get.
pub(super) struct End {
    fd: ManuallyDrop<OwnedFd>,
    is_pipe: bool,
    closes: Closes,
}

/// Descriptors that a helper will close.
#[derive(Clone, Default)]
pub(super) struct Closes(Rc<RefCell<Vec<RawFd>>>);

impl End {
    /// An end of a pipe. Only helpers read and write it.
    pub(super) fn of_pipe(fd: OwnedFd, closes: &Closes) -> End {
        End { fd: ManuallyDrop::new(fd), is_pipe: true, closes: closes.clone() }
    }

    /// The master of a terminal. The keeper reads and writes it.
    pub(super) fn of_terminal(fd: OwnedFd, closes: &Closes) -> End {
        End { fd: ManuallyDrop::new(fd), is_pipe: false, closes: closes.clone() }
    }

    pub(super) fn is_pipe(&self) -> bool {
        self.is_pipe
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        self.closes.0.borrow_mut().push(fd.into_raw_fd());
    }
}

/// A read, a write or a resize.
pub(super) struct Call {
    /// Which stream it belongs to.
    token: Token,
    end: Rc<End>,
    action: Action,
    /// What is written, or room for what is read.
    buffer: UnsafeCell<Buffer>,
    /// Bytes, or a negative errno.
    result: AtomicIsize,
    since: Instant,
    /// The keeper does not wait for it.
    is_posted: bool,
}

type Buffer = Box<[u8]>;

#[derive(Clone, Copy)]
enum Action {
    /// Reads at most so many bytes: until the pipe is empty.
    Read { most: usize },
    /// Writes the first bytes of the buffer.
    Write { len: usize },
    /// Sets the size of a terminal.
    Resize(libc::winsize),
    /// Reads the size of a terminal.
    ReadSize,
    /// Reads the settings of a terminal.
    ReadSettings,
}

impl Call {
    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// How many bytes it has moved.
    pub(super) fn result(&self) -> Result<usize, Errno> {
        let result = self.result.load(Ordering::Relaxed);
        usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result as i32))
    }

    /// What it has read: nothing at the end of the stream.
    pub(super) fn data(&mut self) -> Result<&[u8], Errno> {
        let len = self.result()?;
        Ok(&self.buffer.get_mut()[..len])
    }

    /// The size of a terminal that it has read.
    pub(super) fn size(&mut self) -> Result<Size, Errno> {
        self.result()?;
        let numbers = self.buffer.get_mut();
        let number = |at: usize| u16::from_ne_bytes([numbers[at], numbers[at + 1]]);
        Ok(Size { rows: number(0), cols: number(2) })
    }

    /// The character that ends input on a terminal whose settings it has read.
    pub(super) fn eof(&mut self) -> Result<u8, Errno> {
        self.result()?;
        Ok(self.buffer.get_mut()[SETTINGS_EOF])
    }

    /// Whether the keeper did not wait for it, and it was made about as soon as it was asked for.
    pub(super) fn was_prompt(&self) -> bool {
        self.is_posted && self.since.elapsed() < CALL_TIMEOUT
    }

    fn make(&self) -> Result<usize, i32> {
        let fd = self.end.as_fd().as_raw_fd() as usize;
        // SAFETY: the keeper touches the buffer only when the call was made.
        let buffer = unsafe { (*self.buffer.get()).as_mut_ptr() } as usize;
        let (number, args) = match &self.action {
            Action::Read { most } => return read(fd, buffer, *most),
            Action::Write { len } => (libc::SYS_write, [buffer, *len]),
            Action::Resize(size) => {
                (libc::SYS_ioctl, [libc::TIOCSWINSZ as usize, ptr::from_ref(size) as usize])
            }
            Action::ReadSize => (libc::SYS_ioctl, [libc::TIOCGWINSZ as usize, buffer]),
            Action::ReadSettings => (libc::SYS_ioctl, [libc::TCGETS as usize, buffer]),
        };
        call_again(number, [fd, args[0], args[1], 0, 0])
    }
}

/// Reads until the pipe is empty or so many bytes were read, and makes an ordinary pipe larger that was
/// full.
fn read(fd: usize, buffer: usize, most: usize) -> Result<usize, i32> {
    let mut len = 0;
    while len < most {
        let want = (most - len).min(CALL_BYTES);
        match call_again(libc::SYS_read, [fd, buffer + len, want, 0, 0]) {
            Ok(read) => {
                len += read;
                if read < want {
                    break;
                }
            }
            Err(_) if len > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    if len == CALL_BYTES && most == CALL_BYTES {
        let size = [fd, libc::F_SETPIPE_SZ as usize, BUSY_PIPE, 0, 0];
        let _ = call(libc::SYS_fcntl, size);
    }
    Ok(len)
}

/// Makes a call, again if a signal has interrupted it.
fn call_again(number: libc::c_long, args: [usize; 5]) -> Result<usize, i32> {
    loop {
        match call(number, args) {
            Err(libc::EINTR) => {}
            result => return result,
        }
    }
}

fn call(number: libc::c_long, args: [usize; 5]) -> Result<usize, i32> {
    // SAFETY: the calls of this module get open descriptors, and buffers that are large enough.
    unsafe { raw::syscall(number, args) }
}

/// What a helper does.
enum StreamJob {
    Call(Call),
    /// Closes descriptors, the next one being this. One that takes long keeps those behind it waiting,
    /// unless they are taken back.
    Close(Vec<RawFd>, AtomicUsize),
}

// SAFETY: it makes raw system calls only, and writes to atomics and the buffer of a call, which the
// keeper touches only when the helper is done.
unsafe impl Job for StreamJob {
    fn run(&self) {
        match self {
            StreamJob::Call(call) => {
                let result = call.make();
                let result = result.map_or_else(|errno| -(errno as isize), |len| len as isize);
                call.result.store(result, Ordering::Relaxed);
            }
            StreamJob::Close(fds, next) => {
                while let Some(fd) = fds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // It is closed whatever is returned.
                    let _ = call(libc::SYS_close, [*fd as usize, 0, 0, 0, 0]);
                }
            }
        }
    }
}

/// Makes calls on pipes and terminals.
pub(super) struct StreamHelpers {
    helpers: Vec<StreamHelper>,
    done_event: OwnedFd,
    /// Buffers that no call uses.
    buffers: Vec<Buffer>,
    closes: Closes,
    lateness: Lateness,
}

struct StreamHelper {
    helper: Helper<StreamJob>,
    since: Instant,
    state: HelperState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HelperState {
    Idle,
    /// The keeper does not wait for its call.
    Late,
    /// As late, and the process was killed for it.
    Killed,
    Closing,
    /// It closes an end, and no longer those behind it.
    StuckClosing,
    /// It was idle and is killed. The sweep finds it when it has ended.
    Surplus,
}

/// What came of a call.
pub(super) enum Outcome {
    Done(Call),
    /// The done event will tell when it was made.
    Late,
    /// Too many are stuck.
    NoHelper,
}

impl StreamHelpers {
    pub(super) fn new() -> io::Result<StreamHelpers> {
        Ok(StreamHelpers {
            helpers: Vec::new(),
            done_event: helper::done_event()?,
            buffers: Vec::new(),
            closes: Closes::default(),
            lateness: Lateness { credit: MAX_LATENESS_CREDIT, since: Instant::now() },
        })
    }

    /// What can be read when a late call was made.
    pub(super) fn done_event(&self) -> BorrowedFd<'_> {
        self.done_event.as_fd()
    }

    /// Where ends are put to be closed.
    pub(super) fn closes(&self) -> &Closes {
        &self.closes
    }

    /// Whether a child of the keeper is one of them.
    pub(super) fn owns(&self, pid: i32) -> bool {
        self.helpers.iter().any(|helper| helper.helper.pid() == pid)
    }

    /// Whether the keeper has waited so much for late calls that it is to wait for none.
    pub(super) fn is_time_used_up(&mut self) -> bool {
        self.lateness.earn(Instant::now());
        self.lateness.credit < MIN_CALL_TIMEOUT
    }

    /// Reads at most so many bytes. Waits unless `is_slow`.
    pub(super) fn read(
        &mut self,
        token: Token,
        end: &Rc<End>,
        most: usize,
        is_slow: bool,
    ) -> Outcome {
        let buffer = self.buffer(most);
        let most = most.min(buffer.len());
        self.run(token, end, Action::Read { most }, buffer, is_slow)
    }

    /// Writes some of the bytes. Waits unless `is_slow`.
    pub(super) fn write(
        &mut self,
        token: Token,
        end: &Rc<End>,
        data: &[u8],
        is_slow: bool,
    ) -> Outcome {
        let mut buffer = self.buffer(CALL_BYTES);
        let len = data.len().min(CALL_BYTES);
        buffer[..len].copy_from_slice(&data[..len]);
        self.run(token, end, Action::Write { len }, buffer, is_slow)
    }

    /// Sets the size of a terminal. Waits unless `is_slow`.
    pub(super) fn resize(
        &mut self,
        token: Token,
        master: &Rc<End>,
        Size { rows, cols }: Size,
        is_slow: bool,
    ) -> Outcome {
        let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        self.run(token, master, Action::Resize(size), Buffer::default(), is_slow)
    }

    /// Reads the size of a terminal, and waits for that.
    pub(super) fn read_size(&mut self, token: Token, master: &Rc<End>) -> Outcome {
        let buffer = vec![0; size_of::<libc::winsize>()].into();
        self.run(token, master, Action::ReadSize, buffer, false)
    }

    /// Reads the character that ends input on a terminal, and waits for that.
    pub(super) fn read_eof(&mut self, token: Token, master: &Rc<End>) -> Outcome {
        let buffer = vec![0; SETTINGS_BYTES].into();
        self.run(token, master, Action::ReadSettings, buffer, false)
    }

    fn run(
        &mut self,
        token: Token,
        end: &Rc<End>,
        action: Action,
        buffer: Buffer,
        is_slow: bool,
    ) -> Outcome {
        let now = Instant::now();
        let Some(at) = self.idle_helper() else { return Outcome::NoHelper };
        let (end, result) = (Rc::clone(end), AtomicIsize::new(0));
        let (buffer, since, is_posted) = (UnsafeCell::new(buffer), now, is_slow);
        let call = Call { token, end, action, buffer, result, since, is_posted };
        let job = Rc::new(StreamJob::Call(call));
        self.helpers[at].since = now;
        if is_slow {
            self.helpers[at].helper.post(job);
        } else if self.helpers[at].helper.run(job, self.lateness.timeout(now)) {
            if let Some(call) = self.helpers[at].take_call() {
                return Outcome::Done(call);
            }
        } else {
            self.lateness.spend(now.elapsed());
        }
        self.helpers[at].state = HelperState::Late;
        Outcome::Late
    }

    /// Waits for the late call of a stream. None: there is none, or it is still late.
    pub(super) fn wait_for(&mut self, token: Token) -> Option<Call> {
        let now = Instant::now();
        let timeout = self.lateness.timeout(now);
        let helper = self.helpers.iter_mut().find(|helper| helper.serves(token))?;
        if helper.helper.wait_with_cpu(timeout) {
            return helper.take_call();
        }
        self.lateness.spend(now.elapsed());
        None
    }

    /// Takes the late calls that were made.
    pub(super) fn take_done(&mut self) -> Vec<Call> {
        let _ = rustix::io::read(&self.done_event, &mut [0; 8]);
        let done = self.helpers.iter_mut().filter_map(StreamHelper::take_call).collect();
        let idle = self.helpers.iter_mut().filter(|helper| helper.state == HelperState::Idle);
        for surplus in idle.skip(MAX_IDLE_HELPERS) {
            surplus.state = HelperState::Surplus;
            surplus.helper.kill();
        }
        done
    }

    /// If too many calls are late, the stream of the one that is late for the longest time: its
    /// process is to be killed, which unlocks its pipes unless another process locks them.
    pub(super) fn take_excess(&mut self) -> Option<Token> {
        if self.helpers.len() <= MAX_LATE_CALLS {
            return None;
        }
        let now = Instant::now();
        let is_late = |helper: &StreamHelper| helper.is_late_by(MIN_LATENESS, now);
        if self.helpers.iter().filter(|helper| is_late(helper)).count() <= MAX_LATE_CALLS {
            return None;
        }
        let late = self.helpers.iter_mut().filter(|helper| is_late(helper));
        let oldest = late.min_by_key(|helper| helper.since)?;
        oldest.state = HelperState::Killed;
        oldest.token()
    }

    /// Whether so many helpers are stuck that no process is to be started: the rest is for those that run.
    pub(super) fn are_exhausted(&self) -> bool {
        let now = Instant::now();
        let is_stuck = |helper: &&StreamHelper| match helper.state {
            HelperState::Late => helper.is_late_by(STUCK_AFTER, now),
            HelperState::Killed | HelperState::StuckClosing => !helper.helper.is_done(),
            HelperState::Idle | HelperState::Closing | HelperState::Surplus => false,
        };
        self.helpers.len() > MAX_STUCK_HELPERS
            && self.helpers.iter().filter(is_stuck).count() > MAX_STUCK_HELPERS
    }

    /// One of them was killed. Returns the call that it did not finish: what came of it is not known.
    pub(super) fn lose(&mut self, pid: i32) -> Option<Call> {
        let at = self.helpers.iter().position(|helper| helper.helper.pid() == pid)?;
        let StreamHelper { helper: lost, state, .. } = self.helpers.swap_remove(at);
        if state != HelperState::Surplus {
            tracing::error!(pid, "a helper of the keeper was killed");
        }
        let was_done = lost.is_done();
        let job = lost.job();
        lost.forget_job();
        match Rc::into_inner(job?)? {
            StreamJob::Call(call) => {
                if !was_done {
                    call.result.store(-(libc::EAGAIN as isize), Ordering::Relaxed);
                }
                Some(call)
            }
            StreamJob::Close(fds, next) => {
                let rest = next.into_inner().min(fds.len());
                self.closes.0.borrow_mut().extend(&fds[rest..]);
                None
            }
        }
    }

    /// Gives back the buffer of a call.
    pub(super) fn recycle(&mut self, call: Call) {
        let buffer = call.buffer.into_inner();
        let alike = self.buffers.iter().filter(|other| other.len() == buffer.len()).count();
        if buffer.len() >= CALL_BYTES && alike < MAX_IDLE_BUFFERS {
            self.buffers.push(buffer);
        }
    }

    /// A buffer for so many bytes or for as many as a read may have.
    fn buffer(&mut self, bytes: usize) -> Buffer {
        let size = if bytes > CALL_BYTES { BULK_BYTES } else { CALL_BYTES };
        match self.buffers.iter().position(|buffer| buffer.len() == size) {
            Some(at) => self.buffers.swap_remove(at),
            None => vec![0; size].into(),
        }
    }

    /// Has a helper close the ends that were dropped, without waiting for it. To be called before the
    /// keeper waits for events, and when it is [`due`](StreamHelpers::due).
    pub(super) fn close_ends(&mut self) {
        if !self.is_closing() {
            return;
        }
        if let Some(closing) = self.closing() {
            if self.helpers[closing].since.elapsed() < CALL_TIMEOUT {
                return;
            }
            self.leave_late_close(closing);
        }
        if self.closes.0.borrow().is_empty() {
            return;
        }
        let Some(at) = self.idle_helper() else { return };
        let fds = std::mem::take(&mut *self.closes.0.borrow_mut());
        let helper = &mut self.helpers[at];
        helper.helper.post_quietly(Rc::new(StreamJob::Close(fds, AtomicUsize::new(0))));
        (helper.state, helper.since) = (HelperState::Closing, Instant::now());
    }

    /// Waits until the ends that were dropped are closed, but not for a close that is late.
    pub(super) fn finish_closes(&mut self) {
        while self.is_closing() {
            self.close_ends();
            let now = Instant::now();
            let Some(closing) = self.closing() else { return };
            if !self.helpers[closing].helper.wait_with_cpu(self.lateness.timeout(now)) {
                self.lateness.spend(now.elapsed());
                return;
            }
        }
    }

    /// Whether an end that was dropped may not be closed yet.
    pub(super) fn is_closing(&mut self) -> bool {
        if let Some(at) = self.closing()
            && self.helpers[at].helper.take_done().is_some()
        {
            self.helpers[at].state = HelperState::Idle;
        }
        self.closing().is_some() || !self.closes.0.borrow().is_empty()
    }

    /// A close takes long: another helper makes those behind it.
    fn leave_late_close(&mut self, at: usize) {
        let StreamHelper { helper, state, .. } = &mut self.helpers[at];
        if let Some(StreamJob::Close(fds, next)) = helper.job().as_deref() {
            // The helper adds 1 at most to a number that is far beyond the end.
            let rest = next.swap(usize::MAX / 2, Ordering::Relaxed).min(fds.len());
            self.closes.0.borrow_mut().extend(&fds[rest..]);
        }
        *state = HelperState::StuckClosing;
        if !helper.ask_for_event() {
            helper.take_done();
            *state = HelperState::Idle;
        }
    }

    fn closing(&self) -> Option<usize> {
        self.helpers.iter().position(|helper| helper.state == HelperState::Closing)
    }

    /// When ends that wait for a close under way are to be looked at again.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = !self.closes.0.borrow().is_empty();
        let closing = self.closing().map(|at| self.helpers[at].since + CALL_TIMEOUT);
        closing.or_else(|| waiting.then(|| Instant::now() + CALL_TIMEOUT))
    }

    fn idle_helper(&mut self) -> Option<usize> {
        if let Some(idle) = self.helpers.iter().position(|helper| helper.state == HelperState::Idle)
        {
            return Some(idle);
        }
        if self.helpers.len() >= MAX_HELPERS {
            return None;
        }
        let helper = Helper::new(self.done_event.as_fd()).ok()?;
        self.helpers.push(StreamHelper { helper, since: Instant::now(), state: HelperState::Idle });
        Some(self.helpers.len() - 1)
    }
}

impl Drop for StreamHelpers {
    fn drop(&mut self) {
        for helper in self.helpers.drain(..) {
            // The end of one that is stuck would be waited for.
            let is_stuck = [HelperState::Late, HelperState::Killed, HelperState::StuckClosing]
                .contains(&helper.state);
            if is_stuck {
                helper.helper.kill_without_waiting();
            }
        }
    }
}

impl StreamHelper {
    /// Takes the call of a helper that has made it. A helper whose close took long is idle then, too.
    fn take_call(&mut self) -> Option<Call> {
        if self.state == HelperState::Closing {
            return None;
        }
        let job = self.helper.take_done()?;
        self.state = HelperState::Idle;
        match Rc::into_inner(job)? {
            StreamJob::Call(call) => Some(call),
            StreamJob::Close(..) => None,
        }
    }

    /// The stream that its call belongs to.
    fn token(&self) -> Option<Token> {
        match self.helper.job().as_deref() {
            Some(StreamJob::Call(call)) => Some(call.token),
            _ => None,
        }
    }

    /// Whether its call was begun so long ago, and has not been made.
    fn is_late_by(&self, time: Duration, now: Instant) -> bool {
        self.state == HelperState::Late
            && now.saturating_duration_since(self.since) >= time
            && !self.helper.is_done()
    }

    fn serves(&self, token: Token) -> bool {
        self.state != HelperState::Idle && self.token() == Some(token)
    }
}

/// How much of its time the keeper has spent on waiting for late calls.
struct Lateness {
    credit: Duration,
    since: Instant,
}

impl Lateness {
    /// How long a call may take now.
    fn timeout(&mut self, now: Instant) -> Duration {
        self.earn(now);
        self.credit.clamp(MIN_CALL_TIMEOUT, CALL_TIMEOUT)
    }

    fn earn(&mut self, now: Instant) {
        let earned = now.saturating_duration_since(self.since) / LATENESS_SHARE;
        (self.credit, self.since) = ((self.credit + earned).min(MAX_LATENESS_CREDIT), now);
    }

    fn spend(&mut self, waited: Duration) {
        self.credit = self.credit.saturating_sub(waited);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::keeper::locked_pipe::LockedPipe;

    fn pipe(helpers: &StreamHelpers) -> (Rc<End>, OwnedFd) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
        (Rc::new(End::of_pipe(reader, helpers.closes())), writer)
    }

    /// Begins a read that is late, of a pipe with one byte in it.
    fn read_late(helpers: &mut StreamHelpers, token: Token) -> (Rc<End>, LockedPipe) {
        let (end, writer) = pipe(helpers);
        rustix::io::write(&writer, b"1").unwrap();
        let locked = LockedPipe::lock(writer);
        assert!(matches!(helpers.read(token, &end, 64, false), Outcome::Late));
        (end, locked)
    }

    /// Takes the next late call that was made.
    fn take_late(helpers: &mut StreamHelpers) -> Call {
        loop {
            let ready = poll(&mut [PollFd::new(&helpers.done_event(), PollFlags::IN)], None);
            assert_eq!(ready, Ok(1));
            if let Some(call) = helpers.take_done().pop() {
                return call;
            }
        }
    }

    /// Reads from a pipe that is not locked. A busy machine may make the call late.
    fn read(helpers: &mut StreamHelpers, end: &Rc<End>) -> Vec<u8> {
        let mut call = match helpers.read(Token::Output(9, 0), end, 64, false) {
            Outcome::Done(call) => call,
            Outcome::Late => take_late(helpers),
            Outcome::NoHelper => panic!("no helper"),
        };
        call.data().unwrap().to_vec()
    }

    #[test]
    fn locked_pipe_delays_no_other_and_is_read_in_the_end() {
        let mut helpers = StreamHelpers::new().unwrap();
        let token = Token::Output(1, 0);
        let (_end, locked) = read_late(&mut helpers, token);
        let (other, writer) = pipe(&helpers);
        rustix::io::write(&writer, b"other").unwrap();
        assert_eq!(read(&mut helpers, &other), b"other");
        assert!(helpers.wait_for(token).is_none());
        locked.unlock(b'2');
        let mut call = take_late(&mut helpers);
        assert_eq!((call.token(), call.data()), (token, Ok(&b"12"[..])));
    }

    #[test]
    fn close_of_a_locked_pipe_delays_no_other_close() {
        let mut helpers = StreamHelpers::new().unwrap();
        let (end, locked) = read_late(&mut helpers, Token::Output(1, 0));
        // The late read still uses it: this is another descriptor of it.
        let copy = rustix::io::fcntl_dupfd_cloexec(&end, 0).unwrap();
        let (other, writer) = pipe(&helpers);
        drop((End::of_pipe(copy, helpers.closes()), other));
        let begin = Instant::now();
        while rustix::io::write(&writer, b"x") != Err(Errno::PIPE) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the pipe is not closed");
            helpers.close_ends();
        }
        locked.unlock(b'2');
    }

    #[test]
    fn process_of_the_oldest_call_is_named_when_too_many_are_late() {
        let mut helpers = StreamHelpers::new().unwrap();
        let tokens = (1..=1 + MAX_LATE_CALLS as u64).map(|key| Token::Output(key, 0));
        let locked: Vec<_> = tokens
            .map(|token| {
                assert_eq!(helpers.take_excess(), None);
                read_late(&mut helpers, token)
            })
            .collect();
        // A call that is late for a moment only is not named.
        let begin = Instant::now();
        let excess = loop {
            match helpers.take_excess() {
                None => assert!(begin.elapsed() < Duration::from_secs(60), "none is named"),
                excess => break excess,
            }
        };
        assert_eq!(excess, Some(Token::Output(1, 0)));
        assert_eq!(helpers.take_excess(), None);
        locked.into_iter().for_each(|(_, locked)| locked.unlock(b'2'));
    }
}
