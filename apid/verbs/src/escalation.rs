//! Calls of the privilege escalation check for roles and role bindings.
//!
//! authd decides ([`authclient::Auth::check_escalation`]). This module selects the kinds and writes that are checked.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use super::Call;

impl Call<'_> {
    /// Checks a role or role binding before it is written; other kinds pass.
    ///
    /// # Errors
    ///
    /// 403 with the missing rights, 404 for a binding to a role that does not exist, 503 without a decision.
    pub(super) async fn check_escalation(&self, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let kind = self.collection.kind.internal();
        if kind.stem() != Some("rbac.authorization")
            || old.is_some_and(|old| differs_only_in_gc_fields(new, old))
        {
            return Ok(());
        }
        // A binding to another kind grants nothing, and validation rejects it with its own causes.
        if kind.plural().ends_with("bindings")
            && !matches!(new.str_at(&["roleRef", "kind"]), Some("Role" | "ClusterRole"))
        {
            return Ok(());
        }
        self.api_state.auth.check_escalation(self.authorized, new).await
    }
}

/// Whether only owner references, finalizers, resourceVersion and managedFields differ.
///
/// Such a write, for example of the garbage collector, grants nothing and needs no escalation check.
fn differs_only_in_gc_fields(new: &Object, old: &Object) -> bool {
    let without_gc_fields = |object: &Object| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "resourceVersion", "managedFields"] {
            object.remove_meta(field);
        }
        object.0.retain(|_, value| *value != Value::Null);
        object
    };
    without_gc_fields(new) == without_gc_fields(old)
}
