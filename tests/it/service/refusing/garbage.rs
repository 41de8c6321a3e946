//! Bytes that are no message, or one that nobody would send.

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use super::is_untouched;
use crate::support::service::*;
use crate::support::{full_volume, soon};

/// Sends and takes bytes as they are.
#[derive(Clone, Copy, Default)]
pub(super) struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

const METHODS: [&str; 17] = [
    "Start",
    "Get",
    "List",
    "Read",
    "Follow",
    "Wait",
    "WriteStdin",
    "Resize",
    "Signal",
    "Kill",
    "Run",
    "Delete",
    "Watch",
    "Attach",
    "Screen",
    "Sleep",
    "GetServerInfo",
];

/// The first answer of a method to these bytes.
async fn call(service: &TestService, method: &str, bytes: Vec<u8>) -> Result<(), Status> {
    let path = format!("/procyard.v1.ProcessService/{method}");
    let path = PathAndQuery::from_maybe_shared(path).unwrap();
    let mut grpc = tonic::client::Grpc::new(service.channel().await);
    grpc.ready().await.unwrap();
    let mut stream = grpc.server_streaming(Request::new(bytes), path, Raw).await?.into_inner();
    stream.message().await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_refused_in_words_or_mean_something_harmless() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize
    };
    let rounds = if full_volume() { 2000 } else { 60 };
    for _ in 0..rounds {
        for method in METHODS {
            let length = next() % 40;
            // Small first bytes are tags of fields that exist.
            let mut bytes: Vec<u8> =
                (0..length).map(|n| (next() % [64, 256][n % 2]) as u8).collect();
            // Whatever it says, what comes last cannot be: an id, and a time below zero.
            match method {
                "Start" => bytes.extend(b"\x0a\x03../"),
                "Sleep" => bytes.extend([&b"\x0a\x0b\x10"[..], &[0xff; 9], &[1]].concat()),
                _ => {}
            }
            if let Err(status) = soon(call(&service, method, bytes)).await {
                assert_eq!(details(&status).error_info().unwrap().domain, "procyard");
                let known = [Code::InvalidArgument, Code::NotFound, Code::OutOfRange];
                assert!(known.contains(&status.code()), "{method}: {status:?}");
            }
        }
    }
    is_untouched(&service, server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_cut_off_or_lies_about_its_length_is_refused() {
    let service = TestService::start();
    let server = service.server_pid();
    for bytes in [
        b"\x0a\x7fshort".to_vec(),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
        b"\x0a\x02\xff\xfe".to_vec(),
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        // Groups within groups within groups.
        vec![0x0b; 10_000],
        // An unknown field of a wire type that does not exist.
        b"\x0f".to_vec(),
    ] {
        for method in METHODS
            .into_iter()
            .filter(|method| !["Watch", "List", "GetServerInfo"].contains(method))
        {
            let status = soon(call(&service, method, bytes.clone())).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{method}: {status:?}");
            assert_eq!(reason(&status), "INVALID_FIELD");
        }
    }
    let status = soon(call(&service, "Nothing", Vec::new())).await.unwrap_err();
    assert_eq!((status.code(), &reason(&status)[..]), (Code::Unimplemented, "UNKNOWN_METHOD"));
    is_untouched(&service, server).await;
}
