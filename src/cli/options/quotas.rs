//! The options that say how much there may be, of each caller and of all.

use std::ffi::OsString;

use super::at_least_one;
use crate::supervisor::{Quota, Quotas};

/// How much there may be. Whatever is not given has no bound, but for streams, calls and what calls
/// hold, all of which one caller must not take, and for transcripts where memory is limited.
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
    /// What transcripts may take of the memory, in MiB: all that those of live processes may become,
    /// and those of finished ones until they are in files. The default is half of the memory limit of
    /// the cgroup, or no bound where it has none.
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
    /// Calls, besides streams, that one caller may have under way at a time.
    #[arg(long, value_name = "N", env = "PROCYARD_CALLER_MAX_CALLS", value_parser = at_least_one, default_value = "256")]
    caller_max_calls: Option<usize>,
    /// Bytes that the calls of one caller may hold for requests that still arrive and answers that
    /// were not sent yet.
    #[arg(long, value_name = "BYTES", env = "PROCYARD_CALLER_MAX_BYTES", value_parser = at_least_one, default_value = "67108864")]
    caller_max_bytes: Option<usize>,
}

impl QuotaOptions {
    /// The same for the server that is started.
    pub(super) fn for_server(&self) -> Quotas {
        let number = |most: Option<usize>| most.map(|most| most as u64);
        let quota =
            |live: Option<usize>, streams: Option<usize>, starts: Option<usize>, mib| Quota {
                live: number(live),
                streams: number(streams),
                starts_per_second: number(starts),
                transcript_bytes: number(mib).map(|mib| mib.saturating_mul(1 << 20)),
                ..Quota::default()
            };
        Quotas {
            each: Quota {
                calls: number(self.caller_max_calls),
                held_bytes: number(self.caller_max_bytes),
                ..quota(
                    self.caller_max_live,
                    self.caller_max_streams,
                    self.caller_max_starts_per_second,
                    self.caller_max_transcripts_mib,
                )
            },
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
            caller_max_calls,
            caller_max_bytes,
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
            ("--caller-max-calls", caller_max_calls),
            ("--caller-max-bytes", caller_max_bytes),
        ];
        let given = given.into_iter().filter_map(|(name, most)| Some((name, (*most)?)));
        given.flat_map(|(name, most)| [name.into(), most.to_string().into()]).collect()
    }
}
