//! What is sent arrives as it was, and what makes no sense is refused.

use super::*;

#[test]
fn a_launch_arrives_as_it_was_sent() {
    let mut launch = Launch::new("id", [&b"prog"[..], b"\xff\x00"]);
    launch.env = vec![(b"A".to_vec(), b"\xfe".to_vec())];
    launch.cwd = b"/tmp".to_vec();
    launch.user = Some(User { uid: 1, gid: 2, groups: vec![3, 4] });
    launch.rlimits = vec![(7, 100)];
    (launch.nice, launch.oom_score_adj) = (Some(-3), Some(500));
    (launch.run, launch.first_seq, launch.ring_bytes) = (9, 77, 1 << 20);
    launch.overflow = Overflow::Block;
    launch.limits = TreeLimits { memory_bytes: 1 << 40, processes: 3, milli_cpus: 1500 };
    (launch.roots, launch.beside) = (vec![b"/a\xff".to_vec()], Some(7));
    launch.sandbox = Sandbox {
        files: Files::WorkspaceWrite,
        writable: vec!["/b".into()],
        own_pids: true,
        own_mounts: true,
        own_network: true,
        no_new_privileges: true,
    };
    let size = Size { rows: 1, cols: 1000 };
    for io in [Io::Terminal(size), Io::Pipes { stdin: true, merge_stderr: true }] {
        launch.io = io;
        assert_eq!(Launch::try_from(pb::Spawn::from(launch.clone())), Ok(launch.clone()));
    }
}

#[test]
fn a_launch_out_of_range_is_refused_with_the_range() {
    let refusal = |change: fn(&mut pb::Spawn)| {
        let mut spawn = pb::Spawn::from(Launch::new("id", ["prog"]));
        change(&mut spawn);
        Launch::try_from(spawn).unwrap_err().to_string()
    };
    assert!(refusal(|spawn| spawn.ring_bytes = 65_535).contains("64 KiB to 1 GiB"));
    assert!(refusal(|spawn| spawn.first_seq = 0).contains("begin with 1"));
    let files = |spawn: &mut pb::Spawn| {
        spawn.sandbox = Some(pb::Sandbox { files: 9, ..Default::default() });
    };
    assert!(refusal(files).contains("not known here"));
    assert!(refusal(|spawn| spawn.io = None).contains("neither pipes nor terminal"));
    assert!(
        refusal(|spawn| {
            let terminal = pb::Terminal { rows: 0, cols: 65_535 };
            spawn.io = Some(pb::spawn::Io::Terminal(terminal));
        })
        .contains("1 to 1000 each")
    );
}

fn killed() -> Exit {
    Exit {
        status: Status::Signal(9),
        core_dumped: false,
        time: 1,
        usage: Usage::default(),
        final_seq: 2,
        lingering: vec![Descendant { pid: 3, command: "x".into() }],
        oom_kills: 4,
        killed: true,
        own_cpu_micros: Some(5),
    }
}

#[test]
fn an_exit_arrives_as_it_was_sent() {
    for exit in [killed(), Exit { killed: false, own_cpu_micros: None, ..killed() }] {
        assert_eq!(Exit::try_from(pb::Exit::from(exit.clone())), Ok(exit));
    }
}

#[test]
fn a_keeper_of_before_is_believed_whether_memory_was_wanting() {
    let told = |out_of_memory, oom_kills| {
        let wire = pb::Exit::from(killed());
        let (killed, own_cpu_micros) = (None, None);
        let wire = pb::Exit { out_of_memory, oom_kills, killed, own_cpu_micros, ..wire };
        let exit = Exit::try_from(wire).unwrap();
        (exit.killed, exit.own_cpu_micros)
    };
    // Nobody else killed it, and no limit of CPU time was used up.
    assert_eq!(told(true, 1), (false, Some(0)));
    assert_eq!(told(false, 1), (true, Some(0)));
    assert_eq!(told(false, 0), (false, Some(0)));
}

#[test]
fn a_refusal_arrives_as_it_was_meant() {
    let input = InputState { open: true, accepted: 5, pending: 3 };
    let path = "/nowhere".to_owned();
    let refusals = [
        Refused::Invalid("why".into()),
        Refused::UnknownProcess,
        Refused::SpawnFailed { step: "cannot execute".into(), errno: 2, path },
        Refused::TooMany,
        Refused::NotRunning,
        Refused::StillRunning,
        Refused::NotATerminal,
        Refused::StdinNotOpen,
        Refused::StdinFull(input),
        Refused::InputOffset(input),
        Refused::SignalFailed(1),
        Refused::Version("why".into()),
    ];
    for refused in refusals {
        assert_eq!(Refused::from(pb::Refusal::from(refused.clone())), refused);
    }
}
