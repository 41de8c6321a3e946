//! Spans of time as people write and read them: `500ms`, `30s`, `3m12s`.

use std::time::Duration;

/// The units, the longest first, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a span of time, such as an argument.
pub(in crate::cli) fn read_span(text: &str) -> Result<Duration, String> {
    let bad = || "a number with a unit is needed: 500ms, 30s, 5m, 2h or 1h30m".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut millis) = (text, 0_u64);
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
        let (_, worth) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*worth));
        millis = part.and_then(|part| millis.checked_add(part)).ok_or_else(bad)?;
        rest = after;
    }
    if text.is_empty() { Err(bad()) } else { Ok(Duration::from_millis(millis)) }
}

/// What of a text is of a kind, and the rest.
fn split(text: &str, kind: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !kind(c)).unwrap_or(text.len()))
}

/// A span of time in its two largest units: `340ms`, `4.2s`, `3m12s`, `2h05m`, `3d04h`.
pub(in crate::cli) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..10 => format!("{seconds}.{}s", span.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units() {
        let millis = |text: &str| read_span(text).unwrap().as_millis();
        assert_eq!(
            ["0", "500ms", "30s", "5m", "2h"].map(millis),
            [0, 500, 30_000, 300_000, 7_200_000]
        );
        assert_eq!(["1h30m", "1d", "1s5ms"].map(millis), [5_400_000, 86_400_000, 1005]);
        for bad in ["", "30", "s", "-1s", "1.5s", "1 s", "1y", "99999999999999999999s", "1s 1s"] {
            assert!(read_span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_are_told_in_their_largest_units() {
        let told = [5, 4_290, 42_000, 192_900, 7_500_000, 273_600_000];
        let told = told.map(|millis| span(Duration::from_millis(millis)));
        assert_eq!(told, ["5ms", "4.2s", "42s", "3m12s", "2h05m", "3d04h"]);
    }
}
