//! Starts whose child or helper does not do what it should, in this process as the keeper.

use std::fs::File;
use std::process::Command;

use super::*;

const SOON: Duration = Duration::from_secs(30);

fn spawner() -> Spawner {
    Spawner::new(OomScores { process: None, server: None }).unwrap()
}

/// Begins to start a program with no streams.
fn begin(spawner: &mut Spawner, program: &str) -> u64 {
    let null = File::open("/dev/null").unwrap();
    let ends = Ends { stdin: None, stdout: null.as_fd(), stderr: None, terminal: false };
    let program = Program::new(&Launch::new("a", [program])).unwrap();
    spawner.begin(Rc::new(program), &ends, None).unwrap_or_else(|_| panic!("not begun"))
}

/// Begins a start that fails, and waits until the helper at this place is done. Returns the child.
fn fail_to_start(spawner: &mut Spawner, at: usize) -> i32 {
    begin(spawner, "/does/not/exist");
    assert!(spawner.helpers[at].helper.wait(SOON));
    spawner.helpers[at].child().unwrap()
}

fn failed(finished: Option<Finished>) -> Failed {
    finished.unwrap().result.err().unwrap()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sweep forgets the children that it reaps; a child that is reaped elsewhere and was taken for an
/// orphan would count as one for ever, and no kill would be answered.
#[test]
fn failed_start_leaves_its_child_to_the_sweep() {
    let mut spawner = spawner();
    let child = fail_to_start(&mut spawner, 0);
    let Failed { failure, child: left, .. } = failed(spawner.take_finished());
    assert_eq!(failure.errno, libc::ENOENT);
    assert!(left == FailedChild::Exits(child));
    assert!(!spawner.is_starting(child), "the sweep would not reap it");
    assert!(reap::reap_within(child, SOON), "it was reaped already");
}

#[test]
fn nothing_is_due_for_a_start_that_waits_while_all_helpers_are_busy() {
    let mut spawner = spawner();
    let since = Instant::now() - EXEC_TIMEOUT;
    for number in 0..MAX_HELPERS as u64 {
        let helper = Helper::new(spawner.done_event.as_fd()).unwrap();
        let start = Some(Begun { number, since, deadline: None, abandoned: false });
        spawner.helpers.push(SpawnHelper { helper, start, is_killed: false });
        assert_eq!(spawner.due(true).is_none(), number + 1 == MAX_HELPERS as u64);
    }
    assert!(!spawner.is_ready());
    spawner.helpers[7].start = None;
    assert!(spawner.is_ready() && spawner.due(true).is_some());
}

#[test]
fn stopped_helper_is_killed_and_another_makes_the_next_start() {
    let mut spawner = spawner();
    let child = fail_to_start(&mut spawner, 0);
    assert!(spawner.take_finished().is_some() && reap::reap_within(child, SOON));
    let helper = spawner.helpers[0].helper.pid();
    // SAFETY: sends a signal to a child of this process.
    unsafe { libc::kill(helper, libc::SIGSTOP) };
    begin(&mut spawner, "/does/not/exist");
    assert!(!spawner.is_ready(), "the slots are not free");
    spawner.helpers[0].start.as_mut().unwrap().since -= DESCRIPTORS_TIMEOUT;
    assert!(failed(spawner.take_finished()).failure.is_timeout());
    wait_until("the helper has ended", || reap::is_reapable(helper));
    assert!(spawner.lose_helper(helper).is_none(), "its start has failed before");
    assert!(spawner.is_ready() && spawner.lost.is_empty());
    let child = fail_to_start(&mut spawner, 0);
    assert_eq!(failed(spawner.take_finished()).failure.errno, libc::ENOENT);
    assert!(reap::reap_within(child, SOON));
}

#[test]
fn start_of_a_killed_helper_is_freed_with_its_child() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("leased");
    // Not copied by this process: what other tests start could have the file open for writing.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let file = File::open(&program).unwrap();
    // SAFETY: the signal that asks for the lease back is ignored, and the lease is this file's.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(leased, 0, "{}", io::Error::last_os_error());
    let mut spawner = spawner();
    begin(&mut spawner, program.to_str().unwrap());
    wait_until("there is a child", || spawner.helpers[0].child().is_some());
    let (helper, child) = (spawner.helpers[0].helper.pid(), spawner.helpers[0].child().unwrap());
    let memory = Rc::downgrade(&spawner.helpers[0].helper.job().unwrap());
    kill(helper);
    wait_until("the helper has ended", || reap::is_reapable(helper));
    let Failed { child: left, .. } = failed(spawner.lose_helper(helper));
    assert!(left == FailedChild::Killed && memory.strong_count() > 0, "the child may use it");
    assert!(reap::reap_within(child, SOON));
    spawner.forget_child(child);
    assert_eq!(memory.strong_count(), 0);
}

#[test]
fn surplus_helpers_are_killed_without_waiting_for_their_end() {
    let mut spawner = spawner();
    for _ in 0..MAX_IDLE_HELPERS + 3 {
        let helper = Helper::new(spawner.done_event.as_fd()).unwrap();
        spawner.helpers.push(SpawnHelper { helper, start: None, is_killed: false });
    }
    assert!(spawner.take_finished().is_none());
    let killed = spawner.helpers.iter().filter(|helper| helper.is_killed);
    let killed: Vec<i32> = killed.map(|helper| helper.helper.pid()).collect();
    assert_eq!(killed.len(), 3);
    for pid in killed {
        wait_until("it has ended", || reap::is_reapable(pid));
        assert!(spawner.lose_helper(pid).is_none());
    }
    assert_eq!(spawner.helpers.len(), MAX_IDLE_HELPERS);
}
