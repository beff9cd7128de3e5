//! Worst-case cost estimate of an expression from size limits of the data, before evaluation.
//!
//! # Contract
//! The estimator walks the same program as evaluation and adds the same costs. Sizes come from [`Bounds`],
//! from literals and from the result sizes of functions; unknown sizes are unlimited. Like kube-apiserver,
//! the estimate omits two charges of evaluation. Map keys count as empty, and a comparison of two lists or
//! objects counts only their direct elements.

use std::sync::Arc;

use crate::bounds::{Bounds, PartBounds};
use crate::cost::{LIST_LITERAL, LIST_STEP, MAP_LITERAL, MESSAGE_LITERAL, ResultSize};
use crate::program::{Fold, FoldKind, Node, Program, Step};
use crate::types::Type;
use crate::value::Value;

/// Minimum and maximum of a cost or of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Minimum, if evaluation does not end earlier.
    pub min: u64,
    /// Maximum.
    pub max: u64,
}

impl Estimate {
    pub(crate) const NOTHING: Estimate = Estimate::exactly(0);
    pub(crate) const UNKNOWN: Estimate = Estimate { min: 0, max: u64::MAX };

    pub(crate) const fn exactly(n: u64) -> Estimate {
        Estimate { min: n, max: n }
    }

    /// Applies a monotonic function to both limits.
    pub(crate) fn map(self, f: impl Fn(u64) -> u64) -> Estimate {
        Estimate { min: f(self.min), max: f(self.max) }
    }

    pub(crate) fn times(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Union of both ranges.
    pub(crate) fn or(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

impl std::ops::Add for Estimate {
    type Output = Estimate;

    fn add(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }
}

/// Static knowledge about a value.
#[derive(Clone)]
pub(crate) struct ValueFacts<'b> {
    pub(crate) ty: Type,
    /// Range of [`Value::size`].
    pub(crate) size: Estimate,
    parts: Parts<'b>,
}

/// Static knowledge about the parts of a value.
#[derive(Clone)]
enum Parts<'b> {
    Nothing,
    Of(&'b Bounds),
    /// Every element of a list or value of a map.
    Each(Arc<ValueFacts<'b>>),
}

impl<'b> ValueFacts<'b> {
    /// A value with only its type known.
    pub(crate) fn of_type(ty: Type) -> ValueFacts<'b> {
        let size = if is_scalar(&ty) { Estimate::exactly(1) } else { Estimate::UNKNOWN };
        ValueFacts { ty, size, parts: Parts::Nothing }
    }

    /// A value of the data.
    fn bounded(ty: Type, bounds: &'b Bounds) -> ValueFacts<'b> {
        let size = if is_scalar(&ty) { Estimate::exactly(1) } else { Estimate { min: 0, max: bounds.size } };
        ValueFacts { ty, size, parts: Parts::Of(bounds) }
    }

    /// A value of a known size.
    pub(crate) fn sized(ty: Type, size: Estimate) -> ValueFacts<'b> {
        ValueFacts { ty, size, parts: Parts::Nothing }
    }

    /// A list or map of a known size with such elements or values.
    pub(crate) fn of_each(ty: Type, size: Estimate, each: ValueFacts<'b>) -> ValueFacts<'b> {
        ValueFacts { ty, size, parts: Parts::Each(Arc::new(each)) }
    }

    /// Whether the value has no size.
    pub(crate) fn is_scalar(&self) -> bool {
        is_scalar(&self.ty)
    }

    /// Knowledge about an element of a list or a value of a map.
    pub(crate) fn element(&self) -> ValueFacts<'b> {
        let ty = match unwrapped(&self.ty) {
            Type::List(list) => list.element.clone(),
            Type::Map(types) => types.1.clone(),
            _ => Type::Dyn,
        };
        inside(&self.parts, None, ty)
    }

    /// The value inside an optional.
    fn unwrapped(self) -> ValueFacts<'b> {
        ValueFacts { ty: unwrapped(&self.ty).clone(), ..self }
    }

    fn or(self, other: ValueFacts<'b>) -> ValueFacts<'b> {
        let parts = match (&self.parts, &other.parts) {
            (Parts::Nothing, _) | (_, Parts::Nothing) => Parts::Nothing,
            _ => Parts::Each(Arc::new(self.element().or(other.element()))),
        };
        let ty = if self.ty == Type::Null { other.ty } else { self.ty };
        ValueFacts { ty, size: self.size.or(other.size), parts }
    }

    /// Concatenation of two lists or texts.
    pub(crate) fn joined(self, other: ValueFacts<'b>, ty: Type) -> ValueFacts<'b> {
        let size = self.size + other.size;
        ValueFacts { ty, size, ..self.or(other) }
    }
}

fn unwrapped(ty: &Type) -> &Type {
    match ty {
        Type::Optional(inner) => inner,
        other => other,
    }
}

fn is_scalar(ty: &Type) -> bool {
    matches!(
        unwrapped(ty),
        Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Timestamp
            | Type::Duration
            | Type::Type
            | Type::Opaque(_)
    )
}

/// Knowledge about a part of type `ty`: a named field or any element.
fn inside<'b>(parts: &Parts<'b>, field: Option<&str>, ty: Type) -> ValueFacts<'b> {
    let bounds = match parts {
        Parts::Nothing => None,
        Parts::Each(each) => return ValueFacts { ty, ..each.as_ref().clone() },
        Parts::Of(bounds) => match &bounds.within {
            PartBounds::Nothing => None,
            PartBounds::Each(each) => Some(each.as_ref()),
            PartBounds::Fields(fields) => field.and_then(|name| fields.get(name)),
        },
    };
    match bounds {
        Some(bounds) => ValueFacts::bounded(ty, bounds),
        None => ValueFacts::of_type(ty),
    }
}

impl Program {
    /// Estimates the cost of an evaluation.
    /// `bounds` are the size limits of the variables; other variables are unlimited.
    pub fn estimate(&self, bounds: &[(&str, &Bounds)]) -> Estimate {
        let known = self.variables.iter().map(|(name, ty)| {
            let found = bounds.iter().find(|(known, _)| known == name);
            found.map_or_else(
                || ValueFacts::of_type(ty.clone()),
                |(_, bounds)| ValueFacts::bounded(ty.clone(), bounds),
            )
        });
        let mut slots: Vec<Option<ValueFacts<'_>>> = known.map(Some).collect();
        slots.resize(self.slots, None);
        Estimator { slots }.node(&self.root).0
    }
}

/// Walks a program; the methods return the cost of a node and knowledge about its value.
struct Estimator<'b> {
    slots: Vec<Option<ValueFacts<'b>>>,
}

