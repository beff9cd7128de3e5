//! A compiled expression: the typed tree that [`eval`](crate::eval) walks.

use crate::library::Function;
use crate::types::{Overload, Type};
use crate::value::Value;

/// A compiled expression. It holds no data; threads can share it and run it repeatedly.
pub struct Program {
    pub(crate) root: Node,
    /// Declared variables, in the first slots.
    pub(crate) variables: Vec<(String, Type)>,
    /// Number of variable slots, including comprehension variables.
    pub(crate) slots: usize,
    pub(crate) result: Type,
    pub(crate) list_literal_cost: u64,
}

impl Program {
    /// Type of the expression; [`Type::Dyn`] if only evaluation determines it.
    pub fn result_type(&self) -> &Type {
        &self.result
    }

    /// Whether the expression reads a declared variable.
    pub fn uses(&self, variable: &str) -> bool {
        let slot = self.variables.iter().position(|(declared, _)| declared == variable);
        slot.is_some_and(|slot| self.root.reads(slot))
    }
}

impl Node {
    /// Whether the node or a descendant reads a slot. The recursion is limited, because the tree height is.
    pub(crate) fn reads(&self, slot: usize) -> bool {
        let any = |nodes: &[Node]| nodes.iter().any(|node| node.reads(slot));
        let steps_read = |steps: &[Step]| {
            steps.iter().any(|step| matches!(&step.target, StepTarget::Index(index) if index.reads(slot)))
        };
        match self {
            Node::Const(_) | Node::TypeName(..) | Node::Folded { .. } => false,
            Node::Slot(read) => *read == slot,
            Node::Chain { root, steps } | Node::Has { root, steps, .. } => {
                root.reads(slot) || steps_read(steps)
            }
            Node::Call(call) => any(&call.arguments),
            Node::And(pair) | Node::Or(pair) | Node::OrElse { operand: pair, .. } => {
                pair.0.reads(slot) || pair.1.reads(slot)
            }
            Node::Conditional(parts, _) => [&parts.0, &parts.1, &parts.2].iter().any(|part| part.reads(slot)),
            Node::List(elements, _) => elements.iter().any(|(element, _)| element.reads(slot)),
            Node::Map { entries, .. } => {
                entries.iter().any(|(key, value, _)| key.reads(slot) || value.reads(slot))
            }
            Node::Comprehension(comprehension) => {
                let parts = [
                    Some(&comprehension.range),
                    comprehension.condition.as_ref(),
                    comprehension.transform.as_ref(),
                ];
                parts.into_iter().flatten().any(|part| part.reads(slot))
            }
            Node::OptionalMap { operand, body, .. } => operand.reads(slot) || body.reads(slot),
        }
    }
}

/// A node of the program.
pub(crate) enum Node {
    Const(Value<'static>),
    /// The name of a type, with the type of the value.
    TypeName(Value<'static>, Type),
    /// A constant part, evaluated when the expression was compiled. The estimate has the cost of the original.
    Folded {
        value: Value<'static>,
        original: Box<Node>,
    },
    /// A variable, by its index in the slots.
    Slot(usize),
    Chain {
        root: Box<Node>,
        steps: Vec<Step>,
    },
    /// `has(root.steps.field)`
    Has {
        root: Box<Node>,
        steps: Vec<Step>,
        field: String,
    },
    Call(Box<Call>),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    /// Condition and branches, and the type of the value.
    Conditional(Box<(Node, Node, Node)>, Type),
    /// `a.or(b)` and `a.orValue(b)`, which evaluate `b` only if `a` is absent.
    OrElse {
        operand: Box<(Node, Node)>,
        unwrap: bool,
        ty: Type,
    },
    /// Elements, each with a flag that is true for an optional element, and the type of the list.
    List(Vec<(Node, bool)>, Type),
    /// A map or a message literal. The keys of a message are constants.
    Map {
        /// The name of the type of a message.
        message: Option<String>,
        /// Keys and values, and whether the value is optional.
        entries: Vec<(Node, Node, bool)>,
        ty: Type,
    },
    Comprehension(Box<Comprehension>),
    /// `operand.optMap(slot, body)`; with `flat`, `operand.optFlatMap(slot, body)`, whose body returns an
    /// optional.
    OptionalMap {
        operand: Box<Node>,
        slot: usize,
        /// Type of the variable.
        inner: Type,
        body: Box<Node>,
        flat: bool,
        /// Whether the body reads the variable.
        is_used: bool,
        ty: Type,
    },
}

/// A call of a function or operator.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// Overloads that accept the types of the arguments, with their code. Evaluation selects one of several.
    pub(crate) candidates: Vec<(&'static Overload, &'static Function)>,
    pub(crate) arguments: Vec<Node>,
    /// Type of the result.
    pub(crate) ty: Type,
    /// Whether the call tests membership in a list of constants, which costs nothing.
    pub(crate) is_membership: bool,
}

impl Call {
    /// The overload, if the types of the arguments determine one.
    pub(crate) fn overload(&self) -> Option<&'static Overload> {
        match self.candidates.as_slice() {
            [(overload, _)] => Some(overload),
            _ => None,
        }
    }
}

/// One link of a chain such as `self.spec.list[0]`.
pub(crate) struct Step {
    pub(crate) target: StepTarget,
    /// Whether the link is optional: `.?field` or `[?index]`.
    pub(crate) is_optional: bool,
    /// Type of the value.
    pub(crate) ty: Type,
}

/// The part that a link selects.
pub(crate) enum StepTarget {
    Field(String),
    Index(Node),
}

/// A comprehension: a macro such as `all`, `map` or `filter` that visits each element of a list or map.
pub(crate) struct Comprehension {
    pub(crate) kind: ComprehensionKind,
    pub(crate) range: Node,
    /// Slot of the only variable, or of the first of two variables: index or key.
    pub(crate) first: usize,
    /// Slot of the second of two variables: element or value.
    pub(crate) second: Option<usize>,
    /// Types of both variables; the second is dynamic without a second variable.
    pub(crate) variable_types: (Type, Type),
    pub(crate) condition: Option<Node>,
    pub(crate) transform: Option<Node>,
    /// Type of the result.
    pub(crate) ty: Type,
}

/// Result kind of a comprehension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComprehensionKind {
    All,
    Exists,
    ExistsOne,
    /// A list of transformed elements that meet the condition.
    List,
    /// A list of the elements that meet the condition.
    Filter,
    /// A map with the same keys.
    MapValues,
    /// A map of the entries that the transformation returns.
    MapEntries,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    #[test]
    fn use_of_variable_is_detected_in_all_nodes() {
        let map = Type::map(Type::String, Type::Int);
        let environment = Environment::new()
            .variable("self", map.clone())
            .variable("old", map.clone())
            .variable("maybe", Type::optional(map));
        for (expression, is_used) in [
            ("self.a > 1", false),
            ("self.a > old.a", true),
            ("has(old.a)", true),
            ("self[string(old.a)] == 1", true),
            ("self.all(k, self[k] > old.a)", true),
            ("self.all(old, old == 'a')", false),
            ("true || old.a == 1", true),
            ("self.a == 1 ? 2 == 3 : old.a == 1", true),
            ("[self.a, old.a].size() == 2", true),
            ("{'k': old.a}.size() == 1", true),
            ("maybe.optMap(m, old.a).hasValue()", true),
            ("maybe.orValue(old).size() == 0", true),
            ("'old' == 'old'", false),
        ] {
            let program =
                environment.compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            assert_eq!(program.uses("old"), is_used, "{expression}");
            assert!(!program.uses("undeclared"));
        }
    }
}
