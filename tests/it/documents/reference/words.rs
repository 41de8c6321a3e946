//! Comments as Markdown: what they name of the API is linked to where it is told.

use std::collections::{HashMap, HashSet};

use regex::{Captures, Regex};

use super::api::{Api, Part};
use super::link;
use crate::documents::markdown::anchor;

pub struct Words {
    /// Calls and types.
    names: HashSet<String>,
    /// Fields, as `Type.field`, and values, each with the name of its type.
    members: HashMap<String, String>,
    token: Regex,
}

impl Words {
    pub fn of(api: &Api) -> Words {
        let parts = || api.sections.iter().flat_map(|section| &section.parts);
        let calls = api.calls.iter().map(|call| call.name.clone());
        let members = parts().flat_map(|part| match part {
            Part::Message(it) => {
                let member = |name: &String| (format!("{}.{name}", it.name), it.name.clone());
                it.fields.iter().map(|field| member(&field.name)).collect::<Vec<_>>()
            }
            Part::Enumeration(it) => {
                it.values.iter().map(|(name, ..)| (name.clone(), it.name.clone())).collect()
            }
        });
        Words {
            names: calls.chain(parts().map(|part| part.name().to_string())).collect(),
            members: members.collect(),
            token: Regex::new(r"`[^`]+`|[A-Za-z]\w*(?:\.[A-Za-z]\w*)*|[*<|]").unwrap(),
        }
    }

    /// A comment as paragraphs. What it says of `own` is not linked.
    pub fn paragraphs(&self, comment: &str, own: &str) -> String {
        self.token
            .replace_all(comment, |found: &Captures<'_>| {
                let token = found.get(0).unwrap();
                self.shown(token.as_str(), &comment[..token.start()], own)
            })
            .into_owned()
    }

    /// The same within one cell of a table.
    pub fn cell(&self, comment: &str, own: &str) -> String {
        self.paragraphs(comment, own).replace("\n\n", "<br><br>").replace('\n', " ")
    }

    fn shown(&self, token: &str, before: &str, own: &str) -> String {
        let word = token.trim_matches('`');
        let word = word.strip_prefix("ProcessService.").unwrap_or(word);
        if matches!(token, "*" | "<" | "|") {
            return format!("\\{token}");
        }
        if let Some(of) = self.members.get(word).filter(|of| *of != own) {
            return format!("[`{word}`](#{})", anchor(of));
        }
        if word != own && self.names.contains(word) && is_name(word, token, before) {
            return link(word);
        }
        let is_value = self.members.contains_key(word);
        if is_value { format!("`{word}`") } else { token.replace('|', "\\|") }
    }
}

/// Whether a word that is a name is meant as one: `Kill` at the beginning of a sentence may be a word
/// like any other.
fn is_name(word: &str, token: &str, before: &str) -> bool {
    let humps = word.chars().filter(|c| c.is_uppercase()).count();
    let before = before.trim_end();
    let begins = before.is_empty() || before.ends_with('.');
    humps > 1 || token != word || !begins
}
