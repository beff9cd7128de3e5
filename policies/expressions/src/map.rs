//! Maps and objects: from the data or created by expressions.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use crate::error::EvalError;
use crate::list::{are_scalars_equal, fields_contents, sum_to};
use crate::types::Type;
use crate::value::{Text, Value};

/// Maximum number of entries of a created map that lookups search linearly; larger maps have an index.
const LINEAR_SEARCH_MAX: usize = 8;

/// A map or an object.
#[derive(Clone)]
pub struct Map<'a>(Inner<'a>);

#[derive(Clone)]
enum Inner<'a> {
    Json(&'a JsonMap<String, Json>, &'a Type),
    Created(Arc<CreatedMap<'a>>),
}

/// A map that an expression created.
struct CreatedMap<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    /// Name of the message type; None for a map.
    message: Option<&'a str>,
    /// Index in `entries` of each key, by its canonical bytes; empty for at most [`LINEAR_SEARCH_MAX`]
    /// entries.
    index_by_key: HashMap<Vec<u8>, usize>,
    weight: u64,
}

static DYN: Type = Type::Dyn;

impl<'a> Map<'a> {
    pub(crate) fn json(fields: &'a JsonMap<String, Json>, ty: &'a Type) -> Map<'a> {
        Map(Inner::Json(fields, ty))
    }

    /// Number of nested values; see [`Value::weight`].
    pub(crate) fn weight(&self) -> u64 {
        match &self.0 {
            Inner::Json(fields, _) => fields.len() as u64,
            Inner::Created(created) => created.weight,
        }
    }

    /// Number of all nested values; see [`Value::contents`].
    pub(crate) fn contents(&self, max: u64) -> u64 {
        match &self.0 {
            Inner::Json(fields, _) => fields_contents(fields, max),
            Inner::Created(created) => sum_to(max, created.entries.iter(), |(key, value), max| {
                key.contents(max) - 1 + value.contents(max)
            }),
        }
    }

    /// Number of entries; for an object of the data the number of fields in its JSON, including null fields.
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Json(fields, _) => fields.len(),
            Inner::Created(created) => created.entries.len(),
        }
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn type_name(&self) -> &str {
        match &self.0 {
            Inner::Json(_, Type::Object(object)) => &object.name,
            Inner::Created(created) => created.message.unwrap_or("map"),
            Inner::Json(..) => "map",
        }
    }

    /// Whether the map is part of the data.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.0, Inner::Json(..))
    }

    /// Name of the type of a message; None for a map and for data.
    pub(crate) fn message(&self) -> Option<&str> {
        match &self.0 {
            Inner::Created(created) => created.message,
            Inner::Json(..) => None,
        }
    }

    /// Value of a string key.
    pub fn field(&self, key: &str) -> Option<Result<Value<'a>, EvalError>> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                fields.get(key).and_then(|json| Some(Value::of(json, value_type(ty, key, json)?)))
            }
            Inner::Created(created) if created.index_by_key.is_empty() => {
                let mut entries = created.entries.iter();
                entries.find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| Ok(v.clone()))
            }
            Inner::Created(created) => created.find(&Value::text(key)).map(Ok),
        }
    }

    /// Value of any key.
    ///
    /// # Errors
    /// The key has a type that cannot be a key, or the value does not conform to the schema.
    pub fn value(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
        match (&self.0, key) {
            (_, Value::String(text)) => self.field(text.as_str()).transpose(),
            (Inner::Json(..), _) => Ok(None),
            (Inner::Created(created), _) => Ok(created.find(key)),
        }
    }

    /// Keys in order.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                let declared = fields.iter().filter(|(key, json)| value_type(ty, key, json).is_some());
                declared.map(|(key, _)| Value::String(Text::Borrowed(key))).collect()
            }
            Inner::Created(created) => created.entries.iter().map(|(k, _)| k.clone()).collect(),
        }
    }

    /// Keys and values in order.
    ///
    /// # Errors
    /// A value does not conform to the schema.
    pub fn entries(&self) -> Result<Vec<(Value<'a>, Value<'a>)>, EvalError> {
        match &self.0 {
            Inner::Json(fields, ty) => {
                let fields: &'a JsonMap<String, Json> = fields;
                let mut entries = Vec::with_capacity(fields.len());
                for (key, json) in fields {
                    if let Some(ty) = value_type(ty, key, json) {
                        entries.push((Value::String(Text::Borrowed(key)), Value::of(json, ty)?));
                    }
                }
                Ok(entries)
            }
            Inner::Created(created) => Ok(created.entries.clone()),
        }
    }

    /// Whether the map is an object of the data with a declared field that is null.
    fn has_null_field(&self) -> bool {
        match &self.0 {
            Inner::Json(fields, Type::Object(object)) => fields.iter().any(|(name, json)| {
                json.is_null() && object.fields.values().any(|field| field.name == *name)
            }),
            _ => false,
        }
    }

    pub(crate) fn equals(&self, other: &Map<'a>) -> bool {
        // As in kube-apiserver, an object with a null field equals no object.
        if self.has_null_field() || other.has_null_field() {
            return false;
        }
        if let (Inner::Json(mine, ty), Inner::Json(theirs, other_ty)) = (&self.0, &other.0) {
            return are_fields_equal((mine, ty), (theirs, other_ty));
        }
        let (Ok(mine), Ok(theirs)) = (self.entries(), other.entries()) else { return false };
        self.message() == other.message()
            && mine.len() == theirs.len()
            && mine.iter().all(|(k, v)| matches!(other.value(k), Ok(Some(found)) if v.equals(&found)))
    }
}

