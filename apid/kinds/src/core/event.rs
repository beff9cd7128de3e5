//! Event of the core group: a component's report about an object.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use crate::table::cell::PathReader as _;
use crate::table::since;
use crate::{
    BuiltInKind, Column, Context, DefaultPropagation, MetadataChecks, NameRule, Strategy, WriteRules, format,
    labels,
};

pub(crate) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ev"],
    rules: WriteRules {
        name_rule: NameRule::PathSegment,
        metadata_checks: MetadataChecks::GENERAL,
        create_on_update: true,
        default_propagation: DefaultPropagation::Never,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    field_sources: &["source.component"],
    columns: &[
        Column::text("Last Seen", "Time since the last occurrence."),
        Column::text("Type", "Type of the event, such as Normal or Warning.").text_at("type"),
        Column::text("Reason", "Short reason in CamelCase.").text_at("reason"),
        Column::text("Object", "Object that the event is about."),
        Column::wide("Subobject", "Field of the object that the event is about.")
            .text_at("involvedObject.fieldPath"),
        Column::wide("Source", "Component that reported the event."),
        Column::text("Message", "Description of the event."),
        Column::wide("First Seen", "Time since the first occurrence."),
        Column::wide("Count", "Number of occurrences."),
        Column { format: "name", ..Column::wide("Name", "Name of the event.").text_at("metadata.name") },
    ],
    cells,
    strategy: &Event,
    ..BuiltInKind::namespaced("core/v1.Event", "events")
};

/// Maximum length, in bytes, of `reportingInstance`, `action` and `reason` of an event with `eventTime`.
const TEXT_MAX: usize = 128;
/// Maximum length, in bytes, of the message of an event with `eventTime`.
const MESSAGE_MAX: usize = 1024;
/// Namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";

struct Event;

impl Strategy for Event {
    /// The field `source` is `source.component`, or `reportingComponent` if that is empty.
    fn field(&self, object: &Object, field: &str) -> String {
        match field {
            "source" => component(object).to_owned(),
            _ => object.text(field).to_owned(),
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let has_time = object.get("eventTime").is_some_and(|t| !t.is_null());
        if !is_namespace_valid(object, has_time, ctx) {
            let path = FieldPath::new("involvedObject.namespace");
            let namespace = object.text("involvedObject.namespace");
            errors.push(FieldError::invalid(&path, namespace, "does not match event.namespace"));
        }
        if has_time {
            errors.extend(validate_timed(object));
        }
        let namespace = object.namespace();
        errors.extend(labels::invalid(&FieldPath::new("namespace"), namespace, format::subdomain(namespace)));
        errors
    }
}

fn component(object: &Object) -> &str {
    object.text_or("source.component", object.text("reportingComponent"))
}

/// Whether the event is in the namespace of its object.
/// Events about cluster-scoped objects are in `default`; those with `eventTime` may also be in the system
/// namespace.
fn is_namespace_valid(object: &Object, has_time: bool, ctx: &Context<'_>) -> bool {
    let event_namespace = object.namespace();
    match (has_time, object.text("involvedObject.namespace")) {
        (false, "") => event_namespace == DEFAULT_NAMESPACE,
        (false, involved) => event_namespace == involved,
        (true, "") => event_namespace == DEFAULT_NAMESPACE || event_namespace == ctx.names.system_namespace,
        (true, _) => true,
    }
}

/// Validates the fields that an event with `eventTime` requires.
fn validate_timed(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let required = |field: &str| FieldError::required(&FieldPath::new(field), "");
    let too_long = |field: &str, max: usize| {
        FieldError::invalid(&FieldPath::new(field), "", &format!("can have at most {max} characters"))
    };
    let controller = object.text("reportingComponent");
    if controller.is_empty() {
        errors.push(required("reportingComponent"));
    }
    errors.extend(labels::invalid(
        &FieldPath::new("reportingComponent"),
        controller,
        format::qualified_name(controller),
    ));
    for field in ["reportingInstance", "action", "reason"] {
        match object.text(field) {
            "" => errors.push(required(field)),
            value if value.len() > TEXT_MAX => errors.push(too_long(field, TEXT_MAX)),
            _ => {}
        }
    }
    if object.text("message").len() > MESSAGE_MAX {
        errors.push(too_long("message", MESSAGE_MAX));
    }
    errors
}

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let first = match object.text("firstTimestamp") {
        "" => since(object.text("eventTime"), clock),
        time => since(time, clock),
    };
    let series = object.get("series").filter(|s| s.is_object());
    let last = match (series, object.text("lastTimestamp")) {
        (Some(_), _) => since(object.text("series.lastObservedTime"), clock),
        (None, "") => first.clone(),
        (None, time) => since(time, clock),
    };
    // An event without a count occurred once.
    let count = match series {
        Some(series) => series.get("count").and_then(Value::as_i64).unwrap_or(0),
        None => object.get("count").and_then(Value::as_i64).filter(|c| *c != 0).unwrap_or(1),
    };
    let kind = object.text("involvedObject.kind").to_lowercase();
    let target = match object.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = match object.text_or("source.host", object.text("reportingInstance")) {
        "" => component(object).to_owned(),
        host => format!("{}, {host}", component(object)),
    };
    let message = object.text("message").trim();
    vec![last.into(), target.into(), source.into(), message.into(), first.into(), count.into()]
}
