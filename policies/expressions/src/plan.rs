//! Planning: evaluation of constant parts when an expression is compiled.
//!
//! # Contract
//! As in kube-apiserver, these parts are evaluated once: lists and maps of constants, conversions of constants,
//! and constant patterns of `find` and `findAll`. They cost nothing at evaluation. The test for membership in a
//! list of constants costs nothing either. An error is the error of the expression; in a stored expression
//! the part stays as it is.

use crate::dialect::Dialect;
use crate::error::EvalError;
use crate::library::constant_pattern;
use crate::map::MapBuilder;
use crate::program::{Node, StepTarget};
use crate::types::{Bindings, Type};
use crate::value::Value;

/// Functions whose calls with a constant are evaluated.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Evaluates the constant parts of an expression.
///
/// # Errors
/// The error of a constant part, unless `is_stored`.
pub(crate) fn plan(
    node: Node,
    dialect: Dialect,
    is_stored: bool,
    variables: &Bindings,
) -> Result<Node, EvalError> {
    Planner { has_free_constants: dialect.has_free_constants, is_stored, variables }.plan(node)
}

struct Planner<'p> {
    /// Types of the variables of the type check, which replace the variables in the nodes.
    variables: &'p Bindings,
    has_free_constants: bool,
    is_stored: bool,
}

