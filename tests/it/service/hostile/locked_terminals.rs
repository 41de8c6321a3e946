//! A process that keeps a call on its terminal from ending: it delays no other process.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::JoinHandle;

use procyard::grpc::pb;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::support::service::*;
use crate::support::{skip, soon, until};

const PAGE: usize = 4096;

/// Memory of which a read or write waits until this is dropped.
struct StalledPage {
    userfault: Option<OwnedFd>,
    address: usize,
}

#[repr(C)]
#[derive(Default)]
struct UserfaultApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct UserfaultRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

impl StalledPage {
    /// None: only root may make such memory here.
    fn new() -> Option<StalledPage> {
        // SAFETY: the call takes a flag only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the descriptor was just made.
        let userfault = unsafe { OwnedFd::from_raw_fd(fd) };
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let address = address as usize;
        let mut api = UserfaultApi { api: UFFD_API, ..Default::default() };
        let mut register = UserfaultRegister {
            start: address as u64,
            len: PAGE as u64,
            mode: UFFDIO_REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        // SAFETY: both structures are those of these calls.
        let made = unsafe {
            [
                libc::ioctl(fd, UFFDIO_API as _, &raw mut api),
                libc::ioctl(fd, UFFDIO_REGISTER as _, &raw mut register),
            ]
        };
        (made == [0, 0]).then_some(StalledPage { userfault: Some(userfault), address })
    }

    /// Calls the function with the address of the page, in a thread, and returns when it waits.
    fn stall(&self, call: impl FnOnce(usize) + Send + 'static) -> JoinHandle<()> {
        let address = self.address;
        let thread = std::thread::spawn(move || call(address));
        // A message says that a thread waits.
        let mut message = [0_u8; 32];
        rustix::io::read(self.userfault.as_ref().unwrap(), &mut message).unwrap();
        thread
    }

    /// Has all that waits continue.
    fn release(&mut self) {
        self.userfault = None;
    }
}

impl Drop for StalledPage {
    fn drop(&mut self) {
        self.release();
    }
}

/// Begins a process `a` and opens its terminal.
async fn begin_on_terminal(client: &mut Client) -> File {
    let process = begin(client, "a", on_terminal(argv(&["sleep", "600"]))).await;
    let path = std::fs::read_link(format!("/proc/{}/fd/0", process.pid)).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

fn size(terminal: &File) -> (u16, u16) {
    let size = rustix::termios::tcgetwinsize(terminal).unwrap();
    (size.ws_row, size.ws_col)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_size_of_a_terminal_delays_no_other_process() {
    let Some(mut page) = StalledPage::new() else {
        return skip("no memory can be made here whose accesses wait");
    };
    let service = TestService::start();
    let mut client = service.client().await;
    let terminal = begin_on_terminal(&mut client).await;
    let locking = terminal.try_clone().unwrap();
    let locked = page.stall(move |address| {
        // SAFETY: the address is that of a page.
        unsafe { libc::ioctl(locking.as_raw_fd(), libc::TIOCGWINSZ, address) };
    });
    for rows in [30, 40] {
        let resize = pb::ResizeRequest { id: "a".into(), rows, cols: 100 };
        soon(client.resize(resize)).await.unwrap();
        finish(&mut client, &format!("other-{rows}"), argv(&["true"])).await;
    }
    // The next server asks for all that the keeper holds.
    service.kill_server();
    let mut client = service.client().await;
    finish(&mut client, "after", argv(&["true"])).await;
    assert_eq!(get(&mut client, "a").await.state(), pb::State::Running);
    page.release();
    locked.join().unwrap();
    until("the terminal has the last size", || size(&terminal) == (40, 100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_in_use_delays_no_other_process_when_it_is_closed() {
    let Some(mut page) = StalledPage::new() else {
        return skip("no memory can be made here whose accesses wait");
    };
    let service = TestService::start();
    let mut client = service.client().await;
    let terminal = begin_on_terminal(&mut client).await;
    let writing = page.stall(move |address| {
        // SAFETY: the address is that of a page.
        unsafe { libc::write(terminal.as_raw_fd(), address as *const libc::c_void, 1) };
    });
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
    for n in 0..3 {
        finish(&mut client, &format!("other-{n}"), argv(&["true"])).await;
    }
    page.release();
    writing.join().unwrap();
}

/// Whether a thread of this process waits for a lock of the kernel.
fn waits_in_kernel(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" D")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_settings_of_a_terminal_delay_no_other_process() {
    let Some(mut page) = StalledPage::new() else {
        return skip("no memory can be made here whose accesses wait");
    };
    let service = TestService::start();
    let mut client = service.client().await;
    let terminal = begin_on_terminal(&mut client).await;
    let mut settings = tcgetattr(&terminal).unwrap();
    settings.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &settings).unwrap();
    let write = |len, eof| pb::WriteStdinRequest {
        id: "a".into(),
        input: Some(pb::write_stdin_request::Input::Data(vec![b'x'; len].into())),
        eof,
        ..Default::default()
    };
    // A read of more than 64 bytes keeps a lock while it copies them.
    soon(client.write_stdin(write(250, false))).await.unwrap();
    let reading = terminal.try_clone().unwrap();
    let read = page.stall(move |address| {
        // SAFETY: the address is that of a page.
        unsafe { libc::read(reading.as_raw_fd(), address as *mut libc::c_void, 200) };
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    let set = std::thread::spawn(move || {
        // SAFETY: the call takes nothing.
        sender.send(unsafe { libc::gettid() }).unwrap();
        tcsetattr(&terminal, OptionalActions::Now, &settings)
    });
    let setter = receiver.recv().unwrap();
    until("the settings wait", || waits_in_kernel(setter)).await;
    for eof in [false, true, false] {
        soon(client.write_stdin(write(1, eof))).await.unwrap();
        finish(&mut client, &format!("other-{eof}"), argv(&["true"])).await;
        let delete = pb::DeleteRequest { id: format!("other-{eof}"), ..Default::default() };
        soon(client.delete(delete)).await.unwrap();
    }
    page.release();
    read.join().unwrap();
    set.join().unwrap().unwrap();
}
