//! A connection's bytes, on their way between the kernel and HTTP.
//!
//! Owns what must be done before anyone knows what the client speaks: the deadline for telling,
//! and, on Unix sockets, the repair of the authority. HTTP/1 and HTTP/2 are told apart by their
//! first bytes, and nothing else limits how long those may take; from then on each has its own
//! deadlines, the one for headers, the other for the answer to a ping.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::authority::{Frames, PREFACE};
use super::read_turns::ReadTurns;

/// A connection that fails unless the first bytes come in time, and that reads in turns.
pub(super) struct Socket<Io> {
    io: Io,
    /// None: what is below it does so.
    turns: Option<ReadTurns>,
    greeting: Option<Greeting>,
    frames: Option<Frames>,
}

/// How much is still to come, and until when.
#[derive(Debug)]
struct Greeting {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
    /// Gone when the greeting is over: that tells whoever waits for it.
    heard: Option<oneshot::Sender<Infallible>>,
}

impl Greeting {
    fn within(patience: Duration) -> Option<Greeting> {
        let deadline = Box::pin(tokio::time::sleep(patience));
        Some(Greeting { bytes: PREFACE.len(), deadline, heard: None })
    }
}

impl Socket<UnixStream> {
    /// A connection on a Unix socket, where any authority is taken.
    pub(super) fn unix(io: UnixStream, patience: Duration, turns: ReadTurns) -> Socket<UnixStream> {
        let (greeting, frames) = (Greeting::within(patience), Some(Frames::new()));
        Socket { io, turns: Some(turns), greeting, frames }
    }
}

impl<Io> Socket<Io> {
    /// A connection over TCP.
    pub(super) fn tcp(io: Io, patience: Duration, turns: ReadTurns) -> Socket<Io> {
        Socket { io, turns: Some(turns), greeting: Greeting::within(patience), frames: None }
    }

    /// What is below TLS: only its reads take turns, which handshakes cost, too.
    pub(super) fn below_tls(io: Io, turns: ReadTurns) -> Socket<Io> {
        Socket { io, turns: Some(turns), greeting: None, frames: None }
    }

    /// A connection over TLS.
    pub(super) fn over_tls(io: Io, patience: Duration) -> Socket<Io> {
        Socket { io, turns: None, greeting: Greeting::within(patience), frames: None }
    }

    /// Returns when the client has told what it speaks, or will not. To be called once.
    pub(super) fn greeted(&mut self) -> impl Future<Output = ()> + use<Io> {
        let (heard, hears) = oneshot::channel();
        if let Some(greeting) = &mut self.greeting {
            greeting.heard = Some(heard);
        }
        async move { drop(hears.await) }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Socket<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Socket { io, turns, greeting, frames } = &mut *self;
        let most = match turns {
            Some(turns) => ready!(turns.poll(cx)),
            None => buffer.remaining(),
        };
        let before = buffer.filled().len();
        let mut room = buffer.take(most);
        let read = Pin::new(io).poll_read(cx, &mut room);
        let len = room.filled().len();
        // SAFETY: these bytes were filled, and so initialised, above.
        unsafe { buffer.assume_init(len) };
        buffer.advance(len);
        let new = &mut buffer.filled_mut()[before..];
        if let Some(turns) = turns {
            turns.count(new.len());
        }
        if let Some(Greeting { bytes, deadline, heard: _ }) = greeting {
            if read.is_pending() {
                ready!(deadline.as_mut().poll(cx));
                let late = "nothing came that tells the protocol";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)));
            }
            *bytes = bytes.saturating_sub(new.len());
            if *bytes == 0 {
                *greeting = None;
            }
        }
        if let Some(frames) = frames {
            frames.follow(new);
        }
        read
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Socket<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::connection_auth::ConnectionAuth;
    use super::super::read_turns::FREE_BYTES;
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn turns() -> ReadTurns {
        ReadTurns::new(ConnectionAuth::default(), FREE_BYTES)
    }

    #[tokio::test]
    async fn who_does_not_tell_the_protocol_in_time_is_not_heard() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut server = Socket::unix(server, SHORT, turns());
        client.write_all(&PREFACE[..23]).await.unwrap();
        let mut buffer = [0; 24];
        let late = server.read_exact(&mut buffer).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_has_told_the_protocol_has_time() {
        let (mut client, server) = UnixStream::pair().unwrap();
        // Enough for it to be told on a slow machine.
        let patience = Duration::from_secs(1);
        let mut server = Socket::unix(server, patience, turns());
        client.write_all(PREFACE).await.unwrap();
        server.read_exact(&mut [0; 24]).await.unwrap();
        assert!(tokio::time::timeout(2 * patience, server.read_u8()).await.is_err());
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    }
}
