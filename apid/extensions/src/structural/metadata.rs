//! Type and metadata of the object and of embedded objects.
//!
//! # Contract
//!
//! Metadata conforms to the built-in ObjectMeta: unknown fields are reported and dropped, values have their
//! stored form. A malformed field is an error in a request body; a stored object loses the field instead.

use apimachinery::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use apimachinery::format;
use apimachinery::object::{Map, Object, Value};
use schema::{Schema, TypeError};

use super::MetadataRules;
use super::node::{Flag, Node};
use super::walk::{visit_fields, visit_value};

/// The built-in schema of metadata.
pub(super) fn schema() -> Option<&'static Schema> {
    Schema::of("meta/v1.ObjectMeta")
}

/// Conforms the metadata of embedded objects, below the root.
pub(super) fn conform_embedded(
    root: &Node,
    fields: &mut Map<String, Value>,
) -> Result<Vec<String>, TypeError> {
    let mut unknown = Vec::new();
    let visit = &mut |fields: &mut Map<String, Value>, position: &Position| {
        for name in ["apiVersion", "kind"] {
            if let Some(value) = fields.get(name).filter(|value| !value.is_string()) {
                return Err(invalid_value(&position.path.child(name), value, "must be a string"));
            }
        }
        let sent = fields.get("metadata").cloned().unwrap_or_default();
        let path = position.path.child("metadata");
        if let Some(found) = json_type_of_malformed(&sent) {
            let detail = format!("json: cannot unmarshal {found} into Go value of type v1.ObjectMeta");
            return Err(invalid_value(&path, &sent, &detail));
        }
        let conformed = conform(fields, &position.field);
        unknown.extend(conformed.map_err(|error| invalid_value(&path, &sent, &error.message))?);
        Ok(())
    };
    each_embedded_below(root, fields, &Position::default(), visit)?;
    Ok(unknown)
}

/// The error of a value at a path, as in kube-apiserver.
fn invalid_value(path: &FieldPath, value: &Value, detail: &str) -> TypeError {
    let message = FieldError::untyped(FieldErrorKind::Invalid, path, value, detail).to_string();
    TypeError::new(path.as_str(), message)
}

/// The JSON type of metadata that is no object; None for an object and for null.
fn json_type_of_malformed(metadata: &Value) -> Option<&'static str> {
    match metadata {
        Value::Object(_) | Value::Null => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
    }
}

/// Drops malformed types and metadata of the embedded objects of a stored object.
pub(super) fn repair_embedded(root: &Node, fields: &mut Map<String, Value>) {
    let visit = &mut |fields: &mut Map<String, Value>, _: &Position| {
        for name in ["apiVersion", "kind"] {
            if fields.get(name).is_some_and(|value| !value.is_string()) {
                fields.remove(name);
            }
        }
        repair(fields);
        Ok(())
    };
    drop(each_embedded_below(root, fields, &Position::default(), visit));
}

/// Conforms `metadata` among the fields of an object at a path. Returns the paths of unknown fields.
pub(super) fn conform(fields: &mut Map<String, Value>, path: &FieldPath) -> Result<Vec<String>, TypeError> {
    let (Some(schema), Some(value)) = (schema(), fields.get_mut("metadata")) else { return Ok(Vec::new()) };
    let path = path.child("metadata");
    let Value::Object(metadata) = value else {
        if value.is_null() {
            *value = Value::Object(Map::new());
            return Ok(Vec::new());
        }
        return Err(invalid_value(&path, value, "must be an object"));
    };
    let mut object = Object(std::mem::take(metadata));
    let conformed = schema.conform(&mut object);
    remove_null_creation_timestamp(&mut object.0);
    *metadata = object.0;
    let report =
        conformed.map_err(|error| TypeError::new(format!("{path}.{}", error.path), error.message))?;
    Ok(report.unknown.into_iter().map(|field| format!("{path}.{field}")).collect())
}

/// Conforms `metadata` and drops fields with malformed values.
pub(super) fn repair(fields: &mut Map<String, Value>) {
    let (Some(schema), Some(value)) = (schema(), fields.get_mut("metadata")) else { return };
    let Value::Object(metadata) = value else {
        *value = Value::Object(Map::new());
        return;
    };
    let mut object = Object(std::mem::take(metadata));
    let mut conforming = object.clone();
    if schema.conform(&mut object).is_err() {
        // Conforms the fields one by one, and drops those that fail.
        conforming.0.retain(|name, value| {
            let mut single = Object(Map::from_iter([(name.clone(), value.clone())]));
            schema.conform(&mut single).is_ok()
        });
        object = conforming;
        // Fields that conform one by one also conform together.
        drop(schema.conform(&mut object));
    }
    remove_null_creation_timestamp(&mut object.0);
    *metadata = object.0;
}

/// Removes a null `creationTimestamp`, which built-in objects store.
fn remove_null_creation_timestamp(metadata: &mut Map<String, Value>) {
    if metadata.get("creationTimestamp").is_some_and(Value::is_null) {
        metadata.remove("creationTimestamp");
    }
}

/// The position of a value.
#[derive(Default)]
struct Position {
    /// The path in errors: `spec.map[key].list[0]`.
    path: FieldPath,
    /// The path in reports of unknown fields, where keys of maps look like fields: `spec.map.key.list[0]`.
    field: FieldPath,
}

