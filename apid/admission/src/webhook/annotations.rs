//! Audit annotations about webhooks.

use apimachinery::names::Names;
use serde_json::json;

use super::hook::Hook;
use crate::PluginOutput;

/// Records whether a mutating webhook changed the object.
pub(super) fn record_mutation(
    notes: &PluginOutput,
    names: &Names,
    hook: &Hook,
    (round, index): (u8, usize),
    mutated: bool,
) {
    let key = names.group_sub_key("mutation.webhook.admission", &format!("round_{round}_index_{index}"));
    let value = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": mutated});
    notes.annotate(key, value.to_string());
}

/// Records that a webhook failed and the write continued.
pub(super) fn record_fail_open(
    notes: &PluginOutput,
    names: &Names,
    hook: &Hook,
    phase: &str,
    (round, index): (u8, usize),
) {
    let group = format!("failed-open.{phase}.webhook.admission");
    let key = names.group_sub_key(&group, &format!("round_{round}_index_{index}"));
    notes.annotate(key, hook.name.clone());
}

/// Adds an audit annotation from a webhook response. An annotation with an invalid or prefixed key is
/// dropped.
pub(super) fn add(notes: &PluginOutput, hook: &Hook, key: &str, value: String) {
    if kinds::format::qualified_name(key).is_empty() && !key.contains('/') {
        notes.annotate(format!("{}/{key}", hook.name), value);
    }
}
