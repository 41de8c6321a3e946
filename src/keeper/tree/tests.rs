//! Orphans are placed once, in slices, and by what cannot be another's.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::sync::{Arc, Mutex, mpsc};

use super::*;
use crate::keeper::locked_pipe::LockedPipe;

#[test]
fn a_command_with_parentheses_and_spaces_is_read_right() {
    let line = "42 (a) b (c) R 1 2 3 0 -1 4194304 0 0 0 0 7 8 99 99 20 0 1 0 12345 0 0";
    let stat = Stat::parse(line).unwrap();
    assert_eq!((stat.command.as_str(), stat.alive), ("a) b (c", true));
    assert_eq!(stat.ticks, 7 + 8, "of itself alone");
    assert_eq!((stat.parent, stat.group, stat.session, stat.start), (1, 2, 3, 12345));
}

/// Nothing was started by the keeper itself but the process with the id "a".
struct OneProcess;

const KEY: u64 = 7;

impl Known for OneProcess {
    fn is_own(&self, _: i32) -> bool {
        false
    }

    fn led_by(&self, _: i32) -> Option<u64> {
        None
    }

    fn leaf_owner(&self, _: i32) -> LeafOwner {
        LeafOwner::NoLeaf
    }

    fn named(&self, id: &str, _: i32) -> Option<u64> {
        (id == "a").then_some(KEY)
    }

    fn holds(&self, key: u64) -> bool {
        key == KEY
    }
}

/// This process in the keeper's place.
fn forest() -> Forest {
    let keeper = std::process::id().cast_signed();
    let (orphans, seen) = (HashMap::new(), HashMap::new());
    let (killed, earlier) = (HashMap::new(), HashMap::new());
    let environs = ProcReader::default();
    let keeper_group = group_of(keeper);
    Forest { keeper, keeper_group, list: None, orphans, seen, killed, earlier, environs }
}

fn shell(line: &str) -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", line]).env_remove("PROCYARD_ID").process_group(0);
    command.stdin(std::process::Stdio::piped()).spawn().unwrap()
}

