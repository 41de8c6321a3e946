//! A procyard that was started by a process of another one, and outlives that process.

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{binary, skip, soon, until};

/// Starts a procyard in the background and ends, so that it lives on in the leaf of this process.
/// `$1` is the program, `$2` a directory.
const START_INNER: &str = r#"
setsid "$1" serve --state-dir "$2/state" --listen "unix://$2/socket" </dev/null >/dev/null 2>&1 &
echo $!
until [ -S "$2/socket" ]; do sleep 0.01; done
"#;

async fn kill_domain(client: &mut Client) -> pb::KillDomain {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    info.into_inner().capabilities.unwrap().kill_domain()
}

/// How many keepers' directories are on the way to the cgroup of a new process.
async fn keepers_above(client: &mut Client) -> usize {
    let groups = output_of(client, argv(&["cat", "/proc/self/cgroup"])).await;
    groups.lines().find(|line| line.starts_with("0::")).unwrap().matches("/procyard-").count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_leaf_keeps_the_cgroup_of_a_nested_keeper() {
    let service = TestService::start();
    let mut outer = service.client().await;
    if kill_domain(&mut outer).await != pb::KillDomain::Cgroup {
        return skip("no cgroup leaf can be made here");
    }
    let place = service.directory.path().join("inner");
    std::fs::create_dir(&place).unwrap();
    let (program, place) = (binary(), place.to_str().unwrap());
    let spec = argv(&["sh", "-c", START_INNER, "sh", &program, place]);
    finish(&mut outer, "starter", spec).await;
    let pid: u32 = printed(&mut outer, "starter").await.trim().parse().unwrap();
    let channel = soon(connect(format!("{place}/socket").into())).await.unwrap();
    let mut inner = Client::new(channel);
    assert_eq!(kill_domain(&mut inner).await, pb::KillDomain::Cgroup);
    let usual = keepers_above(&mut outer).await;
    assert_eq!(keepers_above(&mut inner).await, usual + 1);
    let delete = pb::DeleteRequest { id: "starter".into(), ..Default::default() };
    soon(outer.delete(delete)).await.unwrap();
    // The keeper serves requests in their order: when this one begins, the leaf was released.
    assert_eq!(keepers_above(&mut outer).await, usual);
    assert_eq!(keepers_above(&mut inner).await, usual + 1, "in a leaf of the inner keeper");
    kill_pid(pid.cast_signed(), libc::SIGTERM);
    until("the inner keeper ends", || !crate::support::alive(pid)).await;
}
