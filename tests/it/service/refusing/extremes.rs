//! Every field of every request at its extremes, as the descriptors tell which there are.

use std::time::Duration;

use http::uri::PathAndQuery;
use procyard::grpc::pb;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::fits_into_headers;
use super::garbage::Raw;
use crate::support::service::*;
use crate::support::{full_volume, soon};

/// How long the first message of a stream is waited for. There may be none for long.
const PATIENCE: Duration = Duration::from_millis(10);
/// Most repetitions of a field.
const MANY: usize = 2000;
/// By how many bytes the server's memory may grow, of which most is what the allocator keeps.
const GROWTH: u64 = 96 << 20;

/// All messages and methods there are.
struct Descriptors(FileDescriptorSet);

impl Descriptors {
    fn read() -> Descriptors {
        Descriptors(FileDescriptorSet::decode(pb::FILE_DESCRIPTORS).unwrap())
    }

    /// Each method with its request.
    fn methods(&self) -> Vec<(&str, &DescriptorProto)> {
        let services = self.0.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| &service.method);
        methods.map(|method| (method.name(), self.message(method.input_type()))).collect()
    }

    /// A message by its whole name, `.package.Message` or `.package.Message.Inner`.
    fn message(&self, name: &str) -> &DescriptorProto {
        fn named<'a>(among: &'a [DescriptorProto], path: &str) -> Option<&'a DescriptorProto> {
            let (first, inner) = path.split_once('.').unwrap_or((path, ""));
            let found = among.iter().find(|message| message.name() == first)?;
            if inner.is_empty() { Some(found) } else { named(&found.nested_type, inner) }
        }
        let inside =
            |package: &str| name.strip_prefix('.')?.strip_prefix(package)?.strip_prefix('.');
        let mut files = self.0.file.iter();
        files
            .find_map(|file| named(&file.message_type, inside(file.package())?))
            .unwrap_or_else(|| panic!("no message {name}"))
    }

    /// The bytes of a message in which one field is at one of its extremes, for all fields and
    /// extremes, with the path of the field.
    fn extremes(&self, message: &DescriptorProto) -> Vec<(String, Vec<u8>)> {
        let mut extremes = Vec::new();
        for field in &message.field {
            let values = match field.r#type() {
                Type::Message => self.extremes(self.message(field.type_name())),
                kind => scalars(kind).into_iter().map(|value| (String::new(), value)).collect(),
            };
            if field.r#type() == Type::Message {
                // Nothing in it, and what is no message.
                extremes.push((field.name().into(), tagged(field, &[])));
                extremes.push((field.name().into(), tagged(field, b"\xff\xff\xff")));
            }
            for (path, value) in values {
                let path = format!("{}.{path}", field.name()).trim_end_matches('.').to_owned();
                let wire = tagged(field, &value);
                // Of those that may be repeated, and are small, there are many too.
                if field.label() == prost_types::field_descriptor_proto::Label::Repeated
                    && value.len() < 100
                {
                    extremes.push((format!("{path} many times"), wire.repeat(MANY)));
                }
                extremes.push((path, wire));
            }
        }
        extremes
    }
}

/// A field on the wire.
fn tagged(field: &FieldDescriptorProto, value: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    let number = u32::try_from(field.number()).unwrap();
    let kind = match field.r#type() {
        Type::Message | Type::String | Type::Bytes => WireType::LengthDelimited,
        Type::Double => WireType::SixtyFourBit,
        _ => WireType::Varint,
    };
    encode_key(number, kind, &mut wire);
    if kind == WireType::LengthDelimited {
        encode_varint(value.len() as u64, &mut wire);
    }
    wire.extend_from_slice(value);
    wire
}

/// The extremes of a field that is no message.
fn scalars(kind: Type) -> Vec<Vec<u8>> {
    let huge = 1 << 20;
    match kind {
        Type::String | Type::Bytes => vec![
            Vec::new(),
            b"\0".to_vec(),
            b"\xff\xfe".to_vec(),
            b"../../etc/passwd".to_vec(),
            b"((((a{100}){100}){100}){100})".to_vec(),
            "\u{10ffff}\u{202e}\n".into(),
            vec![b'x'; huge],
            "ä".repeat(huge / 2).into(),
        ],
        Type::Double => {
            let extremes = [
                0.0,
                -0.0,
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::MAX,
                f64::MIN_POSITIVE,
            ];
            extremes.map(|value: f64| value.to_le_bytes().to_vec()).to_vec()
        }
        Type::Bool | Type::Enum | Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 => {
            let signed = [i64::from(i32::MIN), i64::from(i32::MAX), i64::MIN, i64::MAX];
            let extremes = [0, 1, u64::from(u32::MAX), u64::MAX].into_iter();
            let varint = |value| {
                let mut wire = Vec::new();
                encode_varint(value, &mut wire);
                wire
            };
            extremes.chain(signed.map(i64::cast_unsigned)).map(varint).collect()
        }
        other => panic!("no extremes are known of {other:?}"),
    }
}

