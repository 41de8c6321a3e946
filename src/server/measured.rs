//! All that is measured of a server. Owns what there is at the moment of a scrape, which is looked
//! up, not counted.

use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::calls::Calls;
use crate::keeper_client::Growth;
use crate::metrics::Metrics;
use crate::process::State;
use crate::supervisor::{Lag, Whole};

/// The states of those that are not over.
const LIVE: [(State, &str); 5] = [
    (State::Queued, "queued"),
    (State::Starting, "starting"),
    (State::Running, "running"),
    (State::Stopping, "stopping"),
    (State::Backoff, "backoff"),
];

/// What is measured of a server.
pub(super) struct Measured {
    /// Processes, their events and followers.
    pub(super) supervisor: Whole,
    /// Output.
    pub(super) growth: Growth,
    /// Calls.
    pub(super) calls: Calls,
    /// Servers that the keeper has started, this one among them; 0: it does not count them.
    pub(super) server_starts: u64,
    /// When this one began.
    pub(super) began: SystemTime,
}

impl Measured {
    /// All of it, under its names.
    pub(super) fn metrics(self) -> Metrics {
        let Measured { supervisor, growth, calls, server_starts, began } = self;
        let mut metrics = Metrics::new(began, supervisor.metrics());
        calls.register(metrics.names());
        let present = Present { supervisor, growth, server_starts };
        metrics.names().register_collector(Box::new(present));
        metrics
    }
}

/// What is looked at.
struct Present {
    supervisor: Whole,
    growth: Growth,
    server_starts: u64,
}

impl fmt::Debug for Present {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Present")
    }
}

impl Collector for Present {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut sheet = Sheet(encoder);
        let count = self.supervisor.count_states();
        let live = LIVE.map(|(state, word)| (word, count(state)));
        let help = "Processes that are not over, by state.";
        sheet.gauges("procyard_processes_live", help, "state", &live)?;
        let help = "Processes that are over and kept.";
        sheet.gauge("procyard_processes_finished", help, count(State::Exited))?;
        let Lag { followers, most, all } = self.supervisor.lag();
        sheet.gauge(
            "procyard_followers",
            "Streams that follow output, attached ones too.",
            followers,
        )?;
        let help = "Chunks that the follower lacks that is furthest behind.";
        sheet.gauge("procyard_follower_lag_most_chunks", help, most)?;
        let help = "Chunks that all followers lack together.";
        sheet.gauge("procyard_follower_lag_all_chunks", help, all)?;
        let bytes = Unit::Bytes;
        let help = "Output that was captured while this server ran.";
        sheet.counter("procyard_output", help, Some(&bytes), self.growth.captured())?;
        let help = "Output that was dropped for want of room while this server ran.";
        sheet.counter("procyard_output_dropped", help, Some(&bytes), self.growth.dropped())?;
        let help = "Servers that the supervisor has started, this one among them.";
        sheet.counter("procyard_server_starts", help, None, self.server_starts)
    }
}

struct Sheet<'a>(DescriptorEncoder<'a>);

impl Sheet<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[(&'static str, u64)],
    ) -> fmt::Result {
        let mut all = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.iter().try_for_each(|(word, value)| {
            ConstGauge::new(*value).encode(all.encode_family(&[(label, *word)])?)
        })
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, unit, MetricType::Counter)?)
    }
}
