//! The client tool's record of what it applied last, kept in an annotation: for going from its own apply to the server's.
//!
//! # Reference
//!
//! The tool applies on the server as one manager and wrote before as another, so that its first apply on the server would
//! conflict with itself. What the annotation says and the object still has is its own. The annotation, once there, is
//! kept up to date, so that the tool may go back.

use apimachinery::object::{Object, Value};
use schema::merge::Merge;

use crate::set::Set;
use crate::typed::{compare, field_set};

/// Bytes of all annotations of an object.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// What the tool applied and the object still has.
pub(crate) fn unchanged(merge: &Merge, live: &Object, annotation: &str) -> Set {
    let Some(Ok(Value::Object(applied))) = live.annotation(annotation).map(serde_json::from_str::<Value>)
    else {
        return Set::default();
    };
    let compared = compare(merge, &applied, &live.0);
    field_set(merge, &applied)
        .difference(&compared.modified)
        .difference(&compared.added)
        .difference(&compared.removed)
}

/// Writes down what is applied, when the object has the annotation.
pub(crate) fn record(object: &mut Object, patch: &Object, annotation: &str) {
    if object.annotation(annotation).is_none_or(str::is_empty) {
        return;
    }
    let mut applied = patch.clone();
    if let Some(Value::Object(annotations)) = applied.meta_mut().get_mut("annotations") {
        annotations.remove(annotation);
    }
    let text = format!("{}\n", escape(&applied.into_value().to_string()));
    let others: usize = object
        .annotations()
        .filter(|(name, _)| *name != annotation)
        .map(|(name, value)| name.len() + value.len())
        .sum();
    let fits = others + annotation.len() + text.len() <= ANNOTATIONS_MAX;
    if let Some(Value::Object(annotations)) = object.meta_mut().get_mut("annotations") {
        if fits {
            annotations.insert(annotation.to_owned(), Value::from(text));
        } else {
            annotations.remove(annotation);
        }
    }
}

/// As the tool writes JSON: what HTML could take for its own is escaped. These characters are only in strings.
fn escape(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            _ => text.push(c),
        }
    }
    text
}
