//! The conditions that the server itself writes into the status of an object.

use apimachinery::object::{Map, Object, Value};

const SINCE: &str = "lastTransitionTime";

/// A condition without its time.
pub(super) struct Condition {
    /// Its type.
    pub(super) kind: &'static str,
    /// Its status.
    pub(super) holds: bool,
    /// Why, in a word.
    pub(super) reason: &'static str,
    /// Why, in a sentence.
    pub(super) message: String,
}

impl Condition {
    /// Puts it in the place of the one of its type, whether or not that changes anything. The time is that of the last
    /// change from yes to no or back.
    fn put(&self, conditions: &mut Vec<Value>, now: &str) -> bool {
        let status = if self.holds { "True" } else { "False" };
        let wanted =
            [("type", self.kind), ("status", status), ("reason", self.reason), ("message", &self.message)];
        let fields = wanted.into_iter().chain([(SINCE, now)]);
        let mut new: Map<String, Value> =
            fields.map(|(field, value)| (field.to_owned(), value.into())).collect();
        let Some(old) = conditions.iter_mut().find(|old| text(old, "type") == self.kind) else {
            conditions.push(Value::Object(new));
            return true;
        };
        if wanted.into_iter().all(|(field, value)| text(old, field) == value) {
            return false;
        }
        if text(old, "status") == status && !text(old, SINCE).is_empty() {
            new.insert(SINCE.to_owned(), text(old, SINCE).into());
        }
        *old = Value::Object(new);
        true
    }
}

/// The object with these conditions. None when it has them already. `now` is a time as objects write it.
pub(super) fn with_conditions(object: &Object, wanted: &[Condition], now: &str) -> Option<Object> {
    let have = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let mut conditions = have.cloned().unwrap_or_default();
    let changes = wanted.iter().filter(|condition| condition.put(&mut conditions, now)).count();
    if changes == 0 {
        return None;
    }
    let mut object = object.clone();
    let mut status = match object.remove("status") {
        Some(Value::Object(status)) => status,
        _ => Map::new(),
    };
    status.insert("conditions".to_owned(), Value::Array(conditions));
    object.set("status", status);
    Some(object)
}

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or("")
}
