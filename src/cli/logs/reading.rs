//! What a process printed so far, answer by answer.
//!
//! Each answer comes whole or is asked for again, so that nothing is lost or doubled when the
//! server is replaced.

use std::collections::HashMap;

use super::super::client::{Client, again};
use super::super::trouble::Trouble;
use super::writing::Writing;
use crate::grpc::pb;

/// A transcript that is being read.
pub(super) struct Reading<'a> {
    pub(super) client: &'a mut Client,
    pub(super) request: pb::ReadRequest,
}

impl Reading<'_> {
    /// Writes what there is now; who goes on printing is not waited for. Returns where to go on.
    pub(super) async fn run(mut self, writing: &mut Writing) -> Result<u64, Trouble> {
        let mut there = None;
        loop {
            let answer = again(async || self.client.read(self.request.clone()).await).await?;
            if let Some(gap) = &answer.gap {
                writing.gap(gap);
            }
            for chunk in &answer.chunks {
                writing.chunk(chunk)?;
            }
            let cursor = answer.cursor.unwrap_or_default();
            let there = *there.get_or_insert(cursor.latest_seq);
            if let Some(view) = self.request.view.as_ref().filter(|view| has_ends(view)) {
                tell_what_did_not_fit(view, &answer.chunks, answer.omitted, writing);
                return Ok(cursor.next_seq);
            }
            // A line under way that does not match yet is left for later, again and again.
            let stuck = cursor.next_seq <= cursor.since_seq;
            if answer.ended || stuck || cursor.next_seq > there {
                return Ok(cursor.next_seq);
            }
            self.request.since_seq = Some(cursor.next_seq);
        }
    }
}

/// The first or the last lines have one answer, which covers all that is there.
fn has_ends(view: &pb::View) -> bool {
    view.head_lines.max(view.tail_lines) > 0
}

/// Lines that were asked for are missed; those that were not are not.
fn tell_what_did_not_fit(
    view: &pb::View,
    chunks: &[pb::Chunk],
    omitted: Option<pb::Omitted>,
    writing: &Writing,
) {
    let asked = u64::from(view.head_lines) + u64::from(view.tail_lines);
    let omitted = omitted.unwrap_or_default();
    // With lines around matches there are more than were asked for, and nobody can tell.
    if view.grep.is_empty() && lines(chunks) < asked && omitted.lines > 0 {
        writing.omitted(&omitted);
    }
}

/// How many lines there are, those included that are under way: one of each stream at most.
fn lines(chunks: &[pb::Chunk]) -> u64 {
    let ends = |chunk: &pb::Chunk| chunk.data.iter().filter(|byte| **byte == b'\n').count() as u64;
    let mut under_way = HashMap::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.data.is_empty()) {
        under_way.insert(chunk.stream, !chunk.data.ends_with(b"\n"));
    }
    let under_way = under_way.into_values().filter(|under_way| *under_way).count() as u64;
    chunks.iter().map(ends).sum::<u64>() + under_way
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_under_way_is_a_line() {
        let chunk = |stream: pb::Stream, data: &'static str| pb::Chunk {
            stream: stream.into(),
            data: data.into(),
            ..Default::default()
        };
        let (out, err) = (pb::Stream::Stdout, pb::Stream::Stderr);
        assert_eq!(lines(&[]), 0);
        assert_eq!(lines(&[chunk(out, "a\nb"), chunk(out, "c\n")]), 2);
        assert_eq!(lines(&[chunk(out, "a"), chunk(err, "b"), chunk(out, "c"), chunk(err, "")]), 2);
    }
}
