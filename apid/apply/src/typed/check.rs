//! Type check of an applied object, and removal of its undeclared fields.

use apimachinery::field::{shorten, shorten_name};
use apimachinery::object::Value;
use schema::merge::{Merge, Scalar};

use super::{Fields, Form, ItemIdentity, child, form, items};
use crate::path::Element;
use crate::set::path_text;

/// A type error of an applied object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct TypingError {
    /// The path of the value.
    pub path: String,
    /// The kind of the error.
    pub why: TypingErrorKind,
}

/// The kind of a type error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypingErrorKind {
    /// The type does not declare the field.
    #[error("field not declared in schema")]
    Undeclared,
    /// Another item of the list has the same key.
    #[error("duplicate entries for key {0}")]
    Duplicate(String),
    /// The value has another JSON type than the schema declares.
    #[error("expected {expected}, got {got}")]
    Mismatch {
        /// The type in the schema.
        expected: &'static str,
        /// The type of the value.
        got: &'static str,
    },
    /// An item of a keyed list is not a map, or an item of a set is not a scalar.
    #[error("{0}")]
    Item(&'static str),
}

impl TypingError {
    /// Whether the error is a duplicate key in a list.
    pub fn is_duplicate(&self) -> bool {
        matches!(self.why, TypingErrorKind::Duplicate(_))
    }
}

/// Checks an object against its type.
///
/// # Errors
///
/// The first 101 type errors: one more than an error message lists.
pub fn check(ty: &Merge, object: &Fields) -> Result<(), Vec<TypingError>> {
    let mut walk = TypeCheck { path: Vec::new(), errors: Vec::new() };
    walk.fields(ty, object);
    if walk.errors.is_empty() { Ok(()) } else { Err(walk.errors) }
}

/// Maximum number of errors that [`check`] returns: one more than an error message lists.
const MAX_ERRORS: usize = apimachinery::field::ERRORS_MAX + 1;
/// Maximum number of paths that [`drop_undeclared`] returns; further fields are removed without a path.
const MAX_DROPPED_PATHS: usize = 100;

/// The state of a type check.
struct TypeCheck {
    path: Vec<Element>,
    errors: Vec<TypingError>,
}

impl TypeCheck {
    fn error(&mut self, why: TypingErrorKind) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        self.errors.push(TypingError { path: path_text(&self.path), why });
    }

    fn fields(&mut self, ty: &Merge, map: &Fields) {
        for (name, value) in map {
            self.path.push(Element::field(name));
            match child(ty, name) {
                Some((child, _)) => self.value(child, value),
                None => self.error(TypingErrorKind::Undeclared),
            }
            self.path.pop();
        }
    }

    fn value(&mut self, ty: &Merge, value: &Value) {
        let expected = match (ty, value) {
            (_, Value::Null) | (Merge::Untyped { .. }, _) => return,
            (Merge::Scalar(Scalar::String), Value::String(_))
            | (Merge::Scalar(Scalar::Number), Value::Number(_))
            | (Merge::Scalar(Scalar::Bool), Value::Bool(_))
            | (Merge::Scalar(Scalar::Any), Value::String(_) | Value::Number(_) | Value::Bool(_)) => return,
            (Merge::Scalar(Scalar::String), _) => "string",
            (Merge::Scalar(Scalar::Number), _) => "numeric (int or float)",
            (Merge::Scalar(Scalar::Bool), _) => "boolean",
            (Merge::Scalar(Scalar::Any), _) => "any scalar",
            (Merge::Struct(_) | Merge::Map { .. }, Value::Object(map)) => return self.fields(ty, map),
            (Merge::Struct(_) | Merge::Map { .. }, _) => "map",
            (Merge::List { items, .. }, Value::Array(list)) => return self.list(ty, items, list, value),
            (Merge::List { .. }, _) => "list",
        };
        self.error(TypingErrorKind::Mismatch { expected, got: json_type(value) });
    }

    fn list(&mut self, ty: &Merge, item_type: &Merge, list: &[Value], list_value: &Value) {
        let Form::List(_, identity) = form(ty, Some(list_value)) else {
            for (i, item) in list.iter().enumerate() {
                self.path.push(Element::Index(i64::try_from(i).unwrap_or(i64::MAX)));
                self.value(item_type, item);
                self.path.pop();
            }
            return;
        };
        let defect = match identity {
            ItemIdentity::Keyed(_) if !list.iter().all(Value::is_object) => {
                Some("an item of a list with keys must be a map")
            }
            ItemIdentity::Set if !list.iter().all(is_scalar) => Some("an item of a set must be a scalar"),
            _ => None,
        };
        if let Some(defect) = defect {
            return self.error(TypingErrorKind::Item(defect));
        }
        let mut seen = std::collections::BTreeSet::new();
        for (element, item) in items(identity, Some(list_value)) {
            if seen.contains(&element) {
                self.error(TypingErrorKind::Duplicate(shorten(&element.to_string()).into_owned()));
                continue;
            }
            self.path.push(element.clone());
            self.value(item_type, item);
            self.path.pop();
            seen.insert(element);
        }
    }
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Array(_) | Value::Object(_))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

/// Removes undeclared fields and returns the paths of the first 100.
///
/// The paths have the form of decoding errors: `spec.foo`, `spec.containers[0].bar`.
pub fn drop_undeclared(ty: &Merge, object: &mut Fields) -> Vec<String> {
    let mut dropped = Vec::new();
    drop_fields(ty, object, &PathNode::Root, &mut dropped);
    dropped
}

/// A path as a linked list on the stack: it is rendered only for dropped fields.
enum PathNode<'p> {
    Root,
    Field(&'p PathNode<'p>, &'p str),
    Item(&'p PathNode<'p>, usize),
}

impl PathNode<'_> {
    fn render(&self) -> String {
        match self {
            PathNode::Root => String::new(),
            PathNode::Field(PathNode::Root, name) => shorten_name(name).into_owned(),
            PathNode::Field(parent, name) => format!("{}.{}", parent.render(), shorten_name(name)),
            PathNode::Item(parent, index) => format!("{}[{index}]", parent.render()),
        }
    }
}

fn drop_fields(ty: &Merge, map: &mut Fields, path: &PathNode<'_>, dropped: &mut Vec<String>) {
    map.retain(|name, value| {
        let path = PathNode::Field(path, name);
        let Some((child, _)) = child(ty, name) else {
            if dropped.len() < MAX_DROPPED_PATHS {
                dropped.push(path.render());
            }
            return false;
        };
        drop_values(child, value, &path, dropped);
        true
    });
}

fn drop_values(ty: &Merge, value: &mut Value, path: &PathNode<'_>, dropped: &mut Vec<String>) {
    match (ty, value) {
        (Merge::Struct(_) | Merge::Map { .. }, Value::Object(map)) => drop_fields(ty, map, path, dropped),
        (Merge::List { items, .. }, Value::Array(list)) => {
            for (i, item) in list.iter_mut().enumerate() {
                drop_values(items, item, &PathNode::Item(path, i), dropped);
            }
        }
        _ => {}
    }
}
