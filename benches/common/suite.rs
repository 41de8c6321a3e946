//! Going through a bench: its options, its rows, one after the other.

use std::process::ExitCode;
use std::time::Duration;

use super::figures::{Measured, Target, Unit};
use super::programs::Programs;
use super::{Result, apart, table};

/// How long everything may take, and what there is to run.
pub(crate) struct Bench {
    pub(crate) rounds: usize,
    /// Of one side of one round, where time is what bounds it.
    pub(crate) slice: Duration,
    /// Bytes that a flood through a pipe has; a terminal gets less.
    pub(crate) flood: u64,
    /// Processes where there are to be many.
    pub(crate) many: usize,
    pub(crate) programs: Programs,
}

impl Bench {
    fn full() -> Bench {
        let slice = Duration::from_millis(300);
        Bench { rounds: 7, slice, flood: 768 << 20, many: 1000, programs: Programs::compile() }
    }

    fn quick() -> Bench {
        let slice = Duration::from_millis(50);
        Bench { rounds: 2, slice, flood: 128 << 20, many: 200, ..Bench::full() }
    }
}

/// A row to be: what it is called and how it is taken.
pub(crate) struct Case {
    name: &'static str,
    unit: Unit,
    target: Target,
    measure: fn(&Bench) -> Result<Measured>,
}

pub(crate) const fn case(
    name: &'static str,
    unit: Unit,
    target: Target,
    measure: fn(&Bench) -> Result<Measured>,
) -> Case {
    Case { name, unit, target, measure }
}

/// The main function of a bench: takes its rows, or does what an earlier call of this program
/// wants done apart.
pub(crate) fn main(cases: &[Case], apart: apart::Measure) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == apart::SWITCH
    {
        return apart::main(rest, apart);
    }
    // Cargo says `--bench`; what else begins with a dash is no name.
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let quick = arguments.iter().any(|word| word == "--quick");
    let bench = if quick { Bench::quick() } else { Bench::full() };
    if quick {
        println!("quick: few rounds, and {} where a row says 1000", bench.many);
    }
    table::head();
    for case in cases {
        if filters.is_empty() || filters.iter().any(|part| case.name.contains(part.as_str())) {
            table::row(case.name, case.unit, case.target, &(case.measure)(&bench));
        }
    }
    ExitCode::SUCCESS
}
