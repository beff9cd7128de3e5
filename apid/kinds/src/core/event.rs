//! Event of the core group: a component's report about an object.

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::since;
use crate::{
    Column, Context, DefaultPropagation, Kind, MetadataChecks, NameRule, Strategy, Table, format, labels,
};

pub(super) const KIND: Kind = Kind {
    group: "",
    kind: "Event",
    resource: "events",
    singular: "event",
    short_names: &["ev"],
    schema: "core/v1.Event",
    name_rule: NameRule::PathSegment,
    metadata_checks: MetadataChecks::GENERAL,
    create_on_update: true,
    default_propagation: DefaultPropagation::Never,
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
    table: &TABLE,
    strategy: &Event,
    ..Kind::NAMESPACED
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
            _ => text(object, field).to_owned(),
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let has_time = object.get("eventTime").is_some_and(|t| !t.is_null());
        if !is_namespace_valid(object, has_time, ctx) {
            let path = FieldPath::new("involvedObject.namespace");
            let namespace = text(object, "involvedObject.namespace");
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

/// The string at a dotted path; `""` if absent.
fn text<'a>(object: &'a Object, path: &str) -> &'a str {
    let path: Vec<&str> = path.split('.').collect();
    object.str_at(&path).unwrap_or("")
}

fn component(object: &Object) -> &str {
    Some(text(object, "source.component"))
        .filter(|c| !c.is_empty())
        .unwrap_or_else(|| text(object, "reportingComponent"))
}

/// Whether the event is in the namespace of its object.
/// Events about cluster-scoped objects are in `default`; those with `eventTime` may also be in the system
/// namespace.
fn is_namespace_valid(object: &Object, has_time: bool, ctx: &Context<'_>) -> bool {
    let event_namespace = object.namespace();
    match (has_time, text(object, "involvedObject.namespace")) {
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
    let controller = text(object, "reportingComponent");
    if controller.is_empty() {
        errors.push(required("reportingComponent"));
    }
    errors.extend(labels::invalid(
        &FieldPath::new("reportingComponent"),
        controller,
        format::qualified_name(controller),
    ));
    for field in ["reportingInstance", "action", "reason"] {
        match text(object, field) {
            "" => errors.push(required(field)),
            value if value.len() > TEXT_MAX => errors.push(too_long(field, TEXT_MAX)),
            _ => {}
        }
    }
    if text(object, "message").len() > MESSAGE_MAX {
        errors.push(too_long("message", MESSAGE_MAX));
    }
    errors
}

pub(crate) static TABLE: Table = Table {
    columns: &[
        Column::text("Last Seen", "Time since the last occurrence."),
        Column::text("Type", "Type of the event, such as Normal or Warning."),
        Column::text("Reason", "Short reason in CamelCase."),
        Column::text("Object", "Object that the event is about."),
        Column::wide("Subobject", "Field of the object that the event is about."),
        Column::wide("Source", "Component that reported the event."),
        Column::text("Message", "Description of the event."),
        Column::wide("First Seen", "Time since the first occurrence."),
        Column::wide("Count", "Number of occurrences."),
        Column { format: "name", ..Column::wide("Name", "Name of the event.") },
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let first = match text(object, "firstTimestamp") {
        "" => since(text(object, "eventTime"), clock),
        time => since(time, clock),
    };
    let series = object.get("series").filter(|s| s.is_object());
    let last = match (series, text(object, "lastTimestamp")) {
        (Some(_), _) => since(text(object, "series.lastObservedTime"), clock),
        (None, "") => first.clone(),
        (None, time) => since(time, clock),
    };
    // An event without a count occurred once.
    let count = match series {
        Some(series) => series.get("count").and_then(Value::as_i64).unwrap_or(0),
        None => object.get("count").and_then(Value::as_i64).filter(|c| *c != 0).unwrap_or(1),
    };
    let kind = text(object, "involvedObject.kind").to_lowercase();
    let target = match text(object, "involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let host = Some(text(object, "source.host")).filter(|h| !h.is_empty());
    let source = match host.unwrap_or_else(|| text(object, "reportingInstance")) {
        "" => component(object).to_owned(),
        host => format!("{}, {host}", component(object)),
    };
    vec![
        json!(last),
        json!(text(object, "type")),
        json!(text(object, "reason")),
        json!(target),
        json!(text(object, "involvedObject.fieldPath")),
        json!(source),
        json!(text(object, "message").trim()),
        json!(first),
        json!(count),
        json!(object.name()),
    ]
}