impl Planner<'_> {
    fn plan(&self, node: Node) -> Result<Node, EvalError> {
        Ok(match node {
            Node::Const(_) | Node::TypeName(..) | Node::Folded { .. } | Node::Slot(_) => node,
            Node::Chain { root, mut steps } => {
                for step in &mut steps {
                    self.plan_target(&mut step.target)?;
                    self.resolve(&mut step.ty);
                }
                Node::Chain { root: self.boxed(*root)?, steps }
            }
            Node::Has { root, mut steps, field } => {
                for step in &mut steps {
                    self.plan_target(&mut step.target)?;
                }
                Node::Has { root: self.boxed(*root)?, steps, field }
            }
            Node::Call(mut call) => {
                self.resolve(&mut call.ty);
                call.arguments = self.all(call.arguments)?;
                self.fold_call(call)?
            }
            Node::And(pair) => Node::And(self.pair(*pair)?),
            Node::Or(pair) => Node::Or(self.pair(*pair)?),
            Node::Conditional(parts, mut ty) => {
                self.resolve(&mut ty);
                let (condition, yes, no) = *parts;
                let parts = (self.plan(condition)?, self.plan(yes)?, self.plan(no)?);
                Node::Conditional(Box::new(parts), ty)
            }
            Node::OrElse { operand, unwrap, mut ty } => {
                self.resolve(&mut ty);
                Node::OrElse { operand: self.pair(*operand)?, unwrap, ty }
            }
            Node::List(elements, mut ty) => {
                self.resolve(&mut ty);
                let elements = elements.into_iter().map(|(node, optional)| Ok((self.plan(node)?, optional)));
                let list = Node::List(elements.collect::<Result<_, EvalError>>()?, ty);
                if self.has_free_constants { fold_list(list) } else { list }
            }
            Node::Map { message, entries, mut ty } => {
                self.resolve(&mut ty);
                let entries = entries
                    .into_iter()
                    .map(|(key, value, optional)| Ok((self.plan(key)?, self.plan(value)?, optional)));
                let entries = entries.collect::<Result<_, EvalError>>()?;
                let map = Node::Map { message, entries, ty };
                if self.has_free_constants { fold_map(map) } else { map }
            }
            Node::Comprehension(mut comprehension) => {
                self.resolve(&mut comprehension.ty);
                self.resolve(&mut comprehension.variable_types.0);
                self.resolve(&mut comprehension.variable_types.1);
                comprehension.range = self.plan(comprehension.range)?;
                comprehension.condition = comprehension.condition.map(|node| self.plan(node)).transpose()?;
                comprehension.transform = comprehension.transform.map(|node| self.plan(node)).transpose()?;
                Node::Comprehension(comprehension)
            }
            Node::OptionalMap { operand, slot, inner, body, flat, is_used, ty } => {
                let (operand, body) = (self.boxed(*operand)?, self.boxed(*body)?);
                Node::OptionalMap { operand, slot, inner, body, flat, is_used, ty }
            }
        })
    }

    fn resolve(&self, ty: &mut Type) {
        if !self.variables.is_empty() && ty.has_unbound() {
            *ty = ty.substitute(self.variables);
        }
    }

    fn all(&self, nodes: Vec<Node>) -> Result<Vec<Node>, EvalError> {
        nodes.into_iter().map(|node| self.plan(node)).collect()
    }

    fn boxed(&self, node: Node) -> Result<Box<Node>, EvalError> {
        Ok(Box::new(self.plan(node)?))
    }

    fn pair(&self, (left, right): (Node, Node)) -> Result<Box<(Node, Node)>, EvalError> {
        Ok(Box::new((self.plan(left)?, self.plan(right)?)))
    }

    fn plan_target(&self, target: &mut StepTarget) -> Result<(), EvalError> {
        if let StepTarget::Index(index) = target {
            let planned = self.plan(std::mem::replace(index, Node::Const(Value::Null)))?;
            *index = planned;
        }
        Ok(())
    }

    fn fold_call(&self, mut call: Box<crate::program::Call>) -> Result<Node, EvalError> {
        match (call.name, call.arguments.as_slice()) {
            (name, [argument]) if CONVERSIONS.contains(&name) => {
                let Some(value) = argument.constant() else { return Ok(Node::Call(call)) };
                match crate::eval::apply_constant(&call, value.clone()) {
                    Ok(value) => Ok(Node::Folded { value, original: Box::new(Node::Call(call)) }),
                    Err(_) if self.is_stored => Ok(Node::Call(call)),
                    Err(error) => Err(error),
                }
            }
            ("@in", [_, list]) => {
                let Some(Value::List(constants)) = list.constant() else { return Ok(Node::Call(call)) };
                if constants.is_empty() {
                    return Ok(Node::Folded {
                        value: Value::Bool(false),
                        original: Box::new(Node::Call(call)),
                    });
                }
                call.is_membership = constants.iter().all(|item| {
                    matches!(
                        item,
                        Ok(Value::Bool(_)
                            | Value::Int(_)
                            | Value::Uint(_)
                            | Value::Double(_)
                            | Value::String(_))
                    )
                });
                Ok(Node::Call(call))
            }
            ("matches" | "find" | "findAll", [_, pattern, ..]) => {
                let Some(Value::String(text)) = pattern.constant() else { return Ok(Node::Call(call)) };
                match constant_pattern(text.as_str()) {
                    Ok(value) => {
                        if let Some(pattern) = call.arguments.get_mut(1) {
                            let original = std::mem::replace(pattern, Node::Const(Value::Null));
                            *pattern = Node::Folded { value, original: Box::new(original) };
                        }
                        Ok(Node::Call(call))
                    }
                    Err(_) if self.is_stored => Ok(Node::Call(call)),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(Node::Call(call)),
        }
    }
}

/// Replaces a list of constants by its value.
fn fold_list(node: Node) -> Node {
    let Node::List(elements, _) = &node else { return node };
    let constants = elements.iter().map(|(element, optional)| element.constant().filter(|_| !optional));
    match constants.map(|value| value.cloned()).collect::<Option<Vec<Value<'static>>>>() {
        Some(items) => Node::Folded { value: Value::list(items), original: Box::new(node) },
        None => node,
    }
}

/// Replaces a map of constants by its value.
fn fold_map(node: Node) -> Node {
    let Node::Map { message: None, entries, .. } = &node else { return node };
    let mut builder = MapBuilder::default();
    for (key, value, optional) in entries {
        let (Some(key), Some(value), false) = (key.constant(), value.constant(), *optional) else {
            return node;
        };
        builder.set(key.clone(), value.clone());
    }
    Node::Folded { value: Value::Map(builder.finish()), original: Box::new(node) }
}

impl Node {
    /// The value of a constant part.
    fn constant(&self) -> Option<&Value<'static>> {
        match self {
            Node::Const(value) | Node::TypeName(value, _) | Node::Folded { value, .. } => Some(value),
            _ => None,
        }
    }
}
