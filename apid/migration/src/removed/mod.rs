//! API versions that are not served by default, with their conversion to and from a served version.
//!
//! # Contract
//!
//! A [`RemovedVersion`] converts objects of one kind. Its upgrade receives a manifest that no schema has
//! checked, and also sets the defaults of the old version that differ from those of the served version. Its
//! downgrade receives an object in the stored form of the served version. Each file contains the kinds of one
//! group or one subject.

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
mod others;
mod policy;

use apimachinery::names::Names;
use apimachinery::object::Object;

/// All versions that are removed or off by default and that can be converted, one list for each file.
const ALL: [&[RemovedVersion]; 12] = [
    access::VERSIONS,
    admissionregistration::VERSIONS,
    apiextensions::VERSIONS,
    apps::VERSIONS,
    autoscaling::VERSIONS,
    certificates::VERSIONS,
    discovery::VERSIONS,
    flowcontrol::VERSIONS,
    networking::VERSIONS,
    others::VERSIONS,
    others::OFF_BY_DEFAULT,
    policy::VERSIONS,
];

/// A kind in a version that is removed or off by default.
pub(crate) struct RemovedVersion {
    /// Group stem.
    pub(crate) group: &'static str,
    /// Version.
    pub(crate) version: &'static str,
    /// Kind.
    pub(crate) kind: &'static str,
    /// Group stem and version of the served kind that the conversion uses.
    pub(crate) served: (&'static str, &'static str),
    /// Group stem and version of the replacement, if it is not the served kind of the conversion.
    pub(crate) latest: Option<(&'static str, &'static str)>,
    /// Converts a manifest to the served version.
    pub(crate) upgrade: fn(&mut Object, &Names, &mut Notes),
    /// Converts an object of the served version to this version.
    pub(crate) downgrade: fn(&mut Object, &Names),
    /// Removes defaults of the served version that this version does not have. The arguments are the upgraded
    /// object before the defaults, and the object with the defaults, which the function changes.
    pub(crate) restore: fn(&Object, &mut Object),
}

impl RemovedVersion {
    /// A version with the fields and defaults of the served version.
    const fn with_same_fields(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        served: (&'static str, &'static str),
    ) -> Self {
        RemovedVersion {
            group,
            version,
            kind,
            served,
            latest: None,
            upgrade: |_, _, _| {},
            downgrade: unchanged,
            restore: |_, _| {},
        }
    }

    /// Group stem and version of the replacement.
    pub(crate) fn replacement(&self) -> (&'static str, &'static str) {
        self.latest.unwrap_or(self.served)
    }
}

/// The downgrade to a version with the fields of the served version.
fn unchanged(_object: &mut Object, _names: &Names) {}

/// Iterates over [`ALL`].
pub(crate) fn all() -> impl Iterator<Item = &'static RemovedVersion> {
    ALL.iter().copied().flatten()
}

/// The entry of [`ALL`] with a group stem, a version and a kind.
pub(crate) fn find(group: &str, version: &str, kind: &str) -> Option<&'static RemovedVersion> {
    all().find(|removed| removed.group == group && removed.version == version && removed.kind == kind)
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
