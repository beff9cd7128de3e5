//! ServiceAccount: an identity for programs.

use apimachinery::object::Object;

use crate::defaults::maps_in_list;
use crate::table::{AGE, NAME, Source};
use crate::{BuiltInKind, Column, Context, REVIEW_VERBS, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["sa"],
    subresources: &[Subresource {
        group_version: Some(("authentication", "v1")),
        ..Subresource::new("token", REVIEW_VERBS, "TokenRequest")
    }],
    rules: WriteRules { delete_returns_object: true, ..WriteRules::BUILT_IN },
    columns: &[
        NAME,
        Column::text("Secrets", "Number of secrets that pods of the account may use.")
            .with_source(Source::Length("secrets")),
        AGE,
    ],
    strategy: &ServiceAccount,
    ..BuiltInKind::namespaced("core/v1.ServiceAccount", "serviceaccounts")
};

struct ServiceAccount;

impl Strategy for ServiceAccount {
    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        keep_names_of_secrets(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, _ctx: &Context<'_>) {
        keep_names_of_secrets(new);
    }

    /// Warns of the annotation `enforce-mountable-secrets` once, when it is new.
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let key = ctx.names.label_key("enforce-mountable-secrets");
        if new.annotation(&key).is_none() || old.is_some_and(|old| old.annotation(&key).is_some()) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{key}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    }
}

/// Removes all fields except `name` from the references to secrets.
fn keep_names_of_secrets(object: &mut Object) {
    for secret in maps_in_list(&mut object.0, "secrets") {
        secret.retain(|field, _| field == "name");
    }
}
