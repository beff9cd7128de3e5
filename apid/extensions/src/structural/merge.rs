//! Merge types of custom kinds, from list types and map types.
//!
//! # Contract
//!
//! An object with properties is a struct, which forbids undeclared fields unless it preserves them. An object
//! that declares nothing is a map of untyped values. Lists without a list type are atomic, maps without a map
//! type are granular (requirements D-MRG-20 to 23). A part without a type and without properties is untyped.
//! Metadata has the merge type of built-in objects.
//!
//! # Reference
//!
//! As in kube-apiserver, all structs below a part that preserves unknown fields permit undeclared fields in an
//! applied object. Pruning then drops such fields.

use std::sync::Arc;

use expressions::SchemaType;
use schema::merge::{Key, List, Merge, MergeField, Patch, Scalar, StructRef, StructType};

use super::node::{Flag, ListType, Node};

/// The merge type of the objects of a schema.
pub(super) fn merge(root: &Node) -> Merge {
    merge_part(root, false)
}

/// The merge type of the values of a node. `preserves`: whether a node above preserves unknown fields.
fn merge_part(node: &Node, preserves: bool) -> Merge {
    let atomic = node.has(Flag::AtomicMap);
    let preserves = preserves || node.preserves_unknown();
    match node.kind {
        SchemaType::String => Merge::Scalar(Scalar::String),
        SchemaType::Integer | SchemaType::Number => Merge::Scalar(Scalar::Number),
        SchemaType::Boolean => Merge::Scalar(Scalar::Bool),
        SchemaType::IntOrString => Merge::Scalar(Scalar::Any),
        SchemaType::Unspecified if node.properties.is_empty() => Merge::Untyped { atomic },
        SchemaType::Unspecified => structure(node, atomic, preserves),
        SchemaType::Array => {
            let items = node.items.as_deref();
            let items = items.map_or(Merge::Untyped { atomic: false }, |items| merge_part(items, preserves));
            Merge::List { items: Box::new(items), list: list(node) }
        }
        SchemaType::Object => match node.additional() {
            Some(values) if node.properties.is_empty() => {
                Merge::Map { values: Box::new(merge_part(values, preserves)), atomic }
            }
            _ if node.properties.is_empty() && !node.has(Flag::Embedded) => Merge::Untyped { atomic },
            _ => structure(node, atomic, preserves),
        },
    }
}

fn structure(node: &Node, atomic: bool, preserves: bool) -> Merge {
    let is_metadata = |name: &str| node.has(Flag::Embedded) && super::node::is_type_or_metadata(name);
    let declared = node.properties.iter().filter(|property| !is_metadata(&property.name));
    let mut fields: Vec<MergeField> =
        declared.map(|property| field(&property.name, merge_part(&property.node, preserves))).collect();
    if node.has(Flag::Embedded) {
        fields.push(field("apiVersion", Merge::Scalar(Scalar::String)));
        fields.push(field("kind", Merge::Scalar(Scalar::String)));
        let metadata = super::metadata::schema().map(schema::Schema::merge);
        fields.push(field("metadata", metadata.unwrap_or(Merge::Untyped { atomic: false })));
    }
    let rest = preserves.then_some(Merge::Untyped { atomic: false });
    Merge::Struct(StructRef::own(Arc::new(StructType::new(fields, atomic, rest))))
}

fn field(name: &str, ty: Merge) -> MergeField {
    MergeField { name: name.to_owned(), ty, patch: Patch::default() }
}

fn list(node: &Node) -> List {
    match &node.list {
        ListType::Atomic => List::Atomic,
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