/// Whether two objects of the data are equal. Both have their fields in the order of the names.
fn are_fields_equal<'a>(
    (mine, ty): (&'a JsonMap<String, Json>, &'a Type),
    (theirs, other_ty): (&'a JsonMap<String, Json>, &'a Type),
) -> bool {
    if matches!((ty, other_ty), (Type::Map(_), Type::Map(_))) && mine.len() != theirs.len() {
        return false;
    }
    let declared = |fields: &'a JsonMap<String, Json>, ty: &'a Type| {
        fields.iter().filter_map(|(name, json)| Some((name, json, value_type(ty, name, json)?)))
    };
    let mut others = declared(theirs, other_ty);
    let are_in_others = declared(mine, ty).all(|(name, json, ty)| {
        others.next().is_some_and(|(other_name, other, other_ty)| {
            name == other_name
                && are_scalars_equal((json, ty), (other, other_ty)).unwrap_or_else(|| {
                    matches!((Value::of(json, ty), Value::of(other, other_ty)), (Ok(a), Ok(b)) if a.equals(&b))
                })
        })
    });
    are_in_others && others.next().is_none()
}

impl<'a> CreatedMap<'a> {
    fn find(&self, key: &Value<'a>) -> Option<Value<'a>> {
        let entry = if self.index_by_key.is_empty() {
            self.entries.iter().find(|(known, _)| known.equals(key))
        } else {
            self.entries.get(*self.index_by_key.get(&key.canonical()?)?)
        };
        entry.map(|(_, value)| value.clone())
    }
}

/// Builder of a map.
#[derive(Default)]
pub(crate) struct MapBuilder<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    index_by_key: HashMap<Vec<u8>, usize>,
}

impl<'a> MapBuilder<'a> {
    /// Adds an entry of a map literal, whose key can have any type. It replaces an entry with an equal key.
    pub(crate) fn set(&mut self, key: Value<'a>, value: Value<'a>) {
        match self.position(&key).and_then(|at| self.entries.get_mut(at)) {
            Some(entry) => entry.1 = value,
            None => self.push(key, value),
        }
    }

    /// Index of the entry with this key.
    fn position(&self, key: &Value<'a>) -> Option<usize> {
        if self.index_by_key.is_empty() {
            return self.entries.iter().position(|(known, _)| known.equals(key));
        }
        self.index_by_key.get(&key.canonical()?).copied()
    }

    /// Adds an entry; an error for a key of another type than bool, int, uint or string, and for a duplicate
    /// key.
    pub(crate) fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<(), EvalError> {
        if !matches!(key, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::String(_)) {
            return Err(EvalError::failed("unsupported key type"));
        }
        if self.position(&key).is_some() {
            return Err(EvalError::failed(format!("insert failed: key {key:?} already exists")));
        }
        self.push(key, value);
        Ok(())
    }

    fn push(&mut self, key: Value<'a>, value: Value<'a>) {
        self.entries.push((key, value));
        let indexed =
            if self.entries.len() > LINEAR_SEARCH_MAX { self.index_by_key.len() } else { self.entries.len() };
        for (at, (key, _)) in self.entries.iter().enumerate().skip(indexed) {
            self.index_by_key.extend(key.canonical().map(|bytes| (bytes, at)));
        }
    }

    /// Returns the map.
    pub(crate) fn finish(self) -> Map<'a> {
        self.finish_as(None)
    }

    /// Returns the map, as a message if its type has a name.
    pub(crate) fn finish_as(self, message: Option<&'a str>) -> Map<'a> {
        let weight = crate::list::total_weight(self.entries.iter().map(|(_, value)| value));
        let MapBuilder { entries, index_by_key } = self;
        Map(Inner::Created(Arc::new(CreatedMap { entries, message, index_by_key, weight })))
    }
}

/// Type of the value at `key`; `None` for an undeclared or null field, which an object does not have.
fn value_type<'a>(ty: &'a Type, key: &str, json: &Json) -> Option<&'a Type> {
    match ty {
        Type::Object(_) if json.is_null() => None,
        Type::Map(types) => Some(&types.1),
        Type::Object(object) => match object.fields.get(key) {
            Some(field) if field.name == key => Some(&field.ty),
            // `fields` is ordered by the escaped names; `key` is the name in the data.
            _ => object.fields.values().find(|field| field.name == key).map(|field| &field.ty),
        },
        _ => Some(&DYN),
    }
}
