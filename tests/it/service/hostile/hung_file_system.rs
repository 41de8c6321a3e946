//! A file system that never answers: what is started there harms no other process.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::{is_root, skip, soon, until};

/// The number of the first request, which tells versions.
const FUSE_INIT: u32 = 26;
const IN_HEADER_BYTES: usize = 40;
const INIT_ANSWER_BYTES: usize = 64;

/// Starts that hang at the same time.
const STUCK: usize = 6;

/// A file system in user space that answers nothing but the first request. Dropped, it fails all others.
struct HungFileSystem {
    device: File,
    mount_point: PathBuf,
}

impl HungFileSystem {
    /// None: it cannot be mounted here.
    fn mount(mount_point: &Path) -> Option<HungFileSystem> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        std::fs::create_dir(mount_point).unwrap();
        let options = format!("fd={},rootmode=40755,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        let target = CString::new(mount_point.as_os_str().as_bytes()).unwrap();
        let (name, flags) = (c"fuse".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV);
        // SAFETY: all pointers are to strings that live during the call.
        let mounted =
            unsafe { libc::mount(name, target.as_ptr(), name, flags, options.as_ptr().cast()) };
        if mounted != 0 {
            return None;
        }
        let mut mounted = HungFileSystem { device, mount_point: mount_point.to_owned() };
        let request = mounted.next_request();
        assert_eq!(request.0, FUSE_INIT);
        mounted.answer_init(request.1);
        Some(mounted)
    }

    /// Waits for a request: its number and its id.
    fn next_request(&mut self) -> (u32, u64) {
        let mut request = vec![0; 1 << 17];
        let read = self.device.read(&mut request).unwrap();
        assert!(read >= IN_HEADER_BYTES);
        let number = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        (number, u64::from_ne_bytes(request[8..16].try_into().unwrap()))
    }

    fn answer_init(&mut self, id: u64) {
        let mut answer = Vec::new();
        let len = 16 + INIT_ANSWER_BYTES;
        answer.extend((len as u32).to_ne_bytes());
        answer.extend(0_i32.to_ne_bytes());
        answer.extend(id.to_ne_bytes());
        let (major, minor, read_ahead, flags) = (7_u32, 31_u32, 0_u32, 0_u32);
        for field in [major, minor, read_ahead, flags, 0, 4096, 1] {
            answer.extend(field.to_ne_bytes());
        }
        answer.resize(len, 0);
        self.device.write_all(&answer).unwrap();
    }
}

impl Drop for HungFileSystem {
    fn drop(&mut self) {
        let target = CString::new(self.mount_point.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string lives during the call. The mount point is this test's own.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_on_a_hung_file_system_delays_no_other_start() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mount_point = service.directory.path().join("hung");
    let Some(mut hung) = is_root().then(|| HungFileSystem::mount(&mount_point)).flatten() else {
        return skip("a file system in user space cannot be mounted");
    };
    let server = service.server_pid();
    soon(client.start(start("printer", shell("while :; do echo x; sleep 0.01; done"))))
        .await
        .unwrap();

    let program = mount_point.join("program").to_str().unwrap().to_owned();
    let stuck: Vec<_> = (0..STUCK)
        .map(|n| {
            let (mut client, program) = (client.clone(), program.clone());
            tokio::spawn(async move {
                client.start(start(&format!("stuck-{n}"), argv(&[&program]))).await
            })
        })
        .collect();
    // From here on, not even SIGKILL ends a child before the file system answers.
    let (_, hung) = tokio::task::spawn_blocking(move || (hung.next_request(), hung)).await.unwrap();

    for n in 0..3 {
        let request = run(&format!("other-{n}"), argv(&["true"]));
        soon(client.start(request)).await.unwrap();
    }
    let target = Some(pb::kill_request::Target::Id("printer".into()));
    let kill = pb::KillRequest { target, force: true, ..Default::default() };
    let killed = soon(client.kill(kill)).await.unwrap().into_inner();
    assert_eq!(killed.processes[0].state(), pb::State::Exited);
    for stuck in stuck {
        let refused = soon(stuck).await.unwrap().unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused)),
            (Code::FailedPrecondition, "SPAWN_FAILED".into())
        );
        let details = details(&refused);
        let errno = &details.error_info().unwrap().metadata["errno"];
        assert_eq!(*errno, libc::ETIME.to_string());
    }
    soon(client.start(run("after", argv(&["true"])))).await.unwrap();
    assert_eq!(service.server_pid(), server);
    drop(hung);
    until("the children have ended", || service.inmates().is_empty()).await;
    soon(client.start(run("last", argv(&["true"])))).await.unwrap();
    assert_eq!(service.server_pid(), server);
}
