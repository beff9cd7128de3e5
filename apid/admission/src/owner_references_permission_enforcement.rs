//! OwnerReferencesPermissionEnforcement: requires permissions to change owner references.
//!
//! # Reference
//!
//! A change of the owners of an object requires permission to delete the object. Setting
//! `blockOwnerDeletion` requires permission to update the subresource `finalizers` of the owner. The plugin
//! does not check writes of a pod's status, because kubelets write it.

use std::sync::Arc;

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::decision::Decision;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use crate::tree::{items_at, text};
use crate::{Attributes, ObjectKind, Plugin};

pub(crate) struct OwnerReferencesPermissionEnforcement;

impl OwnerReferencesPermissionEnforcement {
    async fn check(&self, attributes: &Attributes<'_>, new: &Object) -> Result<(), Status> {
        let authorizer = &attributes.environment.authorizer;
        let decision = authorizer.decide(attributes.user, delete_request(attributes)).await?;
        if !decision.allowed() {
            let message = format!(
                "cannot set an ownerRef on a resource you can't delete: {}",
                denial_message(&decision)
            );
            return Err(attributes.forbidden(&message));
        }
        for owner in newly_blocking_owners(new, attributes.old) {
            for request in self.finalizer_updates(attributes, owner)? {
                let decision = authorizer.decide(attributes.user, request).await?;
                if !decision.allowed() {
                    let message = format!(
                        "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {}",
                        denial_message(&decision)
                    );
                    return Err(attributes.forbidden(&message));
                }
            }
        }
        Ok(())
    }

    /// Returns the actions to authorize: an update of the subresource `finalizers` of the owner, for each
    /// resource of the owner's kind. 403 if no resource has the kind and version.
    fn finalizer_updates(
        &self,
        attributes: &Attributes<'_>,
        owner: &Value,
    ) -> Result<Vec<RequestAttributes>, Status> {
        let (api_version, kind) = (text(owner, "apiVersion"), text(owner, "kind"));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let has_kind_and_version = |resource: &&Arc<kinds::Kind>| {
            resource.group_resource.group == group && resource.name() == kind && resource.has_version(version)
        };
        let requests: Vec<RequestAttributes> = attributes
            .environment
            .registry
            .get()
            .resources()
            .iter()
            .filter(has_kind_and_version)
            .map(|resource| RequestAttributes {
                verb: "update".to_owned(),
                resource_request: true,
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.plural().to_owned(),
                subresource: "finalizers".to_owned(),
                namespace: match resource.namespaced {
                    true => attributes.namespace.to_owned(),
                    false => String::new(),
                },
                name: text(owner, "name").to_owned(),
                ..RequestAttributes::default()
            })
            .collect();
        if requests.is_empty() {
            let group_kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
            return Err(attributes.forbidden(&format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind {kind}: no matches for kind \"{group_kind}\" in version \"{api_version}\""
            )));
        }
        Ok(requests)
    }
}

impl Plugin for OwnerReferencesPermissionEnforcement {
    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(new) = object else { return Ok(()) };
        let is_pod_status = attributes.is_of(ObjectKind::POD) && attributes.subresource == "status";
        let is_unchanged = owners(new) == attributes.old.map_or(&[][..], owners);
        if is_pod_status || is_unchanged {
            return Ok(());
        }
        self.check(attributes, new).await
    }
}

fn owners(object: &Object) -> &[Value] {
    items_at(object, &["metadata", "ownerReferences"])
}

/// Returns the owners for which the write newly sets `blockOwnerDeletion`.
fn newly_blocking_owners<'a>(new: &'a Object, old: Option<&Object>) -> Vec<&'a Value> {
    let is_blocking = |owner: &Value| owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true);
    let was_blocking = |uid: &str| {
        let before = old.into_iter().flat_map(owners);
        before.filter(|owner| is_blocking(owner)).any(|owner| text(owner, "uid") == uid)
    };
    owners(new).iter().filter(|owner| is_blocking(owner) && !was_blocking(text(owner, "uid"))).collect()
}

