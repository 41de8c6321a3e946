//! As much of Markdown as is needed: headings with the anchors that GitHub gives them, and links.

use std::collections::HashMap;

use regex::Regex;

/// The anchor of a heading, as if it were the only one of its name.
pub fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    heading.trim().chars().filter(kept).collect::<String>().to_lowercase().replace(' ', "-")
}

/// The anchors of a page. Of headings with one name the second has `-1`.
pub fn anchors(page: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
    for line in prose(page) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(&link.replace_all(heading, "$1"));
        let number = seen.entry(anchor.clone()).or_default();
        found.push(if *number == 0 { anchor.clone() } else { format!("{anchor}-{number}") });
        *number += 1;
    }
    found
}

/// Where the links of a page lead.
pub fn links(page: &str) -> Vec<String> {
    let code = Regex::new("`[^`]*`").unwrap();
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    // A target is no code, but its text may be.
    let bare = prose(page).map(|line| code.replace_all(line, "").into_owned());
    bare.flat_map(|line| {
        link.captures_iter(&line).map(|found| found[1].to_string()).collect::<Vec<_>>()
    })
    .collect()
}

/// The lines outside of blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

#[test]
fn anchors_are_those_of_github() {
    let page =
        "# What *is* it?\n## `serve` and_more\n```sh\n# no heading\n```\n## What is it\n#no\n";
    assert_eq!(anchors(page), ["what-is-it", "serve-and_more", "what-is-it-1"]);
}

#[test]
fn links_in_code_are_none() {
    let page = "[a](x.md) `[b](y.md)` [`c`](z.md#c)\n```\n[d](w.md)\n```\n";
    assert_eq!(links(page), ["x.md", "z.md#c"]);
}
