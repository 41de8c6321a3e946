//! Ready when one of its tree listens on a TCP port, v4 or v6.
//!
//! Whether anyone listens is cheap to see: one file of the kernel. Only then it is looked who that
//! is: a stranger on the same port, or on the same port of another address, does not count.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::time::Duration;

use tokio::time::sleep;

use super::Candidate;
use crate::supervisor::worker_pool::Workers;

/// Pauses between looks: the first, and the longest that it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Of so many looks one goes through the tree in any case: a descendant may live in a network
/// namespace of its own, where the cheap look sees nothing.
const THOROUGH: u32 = 4;

/// How the kernel writes that a socket listens.
const LISTEN: &str = "0A";

pub(super) async fn listens(port: u16, candidate: &Candidate) {
    let (pid, workers) = (candidate.pid, &candidate.workers);
    let mut pause = FIRST_PAUSE;
    let mut looks = 0;
    loop {
        looks = (looks + 1) % THOROUGH;
        let someone = looks == 0 || look(workers, move || !sockets(pid, port).is_empty()).await;
        if someone {
            // Refused only if it is gone.
            let members = candidate.keeper.members(candidate.key).await.unwrap_or_default();
            let pids: Vec<u32> = members.into_iter().map(|member| member.pid).collect();
            if look(workers, move || one_listens(&pids, port)).await {
                return;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Looks on a thread apart: with many sockets or descriptors it takes a while.
async fn look(workers: &Workers, look: impl FnOnce() -> bool + Send + 'static) -> bool {
    workers.run(look).await.unwrap_or(false)
}

/// Whether one of these processes has a socket that listens on the port.
fn one_listens(pids: &[u32], port: u16) -> bool {
    let mut known: HashMap<Option<OsString>, HashSet<u64>> = HashMap::new();
    pids.iter().any(|pid| {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let namespace = namespace.map(|link| link.into_os_string());
        let sockets = known.entry(namespace).or_insert_with(|| sockets(*pid, port));
        !sockets.is_empty() && has_one_of(*pid, sockets)
    })
}

/// The sockets that listen on the port, by their inodes, in the network of a process.
fn sockets(pid: u32, port: u16) -> HashSet<u64> {
    let tables = ["tcp", "tcp6"].map(|table| File::open(format!("/proc/{pid}/net/{table}")));
    let lines = tables
        .into_iter()
        .flatten()
        .flat_map(|table| BufReader::new(table).lines().map_while(Result::ok));
    lines.filter_map(|line| listening(&line, port)).collect()
}

/// Whether a process has one of these sockets open.
fn has_one_of(pid: u32, sockets: &HashSet<u64>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        target.to_str().and_then(socket).is_some_and(|inode| sockets.contains(&inode))
    })
}

/// The inode of a socket that listens on the port, from a line of `/proc/net/tcp`.
fn listening(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (local, state) = (fields.nth(1)?, fields.nth(1)?);
    let (_, local_port) = local.rsplit_once(':')?;
    let local_port = u16::from_str_radix(local_port, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    (state == LISTEN && local_port == port).then_some(inode)
}

/// The inode of a socket, from where its descriptor leads to.
fn socket(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0000000000000000 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22 1 0000000000000000 100 0 0 10 0
   3: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
";

    #[test]
    fn only_sockets_that_listen_on_the_port_are_found() {
        let found =
            |port| TABLE.lines().filter_map(|line| listening(line, port)).collect::<Vec<_>>();
        assert_eq!(found(8080), [4711, 4713]);
        assert_eq!(found(22), [22]);
        assert!(found(50000).is_empty());
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in ["", "0:", "0: x:y z 0A", "0: 0:1F90 0 0A a b c d e f", "0: 0 0 0A 0 0 0 0 0 1"]
        {
            assert_eq!(listening(line, 8080), None, "{line}");
        }
        assert_eq!(socket("socket:[12]"), Some(12));
        for target in ["pipe:[12]", "socket:[", "socket:[x]", "/dev/null", ""] {
            assert_eq!(socket(target), None, "{target}");
        }
    }

    #[test]
    fn a_socket_is_its_holders_and_nobody_elses() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id();
        assert!(one_listens(&[own], port));
        assert!(!one_listens(&[own + 1, u32::MAX], port));
        drop(listener);
        assert!(!one_listens(&[own], port));
    }
}
