//! The deprecation rules, enforced on the table of API versions, and the table compared with the served kinds.

use std::collections::BTreeSet;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Object;
use apimachinery::time;
use kinds::lifecycle::{self, BETA_RELEASES, CURRENT, Release, Replacement, Stage, Version};
use kinds::{Registry, Storage};
use migration::Converter;
use serde_json::json;

/// The first release whose new beta versions have to be deprecated within [`BETA_RELEASES`] releases.
const LIMITED_BETA_SINCE: Release = Release(20);

/// Removed kinds that do not convert, with the reason.
const WITHOUT_CONVERSION: [(&str, &str, &str, &str); 1] =
    [("policy", "v1beta1", "Eviction", "a client sends it to a subresource; no manifest contains it")];

fn names() -> Names {
    Names::new(Preset::Kubernetes, "").unwrap()
}

/// Whether some version of the replacing kind is introduced before the release that removes the version of
/// the row, and is removed later.
fn has_successor(table: &[Version], row: &Version) -> bool {
    let (Some(removed), Some(new)) = (row.removed, row.replacement) else { return true };
    table.iter().any(|other| {
        (other.group, other.kind) == (new.group, new.kind)
            && other.stage >= row.stage
            && other.introduced < removed
            && other.removed.is_none_or(|end| end > removed)
    })
}

/// Violations of the deprecation rules in a table.
fn violations(table: &[Version]) -> Vec<String> {
    let mut found = Vec::new();
    for row in table {
        let mut violation =
            |text: String| found.push(format!("{}/{} {}: {text}", row.group, row.version, row.kind));
        if row.stage != Stage::of_version(row.version) {
            violation("the stage differs from the name of the version".to_owned());
        }
        if row.deprecated.is_some_and(|deprecated| deprecated < row.introduced) {
            violation("deprecated before its introduction".to_owned());
        }
        match (row.stage, row.deprecated, row.removed) {
            (Stage::Stable, _, Some(_)) => {
                violation("a stable version stays within its major version".to_owned())
            }
            (Stage::Beta, None, Some(_)) => violation("removed without a deprecation".to_owned()),
            (Stage::Beta, None, None) => {
                violation("a beta version has a release of its deprecation".to_owned())
            }
            (Stage::Beta, Some(deprecated), removed) => {
                if row.introduced >= LIMITED_BETA_SINCE && deprecated > row.introduced.plus(BETA_RELEASES) {
                    violation(format!(
                        "deprecated later than {BETA_RELEASES} releases after its introduction"
                    ));
                }
                if removed.is_some_and(|removed| removed < deprecated.plus(BETA_RELEASES)) {
                    violation(format!("removed earlier than {BETA_RELEASES} releases after its deprecation"));
                }
            }
            (Stage::Alpha | Stage::Stable, _, _) => {}
        }
        let Some(new) = row.replacement else {
            if row.is_removed(CURRENT) && row.changes.is_empty() {
                violation("removed without a replacement and without advice".to_owned());
            }
            continue;
        };
        let replacement = table
            .iter()
            .find(|other| (other.group, other.version, other.kind) == (new.group, new.version, new.kind));
        match replacement {
            None => violation("the replacement has no row".to_owned()),
            Some(new) if new.stage < row.stage => violation("the replacement is less stable".to_owned()),
            Some(new) if new.is_removed(CURRENT) => violation("the replacement is removed too".to_owned()),
            Some(_) if row.stage > Stage::Alpha && !has_successor(table, row) => {
                violation("no release has both the version and its successor".to_owned());
            }
            Some(_) => {}
        }
    }
    found
}

#[test]
fn api_versions_obey_deprecation_rules() {
    assert_eq!(violations(lifecycle::versions()), [""; 0]);
}

/// A version of a synthetic kind. `releases` are the releases that introduce, deprecate and remove the
/// version; 0 means no release.
fn row(version: &'static str, releases: (u32, u32, u32), replacement: Option<&'static str>) -> Version {
    let release = |minor: u32| (minor != 0).then_some(Release(minor));
    Version {
        group: "g",
        version,
        kind: "K",
        resource: "ks",
        stage: Stage::of_version(version),
        introduced: Release(releases.0),
        deprecated: release(releases.1),
        removed: release(releases.2),
        replacement: replacement.map(|version| Replacement { group: "g", version, kind: "K" }),
        changes: "advice",
    }
}

fn check(table: &[Version], expected: &[&str]) {
    let found = violations(table);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}

#[test]
fn version_removed_or_deprecated_at_wrong_time_violates_rules() {
    check(&[row("v1", (20, 30, 33), None)], &["a stable version stays"]);
    check(&[row("v1", (20, 30, 0), None)], &[]);
    check(&[row("v1beta1", (20, 24, 27), None)], &["deprecated later"]);
    check(&[row("v1beta1", (30, 33, 0), None)], &[]);
    check(&[row("v1beta1", (30, 33, 35), None)], &["removed earlier"]);
    check(&[row("v1beta1", (30, 0, 36), None)], &["removed without a deprecation"]);
    check(&[row("v1beta1", (30, 0, 0), None)], &["has a release of its deprecation"]);
    check(&[row("v1alpha1", (33, 0, 34), None)], &[]);
    check(&[row("v1", (30, 29, 0), None)], &["before its introduction"]);
    let mut silent = row("v1beta1", (20, 23, 26), None);
    silent.changes = "";
    check(&[silent], &["without advice"]);
    let mut renamed = row("v1", (30, 0, 0), None);
    renamed.stage = Stage::Beta;
    check(&[renamed], &["the stage differs", "has a release of its deprecation"]);
}

