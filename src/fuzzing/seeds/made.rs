//! Seeds, made from what is really sent, written and printed.

use std::io::Read;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use prost::Message;

use crate::fuzzing::requests::REQUESTS;
use crate::grpc::pb;
use crate::process::{Exit, Launch, Refused, Status, Usage};
use crate::protocol::{encode, pb as keeper};
use crate::transcript::archive::{Beginning, Encoder};
use crate::transcript::ring::Frame;
use crate::transcript::{Chunk, Ring, Stream};

/// Target, name and bytes.
type Seed = (&'static str, String, Vec<u8>);

/// What is printed on terminals and pipes.
const PRINTED: [&[u8]; 5] = [
    b"one\r\ntwo\nab\n\nabbb\n",
    b"\x1b[1;31merror\x1b[0m: \x1b]0;title\x07b\n\x1b[?25l\x1b[2J\x1b[3;4H\xe6\xbc\xa2\xe5\xad\x97\x1b[K",
    b"\x1b[?1049h\x1b[2;4r\x1b[?6h\x1b(0lqqk\x1b(B\x1b[5b\x1b[4hX\x1b[4l\x1b7\x1b8\x1bM\x1b[!p\x1bc",
    b"\xff\xfe a\tb\x08\x07\xc2\x9b1m e\xcc\x81 \xf0\x9f\x91\x8d \x1bP1;2|data\x1b\\ 10%\r 20%\r\n",
    b"\x1b[38;5;208;48:2::1:2:3m#\x1b[7;999H\x1b[999C\x1b[999D\x1b[3g\x1b[5G\x1bH\r\t\x1b[Z\x1b[1P\x1b[2@\x1b[3L\x1b[4M\x1b[2T\x1b[2S",
];

pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = requests();
    seeds.push(("ring", "written".into(), ring()));
    seeds.extend(archives());
    seeds.push(("keeper_protocol", "asked".into(), asked()));
    seeds.push(("keeper_protocol", "told".into(), told()));
    let keys = "ctrl+c\nC-M-x\nS-Tab\nBTab\nf12\nalt+F1\npgup\nshift+up\né\n+\nM--\nctrl+space";
    seeds.push(("keys", "names".into(), keys.into()));
    seeds.extend(patterns());
    for (number, output) in (0..).zip(PRINTED) {
        let size = [number, 4, 19, 2, 9, 1, number];
        seeds.push(("screen", format!("printed-{number}"), [&size, output].concat()));
        for view in 0..3 {
            let view = [number & 1, number * 2 + view, view, 2 - view, 1, 40 * view, 0, 1, 2, 9];
            let name = format!("printed-{number}-{}", view[1]);
            seeds.push(("views", name, [&view, output].concat()));
        }
    }
    let headers: [&[u8]; 4] = [
        b"\0\0\0\0\x0c\x01\x28\0\0\0\x01\x02\x80\0\0\0\x10\x83\x41\x04%pp",
        b"\0\0\x04\x09\x04\0\0\0\x01%%%\x86\0\0\x03\x00\x01\0\0\0\x01\x41\x01%",
        b"\0\0\x23\x01\x04\0\0\0\x01@\x0a:authority\x13run%2Fprocyard.sock\x83\x86",
        b"\0\0\x0e\x01\x04\0\0\0\x03\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x01%\x3f\xe1\x1f",
    ];
    seeds.push(("header_block", "calls".into(), headers.concat()));
    seeds.push(("header_block", "http1".into(), b"\x01\x03POST / HTTP/1.1\r\n\r\n".into()));
    seeds
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 1_000_000 })
}

fn view() -> Option<pb::View> {
    Some(pb::View {
        max_bytes: 4096,
        strip_ansi: true,
        head_lines: 3,
        tail_lines: 4,
        grep: "a|b".into(),
        context: 1,
        ignore_case: true,
    })
}

fn wait(until: pb::wait_for::Until) -> Option<pb::WaitFor> {
    Some(pb::WaitFor { until: Some(until), timeout: seconds(5) })
}

fn selector() -> Option<pb::Selector> {
    Some(pb::Selector {
        states: vec![3],
        outcomes: vec![1, 2],
        r#ref: "r".into(),
        labels: [("k".into(), "v".into())].into(),
        mode: 1,
        ..Default::default()
    })
}