/// Returns the action to authorize: the deletion of the object.
fn delete_request(attributes: &Attributes<'_>) -> RequestAttributes {
    RequestAttributes {
        verb: "delete".to_owned(),
        resource_request: true,
        group: attributes.resource.group_resource.group.clone(),
        version: attributes.version.to_owned(),
        resource: attributes.resource.plural().to_owned(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..RequestAttributes::default()
    }
}

/// Message for an authorizer's denial, in the format of Kubernetes.
fn denial_message(decision: &Decision) -> String {
    let problem = match decision.evaluation_error.as_str() {
        "" => "<nil>",
        problem => problem,
    };
    format!("{}, {problem}", decision.reason)
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::Operation;
    use crate::testing::{Fake, TestedWrite};

    fn owner(kind: &str, uid: &str, blocks: Value) -> Value {
        let api_version = if kind == "ReplicaSet" { "apps/v1" } else { "v1" };
        json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": uid, "blockOwnerDeletion": blocks})
    }

    fn object(owners: &[Value]) -> Value {
        json!({"metadata": {"name": "p", "ownerReferences": owners}})
    }

    #[tokio::test]
    async fn owner_change_requires_delete_permission() {
        let set = |uid: &str, blocks: bool| owner("ReplicaSet", uid, json!(blocks));
        let node = owner("Node", "3", json!(true));
        let nothing = "";
        let delete = "alice delete pods p";
        let hold = "alice update replicasets/finalizers o";
        let cannot_delete =
            "pods \"p\" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>";
        let cannot_hold = "pods \"p\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>";
        for (old, new, rights, expected) in [
            (None, object(&[]), [nothing, nothing], ""),
            (None, object(&[set("1", false)]), [nothing, nothing], cannot_delete),
            (None, object(&[set("1", false)]), [delete, nothing], ""),
            (None, object(&[set("1", true)]), [delete, nothing], cannot_hold),
            (None, object(&[set("1", true)]), [delete, hold], ""),
            (None, object(std::slice::from_ref(&node)), [delete, hold], cannot_hold),
            (None, object(&[node]), [delete, "alice update nodes/finalizers o"], ""),
            (Some(object(&[set("1", true)])), object(&[set("1", true)]), [nothing, nothing], ""),
            (Some(object(&[set("1", true)])), object(&[]), [nothing, nothing], cannot_delete),
            (Some(object(&[set("1", true)])), object(&[set("1", false)]), [delete, nothing], ""),
            (Some(object(&[set("1", false)])), object(&[set("1", true)]), [delete, nothing], cannot_hold),
            (
                Some(object(&[set("1", true)])),
                object(&[set("1", true), set("2", false)]),
                [delete, nothing],
                "",
            ),
        ] {
            let mut fake = Fake::new(Preset::Kubernetes);
            for right in rights.into_iter().filter(|right| !right.is_empty()) {
                fake = fake.with_right(right);
            }
            let plugin = OwnerReferencesPermissionEnforcement;
            let operation = if old.is_some() { Operation::Update } else { Operation::Create };
            let answer = fake
                .run_plugin(&plugin, TestedWrite { operation, old, ..TestedWrite::default() }, new.clone())
                .await;
            assert_eq!(answer.message(), expected, "{new} {rights:?}");
        }
    }

    #[tokio::test]
    async fn blocking_owner_of_unknown_kind_is_rejected_and_kubelets_are_exempt() {
        let fake = Fake::new(Preset::Kubernetes).with_right("alice delete * *");
        let plugin = OwnerReferencesPermissionEnforcement;
        let odd = object(&[owner("Odd", "1", json!(true))]);
        let answer = fake.run_plugin(&plugin, TestedWrite::default(), odd).await;
        assert!(answer.message().contains("cannot find RESTMapping for APIVersion v1 Kind Odd"));
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = OwnerReferencesPermissionEnforcement;
        let changed = object(&[owner("Node", "1", json!(true))]);
        for (subresource, refused) in [("status", false), ("", true)] {
            let write = TestedWrite {
                operation: Operation::Update,
                old: Some(object(&[])),
                subresource,
                ..TestedWrite::default()
            };
            assert_eq!(fake.run_plugin(&plugin, write, changed.clone()).await.result.is_err(), refused);
        }
    }
}
