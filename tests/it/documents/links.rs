//! Every relative link of every page leads to a file that is there, and to a heading in it.

use std::path::{Path, PathBuf};

use super::markdown::{anchors, links};
use super::place;

#[test]
fn every_link_of_every_page_leads_somewhere() {
    if let Err(error) = std::fs::read_dir(place(".")) {
        println!("skipped: this user may not read the repository: {error}");
        return;
    }
    let dead: Vec<String> = pages().iter().flat_map(|page| dead_links(page)).collect();
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

/// The pages: those at the top, all of `docs`, and those beside what is deployed.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "deploy/kubernetes"] {
        let files = std::fs::read_dir(place(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|file| file.extension().is_some_and(|it| it == "md")));
    }
    assert!(pages.len() > 3, "{pages:?}");
    pages
}

fn dead_links(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let own = anchors(&text);
    let dead = links(&text).into_iter().filter_map(|link| {
        let why = trouble(page, &own, &link)?;
        Some(format!("{}: {link}: {why}", page.display()))
    });
    dead.collect()
}

/// What is wrong with a link; those to other sites are not looked at.
fn trouble(page: &Path, own: &[String], link: &str) -> Option<&'static str> {
    if link.contains("://") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = page.parent().unwrap().join(path);
    if !path.is_empty() && !target.exists() {
        return Some("there is no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    let there = match path {
        "" => own.to_vec(),
        _ => anchors(&std::fs::read_to_string(target).ok()?),
    };
    (!there.contains(&anchor.to_string())).then_some("there is no such heading")
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = place("docs/none.md");
    let own = anchors("## Here\n");
    assert_eq!(trouble(&page, &own, "#here"), None);
    assert_eq!(trouble(&page, &own, "https://example.org/#x"), None);
    assert_eq!(trouble(&page, &own, "#there"), Some("there is no such heading"));
    assert_eq!(trouble(&page, &own, "nowhere.md"), Some("there is no such file"));
}
