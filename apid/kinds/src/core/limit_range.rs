//! LimitRange: minimum, maximum and default resource amounts of pods and containers in a namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Map, Value};

use super::limit_range_rules as rules;
use crate::{BuiltInKind, Context, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["limits"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        create_on_update: true,
        ..WriteRules::BUILT_IN
    },
    strategy: &LimitRange,
    ..BuiltInKind::namespaced("core/v1.LimitRange", "limitranges")
};

struct LimitRange;

impl Strategy for LimitRange {
    /// Completes the defaults of containers.
    /// `default` falls back to `max`; `defaultRequest` falls back to `default`, then to `min`.
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let limits = object.get_mut("spec").and_then(|spec| spec.get_mut("limits"));
        limits.and_then(Value::as_array_mut).into_iter().flatten().for_each(complete_limit);
    }

    /// Sets a random name if the object has neither `name` nor `generateName`.
    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        if object.name().is_empty() && object.meta_str("generateName").is_empty() {
            object.set_meta("name", ctx.rng.uuid());
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object, ctx.names)
    }
}

fn complete_limit(limit: &mut Value) {
    if let Some(limit) = limit.as_object_mut()
        && limit.get("type").and_then(Value::as_str) == Some("Container")
    {
        fill_amounts(limit, "default", "max");
        fill_amounts(limit, "defaultRequest", "default");
        fill_amounts(limit, "defaultRequest", "min");
    }
}

/// Copies the resource amounts of the field `from` to the field `list`, except for resources that `list`
/// contains.
fn fill_amounts(limit: &mut Map<String, Value>, list: &str, from: &str) {
    let source = limit.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
    if source.is_empty() {
        return;
    }
    let target = limit.entry(list).or_insert_with(|| Value::Object(Map::new()));
    if target.is_null() {
        *target = Value::Object(Map::new());
    }
    for (resource, amount) in source {
        if let Some(target) = target.as_object_mut() {
            target.entry(resource).or_insert(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limit_range_defaults_follow_max_and_min() {
        for (input, expected) in [
            (json!({"type": "Container", "max": {"cpu": "1"}}), json!({"cpu": "1"})),
            (
                json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}}),
                json!({"cpu": "500m"}),
            ),
            (json!({"type": "Container", "min": {"cpu": "100m"}}), json!({"cpu": "100m"})),
            (
                json!({"type": "Container", "min": {"cpu": "1m"}, "default": {"cpu": "2"}}),
                json!({"cpu": "2"}),
            ),
            (
                json!({"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
                json!({"cpu": "1"}),
            ),
            (json!({"type": "Pod", "max": {"cpu": "1"}}), json!(null)),
        ] {
            let mut limit = input.clone();
            complete_limit(&mut limit);
            assert_eq!(limit["defaultRequest"], expected, "{input}");
        }
    }
}
