//! Orphans are placed once, in slices, and by what cannot be another's.

use std::sync::{Arc, Mutex, mpsc};

use super::*;

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
    fn own(&self) -> usize {
        0
    }

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
    let (orphans, seen, earlier) = (HashMap::new(), HashMap::new(), HashMap::new());
    let environs = EnvironReader::default();
    Forest { keeper, list: None, orphans, seen, earlier, environs }
}

fn shell(line: &str) -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", line]).env_remove("PROCYARD_ID");
    command.stdin(std::process::Stdio::piped()).spawn().unwrap()
}

fn end_child(mut child: std::process::Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The keeper has started all of its children itself.
struct AllOwn;

impl Known for AllOwn {
    fn own(&self) -> usize {
        0
    }

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
    let pass = || Pass { children: vec![pid], which: Which::Unplaced };
    assert!(forest.advance(&mut pass(), &OneProcess, None));
    assert!(forest.orphans.contains_key(&pid));
    assert!(forest.advance(&mut pass(), &AllOwn, None));
    assert!(forest.orphans.is_empty());
    end_child(child);
}

#[test]
fn environment_is_searched_again_only_after_an_exec() {
    let mut child = shell("read x; PROCYARD_ID=a exec sleep 600");
    let pid = child.id().cast_signed();
    let mut forest = forest();
    let mut place = || {
        forest.place(pid, &OneProcess);
        let orphan = &forest.orphans[&pid];
        (orphan.owner, orphan.searched.clone())
    };
    let begin = Instant::now();
    let mut first = place();
    // It has its environment when it has executed the shell. The kernel sets the name of the program before it
    // sets the end of the environment.
    let is_empty = |searched: &Searched| searched.environ.0 == searched.environ.1;
    while first.1.as_ref().is_none_or(is_empty)
        || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sh\n"
    {
        assert!(begin.elapsed().as_secs() < 60, "it has no environment");
        first = place();
    }
    assert_eq!(place(), first);
    assert_eq!(first.0, None);
    drop(child.stdin.take());
    while place().0.is_none() {
        assert!(begin.elapsed().as_secs() < 60, "another environment was not searched");
    }
    assert_eq!(place().0, Some(KEY));
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
        forest.place(child.id().cast_signed(), &OneProcess);
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
    forest.place(pid, &OneProcess);
    assert_eq!(forest.orphans[&pid].owner, None, "its pid was another process's");
    forest.remember(KEY, &[member]);
    forest.place(pid, &OneProcess);
    assert_eq!(forest.orphans[&pid].owner, Some(KEY));
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
