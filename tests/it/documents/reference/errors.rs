//! The errors that the comments of the calls tell, by code and reason.
//!
//! A comment says `CODE / REASON, REASON` with words in between, or refers to another call.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::api::{Api, Part};
use super::link;
use crate::documents::text_of;

pub const TITLE: &str = "Errors";

/// The codes that are used, as comments write them.
const CODES: [&str; 11] = [
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
];
/// The only error of its code.
const MISSING: (&str, &str) = ("NOT_FOUND", "PROCESS_NOT_FOUND");
/// Reasons of the server that the comments owe nobody: no call of a caller's brings them about.
const NOT_TOLD: [&str; 1] = ["KEEPER"];

pub fn table(api: &Api) -> String {
    let mut text = format!(
        "## {TITLE}\n\nReasons stand in `google.rpc.ErrorInfo`.\n\n\
         | code | reason | told by |\n|---|---|---|\n"
    );
    for ((code, reason), calls) in told(api) {
        let calls = if calls.is_empty() { "any call".to_string() } else { calls.join(", ") };
        text += &format!("| {code} | `{reason}` | {calls} |\n");
    }
    text + "\n"
}

/// The comment of a call, with its errors in a paragraph of their own.
pub fn apart(comment: &str) -> String {
    match comment.split_once("Errors:") {
        Some((before, errors)) => format!("{}\n\nErrors:{errors}", before.trim_end()),
        None => comment.to_string(),
    }
}

/// An error: its code and its reason.
type Refusal = (&'static str, String);

/// Links to calls by what they tell; none: any call.
fn told(api: &Api) -> BTreeMap<Refusal, Vec<String>> {
    let mut told: BTreeMap<Refusal, Vec<String>> = BTreeMap::new();
    for error in api.sections.iter().flat_map(|it| &it.parts).flat_map(told_by_fields) {
        told.insert(error, Vec::new());
    }
    let mut of_calls: Vec<(&str, BTreeSet<Refusal>)> = Vec::new();
    for call in &api.calls {
        let errors = call.comment.split_once("Errors:").map_or("", |it| it.1);
        let referred = errors.split(';').flat_map(|piece| referred(piece, &of_calls));
        // Who only says "not found" says all there is to say of it.
        let missing = errors.contains(MISSING.0).then(|| (MISSING.0, MISSING.1.to_string()));
        let all = referred.chain(found(errors)).chain(missing).collect();
        of_calls.push((&call.name, all));
    }
    for (call, errors) in of_calls {
        for error in errors {
            told.entry(error).or_default().push(link(call));
        }
    }
    told.extend(found(&api.comment).into_iter().map(|error| (error, Vec::new())));
    told
}

/// The errors of other calls that a piece of a comment refers to, such as "as Read": all of them, or
/// those of the codes that it gives.
fn referred(piece: &str, of_calls: &[(&str, BTreeSet<Refusal>)]) -> Vec<Refusal> {
    let words: Vec<&str> = piece.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let codes: Vec<_> = CODES.iter().filter(|code| words.contains(code)).collect();
    let calls = of_calls.iter().filter(|(name, _)| words.contains(name));
    let errors = calls.flat_map(|(_, errors)| errors.clone());
    errors.filter(|(code, _)| codes.is_empty() || codes.contains(&code)).collect()
}

fn told_by_fields(part: &Part) -> Vec<Refusal> {
    let Part::Message(message) = part else { return Vec::new() };
    message.fields.iter().flat_map(|field| found(&field.comment)).collect()
}

/// The errors that a text tells: after a code and a slash a reason, and in the same sentence more of
/// the same code.
fn found(text: &str) -> Vec<Refusal> {
    let word = Regex::new(r"(/\s+)?\b([A-Z]+(?:_[A-Z]+)*)\b").unwrap();
    let mut errors = Vec::new();
    for sentence in text.split(". ") {
        let mut code = None;
        let mut has_reasons = false;
        for word in word.captures_iter(sentence) {
            let (is_first, word) = (word.get(1).is_some(), &word[2]);
            if let Some(it) = CODES.iter().find(|it| **it == word) {
                (code, has_reasons) = (Some(*it), false);
            } else if is_first || (has_reasons && is_reason(word)) {
                has_reasons = true;
                errors.extend(code.map(|code| (code, word.to_string())));
            }
        }
    }
    errors
}

/// Whether a word that follows a reason is one: not a value of an enumeration, a variable or a signal.
fn is_reason(word: &str) -> bool {
    let others = ["CAUSE_", "STATE_", "POLICY_", "MODE_", "FILES_", "PROCYARD_", "SIG"];
    word.len() > 3 && !others.iter().any(|other| word.starts_with(other))
}

#[test]
fn every_reason_that_the_server_gives_is_told() {
    let Some(source) = text_of("src/grpc/status.rs") else { return };
    let reason = Regex::new("\"([A-Z_]{4,})\"").unwrap();
    let told = told(&Api::read());
    for given in reason.captures_iter(&source) {
        let is_told = told.keys().any(|(_, reason)| *reason == given[1]);
        assert!(is_told || NOT_TOLD.contains(&&given[1]), "{} is in no comment", &given[1]);
    }
}
