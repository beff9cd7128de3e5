//! Paths of fields in definitions: `.spec.name` and `.spec['name']`, resolved against a schema.

use apimachinery::field::FieldPath;

use super::super::node::Node;
use crate::path_names::{PathSyntax, path_names};

/// Resolves a path; None if it is malformed or refers to no declared field.
pub(in super::super) fn resolve(node: &Node, text: &str) -> Option<FieldPath> {
    let (mut path, mut node) = (FieldPath::root(), node);
    for name in path_names(text, PathSyntax::DottedOrQuoted) {
        let name = name.ok()?;
        (path, node) = if node.properties.is_empty() {
            (path.key(&name), node.additional()?)
        } else {
            (path.child(&name), node.property(&name)?)
        };
    }
    Some(path)
}
