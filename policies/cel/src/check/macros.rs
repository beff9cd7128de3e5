//! Type check of macros: `has`, comprehensions with one or two variables, and optional macros.

use crate::ast::{Expr, Kind};
use crate::program::{Fold, FoldKind, Node};
use crate::types::Type;

use super::{Checked, Checker};

impl Checker<'_> {
    /// Checks the call if it is a macro call.
    pub(super) fn expand(
        &mut self,
        expr: &Expr,
        target: Option<&Expr>,
        name: &str,
        arguments: &[Expr],
    ) -> Option<Checked> {
        use FoldKind::{All, Exists, ExistsOne, Filter, List, MapEntries, MapValues};
        let Some(target) = target else {
            return match (name, arguments) {
                ("has", [argument]) => Some(self.presence(expr.at, argument)),
                _ => None,
            };
        };
        let all = |at: usize| arguments.get(at);
        Some(match (name, arguments.len()) {
            ("all", 2) => self.fold(All, target, &[all(0)?], all(1), None),
            ("exists", 2) => self.fold(Exists, target, &[all(0)?], all(1), None),
            ("exists_one" | "existsOne", 2) => self.fold(ExistsOne, target, &[all(0)?], all(1), None),
            ("filter", 2) => self.fold(Filter, target, &[all(0)?], all(1), None),
            ("map", 2) => self.fold(List, target, &[all(0)?], None, all(1)),
            ("map", 3) => self.fold(List, target, &[all(0)?], all(1), all(2)),
            ("all", 3) => self.fold(All, target, &[all(0)?, all(1)?], all(2), None),
            ("exists", 3) => self.fold(Exists, target, &[all(0)?, all(1)?], all(2), None),
            ("exists_one" | "existsOne", 3) => {
                self.fold(ExistsOne, target, &[all(0)?, all(1)?], all(2), None)
            }
            ("transformList", 3) => self.fold(List, target, &[all(0)?, all(1)?], None, all(2)),
            ("transformList", 4) => self.fold(List, target, &[all(0)?, all(1)?], all(2), all(3)),
            ("transformMap", 3) => self.fold(MapValues, target, &[all(0)?, all(1)?], None, all(2)),
            ("transformMap", 4) => self.fold(MapValues, target, &[all(0)?, all(1)?], all(2), all(3)),
            ("transformMapEntry", 3) => self.fold(MapEntries, target, &[all(0)?, all(1)?], None, all(2)),
            ("transformMapEntry", 4) => self.fold(MapEntries, target, &[all(0)?, all(1)?], all(2), all(3)),
            ("optMap", 2) => self.optional_map(target, all(0)?, all(1)?, false),
            ("optFlatMap", 2) => self.optional_map(target, all(0)?, all(1)?, true),
            ("or", 1) => self.or_else(expr.at, "or", target, all(0)?, false),
            ("orValue", 1) => self.or_else(expr.at, "orValue", target, all(0)?, true),
            _ => return None,
        })
    }

    fn fold(
        &mut self,
        kind: FoldKind,
        target: &Expr,
        names: &[&Expr],
        condition: Option<&Expr>,
        transform: Option<&Expr>,
    ) -> Checked {
        let (range, range_type) = self.node(target);
        let (key, value) = match &range_type {
            Type::List(list) => (Type::Int, list.element.clone()),
            Type::Map(types) => (types.0.clone(), types.1.clone()),
            Type::Object(_) | Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let message = "cannot be range of a comprehension (must be list, map, or dynamic)";
                return self.report(target.at, format!("expression of type '{other}' {message}"));
            }
        };
        let depth = self.scopes.len();
        // A single variable iterates over the elements of a list or the keys of a map.
        let single = if matches!(range_type, Type::Map(_)) { key.clone() } else { value.clone() };
        let types = if names.len() == 1 { vec![single.clone()] } else { vec![key.clone(), value] };
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
        let condition = condition.map(|condition| {
            let (node, ty) = self.node(condition);
            self.expect(condition.at, &ty, &Type::Bool);
            node
        });
        let transform = transform.map(|transform| (transform.at, self.node(transform)));
        self.scopes.truncate(depth);
        let made = transform.as_ref().map(|(_, (_, ty))| ty.clone());
        let result = match (kind, made) {
            (FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne, _) => Type::Bool,
            (FoldKind::List, Some(made)) => Type::list(made),
            (FoldKind::MapValues, Some(made)) => Type::map(key, made),
            (FoldKind::MapEntries, Some(made)) => match (&made, &transform) {
                (Type::Map(_) | Type::Dyn, _) => made,
                (other, Some((at, _))) => {
                    let message = format!("expected type 'map(dyn, dyn)' but found '{other}'");
                    self.report(*at, message).1
                }
                _ => made,
            },
            _ => Type::list(single),
        };
        let first = slots.first().copied().unwrap_or_default();
        let transform = transform.map(|(_, (node, _))| node);
        let fold = Fold { kind, range, first, second: slots.get(1).copied(), condition, transform };
        (Node::Fold(Box::new(fold)), result)
    }

    /// Declares a variable in the innermost scope and assigns its slot.
    fn declare(&mut self, name: &str, ty: Type) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.scopes.push((name.to_owned(), slot, ty));
        slot
    }

    fn optional_map(&mut self, target: &Expr, name: &Expr, body: &Expr, flat: bool) -> Checked {
        let (operand, ty) = self.node(target);
        let inner = self.unwrap(target.at, ty);
        let Kind::Ident(variable) = &name.kind else {
            return self.report(name.at, "argument must be a simple name".to_owned());
        };
        let depth = self.scopes.len();
        let slot = self.declare(variable, inner);
        let (body_node, body_type) = self.node(body);
        self.scopes.truncate(depth);
        let result =
            if flat { Type::optional(self.unwrap(body.at, body_type)) } else { Type::optional(body_type) };
        (Node::OptionalMap { operand: Box::new(operand), slot, body: Box::new(body_node), flat }, result)
    }

    /// Checks `or` and `orValue` of an optional, which evaluate their argument only if needed.
    fn or_else(&mut self, at: usize, name: &str, target: &Expr, other: &Expr, unwrap: bool) -> Checked {
        let (operand, ty) = self.node(target);
        let (other_node, other_type) = self.node(other);
        let inner = match &ty {
            Type::Optional(inner) => inner.as_ref().clone(),
            Type::Dyn => Type::Dyn,
            _ => {
                let shown = format!("{ty}.({other_type})");
                return self
                    .report(at, format!("found no matching overload for '{name}' applied to '{shown}'"));
            }
        };
        let fits = match (&other_type, unwrap) {
            (Type::Optional(other), false) => other.is_compatible_with(&inner),
            (Type::Dyn, _) => true,
            (other, true) => other.is_compatible_with(&inner),
            _ => false,
        };
        if !fits {
            let shown = format!("{ty}.({other_type})");
            return self.report(at, format!("found no matching overload for '{name}' applied to '{shown}'"));
        }
        let result = match (unwrap, inner) {
            (true, Type::Dyn) => other_type,
            (true, inner) => inner,
            (false, Type::Dyn) => other_type,
            (false, inner) => Type::optional(inner),
        };
        (Node::OrElse { operand: Box::new((operand, other_node)), unwrap }, result)
    }
}
