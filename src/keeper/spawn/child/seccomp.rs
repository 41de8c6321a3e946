//! Keeps a sandboxed process from setting limits and priorities of processes outside: a seccomp filter.
//!
//! Landlock has no rule for `prlimit`, `setpriority` and their like, and without one a command of the
//! keeper's user could end the keeper by a limit on its CPU time. A filter sees numbers only, so it
//! cannot tell pids inside of the sandbox from pids outside: those calls may name the caller itself as 0,
//! and nothing else. A process that names itself or a thread of its own by number gets EPERM, too. All
//! other calls are allowed. The filter is built at compile time; to install it is one system call.

use std::mem::offset_of;

use libc::{seccomp_data, sock_filter};

use super::super::fence::Fence;
use super::call;

/// The numbers of the filtered calls in one of the ABIs that the kernel offers.
struct Abi {
    /// `AUDIT_ARCH_…` in `linux/audit.h`.
    arch: u32,
    prlimit64: u32,
    setpriority: u32,
    ioprio_set: u32,
    sched_setaffinity: u32,
    sched_setscheduler: u32,
    sched_setparam: u32,
    sched_setattr: u32,
}

/// The ABI of this program, and the 32-bit one that every process may use as well.
const ABIS: [Abi; 2] = [
    Abi {
        arch: if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e },
        prlimit64: libc::SYS_prlimit64 as u32,
        setpriority: libc::SYS_setpriority as u32,
        ioprio_set: libc::SYS_ioprio_set as u32,
        sched_setaffinity: libc::SYS_sched_setaffinity as u32,
        sched_setscheduler: libc::SYS_sched_setscheduler as u32,
        sched_setparam: libc::SYS_sched_setparam as u32,
        sched_setattr: libc::SYS_sched_setattr as u32,
    },
    COMPAT,
];

#[cfg(target_arch = "x86_64")]
const COMPAT: Abi = Abi {
    arch: 0x4000_0003,
    prlimit64: 340,
    setpriority: 97,
    ioprio_set: 289,
    sched_setaffinity: 241,
    sched_setscheduler: 156,
    sched_setparam: 154,
    sched_setattr: 351,
};

#[cfg(target_arch = "aarch64")]
const COMPAT: Abi = Abi {
    arch: 0x4000_0028,
    prlimit64: 369,
    setpriority: 97,
    ioprio_set: 314,
    sched_setaffinity: 241,
    sched_setscheduler: 156,
    sched_setparam: 154,
    sched_setattr: 380,
};

/// Set in the numbers of x32, which are those of x86-64 otherwise. No other ABI uses it.
const X32_BIT: u32 = 0x4000_0000;

// `ioprio_set` counts from 1 what `setpriority` counts from 0. Of the latter libc has constants whose
// type differs from one libc to the other.
const PRIO_PROCESS: u32 = 0;
const PRIO_PGRP: u32 = 1;
const IOPRIO_WHO_PROCESS: u32 = 1;
const IOPRIO_WHO_PGRP: u32 = 2;

const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

// Where the parts of the filter begin. Jumps lead forward only.

/// For each ABI a part that finds out which call it is.
const ABI: usize = 1;
const ABI_LENGTH: usize = 11;
/// prlimit64(pid, resource, new, old): reading, which is without `new`, or pid 0.
const LIMIT: usize = ABI + ABIS.len() * ABI_LENGTH;
/// sched_…(pid, …): pid 0.
const PID: usize = LIMIT + 4;
/// setpriority(which, who, nice): a process or group, and who 0.
const NICE: usize = PID + 2;
/// ioprio_set(which, who, priority): a process or group, and who 0.
const IO_PRIORITY: usize = NICE + 3;
/// The caller itself, or its group, which the sandbox does not share with processes outside.
const WHO: usize = IO_PRIORITY + 3;
const ALLOW: usize = WHO + 2;
const DENY: usize = ALLOW + 1;
const LENGTH: usize = DENY + 1;

