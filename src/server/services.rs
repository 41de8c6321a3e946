//! What is served: the process service, with health, reflection and gRPC-Web beside it.
//!
//! Owns which services stand on the port and what wraps them all. Outermost is what charges answers as they are
//! sent, then gRPC-Web, so that whatever is inside sees gRPC only and its errors reach both kinds of clients; then come the names
//! and numbers of calls, so that whoever is refused further in has them, too.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tonic_reflection::server::{Builder as Reflection, Error as ReflectionError};
use tonic_web::{GrpcWebLayer, GrpcWebService};
use tower::Layer;

use super::browsers::NoForeignPages;
use super::call_budget::{CallBudget, ChargedAnswers};
use super::calls::{Calls, Counted};
use super::credentials::{Credentials, Gate};
use super::health_limit::HealthLimit;
use crate::access::MAX_LARGE_REQUEST;
use crate::grpc::framework::Explained;
use crate::grpc::pb;
use crate::grpc::pb::process_service_server::{ProcessService, ProcessServiceServer, SERVICE_NAME};
use crate::supervisor::{Error, Quotas, Stage};

/// Bytes of a request for health: it is the name of a service.
pub(super) const MAX_HEALTH_REQUEST: usize = 4 << 10;

/// What is served, as reflection and the metrics know it.
const FILES: [&[u8]; 5] = [
    pb::FILE_DESCRIPTORS,
    // The details of errors, so that tools can show them.
    tonic_types::pb::FILE_DESCRIPTOR_SET,
    tonic_health::pb::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
];

/// All services behind one door.
pub(super) type HttpService =
    ChargedAnswers<GrpcWebService<Counted<NoForeignPages<Gate<CallBudget<Explained<Routes>>>>>>>;

/// What is served, and the handle on what health says of it.
#[derive(Debug)]
pub(super) struct Services {
    /// Takes every request.
    pub routes: HttpService,
    /// What health says.
    pub health: Health,
    /// How many calls there were.
    pub calls: Calls,
}

/// Puts together all that is served. Health says SERVING from the start: there is no door yet that
/// it could be asked through. Calls that come while another server takes over are refused, before
/// anything is done: it is that one that should be called.
pub(super) async fn assemble<P: ProcessService>(
    process: P,
    stage: watch::Receiver<Stage>,
    credentials: Arc<Credentials>,
    quotas: Quotas,
) -> Result<Services, ReflectionError> {
    // Requests have a bound (`call_budget`; this one is that of the largest), answers none: views bound
    // those, and an answer that is made and not sent leaves its client with nothing to do about it.
    let process = ProcessServiceServer::new(process).max_decoding_message_size(MAX_LARGE_REQUEST);
    let refused = move |request| match stage.borrow().is_retirement() {
        true => Err(Error::ShuttingDown.into()),
        false => Ok(request),
    };
    let routes = Routes::new(InterceptedService::new(process, refused));
    standard(routes, credentials, quotas).await
}

/// Adds the standard services, and wraps them all.
pub(super) async fn standard(
    routes: Routes,
    credentials: Arc<Credentials>,
    quotas: Quotas,
) -> Result<Services, ReflectionError> {
    let (reporter, health) = health_reporter();
    reporter.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
    let health = health.max_decoding_message_size(MAX_HEALTH_REQUEST);
    let routes = routes
        .add_service(HealthLimit::new(health))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .prepare();
    let calls = Calls::new(&FILES);
    let guarded =
        NoForeignPages(Gate::new(CallBudget::new(Explained(routes), quotas), credentials));
    let web = GrpcWebLayer::new().layer(Counted::new(guarded, calls.clone()));
    let routes = ChargedAnswers(web);
    Ok(Services { routes, health: Health(reporter), calls })
}

/// Reflection in both versions tells of everything, also of both versions.
fn reflection() -> Reflection<'static> {
    let empty = Reflection::configure().include_reflection_service(false);
    FILES.into_iter().fold(empty, Reflection::register_encoded_file_descriptor_set)
}

