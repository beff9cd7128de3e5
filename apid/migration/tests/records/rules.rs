//! Deprecation rules between the records of two releases.
//!
//! # Reference
//!
//! Requirements D-DEP, D-FGL and D-METRIC. Times are releases of the API (1.x).

use std::collections::{BTreeMap, BTreeSet};

use kinds::lifecycle::{CURRENT, Stage};

/// The record of a release: the rows of four tables, with these columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// Group stem, version, plural, kind, `stored` or `served`.
    pub(super) discovery: Vec<Vec<String>>,
    /// Type, field, shape, `required` or `optional`, default.
    pub(super) fields: Vec<Vec<String>>,
    /// Type and value.
    pub(super) values: Vec<Vec<String>>,
    /// Class, name, stage, since, deprecated, replacement.
    pub(super) elements: Vec<Vec<String>>,
}

/// Minimum lifetime, in releases, of an element that no release may remove. A key without `alpha` in its name
/// disappears only with its API version, which has its own key.
const NEVER: u32 = 1_000;

/// Class and stage of elements, with two minimum numbers of releases before their removal: after the
/// introduction, and after the deprecation.
const LIFETIMES: [(&str, &str, u32, u32); 19] = [
    ("key", "GA", 0, NEVER),
    ("key", "BETA", 0, NEVER),
    ("key", "ALPHA", 0, 0),
    ("user-flag", "GA", 0, 2),
    ("user-flag", "BETA", 0, 1),
    ("user-flag", "ALPHA", 0, 0),
    ("admin-flag", "GA", 0, 1),
    ("admin-flag", "BETA", 0, 1),
    ("admin-flag", "ALPHA", 0, 0),
    ("behaviour", "GA", 0, 3),
    ("gate", "GA", 0, 2),
    ("gate", "BETA", 0, 1),
    ("gate", "DEPRECATED", 0, 1),
    ("gate", "ALPHA", 0, 0),
    ("metric", "STABLE", 4, 3),
    ("metric", "BETA", 2, 1),
    ("metric", "ALPHA", 0, 0),
    ("feature", "GA", 0, 0),
    ("feature", "BETA", 0, 0),
];

/// Deprecated gates whose deprecation is older than the table of gates.
const OLD_GATES: [&str; 1] = ["KMSv1"];

/// Number of releases after its deprecation in which a metric is hidden; the next release deletes the metric.
const HIDDEN_AFTER: u32 = 3;

/// An element of one of the classes in [`LIFETIMES`], such as a flag, a feature gate or a metric.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    class: &'a str,
    name: &'a str,
    stage: &'a str,
    since: Option<u32>,
    deprecated: Option<u32>,
    replacement: &'a str,
}

impl<'a> Element<'a> {
    fn from_row(row: &'a [String]) -> Self {
        let cell = |index: usize| row.get(index).map_or("", String::as_str);
        let release = |index: usize| cell(index).strip_prefix("1.").and_then(|minor| minor.parse().ok());
        Element {
            class: cell(0),
            name: cell(1),
            stage: cell(2),
            since: release(3),
            deprecated: release(4),
            replacement: cell(5),
        }
    }

    /// Minimum lifetimes: from the introduction, and after the deprecation.
    fn lifetimes(&self) -> Option<(u32, u32)> {
        let row = LIFETIMES.iter().find(|(class, stage, _, _)| (*class, *stage) == (self.class, self.stage));
        row.map(|(_, _, operational, after)| (*operational, *after))
    }

    /// Stability, from the least to the most stable.
    fn rank(&self) -> u32 {
        match self.stage {
            "ALPHA" => 0,
            "BETA" => 1,
            _ => 2,
        }
    }
}

fn elements(record: &Record) -> BTreeMap<(&str, &str), Element<'_>> {
    record.elements.iter().map(|row| Element::from_row(row)).map(|e| ((e.class, e.name), e)).collect()
}

/// Violations within one release.
pub(super) fn violations_of_release(record: &Record) -> Vec<String> {
    let all = elements(record);
    let mut found = Vec::new();
    for element in all.values() {
        let mut violation = |text: &str| found.push(format!("{} {}: {text}", element.class, element.name));
        if element.lifetimes().is_none() {
            violation("the class has no such stage");
        }
        let is_ending = matches!(element.stage, "GA" | "DEPRECATED");
        if element.class == "gate"
            && is_ending
            && element.deprecated.is_none()
            && !OLD_GATES.contains(&element.name)
        {
            violation("a stable or deprecated gate has the release of its deprecation");
        }
        if element.class == "metric" && element.deprecated.is_some_and(|d| d + HIDDEN_AFTER < CURRENT.0) {
            violation("a hidden metric is deleted one release later");
        }
        if !element.replacement.is_empty() {
            match all.get(&(element.class, element.replacement)) {
                None => violation("the replacement does not exist"),
                Some(new) if new.rank() < element.rank() => violation("the replacement is less stable"),
                Some(_) => {}
            }
        }
    }
    found
}

