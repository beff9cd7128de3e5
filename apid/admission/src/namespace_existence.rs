//! NamespaceExists rejects writes to missing namespaces; NamespaceAutoProvision creates the namespace.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use crate::reader::namespace_not_found;
use crate::{
    Admission, Attributes, BuildPlugin, Environment, Interest, Lookup, MaybeFuture, ObjectKind, Operation,
    Plugin, Reader, Writer,
};

/// Looks up the namespace of a write in the cache, then in the store.
/// None for writes to namespaces and cluster-scoped objects.
fn find_namespace<'a>(reader: &'a dyn Reader, attributes: &'a Attributes<'a>) -> Option<Lookup<'a>> {
    let is_in_namespace = !attributes.namespace.is_empty() && !attributes.is_of(ObjectKind::NAMESPACE);
    is_in_namespace.then(|| reader.get_current(ObjectKind::NAMESPACE, "", attributes.namespace))
}

/// NamespaceExists: rejects writes to missing namespaces.
pub(crate) struct NamespaceExists {
    reader: Arc<dyn Reader>,
}

impl BuildPlugin for NamespaceExists {
    fn new(environment: &Environment) -> Self {
        NamespaceExists { reader: Arc::clone(&environment.reader) }
    }
}

impl Plugin for NamespaceExists {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Delete])
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, _: Option<&'a Object>) -> Admission<'a> {
        let Some(found) = find_namespace(&*self.reader, attributes) else {
            return MaybeFuture::Ready(Ok(()));
        };
        found.map(move |found| found?.map(drop).ok_or_else(|| namespace_not_found(attributes.namespace)))
    }
}

/// NamespaceAutoProvision: creates the missing namespace of a new object, except for dry runs.
pub(crate) struct NamespaceAutoProvision {
    reader: Arc<dyn Reader>,
    writer: Arc<dyn Writer>,
}

impl BuildPlugin for NamespaceAutoProvision {
    fn new(environment: &Environment) -> Self {
        NamespaceAutoProvision {
            reader: Arc::clone(&environment.reader),
            writer: Arc::clone(&environment.writer),
        }
    }
}

impl NamespaceAutoProvision {
    async fn create_namespace(&self, name: &str) -> Result<(), Status> {
        let mut namespace = Object::default();
        namespace.set_meta("name", name);
        match self.writer.create(ObjectKind::NAMESPACE, namespace).get().await {
            Err(status) if status.reason != Reason::AlreadyExists => Err(status),
            _ => Ok(()),
        }
    }
}

impl Plugin for NamespaceAutoProvision {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, _: Option<&'a mut Object>) -> Admission<'a> {
        if attributes.dry_run || !attributes.subresource.is_empty() {
            return MaybeFuture::Ready(Ok(()));
        }
        match find_namespace(&*self.reader, attributes) {
            None | Some(MaybeFuture::Ready(Ok(Some(_)))) => MaybeFuture::Ready(Ok(())),
            Some(found) => MaybeFuture::later(async move {
                match found.get().await? {
                    Some(_) => Ok(()),
                    None => self.create_namespace(attributes.namespace).await,
                }
            }),
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
        let plugin = NamespaceExists::new(&fake.environment());
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
            let plugin = NamespaceAutoProvision::new(&fake.environment());
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
