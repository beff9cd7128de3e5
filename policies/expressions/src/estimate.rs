//! Worst-case cost estimate of an expression from size limits of the data, before evaluation.
//!
//! # Contract
//! The estimator walks the same program as evaluation and adds the same costs. Sizes come from [`Bounds`],
//! from literals and from the result sizes of functions; unknown sizes are unlimited. Like kube-apiserver,
//! the estimate omits two charges of evaluation. Map keys count as empty, and a comparison of two lists or
//! objects counts only their direct elements.

use crate::bounds::Bounds;
use crate::cost::{LIST_LITERAL, LIST_STEP, MAP_LITERAL, MESSAGE_LITERAL, ResultSize};
use crate::program::{Comprehension, ComprehensionKind, Node, Program, Step, StepTarget};
use crate::types::Type;
use crate::value::Value;
use crate::value_facts::{Estimate, Parts, ValueFacts, part_facts};

impl Program {
    /// Estimates the cost of an evaluation.
    /// `bounds` are the size limits of the variables; other variables are unlimited.
    pub fn estimate(&self, bounds: &[(&str, &Bounds)]) -> Estimate {
        let facts = self.variables.iter().map(|(name, ty)| {
            let found = bounds.iter().find(|(bounded, _)| bounded == name);
            found.map_or_else(
                || ValueFacts::from_type(ty.clone()),
                |(_, bounds)| ValueFacts::from_bounds(ty.clone(), bounds),
            )
        });
        let mut slots: Vec<Option<ValueFacts<'_>>> = facts.map(Some).collect();
        slots.resize(self.slots, None);
        Estimator { slots }.node(&self.root).0
    }
}

/// Walks a program and estimates its cost. Most methods return the cost of a node and facts about its value.
struct Estimator<'b> {
    slots: Vec<Option<ValueFacts<'b>>>,
}

const ONE: Estimate = Estimate::exactly(1);

impl<'b> Estimator<'b> {
    fn node(&mut self, node: &Node) -> (Estimate, ValueFacts<'b>) {
        match node {
            Node::Const(value) => (Estimate::ZERO, constant(value)),
            Node::Slot(slot) => (ONE, self.slot(*slot)),
            Node::Chain { root, steps, ty } => {
                let (cost, parts) = self.chain(root, steps);
                // The last link determines the facts about the value of the chain.
                let facts = match parts {
                    Some((parts, field)) => part_facts(&parts, field.as_deref(), ty.clone()),
                    None => ValueFacts::from_type(ty.clone()),
                };
                (cost + ONE, facts)
            }
            Node::Has { root, steps, .. } => (self.chain(root, steps).0, ValueFacts::from_type(Type::Bool)),
            Node::Call { functions, arguments, ty } => self.call(functions, arguments, ty),
            Node::And(operands) | Node::Or(operands) => {
                let (left, right) = (self.node(&operands.0).0, self.node(&operands.1).0);
                // Evaluation may skip the right operand.
                (Estimate { min: left.min, max: (left + right).max }, ValueFacts::from_type(Type::Bool))
            }
            Node::Conditional(parts) => {
                let condition = self.node(&parts.0).0;
                let (yes, no) = (self.node(&parts.1), self.node(&parts.2));
                (condition + yes.0.union(no.0), yes.1.union(no.1))
            }
            Node::OrElse { operand, unwrap } => {
                let (inner, other) = (self.node(&operand.0), self.node(&operand.1));
                let cost = inner.0 + ONE + other.0.union(Estimate::ZERO);
                let facts = inner.1.union(other.1);
                (cost, if *unwrap { facts.without_optional() } else { facts })
            }
            Node::List(elements) => self.list(elements),
            Node::Map { message, entries } => {
                let literal = if message.is_some() { MESSAGE_LITERAL } else { MAP_LITERAL };
                let mut cost = Estimate::exactly(literal);
                let mut each: Option<ValueFacts<'b>> = None;
                for (key, value, _) in entries {
                    let (key, (value_cost, value)) = (self.node(key).0, self.node(value));
                    cost = cost + key + value_cost;
                    each = Some(each.map_or_else(|| value.clone(), |each| each.union(value.clone())));
                }
                if let Some(name) = message {
                    return (cost, ValueFacts::from_type(Type::object(name.as_str(), [])));
                }
                let ty = Type::map(Type::Dyn, each.as_ref().map_or(Type::Dyn, |each| each.ty.clone()));
                let min_size = entries.iter().filter(|(.., optional)| !optional).count() as u64;
                let size = Estimate { min: min_size, max: entries.len() as u64 };
                let each = each.unwrap_or_else(|| ValueFacts::from_type(Type::Dyn));
                (cost, ValueFacts::with_elements(ty, size, each))
            }
            Node::Comprehension(comprehension) => self.comprehension(comprehension),
            Node::OptionalMap { operand, slot, body, .. } => {
                let (cost, inner) = self.node(operand);
                self.set(*slot, inner.without_optional());
                let (body_cost, facts) = self.node(body);
                let mapped = body_cost + Estimate::exactly(12);
                (cost + ONE + Estimate { min: 1, max: mapped.max }, facts)
            }
        }
    }

