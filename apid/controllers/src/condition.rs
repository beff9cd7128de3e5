//! Conditions that apid itself writes into the status of an object.

use apimachinery::object::{Map, Object, Value};

const LAST_TRANSITION_TIME: &str = "lastTransitionTime";

/// A condition without its transition time.
pub(super) struct Condition {
    /// The type of the condition.
    pub(super) kind: &'static str,
    /// The status of the condition: true stands for `True`, false for `False`.
    pub(super) status_is_true: bool,
    /// The reason of the status, in CamelCase.
    pub(super) reason: &'static str,
    /// The message, which explains the status to a person.
    pub(super) message: String,
}

impl Condition {
    /// Adds the condition, or replaces the condition of the same type. Returns whether `conditions` changed.
    ///
    /// `lastTransitionTime` changes only with the status.
    fn put(&self, conditions: &mut Vec<Value>, now: &str) -> bool {
        let status = if self.status_is_true { "True" } else { "False" };
        let desired =
            [("type", self.kind), ("status", status), ("reason", self.reason), ("message", &self.message)];
        let fields = desired.into_iter().chain([(LAST_TRANSITION_TIME, now)]);
        let mut updated: Map<String, Value> =
            fields.map(|(field, value)| (field.to_owned(), value.into())).collect();
        let Some(old) = conditions.iter_mut().find(|old| text(old, "type") == self.kind) else {
            conditions.push(Value::Object(updated));
            return true;
        };
        if desired.into_iter().all(|(field, value)| text(old, field) == value) {
            return false;
        }
        if text(old, "status") == status && !text(old, LAST_TRANSITION_TIME).is_empty() {
            updated.insert(LAST_TRANSITION_TIME.to_owned(), text(old, LAST_TRANSITION_TIME).into());
        }
        *old = Value::Object(updated);
        true
    }
}

/// Returns the object with the desired conditions, or None if the object has them already.
///
/// `now` is the current time as RFC 3339 text, as in `creationTimestamp`.
pub(super) fn with_conditions(object: &Object, desired: &[Condition], now: &str) -> Option<Object> {
    let existing = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = existing.cloned().unwrap_or_default();
    let changes = desired.iter().filter(|condition| condition.put(&mut conditions, now)).count();
    if changes == 0 {
        return None;
    }
    let mut object = object.clone();
    object.part_mut("status").insert("conditions".to_owned(), Value::Array(conditions));
    Some(object)
}

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or("")
}
