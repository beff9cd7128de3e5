//! A compiled expression: the typed tree that [`eval`](crate::eval) walks.

use crate::cost::Cost;
use crate::error::EvalError;
use crate::eval;
use crate::library::Function;
use crate::types::Type;
use crate::value::Value;

/// A compiled expression. It holds no data, can be shared between threads and run any number of times.
pub struct Program {
    pub(crate) root: Node,
    /// The declared variables, which have the first places.
    pub(crate) variables: Vec<(String, Type)>,
    /// Places for variables, those of comprehensions included.
    pub(crate) slots: usize,
    pub(crate) result: Type,
}

impl Program {
    /// The type of the expression; [`Type::Dyn`] when only running it tells.
    pub fn result_type(&self) -> &Type {
        &self.result
    }

    /// Runs the expression. Variables that are not given are missing: reading one is an error.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] when `cost` is used up; any other error of the expression.
    pub fn evaluate<'a>(
        &'a self,
        variables: &[(&str, Value<'a>)],
        cost: &mut Cost,
    ) -> Result<Value<'a>, EvalError> {
        let mut slots = vec![None; self.slots];
        for (name, value) in variables {
            let place = self.variables.iter().position(|(declared, _)| declared == name);
            if let Some(slot) = place.and_then(|place| slots.get_mut(place)) {
                *slot = Some(value.clone());
            }
        }
        eval::run(&self.root, &self.variables, slots, cost)
    }
}

/// A node of the program.
pub(crate) enum Node {
    Const(Value<'static>),
    Slot(usize),
    Chain {
        root: Box<Node>,
        steps: Vec<Step>,
        /// Of the value at its end.
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
        /// Of the result.
        ty: Type,
    },
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    Conditional(Box<(Node, Node, Node)>),
    /// `a.or(b)` and `a.orValue(b)`, which run `b` only when `a` is missing.
    OrElse {
        operand: Box<(Node, Node)>,
        unwrap: bool,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Fold(Box<Fold>),
    /// `operand.optMap(slot, body)`; flat when the body makes the optional itself.
    OptionalMap {
        operand: Box<Node>,
        slot: usize,
        body: Box<Node>,
        flat: bool,
    },
}

/// One link of a chain.
pub(crate) enum Step {
    Field(String),
    OptionalField(String),
    Index(Node),
    OptionalIndex(Node),
}

/// A comprehension.
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Node,
    /// The only variable, or the first of two: index or key.
    pub(crate) first: usize,
    /// The second of two: element or value.
    pub(crate) second: Option<usize>,
    pub(crate) condition: Option<Node>,
    pub(crate) transform: Option<Node>,
}

/// What a comprehension makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    /// A list of transformed elements, of those that meet the condition.
    List,
    /// A list of the elements that meet the condition.
    Filter,
    /// A map with the same keys.
    MapValues,
    /// A map of the entries that the transformation makes.
    MapEntries,
}
