//! Screen: what a terminal shows, compared with what tmux makes of the same programs.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use procyard::grpc::pb;
use procyard::grpc::pb::write_stdin_request::Input;
use tempfile::TempDir;
use tonic::Code;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{SOON, full_volume, have, soon};

/// What every program here gets, under tmux as under procyard.
const ENVIRONMENT: &str = "env -i PATH=/usr/bin:/bin HOME=/nonexistent TERM=xterm-256color \
                           LANG=C.UTF-8 LC_ALL=C.UTF-8";

/// A tmux server of its own, ended when dropped.
struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Runs a shell line in a window of 80 columns and 24 rows.
    fn run(line: &str) -> Tmux {
        let directory = tempfile::tempdir().unwrap();
        let settings = "set -g status off\nset -g default-terminal xterm-256color\n\
                        set -g remain-on-exit on\n\
                        set -g default-size 80x24\nset -g escape-time 0\n";
        std::fs::write(directory.path().join("conf"), settings).unwrap();
        let tmux = Tmux { directory };
        tmux.ask(&["new-session", "-d", "-x", "80", "-y", "24", line]);
        tmux
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(self.directory.path().join("socket"));
        command.arg("-f").arg(self.directory.path().join("conf")).args(args);
        // It runs its lines by the user's shell, which may be one that runs nothing.
        command.env("SHELL", "/bin/sh").env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        command
    }

    fn ask(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn view(&self) -> View {
        let rows = self.ask(&["capture-pane", "-p", "-e"]);
        let mut drawing = false;
        let rows = rows.lines().map(|row| plain(row, &mut drawing)).collect();
        let figures = "#{cursor_y} #{cursor_x} #{alternate_on} #{cursor_flag} #{pane_width}";
        let figures = self.ask(&["display-message", "-p", figures]);
        let figures: Vec<u32> =
            figures.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
        let [row, col, alternate, visible, cols] = figures[..] else { panic!("{figures:?}") };
        let cursor = (row, col.min(cols - 1));
        View { rows, cursor, alternate: alternate == 1, visible: visible == 1 }
    }
}

/// A row as tmux tells it, without its attributes: lines are letters between two shifts.
fn plain(row: &str, drawing: &mut bool) -> String {
    let mut text = String::new();
    let mut characters = row.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => drop(characters.find(|character| *character == 'm')),
            '\x0e' | '\x0f' => *drawing = character == '\x0e',
            _ if *drawing => {
                let lines = "`◆a▒f°g±j┘k┐l┌m└n┼o⎺p⎻q─r⎼s⎽t├u┤v┴w┬x│y≤z≥{π|≠}£~·";
                let mut found = lines.chars().skip_while(|line| *line != character);
                text.push(found.nth(1).unwrap_or(character));
            }
            _ => text.push(character),
        }
    }
    text.trim_end_matches(' ').to_owned()
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

#[derive(Debug, PartialEq, Eq)]
struct View {
    rows: Vec<String>,
    cursor: (u32, u32),
    alternate: bool,
    visible: bool,
}

/// The same program twice: here and there.
struct Pair {
    service: TestService,
    client: Client,
    tmux: Tmux,
}

impl Pair {
    async fn run(line: &str) -> Pair {
        let line = format!("exec {ENVIRONMENT} {line}");
        let service = TestService::start();
        let mut client = service.client().await;
        begin(&mut client, "p", on_terminal(shell(&line))).await;
        Pair { service, client, tmux: Tmux::run(&line) }
    }

    async fn press(&mut self, names: &[&str]) {
        self.tmux.ask(&[&["send-keys"], names].concat());
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let input = Some(Input::Keys(pb::Keys { names }));
        let request = pb::WriteStdinRequest { id: "p".into(), input, ..Default::default() };
        write(&mut self.client, request).await;
    }

    async fn resize(&mut self, rows: u32, cols: u32) {
        let (y, x) = (rows.to_string(), cols.to_string());
        self.tmux.ask(&["resize-window", "-x", &x, "-y", &y]);
        let request = pb::ResizeRequest { id: "p".into(), rows, cols };
        soon(self.client.resize(request)).await.unwrap();
    }

