//! The options: how long, which seed, how often.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) struct Options {
    /// How long the server is killed again and again; what follows takes some seconds more.
    pub(crate) time: Duration,
    /// What every random decision follows from.
    pub(crate) seed: u64,
    /// How often the server is killed, on average, while it serves.
    pub(crate) kills_per_second: f64,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Options, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut options = Options {
            time: Duration::from_secs(60),
            seed: u64::from(now.subsec_nanos()) ^ now.as_secs(),
            kills_per_second: 1.0,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            // Cargo says that.
            if word == "--bench" {
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            let bad = || format!("{word}: {value:?} is no number that is allowed here");
            match word.as_str() {
                "--seconds" => {
                    options.time = Duration::from_secs(value.parse().map_err(|_| bad())?);
                }
                "--seed" => options.seed = value.parse().map_err(|_| bad())?,
                "--kills-per-second" => {
                    options.kills_per_second =
                        value.parse().ok().filter(|rate| *rate > 0.0).ok_or_else(bad)?;
                }
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }
}
