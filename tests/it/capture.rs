//! What is printed is read, on pipes and on terminals.

use procyard::process::Status;
use procyard::transcript::Stream;

use crate::support::*;

#[tokio::test]
async fn a_line_passes_through_pipes_and_terminals() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    assert_eq!(server.output("echo hi", PIPES).await, (Status::Code(0), "hi\n".into()));
    assert_eq!(
        server.output("echo hi; exit 3", TERMINAL).await,
        (Status::Code(3), "hi\r\n".into())
    );
}

#[tokio::test]
async fn stderr_is_apart_unless_merged() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let launch = server.shell("echo out; echo err >&2", PIPES);
    let (_, chunks) = server.run(launch).await;
    let errors: Vec<_> = chunks.iter().filter(|chunk| chunk.stream == Stream::Stderr).collect();
    assert_eq!((text(&chunks).as_str(), &errors[0].data[..]), ("out\n", &b"err\n"[..]));
    let merged = procyard::process::Io::Pipes { stdin: false, merge_stderr: true };
    let (_, both) = server.output("echo out; echo err >&2", merged).await;
    assert_eq!(both, "out\nerr\n");
}
