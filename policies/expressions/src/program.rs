//! A compiled expression: the typed tree that [`eval`](crate::eval) walks.

use crate::library::Function;
use crate::types::Type;
use crate::value::Value;

/// A compiled expression. It holds no data; threads can share it and run it repeatedly.
pub struct Program {
    pub(crate) root: Node,
    /// Declared variables, in the first slots.
    pub(crate) variables: Vec<(String, Type)>,
    /// Number of variable slots, including comprehension variables.
    pub(crate) slots: usize,
    pub(crate) result: Type,
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
    fn reads(&self, slot: usize) -> bool {
        let any = |nodes: &[Node]| nodes.iter().any(|node| node.reads(slot));
        let steps_read = |steps: &[Step]| {
            steps.iter().any(|step| matches!(&step.target, StepTarget::Index(index) if index.reads(slot)))
        };
        match self {
            Node::Const(_) => false,
            Node::Slot(read) => *read == slot,
            Node::Chain { root, steps, .. } | Node::Has { root, steps, .. } => {
                root.reads(slot) || steps_read(steps)
            }
            Node::Call { arguments, .. } => any(arguments),
            Node::And(pair) | Node::Or(pair) | Node::OrElse { operand: pair, .. } => {
                pair.0.reads(slot) || pair.1.reads(slot)
            }
            Node::Conditional(parts) => [&parts.0, &parts.1, &parts.2].iter().any(|part| part.reads(slot)),
            Node::List(elements) => elements.iter().any(|(element, _)| element.reads(slot)),
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
    /// A variable, by its index in the slots.
    Slot(usize),
    Chain {
        root: Box<Node>,
        steps: Vec<Step>,
        /// Type of the final value.
        ty: Type,
    },
    /// `has(root.steps.field)`
    Has {
        root: Box<Node>,
        steps: Vec<Step>,
        field: String,
    },
    Call {
        functions: Vec<&'static Function>,
        arguments: Vec<Node>,
        /// Type of the result.
        ty: Type,
    },
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    Conditional(Box<(Node, Node, Node)>),
    /// `a.or(b)` and `a.orValue(b)`, which evaluate `b` only if `a` is absent.
    OrElse {
        operand: Box<(Node, Node)>,
        unwrap: bool,
    },
    List(Vec<(Node, bool)>),
    /// A map or a message literal. The keys of a message are constants.
    Map {
        /// The name of the type of a message.
        message: Option<String>,
        /// Keys and values, and whether the value is optional.
        entries: Vec<(Node, Node, bool)>,
    },
    Comprehension(Box<Comprehension>),
    /// `operand.optMap(slot, body)`; with `flat`, `operand.optFlatMap(slot, body)`, whose body returns an
    /// optional.
    OptionalMap {
        operand: Box<Node>,
        slot: usize,
        body: Box<Node>,
        flat: bool,
    },
}

/// One link of a chain such as `self.spec.list[0]`.
pub(crate) struct Step {
    pub(crate) target: StepTarget,
    /// Whether the link is optional: `.?field` or `[?index]`.
    pub(crate) is_optional: bool,
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
    pub(crate) condition: Option<Node>,
    pub(crate) transform: Option<Node>,
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
