//! `docs/reference.md`, made from the comments in `proto/procyard/v1`.
//!
//! Owns how the page looks. What stands in it is the proto's: this test fails when the two differ,
//! and writes the page when it is asked to.

mod api;
mod errors;
mod words;

use super::markdown::anchor;
use super::{place, text_of};
use api::{Api, Enumeration, Field, Message, Part, Section};
use words::Words;

const PAGE: &str = "docs/reference.md";
/// Writes the page instead of comparing it.
const WRITE: &str = "PROCYARD_WRITE_REFERENCE";

#[test]
fn the_reference_is_what_the_proto_says() {
    let page = page(&Api::read());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(place(PAGE), &page).unwrap();
    }
    if let Some(written) = text_of(PAGE) {
        let how = format!("run `{WRITE}=1 cargo test --test it reference`");
        assert!(written == page, "{PAGE} is not what the proto says: {how}");
    }
}

#[test]
fn no_two_headings_of_the_reference_are_the_same() {
    let mut anchors = super::markdown::anchors(&page(&Api::read()));
    let all = anchors.len();
    anchors.sort();
    anchors.dedup();
    assert_eq!(anchors.len(), all, "{anchors:?}");
}

fn page(api: &Api) -> String {
    let words = Words::of(api);
    let mut page = format!("# Reference\n\n{}\n", contents(api));
    page +=
        &format!("## ProcessService\n\n{}\n\n", words.paragraphs(&api.comment, "ProcessService"));
    for call in &api.calls {
        let (request, answer) = (link(&call.request), link(&call.answer));
        page += &format!(
            "### {}\n\n{}{request} → {}{answer}\n\n{}\n\n",
            call.name,
            stream(call.client_streams),
            stream(call.server_streams),
            errors::apart(&words.paragraphs(&call.comment, &call.name))
        );
    }
    page += &errors::table(api);
    for section in &api.sections {
        page += &format!("## {}\n\n", section.title);
        for part in &section.parts {
            page += &match part {
                Part::Message(message) => message_text(message, &words),
                Part::Enumeration(enumeration) => enumeration_text(enumeration, &words),
            };
        }
    }
    page.trim_end().to_string() + "\n"
}

fn contents(api: &Api) -> String {
    let list = |names: Vec<&str>| names.into_iter().map(link).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "Made from the comments in [proto/procyard/v1](../proto/procyard/v1); to change a word, \
         change it there and run `{WRITE}=1 cargo test --test it reference`.\n\n"
    );
    let calls = api.calls.iter().map(|call| call.name.as_str()).collect();
    text += &format!("- {}: {}\n", link("ProcessService"), list(calls));
    text +=
        &format!("- {}: codes and reasons, and the calls that tell them\n", link(errors::TITLE));
    // Requests and answers are found by their calls.
    let is_listed = |name: &&str| !name.contains("Request") && !name.contains("Response");
    for Section { title, parts } in &api.sections {
        let names: Vec<&str> = parts.iter().map(Part::name).filter(is_listed).collect();
        let colon = if names.is_empty() { "" } else { ": " };
        text += &format!("- {}{colon}{}\n", link(title), list(names));
    }
    text
}

fn message_text(message: &Message, words: &Words) -> String {
    let mut text = opening(&message.name, &message.comment, words);
    if message.fields.is_empty() {
        return text + "No fields.\n\n";
    }
    text += "| field | type | meaning |\n|---|---|---|\n";
    let mut choice = None;
    for field in &message.fields {
        if field.choice != choice {
            choice = field.choice;
            text += &choice.map_or(String::new(), |number| {
                let (name, comment) = &message.choices[number];
                format!("| *one of* {name} | | {} |\n", words.cell(comment, &message.name))
            });
        }
        let Field { name, comment, .. } = field;
        let kind = field.kind.text(link);
        let indent = if field.choice.is_some() { "• " } else { "" };
        text +=
            &format!("| {indent}`{name}` | {kind} | {} |\n", words.cell(comment, &message.name));
    }
    text + "\n"
}

fn enumeration_text(enumeration: &Enumeration, words: &Words) -> String {
    let mut text = opening(&enumeration.name, &enumeration.comment, words);
    text += "| value | number | meaning |\n|---|---|---|\n";
    for (name, number, comment) in &enumeration.values {
        text += &format!("| `{name}` | {number} | {} |\n", words.cell(comment, &enumeration.name));
    }
    text + "\n"
}

fn opening(name: &str, comment: &str, words: &Words) -> String {
    format!("### {name}\n\n{}\n\n", words.paragraphs(comment, name))
}

fn stream(is_stream: bool) -> &'static str {
    if is_stream { "stream of " } else { "" }
}

/// A link to a heading of this page.
fn link(name: &str) -> String {
    format!("[{name}](#{})", anchor(name))
}