/// What the health service says.
#[derive(Clone, Debug)]
pub(super) struct Health(HealthReporter);

impl Health {
    /// Tells load balancers and probes to send nobody here, and whoever watches, at once.
    pub(super) async fn set_not_serving(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Tells them that they may come again.
    pub(super) async fn set_serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// Ends the streams of whoever watches, after the last word.
    pub(super) async fn end(mut self) {
        for service in ["", SERVICE_NAME] {
            self.0.clear_service_status(service).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for service in ["", SERVICE_NAME] {
            self.0.set_service_status(service, status).await;
        }
    }
}

#[cfg(test)]
pub(in crate::server) mod tests {
    use std::pin::pin;

    use futures_util::future::poll_fn;
    use http::{HeaderMap, Request, Version};
    use http_body::Body as _;
    use tonic::body::Body;
    use tonic::service::AxumBody;
    use tonic::{Code, Status};
    use tonic_types::StatusExt;
    use tower::Service;

    use super::super::credentials::Peer;
    use super::super::credentials::tests::{open, unix};
    use super::*;
    use crate::supervisor::Quota;

    /// One request, and the headers and all bytes and trailers of its answer.
    async fn ask(
        services: &Services,
        (version, kind): (Version, &str),
        path: &str,
        message: &[u8],
    ) -> (HeaderMap, Vec<u8>, HeaderMap) {
        let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let body = Body::new(AxumBody::from(framed));
        let request = Request::post(path).version(version).header("content-type", kind);
        let own = unix(Some(rustix::process::geteuid().as_raw()));
        let request = request.extension(own).body(body).unwrap();
        let (head, body) = services.routes.clone().call(request).await.unwrap().into_parts();
        let (mut body, mut bytes, mut trailers) = (pin!(body), Vec::new(), HeaderMap::new());
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            match frame.unwrap().into_data() {
                Ok(data) => bytes.extend(data),
                Err(frame) => trailers.extend(frame.into_trailers().unwrap()),
            }
        }
        (head.headers, bytes, trailers)
    }

    const GRPC: (Version, &str) = (Version::HTTP_2, "application/grpc");
    const WEB: (Version, &str) = (Version::HTTP_11, "application/grpc-web+proto");
    const CHECK: &str = "/grpc.health.v1.Health/Check";

    async fn services() -> Services {
        standard(Routes::default(), open(), Quotas::default()).await.unwrap()
    }

    #[tokio::test]
    async fn health_tells_of_the_whole_and_of_the_service_until_it_ends() {
        let services = services().await;
        let service = [&[0x0a, SERVICE_NAME.len() as u8], SERVICE_NAME.as_bytes()].concat();
        for message in [&b""[..], &service] {
            let (_, answer, trailers) = ask(&services, GRPC, CHECK, message).await;
            assert_eq!(
                (&answer[5..], &trailers["grpc-status"]),
                (&[8, 1][..], &"0".parse().unwrap())
            );
        }
        services.health.set_not_serving().await;
        for message in [&b""[..], &service] {
            assert_eq!(ask(&services, GRPC, CHECK, message).await.1[5..], [8, 2]);
        }
        services.health.set_serving().await;
        for message in [&b""[..], &service] {
            assert_eq!(ask(&services, GRPC, CHECK, message).await.1[5..], [8, 1]);
        }
    }

    #[tokio::test]
    async fn what_the_framework_refuses_has_a_reason() {
        let services = services().await;
        let large = vec![b'a'; MAX_HEALTH_REQUEST + 1];
        for (path, message, code, reason) in [
            (CHECK, &[0xff; 3][..], Code::InvalidArgument, "INVALID_FIELD"),
            (CHECK, &large, Code::InvalidArgument, "INVALID_FIELD"),
            ("/grpc.health.v1.Health/No", b"", Code::Unimplemented, "UNKNOWN_METHOD"),
            ("/no.No/No", b"", Code::Unimplemented, "UNKNOWN_METHOD"),
        ] {
            for kind in [GRPC, WEB] {
                let (headers, ..) = ask(&services, kind, path, message).await;
                let status = Status::from_header_map(&headers).unwrap();
                assert_eq!(status.code(), code, "{status}");
                assert_eq!(status.get_details_error_info().unwrap().reason, reason);
            }
        }
    }

    #[tokio::test]
    async fn newest_health_call_without_credentials_is_answered() {
        let services = services().await;
        let peer = |n: u8| Peer::Tcp { from: ([192, 0, 2, n], 1).into(), tls: None };
        let call = |peer: Peer, path: &str, body: Body| {
            let request = Request::post(path).version(Version::HTTP_2);
            let request = request.header("content-type", GRPC.1).extension(peer);
            services.routes.clone().call(request.body(body).unwrap())
        };
        let whole = || Body::new(AxumBody::from(vec![0; 5]));
        let is_refused = |answer: &http::Response<_>| answer.headers().contains_key("grpc-status");
        let watch = "/grpc.health.v1.Health/Watch";
        let mut watches = Vec::new();
        let mut half_open = Vec::new();
        for n in 0..2000 {
            let address = (n / 10) as u8;
            let answer = call(peer(address), watch, whole()).await.unwrap();
            assert!(!is_refused(&answer));
            watches.push(answer);
            let never = Body::new(AxumBody::from_stream(futures_util::stream::pending::<
                Result<Vec<u8>, std::io::Error>,
            >()));
            half_open.push(tokio::spawn(call(peer(address), CHECK, never)));
            tokio::task::yield_now().await;
        }
        assert!(!is_refused(&call(peer(255), CHECK, whole()).await.unwrap()));
        let ended = half_open.swap_remove(0).await.unwrap().unwrap();
        let ended = Status::from_header_map(ended.headers()).unwrap();
        assert_eq!(ended.code(), Code::ResourceExhausted);
        assert_eq!(ended.get_details_error_info().unwrap().reason, "TOO_MANY_STREAMS");
    }

    #[tokio::test]
    async fn text_answer_of_grpc_web_is_charged_until_its_data_is_dropped() {
        let quota = Quota { calls: Some(1), ..Quota::default() };
        let quotas = Quotas { each: quota, ..Quotas::default() };
        let services = standard(Routes::default(), open(), quotas).await.unwrap();
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let call = || {
            let body = Body::new(AxumBody::from(b"\0\0\0\0\x02\x3a\0".to_vec()));
            let request = Request::post(path).version(Version::HTTP_2);
            let request = request.header("content-type", "application/grpc-web+proto");
            let request = request.header("accept", "application/grpc-web-text");
            let own = unix(Some(rustix::process::geteuid().as_raw()));
            services.routes.clone().call(request.extension(own).body(body).unwrap())
        };
        let is_refused = |answer: &http::Response<_>| answer.headers().contains_key("grpc-status");
        let mut body = call().await.unwrap().into_body();
        let data = poll_fn(|cx| pin!(&mut body).poll_frame(cx)).await.unwrap().unwrap();
        drop(body);
        assert!(is_refused(&call().await.unwrap()));
        drop(data);
        assert!(!is_refused(&call().await.unwrap()));
    }

    #[tokio::test]
    async fn grpc_web_is_served_on_the_same_port_and_nothing_is_shared_with_pages() {
        let (headers, answer, _) = ask(&services().await, WEB, CHECK, b"").await;
        assert_eq!(answer[..7], [0, 0, 0, 0, 2, 8, 1]);
        assert!(String::from_utf8_lossy(&answer[7..]).contains("grpc-status:0"));
        assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control")));
    }

    #[tokio::test]
    async fn reflection_lists_every_service_in_both_versions() {
        let services = services().await;
        for version in ["v1", "v1alpha"] {
            let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
            let (_, answer, _) = ask(&services, GRPC, &path, b"\x3a\x00").await;
            let answer = String::from_utf8_lossy(&answer);
            for name in [
                SERVICE_NAME,
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ] {
                assert!(answer.contains(name), "{version}: {name}");
            }
        }
    }
}
