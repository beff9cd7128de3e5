//! The last-applied annotation of the client tool (kubectl), for the migration from client-side apply.
//!
//! # Reference
//!
//! The tool uses one manager for server-side apply and another for client-side apply. So its first
//! server-side apply would conflict with its own earlier writes. Values in the annotation that the object
//! still has belong to the tool. The server keeps an existing annotation up to date, so that the tool can
//! return to client-side apply.

use apimachinery::codec::json;
use apimachinery::object::{Object, Value};
use schema::merge::Merge;

use crate::set::Set;
use crate::typed::{compare, field_set};

/// Maximum size in bytes of all annotations of an object.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// A client tool that records the last applied object in an annotation.
#[derive(Clone, Copy)]
pub struct LastApplied<'a> {
    /// The annotation name.
    pub annotation: &'a str,
    /// The manager name of the tool: `kubectl`.
    pub manager: &'a str,
    /// Renames the fields of a request to their names in stored objects. The annotation has the names of
    /// requests.
    pub to_stored: &'a (dyn Fn(&mut Object) + Sync),
    /// Renames the fields of a stored object to their names in requests.
    pub to_served: &'a (dyn Fn(&mut Object) + Sync),
}

/// The fields of the object in the annotation whose values the live object still has.
pub(crate) fn unchanged_fields(merge: &Merge, live: &Object, tool: LastApplied<'_>) -> Set {
    let annotation = live.annotation(tool.annotation).map(serde_json::from_str::<Value>);
    let Some(Ok(Value::Object(applied))) = annotation else { return Set::default() };
    let mut applied = Object(applied);
    (tool.to_stored)(&mut applied);
    let applied = applied.0;
    let compared = compare(merge, &applied, &live.0);
    let mut unchanged = field_set(merge, &applied);
    for changed in [&compared.modified, &compared.added, &compared.removed] {
        unchanged.subtract(changed);
    }
    unchanged
}

/// Records the applied object in the annotation, if the object has the annotation already. Removes the
/// annotation if all annotations together would exceed [`ANNOTATIONS_MAX`].
pub(crate) fn record(object: &mut Object, patch: &Object, tool: LastApplied<'_>) {
    let annotation = tool.annotation;
    if object.annotation(annotation).is_none_or(str::is_empty) {
        return;
    }
    let mut applied = patch.clone();
    if let Some(Value::Object(annotations)) = applied.meta_mut().get_mut("annotations") {
        annotations.remove(annotation);
    }
    (tool.to_served)(&mut applied);
    let text = format!("{}\n", json::escape_html(&json::to_text(&applied.0)));
    let other_bytes: usize = object
        .annotations()
        .filter(|(name, _)| *name != annotation)
        .map(|(name, value)| name.len() + value.len())
        .sum();
    let fits = other_bytes + annotation.len() + text.len() <= ANNOTATIONS_MAX;
    if let Some(Value::Object(annotations)) = object.meta_mut().get_mut("annotations") {
        if fits {
            annotations.insert(annotation.to_owned(), Value::from(text));
        } else {
            annotations.remove(annotation);
        }
    }
}
