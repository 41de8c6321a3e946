//! `procyard token`: makes tokens, and takes them back.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::print;
use super::trouble::Trouble;
use crate::access::{BadGrant, Grant, Pattern};
use crate::config::DefaultStateDir;
use crate::server::credentials::token_file::TokenFile;

/// Makes tokens, and takes them back. A running `serve` knows at once.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard token new ci --owner ci --token-file /etc/procyard/tokens > ci.token
  procyard serve --listen tcp://127.0.0.1:7450 --token-file /etc/procyard/tokens
  grpcurl -plaintext -H \"authorization: Bearer $(cat ci.token)\" 127.0.0.1:7450 list")]
pub(super) struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Makes a token and prints it. It is shown nowhere else: the file has a hash of it.
    New(New),
    /// Lists names, and what each may do.
    List(Tokens),
    /// Takes a token back.
    Revoke {
        /// Its name.
        name: String,
        #[command(flatten)]
        place: Tokens,
    },
}

#[derive(clap::Args)]
struct New {
    /// What it is called in logs.
    name: String,
    /// What it may do at all: viewer, operator or admin.
    #[arg(long, value_name = "ROLE", default_value = "operator", value_parser = ["viewer", "operator", "admin"])]
    role: String,
    /// Whose processes it has to do with; any, if none is named. May have a *. Repeatable.
    #[arg(long, value_name = "PATTERN")]
    owner: Vec<Pattern>,
    /// The same of workspaces.
    #[arg(long, value_name = "PATTERN")]
    workspace: Vec<Pattern>,
    /// What it may choose of how they run: user, env, interpreter, or none. Repeatable.
    #[arg(long, value_name = "WHAT", value_parser = ["user", "env", "interpreter", "none"])]
    may: Vec<String>,
    #[command(flatten)]
    place: Tokens,
}

/// Where tokens are.
#[derive(clap::Args)]
struct Tokens {
    /// The file. The default is `tokens` in the state directory, which `serve` reads unless it is
    /// told to read another.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The state directory of that `serve`. The default is the same as there.
    #[arg(long, value_name = "PATH", env = "PROCYARD_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

impl Tokens {
    fn file(self) -> io::Result<TokenFile> {
        if let Some(path) = self.token_file {
            return Ok(TokenFile::named(path));
        }
        let state_dir = match self.state_dir {
            Some(state_dir) => state_dir,
            None => {
                let default = DefaultStateDir::find();
                default.check_owner()?;
                default.path
            }
        };
        Ok(TokenFile::default_in(&state_dir))
    }
}

impl New {
    fn grant(&self) -> Result<Grant, BadGrant> {
        // None of them has a comma, so that each stays the word that it is.
        let owners = self.owner.iter().map(|owner| format!(",owner={owner}"));
        let workspaces = self.workspace.iter().map(|workspace| format!(",workspace={workspace}"));
        let may = self.may.iter().map(|may| format!(",may={may}"));
        let restrictions: String = owners.chain(workspaces).chain(may).collect();
        format!("{}{restrictions}", self.role).parse()
    }
}

impl Token {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        match self.action {
            Action::New(new) => {
                let grant = new.grant()?;
                let (name, file) = (new.name, new.place.file()?);
                let token = file.add(&name, &grant)?;
                print::line(token).map_err(Trouble::from)?;
                let file = file.path().display();
                print::tell(format!("{name} may act as {grant} wherever {file} is the token file"));
            }
            Action::List(place) => {
                for (name, grant) in place.file()?.list()? {
                    print::line(format!("{name} {grant}")).map_err(Trouble::from)?;
                }
            }
            Action::Revoke { name, place } => {
                let file = place.file()?;
                file.revoke(&name)?;
                print::tell(format!(
                    "{name} is not known any more wherever {} is the token file; its streams \
                     end within seconds, and calls under way are answered",
                    file.path().display()
                ));
            }
        }
        Ok(())
    }
}
