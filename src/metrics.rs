//! Numbers for Prometheus: what is counted, under which names, and how it reads.
//!
//! Whoever does something tells its counters, which are atomics and know their labels already; what
//! there is at a moment is looked up when somebody scrapes. Nobody decides anything by these
//! numbers. No label is ever anything that a client chooses: neither ids nor owners nor paths.
//! Everything but the number of servers begins at 0 with each server.

mod format;
pub mod supervising;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use format::Format;
use supervising::Supervising;

/// Bounds of histograms, in seconds: from what an in-memory look takes to what nobody waits for.
const SECONDS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

/// The names and values of some labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// All numbers of a server.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// The numbers of a server that began then, and of its supervisor.
    pub fn new(began: SystemTime, supervising: &Supervising) -> Metrics {
        let mut registry = Registry::default();
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("procyard_build", "What serves", version);
        let began = began.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        registry.register_with_unit(
            "process_start_time",
            "When this server began, since 1970",
            Unit::Seconds,
            ConstGauge::new(began.as_secs_f64()),
        );
        supervising.register(&mut registry);
        Metrics(registry)
    }

    /// Where whoever measures something else gives it its name.
    pub fn names(&mut self) -> &mut Registry {
        &mut self.0
    }

    /// All of them as they are now.
    pub fn text(&self, format: Format) -> String {
        let mut text = String::new();
        // It is written to memory, which fails nobody.
        let _ = encode(&mut text, &self.0);
        format.write(text)
    }
}

/// A histogram of seconds.
pub fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}
