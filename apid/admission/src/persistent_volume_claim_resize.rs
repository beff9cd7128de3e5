//! PersistentVolumeClaimResize: a claim may grow only if it is bound and its class allows expansion.

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::quantity::Quantity;
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

const CLASS: ObjectKind = ObjectKind::new("storage", "StorageClass");

pub(crate) struct PersistentVolumeClaimResize;

impl PersistentVolumeClaimResize {
    async fn check(&self, attributes: &Attributes<'_>, old: &Object, new: &Object) -> Result<(), Status> {
        if old.str_at(&["status", "phase"]) != Some("Bound") {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let environment = attributes.environment;
        let annotation = class_annotation(&environment.names);
        let name = class_of(new, &annotation);
        let class = match name {
            "" => None,
            name if name != class_of(old, &annotation) => None,
            name => environment.reader.get(CLASS, "", name).await?,
        };
        let allows =
            |class: &Object| class.get("allowVolumeExpansion").and_then(Value::as_bool) == Some(true);
        if class.as_deref().is_some_and(allows) {
            return Ok(());
        }
        Err(attributes.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
             resize",
        ))
    }
}

/// Key of the deprecated class annotation of claims.
pub(crate) fn class_annotation(names: &Names) -> String {
    names.label_sub_key("volume.beta", "storage-class")
}

/// Storage class of a claim; `""` if none.
pub(crate) fn class_of<'a>(claim: &'a Object, annotation: &str) -> &'a str {
    let field = || claim.str_at(&["spec", "storageClassName"]);
    claim.annotation(annotation).or_else(field).unwrap_or("")
}

/// Requested storage of a claim; zero if absent or invalid.
fn size(claim: &Object) -> Quantity {
    claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::from_value).unwrap_or_default()
}

impl Plugin for PersistentVolumeClaimResize {
    const INTEREST: Interest =
        Interest::only(&[(ObjectKind::new("", "PersistentVolumeClaim"), "")]).on(&[Operation::Update]);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        match (attributes.old, object) {
            (Some(old), Some(new)) if size(new) > size(old) => self.check(attributes, old, new).await,
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn claim_resize_requires_bound_claim_and_expandable_class() {
        let class =
            |name: &str, allowed: bool| json!({"metadata": {"name": name}, "allowVolumeExpansion": allowed});
        let fake = Fake::new(Preset::Svc).with_objects(
            "storage",
            "StorageClass",
            &[class("grows", true), class("fixed", false)],
        );
        let plugin = PersistentVolumeClaimResize;
        let claim = |class: &str, size: &str, phase: &str| {
            json!({
                "metadata": {"name": "c"},
                "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
                "status": {"phase": phase},
            })
        };
        let unbound =
            "persistentvolumeclaims \"c\" is forbidden: Only bound persistent volume claims can be expanded";
        let fixed = "persistentvolumeclaims \"c\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        for (old, new, message) in [
            (claim("grows", "1Gi", "Bound"), claim("grows", "2Gi", "Bound"), ""),
            (claim("grows", "1Gi", "Pending"), claim("grows", "2Gi", "Pending"), unbound),
            (claim("grows", "1Gi", "Pending"), claim("grows", "1024Mi", "Pending"), ""),
            (claim("fixed", "1Gi", "Bound"), claim("fixed", "2Gi", "Bound"), fixed),
            (claim("fixed", "2Gi", "Bound"), claim("fixed", "1Gi", "Bound"), ""),
            (claim("", "1Gi", "Bound"), claim("", "2Gi", "Bound"), fixed),
            (claim("gone", "1Gi", "Bound"), claim("gone", "2Gi", "Bound"), fixed),
            (claim("fixed", "1Gi", "Bound"), claim("grows", "2Gi", "Bound"), fixed),
        ] {
            let write = TestedWrite {
                operation: Operation::Update,
                kind: ("", "PersistentVolumeClaim"),
                old: Some(old.clone()),
                ..TestedWrite::default()
            };
            let answer = fake.run_plugin(&plugin, write, new.clone()).await;
            assert_eq!(answer.message(), message, "{old} to {new}");
        }
    }
}
