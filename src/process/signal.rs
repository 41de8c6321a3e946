//! Signals by name and number. Pure.

/// The signal that nobody can refuse.
pub const KILL: i32 = libc::SIGKILL;

/// The signals that have names here, with their numbers on Linux.
const NAMES: [(&str, i32); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// The number of a signal that is written as "TERM", "SIGTERM", "term" or "15".
pub fn parse(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The name of a signal, as "TERM"; its number if it has none.
pub fn name(number: i32) -> String {
    let named = NAMES.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_reads_in_all_its_spellings() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(text), Some(15), "{text}");
        }
        assert_eq!(parse("34"), Some(34));
        assert_eq!(parse("SYS"), Some(31));
    }

    #[test]
    fn what_is_no_signal_is_refused() {
        for text in ["", "SIG", "NOPE", "0", "65", "-9", "9999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_signal_has_a_spelling_that_reads_back() {
        for number in 1..=64 {
            assert_eq!(parse(&name(number)), Some(number));
        }
    }
}
