//! Random numbers that follow from a seed, one row of them for each part of the load.

use std::time::Duration;

/// SplitMix64: small, and good enough to decide by.
pub(crate) struct Random(u64);

impl Random {
    /// The row of one part.
    pub(crate) fn new(seed: u64, part: &str, number: u64) -> Random {
        let name = part.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut random = Random(seed ^ name ^ number.wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True so often in a hundred times.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A pause of up to so many milliseconds.
    pub(crate) fn millis(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.below(1000 * most))
    }

    /// A pause as between things that happen so often per second, whatever happened before.
    pub(crate) fn exponential(&mut self, per_second: f64) -> Duration {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-(1.0 - uniform).ln() / per_second)
    }
}