/// What goes before a field at its extreme, so that the rest of the request is right. It touches
/// nobody: whom it names lives on, is not there, or is matched by nothing.
fn right(method: &str) -> Vec<u8> {
    let id = || "live".to_owned();
    let nobody = || {
        let labels = [("no".to_owned(), "one".to_owned())].into();
        Some(pb::Selector { labels, ..Default::default() })
    };
    match method {
        "Start" => start("", argv(&["true"])).encode_to_vec(),
        "Get" | "Screen" => pb::GetRequest { id: id() }.encode_to_vec(),
        "List" | "GetServerInfo" => Vec::new(),
        "Read" => pb::ReadRequest { id: id(), ..Default::default() }.encode_to_vec(),
        "Follow" => pb::FollowRequest { id: id(), ..Default::default() }.encode_to_vec(),
        "Wait" => pb::WaitRequest { wait: Some(within(0, until_exit())), ..wait_for_it("live") }
            .encode_to_vec(),
        "WriteStdin" => {
            let wait = Some(within(0, until_exit()));
            pb::WriteStdinRequest { id: id(), wait, ..Default::default() }.encode_to_vec()
        }
        "Resize" => pb::ResizeRequest { id: id(), rows: 24, cols: 80 }.encode_to_vec(),
        "Signal" => pb::SignalRequest { id: id(), signal: "CONT".into(), ..Default::default() }
            .encode_to_vec(),
        "Kill" => {
            let target = nobody().map(pb::kill_request::Target::Selector);
            pb::KillRequest { target, ..Default::default() }.encode_to_vec()
        }
        "Run" => run_again("missing").encode_to_vec(),
        "Delete" => {
            pb::DeleteRequest { id: "missing".into(), ..Default::default() }.encode_to_vec()
        }
        "Watch" => pb::WatchRequest { selector: nobody(), ..Default::default() }.encode_to_vec(),
        "Attach" => {
            let start = pb::AttachStart { id: id(), ..Default::default() };
            let message = Some(pb::attach_request::Message::Start(start));
            pb::AttachRequest { message }.encode_to_vec()
        }
        "Sleep" => {
            pb::SleepRequest { duration: Some(millis(100)), ..Default::default() }.encode_to_vec()
        }
        other => panic!("{other} is new"),
    }
}

/// The answer to a call, as far as it comes soon.
async fn call(channel: &Channel, method: &str, request: Vec<u8>) -> Result<(), Status> {
    let path = format!("/procyard.v1.ProcessService/{method}");
    let path = PathAndQuery::from_maybe_shared(path).unwrap();
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let mut stream = grpc.server_streaming(Request::new(request), path, Raw).await?.into_inner();
    match tokio::time::timeout(PATIENCE, stream.message()).await {
        Ok(message) => message.map(drop),
        Err(_) => Ok(()),
    }
}

/// Bytes of memory that a process has.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_at_its_extremes_is_taken_or_refused_in_words() {
    let service = TestService::start();
    let mut client = service.client().await;
    let server = service.server_pid();
    begin_ready(&mut client, "live", on_terminal(stubborn(0))).await;
    let channel = service.channel().await;
    let known = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::PermissionDenied,
        Code::ResourceExhausted,
    ];
    let descriptors = Descriptors::read();
    let rounds = if full_volume() { 3 } else { 1 };
    let (mut calls, mut refusals, before) = (0, 0, resident(server));
    for _ in 0..rounds {
        for (method, request) in descriptors.methods() {
            for (field, extreme) in descriptors.extremes(request) {
                let bytes = [right(method), extreme].concat();
                calls += 1;
                if let Err(status) = soon(call(&channel, method, bytes)).await {
                    refusals += 1;
                    assert!(known.contains(&status.code()), "{method}, {field}: {status:?}");
                    assert!(!reason(&status).is_empty(), "{method}, {field}: {status:?}");
                    fits_into_headers(&status);
                }
            }
        }
    }
    let grown = resident(server).saturating_sub(before);
    println!("{calls} calls, {refusals} refused, {grown} bytes more");
    assert!(grown < GROWTH, "{grown} bytes more after {calls} calls");
    assert!(refusals > calls / 4 && refusals < calls, "{refusals} of {calls}");
    assert_eq!(service.server_pid(), server, "the server was replaced");
    assert_eq!(get(&mut client, "live").await.state(), pb::State::Running);
    assert_eq!(output_of(&mut client, shell("echo alive")).await, "alive\n");
}