fn end_child(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The keeper has started all of its children itself.
struct AllOwn;

impl Known for AllOwn {
    fn is_own(&self, _: i32) -> bool {
        true
    }

    fn led_by(&self, _: i32) -> Option<u64> {
        None
    }

    fn leaf_owner(&self, _: i32) -> LeafOwner {
        LeafOwner::NoLeaf
    }

    fn named(&self, _: &str, _: i32) -> Option<u64> {
        None
    }

    fn holds(&self, _: u64) -> bool {
        false
    }
}

#[test]
fn child_whose_pid_becomes_known_is_no_orphan() {
    let child = shell("read x");
    let pid = child.id().cast_signed();
    let mut forest = forest();
    let pass = || Pass {
        children: vec![pid],
        which: Which::Unplaced,
        killed_groups: KilledGroups::default(),
    };
    assert!(forest.advance(&mut pass(), &OneProcess, None));
    assert!(forest.orphans.contains_key(&pid));
    assert!(forest.advance(&mut pass(), &AllOwn, None));
    assert!(forest.orphans.is_empty());
    end_child(child);
}

/// Bytes that the helpers have read that read environments.
fn bytes_of_readers(forest: &Forest) -> u64 {
    let readers = search_children(forest.keeper).filter(|pid| forest.is_reader(*pid));
    let bytes_read = |reader| {
        let io = fs::read_to_string(format!("/proc/{reader}/io")).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        bytes.unwrap().parse::<u64>().unwrap()
    };
    readers.map(bytes_read).sum()
}

#[test]
fn environment_is_searched_again_only_after_an_exec() {
    let mut child = shell("read x; PROCYARD_ID=a exec sleep 600");
    let pid = child.id().cast_signed();
    let mut forest = forest();
    let place = |forest: &mut Forest| {
        forest.place(pid, &OneProcess, &mut KilledGroups::default());
        forest.orphans[&pid].owner.clone()
    };
    let begin = Instant::now();
    let mut first = place(&mut forest);
    // It has its environment when it has executed the shell. The kernel sets the name of the program before it
    // sets the end of the environment.
    let has_one = |owner: &Owner| match owner {
        Owner::NotNamed(searched) => searched.environ.0 != searched.environ.1,
        _ => false,
    };
    while !has_one(&first)
        || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sh\n"
    {
        assert!(begin.elapsed().as_secs() < 60, "it has no environment");
        first = place(&mut forest);
    }
    let read = bytes_of_readers(&forest);
    assert!(read > 0);
    assert_eq!(place(&mut forest), first);
    assert_eq!(bytes_of_readers(&forest), read, "its environment was searched again");
    drop(child.stdin.take());
    while place(&mut forest) != Owner::Process(KEY) {
        assert!(begin.elapsed().as_secs() < 60, "another environment was not searched");
    }
    end_child(child);
}

#[test]
fn pass_ends_its_slice_when_the_time_is_up() {
    let children: Vec<_> = (0..3).map(|_| shell("read x")).collect();
    let mut forest = forest();
    let mut pass = forest.begin_pass(Which::Unplaced);
    let over = Some(Instant::now());
    for placed in 1.. {
        let done = forest.advance(&mut pass, &OneProcess, over);
        assert!(forest.orphans.len() <= placed, "more than one in a slice");
        if done {
            break;
        }
    }
    assert!(children.iter().all(|child| forest.orphans.contains_key(&child.id().cast_signed())));
    children.into_iter().for_each(end_child);
}

#[test]
fn walk_over_zombies_ends_its_slice_when_the_time_is_up() {
    let mut zombies: Vec<_> = (0..3).map(|_| shell("exit")).collect();
    let pids: Vec<_> = zombies.iter().map(|zombie| zombie.id().cast_signed()).collect();
    while pids.iter().any(|pid| Stat::read(*pid).is_some_and(|stat| stat.alive)) {
        std::thread::yield_now();
    }
    let forest = forest();
    let mut walk = forest.walk(pids.clone(), None);
    let over = Some(Instant::now());
    for _ in &pids {
        assert!(!forest.advance_walk(&mut walk, None, over), "more than one in a slice");
    }
    assert!(forest.advance_walk(&mut walk, None, over) && walk.members.is_empty());
    assert_eq!(walk.groups.len(), pids.len());
    for zombie in &mut zombies {
        zombie.wait().unwrap();
    }
}

#[test]
fn walk_over_threads_ends_its_slice_when_the_time_is_up() {
    const THREADS: usize = 200;
    let parent = std::os::unix::process::parent_id().cast_signed();
    let list = File::open(format!("/proc/{parent}/task/{parent}/children")).ok();
    if list.is_none() {
        return;
    }
    let forest = Forest { keeper: parent, list, ..forest() };
    let (end, until_end) = mpsc::channel::<()>();
    let until_end = Arc::new(Mutex::new(until_end));
    let (tell, told) = mpsc::channel();
    let begin = |first: bool| {
        let (until_end, tell) = (Arc::clone(&until_end), tell.clone());
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            // The kernel lists a child with the thread that made it, as long as that lives.
            tell.send(first.then(|| shell("read x"))).unwrap();
            let _ = until_end.lock().unwrap().recv();
        })
    };
    let threads: Vec<_> = (0..THREADS).map(|n| begin(n == 0).unwrap()).collect();
    let children: Vec<_> = threads.iter().filter_map(|_| told.recv().unwrap()).collect();
    let mut walk = forest.walk(vec![std::process::id().cast_signed()], None);
    let mut slices = 1;
    while !forest.advance_walk(&mut walk, None, Some(Instant::now())) {
        slices += 1;
    }
    drop(end);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for child in children {
        let pid = child.id().cast_signed();
        end_child(child);
        assert!(walk.members.iter().any(|member| member.pid == pid), "a child of a thread");
    }
    assert!(slices > THREADS, "{slices} slices");
}

#[test]
fn process_that_was_there_before_the_keeper_is_no_leftover() {
    let (earlier, later) = (shell("read x"), shell("read x"));
    let mut forest = forest();
    let member = Member::find(earlier.id().cast_signed(), || true).unwrap();
    forest.earlier.extend([member.identity()]);
    for child in [&earlier, &later] {
        forest.place(child.id().cast_signed(), &OneProcess, &mut KilledGroups::default());
    }
    let everyone: Vec<_> = forest.everyone().iter().map(|member| member.pid).collect();
    assert!(everyone.contains(&later.id().cast_signed()) && !everyone.contains(&member.pid));
    assert!(forest.orphans.len() == 2, "both are known as children");
    forest.forget(member.pid);
    assert!(forest.earlier.is_empty());
    [earlier, later].into_iter().for_each(end_child);
}

#[test]
fn process_that_was_seen_in_a_tree_stays_its_orphan() {
    let child = shell("read x");
    let pid = child.id().cast_signed();
    let mut forest = forest();
    let member = Member::find(pid, || true).unwrap();
    let another = Member { start: member.start + 1, ..member.clone() };
    forest.remember(KEY, &[another]);
    forest.place(pid, &OneProcess, &mut KilledGroups::default());
    assert_ne!(forest.orphans[&pid].owner, Owner::Process(KEY), "its pid was another process's");
    forest.remember(KEY, &[member]);
    forest.place(pid, &OneProcess, &mut KilledGroups::default());
    assert_eq!(forest.orphans[&pid].owner, Owner::Process(KEY));
    end_child(child);
}

