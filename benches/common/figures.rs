//! Numbers of several rounds: medians, spreads and ratios.
//!
//! Machines are shared and drift, so two sides are compared within a round, one slice right
//! after the other, and the ratios of the rounds are what a row shows.

use super::Result;

/// What a number counts.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    PerSecond,
    MegabytesPerSecond,
    Kibibytes,
    Percent,
    Microseconds,
    Milliseconds,
    Count,
}

impl Unit {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Unit::PerSecond => "/s",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::Kibibytes => "KiB",
            Unit::Percent => "%",
            Unit::Microseconds => "µs",
            Unit::Milliseconds => "ms",
            Unit::Count => "",
        }
    }
}

/// What a figure should be: the ratio where two sides are compared, else the number itself.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Shown, not judged.
    Open,
}

impl Target {
    pub(crate) fn met(self, figure: f64) -> Option<bool> {
        match self {
            Target::AtLeast(bound) => Some(figure >= bound),
            Target::AtMost(bound) => Some(figure <= bound),
            Target::Open => None,
        }
    }
}

/// The same number of several rounds.
#[derive(Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    /// Takes a number once per round.
    pub(crate) fn take(rounds: usize, mut one: impl FnMut() -> Result<f64>) -> Result<Series> {
        (0..rounds).map(|_| one()).collect::<Result<Vec<f64>>>().map(Series)
    }

    /// The middle one; of two, what lies between.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = [sorted.len().saturating_sub(1) / 2, sorted.len() / 2];
        middle.iter().map(|n| sorted.get(*n).copied().unwrap_or(f64::NAN) / 2.0).sum()
    }

    /// The smallest and the largest.
    pub(crate) fn spread(&self) -> (f64, f64) {
        (percentile(&self.0, 0), percentile(&self.0, 100))
    }
}

/// What a measurement brought.
pub(crate) enum Measured {
    Single(Series),
    Compared { ours: Series, reference: Series },
}

impl Measured {
    /// What the target speaks of.
    pub(crate) fn figure(&self) -> Series {
        match self {
            Measured::Single(series) => Series(series.0.clone()),
            Measured::Compared { ours, reference } => {
                Series(ours.0.iter().zip(&reference.0).map(|(ours, other)| ours / other).collect())
            }
        }
    }
}

/// Whose slice it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Reference,
}

/// Takes slices of both sides in turn. The first of each warms caches up and does not count; who
/// begins changes every round, so that a drift favours nobody.
pub(crate) fn interleave(
    rounds: usize,
    mut slice: impl FnMut(Side) -> Result<f64>,
) -> Result<Measured> {
    slice(Side::Ours)?;
    slice(Side::Reference)?;
    let (mut ours, mut reference) = (Series::default(), Series::default());
    for round in 0..rounds {
        let mut order = [Side::Ours, Side::Reference];
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let number = slice(side)?;
            match side {
                Side::Ours => ours.0.push(number),
                Side::Reference => reference.0.push(number),
            }
        }
    }
    Ok(Measured::Compared { ours, reference })
}

/// A percentile of numbers in any order; not a number if there are none.
pub(crate) fn percentile(numbers: &[f64], percent: usize) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * percent + 50) / 100).copied().unwrap_or(f64::NAN)
}
