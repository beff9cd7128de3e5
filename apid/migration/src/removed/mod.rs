//! API versions that are not served by default, with their conversion to and from a served version.
//!
//! # Contract
//!
//! The table of [`lifecycle`] lists the versions and their replacements. [`FieldChanges`] convert the objects of
//! a version whose fields or defaults differ from those of the served version. The upgrade receives a manifest
//! that no schema has checked. The upgrade also sets the defaults of the old version that differ from those of the
//! served version. The downgrade receives an object in the stored form of the served version. Each file contains the
//! kinds of one group or one subject.

mod access;
mod admissionregistration;
mod apiextensions;
mod apps;
mod autoscaling;
mod certificates;
mod discovery;
mod fields;
mod flowcontrol;
mod networking;
mod node;
mod policy;

use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::lifecycle::{self, Stage};

/// The versions with changes, one list for each file.
const ALL: [&[FieldChanges]; 11] = [
    access::VERSIONS,
    admissionregistration::VERSIONS,
    apiextensions::VERSIONS,
    apps::VERSIONS,
    autoscaling::VERSIONS,
    certificates::VERSIONS,
    discovery::VERSIONS,
    flowcontrol::VERSIONS,
    networking::VERSIONS,
    node::VERSIONS,
    policy::VERSIONS,
];

/// Changes of the fields and defaults of a kind between a version and the served version.
pub(crate) struct FieldChanges {
    /// Group stem.
    group: &'static str,
    /// Version.
    version: &'static str,
    /// Kind.
    kind: &'static str,
    /// Group stem and version of the served kind that the conversion uses; None means the replacement.
    intermediate: Option<(&'static str, &'static str)>,
    /// Converts a manifest to the served version.
    pub(crate) upgrade: fn(&mut Object, &Names, &mut Notes),
    /// Converts an object of the served version to this version.
    pub(crate) downgrade: fn(&mut Object, &Names),
    /// Removes defaults of the served version that this version does not have. The arguments are the upgraded
    /// object before the defaults, and the object with the defaults, which the function changes.
    pub(crate) restore: fn(&Object, &mut Object),
}

impl FieldChanges {
    /// The changes of a group stem, version and kind, with the defaults of the served version.
    const fn new(
        (group, version, kind): (&'static str, &'static str, &'static str),
        upgrade: fn(&mut Object, &Names, &mut Notes),
        downgrade: fn(&mut Object, &Names),
    ) -> Self {
        FieldChanges { group, version, kind, intermediate: None, upgrade, downgrade, restore: |_, _| {} }
    }
}

/// A version of a kind that is removed or off by default.
pub(crate) struct RemovedVersion {
    /// Group stem and version of the served kind that the conversion uses.
    pub(crate) served: (&'static str, &'static str),
    /// Group stem and version of the replacement.
    pub(crate) replacement: (&'static str, &'static str),
    /// The changes between the version and the served version.
    pub(crate) changes: &'static FieldChanges,
}

/// The removed version with a group stem, a version and a kind. No version that is served
/// by default has a stable replacement.
pub(crate) fn find(group: &str, version: &str, kind: &str) -> Option<RemovedVersion> {
    const NONE: &FieldChanges = &FieldChanges::new(("", "", ""), |_, _, _| {}, |_, _| {});
    let new = lifecycle::of_kind(group, version, kind)?.replacement?;
    if new.kind != kind || Stage::of_version(new.version) != Stage::Stable {
        return None;
    }
    let replacement = (new.group, new.version);
    let is_of_version =
        |changes: &&FieldChanges| (changes.group, changes.version, changes.kind) == (group, version, kind);
    let changes = ALL.into_iter().flatten().find(is_of_version).unwrap_or(NONE);
    Some(RemovedVersion { served: changes.intermediate.unwrap_or(replacement), replacement, changes })
}

/// Remarks on fields whose meaning, default or name differs between the versions.
#[derive(Debug, Default)]
pub(crate) struct Notes(pub(crate) Vec<String>);

impl Notes {
    /// Adds a remark on a field.
    fn add(&mut self, field: &str, remark: &str) {
        self.0.push(format!("{field}: {remark}"));
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use kinds::Registry;

    use super::*;

    #[test]
    fn served_version_is_no_removed_version() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        for resource in Registry::new(&names).resources() {
            let stem = names.stem(&resource.group_resource.group).unwrap();
            for version in resource.versions() {
                assert!(find(stem, version, resource.name()).is_none(), "{stem}/{version}");
            }
        }
    }

    #[test]
    fn version_with_changes_is_a_removed_version() {
        for changes in ALL.into_iter().flatten() {
            let found = find(changes.group, changes.version, changes.kind);
            assert!(found.is_some(), "{}/{} {}", changes.group, changes.version, changes.kind);
        }
    }
}