fn specs() -> [pb::Spec; 3] {
    let service = pb::Spec {
        program: Some(pb::spec::Program::Argv(pb::Argv {
            args: vec!["web".into(), "-p".into()],
            raw_args: Vec::new(),
        })),
        io: Some(pb::spec::Io::Terminal(pb::Terminal { rows: 24, cols: 80, term: "vt".into() })),
        mode: pb::Mode::Service.into(),
        service: "web".into(),
        readiness: Some(pb::Readiness {
            probe: Some(pb::readiness::Probe::OutputRegex("up".into())),
            timeout: seconds(9),
            ..Default::default()
        }),
        restart: Some(pb::Restart { policy: 2, max_restarts: 3, ..Default::default() }),
        ..Default::default()
    };
    let shell = pb::Spec {
        program: Some(pb::spec::Program::Shell("make -j4".into())),
        io: Some(pb::spec::Io::Pipes(pb::Pipes { stdin: true, merge_stderr: true })),
        cwd: "/tmp".into(),
        env: Some(pb::Environment {
            set: [("A".into(), "b".into())].into(),
            inherit: vec!["CI*".into()],
            inherit_all: true,
        }),
        name: "build".into(),
        labels: [("k".into(), "v".into())].into(),
        timeout: seconds(60),
        stop: Some(pb::Stop { signal: "INT".into(), grace: seconds(1) }),
        limits: Some(pb::Limits {
            open_files: 64,
            cpu_time: seconds(5),
            cpus: 1.5,
            nice: Some(5),
            ..Default::default()
        }),
        user: Some(pb::User { uid: 1, gid: Some(2), groups: vec![3] }),
        queue: "q".into(),
        transcript_bytes: 1 << 20,
        overflow: 2,
        ..Default::default()
    };
    let script = pb::Script {
        code: "print(1)".into(),
        interpreter: vec!["python3".into()],
        filename: "a.py".into(),
    };
    let script =
        pb::Spec { program: Some(pb::spec::Program::Script(script)), ..Default::default() };
    [service, shell, script]
}

