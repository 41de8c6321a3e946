//! Keys by name: what the program at the other end gets.

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::soon;
use crate::support::transcript::*;

fn press(id: &str, names: &[&str]) -> pb::WriteStdinRequest {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let input = Some(pb::write_stdin_request::Input::Keys(pb::Keys { names }));
    pb::WriteStdinRequest { id: id.into(), input, ..Default::default() }
}

/// What a program shows of keys that are pressed, up to the last of them.
async fn shown(client: &mut Client, id: &str, names: &[&str], until: &str) -> String {
    let request = pb::WriteStdinRequest { wait: Some(until_output(until)), ..press(id, names) };
    let answer = write(client, request).await;
    assert!(answer.wait.unwrap().met);
    text(&answer.chunks, pb::Stream::Terminal)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_reach_a_raw_terminal_as_xterm_sends_them() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "p", on_terminal(shell("stty raw -echo; echo ready; exec cat -v")))
        .await;
    let names = [
        "a",
        "é",
        "enter",
        "tab",
        "BTab",
        "esc",
        "space",
        "backspace",
        "up",
        "Down",
        "S-Left",
        "home",
        "PPage",
        "DC",
        "f1",
        "F12",
        "ctrl+c",
        "C-Space",
        "M-x",
        "ctrl+alt+right",
        "+",
        "!",
    ];
    let shown = shown(&mut client, "p", &names, "!").await;
    let expected = "aM-CM-)^M\t^[[Z^[ ^?^[[A^[[B^[[1;2D^[[H^[[5~^[[3~^[OP^[[24~^C^@^[x^[[1;7C+!";
    assert_eq!(shown, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrows_follow_the_mode_that_the_program_has_asked_for() {
    let service = TestService::start();
    let mut client = service.client().await;
    // It shows three bytes each time, then asks for another mode; at last after a lot of output.
    let script = "show() { dd bs=1 count=3 2>/dev/null | cat -v; }
        stty raw -echo; echo ready; show
        printf '\\033[?25;1happlication'; show; seq 200000; printf printed; show
        printf '\\033[?1lnormal'; show; printf '\\033[?1h\\033creset'; show";
    begin_ready(&mut client, "p", on_terminal(shell(script))).await;
    for (arrow, bytes, next) in [
        ("up", "^[[A", "application"),
        ("down", "^[OB", "printed"),
        ("left", "^[OD", "normal"),
        ("home", "^[[H", "reset"),
        ("end", "^[[F", "F"),
    ] {
        let shown = shown(&mut client, "p", &[arrow], next).await;
        assert!(shown.starts_with(bytes), "{arrow}: {:?}", &shown[..shown.len().min(40)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_pipe_enter_ends_a_line_and_other_keys_are_their_bytes() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["od", "-An", "-c"]))).await;
    let keys = pb::WriteStdinRequest { eof: true, ..press("p", &["a", "enter", "up", "ctrl+d"]) };
    write(&mut client, keys).await;
    let transcript = read_to_end(&mut client, "p", 1000).await;
    let words: Vec<String> = transcript.stdout().split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["a", "\\n", "033", "[", "A", "004"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_no_keys_are_refused_all_at_once_and_nothing_is_typed() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let refused = soon(client.write_stdin(press("p", &["a", "hyper+x", "b", "f13"]))).await;
    let status = refused.unwrap_err();
    assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
    assert_eq!(bad_fields(&status), ["keys.names[1]", "keys.names[3]"]);
    assert!(status.message().contains("ctrl+"), "{}", status.message());
    assert_eq!(get(&mut client, "p").await.stdin.unwrap().accepted_bytes, 0);
}
