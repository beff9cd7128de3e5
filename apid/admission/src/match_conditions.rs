//! Match conditions: expressions that decide whether a webhook or a policy handles a write.
//!
//! # Contract
//!
//! All conditions are evaluated, with one budget. A write is excluded if one condition is false, even if others fail.
//! Otherwise the errors of the conditions are the result, each message once. An exceeded budget is an error, even if a
//! condition is false.

use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::object::Value;
use expressions::{Cost, EvalError, Program, limits};
use kinds::admission_expressions::{Compiler, Purpose};

/// The message of an exceeded budget.
pub(crate) const BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// An expression and its program.
pub(crate) struct Expression {
    /// The text.
    pub(crate) source: String,
    /// The program, or the detail of the compile error.
    pub(crate) program: Result<Program, String>,
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
    /// The message of the compile error.
    pub(crate) fn program(&self) -> Result<&Program, String> {
        self.program.as_ref().map_err(|detail| format!("compilation error: {detail}"))
    }

    /// The message of a failed evaluation.
    pub(crate) fn failure(&self, error: &EvalError) -> String {
        format!("expression '{}' resulted in error: {error}", self.source)
    }
}

/// Result of the conditions of one webhook or policy for one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionsOutcome {
    /// Whether all conditions are true, or the errors of the conditions if no condition is false.
    pub(crate) result: Result<bool, String>,
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

    /// The compiled programs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.0.iter().filter_map(|expression| expression.program.as_ref().ok())
    }

    /// Whether a condition reads a variable.
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
    ) -> Result<bool, String> {
        let mut budget = limits::MATCH_CONDITIONS;
        let mut is_excluded = false;
        let mut errors: Vec<String> = Vec::new();
        for expression in &self.0 {
            let result = match expression.program() {
                Err(message) => Err(message),
                Ok(program) => {
                    let mut cost = Cost::limit(limits::CALL);
                    let result = program.evaluate(inputs, &mut cost);
                    budget = budget.checked_sub(cost.used()).ok_or(BUDGET)?;
                    result.map_err(|error| expression.failure(&error))
                }
            };
            *error_count += u64::from(result.is_err() && !is_excluded);
            match result {
                Ok(expressions::Value::Bool(true)) => {}
                Ok(_) => is_excluded = true,
                Err(message) if errors.contains(&message) => {}
                Err(message) => errors.push(message),
            }
        }
        match errors.as_slice() {
            _ if is_excluded => Ok(false),
            [] => Ok(true),
            [only] => Err(only.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}