static FILTER: [sock_filter; LENGTH] = filter();

/// Installs the filter, if the sandbox keeps a process from reaching something. After
/// `no_new_privs` is set, without which the kernel takes filters only from privileged processes.
pub(super) fn install(fence: &Fence) -> Result<(), i32> {
    if !fence.is_closed() {
        return Ok(());
    }
    let program =
        libc::sock_fprog { len: LENGTH as u16, filter: (&raw const FILTER).cast_mut().cast() };
    // Kernels before 5.16 slow down every filtered process unless speculation stays allowed.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as usize;
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    call(libc::SYS_seccomp, [mode, flags, (&raw const program) as usize, 0]).map(drop)
}

const fn filter() -> [sock_filter; LENGTH] {
    let mut code = [answer(DENIED); LENGTH];
    code[0] = load(offset_of!(seccomp_data, arch));
    let mut n = 0;
    while n < ABIS.len() {
        let (abi, at) = (&ABIS[n], ABI + n * ABI_LENGTH);
        let other = if n + 1 < ABIS.len() { at + ABI_LENGTH } else { DENY };
        code[at] = branch(at, abi.arch, at + 1, other);
        code[at + 1] = load(offset_of!(seccomp_data, nr));
        code[at + 2] = operation(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, !X32_BIT);
        let calls = [
            (abi.prlimit64, LIMIT),
            (abi.setpriority, NICE),
            (abi.ioprio_set, IO_PRIORITY),
            (abi.sched_setaffinity, PID),
            (abi.sched_setscheduler, PID),
            (abi.sched_setparam, PID),
            (abi.sched_setattr, PID),
        ];
        assert!(3 + calls.len() + 1 == ABI_LENGTH);
        let mut m = 0;
        while m < calls.len() {
            let at = at + 3 + m;
            code[at] = branch(at, calls[m].0, calls[m].1, at + 1);
            m += 1;
        }
        code[at + 3 + m] = answer(ALLOWED);
        n += 1;
    }
    code[LIMIT] = load(low(2));
    code[LIMIT + 1] = branch(LIMIT + 1, 0, LIMIT + 2, PID);
    code[LIMIT + 2] = load(high(2));
    code[LIMIT + 3] = branch(LIMIT + 3, 0, ALLOW, PID);
    code[PID] = load(low(0));
    code[PID + 1] = branch(PID + 1, 0, ALLOW, DENY);
    code[NICE] = load(low(0));
    code[NICE + 1] = branch(NICE + 1, PRIO_PROCESS, WHO, NICE + 2);
    code[NICE + 2] = branch(NICE + 2, PRIO_PGRP, WHO, DENY);
    code[IO_PRIORITY] = load(low(0));
    code[IO_PRIORITY + 1] = branch(IO_PRIORITY + 1, IOPRIO_WHO_PROCESS, WHO, IO_PRIORITY + 2);
    code[IO_PRIORITY + 2] = branch(IO_PRIORITY + 2, IOPRIO_WHO_PGRP, WHO, DENY);
    code[WHO] = load(low(1));
    code[WHO + 1] = branch(WHO + 1, 0, ALLOW, DENY);
    code[ALLOW] = answer(ALLOWED);
    code
}

/// Offset of the low half of an argument, all that the kernel looks at of an `int`.
const fn low(argument: usize) -> usize {
    let half = if cfg!(target_endian = "big") { size_of::<u32>() } else { 0 };
    offset_of!(seccomp_data, args) + argument * size_of::<u64>() + half
}

/// Offset of the high half of an argument.
const fn high(argument: usize) -> usize {
    let half = if cfg!(target_endian = "big") { 0 } else { size_of::<u32>() };
    offset_of!(seccomp_data, args) + argument * size_of::<u64>() + half
}

