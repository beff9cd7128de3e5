//! APIServices of the built-in group versions, with their priorities in the list of groups.
//!
//! # Reference
//!
//! The group `apiregistration` itself has no APIService.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use kinds::Registry;
use serde_json::json;

use super::{StartObject, with_desired_spec, without_nulls};
use crate::condition::Condition;

/// The default priority of a version in its group.
const DEFAULT_VERSION_PRIORITY: i64 = 15;

/// A group without its domain, the priority of the group, and the priorities of versions that differ from
/// [`DEFAULT_VERSION_PRIORITY`].
type GroupPriority = (&'static str, i64, &'static [(&'static str, i64)]);

/// Priorities of groups, and of versions within them. A higher priority comes first.
const PRIORITIES: &[GroupPriority] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[]),
    ("events", 17_750, &[]),
    ("authentication", 17_700, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization", 17_600, &[]),
    ("autoscaling", 17_500, &[("v2", 30)]),
    ("batch", 17_400, &[]),
    ("certificates", 17_300, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking", 17_200, &[("v1beta1", 9)]),
    ("policy", 17_100, &[]),
    ("rbac.authorization", 17_000, &[]),
    ("storage", 16_800, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("admissionregistration", 16_700, &[("v1beta1", 12), ("v1alpha1", 9)]),
    ("apiextensions", 16_700, &[]),
    ("scheduling", 16_600, &[]),
    ("coordination", 16_500, &[("v1beta1", 13), ("v1alpha2", 12)]),
    ("node", 16_300, &[]),
    ("discovery", 16_200, &[]),
    ("flowcontrol.apiserver", 16_100, &[("v1", 21)]),
    ("internal.apiserver", 16_000, &[("v1alpha1", 9)]),
    ("resource", 15_900, &[("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("storagemigration", 15_800, &[("v1alpha1", 9)]),
    ("explain", 15_700, &[("v1alpha1", 9)]),
];

/// Returns an APIService for each group version of the registry.
pub(super) fn all(registry: &Registry, names: &Names) -> Vec<StartObject> {
    let kinds = registry.resources().iter().map(|resource| &resource.kind);
    let served = kinds.flat_map(|kind| kind.versions().map(|version| (kind.group(), version)));
    let served: BTreeSet<(&str, &str)> = served.collect();
    served.into_iter().filter_map(|(stem, version)| start_object(stem, version, names)).collect()
}

fn start_object(stem: &str, version: &str, names: &Names) -> Option<StartObject> {
    let (_, group_priority, version_priorities) = PRIORITIES.iter().find(|(group, ..)| *group == stem)?;
    let version_priority = version_priorities
        .iter()
        .find(|(other, _)| *other == version)
        .map_or(DEFAULT_VERSION_PRIORITY, |(_, priority)| *priority);
    let group = names.group(stem);
    let spec = without_nulls([
        ("group", Some(group.as_str()).filter(|group| !group.is_empty()).into()),
        ("version", version.into()),
        ("groupPriorityMinimum", (*group_priority).into()),
        ("versionPriority", version_priority.into()),
    ]);
    let object = json!({
        "metadata": {
            "name": name(&group, version),
            "labels": {automanaged(names): "onstart"},
        },
        "spec": spec,
    });
    let desired = StartObject::new("apiregistration", "APIService", object);
    Some(desired.restored_by(with_desired_spec).with_condition(available_condition()))
}

/// Returns the name of a group version's APIService: `v1.apps`, and `v1.` for the core group.
pub(super) fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

/// Returns the label key that marks APIServices of apid.
pub(super) fn automanaged(names: &Names) -> String {
    names.label_sub_key("kube-aggregator", "automanaged")
}

/// Returns the condition of a local APIService.
pub(super) fn available_condition() -> Condition {
    let message = "Local APIServices are always available".to_owned();
    Condition { kind: "Available", status_is_true: true, reason: "Local", message }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use kinds::EnabledVersions;

    use super::*;

    #[test]
    fn every_group_version_has_an_api_service() {
        for (preset, batch) in [(Preset::Kubernetes, "v1.batch"), (Preset::Svc, "v1.batch")] {
            let names = Names::new(preset, "example.test").unwrap();
            let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
            let registry = Registry::with_versions(&names, &versions);
            let all = all(&registry, &names);
            let have: BTreeSet<String> = all.iter().map(|desired| desired.object.name().to_owned()).collect();
            for resource in registry.resources() {
                for version in resource.kind.versions() {
                    let name = format!("{version}.{}", resource.group_resource.group);
                    let own = resource.kind.group() == "apiregistration";
                    assert_eq!(have.contains(&name), !own, "{name}");
                }
            }
            assert!(have.contains("v1.") && have.contains(batch));
        }
    }
}