#[test]
fn less_stable_or_missing_replacement_violates_rules() {
    let (alpha, beta, stable) =
        (row("v2alpha1", (30, 0, 0), None), row("v2beta1", (30, 33, 0), None), row("v2", (30, 0, 0), None));
    for (old, new, text) in [
        (row("v1", (20, 30, 0), Some("v2beta1")), &beta, "less stable"),
        (row("v1", (20, 30, 0), Some("v2alpha1")), &alpha, "less stable"),
        (row("v1beta1", (28, 31, 0), Some("v2alpha1")), &alpha, "less stable"),
        (row("v1beta1", (28, 31, 0), Some("v3")), &stable, "has no row"),
        (row("v1beta1", (24, 27, 30), Some("v2")), &stable, "no release has both"),
    ] {
        check(&[old, new.clone()], &[text]);
    }
    for (old, new) in [
        (row("v1", (20, 30, 0), Some("v2")), &stable),
        (row("v1beta1", (28, 31, 34), Some("v2")), &stable),
        (row("v1beta1", (28, 31, 34), Some("v2beta1")), &beta),
        (row("v1alpha1", (28, 31, 32), Some("v2")), &stable),
        (row("v1alpha1", (28, 31, 32), Some("v2beta1")), &beta),
        (row("v1alpha1", (28, 31, 32), Some("v2alpha1")), &alpha),
    ] {
        check(&[old, new.clone()], &[]);
    }
}

#[test]
fn example_timeline_obeys_rules() {
    // A group appears in release 1.20; betas and stable versions follow.
    check(
        &[
            row("v1alpha1", (20, 21, 22), Some("v1")),
            row("v1beta1", (21, 24, 27), Some("v1")),
            row("v1", (23, 32, 0), Some("v2")),
            row("v2beta1", (29, 32, 35), Some("v2")),
            row("v2", (32, 0, 0), None),
        ],
        &[],
    );
}

#[test]
fn table_has_one_sorted_row_for_each_version_and_names_agree() {
    let names = names();
    let text = include_str!("../../kinds/data/lifecycle.csv");
    assert_eq!(text.lines().count(), lifecycle::versions().len() + 1, "a row is malformed");
    let keys: Vec<_> = lifecycle::versions().iter().map(|row| (row.group, row.version, row.kind)).collect();
    let sorted: Vec<_> = keys.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(keys, sorted);
    for resource in Registry::new(&names).resources() {
        let stem = names.stem(&resource.group_resource.group).unwrap();
        for version in resource.versions() {
            let row = lifecycle::of_kind(stem, version, resource.name());
            let row = row.unwrap_or_else(|| panic!("{stem}/{version} {} has no row", resource.name()));
            assert_eq!(row.resource, resource.plural(), "{row:?}");
            assert!(!row.is_removed(CURRENT), "{row:?} is served");
            assert!(row.introduced <= CURRENT, "{row:?} is served");
        }
    }
}

#[test]
fn current_release_is_that_of_the_server() {
    assert_eq!(CURRENT, Release(serving::compatibility::CURRENT));
}

#[test]
fn warning_names_releases_and_replacement() {
    let names = names();
    let row = row("v1beta1", (28, 31, 34), Some("v2"));
    let text = "g.k8s.io/v1beta1 K is deprecated in v1.31+, unavailable in v1.34+; use g.k8s.io/v2 K";
    assert_eq!(row.warning(&names).as_deref(), Some(text));
}

#[test]
fn preferred_and_storage_version_is_the_most_stable_of_its_group() {
    let names = names();
    let registry = Registry::new(&names);
    for resource in registry.resources().iter().filter(|r| r.storage == Storage::Stored) {
        let stages = registry
            .versions_of(resource)
            .map(|version| version.versions().map(Stage::of_version).max().unwrap());
        let best = stages.max().unwrap();
        assert_eq!(Stage::of_version(resource.version()), best, "{}", resource.key_prefix);
    }
}

#[test]
fn beta_versions_introduced_before_1_22_are_served_or_removed() {
    let names = names();
    let registry = Registry::new(&names);
    let old = |row: &&Version| row.stage == Stage::Beta && row.introduced < Release(22);
    for row in lifecycle::versions().iter().filter(old) {
        let group = names.group(row.group);
        let is_served = registry.find_kind_version(&group, row.version, row.kind).is_some();
        assert_eq!(is_served, !row.is_removed(CURRENT), "{row:?}");
    }
}

#[test]
fn removed_versions_convert_to_their_replacement() {
    let names = names();
    let clock = ManualClock::at(time::parse("2026-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(1);
    let converter = Converter::new(&names, &clock, &rng);
    let mut count = 0;
    for row in lifecycle::versions().iter().filter(|row| row.is_removed(CURRENT)) {
        let group_version = row.group_version(&names).to_string();
        let object = json!({"apiVersion": group_version, "kind": row.kind, "metadata": {"name": "x"}});
        let converted = converter.convert(Object::from_value(object).unwrap(), None);
        let Some(replacement) = row.replacement else {
            assert!(converted.unwrap_err().to_string().contains("without a replacement"), "{row:?}");
            continue;
        };
        if WITHOUT_CONVERSION.iter().any(|(g, v, k, _)| (*g, *v, *k) == (row.group, row.version, row.kind)) {
            continue;
        }
        let converted = converted.unwrap().object;
        assert_eq!(converted.api_version(), replacement.group_version(&names).to_string(), "{row:?}");
        assert_eq!(converted.kind(), replacement.kind);
        count += 1;
    }
    assert!(count > 50, "{count} versions convert");
}
