//! Maps and objects: of the data, and those that expressions make.

use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Text, Value};

/// A map or an object.
#[derive(Clone)]
pub struct Map<'a>(Inner<'a>);

#[derive(Clone)]
enum Inner<'a> {
    Json(&'a JsonMap<String, Json>, &'a Type),
    Made(Arc<Vec<(Value<'a>, Value<'a>)>>, u64),
}

static DYN: Type = Type::Dyn;

impl<'a> Map<'a> {
    pub(crate) fn json(fields: &'a JsonMap<String, Json>, ty: &'a Type) -> Map<'a> {
        Map(Inner::Json(fields, ty))
    }

    /// A map of entries whose keys are known to differ.
    pub(crate) fn made(entries: Vec<(Value<'a>, Value<'a>)>) -> Map<'a> {
        let weight = crate::list::weigh(entries.iter().map(|(_, value)| value));
        Map(Inner::Made(Arc::new(entries), weight))
    }

    /// How many values there are in it, each as often as it occurs.
    pub(crate) fn weight(&self) -> u64 {
        match &self.0 {
            Inner::Json(fields, _) => fields.len() as u64,
            Inner::Made(_, weight) => *weight,
        }
    }

    /// Number of entries; of an object, of the fields that are present.
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Json(fields, _) => fields.len(),
            Inner::Made(entries, _) => entries.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn type_name(&self) -> &str {
        match &self.0 {
            Inner::Json(_, Type::Object(object)) => &object.name,
            _ => "map",
        }
    }

    /// The value under a text key.
    pub fn field(&self, key: &str) -> Option<Result<Value<'a>, EvalError>> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                fields.get(key).and_then(|json| Some(Value::of(json, value_type(ty, key)?)))
            }
            Inner::Made(entries, _) => {
                entries.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| Ok(v.clone()))
            }
        }
    }

    /// The value under any key.
    ///
    /// # Errors
    /// When values of the key's type are never keys.
    pub fn value(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
        match (&self.0, key) {
            (_, Value::String(text)) => self.field(text.as_str()).transpose(),
            (_, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_)) => match &self.0 {
                Inner::Json(..) => Ok(None),
                Inner::Made(entries, _) => {
                    Ok(entries.iter().find(|(k, _)| k.equals(key)).map(|(_, v)| v.clone()))
                }
            },
            _ => Err(EvalError::failed("unsupported key type")),
        }
    }

    /// The keys in order.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                let known = fields.keys().filter(|key| value_type(ty, key).is_some());
                known.map(|key| Value::String(Text::Borrowed(key))).collect()
            }
            Inner::Made(entries, _) => entries.iter().map(|(k, _)| k.clone()).collect(),
        }
    }

    /// Keys and values in order.
    ///
    /// # Errors
    /// When a value cannot be read as the schema says.
    pub fn entries(&self) -> Result<Vec<(Value<'a>, Value<'a>)>, EvalError> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                let mut entries = Vec::with_capacity(fields.len());
                for (key, json) in fields {
                    if let Some(ty) = value_type(ty, key) {
                        entries.push((Value::String(Text::Borrowed(key)), Value::of(json, ty)?));
                    }
                }
                Ok(entries)
            }
            Inner::Made(entries, _) => Ok(entries.to_vec()),
        }
    }

    pub(crate) fn equals(&self, other: &Map<'a>) -> bool {
        let (Ok(mine), Ok(theirs)) = (self.entries(), other.entries()) else { return false };
        mine.len() == theirs.len()
            && mine.iter().all(|(k, v)| matches!(other.value(k), Ok(Some(found)) if v.equals(&found)))
    }
}

/// The type of the value under `key`; `None` for a field that the object does not declare.
fn value_type<'a>(ty: &'a Type, key: &str) -> Option<&'a Type> {
    match ty {
        Type::Map(types) => Some(&types.1),
        Type::Object(object) => match object.fields.get(key) {
            Some(field) if field.name == key => Some(&field.ty),
            // The name is escaped in expressions.
            _ => object.fields.values().find(|field| field.name == key).map(|field| &field.ty),
        },
        _ => Some(&DYN),
    }
}
