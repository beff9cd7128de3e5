//! The dashboard and the rules of `deploy/monitoring` name only metrics that are served.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{report, root};

/// Files with queries.
const FILES: [&str; 2] = ["grafana-dashboard.json", "prometheus-rules.yaml"];
/// Prefixes of metric names.
const PREFIXES: [&str; 7] =
    ["apid_", "apiserver_", "authentication_", "authorization_", "kubernetes_", "process_", "workqueue_"];
/// Suffixes of the series of a histogram.
const HISTOGRAM_SERIES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The metric names in a text. Names of recording rules contain a colon.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = text.split(|letter| !is_part(letter));
    words
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)) && !word.contains(':'))
        .collect()
}

#[test]
fn monitoring_files_name_only_served_metrics() {
    let table = fs::read_to_string(root().join("docs/metrics.csv")).expect("the table of metrics");
    let mut served = BTreeSet::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[4] == "absent" {
            continue;
        }
        match fields[1] {
            "histogram" => {
                served.extend(HISTOGRAM_SERIES.map(|suffix| format!("{}{suffix}", fields[0])));
            }
            _ => drop(served.insert(fields[0].to_owned())),
        }
    }
    let mut violations = Vec::new();
    for file in FILES {
        let text = fs::read_to_string(root().join("deploy/monitoring").join(file)).expect("the file");
        let names = metric_names(&text);
        assert!(names.len() > 5, "{file}: {names:?}");
        let unknown = names.iter().filter(|name| !served.contains(**name));
        violations.extend(unknown.map(|name| format!("{file}: {name}")));
    }
    report(&violations, "the metric is not served");
}

#[test]
fn prometheus_accepts_the_rules() {
    let rules = root().join("deploy/monitoring/prometheus-rules.yaml");
    let unpacked = root().join("target/tools/promtool");
    let promtool = if unpacked.is_file() { unpacked } else { PathBuf::from("promtool") };
    match Command::new(promtool).args(["check", "rules"]).arg(&rules).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => prerequisites::skip("promtool", &error.to_string()),
    }
}

#[test]
fn metric_names_are_found_in_queries() {
    let text = "sum(rate(apiserver_request_total{job=\"x\"}[5m])) / apid:ratio > apid_store_full";
    assert_eq!(metric_names(text), BTreeSet::from(["apid_store_full", "apiserver_request_total"]));
}
