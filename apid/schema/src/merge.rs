//! How values of a type merge: which parts of an object may have owners of their own.
//!
//! # Contract
//!
//! [`Merge`] describes a type to whoever merges, compares or patches its values. [`Schema::merge`] answers it for a type
//! of the table, compiled on first use; a custom kind builds its own with [`StructType::new`].
//!
//! # Reference
//!
//! A list without a list type that is patched by a merge key merges by that key, one that is merged without a key is a
//! set, any other is atomic (requirements D-MRG-19). Maps and structs are granular unless they are said to be atomic.

use std::sync::{Arc, OnceLock};

use apimachinery::object::Value;

use crate::table::{Schema, find, lines_of};

/// How values of a type merge.
#[derive(Clone, Debug)]
pub enum Merge {
    /// One value with one owner.
    Scalar(Scalar),
    /// Nothing is known. Granular: maps merge key by key, lists are atomic. Else all of it has one owner.
    Untyped {
        /// Whether maps are atomic too.
        atomic: bool,
    },
    /// Named fields.
    Struct(StructRef),
    /// Any keys.
    Map {
        /// The type of all values.
        values: Box<Merge>,
        /// Whether the whole has one owner.
        atomic: bool,
    },
    /// Items in an order.
    List {
        /// The type of all items.
        items: Box<Merge>,
        /// What tells items apart.
        list: List,
    },
}

/// The JSON type of a scalar. Null fits all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Text.
    String,
    /// Whole or not.
    Number,
    /// True or false.
    Bool,
    /// Any of them.
    Any,
}

/// What tells the items of a list apart.
#[derive(Clone, Debug)]
pub enum List {
    /// Nothing: the whole list has one owner.
    Atomic,
    /// Their values.
    Set,
    /// The values of these fields.
    Map(Box<[Key]>),
}

/// A field that tells items of a list apart.
#[derive(Clone, Debug)]
pub struct Key {
    /// The field's name.
    pub name: String,
    /// Its value in items that do not have it.
    pub default: Option<Value>,
}

/// A struct type; types may hold themselves, so that one of the table is looked up when it is used.
#[derive(Clone, Debug)]
pub struct StructRef {
    inner: Inner,
    /// What the field says of the struct, over what its type says.
    atomic: Option<bool>,
}

#[derive(Clone, Debug)]
enum Inner {
    Table(&'static str, OnceLock<Option<&'static StructType>>),
    Own(Arc<StructType>),
}

/// The fields of a struct type.
#[derive(Debug, Default)]
pub struct StructType {
    /// In the order of their names.
    fields: Box<[Field]>,
    atomic: bool,
    /// The type of fields that are not declared; None: there must not be any.
    rest: Option<Merge>,
}

/// A field of a struct.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Merge,
    /// How strategic merge patch treats it.
    pub patch: Patch,
}

/// How strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// A list is merged with what there is instead of replacing it.
    pub merge: bool,
    /// A map is replaced instead of merged.
    pub replace: bool,
    /// The field by which items of a merged list are told apart; None: by their values.
    pub key: Option<String>,
}

impl StructType {
    /// A type with these fields. `rest` is the type of fields that are not among them; None when there must not be any.
    pub fn new(mut fields: Vec<Field>, atomic: bool, rest: Option<Merge>) -> Self {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        StructType { fields: fields.into_boxed_slice(), atomic, rest }
    }

    /// A declared field.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()?)
    }

    /// The type of fields that are not declared.
    pub fn rest(&self) -> Option<&Merge> {
        self.rest.as_ref()
    }
}

impl StructRef {
    /// A type that is not of the table.
    pub fn own(ty: Arc<StructType>) -> Self {
        StructRef { inner: Inner::Own(ty), atomic: None }
    }

    /// The type. None only when the table names a type that it does not have, which a test excludes.
    pub fn resolve(&self) -> Option<&StructType> {
        match &self.inner {
            Inner::Own(ty) => Some(ty),
            Inner::Table(name, found) => *found.get_or_init(|| Schema::of(name).map(struct_type)),
        }
    }

    /// Whether the whole has one owner.
    pub fn is_atomic(&self) -> bool {
        self.atomic.unwrap_or_else(|| self.resolve().is_some_and(|ty| ty.atomic))
    }
}

impl Schema {
    /// How objects of the type merge.
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

/// The fields of a type of the table, with those of the types that it embeds.
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
                ty: merge(ty, &facts),
                patch: Patch {
                    merge: facts.has_strategy("merge"),
                    replace: facts.has_strategy("replace"),
                    key: facts.key.map(str::to_owned),
                },
            });
        }
    }
}

/// The facts that a line ends with.
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

fn merge(ty: &'static str, facts: &Facts) -> Merge {
    if let Some(pointed) = ty.strip_prefix('*') {
        return merge(pointed, facts);
    }
    if let Some(items) = ty.strip_prefix("[]") {
        return Merge::List { items: Box::new(merge(items, &Facts::default())), list: list(items, facts) };
    }
    let atomic = facts.map == Some("atomic");
    if let Some(values) = ty.strip_prefix("{}") {
        return Merge::Map { values: Box::new(merge(values, &Facts::default())), atomic };
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

fn list(items: &'static str, facts: &Facts) -> List {
    let by = |names: &str| {
        let keys = names.split('+').map(|name| Key { name: name.to_owned(), default: default(items, name) });
        List::Map(keys.collect())
    };
    match (facts.list, facts.keys, facts.key) {
        (Some("map"), Some(keys), _) => by(keys),
        (Some("set"), ..) => List::Set,
        (Some(_), ..) => List::Atomic,
        (None, _, Some(key)) if facts.has_strategy("merge") => by(key),
        (None, ..) if facts.has_strategy("merge") => List::Set,
        (None, ..) => List::Atomic,
    }
}

/// The default that the table gives for a field of an item.
fn default(items: &'static str, field: &str) -> Option<Value> {
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
    fn facts_of_fields() {
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
