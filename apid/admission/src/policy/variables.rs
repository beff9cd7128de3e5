//! Variables of a policy, computed on first access.
//!
//! # Invariants
//!
//! INVARIANT (bounded recursion): a variable at the end of a long chain is computed after all variables that it
//! reads. So evaluation does not recurse along the chain. INVARIANT (computed once): each [`Variables`]
//! computes a variable at most once, with the cost limit of one expression.

use std::cell::{Cell, RefCell};

use expressions::{Cost, EvalError, LazyFields, Value, limits};
use kinds::admission_expressions::VARIABLES;

use super::expressions::CommonExpressions;

/// The variables of a policy during one evaluation, with the values computed so far.
pub(super) struct Variables<'a, 'i> {
    policy: &'a CommonExpressions,
    inputs: &'i [(&'static str, Value<'a>)],
    computed: RefCell<Vec<Option<Result<Value<'a>, EvalError>>>>,
    cost: Cell<u64>,
}

impl<'a, 'i> Variables<'a, 'i> {
    /// Creates the variables of a policy. `inputs` are the other values that their expressions read, such as
    /// `object` and `request`.
    pub(super) fn new(policy: &'a CommonExpressions, inputs: &'i [(&'static str, Value<'a>)]) -> Self {
        let computed = RefCell::new(vec![None; policy.variables.len()]);
        Variables { policy, inputs, computed, cost: Cell::new(0) }
    }

    /// Returns the cost of the variables that were computed since the last call, in cost units.
    pub(super) fn take_cost(&self) -> u64 {
        self.cost.take()
    }

    fn value(&self, position: usize) -> Result<Value<'a>, EvalError> {
        if let Some(value) = self.computed_value(position) {
            return value;
        }
        for dependency in self.policy.all_dependencies(position) {
            if self.computed_value(dependency).is_none() {
                let _ = self.compute(dependency);
            }
        }
        self.compute(position)
    }

    fn computed_value(&self, position: usize) -> Option<Result<Value<'a>, EvalError>> {
        self.computed.borrow().get(position).cloned().flatten()
    }

    fn compute(&self, position: usize) -> Result<Value<'a>, EvalError> {
        let policy: &'a CommonExpressions = self.policy;
        let Some(variable) = policy.variables.get(position) else {
            return Err(EvalError::Failed("unknown variable".to_owned()));
        };
        let failure = |action: &str, reason: &dyn std::fmt::Display| {
            EvalError::Failed(format!("composited variable {:?} fails to {action}: {reason}", variable.name))
        };
        let value = match &variable.program {
            Err(error) => Err(failure("compile", error)),
            Ok(program) => {
                let mut cost = Cost::limit(limits::CALL);
                let value = program.evaluate_with_lazy(self.inputs, (VARIABLES, self), &mut cost);
                self.cost.set(self.cost.get().saturating_add(cost.used()));
                value.map_err(|error| failure("evaluate", &error))
            }
        };
        if let Some(slot) = self.computed.borrow_mut().get_mut(position) {
            *slot = Some(value.clone());
        }
        value
    }
}

impl<'a> LazyFields<'a> for Variables<'a, '_> {
    fn field(&self, name: &str) -> Option<Result<Value<'a>, EvalError>> {
        let position = self.policy.variable_positions.get(name)?;
        Some(self.value(*position))
    }

    fn has(&self, name: &str) -> bool {
        self.policy.variable_positions.contains_key(name)
    }
}
