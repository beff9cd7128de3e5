//! Worst-case cost estimate of an expression from size limits of the data, before evaluation.
//!
//! # Contract
//! The estimator walks the checked expression as cel-go's estimator walks the expression with expanded macros.
//! Sizes come from [`Bounds`], from literals and from the result sizes of functions; unknown sizes are
//! unlimited. The estimates equal those of kube-apiserver, because they decide which rules are accepted.

use crate::bounds::Bounds;
use crate::cost::{LIST_LITERAL, MAP_LITERAL, MESSAGE_LITERAL};
use crate::program::{Call, Comprehension, ComprehensionKind, Node, Program, Step, StepTarget};
use crate::types::Type;
use crate::value::Value;
use crate::value_facts::{EntrySizes, Estimate, Part, Place, ValueFacts};

impl Program {
    /// Estimates the cost of an evaluation.
    /// `bounds` are the size limits of the variables; all variables have the limits of the first. Without an
    /// entry the sizes are unlimited.
    pub fn estimate(&self, bounds: &[(&str, &Bounds)]) -> Estimate {
        let root = bounds.first().map(|(_, bounds)| *bounds);
        let variables = self.variables.iter();
        let mut slots: Vec<Option<ValueFacts<'_>>> = variables
            .map(|(_, ty)| Some(ValueFacts::at(ty.clone(), Place::Data { root, bounds: root })))
            .collect();
        slots.resize(self.slots, None);
        let list_literal = Estimate::exactly(self.list_literal_cost);
        Estimator { slots, nowhere: Place::Computed { root }, list_literal }.node(&self.root).0
    }
}

/// Walks a program and estimates its cost. Most methods return the cost of a node and facts about its value.
struct Estimator<'b> {
    slots: Vec<Option<ValueFacts<'b>>>,
    /// Place of computed values.
    nowhere: Place<'b>,
    /// Cost of a list literal of the expression.
    list_literal: Estimate,
}

const ONE: Estimate = Estimate::ONE;

impl<'b> Estimator<'b> {
    fn node(&mut self, node: &Node) -> (Estimate, ValueFacts<'b>) {
        match node {
            Node::Const(value) => (Estimate::ZERO, self.constant(value)),
            // As in kube-apiserver, the limits of the data also limit the name of a type.
            Node::TypeName(_, ty) => {
                (ONE, ValueFacts::at(ty.clone(), self.nowhere.part(&Part::Field("type"))))
            }
            Node::Folded { original, .. } => self.node(original),
            Node::Slot(slot) => (ONE, self.slot(*slot)),
            Node::Chain { root, steps, .. } => self.chain(root, steps),
            Node::Has { root, steps, .. } => (self.chain(root, steps).0, self.computed(Type::Bool)),
            Node::Call(call) => self.call(call),
            Node::And(operands) | Node::Or(operands) => {
                let (left, right) = (self.node(&operands.0).0, self.node(&operands.1).0);
                // Evaluation may skip the right operand.
                (Estimate { min: left.min, max: (left + right).max }, self.computed(Type::Bool))
            }
            Node::Conditional(parts, ty) => {
                let condition = self.node(&parts.0).0;
                let (yes, no) = (self.node(&parts.1), self.node(&parts.2));
                let size = yes.1.size().union(no.1.size());
                let mut facts = ValueFacts::with_size(ty.clone(), size, self.nowhere);
                facts.entries = yes.1.entries.zip(no.1.entries).map(|(yes, no)| yes.union(no));
                (condition + yes.0.union(no.0), facts)
            }
            Node::OrElse { operand, ty, .. } => {
                let (inner, other) = (self.node(&operand.0), self.node(&operand.1));
                (inner.0 + ONE + other.0, self.computed(ty.clone()))
            }
            Node::List(elements, ty) => self.list(elements, ty),
            Node::Map { message, entries, ty } => self.map(message.is_some(), entries, ty),
            Node::Comprehension(comprehension) => self.comprehension(comprehension),
            Node::OptionalMap { operand, slot, inner, body, flat, ty, .. } => {
                // `operand.hasValue() ? optional.of(bind(operand.value(), body)) : optional.none()`
                let (cost, _) = self.node(operand);
                let variable = self.computed(inner.clone());
                self.set(*slot, variable);
                let (body, facts) = self.node(body);
                let bound = Estimate::exactly(LIST_LITERAL) + cost + ONE + body;
                let mapped = if *flat { bound } else { bound + ONE };
                let size = if *flat { facts.size() } else { self.computed(ty.clone()).size() };
                let size = size.union(self.computed(ty.clone()).size());
                let facts = ValueFacts::with_size(ty.clone(), size, self.nowhere);
                (cost + ONE + mapped.union(ONE), facts)
            }
        }
    }

