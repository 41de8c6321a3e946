//! Calls, under the names that servers of gRPC usually have.
//!
//! Owns the table of methods, which is all there are; whatever else is called is one more, `unknown`.
//! A call finds its method once, and that has its counters at hand.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use prost::Message;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use tonic::Code;

use crate::metrics::seconds;

/// How what is not served is named.
const UNKNOWN: &str = "unknown";

/// The codes, by their numbers, as servers in Go name them: dashboards know them so.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Type, service and method.
type Names = [(&'static str, String); 3];
type NamesAndCode = [(&'static str, String); 4];

/// All calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::server) struct Calls {
    families: Families,
    /// By path, without the first slash.
    methods: Arc<HashMap<String, Arc<Method>>>,
    unknown: Arc<Method>,
}

#[derive(Clone, Debug)]
struct Families {
    started: Family<Names, Counter>,
    handled: Family<NamesAndCode, Counter>,
    seconds: Family<Names, Histogram, fn() -> Histogram>,
}

/// A method, with the counters that were needed so far.
#[derive(Debug)]
struct Method {
    families: Families,
    names: Names,
    started: Counter,
    handled: [OnceLock<Counter>; CODES.len()],
    seconds: OnceLock<Histogram>,
}

/// A call that is handled. Dropped before it has ended: whoever called has left.
#[derive(Debug)]
pub(in crate::server) struct Handling {
    method: Arc<Method>,
    began: Instant,
    ended: bool,
}

impl Calls {
    /// The calls of all services in these files: sets of descriptors, as reflection has them.
    pub(in crate::server) fn new(files: &[&[u8]]) -> Calls {
        let families = Families {
            started: Family::default(),
            handled: Family::default(),
            seconds: Family::new_with_constructor(seconds),
        };
        let mut methods = HashMap::new();
        // What does not decode has no methods; reflection refuses it.
        let sets = files.iter().filter_map(|set| FileDescriptorSet::decode(*set).ok());
        for file in sets.flat_map(|set| set.file) {
            for (service, method) in file
                .service
                .iter()
                .flat_map(|service| service.method.iter().map(move |m| (service, m)))
            {
                let service = format!("{}.{}", file.package(), service.name());
                let path = format!("{service}/{}", method.name());
                let names = names(form(method), &service, method.name());
                methods.insert(path, Arc::new(Method::new(&families, names)));
            }
        }
        let unknown = Arc::new(Method::new(&families, names(UNKNOWN, UNKNOWN, UNKNOWN)));
        Calls { families, methods: Arc::new(methods), unknown }
    }

    /// A call begins.
    pub(in crate::server) fn begin(&self, path: &str) -> Handling {
        let known = self.methods.get(path.trim_start_matches('/'));
        let method = Arc::clone(known.unwrap_or(&self.unknown));
        method.started.inc();
        Handling { method, began: Instant::now(), ended: false }
    }

    /// Gives them their names.
    pub(in crate::server) fn register(&self, registry: &mut Registry) {
        let Families { started, handled, seconds } = self.families.clone();
        registry.register("grpc_server_started", "Calls that began", started);
        registry.register("grpc_server_handled", "Calls that ended, by code", handled);
        let help = "From the beginning of a call to its end; a stream ends with its last message";
        registry.register_with_unit("grpc_server_handling", help, Unit::Seconds, seconds);
    }
}

fn form(method: &MethodDescriptorProto) -> &'static str {
    match (method.client_streaming(), method.server_streaming()) {
        (false, false) => "unary",
        (true, false) => "client_stream",
        (false, true) => "server_stream",
        (true, true) => "bidi_stream",
    }
}

fn names(form: &str, service: &str, method: &str) -> Names {
    [
        ("grpc_type", form.to_owned()),
        ("grpc_service", service.to_owned()),
        ("grpc_method", method.to_owned()),
    ]
}

impl Method {
    fn new(families: &Families, names: Names) -> Method {
        let started = families.started.get_or_create_owned(&names);
        let method = Method {
            families: families.clone(),
            names,
            started,
            handled: Default::default(),
            seconds: OnceLock::new(),
        };
        // Shown before it is used: that there were no calls is a number, too.
        method.handled(Code::Ok);
        method
    }

    fn handled(&self, code: Code) -> &Counter {
        let code = code as usize;
        self.handled[code].get_or_init(|| {
            let [form, service, method] = self.names.clone();
            let names = [form, service, method, ("grpc_code", CODES[code].to_owned())];
            self.families.handled.get_or_create_owned(&names)
        })
    }

    fn seconds(&self) -> &Histogram {
        self.seconds.get_or_init(|| self.families.seconds.get_or_create_owned(&self.names))
    }
}

impl Handling {
    /// The call has ended; what comes after that does not count.
    pub(in crate::server) fn end(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            self.method.handled(code).inc();
            self.method.seconds().observe(self.began.elapsed().as_secs_f64());
        }
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Call;
    use crate::grpc::pb;

    const SERVICE: &str = "procyard.v1.ProcessService";

    #[test]
    fn every_call_is_known_by_its_form_and_what_is_not_served_is_one_more() {
        let calls = Calls::new(&[pb::FILE_DESCRIPTORS]);
        assert_eq!(calls.methods.len(), Call::ALL.len());
        for (method, form) in
            [("Start", "unary"), ("Follow", "server_stream"), ("Attach", "bidi_stream")]
        {
            let handling = calls.begin(&format!("/{SERVICE}/{method}"));
            assert_eq!(handling.method.names, names(form, SERVICE, method));
        }
        for path in ["/", "", "/procyard.v1.ProcessService/No", "/x/Start", "/a b\"/c"] {
            assert!(Arc::ptr_eq(&calls.begin(path).method, &calls.unknown), "{path}");
        }
        assert_eq!(calls.unknown.started.get(), 5);
    }

    #[test]
    fn a_call_ends_once_and_who_leaves_has_canceled() {
        let calls = Calls::new(&[pb::FILE_DESCRIPTORS]);
        let path = format!("/{SERVICE}/Get");
        let mut handling = calls.begin(&path);
        handling.end(Code::NotFound);
        handling.end(Code::Ok);
        drop(handling);
        drop(calls.begin(&path));
        let method = &calls.methods[&path[1..]];
        let counted = |code: Code| method.handled(code).get();
        assert_eq!(
            (counted(Code::NotFound), counted(Code::Ok), counted(Code::Cancelled)),
            (1, 0, 1)
        );
        for (number, name) in CODES.iter().enumerate() {
            let code = Code::from_i32(number as i32);
            let own = format!("{code:?}").replace("Cancelled", "Canceled");
            assert_eq!(own.to_lowercase(), name.to_lowercase());
        }
    }
}