const ONE: Estimate = Estimate::exactly(1);

impl<'b> Estimator<'b> {
    fn node(&mut self, node: &Node) -> (Estimate, ValueFacts<'b>) {
        match node {
            Node::Const(value) => (Estimate::NOTHING, constant(value)),
            Node::Slot(slot) => (ONE, self.slot(*slot)),
            Node::Chain { root, steps, ty } => {
                let (cost, parts) = self.chain(root, steps);
                // The last link determines the knowledge about the whole.
                let known = match parts {
                    Some((parts, field)) => inside(&parts, field.as_deref(), ty.clone()),
                    None => ValueFacts::of_type(ty.clone()),
                };
                (cost + ONE, known)
            }
            Node::Has { root, steps, .. } => (self.chain(root, steps).0, ValueFacts::of_type(Type::Bool)),
            Node::Call { functions, arguments, ty } => self.call(functions, arguments, ty),
            Node::And(operands) | Node::Or(operands) => {
                let (left, right) = (self.node(&operands.0).0, self.node(&operands.1).0);
                // Evaluation may skip the right operand.
                (Estimate { min: left.min, max: (left + right).max }, ValueFacts::of_type(Type::Bool))
            }
            Node::Conditional(parts) => {
                let condition = self.node(&parts.0).0;
                let (yes, no) = (self.node(&parts.1), self.node(&parts.2));
                (condition + yes.0.or(no.0), yes.1.or(no.1))
            }
            Node::OrElse { operand, unwrap } => {
                let (inner, other) = (self.node(&operand.0), self.node(&operand.1));
                let cost = inner.0 + ONE + other.0.or(Estimate::NOTHING);
                let known = inner.1.or(other.1);
                (cost, if *unwrap { known.unwrapped() } else { known })
            }
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => {
                let mut cost = Estimate::exactly(MAP_LITERAL);
                let mut each: Option<ValueFacts<'b>> = None;
                for (key, value, _) in entries {
                    let (key, (value_cost, value)) = (self.node(key).0, self.node(value));
                    cost = cost + key + value_cost;
                    each = Some(each.map_or_else(|| value.clone(), |each| each.or(value.clone())));
                }
                let ty = Type::map(Type::Dyn, each.as_ref().map_or(Type::Dyn, |each| each.ty.clone()));
                let sure = entries.iter().filter(|(.., optional)| !optional).count() as u64;
                let size = Estimate { min: sure, max: entries.len() as u64 };
                let each = each.unwrap_or_else(|| ValueFacts::of_type(Type::Dyn));
                (cost, ValueFacts::of_each(ty, size, each))
            }
            Node::Message { name, fields } => {
                let cost = fields
                    .iter()
                    .fold(Estimate::exactly(MESSAGE_LITERAL), |cost, field| cost + self.node(&field.value).0);
                (cost, ValueFacts::of_type(Type::object(name.as_str(), [])))
            }
            Node::Fold(fold) => self.fold(fold),
            Node::OptionalMap { operand, slot, body, .. } => {
                let (cost, inner) = self.node(operand);
                self.set(*slot, inner.unwrapped());
                let (body_cost, known) = self.node(body);
                let mapped = body_cost + Estimate::exactly(12);
                (cost + ONE + Estimate { min: 1, max: mapped.max }, known)
            }
        }
    }

