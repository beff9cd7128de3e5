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

use std::sync::{Arc, OnceLock};

use apimachinery::object::Value;

use crate::table::{Schema, find, lines_of};

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
    fields: Box<[Field]>,
    atomic: bool,
    /// The type of undeclared fields; None forbids them.
    rest: Option<Merge>,
}

/// A field of a struct.
#[derive(Debug)]
pub struct Field {
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
    pub fn new(mut fields: Vec<Field>, atomic: bool, rest: Option<Merge>) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        StructType { fields: fields.into_boxed_slice(), atomic, rest }
    }

    /// Returns a declared field.
    pub fn field(&self, name: &str) -> Option<&Field> {
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
            Inner::Table(name, cell) => *cell.get_or_init(|| Schema::of(name).map(struct_type)),
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

fn struct_type(schema: &'static Schema) -> &'static StructType {
    schema.merge.get_or_init(|| {
        let mut fields = Vec::new();
        read(schema.name, &mut fields);
        StructType::new(fields, crate::facts::is_atomic(schema.name), None)
    })
}

/// Reads the fields of a type in the table, including those of embedded types.
fn read(name: &str, fields: &mut Vec<Field>) {
    for line in find(name).map_or("", lines_of).lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(ty)) = (words.next(), words.next()) else { continue };
        if name == "=" {
            read(ty, fields);
        } else {
            let facts = Facts::read(words);
            fields.push(Field {
                name: name.to_owned(),
                ty: merge_type(ty, &facts),
                patch: Patch {
                    merge: facts.has_strategy("merge"),
                    replace: facts.has_strategy("replace"),
                    key: facts.key.map(str::to_owned),
                },
            });
        }
    }
}

/// The facts at the end of a field line.
#[derive(Default)]
struct Facts {
    list: Option<&'static str>,
    keys: Option<&'static str>,
    map: Option<&'static str>,
    patch: Option<&'static str>,
    key: Option<&'static str>,
}

impl Facts {
    fn read(words: impl Iterator<Item = &'static str>) -> Self {
        let mut facts = Facts::default();
        for word in words {
            match word.split_once('=') {
                Some(("list", value)) => facts.list = Some(value),
                Some(("keys", value)) => facts.keys = Some(value),
                Some(("map", value)) => facts.map = Some(value),
                Some(("patch", value)) => facts.patch = Some(value),
                Some(("key", value)) => facts.key = Some(value),
                _ => {}
            }
        }
        facts
    }

    fn has_strategy(&self, name: &str) -> bool {
        self.patch.is_some_and(|all| all.split(',').any(|strategy| strategy == name))
    }
}

fn merge_type(ty: &'static str, facts: &Facts) -> Merge {
    if let Some(target) = ty.strip_prefix('*') {
        return merge_type(target, facts);
    }
    if let Some(items) = ty.strip_prefix("[]") {
        return Merge::List {
            items: Box::new(merge_type(items, &Facts::default())),
            list: list_type(items, facts),
        };
    }
    let atomic = facts.map == Some("atomic");
    if let Some(values) = ty.strip_prefix("{}") {
        return Merge::Map { values: Box::new(merge_type(values, &Facts::default())), atomic };
    }
    if ty.starts_with("string(") {
        return Merge::Scalar(Scalar::String);
    }
    match ty {
        "string" | "bytes" | "Time" | "MicroTime" => Merge::Scalar(Scalar::String),
        "bool" => Merge::Scalar(Scalar::Bool),
        "int32" | "int64" | "float64" => Merge::Scalar(Scalar::Number),
        "Quantity" | "IntOrString" => Merge::Scalar(Scalar::Any),
        "ResourceList" => Merge::Map { values: Box::new(Merge::Scalar(Scalar::Any)), atomic },
        "RawExtension" | "FieldsV1" => Merge::Untyped { atomic: false },
        _ if ty == "interface{}" || ty.ends_with(".JSON") || ty.contains(".JSONSchemaPropsOr") => {
            Merge::Untyped { atomic: true }
        }
        _ => Merge::Struct(StructRef {
            inner: Inner::Table(ty, OnceLock::new()),
            atomic: facts.map.map(|_| atomic),
        }),
    }
}

fn list_type(items: &'static str, facts: &Facts) -> List {
    let map_by = |names: &str| {
        let keys =
            names.split('+').map(|name| Key { name: name.to_owned(), default: key_default(items, name) });
        List::Map(keys.collect())
    };
    match (facts.list, facts.keys, facts.key) {
        (Some("map"), Some(keys), _) => map_by(keys),
        (Some("set"), ..) => List::Set,
        (Some(_), ..) => List::Atomic,
        (None, _, Some(key)) if facts.has_strategy("merge") => map_by(key),
        (None, ..) if facts.has_strategy("merge") => List::Set,
        (None, ..) => List::Atomic,
    }
}

/// The default of a field of the list items, from the type table; None without a default.
fn key_default(items: &'static str, field: &str) -> Option<Value> {
    let line = find(items.trim_start_matches('*'))
        .map_or("", lines_of)
        .lines()
        .find(|line| line.split_ascii_whitespace().next() == Some(field))?;
    let text = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("default="))?;
    serde_json::from_str(text).ok()
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
