//! The poller: lists everything again and again, and looks whether it can be true.
//!
//! Nobody is RUNNING whose process is not there; nobody who has finished lives again in the same run;
//! and whoever has finished did so as promised.

use std::collections::HashMap;
use std::time::Duration;

use procyard::grpc::pb::{self, State};

use crate::calls::{Caller, Failure};
use crate::promise::Promise;
use crate::world::Client;

/// Between two lists.
const PAUSE: Duration = Duration::from_millis(700);
/// How long a server may take to notice that somebody is gone, besides its own outage.
const NOTICE: Duration = Duration::from_secs(2);

pub(crate) async fn run(mut caller: Caller) {
    // The runs of those who have finished.
    let mut finished: HashMap<String, u32> = HashMap::new();
    while !caller.world.stopped() {
        tokio::time::sleep(PAUSE).await;
        let Some(all) = list(&mut caller).await else { return };
        let mut gone = Vec::new();
        for process in &all {
            look(&caller, process, &finished);
            if process.state() == State::Running && !exists(process.pid) {
                gone.push(process.clone());
            }
        }
        let over = all.into_iter().filter(|process| process.state() == State::Exited);
        finished = over.map(|process| (process.id, process.run)).collect();
        phantoms(&mut caller, gone).await;
    }
}

/// All records, page by page.
async fn list(caller: &mut Caller) -> Option<Vec<pb::Process>> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let list = |mut client: Client| {
            let page_token = page_token.clone();
            let request = pb::ListRequest { page_size: 500, page_token, ..Default::default() };
            async move { client.list(request).await }
        };
        let answer = caller.ask("List", list).await;
        let answer = caller.granted("List", answer)?;
        all.extend(answer.processes);
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            return Some(all);
        }
    }
}

fn look(caller: &Caller, process: &pb::Process, finished: &HashMap<String, u32>) {
    let (world, id) = (&caller.world, &process.id);
    if !world.knows(id) {
        world.violation(format!("{id}: is listed, and nobody started it"));
    }
    match process.state() {
        State::Exited => world.check(id, Promise::kept(process)),
        state if finished.get(id).is_some_and(|run| *run >= process.run) => {
            world.violation(format!("{id}: run {} had finished, and is {state:?}", process.run));
        }
        _ => {}
    }
}

/// Looks once more at those who were RUNNING and were not there.
async fn phantoms(caller: &mut Caller, gone: Vec<pb::Process>) {
    if gone.is_empty() {
        return;
    }
    tokio::time::sleep(NOTICE).await;
    for before in gone {
        let now = match caller.get(&before.id).await {
            Ok(now) => now,
            // It was deleted.
            Err(Failure::Refused(_)) => continue,
            Err(_) => return,
        };
        let same = (now.pid, now.run, now.restarts) == (before.pid, before.run, before.restarts);
        if same && now.state() == State::Running && !exists(now.pid) {
            let (id, pid) = (now.id, now.pid);
            caller.world.violation(format!("{id}: RUNNING, and there is no process {pid}"));
        }
    }
}

/// Whether there is such a process, and it has not ended.
fn exists(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name is in parentheses, and may hold some itself.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}
