//! APIServices of the built-in group versions, with their priorities in the list of groups.
//!
//! # Reference
//!
//! The group `apiregistration` itself has no APIService.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use kinds::{ApiPriority, Registry};
use serde_json::json;

use super::{StartObject, with_desired_spec, without_nulls};
use crate::condition::Condition;

/// Returns an APIService for each group version of the registry.
pub(super) fn all(registry: &Registry, names: &Names) -> Vec<StartObject> {
    let kinds = registry.resources().iter().filter_map(|kind| Some((kind.stem()?, kind)));
    let served = kinds.flat_map(|(stem, kind)| kind.versions().map(move |version| (stem, version)));
    let served: BTreeSet<(&str, &str)> = served.collect();
    served.into_iter().filter_map(|(stem, version)| start_object(stem, version, names)).collect()
}

fn start_object(stem: &str, version: &str, names: &Names) -> Option<StartObject> {
    let priority = ApiPriority::of_built_in(stem, version)?;
    let group = names.group(stem);
    let spec = without_nulls([
        ("group", Some(group.as_str()).filter(|group| !group.is_empty()).into()),
        ("version", version.into()),
        ("groupPriorityMinimum", priority.group.into()),
        ("versionPriority", priority.version.into()),
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
                for version in resource.versions() {
                    let name = format!("{version}.{}", resource.group_resource.group);
                    let own = resource.stem() == Some("apiregistration");
                    assert_eq!(have.contains(&name), !own, "{name}");
                }
            }
            assert!(have.contains("v1.") && have.contains(batch));
        }
    }
}
