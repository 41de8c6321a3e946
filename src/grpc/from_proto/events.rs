//! Requests of `events.proto`: Watch.

use std::time::Duration;

use super::problems::Problems;
use super::records::selector;
use super::values::{heartbeat, words};
use crate::events::Kind;
use crate::grpc::pb;
use crate::process::{AnyOf, Selector};
use crate::supervisor::Error;

/// Events to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOrder {
    /// Events of which processes.
    pub selector: Selector,
    /// The last event that the client has; none: from now on.
    pub since_event: Option<u64>,
    /// Kinds that pass.
    pub kinds: AnyOf<Kind>,
    /// Ends when all events that have happened were sent.
    pub replay_only: bool,
    /// Time without news until a heartbeat.
    pub heartbeat: Duration,
}

impl TryFrom<pb::WatchRequest> for WatchOrder {
    type Error = Error;

    fn try_from(request: pb::WatchRequest) -> Result<WatchOrder, Error> {
        let pb::WatchRequest {
            selector: chosen,
            since_event,
            kinds,
            replay_only,
            heartbeat_interval,
        } = request;
        Problems::collect(|problems| {
            let selector = selector(problems, chosen);
            let kinds = words(problems, "kinds", kinds).into();
            let heartbeat = heartbeat(problems, heartbeat_interval)?;
            Ok(WatchOrder { selector, since_event, kinds, replay_only, heartbeat })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    #[test]
    fn a_watch_is_taken_as_it_is_meant() {
        let kinds = vec![pb::Kind::Completed.into()];
        let request = pb::WatchRequest { since_event: Some(0), kinds, ..Default::default() };
        let order = WatchOrder::try_from(request).unwrap();
        assert!(order.kinds.contains(Kind::Completed) && !order.kinds.contains(Kind::Started));
        assert_eq!((order.since_event, order.heartbeat), (Some(0), Duration::from_secs(15)));
    }

    #[test]
    fn a_bad_watch_tells_all_that_is_bad() {
        let request = pb::WatchRequest {
            kinds: vec![5, 0],
            heartbeat_interval: Some(prost_types::Duration::default()),
            ..Default::default()
        };
        assert_eq!(
            refused(WatchOrder::try_from(request)),
            [
                "kinds[1]: is 0: one of KIND_STARTED, KIND_STOPPING, KIND_COMPLETED, KIND_DELETED",
                "heartbeat_interval: is 0ns: 1 s to 10 min",
            ]
        );
    }
}
