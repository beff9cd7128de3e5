//! Licence and source rules of `deny.toml`, without network and without `cargo deny`.
//!
//! # Contract
//!
//! `cargo metadata --offline` lists the packages that a build for this platform uses. Each licence expression must be
//! satisfied by `licenses.allow` and the exceptions of `deny.toml`, each source must be in `sources.allow-registry`, and
//! no package may be in `bans.deny`. `cargo deny check` also checks other platforms and the advisory database.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{report, root};

/// Licence and source rules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Licences that every package may have.
    allowed: BTreeSet<String>,
    /// Licences that only one package may have: package and licence.
    exceptions: BTreeSet<(String, String)>,
    /// Registries from which packages may come.
    registries: BTreeSet<String>,
    /// Banned packages.
    banned: BTreeSet<String>,
}

/// Reads the rules of `deny.toml`. The reader knows sections, keys, strings and lists; a table is on one line.
fn rules(text: &str) -> Rules {
    let mut rules = Rules::default();
    let (mut section, mut key, mut package) = (String::new(), String::new(), String::new());
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') && line.ends_with(']') && !line.contains('"') && !line.contains('=') {
            section = line.trim_matches(['[', ']']).to_owned();
            continue;
        }
        let value = match line.split_once(" = ") {
            Some((name, value)) if !line.starts_with(['{', '"']) => {
                key = name.to_owned();
                value
            }
            _ => line,
        };
        let strings: Vec<String> = value.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        match (section.as_str(), key.as_str()) {
            ("licenses", "allow") => rules.allowed.extend(strings),
            ("licenses.exceptions", "crate") => package = strings.concat(),
            ("licenses.exceptions", "allow") => {
                rules.exceptions.extend(strings.into_iter().map(|licence| (package.clone(), licence)));
            }
            ("sources", "allow-registry") => rules.registries.extend(strings),
            ("bans", "deny") => rules.banned.extend(strings.into_iter().take(1)),
            _ => {}
        }
    }
    rules
}

/// Whether an SPDX expression is satisfied; `AND` binds stronger than `OR`, and `/` is an old form of `OR`.
fn is_satisfied(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let text = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let (result, rest) = alternatives(&tokens, is_allowed);
    result && rest.is_empty()
}

