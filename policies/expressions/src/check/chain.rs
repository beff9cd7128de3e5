//! Type check of selections and indexes. Each chain of links, such as `.spec.list[0]`, becomes one program
//! node.

use crate::ast::{Expr, Kind, Literal};
use crate::program::{Node, Step, StepTarget};
use crate::types::{Type, without_optional};

use super::{Checker, TypedNode, qualified_name, type_constant};

impl Checker<'_> {
    /// Checks a selection or an index with all its preceding links.
    pub(super) fn check_chain(&mut self, expr: &Expr) -> TypedNode {
        if let Some(path) = qualified_name(expr) {
            // A variable with a dotted name, such as `authorizer.requestResource`.
            if let Some((slot, ty)) = self.lookup_dotted(path.strip_prefix('.').unwrap_or(&path)) {
                return (Node::Slot(slot), ty);
            }
            // A dotted type name, such as `google.protobuf.Timestamp`.
            if let Some(constant) = type_constant(&path) {
                return constant;
            }
        }
        let (operand, link, is_optional) = match &expr.kind {
            Kind::Select(operand, field) => (operand.as_ref(), Link::Field(field), false),
            Kind::Call { name, arguments, .. } => match (name.as_str(), arguments.as_slice()) {
                ("_[_]", [operand, index]) => (operand, Link::Index(index), false),
                ("_[?_]", [operand, index]) => (operand, Link::Index(index), true),
                ("_?._", [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }]) => {
                    (operand, Link::Field(field), true)
                }
                _ => return self.report(expr.at, "unsupported expression".to_owned()),
            },
            _ => return self.check(expr),
        };
        let (root, ty) = self.check(operand);
        let ty = self.resolve(ty);
        let Some((step, result)) = self.check_link(expr.at, &ty, link, is_optional) else {
            return (root, Type::Dyn);
        };
        (append(root, step), result)
    }

    fn check_link(
        &mut self,
        at: usize,
        operand: &Type,
        link: Link<'_>,
        is_optional: bool,
    ) -> Option<(Step, Type)> {
        // Links after an optional link apply to the inner value, and their values are optional too.
        let inner = without_optional(operand);
        let (target, ty) = match link {
            Link::Field(field) => {
                let (name, ty) = self.check_field(at, inner, field)?;
                (StepTarget::Field(name), ty)
            }
            Link::Index(index) => {
                let operator = if is_optional { "_[?_]" } else { "_[_]" };
                let (node, ty) = self.check_index(at, operand, index, operator)?;
                (StepTarget::Index(node), ty)
            }
        };
        let ty = match (operand, ty) {
            (_, ty @ Type::Optional(_)) => ty,
            // The overloads of an optional index have different results for a dynamic operand.
            (Type::Dyn | Type::Param(_), _) if is_optional && matches!(target, StepTarget::Index(_)) => {
                Type::Dyn
            }
            (operand, ty) if is_optional || matches!(operand, Type::Optional(_)) => Type::optional(ty),
            (_, ty) => ty,
        };
        Some((Step { target, is_optional, ty: ty.clone() }, ty))
    }

    /// Returns the name in the data and the type of a field. Returns None if the type has no such field; an error is
    /// reported.
    pub(super) fn check_field(&mut self, at: usize, operand: &Type, field: &str) -> Option<(String, Type)> {
        match operand {
            Type::Dyn | Type::Param(_) => Some((field.to_owned(), Type::Dyn)),
            // Library types that cel-go's checker takes for messages.
            Type::Opaque(name) if name.starts_with("kubernetes.") => {
                self.report(at, format!("unexpected failed resolution of '{name}'"));
                None
            }
            Type::Map(types) if types.0.is_compatible_with(&Type::String) => {
                Some((field.to_owned(), types.1.clone()))
            }
            Type::Object(object) => match object.fields.get(field) {
                Some(declared) => Some((declared.name.clone(), declared.ty.clone())),
                None if let Some(ty) = self.message_field(&object.name, field) => {
                    Some((field.to_owned(), ty))
                }
                None => {
                    self.report(at, format!("undefined field '{field}'"));
                    None
                }
            },
            other => {
                self.report(at, format!("type '{other}' does not support field selection"));
                None
            }
        }
    }

    fn check_index(
        &mut self,
        at: usize,
        operand: &Type,
        index: &Expr,
        operator: &str,
    ) -> Option<(Node, Type)> {
        let (node, index_type) = self.check(index);
        let result = match without_optional(operand) {
            Type::Dyn | Type::Param(_) | Type::Null => Some(Type::Dyn),
            Type::List(list) if index_type.is_compatible_with(&Type::Int) => Some(list.element.clone()),
            Type::Map(types) if index_type.is_compatible_with(&types.0) => Some(types.1.clone()),
            _ => None,
        };
        let Some(result) = result else {
            self.report_no_overload(at, operator, &format!("({operand}, {index_type})"));
            return None;
        };
        Some((node, result))
    }

    /// Checks `has(operand.field)`.
    pub(super) fn check_has(&mut self, at: usize, argument: &Expr) -> TypedNode {
        let Kind::Select(operand, field) = &argument.kind else {
            return self.report(argument.at, "invalid argument to has() macro".to_owned());
        };
        let (root, ty) = self.check(operand);
        let Some((field, _)) = self.check_field(at, without_optional(&ty), field) else {
            return (root, Type::Bool);
        };
        let (root, steps) = match root {
            Node::Chain { root, steps } => (root, steps),
            other => (Box::new(other), Vec::new()),
        };
        (Node::Has { root, steps, field }, Type::Bool)
    }
}

/// A link of a chain in the syntax tree.
enum Link<'e> {
    Field(&'e str),
    Index(&'e Expr),
}

/// Appends a link to the chain `root`.
fn append(root: Node, step: Step) -> Node {
    match root {
        Node::Chain { root, mut steps } => {
            steps.push(step);
            Node::Chain { root, steps }
        }
        other => Node::Chain { root: Box::new(other), steps: vec![step] },
    }
}
