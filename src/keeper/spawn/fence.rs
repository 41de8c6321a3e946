//! What keeps a process in: prepared for the child, and found out once what the kernel gives.
//!
//! Owns the forms that the kernel takes: flags of namespaces, rights of files, maps of users. The
//! child puts the fence up (`child/confine.rs`); nothing here touches a living process.

use std::ffi::{CString, c_int};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::child::Step;
use super::{Ends, Failed, Failure, OUTPUT, Program, Spawner};
use crate::process::{Files, Launch, Parts, Refused, Sandbox};

/// Numbers of Landlock's system calls, the same on all machines.
pub(super) const LANDLOCK_CREATE_RULESET: i64 = 444;
pub(super) const LANDLOCK_ADD_RULE: i64 = 445;
pub(super) const LANDLOCK_RESTRICT_SELF: i64 = 446;

/// Asks `landlock_create_ruleset` for the version of its interface.
const RULESET_VERSION: usize = 1;

/// Rights of a directory and of all below it that change something: to write, remove and make all
/// kinds of files.
const CHANGES: u64 = 0b1_1111_1111_0010;
/// To link and rename from one directory to another: from version 2 on, never allowed before.
const REFER: u64 = 1 << 13;
/// To truncate: from version 3 on, never forbidden before.
const TRUNCATE: u64 = 1 << 14;
/// To control devices: from version 5 on, never forbidden before.
const CONTROL: u64 = 1 << 15;
/// To connect to abstract Unix sockets and to send signals, both to processes outside of the sandbox:
/// from version 6 on, never forbidden before.
const SCOPES: u64 = 0b11;
/// Of the rights, what a rule for a single file may have.
pub(super) const OF_A_FILE: u64 = (1 << 1) | TRUNCATE | CONTROL;

/// Devices that change nothing that lasts, and the terminal of whoever has one.
const DEVICES: [&std::ffi::CStr; 5] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/tty", c"/dev/ptmx"];

/// What keeps one process in.
pub(super) struct Fence {
    /// Real paths that its directories lie in or below; none: anywhere.
    pub(super) roots: Vec<CString>,
    pub(super) files: Files,
    /// Directories below which it may write.
    pub(super) writable: Vec<CString>,
    /// Single files that it may write, if they are there.
    pub(super) single: Vec<CString>,
    /// Kinds of namespaces that it begins in.
    pub(super) namespaces: c_int,
    /// A living process whose namespaces it joins, and which kinds.
    pub(super) join: Option<(OwnedFd, c_int)>,
    pub(super) no_new_privileges: bool,
}

impl Fence {
    pub(super) fn new(launch: &Launch) -> Result<Fence, Refused> {
        let nul = |_| Refused::Invalid("a path of the sandbox has a NUL byte".into());
        let Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges } =
            &launch.sandbox;
        let kinds = [
            (*own_pids, libc::CLONE_NEWPID | libc::CLONE_NEWNS),
            (*own_mounts, libc::CLONE_NEWNS),
            (*own_network, libc::CLONE_NEWNET),
        ];
        let strings = |paths: Vec<&[u8]>| paths.into_iter().map(CString::new).collect();
        let roots: Result<_, _> = strings(launch.roots.iter().map(Vec::as_slice).collect());
        let writable: Result<_, _> = strings(writable.iter().map(String::as_bytes).collect());
        let single: Result<_, _> = strings(single_files(*files, launch));
        Ok(Fence {
            roots: roots.map_err(nul)?,
            files: *files,
            writable: writable.map_err(nul)?,
            single: single.map_err(nul)?,
            namespaces: kinds.iter().filter(|(own, _)| *own).fold(0, |all, (_, kind)| all | kind),
            join: None,
            no_new_privileges: *no_new_privileges || launch.sandbox.is_closed(),
        })
    }

    /// Whether it keeps a process from reaching something, and not only from gaining privileges.
    pub(super) fn is_closed(&self) -> bool {
        self.files != Files::Unrestricted || self.kinds() != 0
    }

    /// Kinds of namespaces that it is in: its own, or those of another process.
    pub(super) fn kinds(&self) -> c_int {
        self.join.as_ref().map_or(self.namespaces, |(_, kinds)| *kinds)
    }

    /// The same with the mounts and the network of a living process. It cannot become one of its
    /// PID namespace, which only those are born into that are made by one of it.
    pub(super) fn beside(&mut self, pidfd: OwnedFd) {
        let kinds = self.namespaces & (libc::CLONE_NEWNS | libc::CLONE_NEWNET);
        self.join = (kinds != 0).then_some((pidfd, kinds));
        self.namespaces = 0;
    }
}

/// Files that may be written where others may not.
fn single_files(files: Files, launch: &Launch) -> Vec<&[u8]> {
    if files == Files::Unrestricted {
        return Vec::new();
    }
    let output = launch.env.iter().find(|(name, _)| name == OUTPUT);
    let devices = DEVICES.into_iter().map(std::ffi::CStr::to_bytes);
    devices.chain(output.map(|(_, value)| value.as_slice())).collect()
}

/// What the kernel gives to this keeper.
#[derive(Clone, Default)]
pub(super) struct Host {
    /// Rights of files that can be withheld; 0: too few for a promise.
    pub(super) rights: u64,
    /// What else can be withheld, of what lies outside of a sandbox; 0: nothing.
    pub(super) scopes: u64,
    /// Namespaces can be had only inside of a new user namespace.
    pub(super) own_users: bool,
    /// What is written to the maps of users and of groups there: the keeper's own, unchanged.
    pub(super) maps: [CString; 2],
    /// Where cgroup hierarchies were mounted when the keeper began.
    pub(super) cgroup_mounts: Vec<CString>,
}

