//! Conversion of a tree to the stored form of its schema, in one traversal.

use apimachinery::object::{Map, Object, Value};

use crate::error::TypeError;
use crate::table::{OmitRule, Schema, SchemaField, Type};
use crate::value_path::{Path, PathStep};
use crate::{ConformReport, quantity, scalar};

/// Maximum number of reported unknown fields, as in kube-apiserver.
const UNKNOWN_MAX: usize = 100;

/// Converts an object to the stored form of a schema, in place.
pub(crate) fn object(schema: &'static Schema, object: &mut Object) -> Result<ConformReport, TypeError> {
    let mut report = ConformReport::default();
    fields(schema, &mut object.0, None, &mut report)?;
    Ok(report)
}

type Result<T = (), E = TypeError> = std::result::Result<T, E>;

/// Conforms the fields of a struct.
fn fields(
    schema: &'static Schema,
    map: &mut Map<String, Value>,
    parent: Option<&Path<'_>>,
    report: &mut ConformReport,
) -> Result {
    let mut has_omitted = false;
    let mut missing = schema.always_written.len();
    for (name, value) in map.iter_mut() {
        let path = Path { parent, step: PathStep::Field(name, schema) };
        let is_kept = match schema.field(name) {
            Some(known) => {
                let is_kept = field(schema, known, value, &path, report)?;
                missing -= usize::from(is_kept && known.is_always_written);
                is_kept
            }
            None => {
                if report.unknown.len() < UNKNOWN_MAX {
                    report.unknown.push(path.render());
                }
                false
            }
        };
        if !is_kept {
            *value = Value::Null;
            has_omitted = true;
        }
    }
    // Null marks the dropped fields: at this point no kept value is null.
    if has_omitted {
        map.retain(|_, value| !value.is_null());
    }
    if missing > 0 {
        for field in schema.always_written.iter().filter_map(|i| schema.fields.get(*i)) {
            if !map.contains_key(field.name) {
                map.insert(field.name.to_owned(), field.ty.zero());
            }
        }
    }
    Ok(())
}

/// Conforms a field, and returns whether it stays.
fn field(
    schema: &'static Schema,
    field: &'static SchemaField,
    value: &mut Value,
    path: &Path<'_>,
    report: &mut ConformReport,
) -> Result<bool> {
    if value.is_null() {
        return Ok(false);
    }
    conform(&field.ty, value, path, report)?;
    if value.is_null() {
        return Ok(false);
    }
    match (field.omitted, &field.ty) {
        _ if field.keeps_sent_empty => Ok(true),
        (_, Type::Pointer(_)) => Ok(true),
        (OmitRule::Never, Type::List(_)) => {
            Ok(schema.keeps_empty_lists || value.as_array().is_some_and(|list| !list.is_empty()))
        }
        (OmitRule::Never, _) => Ok(true),
        (OmitRule::Empty | OmitRule::Zero, ty) => Ok(!ty.is_empty(value)),
    }
}

fn conform(ty: &'static Type, value: &mut Value, path: &Path<'_>, report: &mut ConformReport) -> Result {
    let fits = match (ty, &mut *value) {
        (Type::Pointer(inner), _) => return conform(inner, value, path, report),
        (Type::String(_), Value::String(_)) | (Type::Bool, Value::Bool(_)) | (Type::Any, _) => true,
        (Type::Int32, Value::Number(n)) => scalar::integer(n).is_some_and(|i| i32::try_from(i).is_ok()),
        (Type::Int64, Value::Number(n)) => scalar::integer(n).is_some(),
        (Type::Float64, Value::Number(n)) => {
            scalar::shorten_float(n);
            true
        }
        (Type::Bytes, Value::String(text)) => return scalar::base64(text, path),
        (Type::Bytes, Value::Array(items)) => {
            *value = Value::String(scalar::base64_of_numbers(items, path)?);
            true
        }
        (Type::Time | Type::MicroTime, _) => return scalar::time(value, matches!(ty, Type::MicroTime), path),
        (Type::Quantity, _) => return quantity_at(value, path, quantity::NANO),
        (Type::ResourceList, Value::Object(map)) => {
            for (key, value) in map {
                quantity_at(value, &Path { parent: Some(path), step: PathStep::Key(key) }, quantity::MILLI)?;
            }
            true
        }
        (Type::IntOrString, Value::String(_)) => true,
        (Type::IntOrString, Value::Number(n)) => scalar::integer(n).is_some_and(|i| i32::try_from(i).is_ok()),
        (Type::SchemaOrBool(_), Value::Bool(_)) => true,
        (
            Type::Struct(r) | Type::SchemaOrBool(r) | Type::SchemaOrArray(r) | Type::SchemaOrStrings(r),
            Value::Object(map),
        ) => {
            return match r.schema() {
                Some(schema) => fields(schema, map, Some(path), report),
                None => Ok(()),
            };
        }
        (Type::SchemaOrArray(r), Value::Array(list)) => {
            for (i, item) in list.iter_mut().enumerate() {
                let path = Path { parent: Some(path), step: PathStep::Index(i) };
                match (item, r.schema()) {
                    (Value::Object(map), Some(schema)) => fields(schema, map, Some(&path), report)?,
                    (item, _) => return Err(path.mismatch(item, ty)),
                }
            }
            true
        }
        (Type::SchemaOrStrings(_), Value::Array(list)) => list.iter().all(Value::is_string),
        // As in kube-apiserver, a scalar at the place of a schema is no error, and is dropped.
        (
            Type::SchemaOrArray(_) | Type::SchemaOrStrings(_),
            Value::String(_) | Value::Number(_) | Value::Bool(_),
        ) => {
            *value = Value::Null;
            true
        }
        (Type::List(inner), Value::Array(list)) => {
            for (i, item) in list.iter_mut().enumerate() {
                let path = Path { parent: Some(path), step: PathStep::Index(i) };
                element(inner, item, &path, report)?;
            }
            true
        }
        (Type::Map(inner), Value::Object(map)) => {
            for (key, item) in map {
                let path = Path { parent: Some(path), step: PathStep::Key(key) };
                element(inner, item, &path, report)?;
            }
            true
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(path.mismatch(value, ty)) }
}

/// Conforms a list item or a map value: null becomes the zero of the type.
fn element(ty: &'static Type, value: &mut Value, path: &Path<'_>, report: &mut ConformReport) -> Result {
    if value.is_null() {
        *value = match ty {
            Type::Bytes => Value::from(""),
            _ => ty.zero(),
        };
        return Ok(());
    }
    conform(ty, value, path, report)
}

fn quantity_at(value: &mut Value, path: &Path<'_>, finest: i32) -> Result {
    let sent = match value {
        Value::String(text) => std::mem::take(text),
        Value::Number(number) => number.to_string(),
        Value::Null => "0".to_owned(),
        // The reference parses the JSON text of any other value, and fails. `{}` fails in the same way.
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => String::from("{}"),
    };
    let canonical = quantity::canonical(&sent, finest).map_err(|error| path.malformed(error.to_string()))?;
    *value = Value::String(canonical.unwrap_or(sent));
    Ok(())
}

#[cfg(test)]
mod tests;
