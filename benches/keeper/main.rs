//! What the keeper costs, mostly as ratios to bare system calls, taken in one run.
//!
//! Owns the list of figures with their targets. Each measurement is a function in `starts`,
//! `capture`, `idle`, `delay` or `echo`. `yard` is a keeper of its own for each of them, with this
//! process as its server; `common` is what benches share.
//!
//! ```text
//! cargo bench --bench keeper [-- [--quick] [part of a row's name]...]
//! ```

mod capture;
#[path = "../common/mod.rs"]
mod common;
mod delay;
mod echo;
mod idle;
mod starts;
mod yard;

use std::process::ExitCode;

use common::figures::Target::{AtLeast, AtMost, Open};
use common::figures::Unit;
use common::programs;
use common::suite::{self, Case, case};

const CASES: &[Case] = &[
    case("start→exit ÷ raw, /bin/true, 1 at a time", Unit::PerSecond, AtLeast(0.65), |bench| {
        starts::against_raw(bench, Ok(programs::TRUE), 1)
    }),
    case("start→exit ÷ raw, /bin/true, 64 at a time", Unit::PerSecond, AtLeast(0.85), |bench| {
        starts::against_raw(bench, Ok(programs::TRUE), 64)
    }),
    case(
        "start→exit ÷ raw, static no-op, 1 at a time",
        Unit::PerSecond,
        AtLeast(0.40),
        |bench| starts::against_raw(bench, bench.programs.child(), 1),
    ),
    case(
        "start→exit ÷ raw, static no-op, 64 at a time",
        Unit::PerSecond,
        AtLeast(0.60),
        |bench| starts::against_raw(bench, bench.programs.child(), 64),
    ),
    case(
        "terminal ÷ pipe starts, /bin/true, 1 at a time",
        Unit::PerSecond,
        AtLeast(0.88),
        |bench| starts::terminal_against_pipes(bench, Ok(programs::TRUE), 1),
    ),
    case(
        "terminal ÷ pipe starts, /bin/true, 64 at a time",
        Unit::PerSecond,
        AtLeast(0.88),
        |bench| starts::terminal_against_pipes(bench, Ok(programs::TRUE), 64),
    ),
    case("terminal ÷ pipe starts, static no-op, 64 at a time", Unit::PerSecond, Open, |bench| {
        starts::terminal_against_pipes(bench, bench.programs.child(), 64)
    }),
    case("starts with 1000 live ÷ empty, 1 at a time", Unit::PerSecond, AtLeast(0.85), |bench| {
        starts::crowded_against_empty(bench, 1)
    }),
    case("starts with 1000 live ÷ empty, 64 at a time", Unit::PerSecond, AtLeast(0.85), |bench| {
        starts::crowded_against_empty(bench, 64)
    }),
    case(
        "starts with 4 GiB in the server ÷ without",
        Unit::PerSecond,
        AtLeast(0.95),
        starts::large_against_small,
    ),
    case(
        "flood, drop-oldest ÷ raw reader",
        Unit::MegabytesPerSecond,
        AtLeast(0.80),
        capture::against_raw,
    ),
    case("flood, drop-oldest ÷ child | cat", Unit::MegabytesPerSecond, Open, capture::against_cat),
    case(
        "flood, lossless to a follower ÷ raw reader",
        Unit::MegabytesPerSecond,
        Open,
        capture::lossless_against_raw,
    ),
    case(
        "flood on a terminal ÷ raw blocking reader",
        Unit::MegabytesPerSecond,
        AtLeast(0.95),
        capture::terminal_against_raw,
    ),
    case("keeper PSS, no processes", Unit::Kibibytes, AtMost(2048.0), idle::empty_memory),
    case("keeper PSS per silent process, 100", Unit::Kibibytes, AtMost(3.0), |bench| {
        idle::keeper_memory(bench, 100, None)
    }),
    case("keeper PSS per silent process, 1000", Unit::Kibibytes, AtMost(3.0), |bench| {
        idle::keeper_memory(bench, bench.many, None)
    }),
    case("keeper PSS per process after a line, 100", Unit::Kibibytes, AtMost(8.0), |bench| {
        idle::keeper_memory(bench, 100, Some("hello"))
    }),
    case("keeper PSS per process after a line, 1000", Unit::Kibibytes, AtMost(8.0), |bench| {
        idle::keeper_memory(bench, bench.many, Some("hello"))
    }),
    case("client PSS per silent process, 1000", Unit::Kibibytes, Open, |bench| {
        idle::client_memory(bench, None)
    }),
    case("client PSS per process after a line, 1000", Unit::Kibibytes, Open, |bench| {
        idle::client_memory(bench, Some("hello"))
    }),
    case("keeper threads, 1000 processes ÷ none", Unit::Count, AtMost(1.0), idle::threads),
    case("keeper CPU, 1000 idle processes", Unit::Percent, AtMost(0.1), idle::cpu),
    case("keeper wake-ups in the same time", Unit::Count, AtMost(0.0), idle::wakeups),
    case("capture delay p50 under load", Unit::Microseconds, Open, |bench| {
        delay::percentile_under_load(bench, 50)
    }),
    case("capture delay p99 under load", Unit::Microseconds, AtMost(2000.0), |bench| {
        delay::percentile_under_load(bench, 99)
    }),
    case("echo of one byte p50 ÷ raw", Unit::Microseconds, Open, echo::against_raw),
];

fn main() -> ExitCode {
    suite::main(CASES, idle::apart)
}
