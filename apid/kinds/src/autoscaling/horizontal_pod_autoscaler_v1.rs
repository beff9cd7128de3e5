//! HorizontalPodAutoscaler of `autoscaling/v1`, which has one metric: CPU utilization.
//!
//! # Reference
//!
//! A version 1 object carries the fields that version 1 lacks in annotations with the prefix
//! `autoscaling.alpha.<domain>/`. The value of such an annotation is JSON in the form of the Go types of
//! `autoscaling/v1`, such as `targetAverageUtilization`. In the storage version, the CPU metric of a version 1
//! object follows the other metrics. The conversion drops an annotation whose value is not such JSON.

use apimachinery::names::Names;
use apimachinery::object::Object;
use schema::Schema;
use schema::key_order::text_of_type;
use serde_json::{Map, Value, json};

use super::horizontal_pod_autoscaler::{self, annotation_key};
use crate::same_fields::derive_version;
use crate::table::cell::PathReader;
use crate::validation::internal;
use crate::{BuiltInKind, Conversion};

pub(super) const KIND: BuiltInKind = derive_version(
    horizontal_pod_autoscaler::KIND,
    "autoscaling/v1.HorizontalPodAutoscaler",
    &HorizontalPodAutoscaler,
);

/// Metric sources of both versions.
/// Each item has the name of the source and pairs of annotation field and version 2 field. `*` stands for
/// `target` in a metric specification and for `current` in a metric status. The conversion always writes a
/// field whose name ends with `!`.
const SOURCES: [(&str, &[(&str, &str)]); 5] = [
    (
        "object",
        &[
            ("target", "describedObject"),
            ("metricName", "metric.name"),
            ("*Value!", "*.value"),
            ("selector", "metric.selector"),
            ("averageValue", "*.averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "metric.name"),
            ("*AverageValue!", "*.averageValue"),
            ("selector", "metric.selector"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "name"),
            ("*AverageUtilization", "*.averageUtilization"),
            ("*AverageValue", "*.averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "name"),
            ("*AverageUtilization", "*.averageUtilization"),
            ("*AverageValue", "*.averageValue"),
            ("container", "container"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "metric.name"),
            ("metricSelector", "metric.selector"),
            ("*Value", "*.value"),
            ("*AverageValue", "*.averageValue"),
        ],
    ),
];

/// Specification (target) or status (current) of a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Target,
    Current,
}

impl Side {
    fn word(self) -> &'static str {
        match self {
            Side::Target => "target",
            Side::Current => "current",
        }
    }

    fn type_name(self) -> &'static str {
        match self {
            Side::Target => "autoscaling/v2.MetricSpec",
            Side::Current => "autoscaling/v2.MetricStatus",
        }
    }
}

/// Names of the annotations without their prefix. Each annotation holds one version 2 field.
const METRICS: &str = "metrics";
const CURRENT_METRICS: &str = "current-metrics";
const CONDITIONS: &str = "conditions";
const BEHAVIOR: &str = "behavior";

const CONDITION: &str = "autoscaling/v2.HorizontalPodAutoscalerCondition";
const BEHAVIOR_TYPE: &str = "autoscaling/v2.HorizontalPodAutoscalerBehavior";
/// Field names of a behavior and its parts.
const BEHAVIOR_FIELDS: [&str; 9] = [
    "scaleUp",
    "scaleDown",
    "stabilizationWindowSeconds",
    "selectPolicy",
    "policies",
    "tolerance",
    "type",
    "value",
    "periodSeconds",
];

struct HorizontalPodAutoscaler;

