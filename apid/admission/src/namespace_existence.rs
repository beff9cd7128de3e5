//! NamespaceExists rejects writes to missing namespaces; NamespaceAutoProvision creates the namespace.

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use crate::reader::namespace_not_found;
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

/// Whether the namespace of a write is missing in the cache and in the store. Namespaces and cluster-scoped
/// objects have none.
async fn lacks_namespace(attributes: &Attributes<'_>) -> Result<bool, Status> {
    if attributes.namespace.is_empty() || attributes.is_of(ObjectKind::NAMESPACE) {
        return Ok(false);
    }
    let reader = &attributes.environment.reader;
    let found = reader.get_current(ObjectKind::NAMESPACE, "", attributes.namespace).await?;
    Ok(found.is_none())
}

/// NamespaceExists: rejects writes to missing namespaces.
pub(crate) struct NamespaceExists;

impl Plugin for NamespaceExists {
    const INTEREST: Interest =
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Delete]);

    async fn validate(&self, attributes: &Attributes<'_>, _: Option<&Object>) -> Result<(), Status> {
        match lacks_namespace(attributes).await? {
            true => Err(namespace_not_found(attributes.namespace)),
            false => Ok(()),
        }
    }
}

/// NamespaceAutoProvision: creates the missing namespace of a new object, except for dry runs.
pub(crate) struct NamespaceAutoProvision;

impl Plugin for NamespaceAutoProvision {
    const INTEREST: Interest = Interest::ALL_RESOURCES.on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, _: Option<&mut Object>) -> Result<(), Status> {
        if attributes.dry_run || !attributes.subresource.is_empty() || !lacks_namespace(attributes).await? {
            return Ok(());
        }
        let mut namespace = Object::default();
        namespace.set_meta("name", attributes.namespace);
        match attributes.environment.writer.create(ObjectKind::NAMESPACE, namespace).await {
            Err(status) if status.reason != Reason::AlreadyExists => Err(status),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    fn fake() -> Fake {
        Fake::new(Preset::Svc).with_objects("", "Namespace", &[json!({"metadata": {"name": "team"}})])
    }

    #[tokio::test]
    async fn write_to_missing_namespace_is_rejected() {
        let fake = fake();
        let plugin = NamespaceExists;
        let gone = "namespaces \"gone\" not found";
        for (operation, kind, namespace, message) in [
            (Operation::Create, ("", "ConfigMap"), "team", ""),
            (Operation::Create, ("", "ConfigMap"), "gone", gone),
            (Operation::Update, ("", "ConfigMap"), "gone", gone),
            (Operation::Delete, ("", "ConfigMap"), "gone", gone),
            (Operation::Create, ("", "Namespace"), "gone", ""),
            (Operation::Create, ("", "Node"), "", ""),
        ] {
            let write = TestedWrite { operation, kind, namespace, ..TestedWrite::default() };
            let answer = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "x"}})).await;
            assert_eq!(answer.message(), message, "{operation:?} {kind:?} in {namespace}");
        }
    }

    #[tokio::test]
    async fn auto_provision_creates_namespace_once_except_for_dry_run() {
        for (namespace, dry_run, made) in [("team", false, 0), ("new", false, 1), ("new", true, 0)] {
            let fake = fake();
            let plugin = NamespaceAutoProvision;
            for _ in 0..2 {
                let write =
                    TestedWrite { kind: ("", "ConfigMap"), namespace, dry_run, ..TestedWrite::default() };
                let answer = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "x"}})).await;
                assert_eq!(answer.message(), "");
            }
            let created: Vec<Value> =
                fake.backend.created.lock().iter().cloned().map(Object::into_value).collect();
            assert_eq!(
                created,
                vec![json!({"metadata": {"name": namespace}}); made],
                "{namespace} {dry_run}"
            );
        }
    }
}
