//! StorageObjectInUseProtection: adds finalizers that delay the deletion of PersistentVolumes,
//! PersistentVolumeClaims and VolumeAttributesClasses while these are in use.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::{Value, json};

use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

const VOLUME: ObjectKind = ObjectKind::new("", "PersistentVolume");
const CLAIM: ObjectKind = ObjectKind::new("", "PersistentVolumeClaim");
const CLASS: ObjectKind = ObjectKind::new("storage", "VolumeAttributesClass");

pub(crate) struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    const INTEREST: Interest =
        Interest::only(&[(VOLUME, ""), (CLAIM, ""), (CLASS, "")]).on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let name = match attributes.resource.name() {
            "PersistentVolume" => "pv-protection",
            "PersistentVolumeClaim" => "pvc-protection",
            _ => "vac-protection",
        };
        let finalizer = attributes.environment.names.label_key(name);
        if !object.finalizers().any(|other| other == finalizer) {
            let finalizers: Vec<Value> =
                object.finalizers().chain([finalizer.as_str()]).map(Value::from).collect();
            object.set_meta("finalizers", json!(finalizers));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn volumes_and_claims_get_protection_finalizer() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = StorageObjectInUseProtection;
        let (pv, pvc) = ("kubernetes.io/pv-protection", "kubernetes.io/pvc-protection");
        for (kind, given, expected) in [
            ("PersistentVolume", json!({}), json!([pv])),
            ("PersistentVolumeClaim", json!({"finalizers": ["x.io/y"]}), json!(["x.io/y", pvc])),
            ("PersistentVolumeClaim", json!({"finalizers": [pvc]}), json!([pvc])),
        ] {
            let answer = fake
                .run_plugin(
                    &plugin,
                    TestedWrite { kind: ("", kind), ..TestedWrite::default() },
                    json!({"metadata": given}),
                )
                .await;
            assert_eq!(answer.object["metadata"]["finalizers"], expected, "{kind}");
        }
    }
}
