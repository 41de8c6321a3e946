//! Points at which a test ends the server, between any two steps of what it does.
//!
//! Owns the list of all points, and what is done at one. They are there with the cargo feature
//! `failpoints` only; without it, [`reach`] is nothing. A point is armed by a file of its name in
//! the directory that `PROCYARD_FAILPOINTS` names: at the nth time that it is reached, where n is
//! what the file holds, the file gets the name of the server's pid and the server is killed there
//! and then. So the next one does not die of the same file.

/// Makes the points, each with its name and with when it is reached.
macro_rules! points {
    ($($(#[$when:meta])* $point:ident = $name:literal,)*) => {
        /// A step at which the server may be ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point {
            $($(#[$when])* $point,)*
        }

        impl Point {
            /// All of them, in the order in which a process meets them.
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            /// The name of the file that arms it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Point::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// A call has come; the supervisor does not know it yet.
    CallAsked = "call.asked",
    /// A call is answered; the client does not know it yet.
    CallAnswered = "call.answered",

    /// Something has changed; the store has nothing of it.
    CommitHanded = "commit.handed",
    /// A transaction is written and not committed.
    CommitWritten = "commit.written",
    /// A transaction is committed; the supervisor does not know it yet.
    CommitDone = "commit.done",
    /// The supervisor knows it; nothing that follows from it is done.
    CommitHeard = "commit.heard",
    /// Watchers were told of something, of which the rest is not done.
    EventTold = "event.told",
    /// All that follows is done or on its way.
    Performed = "performed",

    /// A launch is recorded; nothing is done for it yet.
    LaunchBegun = "launch.begun",
    /// Before a launch, who outlived the earlier one was ended.
    EarlierEnded = "earlier.ended",
    /// The files of a launch are written; the keeper does not know of it.
    SpawnAsked = "spawn.asked",
    /// The keeper has started a launch; the record does not know it yet.
    SpawnAnswered = "spawn.answered",

    /// A request is on its way to the keeper, which may or may not take it.
    KeeperAsked = "keeper.asked",

    /// The tree of a process is to be signalled, or looked at.
    SignalAsked = "signal.asked",
    /// It was; the supervisor does not know it yet.
    SignalAnswered = "signal.answered",
    /// The time has come that something waited for: a grace period, a pause.
    TimeCome = "time.come",

    /// The keeper has reported an exit.
    ExitReported = "exit.reported",
    /// What a program set was read; its end is not recorded.
    OutputRead = "output.read",
    /// The file of what a program set is gone.
    OutputRemoved = "output.removed",
    /// The file of a script is gone.
    ScriptRemoved = "script.removed",
    /// A transcript is written to a file that has another name yet.
    TranscriptWritten = "transcript.written",
    /// The file has its name; no record knows it.
    TranscriptNamed = "transcript.named",
    /// The file of a transcript is gone.
    TranscriptRemoved = "transcript.removed",
    /// The keeper is to forget a process.
    ReleaseAsked = "release.asked",

    /// A server has read the store.
    RecoveryLoaded = "recovery.loaded",
    /// It knows what the keeper holds.
    RecoveryAdopted = "recovery.adopted",
    /// It has read the files that were left, and removed those of nobody.
    RecoverySwept = "recovery.swept",
    /// It knows what is to be done, and has done nothing.
    RecoveryReconciled = "recovery.reconciled",
    /// That is recorded and begun; nobody was let in.
    RecoveryDone = "recovery.done",
    /// Who was held without a record was ended, and is not forgotten by the keeper.
    StrayEnded = "stray.ended",
    /// The keeper has forgotten one without a record.
    StrayFreed = "stray.freed",
}

/// The server is at a point: it ends here if the point is armed.
#[cfg(feature = "failpoints")]
pub fn reach(point: Point) {
    armed::reach(point);
}

/// The server is at a point, which means nothing here.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reach(_: Point) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    use super::Point;

    /// Names the directory in which points are armed.
    const VARIABLE: &str = "PROCYARD_FAILPOINTS";

    pub(super) fn reach(point: Point) {
        static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
        let directory = DIRECTORY.get_or_init(|| std::env::var_os(VARIABLE).map(PathBuf::from));
        let Some(file) = directory.as_ref().map(|directory| directory.join(point.name())) else {
            return;
        };
        let Ok(times) = fs::read_to_string(&file) else { return };
        let times: u32 = times.trim().parse().unwrap_or(1);
        if times > 1 {
            let _ = fs::write(&file, (times - 1).to_string());
            return;
        }
        let pid = getpid();
        // Tells the test who dies: until then it may well do something yet.
        let _ = fs::rename(&file, file.with_file_name(pid.to_string()));
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::Point;

    #[test]
    fn no_two_points_have_the_same_name() {
        let names: std::collections::HashSet<_> = Point::ALL.iter().map(|p| p.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
