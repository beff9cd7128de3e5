//! Type check of macros: `has`, comprehensions with one or two variables, and optional macros.

use crate::ast::{Expr, Kind};
use crate::program::{Comprehension, ComprehensionKind, Node};
use crate::types::Type;

use super::{Checker, TypedNode};

impl Checker<'_> {
    /// Checks the call if it is a macro call; None for other calls.
    pub(super) fn check_macro(
        &mut self,
        expr: &Expr,
        target: Option<&Expr>,
        name: &str,
        arguments: &[Expr],
    ) -> Option<TypedNode> {
        use ComprehensionKind::{All, Exists, ExistsOne, Filter, List, MapEntries, MapValues};
        let Some(target) = target else {
            return match (name, arguments) {
                ("has", [argument]) => Some(self.check_has(expr.at, argument)),
                _ => None,
            };
        };
        let arg = |at: usize| arguments.get(at);
        Some(match (name, arguments.len()) {
            ("all", 2) => self.comprehension(expr.at, All, target, &[arg(0)?], arg(1), None),
            ("exists", 2) => self.comprehension(expr.at, Exists, target, &[arg(0)?], arg(1), None),
            ("exists_one", 2) => self.comprehension(expr.at, ExistsOne, target, &[arg(0)?], arg(1), None),
            ("filter", 2) => self.comprehension(expr.at, Filter, target, &[arg(0)?], arg(1), None),
            ("map", 2) => self.comprehension(expr.at, List, target, &[arg(0)?], None, arg(1)),
            ("map", 3) => self.comprehension(expr.at, List, target, &[arg(0)?], arg(1), arg(2)),
            ("all", 3) => self.comprehension(expr.at, All, target, &[arg(0)?, arg(1)?], arg(2), None),
            ("exists", 3) => self.comprehension(expr.at, Exists, target, &[arg(0)?, arg(1)?], arg(2), None),
            ("exists_one" | "existsOne", 3) => {
                self.comprehension(expr.at, ExistsOne, target, &[arg(0)?, arg(1)?], arg(2), None)
            }
            ("transformList", 3) => {
                self.comprehension(expr.at, List, target, &[arg(0)?, arg(1)?], None, arg(2))
            }
            ("transformList", 4) => {
                self.comprehension(expr.at, List, target, &[arg(0)?, arg(1)?], arg(2), arg(3))
            }
            ("transformMap", 3) => {
                self.comprehension(expr.at, MapValues, target, &[arg(0)?, arg(1)?], None, arg(2))
            }
            ("transformMap", 4) => {
                self.comprehension(expr.at, MapValues, target, &[arg(0)?, arg(1)?], arg(2), arg(3))
            }
            ("transformMapEntry", 3) => {
                self.comprehension(expr.at, MapEntries, target, &[arg(0)?, arg(1)?], None, arg(2))
            }
            ("transformMapEntry", 4) => {
                self.comprehension(expr.at, MapEntries, target, &[arg(0)?, arg(1)?], arg(2), arg(3))
            }
            ("optMap", 2) => self.check_optional_map(target, arg(0)?, arg(1)?, false),
            ("optFlatMap", 2) => self.check_optional_map(target, arg(0)?, arg(1)?, true),
            ("or", 1) => self.check_or_else(expr.at, "or", target, arg(0)?, false),
            ("orValue", 1) => self.check_or_else(expr.at, "orValue", target, arg(0)?, true),
            _ => return None,
        })
    }

    fn comprehension(
        &mut self,
        at: usize,
        kind: ComprehensionKind,
        target: &Expr,
        names: &[&Expr],
        condition: Option<&Expr>,
        transform: Option<&Expr>,
    ) -> TypedNode {
        let (range, range_type) = self.check(target);
        let range_type = self.resolve(range_type);
        let (key, value) = match &range_type {
            Type::List(list) => (Type::Int, list.element.clone()),
            Type::Map(types) => (types.0.clone(), types.1.clone()),
            Type::Object(_) | Type::Dyn | Type::Param(_) => (Type::Dyn, Type::Dyn),
            other => {
                let message = "cannot be range of a comprehension (must be list, map, or dynamic)";
                self.report(target.at, format!("expression of type '{other}' {message}"));
                (Type::Dyn, Type::Dyn)
            }
        };
        let depth = self.scopes.len();
        // A comprehension with one variable iterates over the elements of a list or the keys of a map.
        let single = if matches!(range_type, Type::Map(_)) { key.clone() } else { value.clone() };
        let variable_types = match names.len() {
            1 => (single.clone(), Type::Dyn),
            _ => (key.clone(), value),
        };
        let types = [variable_types.0.clone(), variable_types.1.clone()];
        let mut slots = Vec::with_capacity(2);
        for (name, ty) in names.iter().zip(types) {
            match &name.kind {
                Kind::Ident(text) if !text.starts_with('.') => slots.push(self.declare(text, ty)),
                _ => {
                    self.scopes.truncate(depth);
                    return self.report(name.at, "argument must be a simple name".to_owned());
                }
            }
        }
        let condition = condition.map(|condition| (condition.at, self.check(condition)));
        let transform = transform.map(|transform| (transform.at, self.check(transform)));
        self.scopes.truncate(depth);
        let transform_type = transform.as_ref().map(|(_, (_, ty))| ty.clone());
        let result = match (kind, transform_type) {
            (ComprehensionKind::All | ComprehensionKind::Exists | ComprehensionKind::ExistsOne, _) => {
                Type::Bool
            }
            (ComprehensionKind::List, Some(transform_type)) => Type::list(transform_type),
            (ComprehensionKind::MapValues, Some(transform_type)) => Type::map(key, transform_type),
            (ComprehensionKind::MapEntries, Some(transform_type)) => match (&transform_type, &transform) {
                (Type::Map(_) | Type::Dyn | Type::Param(_), _) => transform_type,
                (other, Some((at, _))) => {
                    let message = format!("expected type 'map(dyn, dyn)' but found '{other}'");
                    self.report(*at, message).1
                }
                _ => transform_type,
            },
            _ => Type::list(single),
        };
        let condition = condition.map(|(condition_at, (node, ty))| {
            self.check_condition(kind, at, condition_at, &ty, &result);
            node
        });
        let first = slots.first().copied().unwrap_or_default();
        let transform = transform.map(|(_, (node, _))| node);
        let comprehension = Comprehension {
            kind,
            range,
            first,
            second: slots.get(1).copied(),
            variable_types,
            condition,
            transform,
            ty: result.clone(),
        };
        (Node::Comprehension(Box::new(comprehension)), result)
    }

    /// Reports a condition that is no boolean, with the message about the expanded macro.
    fn check_condition(
        &mut self,
        kind: ComprehensionKind,
        at: usize,
        condition_at: usize,
        ty: &Type,
        result: &Type,
    ) {
        if ty.is_compatible_with(&Type::Bool) {
            return;
        }
        let branch = match kind {
            ComprehensionKind::All | ComprehensionKind::Exists => {
                return self.expect(condition_at, ty, &Type::Bool);
            }
            ComprehensionKind::ExistsOne => &Type::Int,
            _ => result,
        };
        self.report_no_overload(at, "_?_:_", &format!("({ty}, {branch}, {branch})"));
    }

    /// Declares a variable in the innermost scope and assigns its slot.
    fn declare(&mut self, name: &str, ty: Type) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.scopes.push((name.to_owned(), slot, ty));
        slot
    }

    fn check_optional_map(&mut self, target: &Expr, name: &Expr, body: &Expr, flat: bool) -> TypedNode {
        let (operand, ty) = self.check(target);
        let inner = self.unwrap_optional(target.at, ty);
        let Kind::Ident(variable) = &name.kind else {
            return self.report(name.at, "argument must be a simple name".to_owned());
        };
        let depth = self.scopes.len();
        let slot = self.declare(variable, inner.clone());
        let (body_node, body_type) = self.check(body);
        self.scopes.truncate(depth);
        let result = if flat {
            Type::optional(self.unwrap_optional(body.at, body_type))
        } else {
            Type::optional(body_type)
        };
        let node = Node::OptionalMap {
            operand: Box::new(operand),
            slot,
            inner,
            is_used: body_node.reads(slot),
            body: Box::new(body_node),
            flat,
            ty: result.clone(),
        };
        (node, result)
    }

    /// Checks `or` and `orValue` of an optional, which evaluate their argument only if the optional has no value.
    fn check_or_else(
        &mut self,
        at: usize,
        name: &str,
        target: &Expr,
        other: &Expr,
        unwrap: bool,
    ) -> TypedNode {
        let (operand, ty) = self.check(target);
        let (other_node, other_type) = self.check(other);
        let mut bindings = self.variables.clone();
        let parameter = Type::Param('A');
        let optional = Type::optional(parameter.clone());
        let argument = if unwrap { &parameter } else { &optional };
        let is_checked = ty.is_assignable_to(&optional, &mut bindings)
            && other_type.is_assignable_to(argument, &mut bindings);
        if !is_checked {
            return self.report_no_overload(at, name, &format!("{ty}.({other_type})"));
        }
        let result = argument.substitute(&bindings);
        self.variables = bindings.into_variables();
        let node = Node::OrElse { operand: Box::new((operand, other_node)), unwrap, ty: result.clone() };
        (node, result)
    }
}
