//! How the end of a process is passed on as an exit code: the same by every command.

use crate::grpc::pb;

/// As `timeout` tells of a command whose time was over.
pub(in crate::cli) const TIMED_OUT: u8 = 124;
/// Of what is procyard's fault, or nobody knows.
pub(in crate::cli) const FAILED: u8 = 125;
/// A command that cannot be executed, and one that is not there, as shells tell it.
pub(in crate::cli) const NOT_EXECUTED: u8 = 126;
pub(in crate::cli) const NOT_FOUND: u8 = 127;
/// Added to the number of a signal, as shells do.
const BY_SIGNAL: i32 = 128;

/// Of a signal that ended something.
pub(in crate::cli) fn by_signal(number: i32) -> u8 {
    u8::try_from(BY_SIGNAL + number).unwrap_or(FAILED)
}

/// What to exit with in place of a process.
pub(in crate::cli) fn exit_code(process: &pb::Process) -> u8 {
    let Some(exit) = &process.exit else { return FAILED };
    match (exit.cause(), exit.code, exit.signal) {
        (pb::Cause::TimedOut, ..) => TIMED_OUT,
        (pb::Cause::StartFailed, None, None) => NOT_EXECUTED,
        // The service should have stayed up: its last 0 is no success.
        (pb::Cause::GaveUp, Some(0), _) => FAILED,
        (_, Some(code), _) => u8::try_from(code).unwrap_or(FAILED),
        (_, None, Some(signal)) => by_signal(signal),
        // Ended as one that runs would be.
        (pb::Cause::CanceledInQueue, ..) => by_signal(libc::SIGTERM),
        (_, None, None) => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_passed_on_as_shells_and_timeout_do() {
        let coded = |cause: pb::Cause, code, signal| {
            let exit = pb::Exit { cause: cause.into(), code, signal, ..Default::default() };
            exit_code(&pb::Process { exit: Some(exit), ..Default::default() })
        };
        assert_eq!(coded(pb::Cause::Exited, Some(3), None), 3);
        assert_eq!(coded(pb::Cause::Signaled, None, Some(11)), 139);
        assert_eq!(coded(pb::Cause::Killed, None, Some(15)), 143);
        assert_eq!(coded(pb::Cause::TimedOut, None, Some(15)), 124);
        assert_eq!(coded(pb::Cause::TimedOut, Some(0), None), 124);
        assert_eq!(coded(pb::Cause::CanceledInQueue, None, None), 143);
        assert_eq!(coded(pb::Cause::Lost, None, None), 125);
        assert_eq!(coded(pb::Cause::GaveUp, Some(3), None), 3);
        assert_eq!(coded(pb::Cause::GaveUp, Some(0), None), 125);
        assert_eq!(coded(pb::Cause::StartFailed, None, None), 126);
        assert_eq!(exit_code(&pb::Process::default()), 125);
    }
}
