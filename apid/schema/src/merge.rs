//! Merge types: how values of a type merge, and which parts of an object can have separate owners.
//!
//! # Contract
//!
//! [`Merge`] describes a type for merging, comparing and patching its values. [`Schema::merge`] returns the
//! merge type of a type in the table, compiled on first use. A custom kind builds its own with
//! [`StructType::new`].
//!
//! # Reference
//!
//! A list without a list type but with the patch strategy `merge` merges by its patch merge key; without a
//! key it is a set. Any other list without a list type is atomic (requirements D-MRG-19). Maps and structs
//! are granular unless they are marked as atomic.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use apimachinery::object::Value;

use crate::facts::{self, Shape};
use crate::table::{self, Schema};

/// The merge behaviour of a type.
#[derive(Clone, Debug)]
pub enum Merge {
    /// One value with one owner.
    Scalar(Scalar),
    /// An unknown type. Granular: maps merge by key and lists are atomic. Atomic: the whole value has one
    /// owner.
    Untyped {
        /// Whether maps are atomic too.
        atomic: bool,
    },
    /// A struct with named fields.
    Struct(StructRef),
    /// A map with arbitrary keys.
    Map {
        /// The merge type of the values.
        values: Box<Merge>,
        /// Whether the whole map has one owner.
        atomic: bool,
    },
    /// A list of items.
    List {
        /// The merge type of the items.
        items: Box<Merge>,
        /// The list type.
        list: List,
    },
}

/// The JSON type of a scalar. Null matches all types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    String,
    /// An integer or a float.
    Number,
    /// A boolean.
    Bool,
    /// Any scalar.
    Any,
}

/// The list type: how items are identified.
#[derive(Clone, Debug)]
pub enum List {
    /// Atomic: the whole list has one owner.
    Atomic,
    /// Items are identified by value.
    Set,
    /// Items are identified by these fields.
    Map(Box<[Key]>),
}

/// A key field of a list.
#[derive(Clone, Debug)]
pub struct Key {
    /// The field's name.
    pub name: String,
    /// The value in items without the field.
    pub default: Option<Value>,
}

/// Reference to a struct type. Types can be recursive, so built-in types are looked up lazily.
#[derive(Clone, Debug)]
pub struct StructRef {
    inner: Inner,
    /// The mark of the field, which overrides the mark of the type: true is atomic, false is granular.
    atomic: Option<bool>,
}

#[derive(Clone, Debug)]
enum Inner {
    /// A type of the type table by name, with the result of the lookup.
    Table(&'static str, OnceLock<Option<&'static StructType>>),
    /// A type outside the table.
    Other(Arc<StructType>),
}

/// The fields of a struct type.
#[derive(Debug, Default)]
pub struct StructType {
    /// Sorted by name.
    fields: Box<[MergeField]>,
    atomic: bool,
    /// The type of undeclared fields; None forbids them.
    rest: Option<Merge>,
}

/// A field of a struct.
#[derive(Debug)]
pub struct MergeField {
    /// The JSON name.
    pub name: String,
    /// The merge type.
    pub ty: Merge,
    /// The strategic merge patch strategy.
    pub patch: Patch,
}

/// The strategic merge patch strategy of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Whether a list merges instead of being replaced.
    pub merge: bool,
    /// Whether a map is replaced instead of merging.
    pub replace: bool,
    /// The merge key of a merged list; None merges by value.
    pub key: Option<String>,
}

impl StructType {
    /// Creates a type with these fields. `rest` is the type of undeclared fields; None forbids them.
    pub fn new(mut fields: Vec<MergeField>, atomic: bool, rest: Option<Merge>) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        StructType { fields: fields.into_boxed_slice(), atomic, rest }
    }

    /// Returns a declared field.
    pub fn field(&self, name: &str) -> Option<&MergeField> {
        self.fields.get(self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()?)
    }

    /// The type of undeclared fields.
    pub fn rest(&self) -> Option<&Merge> {
        self.rest.as_ref()
    }
}

impl StructRef {
    /// A reference to a type outside the table.
    pub fn own(ty: Arc<StructType>) -> Self {
        StructRef { inner: Inner::Other(ty), atomic: None }
    }

    /// Resolves the type. None only for a dangling name in the table, which a test excludes.
    pub fn resolve(&self) -> Option<&StructType> {
        match &self.inner {
            Inner::Other(ty) => Some(ty),
            Inner::Table(name, cell) => *cell.get_or_init(|| struct_type(name)),
        }
    }

    /// Whether the whole struct has one owner.
    pub fn is_atomic(&self) -> bool {
        self.atomic.unwrap_or_else(|| self.resolve().is_some_and(|ty| ty.atomic))
    }
}

impl Schema {
    /// The merge type of objects of this type.
    pub fn merge(&'static self) -> Merge {
        Merge::Struct(StructRef { inner: Inner::Table(self.name, OnceLock::new()), atomic: None })
    }
}

/// The struct types of the table by name, each compiled on first use.
static STRUCT_TYPES: LazyLock<HashMap<&'static str, OnceLock<StructType>>> =
    LazyLock::new(|| table::index().keys().map(|name| (*name, OnceLock::new())).collect());

fn struct_type(name: &str) -> Option<&'static StructType> {
    let compile = || {
        let fields = facts::fields(name).unwrap_or_default().iter().map(merge_field).collect();
        StructType::new(fields, facts::is_atomic(name), None)
    };
    Some(STRUCT_TYPES.get(name)?.get_or_init(compile))
}