impl Conversion for HorizontalPodAutoscaler {
    fn to_stored(&self, object: &mut Object, names: &Names) {
        let read_annotation = |name: &str| {
            let text = object.annotation(&annotation_key(names, name))?;
            serde_json::from_str::<Value>(text).ok()
        };
        let metrics = read_annotation(METRICS)
            .and_then(|list| convert_all(list, |metric| from_annotation_format(metric, Side::Target)));
        let current_metrics = read_annotation(CURRENT_METRICS)
            .and_then(|list| convert_all(list, |metric| from_annotation_format(metric, Side::Current)));
        let conditions = read_annotation(CONDITIONS)
            .and_then(|list| convert_all(list, |value| conform_to_type(value, CONDITION)));
        let behavior = read_annotation(BEHAVIOR)
            .and_then(|value| conform_to_type(with_field_names(value), BEHAVIOR_TYPE));
        horizontal_pod_autoscaler::drop_annotations(object, names);

        let spec = object.part_mut("spec");
        let mut all_metrics = metrics.unwrap_or_default();
        if let Some(percent) = spec.remove("targetCPUUtilizationPercentage").filter(|value| !value.is_null())
        {
            all_metrics
                .push(cpu_metric("target", json!({"type": "Utilization", "averageUtilization": percent})));
        }
        if !all_metrics.is_empty() {
            spec.insert("metrics".to_owned(), all_metrics.into());
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
        let status = object.part_mut("status");
        let percent = status.remove("currentCPUUtilizationPercentage").filter(|value| !value.is_null());
        let percent =
            percent.map(|percent| vec![cpu_metric("current", json!({"averageUtilization": percent}))]);
        // A valid annotation holds all metric statuses; without one, the CPU utilization is the only metric
        // status.
        if let Some(current_metrics) = current_metrics.or(percent) {
            status.insert("currentMetrics".to_owned(), current_metrics.into());
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), conditions.into());
        }
    }

    fn convert_from_storage(&self, object: &mut Object, names: &Names) {
        let spec = object.part_mut("spec");
        let metrics = spec.remove("metrics");
        let behavior = spec.remove("behavior");
        let (cpu_metrics, other_metrics): (Vec<Value>, Vec<Value>) =
            items(metrics).into_iter().partition(|metric| is_cpu_metric(metric, "target"));
        if let Some(percent) = cpu_metrics.first().and_then(|m| m.find("resource.target.averageUtilization"))
        {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), percent.clone());
        }
        let status = object.part_mut("status");
        let current_metrics = items(status.remove("currentMetrics"));
        let conditions = items(status.remove("conditions"));
        let current_cpu = current_metrics.iter().rfind(|metric| is_cpu_metric(metric, "current"));
        if let Some(percent) = current_cpu.and_then(|m| m.find("resource.current.averageUtilization")) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), percent.clone());
        }

        let mut write_annotation =
            |name: &str, text: String| annotate(object, &annotation_key(names, name), text);
        let list = |texts: Vec<String>| format!("[{}]", texts.join(","));
        if !other_metrics.is_empty() {
            write_annotation(
                METRICS,
                list(other_metrics.iter().map(|metric| to_annotation_format(metric, Side::Target)).collect()),
            );
        }
        if !current_metrics.is_empty() {
            write_annotation(
                CURRENT_METRICS,
                list(current_metrics.iter().map(|m| to_annotation_format(m, Side::Current)).collect()),
            );
        }
        if !conditions.is_empty() {
            write_annotation(
                CONDITIONS,
                list(conditions.iter().map(|condition| text_of_type(condition, CONDITION)).collect()),
            );
        }
        if let Some(behavior) = behavior.filter(Value::is_object) {
            // This annotation has the form of the internal type.
            write_annotation(BEHAVIOR, internal::text_of_type(Some(&behavior), BEHAVIOR_TYPE));
        }
    }
}

/// The CPU utilization metric, which is a field in version 1. `word` is `target` or `current`.
fn cpu_metric(word: &str, measure: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", word: measure}})
}

/// Whether a metric is the CPU utilization metric, a field in version 1.
/// `word` is `target` or `current`.
fn is_cpu_metric(metric: &Value, word: &str) -> bool {
    metric.text("type") == "Resource"
        && metric.text("resource.name") == "cpu"
        && metric.find(&format!("resource.{word}.averageUtilization")).is_some_and(Value::is_number)
}