impl Host {
    /// The kinds of namespaces to make for these.
    pub(super) fn with_users(&self, kinds: c_int) -> c_int {
        if kinds != 0 && self.own_users { kinds | libc::CLONE_NEWUSER } else { kinds }
    }
}

/// The rights that a version of Landlock can withhold. Before version 3 whoever may not write a file
/// could truncate it, which is no fence at all.
fn rights(version: i64) -> u64 {
    match version {
        ..3 => 0,
        3..5 => CHANGES | REFER | TRUNCATE,
        _ => CHANGES | REFER | TRUNCATE | CONTROL,
    }
}

/// What a version of Landlock can withhold of what lies outside of a sandbox.
fn scopes(version: i64) -> u64 {
    if version < 6 { 0 } else { SCOPES }
}

/// The mount points of cgroup hierarchies, from mountinfo.
fn cgroup_mounts(mountinfo: &[u8]) -> Vec<CString> {
    let mut points: Vec<CString> = Vec::new();
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = fields.nth(4);
        let kind = fields.skip_while(|field| *field != b"-").nth(1);
        if let (Some(point), Some(b"cgroup" | b"cgroup2")) = (point, kind)
            && let Ok(point) = CString::new(unescaped(point))
            && !points.contains(&point)
        {
            points.push(point);
        }
    }
    points
}

/// A path of mountinfo, in which some bytes are three octal digits behind a backslash.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

impl Spawner {
    /// Finds out which parts of a sandbox can be had, by children that get as far as their exec.
    pub(in crate::keeper) fn probe_sandbox(&mut self) -> Parts {
        // SAFETY: asks for a number; no pointer is passed but null.
        let version =
            unsafe { libc::syscall(LANDLOCK_CREATE_RULESET, 0_usize, 0_usize, RULESET_VERSION) };
        let line = |id: u32| CString::new(format!("{id} {id} 1")).unwrap_or_default();
        let maps =
            [line(rustix::process::geteuid().as_raw()), line(rustix::process::getegid().as_raw())];
        let (rights, scopes) = (rights(version), scopes(version));
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let cgroup_mounts = cgroup_mounts(&mounts);
        self.host = Rc::new(Host { rights, scopes, own_users: false, maps, cgroup_mounts });
        let files = if self.host.rights == 0 { Files::Unrestricted } else { Files::WorkspaceWrite };
        let network = Sandbox { own_network: true, ..Sandbox::default() };
        let mounts = Sandbox { own_mounts: true, ..Sandbox::default() };
        let pids = Sandbox { own_pids: true, ..mounts.clone() };
        // Each namespace takes its time to make and to end: mostly all can be had, seen at one go.
        let all = Sandbox { files, own_network: true, ..pids.clone() };
        let had = Parts { files: true, own_pids: true, own_mounts: true, own_network: true };
        if self.can_have_somehow(&all) {
            return Parts { files: files != Files::Unrestricted, ..had };
        }
        Parts {
            own_mounts: self.can_have_somehow(&mounts),
            own_pids: self.can_have(&pids),
            own_network: self.can_have(&network),
            files: self.can_have(&Sandbox { files: Files::WorkspaceWrite, ..Sandbox::default() }),
        }
    }

    /// With the keeper's own privileges, else inside of a user namespace, as is tried from then on.
    fn can_have_somehow(&mut self, sandbox: &Sandbox) -> bool {
        [false, true].into_iter().any(|own_users| {
            self.host = Rc::new(Host { own_users, ..Host::clone(&self.host) });
            self.can_have(sandbox)
        })
    }

    fn can_have(&mut self, sandbox: &Sandbox) -> bool {
        let null = rustix::stdio::stdin();
        let ends = Ends { stdin: None, stdout: null, stderr: None, terminal: false };
        let cwd = b"/".to_vec();
        let launch = Launch { sandbox: sandbox.clone(), cwd, ..Launch::new("probe", ["/"]) };
        let Ok(directory) = Program::new(&launch) else { return false };
        let tried = self.spawn_and_wait(directory, &ends, None);
        matches!(tried, Err(Failed { failure: Failure { step: Step::Exec, .. }, .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_cannot_keep_files_from_being_truncated_is_none() {
        assert_eq!([-1, 0, 1, 2].map(rights), [0; 4]);
        assert_eq!([3, 4].map(rights), [0x7ff2; 2]);
        assert_eq!([5, 6, 7, 100].map(rights), [0xfff2; 4]);
    }

    #[test]
    fn cgroup_mounts_are_found_by_their_file_system() {
        let mountinfo = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - tmpfs tmpfs ro\n\
            31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 master:2 - cgroup2 cgroup2 rw\n\
            32 30 0:28 / /a\\040b\\134c rw - cgroup cgroup rw,cpu\n\
            33 30 0:28 / /a\\040b\\134c rw - cgroup cgroup rw,cpu\n\
            34 23 8:1 /cgroup /cgroup rw - ext4 cgroup rw\n";
        let expected = [c"/sys/fs/cgroup/unified", c"/a b\\c"];
        assert_eq!(cgroup_mounts(mountinfo), expected.map(ToOwned::to_owned));
    }

    #[test]
    fn scopes_are_asked_for_only_where_the_kernel_has_them() {
        assert_eq!([-1, 3, 5].map(scopes), [0; 3]);
        assert_eq!([6, 7, 100].map(scopes), [SCOPES; 3]);
    }
}