/// A visit of the fields of an embedded object at a position.
type EmbeddedVisitor<'v> = dyn FnMut(&mut Map<String, Value>, &Position) -> Result<(), TypeError> + 'v;

/// Visits embedded objects below a node, parents first.
fn each_embedded_below(
    node: &Node,
    fields: &mut Map<String, Value>,
    position: &Position,
    visit: &mut EmbeddedVisitor<'_>,
) -> Result<(), TypeError> {
    if !node.has(Flag::HasEmbedded) {
        return Ok(());
    }
    for (name, value) in fields {
        let (child, path) = match (node.property(name), node.additional()) {
            (Some(child), _) => (child, position.path.child(name)),
            (None, Some(child)) => (child, position.path.key(name)),
            (None, None) => continue,
        };
        if child.has_any(&EMBEDDED) {
            each_embedded(child, value, &Position { path, field: position.field.child(name) }, visit)?;
        }
    }
    Ok(())
}

fn each_embedded(
    node: &Node,
    value: &mut Value,
    position: &Position,
    visit: &mut EmbeddedVisitor<'_>,
) -> Result<(), TypeError> {
    match value {
        Value::Object(fields) => {
            if node.has(Flag::Embedded) {
                visit(fields, position)?;
            }
            each_embedded_below(node, fields, position, visit)
        }
        Value::Array(items) if node.has(Flag::HasEmbedded) => {
            let Some(child) = node.items.as_deref() else { return Ok(()) };
            let mut indexed = items.iter_mut().enumerate();
            indexed.try_for_each(|(index, item)| {
                let (path, field) = (position.path.index(index), position.field.index(index));
                each_embedded(child, item, &Position { path, field }, visit)
            })
        }
        _ => Ok(()),
    }
}

/// Validates the types and metadata of embedded objects, below the root.
pub(super) fn validate_embedded(
    root: &Node,
    fields: &Map<String, Value>,
    metadata: MetadataRules<'_>,
) -> FieldErrors {
    let mut validator = EmbeddedValidator { metadata, errors: FieldErrors::new() };
    let visit = &mut |node: &Node, value: &Value, path: &FieldPath| validator.validate(node, value, path);
    visit_fields(root, fields, &FieldPath::root(), &EMBEDDED, visit);
    validator.errors
}

/// Like [`validate_embedded`], for a single value, which may be an embedded object itself.
pub(super) fn validate_embedded_value(
    node: &Node,
    value: &Value,
    path: &FieldPath,
    metadata: MetadataRules<'_>,
) -> FieldErrors {
    let mut validator = EmbeddedValidator { metadata, errors: FieldErrors::new() };
    let visit = &mut |node: &Node, value: &Value, path: &FieldPath| validator.validate(node, value, path);
    visit_value(node, value, path, &EMBEDDED, visit);
    validator.errors
}

/// The flags of embedded objects, and of values with embedded objects below them.
const EMBEDDED: [Flag; 2] = [Flag::Embedded, Flag::HasEmbedded];

/// Validates the types and metadata of embedded objects in a walk.
struct EmbeddedValidator<'a> {
    metadata: MetadataRules<'a>,
    errors: FieldErrors,
}

impl EmbeddedValidator<'_> {
    /// Validates a value if it is an embedded object. Returns whether it can have embedded objects below it.
    fn validate(&mut self, node: &Node, value: &Value, path: &FieldPath) -> bool {
        if let (true, Value::Object(fields)) = (node.has(Flag::Embedded), value) {
            self.validate_object(fields, path);
        }
        node.has(Flag::HasEmbedded)
    }

    /// Validates one embedded object: `apiVersion` and `kind` are required, `metadata` is not.
    fn validate_object(&mut self, fields: &Map<String, Value>, path: &FieldPath) {
        self.validate_text(fields, "apiVersion", path, |text| {
            (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
        });
        self.validate_text(fields, "kind", path, |text| {
            let messages = format::label_1035(&text.to_lowercase());
            let messages = Some(messages.join(",")).filter(|messages| !messages.is_empty());
            messages.map(|messages| format!("may have mixed case, but should otherwise match: {messages}"))
        });
        match fields.get("metadata") {
            None => {}
            Some(Value::Object(metadata)) => {
                self.errors.extend((self.metadata)(metadata, &path.child("metadata")));
            }
            Some(other) => {
                let path = path.child("metadata");
                let detail = "must be an object";
                self.errors.push(FieldError::untyped(FieldErrorKind::Invalid, &path, other, detail));
            }
        }
    }

    /// Validates a required text; `check` returns the reason why a text is invalid.
    fn validate_text(
        &mut self,
        fields: &Map<String, Value>,
        name: &str,
        path: &FieldPath,
        check: impl Fn(&str) -> Option<String>,
    ) {
        let path = path.child(name);
        let error = match fields.get(name) {
            Some(Value::String(text)) if !text.is_empty() => {
                check(text).map(|detail| FieldError::invalid(&path, text.as_str(), &detail))
            }
            None | Some(Value::String(_)) => Some(FieldError::required(&path, "")),
            Some(other) => {
                Some(FieldError::untyped(FieldErrorKind::Invalid, &path, other, "must be a string"))
            }
        };
        self.errors.extend(error);
    }
}
