//! The metrics, for whoever scrapes them: plain HTTP/1 at an address of their own.
//!
//! Owns that door, which knows nobody and shows numbers only. A connection brings one answer: none
//! is kept, and none keeps others out for long.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::service::AxumBody;

use super::listener::{ACCEPT_BACKOFF, CLOSE_GRACE, Listener};
use crate::metrics::{Format, Metrics};

/// Most connections at a time: scrapers are few. More wait in the backlog.
const MOST: u32 = 32;

/// How long a request's headers may take, and all of a connection. Scrapers give up after 10 s.
const HEADERS: Duration = Duration::from_secs(5);
const ALL: Duration = Duration::from_secs(10);

/// Bytes of a request that are held at most: a line and some headers.
const REQUEST: usize = 16 << 10;

/// The door for scrapers.
pub(super) struct Scrapes {
    listener: Listener,
    metrics: Arc<Metrics>,
}

impl Scrapes {
    /// To be called on a tokio runtime.
    pub(super) fn new(socket: OwnedFd, metrics: Metrics) -> io::Result<Scrapes> {
        Ok(Scrapes { listener: Listener::new(socket)?, metrics: Arc::new(metrics) })
    }

    /// Answers until it is over. Then who waits is left to the next server, and who is being
    /// answered has a moment.
    pub(super) async fn serve(self, over: impl Future<Output = ()>) {
        let room = Arc::new(Semaphore::new(MOST as usize));
        let accepting = async {
            loop {
                let Ok(place) = room.clone().acquire_owned().await else { return };
                let metrics = Arc::clone(&self.metrics);
                let accepted = match &self.listener {
                    Listener::Unix(listener) => listener.accept().await.map(|(io, _)| {
                        tokio::spawn(async move {
                            answer(io, metrics).await;
                            drop(place);
                        })
                    }),
                    Listener::Tcp(listener) => listener.accept().await.map(|(io, _)| {
                        tokio::spawn(async move {
                            answer(io, metrics).await;
                            drop(place);
                        })
                    }),
                };
                if let Err(error) = accepted {
                    tracing::debug!(%error, "cannot accept a scrape");
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        };
        tokio::select! {
            () = over => {}
            () = accepting => {}
        }
        let _ = timeout(CLOSE_GRACE, room.acquire_many(MOST)).await;
    }
}

/// Answers the one request of a connection.
async fn answer(io: impl AsyncRead + AsyncWrite + Unpin, metrics: Arc<Metrics>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, &metrics);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .keep_alive(false)
        .max_buf_size(REQUEST)
        .serve_connection(TokioIo::new(io), service);
    // Who says nothing, or reads nothing, has to go.
    let _ = timeout(ALL, connection).await;
}

/// The answer to HEAD is that to GET, of which hyper sends the headers only.
fn respond(request: &Request<Incoming>, metrics: &Metrics) -> Response<AxumBody> {
    let text = "text/plain; charset=utf-8";
    let (status, kind, body) = match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => {
            let format = accepted(request.headers());
            (StatusCode::OK, format.content_type(), metrics.text(format))
        }
        ("/metrics", _) => (StatusCode::METHOD_NOT_ALLOWED, text, "GET or HEAD only\n".into()),
        _ => (StatusCode::NOT_FOUND, text, "the metrics are at /metrics\n".into()),
    };
    let mut response = Response::new(AxumBody::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

fn accepted(headers: &HeaderMap) -> Format {
    let values = headers.get_all(ACCEPT).iter();
    Format::negotiate(values.filter_map(|value| value.to_str().ok()))
}
