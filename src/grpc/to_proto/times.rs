//! Times and spans of time on the wire.

use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// A time that is given in nanoseconds since 1970.
pub fn timestamp(nanos: u64) -> prost_types::Timestamp {
    // Neither can be too large: 2^64 nanoseconds are 584 years.
    prost_types::Timestamp {
        seconds: (nanos / SECOND).cast_signed(),
        nanos: (nanos % SECOND) as i32,
    }
}

/// A span of time.
pub fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: span.subsec_nanos().cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_time_is_still_a_time() {
        let last = timestamp(u64::MAX);
        assert_eq!((last.seconds, last.nanos), (18_446_744_073, 709_551_615));
        assert_eq!(duration(Duration::MAX).seconds, i64::MAX);
    }
}