fn requests() -> Vec<Seed> {
    use pb::wait_for::{Exit, Output, Quiet, Until};
    let id = || "a".to_owned();
    let mut seeds = Vec::new();
    let mut add = |method: &str, message: Vec<u8>| {
        let which = REQUESTS.iter().position(|(name, _)| *name == method).unwrap();
        let name = format!("{}-{}", method.to_lowercase(), seeds.len());
        seeds.push(("requests", name, [&[which as u8], &message[..]].concat()));
    };
    for spec in specs() {
        let (wait, spec) = (wait(Until::Exit(Exit {})), Some(spec));
        add("Start", pb::StartRequest { id: id(), spec, wait, view: view() }.encode_to_vec());
    }
    add("Get", pb::GetRequest { id: id() }.encode_to_vec());
    let page_token = crate::grpc::from_proto::page_token(77);
    let list = pb::ListRequest { selector: selector(), live_only: true, page_size: 3, page_token };
    add("List", list.encode_to_vec());
    let (since_seq, streams, heartbeat) = (Some(2), vec![1, 2], seconds(3));
    let read = pb::ReadRequest {
        id: id(),
        since_seq,
        streams: streams.clone(),
        view: view(),
        wait: seconds(2),
        ack_seq: 1,
    };
    add("Read", read.encode_to_vec());
    let follow = pb::FollowRequest {
        id: id(),
        since_seq,
        streams,
        heartbeat_interval: heartbeat,
        ..Default::default()
    };
    add("Follow", follow.encode_to_vec());
    let output = wait(Until::Output(Output { regex: "^(a|b)+$".into() }));
    let waits = pb::WaitRequest { id: id(), wait: output, since_seq, view: view() };
    add("Wait", waits.encode_to_vec());
    let keys = pb::Keys { names: vec!["ctrl+c".into(), "up".into()] };
    let write = pb::WriteStdinRequest {
        id: id(),
        input: Some(pb::write_stdin_request::Input::Keys(keys.clone())),
        enter: true,
        offset: Some(3),
        wait: wait(Until::Quiet(Quiet { r#for: seconds(0) })),
        ..Default::default()
    };
    add("WriteStdin", write.encode_to_vec());
    add("Resize", pb::ResizeRequest { id: id(), rows: 5, cols: 9 }.encode_to_vec());
    add("Signal", pb::SignalRequest { id: id(), signal: "15".into(), group: true }.encode_to_vec());
    let target = selector().map(pb::kill_request::Target::Selector);
    let kill =
        pb::KillRequest { target, signal: Some("KILL".into()), grace: seconds(1), force: true };
    add("Kill", kill.encode_to_vec());
    add("Run", pb::RunRequest { id: id(), force: true }.encode_to_vec());
    add("Delete", pb::DeleteRequest { id: id(), force: true, allow_missing: true }.encode_to_vec());
    let watch = pb::WatchRequest {
        selector: selector(),
        since_event: Some(9),
        kinds: vec![1, 5],
        replay_only: true,
        ..Default::default()
    };
    add("Watch", watch.encode_to_vec());
    let size = Some(pb::TerminalSize { rows: 5, cols: 9 });
    let attach = pb::AttachStart { id: id(), since_seq, size, heartbeat_interval: heartbeat };
    for message in [
        pb::attach_request::Message::Start(attach),
        pb::attach_request::Message::Keys(keys),
        pb::attach_request::Message::Signal("INT".into()),
    ] {
        add("Attach", pb::AttachRequest { message: Some(message) }.encode_to_vec());
    }
    add("Screen", pb::ScreenRequest { id: id() }.encode_to_vec());
    let sleep = pb::SleepRequest {
        duration: seconds(2),
        tick_interval: seconds(6),
        description: "for a while".into(),
        wake_on: selector(),
    };
    add("Sleep", sleep.encode_to_vec());
    seeds
}

/// A ring with a few chunks, as the keeper writes them.
fn ring() -> Vec<u8> {
    let (ring, fd) = Ring::create(512, 1).unwrap();
    let (mut head, mut total) = (0, 0);
    for seq in 1..=4 {
        let stream = Some(if seq == 3 { Stream::Stderr } else { Stream::Stdout });
        let frame = Frame { len: 5, stream, seq, offset: total, total, time: seq };
        ring.set_frame(head, &frame);
        // SAFETY: the frame and its payload lie before the wrap, and nobody else has the ring.
        unsafe { std::ptr::copy_nonoverlapping(b"hello".as_ptr(), ring.payload(head), 5) };
        (head, total) = (head + frame.size(), total + 5);
    }
    let header = ring.header();
    header.head.store(head, Ordering::Release);
    header.next_seq.store(5, Ordering::Release);
    header.total_bytes.store(total, Ordering::Release);
    let mut bytes = [&[0, 0, 1][..], &2_u64.to_le_bytes()].concat();
    std::fs::File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

fn archives() -> Vec<Seed> {
    let beginning = Beginning { first_ever: 1, first_seq: 3, dropped_bytes: 9 };
    let mut encoder = Encoder::begin(beginning, [9, 0, 0]);
    let mut file = Vec::new();
    for (seq, output) in (3..).zip(PRINTED) {
        let data = Bytes::from_static(output);
        encoder.push(&Chunk { seq, stream: Stream::Terminal, offset: 9 * seq, time: seq, data });
        file.extend(encoder.take().0);
    }
    file.extend(encoder.end());
    let from = [4_u64, 30].map(u64::to_le_bytes).concat();
    let seed = |which: u8, rest: &[u8]| [&[which], &from[..], rest].concat();
    vec![
        ("archive", "written".into(), seed(0, &file)),
        ("archive", "sealed".into(), seed(1, &file)),
        ("archive", "altered".into(), seed(2, &[&[90, 0, 3, 7], &PRINTED.concat()[..]].concat())),
        ("archive", "torn".into(), seed(2, &[&[90, 1, 0, 7], &PRINTED.concat()[..]].concat())),
    ]
}

fn asked() -> Vec<u8> {
    use keeper::to_keeper::Body;
    let mut launch = Launch::new("a", [&b"sh"[..], b"-c", b"\xff"]);
    (launch.env, launch.cwd) = (vec![(b"A".to_vec(), b"b".to_vec())], b"/".to_vec());
    let write = keeper::WriteInput { key: 1, data: Bytes::from_static(b"x"), ..Default::default() };
    let mut wire = vec![3];
    for (request, body) in (1..).zip([
        Body::Hello(keeper::Hello { version: 3, release: "0.1.0".into() }),
        Body::Spawn(launch.into()),
        Body::WriteInput(write),
        Body::KillTree(keeper::KillTree { key: 1, signal: 9 }),
    ]) {
        encode(&keeper::ToKeeper { request, body: Some(body) }, &mut wire);
    }
    wire
}

fn told() -> Vec<u8> {
    use keeper::from_keeper::Body;
    let exit = Exit {
        status: Status::Code(3),
        core_dumped: false,
        time: 5,
        usage: Usage::default(),
        final_seq: 7,
        lingering: Vec::new(),
        oom_kills: 1,
        killed: false,
        own_cpu_micros: None,
    };
    let report = keeper::Report { key: 1, exit: Some(exit.into()), ..Default::default() };
    let refused = Refused::SpawnFailed { step: "cannot".into(), errno: 2, path: "/x".into() };
    let result = Some(keeper::reply::Result::Refusal(refused.into()));
    let mut wire = vec![5];
    for body in [
        Body::Reply(keeper::Reply { request: 1, result }),
        Body::Reports(keeper::Reports { reports: vec![report] }),
    ] {
        encode(&keeper::FromKeeper { body: Some(body) }, &mut wire);
    }
    wire
}

fn patterns() -> Vec<Seed> {
    let patterns = [
        r"(\w+) on [0-9]{2,5}\n",
        ">>> $",
        r"(?i)[\p{L}--a]|^x{1,9}?",
        "(?-u:\\xff)|ab(cd",
        "((((a{100}){100}){100}){100})",
    ];
    let seed = |(number, pattern): (u8, &str)| {
        let length = [pattern.len() as u8, 0, number];
        let bytes = [&length, pattern.as_bytes(), b"ready on 8080\n>>> 1\n>>> "].concat();
        ("patterns", format!("pattern-{number}"), bytes)
    };
    (0..).zip(patterns).map(seed).collect()
}
