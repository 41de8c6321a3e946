//! System calls without libc, for code that runs beside the keeper in the keeper's memory.
//!
//! libc leaves errors in a variable of the thread. A task that shares the keeper's memory shares that
//! variable, too, so it must not call libc: here errors are returned and nothing is written.

use std::ffi::{c_int, c_long, c_void};

/// The beginning of a task: it gets the argument and never returns.
pub(super) type Entry = extern "C" fn(*mut c_void) -> !;

/// Makes a system call: what it returns, or its errno.
///
/// # Safety
/// The arguments are what the named call takes; pointers are to memory that lives long enough.
pub(super) unsafe fn syscall(number: c_long, args: [usize; 5]) -> Result<usize, i32> {
    let [a, b, c, d, e] = args;
    let result: isize;
    // SAFETY: the registers of the kernel's convention, and those that it overwrites.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") 0,
            options(nostack),
        );
    }
    checked(result)
}

/// Makes a task that begins in `entry` on a stack of its own: its pid, or an errno. `number` and
/// `args` are those of `clone` or `clone3`, and name the stack.
///
/// # Safety
/// As [`syscall`]; the stack is used by this task alone, and the argument lives as long as it.
pub(super) unsafe fn clone(
    number: c_long,
    args: [usize; 3],
    entry: Entry,
    argument: *mut c_void,
) -> Result<c_int, i32> {
    let [a, b, c] = args;
    let result: isize;
    // SAFETY: the parent sees an ordinary system call. The child, on its own empty stack, calls
    // `entry`, which does not return.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") 0,
            in("r8") 0,
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {argument}",
            "blr {entry}",
            "brk #1",
            "2:",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b,
            in("x2") c,
            in("x3") 0,
            in("x4") 0,
            entry = in(reg) entry,
            argument = in(reg) argument,
        );
    }
    checked(result).map(|pid| pid as c_int)
}

/// Ends this task alone.
pub(super) fn exit(code: usize) -> ! {
    loop {
        // SAFETY: does not return, and nothing is unwound or flushed.
        let _ = unsafe { syscall(libc::SYS_exit_group, [code, 0, 0, 0, 0]) };
    }
}

fn checked(result: isize) -> Result<usize, i32> {
    // The kernel returns errors as numbers from -4095 on.
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result.cast_unsigned()) }
}
