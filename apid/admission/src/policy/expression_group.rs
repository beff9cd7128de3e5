//! Evaluation of expressions of one policy with a common cost budget.

use expressions::{Cost, Value, limits};
use kinds::admission_expressions::VARIABLES;

use super::expressions::CommonExpressions;
use super::variables::Variables;
use crate::match_conditions::{Expression, ExpressionFailure};

/// The error of a group of expressions that exceeds its cost budget.
pub(crate) struct BudgetExceeded;

/// Expressions of one policy that share a cost budget and the computed values of variables.
pub(crate) struct ExpressionGroup<'a, 'i> {
    inputs: &'i [(&'static str, Value<'a>)],
    variables: Variables<'a, 'i>,
    /// Remaining cost units.
    pub(crate) budget: u64,
}

impl<'a, 'i> ExpressionGroup<'a, 'i> {
    /// Creates a group of expressions with a budget in cost units.
    pub(crate) fn new(
        policy: &'a CommonExpressions,
        inputs: &'i [(&'static str, Value<'a>)],
        budget: u64,
    ) -> Self {
        ExpressionGroup { inputs, variables: Variables::new(policy, inputs), budget }
    }

    /// Evaluates an expression. The inner error is its failure.
    pub(crate) fn evaluate(
        &mut self,
        expression: &'a Expression,
    ) -> Result<Result<Value<'a>, ExpressionFailure>, BudgetExceeded> {
        let program = match expression.program() {
            Ok(program) => program,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut cost = Cost::limit(limits::CALL);
        let outcome = program.evaluate_with_lazy(self.inputs, (VARIABLES, &self.variables), &mut cost);
        let used = self.variables.take_cost().saturating_add(cost.used());
        self.budget = self.budget.checked_sub(used).ok_or(BudgetExceeded)?;
        Ok(outcome.map_err(|error| expression.failure(error)))
    }
}
