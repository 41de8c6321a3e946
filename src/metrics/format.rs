//! The two text formats of a scrape: Prometheus 0.0.4, and OpenMetrics for scrapers that prefer it. Pure.
//!
//! Owns the choice by `Accept`, and the conversion: the library writes OpenMetrics only.

/// A format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// What every scraper and `promtool` read: Prometheus text, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that a client prefers, by the values of its `Accept` headers. OpenMetrics only if the
    /// client names it and weighs it no less than text.
    pub fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        for range in accept.flat_map(|value| value.split(',')).map(Range::parse) {
            let weight = match (range.media.as_str(), range.version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => &mut open_metrics,
                ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => &mut text,
                _ => continue,
            };
            *weight = range.weight.max(*weight);
        }
        match open_metrics > 0.0 && open_metrics >= text {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// The metrics in this format, from OpenMetrics text.
    pub fn write(self, open_metrics: String) -> String {
        match self {
            Format::OpenMetrics => open_metrics,
            Format::Prometheus => prometheus(&open_metrics),
        }
    }
}

/// A media range of an `Accept` header.
struct Range<'a> {
    media: String,
    version: Option<&'a str>,
    weight: f64,
}

impl Range<'_> {
    fn parse(text: &str) -> Range<'_> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut range = Range { media, version: None, weight: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value.trim().trim_matches('"')),
                // What is no number counts as if it was not accepted.
                "q" => range.weight = value.trim().parse().unwrap_or(0.0),
                _ => {}
            }
        }
        range
    }
}

/// Families are named as their samples there, `info` is a gauge, and there are neither units nor an end.
fn prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", _, words] => help = words,
            ["#", "TYPE", name, kind] => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                let lines = [("HELP", help), ("TYPE", kind)];
                text.extend(
                    lines.map(|(what, value)| format!("# {what} {name}{suffix} {value}\n")),
                );
            }
            ["#", "UNIT" | "EOF", ..] => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &str) -> Format {
        Format::negotiate(std::iter::once(accept))
    }

    #[test]
    fn text_is_the_default_and_openmetrics_is_asked_for() {
        assert_eq!(Format::negotiate(std::iter::empty()), Format::Prometheus);
        for text in [
            "",
            "*/*",
            "text/plain",
            "text/html, */*;q=0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=nan, */*",
            "application/openmetrics-text;version=2.0.0, */*;q=0.1",
            "application/openmetrics-text;q=0.5, text/plain;q=0.6",
            "application/openmetrics-text;q=0.5, */*",
        ] {
            assert_eq!(chosen(text), Format::Prometheus, "{text}");
        }
        for open_metrics in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8",
            "application/openmetrics-text;version=\"1.0.0\", text/plain",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        ] {
            assert_eq!(chosen(open_metrics), Format::OpenMetrics, "{open_metrics}");
        }
    }

    #[test]
    fn families_of_text_are_named_as_their_samples() {
        let open_metrics = "# HELP a_seconds So long.\n# TYPE a_seconds counter\n# UNIT a_seconds \
            seconds\na_seconds_total{b=\"# UNIT\"} 1.5\n# HELP v Which.\n# TYPE v info\n\
            v_info{version=\"1\"} 1\n# HELP g There.\n# TYPE g gauge\ng 2\n# EOF\n";
        let text = "# HELP a_seconds_total So long.\n# TYPE a_seconds_total counter\n\
            a_seconds_total{b=\"# UNIT\"} 1.5\n# HELP v_info Which.\n# TYPE v_info gauge\n\
            v_info{version=\"1\"} 1\n# HELP g There.\n# TYPE g gauge\ng 2\n";
        assert_eq!(Format::Prometheus.write(open_metrics.into()), text);
        assert_eq!(Format::OpenMetrics.write(open_metrics.into()), open_metrics);
    }
}
