//! The RBAC policy of a server, read over the API.
//!
//! # Contract
//!
//! The rules of an aggregated ClusterRole are those in its field `rules`. A subject of an unknown kind grants
//! nothing, as on the server. The kubeconfig user needs the permission to list all roles and bindings.

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};

use super::InspectError;
use super::connection::Connection;
use crate::rules::reconcile::{binding_spec, role_spec};
use crate::rules::{Policy, RoleKind, RoleSpec};

/// Reads all roles and bindings.
pub(super) async fn read(connection: &Connection) -> Result<Policy, InspectError> {
    let group = connection.group_name("rbac.authorization").await?;
    let mut objects = Vec::new();
    for resource in ["clusterroles", "roles", "clusterrolebindings", "rolebindings"] {
        let items = connection.list(&format!("/apis/{group}/v1/{resource}")).await?;
        objects.extend(items.into_iter().map(|item| (resource, item)));
    }
    policy_of(objects)
}

/// Builds a policy from objects, each with its resource.
pub(super) fn policy_of<'r>(
    objects: impl IntoIterator<Item = (&'r str, Value)>,
) -> Result<Policy, InspectError> {
    // The names appear only in messages about missing roles, which no command prints.
    let names = Names::new(Preset::Kubernetes, "").map_err(InspectError::new)?;
    let mut policy = Policy::new(&names);
    for (resource, object) in objects {
        let Ok(object) = Object::from_value(object) else { continue };
        let (namespace, name) = (object.namespace(), object.name());
        let role = || RoleSpec { aggregation: None, ..role_spec(&object, &names) };
        match resource {
            "clusterroles" => policy.put_role(RoleKind::ClusterRole, "", name, role()),
            "roles" => policy.put_role(RoleKind::Role, namespace, name, role()),
            _ => {
                if let Some(binding) = binding_spec(&object, &names) {
                    policy.put_binding(namespace, name, binding);
                }
            }
        }
    }
    Ok(policy)
}