fn alternatives<'t>(tokens: &'t [&'t str], is_allowed: &dyn Fn(&str) -> bool) -> (bool, &'t [&'t str]) {
    let (mut result, mut rest) = conjunction(tokens, is_allowed);
    while let Some((&"OR", after)) = rest.split_first() {
        let (next, after) = conjunction(after, is_allowed);
        (result, rest) = (result || next, after);
    }
    (result, rest)
}

fn conjunction<'t>(tokens: &'t [&'t str], is_allowed: &dyn Fn(&str) -> bool) -> (bool, &'t [&'t str]) {
    let (mut result, mut rest) = term(tokens, is_allowed);
    while let Some((&"AND", after)) = rest.split_first() {
        let (next, after) = term(after, is_allowed);
        (result, rest) = (result && next, after);
    }
    (result, rest)
}

fn term<'t>(tokens: &'t [&'t str], is_allowed: &dyn Fn(&str) -> bool) -> (bool, &'t [&'t str]) {
    match tokens {
        ["(", inner @ ..] => match alternatives(inner, is_allowed) {
            (result, [")", rest @ ..]) => (result, rest),
            (_, rest) => (false, rest),
        },
        [licence, "WITH", exception, rest @ ..] => (is_allowed(&format!("{licence} WITH {exception}")), rest),
        // A trailing `+` permits later versions of the licence too.
        [licence, rest @ ..] => (is_allowed(licence.trim_end_matches('+')), rest),
        [] => (false, &[]),
    }
}

/// Violations of the rules in the output of `cargo metadata`; members of the workspace have no source.
fn violations(metadata: &Value, rules: &Rules) -> Vec<String> {
    let text = |package: &Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let mut violations = Vec::new();
    let mut used = BTreeSet::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let (name, source) = (text(package, "name"), text(package, "source"));
        if source.is_empty() {
            continue;
        }
        used.insert(name.clone());
        let licence = text(package, "license");
        let is_allowed = |licence: &str| {
            rules.allowed.contains(licence) || rules.exceptions.contains(&(name.clone(), licence.to_owned()))
        };
        if !is_satisfied(&licence, &is_allowed) {
            violations.push(format!("{name}: licence `{licence}`"));
        }
        let registry = source.strip_prefix("registry+").unwrap_or(&source);
        if !rules.registries.contains(registry) {
            violations.push(format!("{name}: source `{source}`"));
        }
        if rules.banned.contains(&name) {
            violations.push(format!("{name} is banned"));
        }
    }
    let stale = rules.exceptions.iter().filter(|(name, _)| !used.contains(name));
    violations.extend(stale.map(|(name, _)| format!("{name}: the exception is unused; remove it")));
    violations
}

/// Packages of a build for this platform.
pub(crate) fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let version = Command::new(&cargo).arg("-vV").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let output = Command::new(&cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(root())
        .output();
    let (out, err) = output.map(|output| (output.stdout, output.stderr)).unwrap_or_default();
    let metadata = serde_json::from_slice(&out).unwrap_or(Value::Null);
    assert!(
        metadata.get("packages").is_some_and(Value::is_array),
        "cargo metadata: {}",
        String::from_utf8_lossy(&err)
    );
    metadata
}

#[test]
fn packages_obey_licence_source_and_ban_rules_of_deny_toml() {
    let rules = rules(&fs::read_to_string(root().join("deny.toml")).unwrap_or_default());
    assert!(!rules.allowed.is_empty() && !rules.registries.is_empty(), "deny.toml has rules: {rules:?}");
    report(&violations(&metadata(), &rules), "use packages that deny.toml permits, or change its rules");
}

#[test]
fn licence_expressions_follow_spdx_operators() {
    let is_allowed = |licence: &str| ["MIT", "ISC", "Apache-2.0", "MPL-2.0"].contains(&licence);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only/MIT", true),
        ("MIT AND GPL-3.0-only", false),
        ("GPL-3.0-only AND MIT OR ISC", true),
        ("ISC AND (GPL-3.0-only OR MIT)", true),
        ("ISC AND (GPL-3.0-only OR BSD-2-Clause)", false),
        ("(MIT", false),
        ("MPL-2.0+", true),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("", false),
    ] {
        assert_eq!(is_satisfied(expression, &is_allowed), expected, "{expression}");
    }
}

#[test]
fn package_rules_report_licence_source_and_ban() {
    let text = "[licenses]\nallow = [\n  \"MIT\", # usual\n  \"ISC\",\n]\n[[licenses.exceptions]]\ncrate = \"b\"\nallow = [\"MPL-2.0\"]\n\
                [bans]\ndeny = [\n  { crate = \"d\", reason = \"x\" },\n]\n[sources]\nallow-registry = [\"https://r\"]\n";
    let rules = rules(text);
    assert_eq!(rules.allowed, ["MIT", "ISC"].map(str::to_owned).into());
    assert_eq!(rules.banned, ["d".to_owned()].into());
    let package = |name: &str, licence: &str, source: &str| serde_json::json!({"name": name, "license": licence, "source": source});
    let metadata = serde_json::json!({"packages": [
        package("a", "MIT", "registry+https://r"),
        package("b", "MPL-2.0+", "registry+https://r"),
        package("c", "MPL-2.0", "registry+https://r"),
        package("d", "ISC", "git+https://g"),
        {"name": "own", "license": null, "source": null},
    ]});
    assert_eq!(
        violations(&metadata, &rules),
        ["c: licence `MPL-2.0`", "d: source `git+https://g`", "d is banned"]
    );
    assert_eq!(
        violations(&serde_json::json!({"packages": []}), &rules),
        ["b: the exception is unused; remove it"]
    );
}
