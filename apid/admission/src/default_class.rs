//! DefaultStorageClass and DefaultIngressClass: set the default class of objects without a class.

use std::cmp::Reverse;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::persistent_volume_claim_resize::class_annotation;
use crate::tree::object_at;
use crate::{Attributes, Environment, Interest, ObjectKind, Operation, Plugin};

/// Plugin that sets a default class.
pub(crate) enum DefaultClass {
    /// DefaultStorageClass, for persistent volume claims.
    Storage,
    /// DefaultIngressClass, for ingresses.
    Ingress,
}

impl DefaultClass {
    /// Spec field with the class name of an object.
    fn class_field(&self) -> &'static str {
        match self {
            DefaultClass::Storage => "storageClassName",
            DefaultClass::Ingress => "ingressClassName",
        }
    }

    /// Deprecated annotation with the class name of an object.
    fn class_annotation(&self, names: &Names) -> String {
        match self {
            DefaultClass::Storage => class_annotation(names),
            DefaultClass::Ingress => names.label_key("ingress.class"),
        }
    }

    /// The default class. Of several defaults, the newest wins; if equally old, the first by name.
    async fn default_class(&self, environment: &Environment) -> Result<Option<Arc<Object>>, Status> {
        let (kind, domains) = match self {
            DefaultClass::Storage => {
                (ObjectKind::new("storage", "StorageClass"), ["storageclass", "storageclass.beta"].as_slice())
            }
            DefaultClass::Ingress => {
                (ObjectKind::new("networking", "IngressClass"), ["ingressclass"].as_slice())
            }
        };
        let annotations: Vec<String> = domains
            .iter()
            .map(|domain| environment.names.label_sub_key(domain, "is-default-class"))
            .collect();
        let is_default = |class: &Arc<Object>| {
            annotations.iter().any(|annotation| class.annotation(annotation) == Some("true"))
        };
        let age = |class: &Arc<Object>| Reverse(class.meta_str("creationTimestamp").to_owned());
        let classes = environment.reader.list(kind, "").await?.into_iter().filter(is_default);
        Ok(classes.min_by(|a, b| age(a).cmp(&age(b)).then_with(|| a.name().cmp(b.name()))))
    }
}

impl Plugin for DefaultClass {
    fn interest(&self) -> Interest {
        let targets = match self {
            DefaultClass::Storage => const { &[(ObjectKind::new("", "PersistentVolumeClaim"), "")] },
            DefaultClass::Ingress => const { &[(ObjectKind::new("networking", "Ingress"), "")] },
        };
        Interest::only(targets).on(&[Operation::Create])
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let environment = attributes.environment;
        let annotation = self.class_annotation(&environment.names);
        let field = self.class_field();
        let has_class = |object: &Object| {
            object.annotation(&annotation).is_some()
                || object.at(&["spec", field]).is_some_and(|class| !class.is_null())
        };
        let Some(object) = object.filter(|object| !has_class(object)) else { return Ok(()) };
        if let (Some(class), Some(spec)) =
            (self.default_class(environment).await?, object_at(&mut object.0, "spec"))
        {
            spec.insert(field.to_owned(), Value::from(class.name()));
        }
        Ok(())
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
        let (claims, ingresses) = (DefaultClass::Storage, DefaultClass::Ingress);
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
        let plugin = DefaultClass::Storage;
        let answer = bare
            .run_plugin(&plugin, TestedWrite { kind: claim, ..TestedWrite::default() }, json!({"spec": {}}))
            .await;
        assert_eq!(answer.object, json!({"spec": {}}), "no default, no class");
    }
}
