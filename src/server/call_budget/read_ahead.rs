//! Reads the requests of a reflection call ahead of its handler.
//!
//! The handler reads no request while its client reads no answer. What came would stay in HTTP/2 meanwhile, where
//! each piece of it keeps the whole buffer of the connection that it was received into. So a task reads and copies
//! it, up to a bound beyond which the request ends: a client waits for an answer before it sends much more.

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;

/// Pieces that wait for the handler. A request has one or two.
const MAX_PIECES: usize = 16;

/// Bytes of a piece: the longest name that a request can have is a fraction of it.
const MAX_PIECE_BYTES: usize = 4 << 10;

/// The same body, of which no more than the bound is in memory.
pub(super) fn read_ahead(body: Body) -> Body {
    let (sender, receiver) = mpsc::channel(MAX_PIECES);
    tokio::spawn(async move {
        let mut frames = BodyStream::new(body);
        loop {
            let frame = tokio::select! {
                frame = frames.next() => frame,
                () = sender.closed() => return,
            };
            let Some(frame) = frame else { return };
            let frame = frame.map(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)));
            let is_large = |data: &Bytes| data.len() > MAX_PIECE_BYTES;
            let is_large = frame.as_ref().is_ok_and(|frame| frame.data_ref().is_some_and(is_large));
            if is_large || sender.try_send(frame).is_err() {
                return;
            }
        }
    });
    Body::new(StreamBody::new(ReceiverStream::new(receiver)))
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::BodyExt;
    use tonic::Status;

    use super::*;

    fn pieces(sizes: Vec<usize>) -> Body {
        let pieces =
            sizes.into_iter().map(|size| Ok::<_, Status>(Frame::data(vec![7; size].into())));
        Body::new(StreamBody::new(futures_util::stream::iter(pieces)))
    }

    #[tokio::test]
    async fn requests_are_handed_over_up_to_the_bound() {
        let few = read_ahead(pieces(vec![1, MAX_PIECE_BYTES]));
        assert_eq!(few.collect().await.unwrap().to_bytes().len(), 1 + MAX_PIECE_BYTES);
        // The task has read all that it reads before the handler reads any.
        let many = read_ahead(pieces(vec![1; MAX_PIECES + 9]));
        tokio::task::yield_now().await;
        assert_eq!(many.collect().await.unwrap().to_bytes().len(), MAX_PIECES);
        let large = read_ahead(pieces(vec![1, MAX_PIECE_BYTES + 1, 1]));
        assert_eq!(large.collect().await.unwrap().to_bytes().len(), 1);
    }
}
