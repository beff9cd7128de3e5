//! HorizontalPodAutoscaler: scales a workload by measured metrics.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::horizontal_pod_autoscaler_rules as rules;
use crate::defaults::part;
use crate::table::cell::{PathReader, UNKNOWN, UNSET, first_texts, or_none};
use crate::table::{AGE, NAME, Source};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: &[Subresource::status("HorizontalPodAutoscaler")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        revalidation: Revalidation::MainResource,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Reference", "Workload that the autoscaler scales."),
        Column::text("Targets", "Current and target values of the metrics."),
        Column::text("MinPods", "Minimum number of pods.")
            .with_source(Source::TextOrNumber("spec.minReplicas", UNSET)),
        Column::text("MaxPods", "Maximum number of pods.").with_source(Source::Number("spec.maxReplicas")),
        Column::text("Replicas", "Current number of pods.")
            .with_source(Source::Number("status.currentReplicas")),
        AGE,
    ],
    cells,
    strategy: &HorizontalPodAutoscaler,
    ..BuiltInKind::namespaced("autoscaling/v2.HorizontalPodAutoscaler", "horizontalpodautoscalers")
};

struct HorizontalPodAutoscaler;

impl Strategy for HorizontalPodAutoscaler {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        drop_annotations(object, ctx.names);
        let Some(Value::Object(spec)) = object.get_mut("spec") else { return };
        spec.entry("minReplicas").or_insert_with(|| 1.into());
        if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let target = json!({"type": "Utilization", "averageUtilization": 80});
            let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
            spec.insert("metrics".to_owned(), json!([cpu]));
        }
        if let Some(Value::Object(behavior)) = spec.get_mut("behavior") {
            for (direction, defaults) in default_behavior() {
                let rules = behavior.entry(direction).or_insert_with(|| json!({}));
                let (Value::Object(rules), Value::Object(defaults)) = (rules, defaults) else { continue };
                for (field, value) in defaults {
                    rules.entry(field).or_insert(value);
                }
            }
        }
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        remove_disabled(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, _ctx: &Context<'_>) {
        remove_disabled(new);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" { rules::validate_status(new) } else { FieldErrors::new() }
    }
}

/// Names of the annotations that hold fields of this version in older versions, without their prefix.
pub(super) const ANNOTATIONS: [&str; 4] = ["metrics", "current-metrics", "conditions", "behavior"];

/// Key of one of [`ANNOTATIONS`].
pub(super) fn annotation_key(names: &Names, name: &str) -> String {
    names.label_sub_key("autoscaling.alpha", name)
}

/// Removes the annotations that hold fields of this version in older versions.
pub(super) fn drop_annotations(object: &mut Object, names: &Names) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    for name in ANNOTATIONS {
        annotations.remove(&annotation_key(names, name));
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Removes the fields of the feature gate HPAConfigurableTolerance, which is off by default.
fn remove_disabled(object: &mut Object) {
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = part(object, &format!("spec.behavior.{direction}")) {
            rules.remove("tolerance");
        }
    }
}

/// Default scaling rules for scale-up and scale-down.
fn default_behavior() -> [(&'static str, Value); 2] {
    let policy = |kind: &str, value: i64| json!({"type": kind, "value": value, "periodSeconds": 15});
    let scale_up = json!({
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [policy("Pods", 4), policy("Percent", 100)],
    });
    [
        ("scaleUp", scale_up),
        ("scaleDown", json!({"selectPolicy": "Max", "policies": [policy("Percent", 100)]})),
    ]
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let target = |field: &str| object.text(&format!("spec.scaleTargetRef.{field}"));
    vec![json!(format!("{}/{}", target("kind"), target("name"))), json!(targets(object))]
}

/// The first two metrics as `current/target`, and the number of further metrics.
fn targets(object: &Object) -> String {
    let current = object.items("status.currentMetrics");
    let metrics = object.items("spec.metrics").iter().enumerate();
    let texts: Vec<String> = metrics.filter_map(|(i, metric)| target(metric, current.get(i))).collect();
    or_none(first_texts(&texts, 2, ", "))
}

fn target(metric: &Value, current: Option<&Value>) -> Option<String> {
    let source = match metric.text("type") {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return None,
    };
    let current = current.and_then(|current| current.get(source));
    let current_value = |field: &str| {
        current.map_or_else(
            || UNKNOWN.to_owned(),
            |current| current.text_or_number(&format!("current.{field}"), UNKNOWN),
        )
    };
    let metric = metric.get(source)?;
    let target_value = |field: &str| metric.text_or_number(&format!("target.{field}"), "");
    let has_average = !target_value("averageValue").is_empty();
    Some(match source {
        "resource" | "containerResource" if has_average => {
            format!(
                "{}: {}/{}",
                metric.text("name"),
                current_value("averageValue"),
                target_value("averageValue")
            )
        }
        "resource" | "containerResource" => {
            let percent = |text: String, absent: &str| match text.as_str() {
                "" | UNKNOWN => absent.to_owned(),
                number => format!("{number}%"),
            };
            let current_value = percent(current_value("averageUtilization"), UNKNOWN);
            let target_value = percent(target_value("averageUtilization"), "<auto>");
            format!("{}: {current_value}/{target_value}", metric.text("name"))
        }
        "pods" => format!("{}/{}", current_value("averageValue"), target_value("averageValue")),
        _ if has_average => {
            format!("{}/{} (avg)", current_value("averageValue"), target_value("averageValue"))
        }
        _ => format!("{}/{}", current_value("value"), target_value("value")),
    })
}