const fn operation(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn load(offset: usize) -> sock_filter {
    operation(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

const fn answer(value: u32) -> sock_filter {
    operation(libc::BPF_RET | libc::BPF_K, value)
}

/// At the instruction `at`, continues at `then` if the loaded word is `value`, else at `otherwise`.
const fn branch(at: usize, value: u32, then: usize, otherwise: usize) -> sock_filter {
    let (jt, jf) = (then - at - 1, otherwise - at - 1);
    assert!(jt <= u8::MAX as usize && jf <= u8::MAX as usize);
    let jump = operation(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value);
    sock_filter { jt: jt as u8, jf: jf as u8, ..jump }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pid that is none of the caller's.
    const PID_1: u64 = 1;

    /// What the filter answers to a call, found out as the kernel does.
    fn run(arch: u32, nr: u32, args: [u64; 3]) -> u32 {
        let [a, b, c] = args;
        let words: Vec<u32> = [nr, arch, 0, 0]
            .into_iter()
            .chain([a, b, c, 0, 0, 0].into_iter().flat_map(|arg| [arg as u32, (arg >> 32) as u32]))
            .collect();
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = FILTER[at];
            at += 1;
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    word = words[k as usize / size_of::<u32>()];
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => word &= k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if word == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code => panic!("instruction {code:#x} at {}", at - 1),
            }
        }
    }

    /// Every ABI with the bit that its numbers have, x32 among them.
    fn abis() -> impl Iterator<Item = (&'static Abi, u32)> {
        const { &ABIS }.iter().flat_map(|abi| [(abi, 0), (abi, X32_BIT)])
    }

    #[test]
    fn scheduling_calls_name_the_caller_only() {
        for (abi, bit) in abis() {
            let Abi {
                sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr, ..
            } = abi;
            for nr in [sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr] {
                let answer = |pid| run(abi.arch, nr | bit, [pid, 8, 8]);
                assert_eq!(answer(0), ALLOWED);
                assert_eq!([PID_1, u64::MAX, 1 << 31].map(answer), [DENIED; 3]);
                // The kernel takes the low half as the pid.
                assert_eq!([1 << 32, 1 << 32 | 1].map(answer), [ALLOWED, DENIED]);
            }
        }
    }

    #[test]
    fn limits_of_others_are_read_only() {
        for (abi, bit) in abis() {
            let answer = |pid, new| run(abi.arch, abi.prlimit64 | bit, [pid, 7, new]);
            assert_eq!([answer(0, 0), answer(0, 8), answer(PID_1, 0)], [ALLOWED; 3]);
            assert_eq!([8, 1 << 32, u64::MAX].map(|new| answer(PID_1, new)), [DENIED; 3]);
        }
    }

    #[test]
    fn priorities_are_set_of_the_caller_and_its_group_only() {
        for (abi, bit) in abis() {
            for (nr, first) in [(abi.setpriority, 0), (abi.ioprio_set, 1)] {
                let answer = |which, who| run(abi.arch, nr | bit, [which, who, 8]);
                let [process, group, user] = [first, first + 1, first + 2];
                assert_eq!([process, group].map(|which| answer(which, 0)), [ALLOWED; 2]);
                assert_eq!([process, group].map(|which| answer(which, PID_1)), [DENIED; 2]);
                assert_eq!([0, 1000].map(|who| answer(user, who)), [DENIED; 2]);
            }
        }
    }

    #[test]
    fn other_calls_are_allowed_and_other_abis_are_not() {
        for abi in &ABIS {
            let Abi { arch, prlimit64, setpriority, ioprio_set, .. } = *abi;
            let Abi {
                sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr, ..
            } = *abi;
            let scheduling = [sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr];
            let filtered = [prlimit64, setpriority, ioprio_set];
            let denied: Vec<u32> =
                (0..1024).filter(|nr| run(arch, *nr, [9; 3]) != ALLOWED).collect();
            let mut expected = [&scheduling[..], &filtered[..]].concat();
            expected.sort_unstable();
            assert_eq!(denied, expected);
        }
        assert_eq!(run(0, 0, [0; 3]), DENIED);
    }
}
