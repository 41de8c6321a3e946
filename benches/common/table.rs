//! Printing: one line per row, as soon as it is known.

use super::Result;
use super::figures::{Measured, Target, Unit};

/// The line above all rows.
pub(crate) fn head() {
    line("", "procyard", "reference", "ratio", "spread", "target", "met");
}

/// A row, or why there is none.
pub(crate) fn row(name: &str, unit: Unit, target: Target, measured: &Result<Measured>) {
    let measured = match measured {
        Ok(measured) => measured,
        Err(why) => return println!("{name:<51} skipped: {why}"),
    };
    let figure = measured.figure();
    let (low, high) = figure.spread();
    let amount = |value: f64| format!("{} {}", short(value), unit.words());
    let (ours, reference, ratio) = match measured {
        Measured::Single(series) => (amount(series.median()), "-".into(), "-".into()),
        Measured::Compared { ours, reference } => {
            (amount(ours.median()), amount(reference.median()), short(figure.median()))
        }
    };
    let wanted = match target {
        Target::AtLeast(bound) => format!("≥ {bound}"),
        Target::AtMost(bound) => format!("≤ {bound}"),
        Target::Open => "-".into(),
    };
    let met = match target.met(figure.median()) {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    let spread = format!("{}–{}", short(low), short(high));
    line(name, ours.trim_end(), reference.trim_end(), &ratio, &spread, &wanted, met);
}

fn line(
    name: &str,
    ours: &str,
    reference: &str,
    ratio: &str,
    spread: &str,
    target: &str,
    met: &str,
) {
    println!("{name:<51} {ours:>11} {reference:>11} {ratio:>6} {spread:>12} {target:>7} {met:>4}");
}

/// Three digits or so: more would be noise.
fn short(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.0.. => format!("{value:.2}"),
        _ => "?".into(),
    }
}
