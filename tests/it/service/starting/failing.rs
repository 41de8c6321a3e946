//! Starts that cannot be: refused with the kernel's word, and no record stays.

use procyard::grpc::pb;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::spawning::{Impossible, impossible_launches};
use crate::support::service::*;
use crate::support::soon;

/// Errno and path of a refusal by the kernel.
fn kernel_refusal(status: &Status) -> (i32, String) {
    assert_eq!((status.code(), &reason(status)[..]), (Code::FailedPrecondition, "SPAWN_FAILED"));
    let metadata = details(status).error_info().unwrap().metadata.clone();
    (metadata["errno"].parse().unwrap(), metadata["path"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_executed_is_refused_with_errno_and_path_on_pipes_and_terminals() {
    let service = TestService::start();
    let mut client = service.client().await;
    for launch in impossible_launches(service.directory.path()) {
        let Impossible { what, program, cwd, errno, path } = launch;
        let spec = argv(&[program.to_str().unwrap()]);
        let spec = pb::Spec { cwd: cwd.to_str().unwrap().into(), ..spec };
        for spec in [spec.clone(), with_stdin(spec.clone()), on_terminal(spec)] {
            // Waiting for its end changes nothing.
            for request in [start("a", spec.clone()), run("a", spec.clone())] {
                let status = soon(client.start(request)).await.unwrap_err();
                let refused = kernel_refusal(&status);
                assert_eq!(refused, (errno, path.to_str().unwrap().into()), "{what}");
            }
        }
    }
    assert_eq!(list(&mut client).await, []);
    assert_eq!(events(&mut client).await, [], "what never was has no events");
    assert_eq!(service.inmates(), [0; 0]);
    // The id is free.
    assert_eq!(finish(&mut client, "a", shell("exit 5")).await.process.unwrap().id, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_starts_of_one_that_cannot_be_each_is_refused() {
    let service = TestService::start();
    let mut starts = JoinSet::new();
    for n in 0..64 {
        let mut client = service.client().await;
        let request = run(&format!("p{}", n % 4), argv(&["/no/such/program"]));
        starts.spawn(async move { soon(client.start(request)).await.unwrap_err() });
    }
    for status in starts.join_all().await {
        assert_eq!(kernel_refusal(&status), (libc::ENOENT, "/no/such/program".into()));
    }
    assert_eq!(list(&mut service.client().await).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_the_kernel_is_refused_in_its_words() {
    let service = TestService::start();
    let mut client = service.client().await;
    let long = "x".repeat(3 << 20);
    let large = [("X".to_owned(), "x".repeat(1 << 20))];
    let env = pb::Environment { set: large.into(), ..Default::default() };
    for spec in [argv(&["true", &long]), pb::Spec { env: Some(env), ..argv(&["true"]) }] {
        let status = soon(client.start(start("", spec))).await.unwrap_err();
        assert_eq!(kernel_refusal(&status).0, libc::E2BIG);
    }
    assert_eq!(list(&mut client).await, []);
}

/// A program with arguments that need be no text.
fn raw_argv(args: &[&[u8]]) -> pb::Spec {
    let raw_args = args.iter().map(|arg| arg.to_vec().into()).collect();
    let argv = pb::Argv { args: Vec::new(), raw_args };
    pb::Spec { program: Some(pb::spec::Program::Argv(argv)), ..pb::Spec::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_takes_arrives_exactly_however_large_and_strange() {
    let service = TestService::start();
    let mut client = service.client().await;
    let strange: Vec<u8> = (1..=255).cycle().take(100_000).collect();
    let args: Vec<&[u8]> =
        [&b"sh"[..], b"-c", b"cat /proc/$$/cmdline; true", b"sh", b"", b"a=b", b"-"]
            .into_iter()
            .chain([&strange[..]; 5])
            .collect();
    let printed = |answer: pb::StartResponse| -> Vec<u8> {
        let stdout = answer.chunks.iter().filter(|chunk| chunk.stream() == pb::Stream::Stdout);
        stdout.flat_map(|chunk| chunk.data.to_vec()).collect()
    };
    let told = printed(finish(&mut client, "", raw_argv(&args)).await);
    let args: Vec<u8> = args.iter().flat_map(|arg| [arg, &b"\0"[..]].concat()).collect();
    assert!(told == args, "{} bytes of {}", told.len(), args.len());

    let value: String = "ä=\n\u{1}\"$X' ".chars().cycle().take(60_000).collect();
    let env = pb::Environment { set: [("X".into(), value.clone())].into(), ..Default::default() };
    let spec = pb::Spec { env: Some(env), ..shell("printf %s \"$X\"") };
    assert!(output_of(&mut client, spec).await == value);
}