    fn slot(&self, slot: usize) -> ValueFacts<'b> {
        self.slots.get(slot).cloned().flatten().unwrap_or_else(|| ValueFacts::from_type(Type::Dyn))
    }

    fn set(&mut self, slot: usize, facts: ValueFacts<'b>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(facts);
        }
    }

    /// Returns the cost of the root and the links, the parts from which the last link selects, and the name
    /// of the selected field.
    fn chain(&mut self, root: &Node, steps: &[Step]) -> (Estimate, Option<(Parts<'b>, Option<String>)>) {
        let (mut cost, facts) = match root {
            Node::Slot(slot) => (Estimate::ZERO, self.slot(*slot)),
            other => self.node(other),
        };
        let mut parts = facts.parts;
        let mut last = None;
        for step in steps {
            if let Some(field) = last.take() {
                let field: Option<String> = field;
                parts = part_facts(&parts, field.as_deref(), Type::Dyn).parts;
            }
            match &step.target {
                StepTarget::Field(name) => {
                    cost = cost + ONE;
                    last = Some(Some(name.clone()));
                }
                StepTarget::Index(index) => {
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
            let (element_cost, facts) = self.node(element);
            cost = cost + element_cost;
            each = Some(match each {
                Some(each) => each.union(facts),
                None => facts,
            });
        }
        let min_size = elements.iter().filter(|(_, optional)| !optional).count() as u64;
        let size = Estimate { min: min_size, max: elements.len() as u64 };
        let each = each.unwrap_or_else(|| ValueFacts::with_size(Type::Dyn, Estimate::ZERO));
        (cost, ValueFacts::with_elements(Type::list(each.ty.clone()), size, each))
    }

    fn call(
        &mut self,
        functions: &[&'static crate::library::Function],
        arguments: &[Node],
        ty: &Type,
    ) -> (Estimate, ValueFacts<'b>) {
        let mut cost = Estimate::ZERO;
        let mut facts = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (argument_cost, argument) = self.node(argument);
            cost = cost + argument_cost;
            facts.push(argument);
        }
        let calls = functions.iter().map(|function| function.cost.estimate(&facts));
        let call = calls.reduce(Estimate::union).unwrap_or(Estimate::ZERO);
        let results = functions.iter().map(|function| match (function.size, facts.first()) {
            (ResultSize::First, Some(first)) => {
                let size = Estimate { min: 0, max: first.size.max };
                ValueFacts { ty: ty.clone(), size, parts: first.parts.clone() }
            }
            (ResultSize::Custom(rule), _) => rule(&facts, ty.clone()),
            _ => ValueFacts::from_type(ty.clone()),
        });
        let result = results.reduce(ValueFacts::union).unwrap_or_else(|| ValueFacts::from_type(ty.clone()));
        (cost + call, result)
    }

    /// Estimates a comprehension with the charges of evaluation.
    fn comprehension(&mut self, comprehension: &Comprehension) -> (Estimate, ValueFacts<'b>) {
        let (range_cost, range) = self.node(&comprehension.range);
        let (key, value) = match &range.ty {
            Type::Map(types) => {
                let key = match types.0 {
                    // No schema limits map keys; they count as empty.
                    Type::String => ValueFacts::with_size(Type::String, Estimate::ZERO),
                    ref other => ValueFacts::from_type(other.clone()),
                };
                (key, range.element())
            }
            Type::List(_) => (ValueFacts::from_type(Type::Int), range.element()),
            _ => (ValueFacts::from_type(Type::Dyn), range.element()),
        };
        let element = match (comprehension.second, &range.ty) {
            (None, Type::Map(_)) => key.clone(),
            _ => value.clone(),
        };
        match comprehension.second {
            Some(second) => {
                self.set(second, value);
                self.set(comprehension.first, key);
            }
            None => self.set(comprehension.first, element.clone()),
        }
        let condition = comprehension.condition.as_ref().map(|node| self.node(node).0);
        let (transform, transformed) = match &comprehension.transform {
            Some(node) => self.node(node),
            // The result of a filter has the elements of the range themselves.
            None => (ONE, element),
        };
        let step = |transform_cost: Estimate| match condition {
            Some(condition) => condition + Estimate { min: 1, max: transform_cost.max },
            None => transform_cost,
        };
        let condition_cost = condition.unwrap_or(Estimate::ZERO);
        let (start, each, end) = match comprehension.kind {
            ComprehensionKind::All => (0, condition_cost + Estimate::exactly(3), 1),
            ComprehensionKind::Exists => (0, condition_cost + Estimate::exactly(4), 1),
            ComprehensionKind::ExistsOne => (0, condition_cost + Estimate { min: 1, max: 2 }, 2),
            ComprehensionKind::List | ComprehensionKind::Filter => {
                (LIST_STEP, step(transform + Estimate::exactly(LIST_STEP + 2)), 1)
            }
            ComprehensionKind::MapValues | ComprehensionKind::MapEntries => {
                (MAP_LITERAL, step(transform + Estimate::exactly(2)), 1)
            }
        };
        // `all` and `exists` may end after one element, so their minimum is one iteration.
        let at_least = match comprehension.kind {
            ComprehensionKind::All | ComprehensionKind::Exists => range.size.min.min(1),
            _ => range.size.min,
        };
        let iterations = Estimate { min: at_least, max: range.size.max };
        let cost = range_cost + Estimate::exactly(start + end) + iterations.times(each);
        let size_after_filter =
            |size: Estimate| Estimate { min: if condition.is_some() { 0 } else { size.min }, max: size.max };
        let facts = match comprehension.kind {
            ComprehensionKind::All | ComprehensionKind::Exists | ComprehensionKind::ExistsOne => {
                ValueFacts::from_type(Type::Bool)
            }
            ComprehensionKind::List | ComprehensionKind::Filter => ValueFacts::with_elements(
                Type::list(transformed.ty.clone()),
                size_after_filter(range.size),
                transformed,
            ),
            ComprehensionKind::MapValues => ValueFacts::with_elements(
                Type::map(Type::Dyn, transformed.ty.clone()),
                size_after_filter(range.size),
                transformed,
            ),
            ComprehensionKind::MapEntries => {
                let value = transformed.element();
                ValueFacts::with_elements(
                    Type::map(Type::Dyn, value.ty.clone()),
                    size_after_filter(range.size.times(transformed.size)),
                    value,
                )
            }
        };
        (cost, facts)
    }
}

/// Facts about a constant of the program.
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
    ValueFacts::with_size(ty, Estimate::exactly(value.size()))
}
