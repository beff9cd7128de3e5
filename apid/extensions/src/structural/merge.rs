//! Merge types of custom kinds, from list types and map types.
//!
//! # Contract
//!
//! An object with properties is a struct, which forbids undeclared fields unless it preserves them. Lists
//! without a list type are atomic, maps without a map type are granular (requirements D-MRG-20 to 23). A
//! part without a type is untyped. Metadata has the merge type of built-in objects.

use std::sync::Arc;

use expressions::SchemaType;
use schema::merge::{Key, List, Merge, MergeField, Patch, Scalar, StructRef, StructType};

use super::node::{Flag, ListType, Node};

/// The merge type of the values of a node.
pub(super) fn merge(node: &Node) -> Merge {
    let atomic = node.has(Flag::AtomicMap);
    match node.kind {
        SchemaType::String => Merge::Scalar(Scalar::String),
        SchemaType::Integer | SchemaType::Number => Merge::Scalar(Scalar::Number),
        SchemaType::Boolean => Merge::Scalar(Scalar::Bool),
        SchemaType::IntOrString => Merge::Scalar(Scalar::Any),
        SchemaType::Unspecified => Merge::Untyped { atomic },
        SchemaType::Array => {
            let items = node.items.as_deref().map_or(Merge::Untyped { atomic: false }, merge);
            Merge::List { items: Box::new(items), list: list(node) }
        }
        SchemaType::Object => match node.additional() {
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
    let mut fields: Vec<MergeField> =
        declared.map(|property| field(&property.name, merge(&property.node))).collect();
    if node.has(Flag::Embedded) {
        fields.push(field("apiVersion", Merge::Scalar(Scalar::String)));
        fields.push(field("kind", Merge::Scalar(Scalar::String)));
        let metadata = super::metadata::schema().map(schema::Schema::merge);
        fields.push(field("metadata", metadata.unwrap_or(Merge::Untyped { atomic: false })));
    }
    let rest = node.preserves_unknown().then_some(Merge::Untyped { atomic: false });
    Merge::Struct(StructRef::own(Arc::new(StructType::new(fields, atomic, rest))))
}

fn field(name: &str, ty: Merge) -> MergeField {
    MergeField { name: name.to_owned(), ty, patch: Patch::default() }
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
