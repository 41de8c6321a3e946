//! Lines that match, of what is being printed.
//!
//! The server could choose them, but not tell where to go on after it was replaced: what stands
//! around a match, and the beginning of a line, may have been passed long ago. So everything comes
//! here, each chunk once, and the same view chooses.

use super::super::trouble::Trouble;
use super::following::{Following, Message};
use super::writing::Writing;
use crate::grpc::from_proto::FollowOrder;
use crate::grpc::{pb, to_proto};
use crate::process::AnyOf;
use crate::transcript::{Chunk, Stream, View, Viewer};

/// A view of what is being printed.
pub(super) struct Looking {
    view: View,
    streams: AnyOf<Stream>,
    viewer: Viewer,
    /// The end of what was there in the beginning, until its last lines are shown.
    until: Option<u64>,
}

impl Looking {
    /// A view as a server would understand it, where chunks before `there` are printed already.
    pub(super) fn new(request: pb::FollowRequest, there: u64) -> Result<Looking, Trouble> {
        let order = FollowOrder::try_from(request).map_err(tonic::Status::from)?;
        let FollowOrder { id: _, since_seq, streams, ack_seq: _, view, heartbeat: _ } = order;
        let since = since_seq.unwrap_or(1);
        let viewer = Viewer::following(&view, since);
        let until = view.has_ends().then_some(there);
        let mut looking = Looking { view, streams, viewer, until };
        looking.shown(since);
        Ok(looking)
    }

    /// Writes what is chosen, until the end.
    pub(super) async fn run(
        mut self,
        mut following: Following,
        writing: &mut Writing,
    ) -> Result<(), Trouble> {
        loop {
            let (gap, chunks) = match following.next().await? {
                Some(Message::Chunk(chunk)) => (None, self.see(&chunk)),
                Some(Message::Gap(gap)) => (Some(gap), self.miss(&gap)),
                // So far it has all been seen, also if nothing came of it.
                Some(Message::Heartbeat(heartbeat)) => (None, self.shown(heartbeat.seq)),
                Some(Message::End(_)) | None => {
                    write(self.end(), writing)?;
                    return Ok(());
                }
            };
            write(chunks, writing)?;
            if let Some(gap) = gap {
                writing.gap(&gap);
            }
        }
    }
}

impl Looking {
    /// What is chosen now that this chunk has come.
    fn see(&mut self, chunk: &pb::Chunk) -> Vec<Chunk> {
        let wanted = chunk_of(chunk).filter(|chunk| self.streams.contains(chunk.stream));
        self.viewer.feed(wanted.as_slice());
        self.shown(chunk.seq + 1)
    }

    /// What is chosen of what went before missing chunks.
    fn miss(&mut self, gap: &pb::Gap) -> Vec<Chunk> {
        match self.until {
            Some(_) => self.viewer = Viewer::following(&self.view, gap.to_seq + 1),
            None => self.viewer.skip(),
        }
        self.shown(gap.to_seq + 1)
    }

    /// What is chosen because nothing follows.
    fn end(&mut self) -> Vec<Chunk> {
        let mut last = match self.until.take() {
            Some(_) => self.viewer.go_on(),
            None => Vec::new(),
        };
        self.viewer.close();
        last.extend(self.viewer.take());
        last
    }

    /// What is chosen of all before `next`.
    fn shown(&mut self, next: u64) -> Vec<Chunk> {
        match self.until {
            None => self.viewer.take(),
            Some(until) if next < until => Vec::new(),
            Some(_) => {
                self.until = None;
                self.viewer.go_on()
            }
        }
    }
}

fn write(chunks: Vec<Chunk>, writing: &mut Writing) -> Result<(), Trouble> {
    for chunk in chunks {
        writing.chunk(&to_proto::chunk(chunk))?;
    }
    Ok(())
}

/// A chunk as it was before it was sent. None: of a stream that is not known here.
fn chunk_of(chunk: &pb::Chunk) -> Option<Chunk> {
    let stream = match chunk.stream() {
        pb::Stream::Stdout => Stream::Stdout,
        pb::Stream::Stderr => Stream::Stderr,
        pb::Stream::Terminal => Stream::Terminal,
        pb::Stream::Unspecified => return None,
    };
    let time = chunk.time.unwrap_or_default();
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    let nanos = u64::try_from(time.nanos).unwrap_or_default();
    let time = seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    let (seq, offset, data) = (chunk.seq, chunk.offset, chunk.data.clone());
    Some(Chunk { seq, stream, offset, time, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looking(view: pb::View, there: u64) -> Looking {
        let (id, view) = ("a".into(), Some(view));
        Looking::new(pb::FollowRequest { id, view, ..Default::default() }, there)
            .map_err(|trouble| trouble.to_string())
            .unwrap()
    }

    fn chunk(seq: u64, text: &str) -> pb::Chunk {
        let (stream, data) = (pb::Stream::Stdout.into(), text.to_owned().into());
        pb::Chunk { seq, stream, data, offset: 10 * seq, time: None }
    }

    fn text(chunks: Vec<Chunk>) -> String {
        chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.data).into_owned()).collect()
    }

    #[test]
    fn lines_that_match_come_when_they_are_whole_with_what_stands_around_them() {
        let view = pb::View { grep: "x".into(), context: 1, ..Default::default() };
        let mut looking = looking(view, 1);
        assert_eq!(text(looking.see(&chunk(1, "a\nb\nx"))), "");
        assert_eq!(text(looking.see(&chunk(2, "1\nc\nd\n"))), "b\nx1\nc\n");
        assert_eq!(text(looking.see(&chunk(3, "e\nx2"))), "");
        assert_eq!(text(looking.end()), "e\nx2");
    }

    #[test]
    fn with_a_tail_it_begins_with_the_last_matches_that_were_there() {
        let view = pb::View { grep: "x".into(), tail_lines: 1, ..Default::default() };
        let mut first = looking(view.clone(), 3);
        assert_eq!(text(first.see(&chunk(1, "x1\nx2\n"))), "");
        assert_eq!(text(first.see(&chunk(2, "x3\ny\n"))), "x3\n");
        assert_eq!(text(first.see(&chunk(3, "x4\nx5\n"))), "x4\nx5\n");
        let mut ended = looking(view, 3);
        assert_eq!(text(ended.see(&chunk(1, "x1\nx2\n"))), "");
        assert_eq!(text(ended.end()), "x2\n");
    }

    #[test]
    fn what_is_missing_ends_a_line() {
        let mut looking = looking(pb::View { grep: "x".into(), ..Default::default() }, 1);
        assert_eq!(text(looking.see(&chunk(1, "x1"))), "");
        let gap = pb::Gap { from_seq: 2, to_seq: 4, dropped_bytes: None };
        assert_eq!(text(looking.miss(&gap)), "x1");
        assert_eq!(text(looking.see(&chunk(5, "y\nx2\n"))), "x2\n");
    }
}
