//! Conversion of OpenMetrics text to the Prometheus text format 0.0.4, as kube-apiserver writes it.
//!
//! # Contract
//!
//! Families are ordered by name. The metadata of a counter has the exported name, including `_total`. A
//! histogram has its buckets first, then sum and count; the bounds of buckets have the form of Go (`1`,
//! `1e+06`), because queries compare them as text.

use std::collections::BTreeMap;

use apimachinery::codec::json::short_float_text;

/// Converts the OpenMetrics text of the library. `unsuffixed`: names of counters that do not end in `_total`.
pub(super) fn to_prometheus_text(open_metrics: &str, unsuffixed: &[&str]) -> String {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut help = None;
    let mut family = FamilyText::default();
    for line in open_metrics.lines() {
        if line.starts_with("# HELP ") {
            help = Some(line);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (name_before, text) = std::mem::take(&mut family).finish();
            families.insert(name_before, text);
            family = FamilyText::begin(name, kind, help.take(), unsuffixed);
        } else if !line.starts_with("# ") {
            family.add_sample(line);
        }
    }
    let (name, text) = family.finish();
    families.insert(name, text);
    families.into_values().collect()
}

/// The text of one family.
#[derive(Default)]
struct FamilyText {
    name: String,
    text: String,
    /// Names of the samples in the text of the library and in the export, if they differ.
    renamed: Option<(String, String)>,
    is_histogram: bool,
    /// Sum and count of the current histogram, which follow its buckets.
    totals: String,
}

impl FamilyText {
    fn begin(name: &str, kind: &str, help: Option<&str>, unsuffixed: &[&str]) -> Self {
        let is_unsuffixed = kind == "counter" && unsuffixed.contains(&name);
        let exported =
            if kind == "counter" && !is_unsuffixed { format!("{name}_total") } else { name.to_owned() };
        let mut text = String::new();
        if let Some(help) = help.and_then(|help| help.strip_prefix("# HELP ")?.strip_prefix(name)) {
            text.push_str(&format!("# HELP {exported}{help}\n"));
        }
        text.push_str(&format!("# TYPE {exported} {kind}\n"));
        FamilyText {
            text,
            renamed: is_unsuffixed.then(|| (format!("{name}_total"), name.to_owned())),
            is_histogram: kind == "histogram",
            name: exported,
            totals: String::new(),
        }
    }

    fn add_sample(&mut self, line: &str) {
        let part = line.strip_prefix(self.name.as_str()).unwrap_or(line);
        if let Some((from, to)) = &self.renamed
            && let Some(rest) = line.strip_prefix(from.as_str())
        {
            self.text.extend([to.as_str(), rest, "\n"]);
        } else if !self.is_histogram {
            self.text.extend([line, "\n"]);
        } else if part.starts_with("_bucket") {
            self.text.extend([with_go_bound(line).as_str(), "\n"]);
        } else {
            if part.starts_with("_sum") {
                self.flush_totals();
            }
            self.totals.extend([line, "\n"]);
        }
    }

    fn flush_totals(&mut self) {
        self.text.push_str(&std::mem::take(&mut self.totals));
    }

    fn finish(mut self) -> (String, String) {
        self.flush_totals();
        (self.name, self.text)
    }
}

/// Replaces the bound `le` of a bucket line by the form of Go.
fn with_go_bound(line: &str) -> String {
    let replace = || {
        let (head, rest) = line.split_once("le=\"")?;
        let (bound, tail) = rest.split_once('"')?;
        let bound: f64 = bound.parse().ok()?;
        Some(format!("{head}le=\"{}\"{tail}", go_float(bound)))
    };
    replace().unwrap_or_else(|| line.to_owned())
}

/// Formats a number as the shortest text of Go: with an exponent below 1e-04 and from 1e+06 on.
pub(super) fn go_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    short_float_text(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_buckets_have_form_of_go() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.005, "0.005"),
            (1.25, "1.25"),
            (5e-7, "5e-07"),
            (0.0001, "0.0001"),
            (100_000.0, "100000"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(go_float(value), text);
        }
    }

    #[test]
    fn families_are_ordered_by_name() {
        let open = "# HELP b B.\n# TYPE b gauge\nb 1\n# HELP a A.\n# TYPE a counter\na_total 2\n# EOF\n";
        let expected =
            "# HELP a_total A.\n# TYPE a_total counter\na_total 2\n# HELP b B.\n# TYPE b gauge\nb 1\n";
        assert_eq!(to_prometheus_text(open, &[]), expected);
    }
}
