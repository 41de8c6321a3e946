//! Which processes are meant, by what they were given and where they are.
//!
//! Owns the options for that, the same in all commands, and the selector that comes of them.

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};

use crate::grpc::pb;

/// Which processes are meant: all that is given must match.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filters")]
pub(super) struct Filter {
    /// Those of this name.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Those with this reference of the client's.
    #[arg(long = "ref", value_name = "REF", value_parser = NonEmptyStringValueParser::new())]
    reference: Option<String>,
    /// Those with this label. Repeatable: all of them must be there.
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Those of this owner.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    owner: Option<String>,
    /// Those of this workspace.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    workspace: Option<String>,
    /// The one that is this service.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    service: Option<String>,
    /// Those of this kind of work.
    #[arg(long, value_parser = named(&["background", "service", "foreground"], mode))]
    mode: Option<pb::Mode>,
    /// Those of this queue.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Those in this state. Repeatable: one of them.
    #[arg(long, value_parser = named(
        &["queued", "starting", "running", "stopping", "backoff", "exited"], state))]
    state: Vec<pb::State>,
    /// Those that ended like this. Repeatable: one of them.
    #[arg(long, value_parser = named(&["succeeded", "failed", "canceled", "timed-out"], outcome))]
    outcome: Vec<pb::Outcome>,
}

impl Filter {
    /// As the API has it.
    pub(super) fn selector(&self) -> pb::Selector {
        let Filter {
            name,
            reference,
            label,
            owner,
            workspace,
            service,
            mode,
            queue,
            state,
            outcome,
        } = self.clone();
        pb::Selector {
            states: state.into_iter().map(Into::into).collect(),
            outcomes: outcome.into_iter().map(Into::into).collect(),
            r#ref: reference.unwrap_or_default(),
            name: name.unwrap_or_default(),
            service: service.unwrap_or_default(),
            owner: owner.unwrap_or_default(),
            workspace: workspace.unwrap_or_default(),
            labels: label.into_iter().collect(),
            mode: mode.unwrap_or_default().into(),
            queue: queue.unwrap_or_default(),
        }
    }

    /// Nothing was given.
    pub(super) fn is_empty(&self) -> bool {
        self.selector() == pb::Selector::default()
    }

    /// Finished ones are asked for by name of their state or end.
    pub(super) fn asks_for_finished(&self) -> bool {
        self.state.contains(&pb::State::Exited) || !self.outcome.is_empty()
    }
}

/// Reads one of the words that the API has for something.
pub(super) fn named<T>(
    words: &'static [&'static str],
    read: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words)
        .try_map(move |word| read(&word).ok_or_else(|| format!("{word} is not known")))
}

/// A word as constants of the API are written.
pub(super) fn constant(prefix: &str, word: &str) -> String {
    format!("{prefix}_{}", word.replace('-', "_").to_ascii_uppercase())
}

fn state(word: &str) -> Option<pb::State> {
    pb::State::from_str_name(&constant("STATE", word))
}

fn outcome(word: &str) -> Option<pb::Outcome> {
    pb::Outcome::from_str_name(&constant("OUTCOME", word))
}

fn mode(word: &str) -> Option<pb::Mode> {
    pb::Mode::from_str_name(&constant("MODE", word))
}

/// Reads a label.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is written KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        filter: Filter,
    }

    fn filter(args: &[&str]) -> Filter {
        Cli::try_parse_from([&["x"], args].concat()).unwrap().filter
    }

    #[test]
    fn each_word_is_one_of_the_api() {
        for state in ["queued", "starting", "running", "stopping", "backoff", "exited"] {
            assert_ne!(filter(&["--state", state]).selector().states, [0]);
        }
        for outcome in ["succeeded", "failed", "canceled", "timed-out"] {
            assert!(filter(&["--outcome", outcome]).asks_for_finished());
        }
        let selector = filter(&["--mode", "service", "--label", "a=b=c", "--label", "d="]);
        let selector = selector.selector();
        assert_eq!(selector.mode(), pb::Mode::Service);
        assert_eq!(selector.labels["a"], "b=c");
        assert_eq!(selector.labels["d"], "");
        assert!(filter(&[]).is_empty() && !filter(&["--name", "a"]).is_empty());
        assert!(Cli::try_parse_from(["x", "--state", "gone"]).is_err());
    }

    #[test]
    fn empty_filter_is_refused() {
        // As of a variable that is not set: without it, the others would match more.
        for option in ["--name", "--ref", "--owner", "--workspace", "--service", "--queue"] {
            assert!(Cli::try_parse_from(["x", "--state", "running", option, ""]).is_err());
        }
    }
}
