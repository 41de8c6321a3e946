//! Reads OpenMetrics text, strictly: what is not as the specification has it is a failure.

use std::collections::{BTreeMap, BTreeSet};

/// One scrape.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    /// Families and their types.
    pub(super) families: BTreeMap<String, String>,
    /// Samples, as they are written: `name{label="value",…}`.
    pub(super) samples: BTreeMap<String, f64>,
}

impl Scrape {
    pub(super) fn parse(text: &str) -> Scrape {
        let lines = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
        assert!(lines.ends_with('\n') && !lines.contains("# EOF"), "{text}");
        let mut scrape = Scrape::default();
        let mut helped = BTreeSet::new();
        let mut current = (String::new(), String::new());
        for line in lines.lines() {
            match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
                ["#", "HELP", name, help] => {
                    assert!(is_name(name) && help.ends_with('.') && !help.contains('\\'), "{line}");
                    assert!(helped.insert(name.to_owned()), "twice: {line}");
                }
                ["#", "TYPE", name, kind] => {
                    assert!(["counter", "gauge", "histogram", "info"].contains(&kind), "{line}");
                    assert!(helped.contains(name), "no help: {line}");
                    current = (name.into(), kind.into());
                    let known = scrape.families.insert(name.into(), kind.into());
                    assert_eq!(known, None, "twice: {line}");
                }
                ["#", "UNIT", name, unit] => {
                    assert!(name == current.0 && name.ends_with(&format!("_{unit}")), "{line}");
                }
                _ => scrape.sample(line, &current),
            }
        }
        let histograms = scrape.families.iter().filter(|(_, kind)| *kind == "histogram");
        histograms.for_each(|(name, _)| scrape.check_histogram(name));
        scrape
    }

    fn sample(&mut self, line: &str, (family, kind): &(String, String)) {
        let (key, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value.parse().expect(line);
        let name = key.split('{').next().unwrap();
        let suffixes: &[&str] = match kind.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            _ => &[""],
        };
        let own = name.strip_prefix(family.as_str()).is_some_and(|rest| suffixes.contains(&rest));
        assert!(is_name(name) && own, "{line} is not of the {kind} {family}");
        assert!(value.is_finite() && (value >= 0.0 || kind == "gauge"), "{line}");
        if let Some(labels) = key.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}'));
            let mut names = BTreeSet::new();
            for label in labels.expect(line).split(',') {
                let (name, value) = label.split_once('=').expect(line);
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                assert!(is_name(name) && names.insert(name), "{line}");
                assert!(!value.expect(line).contains(['"', '\\']), "{line}");
            }
        }
        assert_eq!(self.samples.insert(key.into(), value), None, "twice: {line}");
    }

    /// Buckets never fall, and the last is all.
    fn check_histogram(&self, family: &str) {
        let counts = self.samples.iter().filter_map(|(key, count)| {
            Some((key.strip_prefix(&format!("{family}_count"))?, *count))
        });
        for (labels, count) in counts {
            let inner = labels.trim_matches(['{', '}']);
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for (key, value) in &self.samples {
                let Some(key) = key.strip_prefix(&format!("{family}_bucket{{")) else { continue };
                let (le, rest) = split_le(key);
                if rest == inner {
                    buckets.push((le, *value));
                }
            }
            buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{family}{labels}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{family}{labels}");
        }
    }

    /// A sample, by its name and all of its labels.
    pub(super) fn get(&self, key: &str) -> f64 {
        *self.samples.get(key).unwrap_or_else(|| panic!("no {key}"))
    }

    /// The values of a label, wherever it is.
    pub(super) fn values(&self, label: &str) -> BTreeSet<String> {
        let start = format!("{label}=\"");
        let found = self.samples.keys().flat_map(|key| key.split(['{', ',']));
        let found = found.filter_map(|part| part.strip_prefix(&start));
        found.map(|value| value.trim_end_matches(['}', '"']).to_owned()).collect()
    }
}

/// The bound of a bucket, and its other labels.
fn split_le(labels: &str) -> (f64, String) {
    let labels = labels.trim_end_matches('}');
    let (les, others): (Vec<_>, Vec<_>) =
        labels.split(',').partition(|label| label.starts_with("le=\""));
    let le = les[0].trim_start_matches("le=\"").trim_end_matches('"');
    (if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() }, others.join(","))
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty() && name.chars().all(allowed) && !name.starts_with(|c: char| c.is_ascii_digit())
}