    /// Facts about a computed value without a known size.
    fn computed(&self, ty: Type) -> ValueFacts<'b> {
        ValueFacts::at(ty, self.nowhere)
    }

    fn slot(&self, slot: usize) -> ValueFacts<'b> {
        self.slots.get(slot).cloned().flatten().unwrap_or_else(|| self.computed(Type::Dyn))
    }

    fn set(&mut self, slot: usize, facts: ValueFacts<'b>) {
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = Some(facts);
        }
    }

    fn constant(&self, value: &Value<'_>) -> ValueFacts<'b> {
        let ty = match value {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Uint(_) => Type::Uint,
            Value::Double(_) => Type::Double,
            Value::String(_) => Type::String,
            Value::Bytes(_) => Type::Bytes,
            _ => Type::Dyn,
        };
        let mut facts = ValueFacts::with_size(ty, Estimate::exactly(value.size()), self.nowhere);
        if let Value::Int(number) = value {
            facts.literal = Some(*number);
        }
        facts
    }

    /// Cost of a chain of links, and facts about its value.
    fn chain(&mut self, root: &Node, steps: &[Step]) -> (Estimate, ValueFacts<'b>) {
        let (mut cost, mut facts) = self.node(root);
        for step in steps {
            let operand = &facts.ty;
            let is_plain = !step.is_optional;
            let mut entry_size = None;
            let place = match &step.target {
                StepTarget::Field(name) => {
                    let has_cost =
                        matches!(operand, Type::Map(_) | Type::Object(_) | Type::Param(_)) || !is_plain;
                    if has_cost {
                        cost = cost + ONE;
                    }
                    if is_plain { facts.place.part(&Part::Field(name)) } else { self.nowhere }
                }
                StepTarget::Index(index) => {
                    cost = cost + ONE + self.node(index).0;
                    entry_size = facts.entries.map(|entries| entries.value);
                    let is_in_data = is_plain && !matches!(operand, Type::Optional(_));
                    if is_in_data { facts.place.part(&Part::Value) } else { self.nowhere }
                }
            };
            facts = match entry_size.filter(|_| is_plain) {
                Some(size) => ValueFacts::with_size(step.ty.clone(), size, place),
                None => ValueFacts::at(step.ty.clone(), place),
            };
        }
        (cost, facts)
    }

    fn list(&mut self, elements: &[(Node, bool)], ty: &Type) -> (Estimate, ValueFacts<'b>) {
        let mut cost = self.list_literal;
        let mut value: Option<Estimate> = None;
        for (element, _) in elements {
            let (element_cost, facts) = self.node(element);
            cost = cost + element_cost;
            value = Some(value.map_or(facts.size(), |value| value.union(facts.size())));
        }
        let size = Estimate::exactly(elements.len() as u64);
        let mut facts = ValueFacts::with_size(ty.clone(), size, self.nowhere);
        facts.entries = Some(EntrySizes { is_list: true, key: ONE, value: value.unwrap_or(Estimate::ZERO) });
        (cost, facts)
    }

    fn map(
        &mut self,
        is_message: bool,
        entries: &[(Node, Node, bool)],
        ty: &Type,
    ) -> (Estimate, ValueFacts<'b>) {
        let mut cost = Estimate::exactly(if is_message { MESSAGE_LITERAL } else { MAP_LITERAL });
        let mut sizes: Option<EntrySizes> = None;
        for (key, value, _) in entries {
            let ((key_cost, key), (value_cost, value)) = (self.node(key), self.node(value));
            cost = cost + key_cost + value_cost;
            let entry = EntrySizes { is_list: false, key: key.size(), value: value.size() };
            sizes = Some(sizes.map_or(entry, |sizes| sizes.union(entry)));
        }
        if is_message {
            return (cost, self.computed(ty.clone()));
        }
        let size = Estimate::exactly(entries.len() as u64);
        let mut facts = ValueFacts::with_size(ty.clone(), size, self.nowhere);
        let empty = EntrySizes { is_list: false, key: Estimate::ZERO, value: Estimate::ZERO };
        facts.entries = Some(sizes.unwrap_or(empty));
        (cost, facts)
    }

    fn call(&mut self, call: &Call) -> (Estimate, ValueFacts<'b>) {
        let mut cost = Estimate::ZERO;
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            let (argument_cost, facts) = self.node(argument);
            cost = cost + argument_cost;
            arguments.push(facts);
        }
        let ty = call.ty.clone();
        if call.name == "dyn" {
            let argument = arguments.pop();
            let mut facts = self.computed(ty);
            if let Some(argument) = argument {
                facts = facts.or_size(argument.known_size());
                facts.entries = argument.entries;
            }
            return (cost + ONE, facts);
        }
        let calls = call.candidates.iter().map(|(overload, f)| f.cost.estimate(&arguments, overload));
        let units = calls.reduce(Estimate::union).unwrap_or(Estimate::ZERO);
        let sizes = call.candidates.iter().filter_map(|(overload, f)| f.size.estimate(&arguments, overload));
        let size = sizes.reduce(Estimate::union);
        let mut facts = match size {
            Some(size) => ValueFacts::with_size(ty, size, self.nowhere),
            None => self.computed(ty),
        };
        if call.name == "_+_"
            && let [left, right] = arguments.as_slice()
        {
            facts.entries = left.entries.zip(right.entries).map(|(left, right)| left.union(right));
        }
        (cost + units, facts)
    }

    /// Facts about the key or index, or about the value or element, of each entry of a range.
    fn entry(&self, range: &ValueFacts<'b>, is_value: bool, ty: Type) -> ValueFacts<'b> {
        let is_list = match range.entries {
            Some(entries) => entries.is_list,
            None => matches!(range.ty, Type::List(_)),
        };
        let part = match (is_value, is_list) {
            (true, _) => Part::Value,
            (false, true) => Part::Field("@indices"),
            (false, false) => Part::Key,
        };
        let known = range.entries.map(|entries| if is_value { entries.value } else { entries.key });
        ValueFacts::at(ty, range.place.part(&part)).or_size(known)
    }

    /// Estimates a comprehension with the costs of its macro expansion.
    fn comprehension(&mut self, comprehension: &Comprehension) -> (Estimate, ValueFacts<'b>) {
        let (range_cost, range) = self.node(&comprehension.range);
        let (first, second) = &comprehension.variable_types;
        let is_list = match range.entries {
            Some(entries) => entries.is_list,
            None => matches!(range.ty, Type::List(_)),
        };
        match comprehension.second {
            Some(slot) => {
                let key = self.entry(&range, false, first.clone());
                let value = self.entry(&range, true, second.clone());
                self.set(comprehension.first, key);
                self.set(slot, value);
            }
            None => {
                let single = self.entry(&range, is_list, first.clone());
                self.set(comprehension.first, single);
            }
        }
        let condition = comprehension.condition.as_ref().map(|node| self.node(node).0);
        let transform = match &comprehension.transform {
            Some(node) => Some(self.node(node)),
            // The result of a filter has the elements of the range themselves.
            None => (comprehension.kind == ComprehensionKind::Filter)
                .then(|| (ONE, self.slot(comprehension.first))),
        };
        let (transform_cost, transformed) =
            transform.unwrap_or_else(|| (Estimate::ZERO, self.computed(Type::Dyn)));
        let condition_cost = condition.unwrap_or(Estimate::ZERO);
        // The step keeps the accumulator, which costs one unit, if the condition is false.
        let conditional = |step: Estimate| match condition {
            Some(condition) => condition + step.union(ONE),
            None => step,
        };
        let units = Estimate::exactly;
        let (start, each, end) = match comprehension.kind {
            ComprehensionKind::All => {
                (0, Estimate { min: 3, max: 3_u64.saturating_add(condition_cost.max) }, 1)
            }
            ComprehensionKind::Exists => {
                (0, Estimate { min: 4, max: 4_u64.saturating_add(condition_cost.max) }, 1)
            }
            ComprehensionKind::ExistsOne => (0, conditional(units(2)), 2),
            ComprehensionKind::List | ComprehensionKind::Filter => {
                (LIST_LITERAL, conditional(transform_cost + units(LIST_LITERAL + 2)), 1)
            }
            ComprehensionKind::MapValues => (MAP_LITERAL, conditional(transform_cost + units(3)), 1),
            ComprehensionKind::MapEntries => (MAP_LITERAL, conditional(transform_cost + units(2)), 1),
        };
        let cost = range_cost + units(start + end) + range.size().times(each);
        let ty = comprehension.ty.clone();
        let facts = match comprehension.kind {
            ComprehensionKind::All | ComprehensionKind::Exists | ComprehensionKind::ExistsOne => {
                ValueFacts::with_size(ty, ONE, self.nowhere)
            }
            ComprehensionKind::List | ComprehensionKind::Filter => {
                let mut facts = ValueFacts::with_size(ty, range.size(), self.nowhere);
                // The accumulator begins as an empty list.
                let value = transformed.size().union(Estimate::ZERO);
                facts.entries = Some(EntrySizes { is_list: true, key: ONE, value });
                facts
            }
            ComprehensionKind::MapValues | ComprehensionKind::MapEntries => {
                ValueFacts::with_size(ty, range.size(), self.nowhere)
            }
        };
        (cost, facts)
    }
}