#[test]
fn orphan_of_a_killed_tree_is_killed_with_its_group() {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "sleep 120 & read x"]).env("PROCYARD_ID", "a").process_group(0);
    let (stdin, stdout) = (std::process::Stdio::piped(), std::process::Stdio::piped());
    let mut child = command.stdin(stdin).stdout(stdout).spawn().unwrap();
    let pid = child.id().cast_signed();
    while Stat::read(pid).unwrap().environ.1 == 0 || search_children(pid).count() == 0 {
        std::thread::yield_now();
    }
    let mut forest = forest();
    assert!(forest.kill_orphans(KEY).is_empty());
    place_until(&mut forest, pid, |owner| *owner == Owner::Process(KEY));
    let killed: Vec<_> = forest.kill_orphans(KEY).iter().map(|member| member.pid).collect();
    assert_eq!(killed, [pid]);
    assert!(forest.kill_orphans(KEY).is_empty(), "it is listed once");
    // The child of the orphan has the other end of the pipe, too.
    let mut pipe = child.stdout.take().unwrap();
    let (ended, is_ended) = mpsc::channel();
    let reader = std::thread::spawn(move || ended.send(pipe.read_to_end(&mut Vec::new()).is_ok()));
    assert_eq!(is_ended.recv_timeout(Duration::from_secs(60)), Ok(true));
    reader.join().unwrap().unwrap();
    child.wait().unwrap();
}

/// Waits for an orphan to be placed as `expected` says.
fn place_until(forest: &mut Forest, pid: i32, expected: impl Fn(&Owner) -> bool) {
    let begin = Instant::now();
    loop {
        forest.place(pid, &OneProcess, &mut KilledGroups::default());
        let owner = &forest.orphans[&pid].owner;
        if expected(owner) {
            return;
        }
        assert!(begin.elapsed().as_secs() < 60, "{owner:?}");
        std::thread::yield_now();
    }
}

#[test]
fn orphan_that_is_about_to_end_may_have_children() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let own_end = File::options().read(true).write(true).open(&fifo).unwrap();
    let child = shell(&format!("exec 3<{}; read x", fifo.display()));
    let pid = child.id().cast_signed();
    let mut stdin = child.stdin.as_ref().unwrap();
    let mut forest = forest();
    place_until(&mut forest, pid, |owner| matches!(owner, Owner::NotNamed(_)));
    while std::fs::read_link(format!("/proc/{pid}/fd/3")).ok().as_ref() != Some(&fifo) {
        std::thread::yield_now();
    }
    // No process can close the FIFO meanwhile: the exit takes as long.
    let locked = LockedPipe::lock(own_end.into());
    stdin.write_all(b"\n").unwrap();
    place_until(&mut forest, pid, |owner| matches!(owner, Owner::Exiting(_)));
    assert!(!forest.all_judged(Instant::now() + 2 * UNKNOWN_OWNER_TIMEOUT));
    // It counts as unknown since the first look.
    let since = forest.unknown_since().unwrap();
    place_until(&mut forest, pid, |owner| matches!(owner, Owner::Exiting(_)));
    assert_eq!(forest.unknown_since(), Some(since));
    locked.unlock(b'x');
    place_until(&mut forest, pid, |owner| *owner == Owner::Ended);
    assert!(forest.all_judged(Instant::now()));
    end_child(child);
}

#[test]
fn a_pid_that_is_another_s_now_is_not_signalled() {
    let me = std::process::id().cast_signed();
    let impostor = Member { pid: me, start: 1, command: String::new() };
    assert!(!signal(&impostor, libc::SIGKILL));
    assert!(!signal(&Member { pid: 1, ..impostor.clone() }, 0));
    assert!(!signal(&Member { pid: 0, ..impostor }, 0));
}

#[test]
fn group_that_its_root_has_left_is_not_signalled() {
    let child = shell("read x");
    let root = child.id().cast_signed();
    let stat = Stat::read(root).unwrap();
    let group = |number, root_start| Group { number, root, root_start };
    assert!(group(stat.group, stat.start).has_its_root());
    assert!(!group(stat.group + 1, stat.start).has_its_root());
    assert!(!group(stat.group, stat.start + 1).has_its_root());
    end_child(child);
}
