//! What a process printed so far, answer by answer.
//!
//! Each answer comes whole or is asked for again, so that nothing is lost or doubled when the
//! server is replaced.

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
                tell_what_did_not_fit(view, &answer.chunks, answer.omitted, writing)?;
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
) -> Result<(), Trouble> {
    let asked = u64::from(view.head_lines) + u64::from(view.tail_lines);
    let ends = |chunk: &pb::Chunk| chunk.data.iter().filter(|byte| **byte == b'\n').count() as u64;
    let shown: u64 = chunks.iter().map(ends).sum();
    let omitted = omitted.unwrap_or_default();
    // With lines around matches there are more than were asked for, and nobody can tell.
    let all_asked = view.grep.is_empty() && shown < asked.min(shown + omitted.lines);
    if all_asked && omitted.lines > 0 {
        writing.omitted(&omitted);
    }
    Ok(())
}
