//! Logs: to stderr, and never waiting for its reader. Which call a line is about is said by `request`.
//! Lines about changes go to the audit file as well, if there is one.

pub mod refusals;
pub mod request;

pub mod audit_file;
pub mod changes;
pub mod file;

mod line;

use std::fmt;
use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{Format as Formatter, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use audit_file::AuditFile;
use request::RequestId;

/// The target of lines about changes, at level info, and about refusals, at level warn.
pub const AUDIT_TARGET: &str = "procyard::audit";

/// A pipe that is ready takes this much at once.
const AT_ONCE: usize = 4096;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::Text => "text",
            Format::Json => "json",
        })
    }
}

/// Begins logging. `RUST_LOG` chooses what, `info` unless it is set; the audit file has all changes,
/// whatever is chosen.
pub fn init(format: Format, audit: Option<AuditFile>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = io::IsTerminal::is_terminal(&io::stderr());
    let log = lines(format, terminal && colours_are_welcome(), || Unblocked);
    let audit = audit.map(|file| {
        lines(format, false, std::sync::Mutex::new(file)).with_filter(filter_fn(is_change))
    });
    let logs = tracing_subscriber::registry().with(log.with_filter(filter)).with(audit);
    let _ = logs.try_init();
}

/// Whether a line is about a change that a caller made.
fn is_change(line: &Metadata<'_>) -> bool {
    line.target() == AUDIT_TARGET
        && *line.level() == Level::INFO
        && line.name() != refusals::UNCHANGED
}

/// Writes lines in a format.
fn lines<S, W>(format: Format, colours: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        Format::Json => {
            let lines = Formatter::default().json().flatten_event(true);
            layer.json().event_format(Named { lines, format }).boxed()
        }
        Format::Text => {
            let lines = Formatter::default().with_ansi(colours);
            layer.with_ansi(colours).event_format(Named { lines, format }).boxed()
        }
    }
}

/// Whether terminals may be shown colours: <https://no-color.org>.
pub fn colours_are_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Lines that end with the call that they are about, if they are about one.
struct Named<F> {
    lines: F,
    format: Format,
}

impl<S, N, F> FormatEvent<S, N> for Named<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.lines.format_event(context, Writer::new(&mut line), event)?;
        let request = request::current();
        let request = request.as_ref().map(RequestId::as_str);
        writer.write_str(&line::fitting(&line, self.format, request, AT_ONCE))
    }
}

/// Stderr, if it takes a line right now. A reader that does not keep up loses lines; the
/// supervisor does not wait for it. The descriptor is shared with others, so it cannot simply
/// be set not to block.
struct Unblocked;

impl Write for Unblocked {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        file::tend();
        let stderr = rustix::stdio::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&now)).unwrap_or(0) > 0;
        if ready {
            let _ = rustix::io::write(stderr, line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
