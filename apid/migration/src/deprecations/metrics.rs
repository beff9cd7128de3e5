//! The gauge of requested deprecated APIs in the Prometheus text format.

use std::collections::BTreeMap;

/// Name of the gauge.
const GAUGE: &str = "apiserver_requested_deprecated_apis";

/// A series of the gauge.
#[derive(Debug, Default)]
pub(super) struct Series {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) removed_release: String,
}

/// The series of the gauge that are not zero.
pub(super) fn nonzero_series(text: &str) -> Vec<Series> {
    text.lines().filter_map(parse_series).collect()
}

fn parse_series(line: &str) -> Option<Series> {
    let rest = line.trim().strip_prefix(GAUGE)?.strip_prefix('{')?;
    let (mut labels, value) = parse_labels(rest)?;
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    let mut label = |name: &str| labels.remove(name).unwrap_or_default();
    (value != 0.0).then(|| Series {
        group: label("group"),
        version: label("version"),
        resource: label("resource"),
        subresource: label("subresource"),
        removed_release: label("removed_release"),
    })
}

/// The labels up to the closing brace, and the text after it.
fn parse_labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(value) = rest.strip_prefix('}') {
            return Some((labels, value));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = parse_quoted(after)?;
        labels.insert(name.trim().to_owned(), value);
        rest = after;
    }
}

/// The unescaped text up to the closing quote, and the text after the quote.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            other => value.push(other),
        }
    }
    None
}
