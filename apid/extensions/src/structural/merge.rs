//! Merge types of custom kinds, from list types and map types.
//!
//! # Contract
//!
//! An object with properties is a struct, which forbids undeclared fields unless it preserves them. Lists
//! without a list type are atomic, maps without a map type are granular (requirements D-MRG-20 to 23). A
//! part without a type is untyped. Metadata has the merge type of built-in objects.

use std::sync::Arc;

use schema::merge::{Field, Key, List, Merge, Patch, Scalar, StructRef, StructType};

use super::node::{Flag, Kind, ListType, Node};

/// The merge type of the objects of a kind.
pub(super) fn object(root: &Node) -> Merge {
    merge(root)
}

fn merge(node: &Node) -> Merge {
    let atomic = node.has(Flag::AtomicMap);
    match node.kind {
        Kind::String => Merge::Scalar(Scalar::String),
        Kind::Integer | Kind::Number => Merge::Scalar(Scalar::Number),
        Kind::Boolean => Merge::Scalar(Scalar::Bool),
        Kind::IntOrString => Merge::Scalar(Scalar::Any),
        Kind::Unspecified => Merge::Untyped { atomic },
        Kind::Array => {
            let items = node.items.as_deref().map_or(Merge::Untyped { atomic: false }, merge);
            Merge::List { items: Box::new(items), list: list(node) }
        }
        Kind::Object => match node.additional() {
            Some(values) if node.properties.is_empty() => {
                Merge::Map { values: Box::new(merge(values)), atomic }
            }
            _ if is_free(node) => Merge::Untyped { atomic },
            _ => structure(node, atomic),
        },
    }
}

/// Whether an object declares nothing and accepts every field.
fn is_free(node: &Node) -> bool {
    let accepts_all = node.preserves_unknown() || !matches!(node.additional, super::node::Additional::Absent);
    accepts_all && node.properties.is_empty() && !node.has(Flag::Embedded)
}

fn structure(node: &Node, atomic: bool) -> Merge {
    let is_metadata = |name: &str| node.has(Flag::Embedded) && super::node::is_type_or_metadata(name);
    let declared = node.properties.iter().filter(|property| !is_metadata(&property.name));
    let mut fields: Vec<Field> =
        declared.map(|property| field(&property.name, merge(&property.node))).collect();
    if node.has(Flag::Embedded) {
        fields.push(field("apiVersion", Merge::Scalar(Scalar::String)));
        fields.push(field("kind", Merge::Scalar(Scalar::String)));
        let metadata = super::metadata::schema();
        fields.push(field(
            "metadata",
            metadata.map_or(Merge::Untyped { atomic: false }, schema::Schema::merge),
        ));
    }
    let rest = node.preserves_unknown().then_some(Merge::Untyped { atomic: false });
    Merge::Struct(StructRef::own(Arc::new(StructType::new(fields, atomic, rest))))
}

fn field(name: &str, ty: Merge) -> Field {
    Field { name: name.to_owned(), ty, patch: Patch::default() }
}

fn list(node: &Node) -> List {
    match &node.list {
        ListType::Unspecified | ListType::Atomic => List::Atomic,
        ListType::Set => List::Set,
        ListType::Map(keys) => {
            let default = |key: &str| {
                let item = node.items.as_deref()?;
                item.property(key)?.default.as_deref().cloned()
            };
            List::Map(keys.iter().map(|key| Key { name: key.to_string(), default: default(key) }).collect())
        }
    }
}
