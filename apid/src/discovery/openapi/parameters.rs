//! The parameters of operations.

use schema::facts::{self, Shape};
use serde_json::{Map, Value, json};

use super::Dialect;

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Path,
    Query,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) ty: &'static str,
    pub(super) description: String,
}

impl Parameter {
    /// In the words of a dialect.
    pub(super) fn to_value(&self, dialect: Dialect) -> Value {
        let mut value = Map::new();
        value.insert("name".into(), self.name.into());
        value.insert("in".into(), if self.place == Place::Path { "path" } else { "query" }.into());
        value.insert("description".into(), self.description.as_str().into());
        if self.place == Place::Path {
            value.insert("required".into(), true.into());
        }
        match dialect {
            Dialect::V2 => {
                value.insert("type".into(), self.ty.into());
                value.insert("uniqueItems".into(), true.into());
            }
            Dialect::V3 => drop(value.insert("schema".into(), json!({"type": self.ty, "uniqueItems": true}))),
        }
        Value::Object(value)
    }
}

/// `{name}` of a kind.
pub(super) fn name(kind: &str) -> Parameter {
    path("name", format!("Name of the {kind}."))
}

/// `{namespace}`
pub(super) fn namespace() -> Parameter {
    path("namespace", "Namespace of the objects.".to_owned())
}

/// `{path}`, the rest of a path that is passed on.
pub(super) fn rest() -> Parameter {
    path("path", "Path of the request that is passed on.".to_owned())
}

fn path(name: &'static str, description: String) -> Parameter {
    Parameter { name, place: Place::Path, ty: "string", description }
}

/// Query parameters that mean the same wherever they stand: name, type, description.
const GENERAL: [(&str, &str, &str); 19] = [
    ("allowWatchBookmarks", "boolean", "Whether a watch may send events that only tell how far it is."),
    ("continue", "string", "Where a list goes on: the value that its last page gave."),
    ("dryRun", "string", "`All`: everything is done but storing."),
    ("fieldManager", "string", "Who owns the fields that the request sets."),
    ("fieldSelector", "string", "Only objects whose fields have these values."),
    (
        "fieldValidation",
        "string",
        "What becomes of unknown and of repeated fields: `Ignore` drops them, `Warn` drops them and warns, `Strict` refuses the request.",
    ),
    ("force", "boolean", "Whether an apply takes fields from other owners."),
    ("gracePeriodSeconds", "integer", "How long an object has to end, in seconds; 0 deletes at once."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Whether an object that cannot be read from the store is removed all the same.",
    ),
    ("labelSelector", "string", "Only objects with these labels."),
    ("limit", "integer", "Objects of a page, at most."),
    (
        "orphanDependents",
        "boolean",
        "Whether objects that this one owns stay. An older form of `propagationPolicy`.",
    ),
    ("pretty", "string", "`true`: the answer is indented."),
    (
        "propagationPolicy",
        "string",
        "What becomes of the objects that this one owns: `Orphan`, `Background` or `Foreground`.",
    ),
    ("resourceVersion", "string", "The version that is read, or from which on changes are sent."),
    ("resourceVersionMatch", "string", "How `resourceVersion` is meant: `Exact` or `NotOlderThan`."),
    ("sendInitialEvents", "boolean", "Whether a watch first sends what there is."),
    ("timeoutSeconds", "integer", "After how many seconds a list or watch ends."),
    ("watch", "boolean", "Changes are sent as they come, in place of a list."),
];

/// The general parameters of a list or watch.
pub(super) const READ_MANY: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
/// Those of a create or update.
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
/// Those of a patch.
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
/// Those of a delete.
pub(super) const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
/// Those of deleting a collection.
pub(super) const DELETE_MANY: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];

/// All general parameters.
pub(super) fn all_general() -> impl Iterator<Item = Parameter> {
    GENERAL.into_iter().map(|(name, ty, description)| Parameter {
        name,
        place: Place::Query,
        ty,
        description: description.to_owned(),
    })
}

/// A general parameter by its name.
pub(super) fn general(name: &str) -> Option<Parameter> {
    all_general().find(|parameter| parameter.name == name)
}

/// The query parameters that stand for the fields of an options type. Empty when there is no such type.
pub(super) fn of_options(type_name: &str) -> Vec<Parameter> {
    let fields = facts::fields(type_name).unwrap_or_default();
    let parameters = fields.into_iter().filter(|field| !matches!(field.name, "kind" | "apiVersion"));
    parameters
        .map(|field| {
            let ty = match field.shape.target() {
                Shape::Bool => "boolean",
                Shape::Int32 | Shape::Int64 => "integer",
                // A list is given by repeating the parameter.
                Shape::List(of) if matches!(**of, Shape::Int32 | Shape::Int64) => "integer",
                _ => "string",
            };
            let description = format!("The option `{}`.", field.name);
            Parameter { name: field.name, place: Place::Query, ty, description }
        })
        .collect()
}