fn merge_field(field: &facts::Field) -> MergeField {
    let has_strategy = |name| has_patch_strategy(Some(field), name);
    MergeField {
        name: field.name.to_owned(),
        ty: merge_type(&field.shape, Some(field)),
        patch: Patch {
            merge: has_strategy("merge"),
            replace: has_strategy("replace"),
            key: field.merge_key.map(str::to_owned),
        },
    }
}

fn has_patch_strategy(field: Option<&facts::Field>, name: &str) -> bool {
    field.and_then(|field| field.patch).is_some_and(|all| all.split(',').any(|strategy| strategy == name))
}

/// The merge type of a field, or of the items or values of a field. Only the field itself has facts.
fn merge_type(shape: &Shape, field: Option<&facts::Field>) -> Merge {
    let map = field.and_then(|field| field.map);
    let atomic = map == Some("atomic");
    match shape {
        Shape::Pointer(target) => merge_type(target, field),
        Shape::List(items) => {
            Merge::List { items: Box::new(merge_type(items, None)), list: list_type(items, field) }
        }
        Shape::Map(values) => Merge::Map { values: Box::new(merge_type(values, None)), atomic },
        Shape::String(_) | Shape::Bytes => Merge::Scalar(Scalar::String),
        Shape::Bool => Merge::Scalar(Scalar::Bool),
        Shape::Int32 | Shape::Int64 | Shape::Float64 => Merge::Scalar(Scalar::Number),
        Shape::Named("Time" | "MicroTime") => Merge::Scalar(Scalar::String),
        Shape::Named("Quantity" | "IntOrString") => Merge::Scalar(Scalar::Any),
        Shape::Named("RawExtension" | "FieldsV1") => Merge::Untyped { atomic: false },
        Shape::Named(name)
            if *name == "interface{}" || name.ends_with(".JSON") || name.contains(".JSONSchemaPropsOr") =>
        {
            Merge::Untyped { atomic: true }
        }
        Shape::Named(name) => Merge::Struct(StructRef {
            inner: Inner::Table(name, OnceLock::new()),
            atomic: map.map(|_| atomic),
        }),
    }
}

fn list_type(items: &Shape, field: Option<&facts::Field>) -> List {
    let Some(field) = field else { return List::Atomic };
    let merges = has_patch_strategy(Some(field), "merge");
    let map_by = |names: &[&str]| {
        let key = |name: &&str| Key { name: (*name).to_owned(), default: key_default(items, name) };
        List::Map(names.iter().map(key).collect())
    };
    match (field.list, field.merge_key) {
        (Some("map"), _) if !field.keys.is_empty() => map_by(&field.keys),
        (Some("set"), _) => List::Set,
        (None, Some(key)) if merges => map_by(&[key]),
        (None, None) if merges => List::Set,
        _ => List::Atomic,
    }
}

/// The default of a field of the list items, from the type table; None without a default.
fn key_default(items: &Shape, name: &str) -> Option<Value> {
    let Shape::Named(type_name) = items.target() else { return None };
    let field = facts::fields(type_name)?.into_iter().find(|field| field.name == name)?;
    serde_json::from_str(&field.default?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ty: &str, path: &[&str]) -> String {
        let mut merge = Schema::of(ty).unwrap().merge();
        for name in path {
            merge = match &merge {
                Merge::Struct(r) => r.resolve().unwrap().field(name).unwrap().ty.clone(),
                Merge::List { items, .. } => (**items).clone(),
                other => panic!("{name} in {other:?}"),
            };
        }
        match &merge {
            Merge::Scalar(scalar) => format!("{scalar:?}"),
            Merge::Untyped { atomic } => format!("untyped atomic={atomic}"),
            Merge::Struct(r) => format!("struct atomic={}", r.is_atomic()),
            Merge::Map { atomic, .. } => format!("map atomic={atomic}"),
            Merge::List { list: List::Map(keys), .. } => {
                let keys = keys.iter().map(|key| match &key.default {
                    Some(default) => format!("{}={default}", key.name),
                    None => key.name.clone(),
                });
                format!("map by {}", keys.collect::<Vec<_>>().join(","))
            }
            Merge::List { list, .. } => format!("{list:?}"),
        }
    }

    #[test]
    fn merge_types_follow_field_facts() {
        for (ty, path, want) in [
            ("core/v1.ConfigMap", &["data"][..], "map atomic=false"),
            ("core/v1.Service", &["spec", "selector"], "map atomic=true"),
            ("core/v1.Service", &["spec", "ports"], r#"map by port,protocol="TCP""#),
            ("core/v1.Container", &["ports"], r#"map by containerPort,protocol="TCP""#),
            ("core/v1.Container", &["args"], "Atomic"),
            ("core/v1.Container", &["resources", "limits"], "map atomic=false"),
            ("apps/v1.Deployment", &["spec", "selector"], "struct atomic=true"),
            ("apps/v1.Deployment", &["spec", "replicas"], "Number"),
            ("apps/v1.Deployment", &["metadata", "finalizers"], "Set"),
            ("apps/v1.Deployment", &["metadata", "ownerReferences"], "map by uid"),
            ("core/v1.Pod", &["spec", "volumes", "x", "configMap"], "struct atomic=false"),
            ("core/v1.PersistentVolume", &["spec", "claimRef"], "struct atomic=false"),
            ("apps/v1.ControllerRevision", &["data"], "untyped atomic=false"),
            ("rbac/v1.Role", &["rules"], "Atomic"),
        ] {
            assert_eq!(at(ty, path), want, "{ty} {path:?}");
        }
    }
}
