//! The formats of a scrape, as `Accept` chooses them.

use std::collections::BTreeMap;

use super::*;

const TEXT: &str = "content-type: text/plain; version=0.0.4; charset=utf-8";

fn get(accept: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nhost: a\r\n{accept}\r\n")
}

/// Names of families with their types; every sample must belong to the family before it.
fn families(text: &str) -> BTreeMap<String, String> {
    let mut families = BTreeMap::new();
    let (mut helped, mut family) = ("", "");
    for line in text.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", name, _] => helped = name,
            ["#", "TYPE", name, kind] => {
                assert_eq!(helped, name, "no help: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert_eq!(families.insert(name.into(), kind.into()), None, "twice: {line}");
                family = name;
            }
            _ => {
                let name = line.split(['{', ' ']).next().unwrap();
                let rest = name.strip_prefix(family).unwrap_or_else(|| panic!("whose: {line}"));
                let is_histogram = families[family] == "histogram";
                let allowed = if is_histogram { &["_bucket", "_sum", "_count"][..] } else { &[""] };
                assert!(allowed.contains(&rest), "{line}");
                line.rsplit_once(' ').unwrap().1.parse::<f64>().expect(line);
            }
        }
    }
    families
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_is_the_default_format_and_has_every_metric() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    finish(&mut client, "", shell("true")).await;
    let preferred = "accept: application/openmetrics-text;q=0.3,text/plain;version=0.0.4;q=0.7\r\n";
    for accept in ["", "accept: */*\r\n", preferred] {
        let (first, headers, body) = measured.ask(&get(accept)).await;
        assert_eq!(first, "HTTP/1.1 200 OK");
        assert!(headers.lines().any(|header| header == TEXT), "{headers}");
        let rows = DOCUMENTED.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented = rows.map(|row| row.split_once('`').unwrap().0.to_owned());
        let (mut documented, there) = (documented.collect::<Vec<_>>(), families(&body));
        documented.sort_unstable();
        assert_eq!(there.into_keys().collect::<Vec<_>>(), documented);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_is_answered_as_get_without_a_body() {
    let measured = Measured::start().await;
    let (first, headers, body) = measured.ask("HEAD /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((first.as_str(), body.as_str()), ("HTTP/1.1 200 OK", ""));
    assert!(headers.lines().any(|header| header == TEXT), "{headers}");
    let length = headers.lines().find_map(|header| header.strip_prefix("content-length: "));
    assert!(length.unwrap().parse::<usize>().unwrap() > 1000, "{headers}");
}
