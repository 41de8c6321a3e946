//! The options that say how much there may be, of each caller and of all.

use std::ffi::OsString;

use super::at_least_one;
use crate::supervisor::{Quota, Quotas};

/// How much there may be. Whatever is not given has no bound, but for streams: nobody takes all
/// of them from the others.
#[derive(clap::Args, Clone)]
pub(super) struct QuotaOptions {
    /// Processes that may be live at a time, waiting ones included.
    #[arg(long, value_name = "N", env = "PROCYARD_MAX_LIVE", value_parser = at_least_one)]
    max_live: Option<usize>,
    /// Streams that may be open at a time: Follow, Watch, Attach and Sleep.
    #[arg(long, value_name = "N", env = "PROCYARD_MAX_STREAMS", value_parser = at_least_one, default_value = "16384")]
    max_streams: Option<usize>,
    /// Processes that may be started in a second.
    #[arg(long, value_name = "N", env = "PROCYARD_MAX_STARTS_PER_SECOND", value_parser = at_least_one)]
    max_starts_per_second: Option<usize>,
    /// What transcripts of live processes may take, in MiB.
    #[arg(long, value_name = "MIB", env = "PROCYARD_MAX_TRANSCRIPTS_MIB", value_parser = at_least_one)]
    max_transcripts_mib: Option<usize>,
    /// The same as --max-live, of one caller.
    #[arg(long, value_name = "N", env = "PROCYARD_CALLER_MAX_LIVE", value_parser = at_least_one)]
    caller_max_live: Option<usize>,
    /// The same as --max-streams, of one caller.
    #[arg(long, value_name = "N", env = "PROCYARD_CALLER_MAX_STREAMS", value_parser = at_least_one, default_value = "4096")]
    caller_max_streams: Option<usize>,
    /// The same as --max-starts-per-second, of one caller.
    #[arg(long, value_name = "N", env = "PROCYARD_CALLER_MAX_STARTS_PER_SECOND", value_parser = at_least_one)]
    caller_max_starts_per_second: Option<usize>,
    /// The same as --max-transcripts-mib, of one caller.
    #[arg(long, value_name = "MIB", env = "PROCYARD_CALLER_MAX_TRANSCRIPTS_MIB", value_parser = at_least_one)]
    caller_max_transcripts_mib: Option<usize>,
}

impl QuotaOptions {
    /// The same for the server that is started.
    pub(super) fn for_server(&self) -> Quotas {
        let quota = |live: Option<usize>, streams: Option<usize>, starts: Option<usize>, mib| {
            let number = |most: Option<usize>| most.map(|most| most as u64);
            Quota {
                live: number(live),
                streams: number(streams),
                starts_per_second: number(starts),
                transcript_bytes: number(mib).map(|mib| mib.saturating_mul(1 << 20)),
            }
        };
        Quotas {
            each: quota(
                self.caller_max_live,
                self.caller_max_streams,
                self.caller_max_starts_per_second,
                self.caller_max_transcripts_mib,
            ),
            all: quota(
                self.max_live,
                self.max_streams,
                self.max_starts_per_second,
                self.max_transcripts_mib,
            ),
        }
    }

    /// The same as arguments.
    pub(super) fn to_args(&self) -> Vec<OsString> {
        let QuotaOptions {
            max_live,
            max_streams,
            max_starts_per_second,
            max_transcripts_mib,
            caller_max_live,
            caller_max_streams,
            caller_max_starts_per_second,
            caller_max_transcripts_mib,
        } = self;
        let given = [
            ("--max-live", max_live),
            ("--max-streams", max_streams),
            ("--max-starts-per-second", max_starts_per_second),
            ("--max-transcripts-mib", max_transcripts_mib),
            ("--caller-max-live", caller_max_live),
            ("--caller-max-streams", caller_max_streams),
            ("--caller-max-starts-per-second", caller_max_starts_per_second),
            ("--caller-max-transcripts-mib", caller_max_transcripts_mib),
        ];
        let given = given.into_iter().filter_map(|(name, most)| Some((name, (*most)?)));
        given.flat_map(|(name, most)| [name.into(), most.to_string().into()]).collect()
    }
}
