//! Type and metadata of the object and of embedded objects.
//!
//! # Contract
//!
//! Metadata conforms to the built-in ObjectMeta: unknown fields are reported and dropped, values have their
//! stored form. A malformed field is an error in a request body; a stored object loses the field instead.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::format;
use apimachinery::object::{Map, Object, Value};
use schema::{Schema, TypeError};

use super::MetadataRules;
use super::node::{Flag, Node};

/// The built-in schema of metadata.
pub(super) fn schema() -> Option<&'static Schema> {
    Schema::of("meta/v1.ObjectMeta")
}

/// Conforms the metadata of an object. Returns the paths of unknown fields.
pub(super) fn conform_root(object: &mut Object) -> Result<Vec<String>, TypeError> {
    conform(&mut object.0, &FieldPath::root())
}

/// Drops malformed metadata of a stored object.
pub(super) fn repair_root(object: &mut Object) {
    repair(&mut object.0);
}

/// Conforms the metadata of embedded objects, below the root.
pub(super) fn conform_embedded(
    root: &Node,
    fields: &mut Map<String, Value>,
) -> Result<Vec<String>, TypeError> {
    let mut unknown = Vec::new();
    let visit = &mut |fields: &mut Map<String, Value>, path: &FieldPath| {
        for name in ["apiVersion", "kind"] {
            if let Some(value) = fields.get(name).filter(|value| !value.is_string()) {
                let path = path.child(name);
                let message = FieldError::invalid(&path, value.clone(), "must be a string").to_string();
                return Err(TypeError { path: path.as_str().to_owned(), message });
            }
        }
        unknown.extend(conform(fields, path)?);
        Ok(())
    };
    each_embedded_below(root, fields, &FieldPath::root(), visit)?;
    Ok(unknown)
}

/// Drops malformed types and metadata of the embedded objects of a stored object.
pub(super) fn repair_embedded(root: &Node, fields: &mut Map<String, Value>) {
    let visit = &mut |fields: &mut Map<String, Value>, _: &FieldPath| {
        for name in ["apiVersion", "kind"] {
            if fields.get(name).is_some_and(|value| !value.is_string()) {
                fields.remove(name);
            }
        }
        repair(fields);
        Ok(())
    };
    drop(each_embedded_below(root, fields, &FieldPath::root(), visit));
}

/// Conforms `metadata` among the fields of an object at a path.
fn conform(fields: &mut Map<String, Value>, path: &FieldPath) -> Result<Vec<String>, TypeError> {
    let (Some(schema), Some(value)) = (schema(), fields.get_mut("metadata")) else { return Ok(Vec::new()) };
    let path = path.child("metadata");
    let Value::Object(metadata) = value else {
        if value.is_null() {
            *value = Value::Object(Map::new());
            return Ok(Vec::new());
        }
        let message = FieldError::invalid(&path, value.clone(), "must be an object").to_string();
        return Err(TypeError { path: path.as_str().to_owned(), message });
    };
    let mut object = Object(std::mem::take(metadata));
    let conformed = schema.conform(&mut object);
    remove_null_creation_timestamp(&mut object.0);
    *metadata = object.0;
    let report = conformed
        .map_err(|error| TypeError { path: format!("{path}.{}", error.path), message: error.message })?;
    Ok(report.unknown.into_iter().map(|field| format!("{path}.{field}")).collect())
}

/// Conforms `metadata` and drops fields with malformed values.
fn repair(fields: &mut Map<String, Value>) {
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

/// A visit of the fields of an embedded object at a path.
type Visit<'v> = dyn FnMut(&mut Map<String, Value>, &FieldPath) -> Result<(), TypeError> + 'v;

/// Visits embedded objects below a node, parents first.
fn each_embedded_below(
    node: &Node,
    fields: &mut Map<String, Value>,
    path: &FieldPath,
    visit: &mut Visit<'_>,
) -> Result<(), TypeError> {
    if !node.has(Flag::HasEmbedded) {
        return Ok(());
    }
    for (name, value) in fields {
        // In the paths of unknown fields, keys of maps look like fields.
        if let Some(child) = node.field(name) {
            each_embedded(child, value, &path.child(name), visit)?;
        }
    }
    Ok(())
}

fn each_embedded(
    node: &Node,
    value: &mut Value,
    path: &FieldPath,
    visit: &mut Visit<'_>,
) -> Result<(), TypeError> {
    match value {
        Value::Object(fields) => {
            if node.has(Flag::Embedded) {
                visit(fields, path)?;
            }
            each_embedded_below(node, fields, path, visit)
        }
        Value::Array(items) if node.has(Flag::HasEmbedded) => {
            let Some(child) = node.items.as_deref() else { return Ok(()) };
            let mut indexed = items.iter_mut().enumerate();
            indexed.try_for_each(|(index, item)| each_embedded(child, item, &path.index(index), visit))
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
    let mut errors = FieldErrors::new();
    EmbeddedValidator { metadata, errors: &mut errors }.validate_fields(root, fields, &FieldPath::root());
    errors
}

/// Like [`validate_embedded`], for a single value, which may be an embedded object itself.
pub(super) fn validate_embedded_value(
    node: &Node,
    value: &Value,
    path: &FieldPath,
    metadata: MetadataRules<'_>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    EmbeddedValidator { metadata, errors: &mut errors }.validate_value(node, value, path);
    errors
}

/// Validates the types and metadata of embedded objects in a walk.
struct EmbeddedValidator<'a> {
    metadata: MetadataRules<'a>,
    errors: &'a mut FieldErrors,
}

impl EmbeddedValidator<'_> {
    fn validate_fields(&mut self, node: &Node, fields: &Map<String, Value>, path: &FieldPath) {
        if !node.has(Flag::HasEmbedded) {
            return;
        }
        for (name, value) in fields {
            match (node.property(name), node.additional()) {
                (Some(child), _) => self.validate_value(child, value, &path.child(name)),
                (None, Some(child)) => self.validate_value(child, value, &path.key(name)),
                (None, None) => {}
            }
        }
    }

    fn validate_value(&mut self, node: &Node, value: &Value, path: &FieldPath) {
        match value {
            Value::Object(fields) => {
                if node.has(Flag::Embedded) {
                    self.validate_object(fields, path);
                }
                self.validate_fields(node, fields, path);
            }
            Value::Array(items) if node.has(Flag::HasEmbedded) => {
                if let Some(child) = node.items.as_deref() {
                    for (index, item) in items.iter().enumerate() {
                        self.validate_value(child, item, &path.index(index));
                    }
                }
            }
            _ => {}
        }
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
                self.errors.push(FieldError::invalid(&path, other.clone(), "must be an object"));
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
        match fields.get(name) {
            None => self.errors.push(FieldError::required(&path, "")),
            Some(Value::String(text)) if text.is_empty() => self.errors.push(FieldError::required(&path, "")),
            Some(Value::String(text)) => {
                if let Some(detail) = check(text) {
                    self.errors.push(FieldError::invalid(&path, text.as_str(), &detail));
                }
            }
            Some(other) => {
                self.errors.push(FieldError::invalid(&path, other.clone(), "must be a string"));
            }
        }
    }
}