/// Converts a version 2 metric to the annotation format.
fn to_annotation_format(metric: &Value, side: Side) -> String {
    let mut pairs = vec![format!("\"type\":{}", Value::from(metric.text("type")))];
    for (source, fields) in SOURCES {
        let Some(source_fields) = metric.get(source).filter(|source_fields| source_fields.is_object()) else {
            continue;
        };
        let fields = fields.iter().filter_map(|(pattern, path)| {
            let (name, always) = annotation_field(pattern, side);
            let value = match source_fields.find(&path.replace('*', side.word())) {
                Some(value) => value.clone(),
                None if always => json!("0"),
                None => return None,
            };
            let type_name = match *path {
                "describedObject" => "autoscaling/v2.CrossVersionObjectReference",
                _ => "meta/v1.LabelSelector",
            };
            Some(format!("{}:{}", Value::from(name), text_of_type(&value, type_name)))
        });
        pairs.push(format!("{}:{{{}}}", Value::from(source), fields.collect::<Vec<_>>().join(",")));
    }
    format!("{{{}}}", pairs.join(","))
}

/// Name of a field in an annotation, and whether the conversion always writes the field.
fn annotation_field(pattern: &str, side: Side) -> (String, bool) {
    let name = pattern.trim_end_matches('!');
    (name.replace('*', side.word()), name.len() != pattern.len())
}

/// Converts a metric from the annotation format to version 2; None if the metric is invalid.
fn from_annotation_format(metric: Value, side: Side) -> Option<Value> {
    if !metric.is_object() {
        return None;
    }
    let mut out = Object::default();
    out.set("type", metric.text("type"));
    for (source, fields) in SOURCES {
        let Some(source_fields) = metric.get(source).filter(|source_fields| !source_fields.is_null()) else {
            continue;
        };
        let mut converted = Object::default();
        for (pattern, path) in fields {
            let Some(value) = source_fields.get(annotation_field(pattern, side).0) else { continue };
            let path = path.replace('*', side.word());
            match path.split_once('.') {
                Some((outer, inner)) => {
                    drop(converted.part_mut(outer).insert(inner.to_owned(), value.clone()))
                }
                None => converted.set(&path, value.clone()),
            }
        }
        if side == Side::Target {
            let has = |field: &str| converted.find(&format!("target.{field}")).is_some();
            let kind = match source {
                "resource" | "containerResource" if has("averageUtilization") => "Utilization",
                "external" if has("value") => "Value",
                "object" if !has("averageValue") => "Value",
                _ => "AverageValue",
            };
            converted.part_mut("target").insert("type".to_owned(), kind.into());
        }
        out.set(source, converted.into_value());
    }
    conform_to_type(out.into_value(), side.type_name())
}

/// Renames the keys of a behavior to the field names of version 2, in any case of letters.
fn with_field_names(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| {
                let name = BEHAVIOR_FIELDS.iter().find(|name| name.eq_ignore_ascii_case(&key));
                (name.map_or(key, |name| (*name).to_owned()), with_field_names(value))
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(with_field_names).collect(),
        value => value,
    }
}

/// Converts all items of a list; None if one item has no conversion.
fn convert_all(list: Value, convert: impl Fn(Value) -> Option<Value>) -> Option<Vec<Value>> {
    match list {
        Value::Array(items) => items.into_iter().map(convert).collect(),
        _ => None,
    }
}

/// Converts a value to the stored form of its type; None if the value does not conform.
fn conform_to_type(value: Value, type_name: &str) -> Option<Value> {
    let mut object = Object::from_value(value).ok()?;
    Schema::of(type_name)?.conform(&mut object).ok()?;
    Some(object.into_value())
}

fn items(list: Option<Value>) -> Vec<Value> {
    match list {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn annotate(object: &mut Object, key: &str, text: String) {
    let annotations = object.meta_mut().entry("annotations").or_insert_with(|| json!({}));
    if let Value::Object(annotations) = annotations {
        annotations.insert(key.to_owned(), text.into());
    }
}
