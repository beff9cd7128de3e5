//! Type check of message literals, which only expressions of mutations have.
//!
//! # Contract
//!
//! `Object{field: value}` and `Object.path{field: value}` have any fields; their values are dynamic.
//! `JSONPatch{…}` has the fields of an operation of a JSON patch. Expressions can select the fields of both. The
//! value of a message literal is a map of its fields with the name of its type.

use crate::ast::StructField;
use crate::program::Node;
use crate::types::Type;
use crate::value::Value;

use super::{Checker, TypedNode};

const OBJECT: &str = "Object";
const PATCH: &str = "JSONPatch";

impl Checker<'_> {
    /// Checks a message literal.
    pub(super) fn check_message(&mut self, at: usize, name: &str, fields: &[StructField]) -> TypedNode {
        let name = name.strip_prefix('.').unwrap_or(name);
        if !self.has_mutation_types || !(is_object(name) || name == PATCH) {
            return self.report(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            let (node, ty) = self.check(&field.value);
            let ty = if field.is_optional { self.unwrap_optional(field.value.at, ty) } else { ty };
            match field_type(name, &field.name) {
                Some(expected) => self.expect_field(field, &ty, &expected),
                None => drop(self.report(field.value.at, format!("undefined field '{}'", field.name))),
            }
            nodes.push((Node::Const(Value::text(&field.name)), node, field.is_optional));
        }
        let ty = Type::object(name, []);
        (Node::Map { message: Some(name.to_owned()), entries: nodes, ty: ty.clone() }, ty)
    }

    /// Returns the type of a field that an expression selects from a message; None for other types and
    /// fields.
    pub(super) fn message_field(&self, ty: &str, field: &str) -> Option<Type> {
        self.has_mutation_types.then(|| field_type(ty, field)).flatten()
    }

    fn expect_field(&mut self, field: &StructField, found: &Type, expected: &Type) {
        if !found.is_compatible_with(expected) {
            let (name, at) = (&field.name, field.value.at);
            self.report(
                at,
                format!("expected type of field '{name}' is '{expected}' but provided type is '{found}'"),
            );
        }
    }
}

fn is_object(ty: &str) -> bool {
    ty == OBJECT || ty.strip_prefix(OBJECT).is_some_and(|path| path.starts_with('.'))
}

/// Returns the type of a field of a message type.
fn field_type(ty: &str, name: &str) -> Option<Type> {
    match name {
        _ if is_object(ty) => Some(Type::Dyn),
        _ if ty != PATCH => None,
        "op" | "path" | "from" => Some(Type::String),
        "value" => Some(Type::Dyn),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Environment, Type};

    #[test]
    fn message_literals_have_types_of_mutations() {
        let environment = Environment::new().with_mutation_types();
        for (source, expected) in [
            ("Object{}", "Object"),
            ("Object{metadata: Object.metadata{labels: {'a': 'b'}}}", "Object"),
            ("Object.spec{?replicas: optional.of(1)}", "Object.spec"),
            ("[JSONPatch{op: 'add', path: '/a', value: {}}]", "list(JSONPatch)"),
            ("1 == 2 ? [] : [JSONPatch{op: 'add'}]", "list(JSONPatch)"),
            ("[] + (1 == 2 ? [JSONPatch{op: 'add'}] : [])", "list(JSONPatch)"),
        ] {
            assert_eq!(environment.compile(source).unwrap().result_type().to_string(), expected, "{source}");
        }
        for (source, expected) in [
            ("Other{}", "undeclared reference to 'Other'"),
            ("JSONPatch{operation: 'add'}", "undefined field 'operation'"),
            ("JSONPatch{op: 1}", "expected type of field 'op' is 'string' but provided type is 'int'"),
            ("Object{a: b}", "undeclared reference to 'b'"),
            ("JSONPatch{}.operation", "undefined field 'operation'"),
            ("jsonpatch.escapeKey(1)", "no matching overload for 'jsonpatch.escapeKey'"),
        ] {
            let error = environment.compile(source).err().unwrap().to_string();
            assert!(error.contains(expected), "{source}: {error}");
        }
        assert!(Environment::new().compile("Object{}").is_err());
        assert!(Environment::new().compile("jsonpatch.escapeKey('a')").is_err());
        assert_ne!(Type::object("Object", []), Type::object("Object.spec", []));
    }
}