/// Violations of the step from one release to the next.
pub(super) fn violations_between(previous: &Record, current: &Record) -> Vec<String> {
    let mut found = removed_elements(previous, current);
    found.extend(removed_resources(previous, current));
    found.extend(changed_fields(previous, current));
    found.extend(removed_values(previous, current));
    found
}

fn removed_elements(previous: &Record, current: &Record) -> Vec<String> {
    let (old, new) = (elements(previous), elements(current));
    let mut found = Vec::new();
    for (key, element) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
        let Some((operational, after)) = element.lifetimes() else { continue };
        let is_old_enough = element.since.is_none_or(|since| since + operational <= CURRENT.0);
        let was_announced =
            after == 0 || element.deprecated.is_some_and(|deprecated| deprecated + after <= CURRENT.0);
        if !is_old_enough || !was_announced {
            found.push(format!("{} {}: removed too early", key.0, key.1));
        }
    }
    found
}

/// Violations of these rules: A resource disappears only together with its group version, except from alpha
/// versions. A stable version never disappears. A new storage version was served by the previous release.
fn removed_resources(previous: &Record, current: &Record) -> Vec<String> {
    let cell = |row: &Vec<String>, index: usize| row.get(index).cloned().unwrap_or_default();
    let key = |row: &Vec<String>| (cell(row, 0), cell(row, 1), cell(row, 2));
    let versions: BTreeSet<_> = current.discovery.iter().map(|row| (cell(row, 0), cell(row, 1))).collect();
    let now: BTreeSet<_> = current.discovery.iter().map(key).collect();
    let before: BTreeSet<_> = previous.discovery.iter().map(key).collect();
    let kinds: BTreeSet<_> = previous.discovery.iter().map(|row| (cell(row, 0), cell(row, 2))).collect();
    let mut found = Vec::new();
    for (group, version, resource) in before.difference(&now) {
        let is_partial = versions.contains(&(group.clone(), version.clone()));
        if is_partial && Stage::of_version(version) > Stage::Alpha {
            found.push(format!("{group}/{version} {resource}: removed without its group version"));
        } else if Stage::of_version(version) == Stage::Stable {
            found.push(format!("{group}/{version} {resource}: a stable version is removed"));
        }
    }
    for row in current.discovery.iter().filter(|row| cell(row, 4) == "stored") {
        let is_old_kind = kinds.contains(&(cell(row, 0), cell(row, 2)));
        if is_old_kind && !before.contains(&key(row)) {
            found.push(format!(
                "{} {}: the previous release did not serve the new storage version",
                row[1], row[2]
            ));
        }
    }
    found
}

/// The group version of a type: `apps/v1` of `apps/v1.Deployment`.
fn package(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(package, _)| package)
}

/// Fields whose type, requirement or default changes although their group version still exists.
fn changed_fields(previous: &Record, current: &Record) -> Vec<String> {
    let table = |record: &Record| -> BTreeMap<(String, String), Vec<String>> {
        record.fields.iter().map(|row| ((row[0].clone(), row[1].clone()), row[2..].to_vec())).collect()
    };
    let (old, new) = (table(previous), table(current));
    let packages: BTreeSet<&str> = new.keys().map(|(name, _)| package(name)).collect();
    let mut found = Vec::new();
    for ((name, field), facts) in old.iter().filter(|((name, _), _)| packages.contains(package(name))) {
        match new.get(&(name.clone(), field.clone())) {
            None => found.push(format!("{name} {field}: removed within its version")),
            Some(new_facts) if new_facts != facts => {
                found.push(format!("{name} {field}: {facts:?} becomes {new_facts:?}"))
            }
            Some(_) => {}
        }
    }
    found
}

/// Enumerated values that disappear although their type still exists.
fn removed_values(previous: &Record, current: &Record) -> Vec<String> {
    let types: BTreeSet<&String> = current.values.iter().filter_map(|row| row.first()).collect();
    let now: BTreeSet<&Vec<String>> = current.values.iter().collect();
    let removed = previous.values.iter().filter(|row| !now.contains(row) && types.contains(&row[0]));
    removed.map(|row| format!("{}: the value {} is removed", row[0], row[1])).collect()
}

