//! A transcript as clients get it, page by page or live, and the words to ask for it.

use std::collections::BTreeMap;

use procyard::grpc::pb;
use procyard::grpc::pb::follow_response::Message;
use tonic::Streaming;

use super::service::{Client, millis, run};
use super::soon;

/// What a reader got and missed. Every place is checked: numbers without holes, and offsets that
/// follow from what came before, as long as nothing was dropped or all is of one stream.
pub struct Transcript {
    pub next_seq: u64,
    /// All chunks, with their data only if it was asked to keep them.
    pub bytes: BTreeMap<pb::Stream, Vec<u8>>,
    received: BTreeMap<pb::Stream, u64>,
    pub dropped: u64,
    pub gaps: usize,
}

impl Transcript {
    /// Nothing yet; the next chunk is the first.
    pub fn new() -> Transcript {
        let (bytes, received) = Default::default();
        Transcript { next_seq: 1, bytes, received, dropped: 0, gaps: 0 }
    }

    pub fn take(&mut self, gap: Option<pb::Gap>, chunks: &[pb::Chunk]) {
        if let Some(gap) = gap {
            self.skip(gap);
        }
        chunks.iter().for_each(|chunk| self.add(chunk));
    }

    pub fn skip(&mut self, gap: pb::Gap) {
        assert_eq!(gap.from_seq, self.next_seq);
        assert!(gap.to_seq >= gap.from_seq, "an empty gap: {gap:?}");
        self.next_seq = gap.to_seq + 1;
        self.dropped += gap.dropped_bytes.expect("who began at the beginning knows every gap");
        self.gaps += 1;
    }

    pub fn add(&mut self, chunk: &pb::Chunk) {
        let received = self.received.entry(chunk.stream()).or_default();
        assert_eq!((chunk.seq, chunk.offset), (self.next_seq, *received + self.dropped));
        assert!(!chunk.data.is_empty() && chunk.data.len() <= 64 << 10, "{}", chunk.data.len());
        assert!(chunk.time.is_some());
        self.next_seq += 1;
        *received += chunk.data.len() as u64;
        self.bytes.entry(chunk.stream()).or_default().extend_from_slice(&chunk.data);
    }

    pub fn stream(&self, stream: pb::Stream) -> &[u8] {
        self.bytes.get(&stream).map_or(&[], |bytes| bytes)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(self.stream(pb::Stream::Stdout)).into_owned()
    }

    /// Bytes of all streams that came.
    pub fn received(&self) -> u64 {
        self.received.values().sum()
    }
}

/// Starts a process, and waits for its end.
pub async fn run_to_end(client: &mut Client, id: &str, spec: pb::Spec) -> pb::Process {
    soon(client.start(run(id, spec))).await.unwrap().into_inner().process.unwrap()
}

/// Ends a process at once.
pub async fn end(client: &mut Client, id: &str) -> pb::Process {
    let target = Some(pb::kill_request::Target::Id(id.into()));
    let request = pb::KillRequest { target, force: true, ..pb::KillRequest::default() };
    soon(client.kill(request)).await.unwrap().into_inner().processes.remove(0)
}

/// Bytes to be typed.
pub fn typed(id: &str, data: impl AsRef<[u8]>) -> pb::WriteStdinRequest {
    let data = bytes::Bytes::copy_from_slice(data.as_ref());
    let input = Some(pb::write_stdin_request::Input::Data(data));
    pb::WriteStdinRequest { id: id.into(), input, ..pb::WriteStdinRequest::default() }
}

/// Types, and tells how far the input is.
pub async fn write(client: &mut Client, request: pb::WriteStdinRequest) -> pb::WriteStdinResponse {
    soon(client.write_stdin(request)).await.unwrap().into_inner()
}

/// A read from the oldest that is kept.
pub fn read(id: &str) -> pb::ReadRequest {
    pb::ReadRequest { id: id.into(), ..pb::ReadRequest::default() }
}

/// A read from a chunk on that waits for as long as may be.
pub fn read_on(id: &str, since_seq: u64) -> pb::ReadRequest {
    pb::ReadRequest { since_seq: Some(since_seq), wait: Some(millis(600_000)), ..read(id) }
}

/// Pages of a size.
pub fn paged(max_bytes: u32) -> Option<pb::View> {
    Some(pb::View { max_bytes, ..Default::default() })
}

/// Follows from the oldest that is kept.
pub fn follow(id: &str) -> pb::FollowRequest {
    pb::FollowRequest { id: id.into(), ..pb::FollowRequest::default() }
}

/// Waits, and returns the output.
pub fn wait(id: &str, wait: pb::WaitFor) -> pb::WaitRequest {
    let view = Some(pb::View::default());
    pb::WaitRequest { id: id.into(), wait: Some(wait), since_seq: None, view }
}

pub async fn ask_read(client: &mut Client, request: pb::ReadRequest) -> pb::ReadResponse {
    soon(client.read(request)).await.unwrap().into_inner()
}

/// Reads pages until the end, waiting for more. An answer is never empty before the end.
pub async fn read_to_end(client: &mut Client, id: &str, max_bytes: u32) -> Transcript {
    let mut transcript = Transcript::new();
    loop {
        let request =
            pb::ReadRequest { view: paged(max_bytes), ..read_on(id, transcript.next_seq) };
        let answer = ask_read(client, request).await;
        transcript.take(answer.gap, &answer.chunks);
        assert_eq!(answer.cursor.unwrap().next_seq, transcript.next_seq);
        if answer.ended {
            assert_eq!(answer.state(), pb::State::Exited);
            return transcript;
        }
        assert!(answer.gap.is_some() || !answer.chunks.is_empty(), "woken for nothing");
    }
}

pub async fn ask_follow(
    client: &mut Client,
    request: pb::FollowRequest,
) -> Streaming<pb::FollowResponse> {
    soon(client.follow(request)).await.unwrap().into_inner()
}

/// The next message of a stream that must have one.
pub async fn next_message(stream: &mut Streaming<pb::FollowResponse>) -> Message {
    let next = soon(stream.message()).await.unwrap();
    next.expect("the stream ended without an End").message.unwrap()
}

/// Follows to the end, which must come once and last.
pub async fn follow_to_end(stream: Streaming<pb::FollowResponse>) -> (Transcript, pb::Process) {
    follow_on(stream, Transcript::new()).await
}

/// The same, after what came before.
pub async fn follow_on(
    mut stream: Streaming<pb::FollowResponse>,
    mut transcript: Transcript,
) -> (Transcript, pb::Process) {
    loop {
        match next_message(&mut stream).await {
            Message::Chunk(chunk) => transcript.add(&chunk),
            Message::Gap(gap) => transcript.skip(gap),
            Message::Heartbeat(beat) => assert!(beat.time.is_some()),
            Message::End(end) => {
                assert_eq!(soon(stream.message()).await.unwrap(), None, "something after the End");
                return (transcript, end.process.unwrap());
            }
        }
    }
}

/// Output that repeats `pattern` for ever has these bytes at this offset.
pub fn assert_repeats(pattern: &[u8], offset: u64, data: &[u8]) {
    let at = |n: usize| pattern[(offset as usize + n) % pattern.len()];
    let wrong = data.iter().enumerate().find(|(n, byte)| **byte != at(*n));
    assert_eq!(wrong, None, "at {offset}");
}

/// Memory of a process that it shares with nobody: not the rings, which are the keeper's.
pub fn own_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
