//! A whole interactive session, from the first prompt to the end.

use procyard::grpc::pb;
use procyard::grpc::pb::write_stdin_request::Input;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{have, soon};

/// Types something, and waits for what it is answered with.
async fn say(client: &mut Client, id: &str, input: Input, enter: bool, until: &str) -> String {
    let wait = Some(within(20_000, until_output(until)));
    let id = id.into();
    let request =
        pb::WriteStdinRequest { id, input: Some(input), enter, wait, ..Default::default() };
    let answer = write(client, request).await;
    let shown = text(&answer.chunks, pb::Stream::Terminal);
    assert!(answer.wait.unwrap().met, "no {until:?} in {shown:?}");
    shown
}

async fn line(client: &mut Client, id: &str, text: &str, until: &str) -> String {
    say(client, id, Input::Text(text.into()), true, until).await
}

fn keys(names: &[&str]) -> Input {
    Input::Keys(pb::Keys { names: names.iter().map(|name| (*name).to_owned()).collect() })
}

/// What a terminal shows, when it shows something.
async fn screen_with(client: &mut Client, id: &str, text: &str) -> pb::ScreenResponse {
    let look = async {
        loop {
            let request = pb::ScreenRequest { id: id.into() };
            let screen = client.screen(request).await.unwrap().into_inner();
            if screen.rows.iter().any(|row| row.contains(text)) {
                return screen;
            }
            // Nothing changes without output: it waits for more of that.
            let news =
                pb::ReadRequest { wait: Some(millis(60_000)), ..read_on(id, screen.next_seq) };
            client.read(news).await.unwrap();
        }
    };
    soon(look).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_from_its_first_prompt_to_its_end() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let mut spec = on_terminal(argv(&["python3", "-i"]));
    let set = [("PYTHON_BASIC_REPL".into(), "1".into())].into();
    spec.env = Some(pb::Environment { set, ..Default::default() });
    let request = pb::StartRequest { wait: Some(until_output(">>> $")), ..start("py", spec) };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    assert!(answer.wait.unwrap().met);
    assert!(text(&answer.chunks, pb::Stream::Terminal).ends_with(">>> "));

    let prompt = "\n>>> $";
    line(&mut client, "py", "x = 6*7", prompt).await;
    assert!(line(&mut client, "py", "x", prompt).await.contains("\r\n42\r\n"));

    line(&mut client, "py", "print('be' 'gin'); [0 for _ in iter(int, 1)]", "begin\r\n").await;
    let shown =
        say(&mut client, "py", keys(&["ctrl+c"]), false, "KeyboardInterrupt\r\n>>> $").await;
    assert!(shown.contains("KeyboardInterrupt"), "{shown:?}");

    let resize = pb::ResizeRequest { id: "py".into(), rows: 31, cols: 97 };
    soon(client.resize(resize)).await.unwrap();
    let line_size = "import os; tuple(os.get_terminal_size()), os.system('stty size')";
    // The prompt may be drawn anew, for the size has changed.
    let shown = line(&mut client, "py", line_size, "0\\)\r\n>>> ").await;
    assert!(shown.contains("\r\n31 97\r\n((97, 31), 0)\r\n"), "{shown:?}");
    let screen = screen_with(&mut client, "py", "((97, 31), 0)").await;
    assert_eq!(screen.size.unwrap(), pb::TerminalSize { rows: 31, cols: 97 });

    // It takes no TERM for an answer, and is ended all the same.
    let stubborn = "import signal; _ = signal.signal(15, lambda *_: print('no'))";
    line(&mut client, "py", stubborn, prompt).await;
    let request = pb::KillRequest { grace: Some(millis(200)), ..kill("py") };
    soon(client.kill(request)).await.unwrap();
    let process = get(&mut client, "py").await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.outcome()), (pb::Cause::Killed, pb::Outcome::Canceled));
    assert_eq!((exit.signal, exit.code), (Some(libc::SIGKILL), None));
    let usage = exit.usage.as_ref().unwrap();
    assert!(usage.max_rss_bytes > 1 << 20 && usage.user_time.is_some(), "{usage:?}");
    // What it showed last can still be seen.
    assert!(screen_with(&mut client, "py", "no").await.rows.len() == 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_is_typed_into_by_keys_and_seen_on_its_screen() {
    if !have(&["vim"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let file = service.directory.path().join("file");
    let path = file.to_str().unwrap();
    begin(
        &mut client,
        "vim",
        on_terminal(argv(&["vim", "-N", "-u", "NONE", "-i", "NONE", "-n", path])),
    )
    .await;
    screen_with(&mut client, "vim", "\"").await;
    let typed = ["i", "h", "e", "l", "l", "o", "enter", "w", "o", "r", "d", "up", "!", "esc"];
    let request =
        pb::WriteStdinRequest { id: "vim".into(), input: Some(keys(&typed)), ..Default::default() };
    write(&mut client, request).await;
    let screen = screen_with(&mut client, "vim", "!").await;
    assert!(screen.alternate && screen.cursor_visible);
    assert_eq!(screen.rows.len(), 24);
    assert_eq!(screen.rows[..3], ["hell!o", "word", "~"], "{screen:?}");
    assert!(String::from_utf8_lossy(&screen.ansi).contains("hell!o"));
    // Saved and left by keys alone: the usual screen is back.
    let save = [":", "w", "q", "enter"];
    let request =
        pb::WriteStdinRequest { id: "vim".into(), input: Some(keys(&save)), ..Default::default() };
    write(&mut client, pb::WriteStdinRequest { wait: Some(until_exit()), ..request }).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hell!o\nword\n");
    let screen = soon(client.screen(pb::ScreenRequest { id: "vim".into() })).await.unwrap();
    assert!(!screen.into_inner().alternate);

    begin(
        &mut client,
        "again",
        on_terminal(argv(&["vim", "-N", "-u", "NONE", "-i", "NONE", "-n", path])),
    )
    .await;
    screen_with(&mut client, "again", "hell!o").await;
    soon(client.kill(kill_at_once("again"))).await.unwrap();
    assert_eq!(exit(&get(&mut client, "again").await).signal, Some(libc::SIGKILL));
}