fn rows(lines: &[&str]) -> Vec<Vec<String>> {
    lines.iter().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

/// A record with one element.
fn with_element(line: &str) -> Record {
    Record { elements: rows(&[line]), ..Record::default() }
}

/// Checks whether the removal of an element violates the rules.
fn check_removal(line: &str, is_violation: bool) {
    let found = violations_between(&with_element(line), &Record::default());
    assert_eq!(!found.is_empty(), is_violation, "{line}: {found:?}");
}

#[test]
fn flag_removed_before_minimum_time_violates_rules() {
    check_removal("user-flag,f,GA,,1.31,", false);
    check_removal("user-flag,f,GA,,1.32,", true);
    check_removal("user-flag,f,BETA,,1.32,", false);
    check_removal("user-flag,f,BETA,,1.33,", true);
    check_removal("user-flag,f,ALPHA,,,", false);
    check_removal("admin-flag,f,GA,,1.32,", false);
    check_removal("admin-flag,f,GA,,1.33,", true);
    check_removal("admin-flag,f,GA,,,", true);
    check_removal("admin-flag,f,BETA,,1.33,", true);
    check_removal("admin-flag,f,ALPHA,,,", false);
    check_removal("behaviour,b,GA,,1.30,", false);
    check_removal("behaviour,b,GA,,1.31,", true);
}

#[test]
fn annotation_key_removed_violates_rules_unless_alpha() {
    check_removal("key,label batch/job-name,GA,,,", true);
    check_removal("key,label volume.beta/storage-class,BETA,,,", true);
    check_removal("key,label scheduler.alpha/node-selector,ALPHA,,,", false);
}

#[test]
fn feature_gate_removed_before_minimum_time_violates_rules() {
    check_removal("gate,G,GA,1.31,1.31,", false);
    check_removal("gate,G,GA,1.32,1.32,", true);
    check_removal("gate,G,DEPRECATED,1.32,1.32,", false);
    check_removal("gate,G,DEPRECATED,1.33,1.33,", true);
    check_removal("gate,G,BETA,1.30,,", true);
    check_removal("gate,G,ALPHA,1.33,,", false);
    let silent = violations_of_release(&with_element("gate,G,GA,1.33,,"));
    assert!(silent.iter().any(|text| text.contains("release of its deprecation")), "{silent:?}");
}

#[test]
fn metric_removed_before_minimum_time_or_left_hidden_violates_rules() {
    check_removal("metric,m,STABLE,1.29,1.30,", false);
    check_removal("metric,m,STABLE,1.29,1.31,", true);
    check_removal("metric,m,STABLE,1.30,1.30,", true);
    check_removal("metric,m,BETA,1.31,1.32,", false);
    check_removal("metric,m,BETA,1.32,1.32,", true);
    check_removal("metric,m,BETA,1.30,1.33,", true);
    check_removal("metric,m,ALPHA,1.33,,", false);
    assert_eq!(violations_of_release(&with_element("metric,m,STABLE,1.20,1.30,")), [""; 0]);
    let hidden = violations_of_release(&with_element("metric,m,STABLE,1.20,1.29,"));
    assert!(hidden[0].contains("deleted one release later"), "{hidden:?}");
}

#[test]
fn less_stable_replacement_of_element_violates_rules() {
    for (class, stable) in [("admin-flag", "GA"), ("feature", "GA")] {
        let record = |new: &str| Record {
            elements: rows(&[&format!("{class},a,{stable},,1.33,b"), &format!("{class},b,{new},,,")]),
            ..Record::default()
        };
        assert_eq!(violations_of_release(&record("GA")), [""; 0]);
        assert!(violations_of_release(&record("BETA"))[0].contains("less stable"));
    }
    let missing = violations_of_release(&with_element("admin-flag,a,GA,,1.33,b"));
    assert!(missing[0].contains("does not exist"), "{missing:?}");
}

#[test]
fn removed_or_changed_part_of_group_version_violates_rules() {
    let previous = Record {
        discovery: rows(&[
            "g,v1,as,A,stored",
            "g,v1beta1,as,A,served",
            "g,v1beta1,bs,B,stored",
            "h,v1beta1,cs,C,stored",
        ]),
        fields: rows(&[
            "g/v1.A,x,string(string),optional,1",
            "g/v1.A,y,int32,required,",
            "h/v1beta1.C,z,bool,optional,",
        ]),
        values: rows(&["g/v1.E,One", "g/v1.E,Two", "h/v1beta1.E,Old"]),
        elements: Vec::new(),
    };
    assert_eq!(violations_between(&previous, &previous), [""; 0]);
    let mut removed = previous.clone();
    removed.discovery.retain(|row| row[0] == "g" && row[1] != "v1beta1");
    removed.fields.retain(|row| row[0].starts_with("g/"));
    removed.values.retain(|row| row[0].starts_with("g/"));
    assert_eq!(violations_between(&previous, &removed), [""; 0], "whole beta versions are removed");
    let check = |change: fn(&mut Record), text: &str| {
        let mut current = previous.clone();
        change(&mut current);
        let found = violations_between(&previous, &current);
        assert!(found.len() == 1 && found[0].contains(text), "{text}: {found:?}");
    };
    check(|r| r.discovery.retain(|row| row[2] != "bs"), "without its group version");
    check(|r| r.discovery.retain(|row| row[1] != "v1"), "a stable version is removed");
    check(|r| drop(r.fields.remove(0)), "removed within its version");
    check(|r| r.fields[0][2] = "bool".to_owned(), "becomes");
    check(|r| r.fields[0][3] = "required".to_owned(), "becomes");
    check(|r| r.fields[0][4] = "2".to_owned(), "becomes");
    check(|r| drop(r.values.remove(1)), "the value Two is removed");
    check(
        |r| {
            r.discovery[0][4] = "served".to_owned();
            r.discovery.push(["g", "v2", "as", "A", "stored"].map(str::to_owned).to_vec());
        },
        "did not serve the new storage version",
    );
}
