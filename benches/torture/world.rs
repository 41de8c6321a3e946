//! What all parts share: where procyard is, what was begun and counted, and what went wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::common::Result;
use crate::common::serve::Serve;

pub(crate) type Client = ProcessServiceClient<Channel>;

/// Finished records that the server keeps, so that the oldest are deleted while it is tortured. Far
/// more than end while somebody still speaks of one.
pub(crate) const KEPT: usize = 2000;
/// Connections that the load shares: whoever shares one loses it together.
const CONNECTIONS: u64 = 12;
/// Violations that are listed; what follows from the first ones says little.
const LISTED: usize = 20;

pub(crate) struct World {
    /// Of the state, and of what processes write.
    directory: PathBuf,
    socket: PathBuf,
    pub(crate) seed: u64,
    connections: Vec<Client>,
    stopped: AtomicBool,
    /// The newest event once there will be no more; 0 before.
    newest: AtomicU64,
    /// How many of each role were begun: their ids are numbered.
    begun: Mutex<BTreeMap<&'static str, u64>>,
    violations: Mutex<Vec<String>>,
    violated: AtomicU64,
    /// Calls that broke, by what the client's library said.
    broken: Mutex<BTreeMap<String, u64>>,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) kills: AtomicU64,
    /// Processes, runs and restarts.
    pub(crate) starts: AtomicU64,
    pub(crate) lines: AtomicU64,
    pub(crate) events: AtomicU64,
    /// Writes that were taken.
    pub(crate) inputs: AtomicU64,
    /// Microseconds.
    pub(crate) longest_outage: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl World {
    /// Within a runtime, which the connections need.
    pub(crate) fn new(serve: &Serve, seed: u64) -> Result<World> {
        let directory = serve.directory().join("load");
        std::fs::create_dir(&directory)?;
        Ok(World {
            directory,
            connections: (0..CONNECTIONS).map(|_| connection(serve.socket())).collect(),
            socket: serve.socket(),
            seed,
            stopped: AtomicBool::new(false),
            newest: AtomicU64::new(0),
            begun: Mutex::default(),
            violations: Mutex::default(),
            violated: AtomicU64::new(0),
            broken: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// One of the connections that are shared.
    pub(crate) fn client(&self, number: u64) -> Client {
        self.connections[(number % CONNECTIONS) as usize].clone()
    }

    /// A connection of its own.
    pub(crate) fn own_client(&self) -> Client {
        connection(self.socket.clone())
    }

    /// A file that a process writes or looks for.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Nothing more is to be begun.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Nothing happens any more, and this was the newest event.
    pub(crate) fn settle(&self, newest: u64) {
        self.newest.store(newest.max(1), Ordering::Relaxed);
    }

    /// The newest event, if there will be no more.
    pub(crate) fn settled(&self) -> Option<u64> {
        Some(self.newest.load(Ordering::Relaxed)).filter(|newest| *newest > 0)
    }

    /// The number of the next process in a role.
    pub(crate) fn number(&self, role: &'static str) -> u64 {
        let mut begun = locked(&self.begun);
        let count = begun.entry(role).or_default();
        *count += 1;
        *count - 1
    }

    /// Whether an id was given to something.
    pub(crate) fn knows(&self, id: &str) -> bool {
        let Some((role, number)) = split(id) else { return false };
        locked(&self.begun).get(role).is_some_and(|count| number < *count)
    }

    /// How many were begun, of one owner or of all.
    pub(crate) fn begun(&self, owner: Option<&str>) -> u64 {
        let counts: Vec<u64> = locked(&self.begun).values().copied().collect();
        counts
            .iter()
            .map(|count| match owner {
                None => *count,
                Some(owner) if owner == owner_of(0) => count.div_ceil(2),
                Some(_) => count / 2,
            })
            .sum()
    }

    /// Something is not as it must be.
    pub(crate) fn violation(&self, what: String) {
        eprintln!("violation: {what}");
        self.violated.fetch_add(1, Ordering::Relaxed);
        let mut violations = locked(&self.violations);
        if violations.len() < LISTED {
            violations.push(what);
        }
    }

    /// A check that says what is wrong, of a process.
    pub(crate) fn check(&self, id: &str, checked: std::result::Result<(), String>) {
        if let Err(wrong) = checked {
            self.violation(format!("{id}: {wrong}"));
        }
    }

    /// A call broke with its connection.
    pub(crate) fn broke(&self, how: String) {
        *locked(&self.broken).entry(how).or_default() += 1;
    }

    pub(crate) fn progress(&self, time: Duration) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { kills, starts, lines, events, inputs, longest_outage } = &self.counts;
        format!(
            "{} s, {} kills, {} starts, {} lines, {} events, {} inputs, longest outage {} ms, {} \
             violations",
            time.as_secs(),
            load(kills),
            load(starts),
            load(lines),
            load(events),
            load(inputs),
            load(longest_outage) / 1000,
            load(&self.violated),
        )
    }

    pub(crate) fn summary(&self, seed: u64, time: Duration) -> String {
        format!("torture: seed {seed}, {}", self.progress(time))
    }

    /// Lists what went wrong; whether nothing did.
    pub(crate) fn report(&self) -> bool {
        for (how, count) in &*locked(&self.broken) {
            println!("  {count} calls broke: {how}");
        }
        for violation in &*locked(&self.violations) {
            println!("  violation: {violation}");
        }
        self.violated.load(Ordering::Relaxed) == 0
    }
}

/// A connection that is made at the first call, and again whenever it broke.
fn connection(socket: PathBuf) -> Client {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    Client::new(endpoint.connect_with_connector_lazy(connector)).max_decoding_message_size(8 << 20)
}

/// Role and number of an id.
pub(crate) fn split(id: &str) -> Option<(&str, u64)> {
    let (role, number) = id.rsplit_once('-')?;
    Some((role, number.parse().ok()?))
}

/// Whose a process is.
pub(crate) fn owner_of(number: u64) -> &'static str {
    if number.is_multiple_of(2) { "even" } else { "odd" }
}

/// What was locked by one that panicked is as good as before.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
