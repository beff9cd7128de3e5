//! Match conditions: expressions that decide whether a webhook or a policy handles a write.
//!
//! # Contract
//!
//! All conditions are evaluated, with one budget. A write is excluded if one condition is false, whatever the other
//! conditions. Otherwise the errors of the conditions are the result, each message once. The exceeded budget is an
//! error, also if a condition is false.

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

    /// Whether all conditions are true.
    ///
    /// # Errors
    ///
    /// The errors of the conditions, if no condition is false.
    pub(crate) fn evaluate<'a>(
        &'a self,
        inputs: &[(&'static str, expressions::Value<'a>)],
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
