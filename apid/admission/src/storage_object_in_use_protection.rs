//! StorageObjectInUseProtection: adds finalizers that delay the deletion of PersistentVolumes,
//! PersistentVolumeClaims and VolumeAttributesClasses while these are in use.

use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::{Admission, Attributes, BuildPlugin, Environment, Interest, ObjectKind, Operation, Plugin};

const VOLUME: ObjectKind = ObjectKind::new("", "PersistentVolume");
const CLAIM: ObjectKind = ObjectKind::new("", "PersistentVolumeClaim");

const CLASS: ObjectKind = ObjectKind::new("storage", "VolumeAttributesClass");

pub(crate) struct StorageObjectInUseProtection {
    /// Finalizers by kind.
    finalizers: [(ObjectKind, String); 3],
}

impl BuildPlugin for StorageObjectInUseProtection {
    fn new(environment: &Environment) -> Self {
        let names = &environment.names;
        StorageObjectInUseProtection {
            finalizers: [
                (VOLUME, names.label_key("pv-protection")),
                (CLAIM, names.label_key("pvc-protection")),
                (CLASS, names.label_key("vac-protection")),
            ],
        }
    }
}

impl Plugin for StorageObjectInUseProtection {
    fn interest(&self) -> Interest {
        Interest::only(&[(VOLUME, ""), (CLAIM, ""), (CLASS, "")]).on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        if let Some((_, finalizer)) = self.finalizers.iter().find(|(kind, _)| attributes.is_of(*kind))
            && let Some(object) = object.filter(|object| !object.finalizers().any(|other| other == finalizer))
        {
            let finalizers: Vec<Value> =
                object.finalizers().chain([finalizer.as_str()]).map(Value::from).collect();
            object.set_meta("finalizers", json!(finalizers));
        }
        Admission::Ready(Ok(()))
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
        let plugin = StorageObjectInUseProtection::new(&fake.environment());
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
