//! Giving up the capabilities that would undo a sandbox: raw system calls and nothing else.
//!
//! A sandbox keeps root in only as long as root cannot take it down, so what is in one has none of
//! [`UNDOING`], and `no_new_privs` (set in `confine`) keeps them from coming back by an exec. Another
//! user has no capabilities after its exec anyway. Those that are left are about files, users and limits,
//! which namespaces do not promise to withhold.

use std::ffi::c_int;

use super::super::fence::Fence;
use super::call;

// Capabilities by their numbers in `linux/capability.h`, and what each is good for.

/// Opens files by handle, also those that no path in its mounts leads to.
const DAC_READ_SEARCH: u32 = 2;
/// Changes the bounding set and the inheritable capabilities.
const SETPCAP: u32 = 8;
/// Makes any file immutable, also one that it may not write: Landlock does not decide about that.
const LINUX_IMMUTABLE: u32 = 9;
/// Ties a network of its own to that of any process whose pid it sees. Withheld where the network
/// is its own; elsewhere the network is not what the sandbox withholds.
const NET_ADMIN: u32 = 12;
/// Loads code into the kernel.
const SYS_MODULE: u32 = 16;
/// Reaches I/O ports, physical memory and raw commands of disks.
const SYS_RAWIO: u32 = 17;
/// With a directory outside of a changed root it leaves that root.
const SYS_CHROOT: u32 = 18;
/// Traces processes outside, reads their memory, takes their descriptors and enters their roots.
const SYS_PTRACE: u32 = 19;
/// Mounts, unmounts, makes and enters namespaces, and much more.
const SYS_ADMIN: u32 = 21;
/// Reboots the machine and loads another kernel.
const SYS_BOOT: u32 = 22;
/// Sets the clock, which all processes share.
const SYS_TIME: u32 = 25;
/// Makes devices, such as the disk beneath the files that are withheld.
const MKNOD: u32 = 27;
/// Overrides the policies of security modules.
const MAC_OVERRIDE: u32 = 32;
/// Changes the policies of security modules.
const MAC_ADMIN: u32 = 33;
/// Reads messages and addresses of the kernel.
const SYSLOG: u32 = 34;
/// Observes the whole kernel.
const PERFMON: u32 = 38;
/// Runs programs in the kernel.
const BPF: u32 = 39;
/// Chooses pids, and reads files that other processes have mapped.
const CHECKPOINT_RESTORE: u32 = 40;

/// Capabilities that undo any sandbox.
const UNDOING: [u32; 17] = [
    DAC_READ_SEARCH,
    SETPCAP,
    LINUX_IMMUTABLE,
    SYS_MODULE,
    SYS_RAWIO,
    SYS_CHROOT,
    SYS_PTRACE,
    SYS_ADMIN,
    SYS_BOOT,
    SYS_TIME,
    MKNOD,
    MAC_OVERRIDE,
    MAC_ADMIN,
    SYSLOG,
    PERFMON,
    BPF,
    CHECKPOINT_RESTORE,
];

/// `_LINUX_CAPABILITY_VERSION_3`: 64 bits, in two halves.
const VERSION: u32 = 0x2008_0522;

/// Whose capabilities are meant; as the kernel lays it out.
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

/// Half of the capabilities; as the kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up the capabilities that would undo the fence, if there is one to undo. After the mounts,
/// which need them, and before another user is chosen, who could not lower the bounding set.
pub(super) fn drop_from(fence: &Fence) -> Result<(), i32> {
    if !fence.is_closed() {
        return Ok(());
    }
    let withheld = withheld(fence.kinds());
    lower_bounding_set(withheld)?;
    let mut header = Header { version: VERSION, pid: 0 };
    let mut halves = [Half::default(); 2];
    let own = [(&raw mut header) as usize, (&raw mut halves) as usize, 0, 0];
    call(libc::SYS_capget, own)?;
    for (half, bits) in halves.iter_mut().zip([withheld as u32, (withheld >> 32) as u32]) {
        half.effective &= !bits;
        half.permitted &= !bits;
        // The kernel takes what is not inheritable out of the ambient set, too.
        half.inheritable &= !bits;
    }
    call(libc::SYS_capset, own).map(drop)
}

/// The capabilities that are withheld in namespaces of these kinds, one bit for each.
fn withheld(kinds: c_int) -> u64 {
    let bits = UNDOING.iter().fold(0, |bits, capability| bits | 1 << capability);
    if kinds & libc::CLONE_NEWNET != 0 { bits | 1 << NET_ADMIN } else { bits }
}

/// Takes capabilities out of the bounding set. Without SETPCAP that is not permitted, and not needed:
/// with `no_new_privs` an exec adds nothing to the permitted set.
fn lower_bounding_set(withheld: u64) -> Result<(), i32> {
    for capability in (0..u64::BITS).filter(|capability| withheld >> capability & 1 != 0) {
        let option = libc::PR_CAPBSET_DROP as usize;
        match call(libc::SYS_prctl, [option, capability as usize, 0, 0]) {
            // EINVAL: the kernel is older than the capability.
            Ok(_) | Err(libc::EPERM | libc::EINVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_network_is_not_administered() {
        assert_eq!(withheld(0) & (1 << SYS_ADMIN | 1 << NET_ADMIN), 1 << SYS_ADMIN);
        assert_eq!(withheld(libc::CLONE_NEWNET), withheld(0) | 1 << NET_ADMIN);
    }
}
