//! The gauge of requested deprecated APIs in the Prometheus text format.

use std::collections::BTreeMap;

use apimachinery::gvk::GroupVersion;

use super::ResourceRequest;

/// Name of the gauge.
const GAUGE: &str = "apiserver_requested_deprecated_apis";

/// The requests that the series of the gauge report. A series with the value zero reports none.
pub(super) fn requests(text: &str) -> impl Iterator<Item = ResourceRequest> {
    text.lines().filter_map(parse_series)
}

fn parse_series(line: &str) -> Option<ResourceRequest> {
    let rest = line.trim().strip_prefix(GAUGE)?.strip_prefix('{')?;
    let (mut labels, value) = parse_labels(rest)?;
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    let mut label = |name: &str| labels.remove(name).unwrap_or_default();
    let place = match label("subresource").as_str() {
        "" => "requests since the start of the server".to_owned(),
        subresource => format!("requests of `{subresource}` since the start of the server"),
    };
    (value != 0.0).then(|| ResourceRequest {
        group_version: GroupVersion { group: label("group"), version: label("version") },
        resource: label("resource"),
        place,
        is_marked: true,
        removed: Some(label("removed_release")).filter(|release| !release.is_empty()),
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
