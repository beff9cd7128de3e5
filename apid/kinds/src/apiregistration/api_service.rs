//! APIService: the server of one version of an API group.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use apimachinery::time;
use base64::Engine as _;
use serde_json::{Value, json};

use crate::defaults::{fill, part};
use crate::format;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, NameRule, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    subresources: &[Subresource::status("APIService")],
    rules: WriteRules {
        name_rule: NameRule::PathSegment,
        metadata_checks: MetadataChecks::full(Revalidation::MainResource),
        restricts_finalizers: false,
        unconditional_update: false,
        revalidation: Revalidation::MainResource,
        status_writes: StatusWrites::ServerMetadata,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Service", "Service that serves the version."),
        Column::text("Available", "Whether the version is available, with the reason if not."),
        AGE,
    ],
    cells,
    strategy: &ApiService,
    ..BuiltInKind::cluster_scoped("apiregistration/v1.APIService", "apiservices")
};

struct ApiService;

impl Strategy for ApiService {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(service) = part(object, "spec.service") {
            fill(service, "port", 443);
        }
    }

    /// A new APIService without a Service is local, and gets the condition `Available`.
    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        if object.find("spec.service").is_none() {
            let now = time::time(ctx.clock.now());
            let condition = json!({
                "type": "Available",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "Local",
                "message": "Local APIServices are always available",
            });
            object.part_mut("status").insert("conditions".to_owned(), json!([condition]));
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if ctx.subresource == "status" {
            let status = Field::new(new.get("status"), "status");
            for condition in status.child("conditions").items() {
                let field = condition.child("status");
                text::check_listed(&field, &CONDITION_STATUSES, &mut errors);
            }
        }
        errors
    }
}

/// Allowed values of `status` in a condition.
const CONDITION_STATUSES: [&str; 3] = ["True", "False", "Unknown"];
/// Maximum value of `groupPriorityMinimum`.
const GROUP_PRIORITY_MAX: i64 = 20_000;
/// Maximum value of `versionPriority`.
const VERSION_PRIORITY_MAX: i64 = 1_000;

fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let spec = Field::new(object.get("spec"), "spec");
    let (group, version) = (spec.child("group"), spec.child("version"));
    let name = format!("{}.{}", version.text(), group.text());
    // The validation of metadata already reports an absent name and a name that is not a valid path segment.
    for field in ["generateName", "name"] {
        let text = object.meta_str(field);
        if !text.is_empty() && text != name && format::path_segment(text, false).is_empty() {
            let detail = format!("must be `spec.version+\".\"+spec.group`: {name:?}");
            errors.push(FieldError::invalid(&FieldPath::new("metadata").child(field), text, &detail));
        }
    }
    if !group.text().is_empty() {
        text::check_format(&group, format::subdomain, &mut errors);
    } else if version.text() != "v1" {
        errors.push(group.required("only v1 may have an empty group and it better be legacy kube"));
    }
    text::check_format(&version, format::label_1035, &mut errors);
    for (name, max) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let field = spec.child(name);
        let priority = field.integer().unwrap_or(0);
        if priority <= 0 || priority > max {
            errors.push(field.invalid_value(priority, &format!("must be positive and less than {max}")));
        }
    }
    validate_connection(&spec, &mut errors);
    errors
}

/// Validates the service and its certificates.
fn validate_connection(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (service, bundle) = (spec.child("service"), spec.child("caBundle"));
    let insecure = spec.child("insecureSkipTLSVerify");
    if !service.is_present() {
        if !bundle.text().is_empty() {
            let bytes = base64::engine::general_purpose::STANDARD.decode(bundle.text()).unwrap_or_default();
            let size = format!("{} bytes", bytes.len());
            errors.push(bundle.invalid_value(size, "local APIServices may not have a caBundle"));
        }
        if insecure.flag() {
            errors.push(insecure.invalid("local APIServices may not have insecureSkipTLSVerify"));
        }
        return;
    }
    for name in ["namespace", "name"] {
        text::require(&service.child(name), errors);
    }
    let port = service.child("port");
    if !(1..=65_535).contains(&port.integer().unwrap_or(0)) {
        errors.push(port.invalid("port is not valid: must be between 1 and 65535, inclusive"));
    }
    if insecure.flag() && !bundle.text().is_empty() {
        errors.push(insecure.invalid("may not be true if caBundle is present"));
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let service = object.find("spec.service").map_or_else(
        || "Local".to_owned(),
        |service| format!("{}/{}", service.text("namespace"), service.text("name")),
    );
    vec![json!(service), json!(available(object))]
}

fn available(object: &Object) -> String {
    match object.condition("Available") {
        None => "Unknown".to_owned(),
        Some(condition) if condition.text("status") == "True" => "True".to_owned(),
        Some(condition) => format!("{} ({})", condition.text("status"), condition.text("reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_present_names_must_be_version_and_group() {
        for (metadata, expected) in [
            (json!({}), &[][..]),
            (json!({"name": "v1.a.b"}), &[]),
            (json!({"name": "x"}), &["metadata.name"]),
            (json!({"generateName": "x", "name": "x1"}), &["metadata.generateName", "metadata.name"]),
        ] {
            let spec =
                json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
            let service = Object::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            let errors = validate(&service);
            let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(paths, expected, "{metadata}");
        }
    }
}