    fn slot(&self, slot: usize) -> ValueFacts<'b> {
        self.slots.get(slot).cloned().flatten().unwrap_or_else(|| ValueFacts::of_type(Type::Dyn))
    }

    fn set(&mut self, slot: usize, known: ValueFacts<'b>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(known);
        }
    }

    /// Cost of root and links, and the parts that the last link selects from.
    fn chain(&mut self, root: &Node, steps: &[Step]) -> (Estimate, Option<(Parts<'b>, Option<String>)>) {
        let (mut cost, known) = match root {
            Node::Slot(slot) => (Estimate::NOTHING, self.slot(*slot)),
            other => self.node(other),
        };
        let mut parts = known.parts;
        let mut last = None;
        for step in steps {
            if let Some(field) = last.take() {
                let field: Option<String> = field;
                parts = inside(&parts, field.as_deref(), Type::Dyn).parts;
            }
            match step {
                Step::Field(name) | Step::OptionalField(name) => {
                    cost = cost + ONE;
                    last = Some(Some(name.clone()));
                }
                Step::Index(index) | Step::OptionalIndex(index) => {
                    if !matches!(index, Node::Slot(_) | Node::Chain { .. }) {
                        cost = cost + ONE;
                    }
                    cost = cost + self.node(index).0;
                    let name = match index {
                        Node::Const(value) => value.as_str().map(str::to_owned),
                        _ => None,
                    };
                    last = Some(name);
                }
            }
        }
        (cost, last.map(|field| (parts, field)))
    }

    fn list(&mut self, elements: &[(Node, bool)]) -> (Estimate, ValueFacts<'b>) {
        let mut cost = Estimate::exactly(LIST_LITERAL);
        let mut each: Option<ValueFacts<'b>> = None;
        for (element, _) in elements {
            let (element_cost, known) = self.node(element);
            cost = cost + element_cost;
            each = Some(match each {
                Some(each) => each.or(known),
                None => known,
            });
        }
        let sure = elements.iter().filter(|(_, optional)| !optional).count() as u64;
        let size = Estimate { min: sure, max: elements.len() as u64 };
        let each = each.unwrap_or_else(|| ValueFacts::sized(Type::Dyn, Estimate::NOTHING));
        (cost, ValueFacts::of_each(Type::list(each.ty.clone()), size, each))
    }

    fn call(
        &mut self,
        functions: &[&'static crate::library::Function],
        arguments: &[Node],
        ty: &Type,
    ) -> (Estimate, ValueFacts<'b>) {
        let mut cost = Estimate::NOTHING;
        let mut known = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (argument_cost, argument) = self.node(argument);
            cost = cost + argument_cost;
            known.push(argument);
        }
        let calls = functions.iter().map(|function| function.cost.estimate(&known));
        let call = calls.reduce(Estimate::or).unwrap_or(Estimate::NOTHING);
        let results = functions.iter().map(|function| match (function.size, known.first()) {
            (ResultSize::First, Some(first)) => {
                let size = Estimate { min: 0, max: first.size.max };
                ValueFacts { ty: ty.clone(), size, parts: first.parts.clone() }
            }
            (ResultSize::Custom(rule), _) => rule(&known, ty.clone()),
            _ => ValueFacts::of_type(ty.clone()),
        });
        let result = results.reduce(ValueFacts::or).unwrap_or_else(|| ValueFacts::of_type(ty.clone()));
        (cost + call, result)
    }

    /// Estimates a comprehension with the charges of evaluation.
    fn fold(&mut self, fold: &Fold) -> (Estimate, ValueFacts<'b>) {
        let (range_cost, range) = self.node(&fold.range);
        let (key, value) = match &range.ty {
            Type::Map(types) => {
                let key = match types.0 {
                    // No schema limits map keys.
                    Type::String => ValueFacts::sized(Type::String, Estimate::NOTHING),
                    ref other => ValueFacts::of_type(other.clone()),
                };
                (key, range.element())
            }
            Type::List(_) => (ValueFacts::of_type(Type::Int), range.element()),
            _ => (ValueFacts::of_type(Type::Dyn), range.element()),
        };
        let element = match (fold.second, &range.ty) {
            (Some(second), _) => {
                self.set(second, value.clone());
                self.set(fold.first, key);
                value
            }
            (None, Type::Map(_)) => {
                self.set(fold.first, key.clone());
                key
            }
            (None, _) => {
                self.set(fold.first, value.clone());
                value
            }
        };
        let condition = fold.condition.as_ref().map(|node| self.node(node).0);
        let (transform, made) = match &fold.transform {
            Some(node) => self.node(node),
            // A filter keeps the element itself.
            None => (ONE, element),
        };
        let step = |taken: Estimate| match condition {
            Some(condition) => condition + Estimate { min: 1, max: taken.max },
            None => taken,
        };
        let condition_cost = condition.unwrap_or(Estimate::NOTHING);
        let (start, each, end) = match fold.kind {
            FoldKind::All => (0, condition_cost + Estimate::exactly(3), 1),
            FoldKind::Exists => (0, condition_cost + Estimate::exactly(4), 1),
            FoldKind::ExistsOne => (0, condition_cost + Estimate { min: 1, max: 2 }, 2),
            FoldKind::List | FoldKind::Filter => {
                (LIST_STEP, step(transform + Estimate::exactly(LIST_STEP + 2)), 1)
            }
            FoldKind::MapValues | FoldKind::MapEntries => {
                (MAP_LITERAL, step(transform + Estimate::exactly(2)), 1)
            }
        };
        // One element may decide the result.
        let at_least = match fold.kind {
            FoldKind::All | FoldKind::Exists => range.size.min.min(1),
            _ => range.size.min,
        };
        let turns = Estimate { min: at_least, max: range.size.max };
        let cost = range_cost + Estimate::exactly(start + end) + turns.times(each);
        let upto =
            |size: Estimate| Estimate { min: if condition.is_some() { 0 } else { size.min }, max: size.max };
        let known = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => ValueFacts::of_type(Type::Bool),
            FoldKind::List | FoldKind::Filter => {
                ValueFacts::of_each(Type::list(made.ty.clone()), upto(range.size), made)
            }
            FoldKind::MapValues => {
                ValueFacts::of_each(Type::map(Type::Dyn, made.ty.clone()), upto(range.size), made)
            }
            FoldKind::MapEntries => {
                let value = made.element();
                ValueFacts::of_each(
                    Type::map(Type::Dyn, value.ty.clone()),
                    upto(range.size.times(made.size)),
                    value,
                )
            }
        };
        (cost, known)
    }
}

/// Knowledge about a constant of the program.
fn constant<'b>(value: &Value<'_>) -> ValueFacts<'b> {
    let ty = match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        Value::Type(_) => Type::Type,
        _ => Type::Dyn,
    };
    ValueFacts::sized(ty, Estimate::exactly(value.size()))
}
