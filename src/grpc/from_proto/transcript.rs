//! Requests of `transcript.proto`: Read and Follow.

use std::time::Duration;

use super::problems::Problems;
use super::values::{Span, duration, existing_id, heartbeat, words};
use super::view::{live_view, view};
use crate::grpc::pb;
use crate::process::AnyOf;
use crate::supervisor::Error;
use crate::transcript::{Stream, View};

/// How long a read may wait.
const WAIT: Span = Span::new(Duration::ZERO, Duration::from_secs(600), "up to 10 min");

/// A part of a transcript to read.
#[derive(Clone, Debug)]
pub struct ReadOrder {
    /// The process.
    pub id: String,
    /// First chunk to read; none: the oldest that is kept.
    pub since_seq: Option<u64>,
    /// Streams that pass.
    pub streams: AnyOf<Stream>,
    /// How the answer shows it.
    pub view: View,
    /// How long to wait when there is nothing to read.
    pub wait: Duration,
    /// The last chunk that is no longer needed, if any.
    pub ack_seq: Option<u64>,
}

/// A transcript to follow.
#[derive(Clone, Debug)]
pub struct FollowOrder {
    /// The process.
    pub id: String,
    /// First chunk to read; none: the oldest that is kept.
    pub since_seq: Option<u64>,
    /// Streams that pass.
    pub streams: AnyOf<Stream>,
    /// The last chunk that is no longer needed, if any.
    pub ack_seq: Option<u64>,
    /// How it is shown.
    pub view: View,
    /// Time without news until a heartbeat.
    pub heartbeat: Duration,
}

impl TryFrom<pb::ReadRequest> for ReadOrder {
    type Error = Error;

    fn try_from(request: pb::ReadRequest) -> Result<ReadOrder, Error> {
        let pb::ReadRequest { id, since_seq, streams, view: shown, wait, ack_seq } = request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let streams = words(problems, "streams", streams);
            let shown = view(problems, shown);
            let wait = duration(problems, "wait", wait, &WAIT);
            Ok(ReadOrder {
                id: id?,
                since_seq: since_seq.map(first),
                streams: streams.into(),
                view: shown?.unwrap_or_default(),
                wait: wait?.unwrap_or_default(),
                ack_seq: acknowledged(ack_seq),
            })
        })
    }
}

impl TryFrom<pb::FollowRequest> for FollowOrder {
    type Error = Error;

    fn try_from(request: pb::FollowRequest) -> Result<FollowOrder, Error> {
        let pb::FollowRequest { id, since_seq, streams, ack_seq, heartbeat_interval, view: shown } =
            request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let streams = words(problems, "streams", streams);
            let shown = live_view(problems, shown);
            let heartbeat = heartbeat(problems, heartbeat_interval);
            Ok(FollowOrder {
                id: id?,
                since_seq: since_seq.map(first),
                streams: streams.into(),
                ack_seq: acknowledged(ack_seq),
                view: shown?.unwrap_or_default(),
                heartbeat: heartbeat?,
            })
        })
    }
}

/// Chunks are counted from 1: whoever asks for 0 means the first there ever was, and is not to
/// be told of a chunk 0 that is missing.
pub(super) fn first(seq: u64) -> u64 {
    seq.max(1)
}

fn acknowledged(seq: u64) -> Option<u64> {
    (seq > 0).then_some(seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    #[test]
    fn a_plain_read_is_filled_in() {
        let request = pb::ReadRequest { id: "a".into(), ..Default::default() };
        let order = ReadOrder::try_from(request).unwrap();
        let ReadOrder { id, since_seq, streams: _, view, wait, ack_seq } = &order;
        assert_eq!((&id[..], since_seq, wait, ack_seq), ("a", &None, &Duration::ZERO, &None));
        assert!(view.is_plain() && view.max_bytes == 1 << 20);
        assert!(order.streams.contains(Stream::Stderr));
        let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
        let order = FollowOrder::try_from(request).unwrap();
        assert_eq!(order.heartbeat, Duration::from_secs(15));
        assert!(order.view.is_plain());
    }

    #[test]
    fn only_the_streams_that_are_named_pass() {
        let request = pb::FollowRequest {
            id: "a".into(),
            since_seq: Some(0),
            streams: vec![2, 2],
            ack_seq: 7,
            heartbeat_interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            view: None,
        };
        let order = FollowOrder::try_from(request).unwrap();
        assert!(order.streams.contains(Stream::Stderr) && !order.streams.contains(Stream::Stdout));
        assert_eq!((order.since_seq, order.ack_seq), (Some(1), Some(7)));
        assert_eq!(order.heartbeat, Duration::from_secs(1));
    }

    #[test]
    fn a_bad_read_tells_all_that_is_bad() {
        let too_long = Some(prost_types::Duration { seconds: 601, nanos: 0 });
        let request = pb::ReadRequest {
            streams: vec![-1],
            view: Some(pb::View { max_bytes: (3 << 20) + 1, ..Default::default() }),
            wait: too_long,
            ..Default::default()
        };
        assert_eq!(
            refused(ReadOrder::try_from(request)),
            [
                "id: required: the id of a process",
                "streams[0]: is -1: one of STREAM_STDOUT, STREAM_STDERR, STREAM_TERMINAL",
                "view.max_bytes: is 3145729: up to 3145728 (3 MiB)",
                "wait: is 601s: up to 10 min",
            ]
        );
        let request = pb::FollowRequest {
            id: "a".into(),
            heartbeat_interval: too_long,
            ..Default::default()
        };
        let told = refused(FollowOrder::try_from(request));
        assert_eq!(told, ["heartbeat_interval: is 601s: 1 s to 10 min"]);
    }
}
