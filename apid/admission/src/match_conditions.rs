//! Match conditions: expressions that decide whether a webhook or a policy handles a write.
//!
//! # Contract
//!
//! All conditions are evaluated, with one cost budget. A write is excluded if one condition is false, even if
//! others fail. Otherwise the errors of the conditions are the result, each message once. An exceeded budget
//! is an error, even if a condition is false.

use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::field::aggregate;
use apimachinery::object::Value;
use expressions::{Cost, EvalError, Program, limits};
use kinds::admission_expressions::{Compiler, ExpressionError, Purpose};

/// The message of an exceeded cost budget.
pub(crate) const BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The failure of an expression, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ExpressionFailure {
    #[error("compilation error: {0}")]
    Compilation(ExpressionError),
    #[error("expression '{expression}' resulted in error: {error}")]
    Evaluation { expression: String, error: EvalError },
}

/// The reason why match conditions have no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ConditionsError {
    #[error("{BUDGET}")]
    Budget,
    /// Conditions failed, and no condition is false. Each message occurs once.
    #[error("{}", aggregate(.0))]
    Failed(Vec<ExpressionFailure>),
}

/// An expression and its program.
pub(crate) struct Expression {
    /// The text of the expression.
    pub(crate) source: String,
    /// The program, or the error of the compilation.
    pub(crate) program: Result<Program, ExpressionError>,
}

impl Expression {
    /// Compiles an expression for a purpose.
    pub(crate) fn new(compiler: &Compiler<'_>, source: &str, purpose: Purpose) -> Self {
        Expression { source: source.to_owned(), program: compiler.compile(source, purpose) }
    }

    /// The program.
    ///
    /// # Errors
    ///
    /// The expression is invalid.
    pub(crate) fn program(&self) -> Result<&Program, ExpressionFailure> {
        self.program.as_ref().map_err(|error| ExpressionFailure::Compilation(error.clone()))
    }

    /// The failure of an evaluation.
    pub(crate) fn failure(&self, error: EvalError) -> ExpressionFailure {
        ExpressionFailure::Evaluation { expression: self.source.clone(), error }
    }
}

/// Result of the conditions of one webhook or policy for one write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConditionsOutcome {
    /// Whether all conditions are true, or the errors of the conditions if no condition is false.
    pub(crate) result: Result<bool, ConditionsError>,
    /// Number of failed conditions before the first false one.
    pub(crate) errors: u64,
    /// Duration of the evaluation.
    pub(crate) took: Duration,
}

/// Compiled conditions of one webhook or policy.
#[derive(Default)]
pub(crate) struct MatchConditions(Vec<Expression>);

impl MatchConditions {
    /// Compiles the items of the field `matchConditions`.
    pub(crate) fn compile(compiler: &Compiler<'_>, conditions: &[Value]) -> Self {
        let expressions =
            conditions.iter().filter_map(|condition| condition.get("expression").and_then(Value::as_str));
        let compile = |source: &str| Expression::new(compiler, source, Purpose::MatchCondition);
        MatchConditions(expressions.map(compile).collect())
    }

    /// Whether there is no condition.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The programs of the conditions that compile.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.0.iter().filter_map(|expression| expression.program.as_ref().ok())
    }

    /// Whether at least one condition reads a variable.
    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.programs().any(|program| program.uses(variable))
    }

    /// Evaluates all conditions.
    pub(crate) fn evaluate<'a>(
        &'a self,
        inputs: &[(&'static str, expressions::Value<'a>)],
        clock: &dyn Clock,
    ) -> ConditionsOutcome {
        let started = clock.monotonic();
        let mut errors = 0;
        let result = self.decide(inputs, &mut errors);
        ConditionsOutcome { result, errors, took: clock.monotonic().saturating_sub(started) }
    }

    fn decide<'a>(
        &'a self,
        inputs: &[(&'static str, expressions::Value<'a>)],
        error_count: &mut u64,
    ) -> Result<bool, ConditionsError> {
        let mut budget = limits::MATCH_CONDITIONS;
        let mut is_excluded = false;
        let mut failures: Vec<ExpressionFailure> = Vec::new();
        for expression in &self.0 {
            let result = match expression.program() {
                Err(failure) => Err(failure),
                Ok(program) => {
                    let mut cost = Cost::limit(limits::CALL);
                    let result = program.evaluate(inputs, &mut cost);
                    budget = budget.checked_sub(cost.used()).ok_or(ConditionsError::Budget)?;
                    result.map_err(|error| expression.failure(error))
                }
            };
            *error_count += u64::from(result.is_err() && !is_excluded);
            match result {
                Ok(expressions::Value::Bool(true)) => {}
                Ok(_) => is_excluded = true,
                Err(failure) if failures.iter().any(|known| known.to_string() == failure.to_string()) => {}
                Err(failure) => failures.push(failure),
            }
        }
        match failures.is_empty() {
            _ if is_excluded => Ok(false),
            true => Ok(true),
            false => Err(ConditionsError::Failed(failures)),
        }
    }
}