    /// Waits until both show a text, and the same otherwise.
    async fn agree(&mut self, text: &str) {
        let begin = Instant::now();
        loop {
            let screen = screen(&mut self.client, "p").await;
            let here = View {
                rows: screen.rows,
                cursor: (screen.cursor_row, screen.cursor_col),
                alternate: screen.alternate,
                visible: screen.cursor_visible,
            };
            let there = self.tmux.view();
            let shown = here.rows.iter().any(|row| row.contains(text));
            if shown && here == there {
                return;
            }
            if begin.elapsed() > SOON / 3 {
                self.explain(text, &here, &there);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn explain(&self, text: &str, here: &View, there: &View) -> ! {
        let rows = here.rows.len().max(there.rows.len());
        for at in 0..rows {
            let (here, there) = (here.rows.get(at), there.rows.get(at));
            let mark = if here == there { ' ' } else { '!' };
            eprintln!("{mark}{at:3} {here:?}\n     {there:?}");
        }
        let rest = |view: &View| (view.cursor, view.alternate, view.visible);
        let kept = self.service.directory.path().display();
        panic!("{text:?}: {:?} here, {:?} in tmux ({kept})", rest(here), rest(there));
    }
}

/// Whether this can be compared here; says so if not.
fn comparable(programs: &[&str]) -> bool {
    have(&[&["tmux"], programs].concat())
}

/// A file of numbered lines, some of them wide.
fn numbered(directory: &Path) -> String {
    let path = directory.join("lines");
    let line = |n: u32| format!("line {n} {} 漢字 end {n}\n", "-".repeat((n % 50) as usize));
    std::fs::write(&path, (1..=200).map(line).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_printed_is_shown_as_in_tmux() {
    if !comparable(&[]) {
        return;
    }
    // Each ends with a word that is waited for.
    for (name, printed) in [
        ("colours", r"\033[1;31mred\033[0m \033[48;5;21mblue\033[m \033[38:2::9:9:9mrgb\033[m one"),
        ("wide", "漢字かな交じり文 👍 한글 e\u{301}a\u{308} Ａ one"),
        ("wide at the margin", r"\033[1;79H漢字\033[3;80H漢 one"),
        ("wrapping", r"\033[1;76H0123456789 one"),
        ("no wrapping", r"\033[?7l\033[1;76H0123456789\033[?7h\033[3H one"),
        ("scroll region", r"\033[5;9r\033[9Ha\nb\nc\nd\ne\nf\033[5H\033Mtop\033[r\033[20H one"),
        ("lines in and out", r"1\r\n2\r\n3\r\n4\033[2H\033[2Lnew\033[4H\033[M\033[10H one"),
        ("characters in and out", r"abcdef\033[3G\033[2@\033[8G\033[P\033[2X\033[2H one"),
        ("insert mode", r"abcdef\r\033[4hXY漢\033[4l\033[2H one"),
        ("origin mode", r"\033[5;9r\033[?6h\033[2;2Hin\033[99Hlast\033[?6l\033[r\033[12H one"),
        ("repeat", r"=\033[70b|\r\n-\033[200b\r\n one"),
        ("tabs", r"a\tb\tc\r\n\033[3g\033[5G\033H\033[20G\033H\r\tx\ty\tz\033[Zw\r\n one"),
        ("line drawing", r"\033(0lqwqk\r\nx x x\r\nmqvqj\033(B\r\n\033)0\016tqu\017 one"),
        ("saved cursor", r"ab\0337\033[9;9Hcd\0338ef\033[s\033[11Hgh\033[uij\033[13H one"),
        ("erasing", r"abc\r\ndef\r\nghi\033[2;2H\033[1K\033[3;2H\033[K\033[5H one"),
        ("erasing the screen", r"abc\r\ndef\r\nghi\033[2;2H\033[1J\033[5H one"),
        ("alignment", r"\033#8\033[3;3H one"),
        ("alternate", r"usual\033[?1049halternate one"),
        ("alternate and back", r"usual\033[?1049h\033[2;9Halternate\033[?1049l one"),
        ("old alternate and back", r"usual\0337\033[?47h\033[2;9Halt\033[2J\033[?47l\0338 one"),
        ("full reset", r"gone\033[5;9r\033(0\033cq one"),
        ("index", r"a\033Db\033Ec\033[24Hd\033De one"),
        ("replacement", "a\u{fffd}b one"),
        ("hidden cursor", r"\033[?25l one"),
        ("titles and strings", r"\033]0;a;b\007x\033P$q\033\\y\033_z\033\\w one"),
        ("scrolled away", r"$(seq 1 100 | tr '\n' '@' | sed 's/@/\\r\\n/g') one"),
        ("scrolling by words", r"1\r\n2\r\n3\r\n4\033[2S\033[9Hx\033[T one"),
    ] {
        // A script in a file: what is printed passes no second shell.
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("stty raw -echo; printf \"{printed}\"; exec sleep 600");
        std::fs::write(file.path(), script).unwrap();
        let line = format!("sh {}", file.path().display());
        let mut pair = Pair::run(&line).await;
        eprintln!("{name}");
        pair.agree(" one").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_looks_as_in_tmux() {
    if !comparable(&["vim"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = numbered(directory.path());
    let mut pair =
        Pair::run(&format!("vim -N -u NONE -i NONE -n --cmd 'set ruler nu' {file}")).await;
    pair.agree("line 20").await;
    pair.press(&["i", "n", "e", "w", "Enter", "漢", "BSpace", "x", "Down", "End", "!", "Escape"])
        .await;
    pair.agree("end 2!").await;
    pair.press(&["C-f", "C-f", "5", "d", "d", "P", "C-y"]).await;
    pair.agree("line 60").await;
    pair.press(&[":", "v", "s", "p", "Enter", "G"]).await;
    pair.agree("line 200").await;
    pair.resize(30, 100).await;
    pair.agree("line 59 ").await;
    pair.resize(12, 40).await;
    pair.agree("line 200").await;
    pair.press(&["g", "g"]).await;
    pair.agree("new").await;
    pair.press(&[":", "q", "a", "!", "Enter"]).await;
    ended(&mut pair.client, "p").await;
    assert!(!screen(&mut pair.client, "p").await.alternate);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pager_looks_as_in_tmux() {
    if !comparable(&["less"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut pair = Pair::run(&format!("less {}", numbered(directory.path()))).await;
    pair.agree("line 20").await;
    pair.press(&["Space", "Down", "Down", "j", "k", "k"]).await;
    pair.agree("line 40").await;
    pair.press(&["/", "l", "i", "n", "e", " ", "1", "0", "0", "Enter"]).await;
    pair.agree("line 110").await;
    pair.resize(30, 50).await;
    pair.agree("line 110").await;
    pair.press(&["G"]).await;
    pair.agree("line 200").await;
    pair.resize(20, 120).await;
    pair.agree("line 200").await;
    pair.press(&["g", "PPage", "NPage", "b"]).await;
    pair.agree("line 1 ").await;
}

/// Windows, lines, colours and scrolling, by the library that most programs use.
const CURSES: &str = r#"
import curses, locale
locale.setlocale(locale.LC_ALL, "")
def main(screen):
    curses.curs_set(0); curses.start_color(); curses.use_default_colors()
    curses.init_pair(1, curses.COLOR_RED, -1)
    draw = 0
    while True:
        rows, cols = screen.getmaxyx()
        screen.erase(); screen.border()
        screen.addstr(1, 2, f"draw {draw} at {rows} by {cols}", curses.color_pair(1) | curses.A_BOLD)
        window = screen.derwin(rows - 6, cols // 2, 3, 2)
        window.box(); window.hline(2, 1, curses.ACS_HLINE, cols // 2 - 2)
        window.vline(3, 5, curses.ACS_VLINE, 3); window.addch(4, 8, curses.ACS_DIAMOND)
        screen.addstr(rows - 2, 2, "漢字 e\u0301 ======================"); screen.refresh()
        pad = curses.newwin(6, 20, 4, cols // 2 + 4); pad.scrollok(True)
        for n in range(draw * 3 + 9):
            pad.addstr(f"\nrow {n}")
        pad.refresh()
        key = screen.getch()
        if key == ord("q"):
            return
        draw += key != curses.KEY_RESIZE
curses.wrapper(main)
print("over")
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_and_lines_look_as_in_tmux() {
    if !comparable(&["python3"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("draw.py");
    std::fs::write(&path, CURSES).unwrap();
    let mut pair = Pair::run(&format!("/usr/bin/python3 {}", path.display())).await;
    pair.agree("draw 0 at 24 by 80").await;
    pair.press(&["Up"]).await;
    pair.agree("draw 1 ").await;
    pair.resize(40, 120).await;
    pair.agree("at 40 by 120").await;
    pair.resize(16, 60).await;
    pair.agree("at 16 by 60").await;
    pair.press(&["x", "F5", "Down"]).await;
    pair.agree("draw 4 ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_programs_look_as_in_tmux() {
    let dialog = "dialog --title Title --checklist Choose 15 50 5 a one on b two off";
    let whiptail = "whiptail --title Title --checklist Choose 15 50 5 a one on b two off";
    for (program, line) in [("dialog", dialog), ("whiptail", whiptail)] {
        if !comparable(&[program]) {
            continue;
        }
        let mut pair = Pair::run(line).await;
        pair.agree("Choose").await;
        pair.press(&["Down", "Space"]).await;
        pair.agree("two").await;
    }
    // What it says of processes changes; what it is made of does not.
    if !comparable(&["htop"]) {
        return;
    }
    let mut pair = Pair::run("htop -d 100").await;
    pair.press(&["F1"]).await;
    pair.agree("htop").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_and_go_with_the_size_as_in_tmux() {
    if !comparable(&[]) {
        return;
    }
    let mut pair = Pair::run("sh -c 'seq 1 50; printf end; exec sleep 600'").await;
    pair.agree("end").await;
    for (rows, cols) in [(10, 80), (30, 80), (24, 100), (60, 80), (5, 80), (24, 80)] {
        pair.resize(rows, cols).await;
        pair.agree("end").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipes_have_no_screen_and_nobody_is_not_found() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "pipes", argv(&["sleep", "600"])).await;
    for (id, code, reason) in [
        ("pipes", Code::FailedPrecondition, "NOT_A_TERMINAL"),
        ("nobody", Code::NotFound, "PROCESS_NOT_FOUND"),
        ("", Code::InvalidArgument, "INVALID_FIELD"),
    ] {
        let refused = soon(client.screen(pb::ScreenRequest { id: id.into() })).await;
        assert_eq!(refusal(refused), (code, reason.into()), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_outlives_its_process_and_can_be_drawn_anew() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = r"printf '\033]2;a title\007\033[1;31mred\033[m plain\033[3;5Hthere'";
    let mut spec = shell(script);
    spec.io =
        Some(pb::spec::Io::Terminal(pb::Terminal { rows: 5, cols: 30, ..Default::default() }));
    run_to_end(&mut client, "p", spec.clone()).await;
    let first = screen(&mut client, "p").await;
    assert_eq!(first.rows, ["red plain", "", "    there", "", ""]);
    assert_eq!((first.cursor_row, first.cursor_col), (2, 9));
    assert_eq!((first.alternate, first.cursor_visible, &first.title[..]), (false, true, "a title"));
    assert_eq!(first.size, Some(pb::TerminalSize { rows: 5, cols: 30 }));
    let process = get(&mut client, "p").await;
    assert_eq!(first.next_seq, process.transcript.unwrap().next_seq);
    // Printed as it is, it looks the same.
    let drawn = service.directory.path().join("drawn");
    std::fs::write(&drawn, &first.ansi).unwrap();
    let program = pb::spec::Program::Shell(format!("stty raw; cat {}", drawn.display()));
    run_to_end(&mut client, "again", pb::Spec { program: Some(program), ..spec }).await;
    let again = screen(&mut client, "again").await;
    assert_eq!((again.rows, again.ansi, again.cursor_col), (first.rows, first.ansi, 9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_of_much_output_is_that_of_its_end_and_holds_nobody_up() {
    let service = TestService::start();
    let mut client = service.client().await;
    // More than that a slow machine may not work out in the time that there is for a screen.
    let lines = if full_volume() { 1_000_000 } else { 200_000 };
    let line = format!("seq 1 {lines}; printf 'the end'; exec sleep 600");
    begin(&mut client, "p", on_terminal(shell(&line))).await;
    soon(client.wait(wait("p", until_output("the end")))).await.unwrap();
    let looking: Vec<_> = (0..4)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { screen(&mut client, "p").await })
        })
        .collect();
    get(&mut client, "p").await;
    for looking in looking {
        let screen = looking.await.unwrap();
        assert_eq!(screen.rows[23], "the end");
        assert_eq!(screen.rows[0], (lines - 22).to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_is_the_same_after_a_restart_of_the_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = r"printf '\033[?1049h\033[5;5Hready'; exec sleep 600";
    let mut spec = shell(script);
    spec.io =
        Some(pb::spec::Io::Terminal(pb::Terminal { rows: 9, cols: 33, ..Default::default() }));
    begin_ready(&mut client, "p", spec).await;
    let before = screen(&mut client, "p").await;
    service.kill_server();
    let after = screen(&mut service.client().await, "p").await;
    assert_eq!(after, before);
    assert_eq!((after.alternate, &after.rows[4][..]), (true, "    ready"));
}
