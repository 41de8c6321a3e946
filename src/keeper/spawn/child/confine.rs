//! Putting up the fence, in the child: raw system calls and nothing else.
//!
//! What is checked here is what was entered, not a path that may lead elsewhere a moment later: the
//! kernel is asked where the child is, and rules are made for the directory that it stands in.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use super::super::fence::{
    Fence, LANDLOCK_ADD_RULE, LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, OF_A_FILE,
};
use super::{Failure, Order, Step, call, call5, write};
use crate::process::Files;

/// Longest path that the kernel tells, with its NUL.
const LONGEST: usize = 4096;

/// What `statfs` writes, in words, of which the first is the kind of file system; and more than that.
const STATFS_WORDS: usize = 32;

/// The kinds of cgroup hierarchies: version 1 and 2.
const CGROUP_MAGICS: [usize; 2] = [0x0027_e0eb, 0x6367_7270];

/// A rule for what lies beneath a directory.
const PATH_BENEATH: usize = 1;

/// What a rule allows, and where; as the kernel lays it out.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: RawFd,
}

/// What a ruleset withholds; as the kernel lays it out. A kernel that knows only the first fields
/// takes it while the others are 0.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// How `openat2` opens a file; as the kernel lays it out.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// A request about an interface; as the kernel lays it out.
#[repr(C)]
struct Interface {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

fn not_put_up(errno: i32) -> Failure {
    Failure { step: Step::Confine, errno, candidate: 0 }
}

/// Joins the namespaces of another process. Before anything else: its descriptor stays with the
/// keeper.
pub(super) fn join(order: &Order) -> Result<(), i32> {
    let Some((pidfd, kinds)) = &order.program.fence.join else { return Ok(()) };
    let kinds = order.host.with_users(*kinds);
    call(libc::SYS_setns, [pidfd.as_raw_fd() as usize, kinds as usize, 0, 0]).map(drop)
}

/// Makes the namespaces that it was born into fit to live in. Needs privileges, so before the change
/// of user; and opens files, so before the limits.
pub(super) fn settle(order: &Order) -> Result<(), i32> {
    let kinds = order.host.with_users(order.program.fence.namespaces);
    if kinds & libc::CLONE_NEWUSER != 0 {
        let [users, groups] = &order.host.maps;
        // Without privileges a group can be mapped only by who has given up changing groups.
        write(c"/proc/self/setgroups", c"deny")?;
        write(c"/proc/self/gid_map", groups)?;
        write(c"/proc/self/uid_map", users)?;
    }
    if kinds & libc::CLONE_NEWNS != 0 {
        mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
        order.host.cgroup_mounts.iter().try_for_each(|point| protect_cgroups(point))?;
    }
    if kinds & libc::CLONE_NEWPID != 0 {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        mount(c"proc", c"/proc", c"proc", flags)?;
    }
    if kinds & libc::CLONE_NEWNET != 0 {
        bring_loopback_up()?;
    }
    Ok(())
}

/// Makes a mounted cgroup hierarchy read-only. A command may own the cgroups of the keeper, and could
/// kill or freeze it there. In user namespaces that the command makes, the kernel locks the mount.
fn protect_cgroups(point: &CStr) -> Result<(), i32> {
    let mut found = [0_usize; STATFS_WORDS];
    match call(libc::SYS_statfs, [point.as_ptr() as usize, found.as_mut_ptr() as usize, 0, 0]) {
        Ok(_) => {}
        // Unmounted since the keeper began, or out of reach for this user.
        Err(libc::ENOENT | libc::ENOTDIR | libc::EACCES) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    // Another file system may be mounted above.
    if !CGROUP_MAGICS.contains(&found[0]) {
        return Ok(());
    }
    // The last three may be set and locked, and then cannot be cleared.
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(c"none", point, c"", libc::MS_REMOUNT | libc::MS_BIND | flags)
}

/// Enters the working directory, checks where that is, and gives up what is to be given up.
pub(super) fn enter(order: &Order) -> Result<(), Failure> {
    let fence = &order.program.fence;
    enter_one(order.program.cwd.as_deref(), fence, 0)?;
    if fence.no_new_privileges {
        let option = libc::PR_SET_NO_NEW_PRIVS as usize;
        call(libc::SYS_prctl, [option, 1, 0, 0]).map_err(not_put_up)?;
    }
    let files = match fence.files {
        Files::Unrestricted => 0,
        _ if order.host.rights == 0 => return Err(not_put_up(libc::ENOSYS)),
        _ => order.host.rights,
    };
    let scopes = if fence.is_closed() { order.host.scopes } else { 0 };
    if files | scopes == 0 {
        return Ok(());
    }
    let withheld = Ruleset { files, network: 0, scopes };
    let (withheld, size) = ((&raw const withheld) as usize, size_of_val(&withheld));
    let ruleset = call(LANDLOCK_CREATE_RULESET, [withheld, size, 0, 0]).map_err(not_put_up)?;
    if files != 0 {
        allow_single(order, ruleset).map_err(not_put_up)?;
    }
    if fence.files == Files::WorkspaceWrite {
        allow_below(order, ruleset)?;
    }
    call(LANDLOCK_RESTRICT_SELF, [ruleset, 0, 0, 0]).map(drop).map_err(not_put_up)
}

/// Lets it write single files, as far as they are there, and its own terminal, which it may want to
/// open again by name.
fn allow_single(order: &Order, ruleset: usize) -> Result<(), i32> {
    let rights = order.host.rights & OF_A_FILE;
    if order.plan.terminal {
        allow(ruleset, 0, rights)?;
    }
    for path in &order.program.fence.single {
        match open(path) {
            Ok(file) => {
                allow(ruleset, file, rights)?;
                call(libc::SYS_close, [file, 0, 0, 0])?;
            }
            // Not there, or nothing that this user could write anyway.
            Err(libc::ENOENT | libc::ENOTDIR | libc::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Lets it write below where it is and below other directories, which are entered one after the
/// other.
fn allow_below(order: &Order, ruleset: usize) -> Result<(), Failure> {
    let (fence, rights) = (&order.program.fence, order.host.rights);
    let here = open(c".").map_err(not_put_up)?;
    allow(ruleset, here, rights).map_err(not_put_up)?;
    for (n, path) in fence.writable.iter().enumerate() {
        enter_one(Some(path), fence, n + 1)?;
        let there = open(c".").map_err(not_put_up)?;
        allow(ruleset, there, rights).map_err(not_put_up)?;
        call(libc::SYS_close, [there, 0, 0, 0]).map_err(not_put_up)?;
    }
    call(libc::SYS_fchdir, [here, 0, 0, 0]).map(drop).map_err(not_put_up)
}

/// Enters a directory, if there is one to enter, and asks the kernel where that is. `candidate` is
/// what a failure speaks of.
fn enter_one(path: Option<&CStr>, fence: &Fence, candidate: usize) -> Result<(), Failure> {
    let failure = |step, errno| Failure { step, errno, candidate };
    match path {
        // What is entered becomes writable, so a link that another command has put there must not
        // choose it.
        Some(path) if fence.files == Files::WorkspaceWrite => {
            change_directory_without_links(path).map_err(|errno| match errno {
                libc::ELOOP => failure(Step::Link, errno),
                errno => failure(Step::Directory, errno),
            })?;
        }
        Some(path) => {
            let path = path.as_ptr() as usize;
            let entered = call(libc::SYS_chdir, [path, 0, 0, 0]);
            entered.map_err(|errno| failure(Step::Directory, errno))?;
        }
        None => {}
    }
    if fence.roots.is_empty() {
        return Ok(());
    }
    let mut place = [0_u8; LONGEST];
    let buffer = [place.as_mut_ptr() as usize, LONGEST, 0, 0];
    let length = call(libc::SYS_getcwd, buffer).map_err(|errno| failure(Step::Directory, errno))?;
    // Without its NUL. A place that cannot be reached from the root does not begin with a slash.
    let place = place.get(..length.saturating_sub(1)).unwrap_or_default();
    let inside = fence.roots.iter().any(|root| is_within(place, root.to_bytes()));
    if inside { Ok(()) } else { Err(failure(Step::Outside, libc::EACCES)) }
}

/// Enters a directory; ELOOP if its path has a symbolic link anywhere.
fn change_directory_without_links(path: &CStr) -> Result<(), i32> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let how = OpenHow { flags, mode: 0, resolve: libc::RESOLVE_NO_SYMLINKS };
    let (how, size) = ((&raw const how) as usize, size_of_val(&how));
    let at = libc::AT_FDCWD as usize;
    let directory = call(libc::SYS_openat2, [at, path.as_ptr() as usize, how, size])?;
    call(libc::SYS_fchdir, [directory, 0, 0, 0])?;
    call(libc::SYS_close, [directory, 0, 0, 0]).map(drop)
}

/// Whether a real path is a directory or lies below it.
fn is_within(path: &[u8], directory: &[u8]) -> bool {
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || directory.ends_with(b"/") || rest.starts_with(b"/"),
        None => false,
    }
}

fn open(path: &CStr) -> Result<usize, i32> {
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0])
}

fn allow(ruleset: usize, parent: usize, allowed: u64) -> Result<(), i32> {
    let rule = Beneath { allowed, parent: parent as RawFd };
    call(LANDLOCK_ADD_RULE, [ruleset, PATH_BENEATH, (&raw const rule) as usize, 0]).map(drop)
}

fn mount(what: &CStr, place: &CStr, kind: &CStr, flags: libc::c_ulong) -> Result<(), i32> {
    let [what, place, kind] = [what, place, kind].map(|text| text.as_ptr() as usize);
    call5(libc::SYS_mount, [what, place, kind, flags as usize, 0]).map(drop)
}

/// The kernel gives it its addresses when it goes up.
fn bring_loopback_up() -> Result<(), i32> {
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let socket = call(libc::SYS_socket, [libc::AF_INET as usize, kind, 0, 0])?;
    let mut name = [0; libc::IFNAMSIZ];
    [name[0], name[1]] = *b"lo";
    let up = Interface { name, flags: libc::IFF_UP as u16, rest: [0; 22] };
    let request = libc::SIOCSIFFLAGS as usize;
    call(libc::SYS_ioctl, [socket, request, (&raw const up) as usize, 0])?;
    call(libc::SYS_close, [socket, 0, 0, 0]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn a_path_is_within_a_directory_by_whole_names() {
        let within = [("/a", "/a"), ("/a/b", "/a"), ("/", "/"), ("/x", "/")];
        let outside = [
            ("/ab", "/a"),
            ("/", "/a"),
            ("(unreachable)/a", "/a"),
            ("(unreachable)", "/"),
            ("", "/a"),
        ];
        for (path, directory) in within {
            assert!(is_within(path.as_bytes(), directory.as_bytes()), "{path} {directory}");
        }
        for (path, directory) in outside {
            assert!(!is_within(path.as_bytes(), directory.as_bytes()), "{path} {directory}");
        }
    }
}
