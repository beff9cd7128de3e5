//! RuntimeClass: a container runtime configuration.

use std::collections::HashSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::{format, pods};

use crate::table::{AGE, NAME};
use crate::validation::{Field, immutable_fields, text};
use crate::{BuiltInKind, Column, Context, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules { unconditional_update: false, ..WriteRules::BUILT_IN },
    columns: &[NAME, Column::text("Handler", "Handler of the container runtime.").text_at("handler"), AGE],
    strategy: &RuntimeClass,
    ..BuiltInKind::cluster_scoped("node/v1.RuntimeClass", "runtimeclasses")
};

struct RuntimeClass;

impl Strategy for RuntimeClass {
    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        text::check_format(&Field::new(object.get("handler"), "handler"), format::label, &mut errors);
        let overhead = Field::new(object.get("overhead"), "overhead");
        let pod_fixed = overhead.with_value(overhead.child("podFixed").value());
        pods::validation::overhead(&pod_fixed, ctx.names, &mut errors);
        let scheduling = Field::new(object.get("scheduling"), "scheduling");
        text::check_labels(&scheduling.child("nodeSelector"), &mut errors);
        let list = scheduling.child("tolerations");
        // kube-apiserver reports errors of tolerations below a second `tolerations`.
        pods::validation::tolerations(&list.child("tolerations").with_value(list.value()), &mut errors);
        let mut seen = HashSet::new();
        for toleration in list.items() {
            if !seen.insert(toleration.value()) {
                errors.push(toleration.duplicate());
            }
        }
        errors
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let scheduling = Field::new(new.get("scheduling"), "scheduling");
        let selector = scheduling.child("nodeSelector");
        let deprecation = |(key, _)| pods::warnings::label_deprecation(key, ctx.names);
        let texts = selector.entries().filter_map(deprecation);
        texts.map(|text| format!("{}: {text}", selector.path())).collect()
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["handler"])
    }
}
