//! What the service costs its clients, mostly as ratios to bare system calls, taken in one run.
//!
//! Owns the list of figures with their targets. Each measurement is a function in `starts`,
//! `stream`, `echo`, `calls`, `followers`, `recovery` or `idle`. `yard` is a whole procyard of its own for each
//! of them, with this process as its client; `common` is what benches share.
//!
//! ```text
//! cargo bench --bench service [-- [--quick] [part of a row's name]...]
//! ```

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod echo;
mod followers;
mod idle;
mod recovery;
mod starts;
mod stream;
mod yard;

use std::process::ExitCode;

use common::figures::Target::{AtLeast, AtMost, Open};
use common::figures::Unit;
use common::serve::Serve;
use common::suite::{self, Case, case};
use common::{apart, programs};
use procyard::grpc::pb::State;
use yard::Settings;

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
    case("server CPU per start, static no-op, 1 at a time", Unit::Microseconds, Open, |bench| {
        starts::cpu(bench, 1, Serve::server)
    }),
    case("server CPU per start, static no-op, 64 at a time", Unit::Microseconds, Open, |bench| {
        starts::cpu(bench, 64, Serve::server)
    }),
    case("keeper CPU per start, static no-op, 64 at a time", Unit::Microseconds, Open, |bench| {
        starts::cpu(bench, 64, |serve| Ok(serve.keeper()))
    }),
    case("terminal ÷ pipe starts, 1 at a time", Unit::PerSecond, AtLeast(0.88), |bench| {
        starts::terminal_against_pipes(bench, 1)
    }),
    case("terminal ÷ pipe starts, 64 at a time", Unit::PerSecond, AtLeast(0.88), |bench| {
        starts::terminal_against_pipes(bench, 64)
    }),
    case("starts with 1000 live ÷ empty, 1 at a time", Unit::PerSecond, AtLeast(0.85), |bench| {
        starts::crowded_against_empty(bench, 1)
    }),
    case("starts with 1000 live ÷ empty, 64 at a time", Unit::PerSecond, AtLeast(0.85), |bench| {
        starts::crowded_against_empty(bench, 64)
    }),
    case(
        "starts with 1000 followers ÷ empty, 1 at a time",
        Unit::PerSecond,
        AtLeast(0.85),
        |bench| starts::followed_against_empty(bench, 1),
    ),
    case(
        "starts with 1000 followers ÷ empty, 64 at a time",
        Unit::PerSecond,
        AtLeast(0.85),
        |bench| starts::followed_against_empty(bench, 64),
    ),
    case(
        "lossless stream ÷ raw reader, tuned client",
        Unit::MegabytesPerSecond,
        AtLeast(0.50),
        |bench| stream::lossless(bench, Settings::Tuned, "pipe"),
    ),
    case(
        "lossless stream ÷ raw reader, default client",
        Unit::MegabytesPerSecond,
        AtLeast(0.28),
        |bench| stream::lossless(bench, Settings::Default, "pipe"),
    ),
    case(
        "lossless stream ÷ child | cat | cat, tuned client",
        Unit::MegabytesPerSecond,
        Open,
        |bench| stream::lossless(bench, Settings::Tuned, "cat | cat"),
    ),
    case(
        "flood, drop-oldest, followed ÷ raw reader",
        Unit::MegabytesPerSecond,
        AtLeast(0.80),
        stream::dropping,
    ),
    case(
        "echo by WriteStdin and Follow, p50 ÷ raw",
        Unit::Microseconds,
        AtMost(3.5),
        echo::against_raw,
    ),
    case("Get, 1 at a time", Unit::PerSecond, Open, |bench| calls::rate(bench, 1)),
    case("Get, 64 at a time", Unit::PerSecond, Open, |bench| calls::rate(bench, 64)),
    case("Get under load, p50", Unit::Microseconds, Open, |bench| calls::get_under_load(bench, 50)),
    case("Get under load, p99", Unit::Microseconds, AtMost(3000.0), |bench| {
        calls::get_under_load(bench, 99)
    }),
    case(
        "List of 50, 1000 live, 10,000 finished, p99",
        Unit::Microseconds,
        AtMost(5000.0),
        |bench| calls::list(bench, &[]),
    ),
    case("the same, only those that run, p99", Unit::Microseconds, AtMost(5000.0), |bench| {
        calls::list(bench, &[State::Running])
    }),
    case(
        "1000 followers, server CPU per delivery",
        Unit::Microseconds,
        AtMost(2.5),
        followers::cpu_per_delivery,
    ),
    case(
        "SIGKILL → all followers flow, 10 live, p50",
        Unit::Milliseconds,
        AtMost(50.0),
        |bench| recovery::until_all_flow(bench, recovery::FEW),
    ),
    case(
        "SIGKILL → all followers flow, 100 live, p50",
        Unit::Milliseconds,
        AtMost(100.0),
        |bench| recovery::until_all_flow(bench, recovery::SOME),
    ),
    case(
        "the same, 1000 live, 10,000 finished, p50",
        Unit::Milliseconds,
        AtMost(1000.0),
        |bench| recovery::until_all_flow(bench, recovery::many(bench)),
    ),
    case("PSS, no processes", Unit::Kibibytes, AtMost(12288.0), idle::empty_memory),
    case("PSS per silent process, 1000", Unit::Kibibytes, AtMost(3.0), |bench| {
        idle::memory(bench, None)
    }),
    case("PSS per process after a line, 1000", Unit::Kibibytes, AtMost(8.0), |bench| {
        idle::memory(bench, Some("hello"))
    }),
    case("threads, 1000 processes ÷ none", Unit::Count, AtMost(1.0), idle::threads),
    case("CPU, 1000 idle processes", Unit::Percent, AtMost(0.1), idle::cpu),
    case("wake-ups in the same time", Unit::Count, AtMost(0.0), idle::wakeups),
];

fn main() -> ExitCode {
    suite::main(CASES, apart::nothing_else)
}
