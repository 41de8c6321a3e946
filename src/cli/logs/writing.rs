//! Output as it goes out: stdout to stdout, stderr to stderr, byte by byte; or as JSON.

use std::io;

use super::super::print;
use super::super::session;
use super::super::words;
use crate::grpc::pb;

/// Where output goes.
pub(super) struct Writing {
    json: bool,
    /// Whether lines are dated, and whether one is under way on stdout and on stderr.
    dates: Option<[bool; 2]>,
}

impl Writing {
    pub(super) fn new(json: bool, timestamps: bool) -> Writing {
        Writing { json, dates: timestamps.then_some([false; 2]) }
    }

    /// Writes a chunk.
    pub(super) fn chunk(&mut self, chunk: &pb::Chunk) -> io::Result<()> {
        if self.json {
            return print::line(print::json(chunk));
        }
        let to_stderr = chunk.stream() == pb::Stream::Stderr;
        let dated;
        let bytes = match &mut self.dates {
            Some(under_way) => {
                let time = chunk.time.as_ref().map(words::time).unwrap_or_default();
                dated = date(&chunk.data, &time, &mut under_way[usize::from(to_stderr)]);
                &dated[..]
            }
            None => &chunk.data[..],
        };
        if to_stderr { print::to_stderr(bytes) } else { session::print(bytes) }
    }

    /// Tells what is missing here.
    pub(super) fn gap(&self, gap: &pb::Gap) {
        let pb::Gap { from_seq, to_seq, dropped_bytes } = gap;
        let bytes = dropped_bytes.map(|bytes| format!(" ({})", words::size(bytes)));
        let bytes = bytes.unwrap_or_default();
        print::tell(format!(
            "chunks {from_seq} to {to_seq}{bytes} are missing here: not kept any more"
        ));
    }

    /// Tells that the beginning is missing.
    pub(super) fn dropped(&self, bytes: u64) {
        print::tell(format!("the first {} are not kept any more", words::size(bytes)));
    }

    /// Tells what was asked for and not shown.
    pub(super) fn omitted(&self, omitted: &pb::Omitted) {
        let (lines, bytes) = (omitted.lines, words::size(omitted.bytes));
        print::tell(format!("{lines} lines ({bytes}) are left out: one answer has 3 MiB at most"));
    }
}

/// The same with a time before each line that begins in it.
fn date(data: &[u8], time: &str, under_way: &mut bool) -> Vec<u8> {
    let mut dated = Vec::with_capacity(data.len() + time.len() + 1);
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        if !*under_way {
            dated.extend_from_slice(time.as_bytes());
            dated.push(b' ');
        }
        dated.extend_from_slice(line);
        *under_way = !line.ends_with(b"\n");
    }
    dated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_dated_where_it_begins() {
        let mut under_way = false;
        assert_eq!(date(b"a\nb", "1", &mut under_way), b"1 a\n1 b");
        assert_eq!(date(b"", "2", &mut under_way), b"");
        assert_eq!(date(b"c\n", "3", &mut under_way), b"c\n");
        assert_eq!(date(b"\n", "4", &mut under_way), b"4 \n");
    }
}
