//! Nobody writes a role, or a binding to one, that gives more than they have: where the verbs ask.
//!
//! The question is authd's ([`crate::auth::Auth::covers`]); which kinds are asked about, and when, is said here alone.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use super::Call;
use crate::auth::Escalation;

impl Call<'_> {
    /// Checks a role or binding that is about to be written; other kinds pass.
    ///
    /// # Errors
    ///
    /// 403 with what is missing, 404 for a binding to a role that does not exist, 503.
    pub(super) async fn check_escalation(&self, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let kind = self.collection.resource.kind;
        if kind.group != "rbac.authorization" || old.is_some_and(|old| same_but_for_collection(new, old)) {
            return Ok(());
        }
        let escalation = if kind.resource.ends_with("bindings") {
            // What refers to no kind of role gives nothing, and validation refuses it with its reasons.
            if !matches!(new.str_at(&["roleRef", "kind"]), Some("Role" | "ClusterRole")) {
                return Ok(());
            }
            Escalation::Binding { object: new }
        } else {
            Escalation::Role { object: new }
        };
        self.plane.auth.covers(self.by, escalation).await
    }
}

/// Whether only owners and finalizers differ: what the garbage collector writes needs no rights of the role's.
fn same_but_for_collection(new: &Object, old: &Object) -> bool {
    let rest = |object: &Object| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "resourceVersion", "managedFields"] {
            object.remove_meta(field);
        }
        object.0.retain(|_, value| *value != Value::Null);
        object
    };
    rest(new) == rest(old)
}
