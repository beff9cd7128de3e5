//! Kinds with equal fields in the old and the new version, and RuntimeClass of `node/v1alpha1`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};

use super::fields::Fields;
use super::{Notes, RemovedVersion};

const ADMISSION: (&str, &str) = ("admissionregistration", "v1");
const NODE: (&str, &str) = ("node", "v1");

pub(super) const VERSIONS: &[RemovedVersion] = &[
    RemovedVersion::with_same_fields("apiregistration", "v1beta1", "APIService", ("apiregistration", "v1")),
    RemovedVersion::with_same_fields("batch", "v1beta1", "CronJob", ("batch", "v1")),
    RemovedVersion::with_same_fields("coordination", "v1beta1", "Lease", ("coordination", "v1")),
    RemovedVersion::with_same_fields("events", "v1beta1", "Event", ("events", "v1")),
    RemovedVersion::with_same_fields("node", "v1beta1", "RuntimeClass", NODE),
    RemovedVersion {
        upgrade: upgrade_runtime_class,
        downgrade: downgrade_runtime_class,
        ..RemovedVersion::with_same_fields("node", "v1alpha1", "RuntimeClass", NODE)
    },
    RemovedVersion::with_same_fields("scheduling", "v1beta1", "PriorityClass", ("scheduling", "v1")),
    RemovedVersion::with_same_fields("scheduling", "v1alpha1", "PriorityClass", ("scheduling", "v1")),
    RemovedVersion::with_same_fields("storage", "v1alpha1", "CSIStorageCapacity", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1alpha1", "VolumeAttachment", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1beta1", "CSIDriver", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1beta1", "CSINode", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1beta1", "CSIStorageCapacity", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1beta1", "StorageClass", ("storage", "v1")),
    RemovedVersion::with_same_fields("storage", "v1beta1", "VolumeAttachment", ("storage", "v1")),
];

/// Versions that the current release still has according to the lifecycle table, but does not serve by
/// default.
pub(super) const OFF_BY_DEFAULT: &[RemovedVersion] = &[
    RemovedVersion::with_same_fields(
        "admissionregistration",
        "v1alpha1",
        "ValidatingAdmissionPolicy",
        ADMISSION,
    ),
    RemovedVersion::with_same_fields(
        "admissionregistration",
        "v1alpha1",
        "ValidatingAdmissionPolicyBinding",
        ADMISSION,
    ),
    RemovedVersion::with_same_fields(
        "admissionregistration",
        "v1beta1",
        "ValidatingAdmissionPolicy",
        ADMISSION,
    ),
    RemovedVersion::with_same_fields(
        "admissionregistration",
        "v1beta1",
        "ValidatingAdmissionPolicyBinding",
        ADMISSION,
    ),
    RemovedVersion::with_same_fields(
        "authentication",
        "v1alpha1",
        "SelfSubjectReview",
        ("authentication", "v1"),
    ),
    RemovedVersion::with_same_fields(
        "authentication",
        "v1beta1",
        "SelfSubjectReview",
        ("authentication", "v1"),
    ),
    RemovedVersion::with_same_fields("networking", "v1beta1", "IPAddress", ("networking", "v1")),
    RemovedVersion::with_same_fields("networking", "v1beta1", "ServiceCIDR", ("networking", "v1")),
];

/// Fields of a RuntimeClass: the name in `spec` of `v1alpha1`, and the name at the top level of `v1`.
const RUNTIME_FIELDS: [(&str, &str); 3] =
    [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")];

fn upgrade_runtime_class(object: &mut Object, _names: &Names, _notes: &mut Notes) {
    let Some(Value::Object(mut spec)) = object.remove("spec") else { return };
    for (old, new) in RUNTIME_FIELDS {
        if let Some(value) = spec.remove(old) {
            object.set(new, value);
        }
    }
}

fn downgrade_runtime_class(object: &mut Object, _names: &Names) {
    let mut spec = Fields::new();
    for (old, new) in RUNTIME_FIELDS {
        if let Some(value) = object.remove(new) {
            spec.insert(old.to_owned(), value);
        }
    }
    object.set("spec", spec);
}
