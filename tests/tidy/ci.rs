//! No variable of the environment lets CI pass where a difference exists.

use std::collections::BTreeSet;
use std::fs;

use super::{Source, report, root, rust_sources};

/// Ends of the names of variables by which a test writes a golden file or leaves out cases.
const HIDING_ENDS: [&str; 2] = ["UPDATE", "_ONLY"];

/// Returns the names of hiding variables that a source reads, as `var("NAME")`, `var_os("NAME")` or
/// `text("NAME")`.
fn hiding_variables(source: &str) -> BTreeSet<String> {
    let reads = ["var(\"", "var_os(\"", "text(\""];
    let names =
        reads.iter().flat_map(|read| source.split(read).skip(1)).filter_map(|rest| rest.split('"').next());
    let is_hiding = |name: &&str| {
        name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            && HIDING_ENDS.iter().any(|end| name.ends_with(end))
    };
    names.filter(is_hiding).map(str::to_owned).collect()
}

/// Returns the variables that a script unsets.
fn unset_variables(script: &str) -> BTreeSet<String> {
    let lines = script.lines().filter_map(|line| line.trim().strip_prefix("unset "));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[test]
fn ci_unsets_each_variable_that_hides_differences() {
    let script = fs::read_to_string(root().join(".ci/run")).unwrap_or_default();
    let unset = unset_variables(&script);
    let mut violations = Vec::new();
    for Source { path, text } in rust_sources() {
        let missing = hiding_variables(&text).into_iter().filter(|name| !unset.contains(name));
        violations.extend(missing.map(|name| format!("{path}: {name}")));
    }
    report(&violations, "unset the variable in .ci/run");
}

#[test]
fn hiding_variables_are_found_by_their_ends() {
    let source =
        r#"std::env::var_os("UPDATE"); std::env::var("PROBES_ONLY"); var("SEED"); text("ATTACKS_ONLY")"#;
    let found: Vec<String> = hiding_variables(source).into_iter().collect();
    assert_eq!(found, ["ATTACKS_ONLY", "PROBES_ONLY", "UPDATE"]);
    let unset: Vec<String> = unset_variables("a\nunset UPDATE X\n").into_iter().collect();
    assert_eq!(unset, ["UPDATE", "X"]);
}
