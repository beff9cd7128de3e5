//! DefaultStorageClass and DefaultIngressClass: set the default class of objects without a class.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::tree::object_at;
use crate::{
    Admission, Attributes, Environment, Interest, ObjectKind, Operation, Plugin, Reader, WriteTarget,
};

/// Plugin that sets a default class.
pub(crate) struct DefaultClass {
    reader: Arc<dyn Reader>,
    targets: &'static [WriteTarget],
    class: ObjectKind,
    /// Annotations that mark the default class.
    default_annotations: Vec<String>,
    /// Deprecated annotation with the class name of an object.
    class_annotation: String,
    /// Spec field with the class name of an object.
    class_field: &'static str,
}

impl DefaultClass {
    /// DefaultStorageClass, for persistent volume claims.
    pub(crate) fn for_storage(environment: &Environment) -> Self {
        let names = &environment.names;
        DefaultClass {
            reader: Arc::clone(&environment.reader),
            targets: const { &[(ObjectKind::new("", "PersistentVolumeClaim"), "")] },
            class: ObjectKind::new("storage", "StorageClass"),
            default_annotations: vec![
                names.label_sub_key("storageclass", "is-default-class"),
                names.label_sub_key("storageclass.beta", "is-default-class"),
            ],
            class_annotation: names.label_sub_key("volume.beta", "storage-class"),
            class_field: "storageClassName",
        }
    }

    /// DefaultIngressClass, for ingresses.
    pub(crate) fn for_ingresses(environment: &Environment) -> Self {
        let names = &environment.names;
        DefaultClass {
            reader: Arc::clone(&environment.reader),
            targets: const { &[(ObjectKind::new("networking", "Ingress"), "")] },
            class: ObjectKind::new("networking", "IngressClass"),
            default_annotations: vec![names.label_sub_key("ingressclass", "is-default-class")],
            class_annotation: names.label_key("ingress.class"),
            class_field: "ingressClassName",
        }
    }

    /// The default class. Of several defaults, the newest wins; if equally old, the first by name.
    async fn default_class(&self) -> Result<Option<Arc<Object>>, Status> {
        let mut classes = self.reader.list(self.class, "").get().await?;
        classes.retain(|class| {
            self.default_annotations.iter().any(|annotation| class.annotation(annotation) == Some("true"))
        });
        let age = |class: &Arc<Object>| std::cmp::Reverse(class.meta_str("creationTimestamp").to_owned());
        Ok(classes.into_iter().min_by(|a, b| age(a).cmp(&age(b)).then_with(|| a.name().cmp(b.name()))))
    }
}

impl Plugin for DefaultClass {
    fn interest(&self) -> Interest {
        Interest::only(self.targets).on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, _: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        let has_class = |object: &Object| {
            object.annotation(&self.class_annotation).is_some()
                || object.at(&["spec", self.class_field]).is_some_and(|class| !class.is_null())
        };
        let Some(object) = object.filter(|object| !has_class(object)) else {
            return Admission::Ready(Ok(()));
        };
        Admission::later(async move {
            if let (Some(class), Some(spec)) = (self.default_class().await?, object_at(&mut object.0, "spec"))
            {
                spec.insert(self.class_field.to_owned(), Value::from(class.name()));
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn object_without_class_gets_newest_default_class() {
        let class = |name: &str, mark: &str, created: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {mark: "true"}}});
        let storage = "storageclass.kubernetes.io/is-default-class";
        let fake = Fake::new(Preset::Kubernetes)
            .with_objects(
                "storage",
                "StorageClass",
                &[
                    class("a", "other", "2026-03-01T00:00:00Z"),
                    class("old", storage, "2026-01-01T00:00:00Z"),
                    class("z", "storageclass.beta.kubernetes.io/is-default-class", "2026-02-01T00:00:00Z"),
                    class("y", storage, "2026-02-01T00:00:00Z"),
                ],
            )
            .with_objects(
                "networking",
                "IngressClass",
                &[class("nginx", "ingressclass.kubernetes.io/is-default-class", "")],
            );
        let (claims, ingresses) = (
            DefaultClass::for_storage(&fake.environment()),
            DefaultClass::for_ingresses(&fake.environment()),
        );
        let claim = ("", "PersistentVolumeClaim");
        let ingress = ("networking", "Ingress");
        for (plugin, kind, field, object, expected) in [
            (&claims, claim, "storageClassName", json!({"spec": {}}), json!("y")),
            (&claims, claim, "storageClassName", json!({"spec": {"storageClassName": ""}}), json!("")),
            (&claims, claim, "storageClassName", json!({"spec": {"storageClassName": "own"}}), json!("own")),
            (
                &claims,
                claim,
                "storageClassName",
                json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "b"}}, "spec": {}}),
                json!(null),
            ),
            (&ingresses, ingress, "ingressClassName", json!({}), json!("nginx")),
            (
                &ingresses,
                ingress,
                "ingressClassName",
                json!({"spec": {"ingressClassName": "own"}}),
                json!("own"),
            ),
            (
                &ingresses,
                ingress,
                "ingressClassName",
                json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "b"}}, "spec": {}}),
                json!(null),
            ),
        ] {
            let answer =
                fake.run_plugin(plugin, TestedWrite { kind, ..TestedWrite::default() }, object.clone()).await;
            assert_eq!(answer.object["spec"][field], expected, "{object}");
        }
        let bare = Fake::new(Preset::Kubernetes);
        let plugin = DefaultClass::for_storage(&bare.environment());
        let answer = bare
            .run_plugin(&plugin, TestedWrite { kind: claim, ..TestedWrite::default() }, json!({"spec": {}}))
            .await;
        assert_eq!(answer.object, json!({"spec": {}}), "no default, no class");
    }
}
