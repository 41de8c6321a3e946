//! `procyard attach`: sits down at a process that runs.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use super::client::{Client, Remote, again};
use super::session::{self, DetachKeys, Left, Manner, RawMode, Session, Signals};
use super::trouble::Trouble;
use super::{print, which, words};
use crate::grpc::pb;

/// Sits down at a process that runs: shows what it shows, and types what you type. Leaving it does
/// not touch it. If the supervisor is restarted meanwhile, nothing is lost.
#[derive(clap::Args)]
#[command(
    after_help = "Exit code: that of the process if it ends meanwhile; 0 if it was left alone; \
128+N if signal N ended this command, as ^C does where keys are not passed on; \
125 if procyard failed.

Examples:
  procyard attach shell
  procyard attach --no-stdin build
  procyard attach --detach-keys ctrl-a,d shell"
)]
pub(super) struct Attach {
    /// Only looks: types nothing, and leaves the terminal's size as it is.
    #[arg(long)]
    no_stdin: bool,
    /// Begins with all that is kept of what it printed. The default is what its terminal shows, if it
    /// is shown on one; else what comes from now on.
    #[arg(long)]
    since_start: bool,
    /// Lets a process go on whose output nobody else reads: see OVERFLOW_BLOCK. What was shown here,
    /// and without --since-start all that came before, may then be dropped, though another reader has
    /// not had it.
    #[arg(long)]
    acknowledge: bool,
    /// Keys that leave it alone, each within a second of the one before; `none`: there are no such
    /// keys.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::USUAL)]
    detach_keys: DetachKeys,
    /// The process: its id, name or service.
    #[arg(value_name = "ID")]
    which: String,
    #[command(flatten)]
    remote: Remote,
}

impl Attach {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        self.begin().await.map_err(|trouble| trouble.with_code(words::FAILED))
    }

    async fn begin(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let process = which::find(&mut client, &self.which).await?;
        let id = process.id.clone();
        if let Some(exit) = process.exit.as_ref().filter(|_| process.state() == pb::State::Exited) {
            let how = words::end(exit);
            return Err(Trouble::new(format!(
                "{id} has ended ({how}): `procyard logs {id}` shows what it printed, `procyard rerun {id}` runs it again"
            )));
        }
        if io::stdout().is_terminal() && std::env::var("PROCYARD_ID").is_ok_and(|own| own == id) {
            // It would print what it prints, again and again.
            return Err(Trouble::new(format!("this is {id} itself; attach to it from elsewhere")));
        }
        let waits = session::waits(&process);
        let spec = process.spec.unwrap_or_default();
        let terminal = matches!(spec.io, Some(pb::spec::Io::Terminal(_)));
        let reads = terminal || process.stdin.is_some_and(|stdin| stdin.open);
        let stdin = reads && !self.no_stdin && session::stdin_is_open();
        let sits = stdin && terminal && io::stdin().is_terminal();
        let detach = sits.then(|| self.detach_keys.clone());
        let follows_window = terminal && !self.no_stdin;
        // It may be waited for: that is ended by ^C as in any command.
        let screen = match terminal && !self.since_start && io::stdout().is_terminal() {
            true => look(&mut client, &id, follows_window).await,
            false => None,
        };
        let signals = Signals::begin()?;
        self.greet(&id, detach.as_ref());
        let raw = if sits { Some(RawMode::begin()?) } else { None };
        let drawn = screen.as_ref().map(draw).transpose()?;
        let since_seq = drawn.or(self.since_start.then_some(0));
        let manner = Manner {
            since_seq,
            stdin,
            ends_input: !terminal,
            detach,
            raw,
            terminal,
            follows_window,
            acknowledge: self.acknowledge.then_some(spec.transcript_bytes),
            owner: false,
            waits,
        };
        let left = Session::begin(client.clone(), id.clone(), manner, signals).run().await;
        session::tidy(client, &id, terminal, &left).await;
        match left? {
            Left::Ended(process) => {
                let how = process.exit.as_ref().map(words::end).unwrap_or_default();
                print::tell(format!("{id}: {how}"));
                Ok(words::exit_code(&process).into())
            }
            Left::Detached { reached, waits } => {
                print::tell(format!("{id} {}", words::goes_on(reached, waits)));
                Ok(ExitCode::SUCCESS)
            }
            Left::Asked(number) | Left::Canceled(number) => {
                session::end_by(number);
                Ok(words::by_signal(number).into())
            }
            Left::Unwritable(error) => Err(error.into()),
        }
    }

    /// Says how to leave, to whoever is there to read it.
    fn greet(&self, id: &str, detach: Option<&DetachKeys>) {
        if io::stderr().is_terminal() {
            let keys = detach.map_or("^C".into(), ToString::to_string);
            let keys = if keys.is_empty() { "no key".into() } else { keys };
            print::tell(format!("attached to {id}; {keys} leaves it alone"));
        }
    }
}

/// What its terminal shows, in the window's size. None: what comes from now on is shown.
async fn look(client: &mut Client, id: &str, resize: bool) -> Option<pb::ScreenResponse> {
    if let Some(size) = session::window().filter(|_| resize) {
        let request = pb::ResizeRequest { id: id.into(), rows: size.rows, cols: size.cols };
        // One that waits for its turn has none yet, and is given it then.
        let _ = again(async || client.resize(request.clone()).await).await;
    }
    let request = pb::ScreenRequest { id: id.into() };
    again(async || client.screen(request.clone()).await).await.ok()
}

/// Draws it; returns the chunk that comes next.
fn draw(screen: &pb::ScreenResponse) -> io::Result<u64> {
    session::print(&screen.modes)?;
    if !screen.ansi.is_empty() {
        // What is there scrolls away instead of being drawn over; the alternate screen hides it.
        let window = session::window().filter(|_| !screen.alternate);
        let rows = window.map_or(0, |window| window.rows as usize);
        session::print(format!("{}\x1b[H\x1b[2J", "\r\n".repeat(rows)).as_bytes())?;
        session::print(&screen.ansi)?;
    }
    Ok(screen.next_seq)
}
