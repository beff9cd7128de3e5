//! Read checks for the authors of admission policies and their bindings.
//!
//! # Contract
//!
//! Policies read their parameters with the rights of apid, and their messages can show the contents. The
//! author of a policy therefore needs the right to read all objects of the kind in `spec.paramKind`. The
//! author of a binding needs the right to read the objects to which `spec.paramRef` refers. apid itself and
//! members of `system:masters` need no right.
//!
//! # Reference
//!
//! An update that keeps `paramKind` needs no right. Each update of a binding with `paramRef` needs the right,
//! because kube-apiserver compares pointers inside `paramRef`, which always differ. If the kind of the
//! parameters is not served, the check requires the right for all resources of its group.

use apimachinery::attributes::Attributes;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::{MASTERS, UserInfo};

use super::Call;
use super::response_object::tree;

/// Kinds of policies, each with the kind of its bindings.
const POLICIES: [(&str, &str); 2] = [
    ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
];

/// Stands for all groups, versions, resources, namespaces or names.
const ALL: &str = "*";

impl Call<'_> {
    /// Checks the valid object of a policy or binding before its write; other kinds pass.
    ///
    /// # Errors
    ///
    /// 422: the user cannot read the parameters. 503: authd returns no decision.
    pub(super) async fn check_parameter_access(
        &self,
        new: &Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let kind = self.collection.kind.internal();
        if kind.stem() != Some("admissionregistration")
            || !self.subresource.is_empty()
            || self.authorized.is_internal()
            || self.authorized.user().in_group(MASTERS)
        {
            return Ok(());
        }
        for (policy, binding) in POLICIES {
            if kind.name() == policy {
                return self.check_param_kind(new, old).await;
            }
            if kind.name() == binding {
                return self.check_param_ref(new, policy).await;
            }
        }
        Ok(())
    }

    async fn check_param_kind(&self, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let Some(param_kind) = param_kind(new) else { return Ok(()) };
        if old.is_some_and(|old| self::param_kind(old) == Some(param_kind)) {
            return Ok(());
        }
        let attributes = Attributes {
            namespace: ALL.to_owned(),
            name: ALL.to_owned(),
            ..self.read_attributes(param_kind)
        };
        if self.api_state.auth.decision(self.authorized.user(), attributes).await?.allowed() {
            return Ok(());
        }
        let detail = format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            format_user(self.authorized.user()),
            text(param_kind, "kind"),
            text(param_kind, "apiVersion")
        );
        Err(self.unreadable_parameter("paramKind", new, &detail))
    }

    async fn check_param_ref(&self, new: &Object, policy_kind: &str) -> Result<(), Status> {
        let Some(param_ref) = new.at(&["spec", "paramRef"]).filter(|reference| reference.is_object()) else {
            return Ok(());
        };
        let name = new.str_at(&["spec", "policyName"]).unwrap_or_default();
        let policy = self.policy(policy_kind, name).await?;
        let param_kind = policy.as_ref().and_then(param_kind).unwrap_or(&Value::Null);
        let attributes = Attributes {
            namespace: text(param_ref, "namespace").to_owned(),
            name: text(param_ref, "name").to_owned(),
            ..self.read_attributes(param_kind)
        };
        if self.api_state.auth.decision(self.authorized.user(), attributes).await?.allowed() {
            return Ok(());
        }
        let user = format_user(self.authorized.user());
        let detail =
            format!("user {user} does not have \"get\" permission on the object referenced by paramRef");
        Err(self.unreadable_parameter("paramRef", new, &detail))
    }

    /// Returns the attributes of `get` on a kind of parameters, without namespace and name.
    fn read_attributes(&self, param_kind: &Value) -> Attributes {
        let (api_version, kind) = (text(param_kind, "apiVersion"), text(param_kind, "kind"));
        let (group, version) = match api_version.split_once('/').unwrap_or(("", api_version)) {
            _ if param_kind.is_null() => (ALL, ALL),
            (_, version) if version.contains('/') => (ALL, ALL),
            group_version => group_version,
        };
        let resource = self.kinds.registry.find_kind_version(group, version, kind);
        Attributes {
            verb: "get".to_owned(),
            resource_request: true,
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.map_or(ALL, |resource| &resource.group_resource.resource).to_owned(),
            ..Attributes::default()
        }
    }

    /// Returns the stored policy of a kind and name, if it exists.
    async fn policy(&self, kind: &str, name: &str) -> Result<Option<Object>, Status> {
        let group = self.api_state.names.group("admissionregistration");
        let Some(policies) = self.collection_of(&group, kind) else { return Ok(None) };
        let key = policies.kind.key("", name);
        let (item, _) = policies.items.get(&key).await.map_err(|error| self.failure(error))?;
        item.map(|item| tree(&item, item.revision())).transpose()
    }

    fn unreadable_parameter(&self, field: &str, object: &Object, detail: &str) -> Status {
        let path = FieldPath::new("spec").child(field);
        let kind = &self.collection.kind.internal().group_kind;
        Status::invalid(kind, object.name(), &[FieldError::forbidden(&path, detail)])
    }
}

fn param_kind(policy: &Object) -> Option<&Value> {
    policy.at(&["spec", "paramKind"]).filter(|kind| kind.is_object())
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Formats a user as the messages of kube-apiserver do.
fn format_user(user: &UserInfo) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}
