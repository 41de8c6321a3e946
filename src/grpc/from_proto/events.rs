//! Requests of `events.proto`: Watch, Sleep.

use std::time::Duration;

use super::problems::Problems;
use super::records::{selector, selector_at};
use super::spec::description;
use super::values::{Span, duration, heartbeat, words};
use crate::events::Kind;
use crate::grpc::pb;
use crate::process::{AnyOf, Selector};
use crate::supervisor::Error;

/// How long a sleep may be.
const SLEEP: Span =
    Span::new(Duration::from_millis(100), Duration::from_secs(3600), "100 ms to 1 h");
/// Time between ticks.
const TICK: Span = Span::new(Duration::from_secs(5), Duration::from_secs(3600), "5 s to 1 h");

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
            Ok(WatchOrder { selector: selector?, since_event, kinds, replay_only, heartbeat })
        })
    }
}

/// A time to sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepOrder {
    /// How long.
    pub duration: Duration,
    /// Time between ticks; none: no ticks.
    pub tick_interval: Option<Duration>,
    /// What it is for.
    pub description: String,
    /// Whose completion ends it; none: nobody's.
    pub wake_on: Option<Selector>,
}

impl TryFrom<pb::SleepRequest> for SleepOrder {
    type Error = Error;

    fn try_from(request: pb::SleepRequest) -> Result<SleepOrder, Error> {
        let pb::SleepRequest { duration: span, tick_interval, description: text, wake_on } =
            request;
        Problems::collect(|problems| {
            let span = match duration(problems, "duration", span, &SLEEP) {
                Ok(None) => Err(problems.add("duration", "required: 100 ms to 1 h")),
                Ok(Some(span)) => Ok(span),
                Err(reported) => Err(reported),
            };
            let tick_interval = duration(problems, "tick_interval", tick_interval, &TICK);
            let description = description(problems, "description", text);
            let wake_on =
                wake_on.map(|chosen| selector_at(problems, "wake_on", chosen)).transpose();
            Ok(SleepOrder {
                duration: span?,
                tick_interval: tick_interval?,
                description: description?,
                wake_on: wake_on?,
            })
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
                "kinds[1]: is 0: one of KIND_QUEUED, KIND_STARTED, KIND_READY, KIND_STOPPING, KIND_COMPLETED, KIND_RESTARTING, KIND_RUN_AGAIN, KIND_DELETED",
                "heartbeat_interval: is 0ns: 1 s to 10 min",
            ]
        );
    }

    #[test]
    fn a_sleep_is_taken_as_it_is_meant() {
        let span = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let plain = SleepOrder {
            duration: Duration::from_secs(3600),
            tick_interval: None,
            description: String::new(),
            wake_on: None,
        };
        let request = pb::SleepRequest { duration: span(3600), ..Default::default() };
        assert_eq!(SleepOrder::try_from(request.clone()), Ok(plain.clone()));
        let full = pb::SleepRequest {
            tick_interval: span(5),
            description: "the build\nand more".into(),
            wake_on: Some(pb::Selector::default()),
            ..request
        };
        let meant = SleepOrder {
            tick_interval: Some(Duration::from_secs(5)),
            description: "the build".into(),
            wake_on: Some(Selector::default()),
            ..plain
        };
        assert_eq!(SleepOrder::try_from(full), Ok(meant));
    }

    #[test]
    fn a_bad_sleep_tells_all_that_is_bad() {
        let request = pb::SleepRequest {
            duration: None,
            tick_interval: Some(prost_types::Duration { seconds: 4, nanos: 999_999_999 }),
            description: "x".repeat(81),
            wake_on: Some(pb::Selector { outcomes: vec![9], ..Default::default() }),
        };
        assert_eq!(
            refused(SleepOrder::try_from(request)),
            [
                "duration: required: 100 ms to 1 h",
                "tick_interval: is 4.999999999s: 5 s to 1 h",
                "description: has 81 characters in its line: at most 80",
                "wake_on.outcomes[0]: is 9: one of OUTCOME_SUCCEEDED, OUTCOME_FAILED, \
                 OUTCOME_CANCELED, OUTCOME_TIMED_OUT",
            ]
        );
    }
}
