//! What a reader is told of a process that numbers its lines: each chunk once and in order, and each
//! line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use procyard::grpc::pb;

/// One reader's place, and what must come next.
pub(crate) struct Transcript {
    /// The chunk to ask for next.
    pub(crate) next_seq: u64,
    streams: [Stream; 3],
    /// Lines that were whole.
    pub(crate) lines: u64,
    /// Who else wants to know that.
    told: Option<Arc<AtomicU64>>,
}

#[derive(Default)]
struct Stream {
    offset: u64,
    /// The line that is not whole yet.
    line: Vec<u8>,
    printed: u64,
    over: bool,
}

impl Transcript {
    pub(crate) fn new() -> Transcript {
        Transcript { next_seq: 1, streams: Default::default(), lines: 0, told: None }
    }

    /// Tells how many lines have come.
    pub(crate) fn telling(&mut self, told: Arc<AtomicU64>) {
        self.told = Some(told);
    }

    /// Takes what comes next. After something wrong it goes on from there, so that one mistake is
    /// told once.
    pub(crate) fn take(&mut self, chunk: &pb::Chunk) -> Result<(), String> {
        let (seq, expected) = (chunk.seq, self.next_seq);
        self.next_seq = seq + 1;
        let stream = match chunk.stream() {
            pb::Stream::Stdout => 0,
            pb::Stream::Stderr => 1,
            pb::Stream::Terminal => 2,
            pb::Stream::Unspecified => return Err(format!("chunk {seq} is of no stream")),
        };
        let stream = &mut self.streams[stream];
        let offset = std::mem::replace(&mut stream.offset, chunk.offset + chunk.data.len() as u64);
        let before = stream.printed;
        let lines = stream.take(&chunk.data).map_err(|wrong| format!("chunk {seq}: {wrong}"));
        self.lines += stream.printed.saturating_sub(before);
        if let Some(told) = &self.told {
            told.store(self.lines, Ordering::Relaxed);
        }
        if seq != expected {
            return Err(format!("expected chunk {expected}, found {seq}"));
        }
        if offset != chunk.offset {
            return Err(format!("chunk {seq}: expected offset {offset}, found {}", chunk.offset));
        }
        lines
    }

    /// Whether all that there is has come: every stream that began has said that it is over.
    pub(crate) fn whole(&self) -> Result<(), String> {
        for stream in self.streams.iter().filter(|stream| stream.offset > 0) {
            let printed = stream.printed;
            if !stream.over {
                return Err(format!("ended after line {printed}, which was not the last"));
            }
        }
        Ok(())
    }
}

impl Stream {
    fn take(&mut self, data: &[u8]) -> Result<(), String> {
        let mut checked = Ok(());
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                checked = checked.and(self.line(line.trim_ascii_end()));
            }
        }
        checked
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(line);
        // With this a program says that it has printed so many, and that there are no more.
        let last = text.strip_prefix("last ");
        let number: u64 = last.unwrap_or(&text).parse().map_err(|_| format!("line {text:?}"))?;
        // One that has to become ready first says 0 then.
        let greeting = self.printed == 0 && number == 0;
        let expected = if last.is_some() || greeting { self.printed } else { self.printed + 1 };
        self.over |= last.is_some();
        self.printed = number;
        if number == expected {
            Ok(())
        } else {
            Err(format!("expected line {expected}, found {text}"))
        }
    }
}
