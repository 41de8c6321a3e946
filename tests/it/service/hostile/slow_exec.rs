//! A program whose exec takes as long as its owner likes: the keeper does not wait for it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use tonic::Code;

use crate::support::service::*;
use crate::support::soon;

/// Takes a lease on a file: who opens it, as an exec does, waits for 45 s by default.
fn lease(file: &File) {
    // SAFETY: the signal that asks for the lease back is ignored, and the lease is this file's.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_a_leased_program_fails_and_others_start() {
    let service = TestService::start();
    let mut client = service.client().await;
    let program = service.directory.path().join("program");
    // Not copied by this process, whose other tests could have the file open for writing as well.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let file = File::open(&program).unwrap();
    lease(&file);
    let server = service.server_pid();
    for n in 0..2 {
        let spec = argv(&[program.to_str().unwrap()]);
        let refused = soon(client.start(start(&format!("leased-{n}"), spec))).await.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused)),
            (Code::FailedPrecondition, "SPAWN_FAILED".into())
        );
        let metadata = details(&refused).error_info().unwrap().metadata.clone();
        assert_eq!(metadata["errno"], libc::ETIME.to_string());
        finish(&mut client, &format!("other-{n}"), argv(&["true"])).await;
    }
    assert_eq!(service.server_pid(), server);
    assert!(service.inmates().is_empty());
    drop(file);
    finish(&mut client, "given-back", argv(&[program.to_str().unwrap()])).await;
}
