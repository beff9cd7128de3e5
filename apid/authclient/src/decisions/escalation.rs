//! The escalation check: users cannot write or bind a role with more rights than their own.

use apimachinery::attributes::Attributes;
use apimachinery::gvk::GroupResource;
use apimachinery::object::Object;
use apimachinery::status::Status;
use authproto::auth::{BindingWrite, CoversRequest, RoleWrite, covers_request::What};
use serde::Deserialize;
use serde_json::Value;

use crate::reduce::Rule;
use crate::{Auth, Authorized};

impl Auth {
    /// Checks that the user has all rights of the written or bound role, or `escalate` or `bind` on it.
    ///
    /// `object`: the role or binding as it will be stored; the request is for its resource.
    ///
    /// # Errors
    ///
    /// 403 with the missing rules, 404 for a role that does not exist, 503 when authd does not respond.
    pub async fn check_escalation(&self, authorized: &Authorized, object: &Object) -> Result<(), Status> {
        if authorized.is_internal() {
            return Ok(());
        }
        let attributes = authorized.attributes();
        let write = if attributes.resource.ends_with("bindings") {
            What::Binding(binding_write(object))
        } else {
            What::Role(role_write(attributes, object)?)
        };
        let request = CoversRequest {
            user: Some((&**authorized.user()).into()),
            namespace: attributes.namespace.clone(),
            what: Some(write.clone()),
            at_least: Some(self.revisions.newest()),
        };
        let response = self.authd_api.covers(request).await?;
        if response.allowed {
            return Ok(());
        }
        if let (true, What::Binding(binding)) = (response.role_not_found, &write) {
            let resource = if binding.role_kind == "ClusterRole" { "clusterroles" } else { "roles" };
            let role = GroupResource { group: attributes.group.clone(), resource: resource.to_owned() };
            return Err(Status::not_found(&role, &binding.role_name));
        }
        let resource =
            GroupResource { group: attributes.group.clone(), resource: attributes.resource.clone() };
        Err(Status::forbidden(&resource, object.name(), &response.message))
    }
}

/// Describes the write of a role for authd, with the name from the URL.
///
/// The URL of a create has no name: a rule that grants `escalate` only on certain names does not permit a
/// create, as with every verb.
fn role_write(attributes: &Attributes, role: &Object) -> Result<RoleWrite, Status> {
    let rules = match role.get("rules") {
        None | Some(Value::Null) => Vec::new(),
        Some(rules) => Vec::<Rule>::deserialize(rules)
            .map_err(|error| Status::bad_request(format!("rules: {error}")))?
            .into_iter()
            .map(Rule::into_wire)
            .collect(),
    };
    Ok(RoleWrite {
        resource: attributes.resource.clone(),
        name: attributes.name.clone(),
        rules,
        aggregates: role.get("aggregationRule").is_some_and(|rule| !rule.is_null()),
    })
}

fn binding_write(binding: &Object) -> BindingWrite {
    let role_ref_field = |field: &str| binding.str_at(&["roleRef", field]).unwrap_or_default().to_owned();
    BindingWrite { role_kind: role_ref_field("kind"), role_name: role_ref_field("name") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escalation_check_uses_name_from_url() {
        let role =
            Object::from_value(serde_json::json!({"metadata": {"name": "big"}, "rules": null})).unwrap();
        for name in ["", "big"] {
            let attributes =
                Attributes { resource: "roles".into(), name: name.into(), ..Attributes::default() };
            assert_eq!(role_write(&attributes, &role).unwrap().name, name);
        }
    }
}
