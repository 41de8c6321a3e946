//! `procyard screen`: what a terminal shows.

use super::{failed, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_is_text_or_colours_or_json() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "printf 'one\\033[4;3H\\033[31mred\\033[0m\\033[1;1Hready'; exec sleep 600";
    begin_ready(&mut client, "p", on_terminal(shell(line))).await;
    assert_eq!(printed(service.procyard(&["screen", "p"])), "ready\n\n\n  red\n");
    let mut tty = Tty::start(service.procyard(&["screen", "--ansi", "p"]));
    tty.expect("\x1b[31mred");
    assert_eq!(tty.ended(), 0);
    let json = printed(service.procyard(&["screen", "-o", "json", "p"]));
    assert!(json.contains(r#""cursorCol":5"#) && json.lines().count() == 1, "{json}");
    begin(&mut client, "pipes", argv(&["sleep", "600"])).await;
    let (code, said) = failed(service.procyard(&["screen", "pipes"]));
    assert!(code == 1 && said.contains("pipes") && said.contains("run -t"), "{said}");
}
