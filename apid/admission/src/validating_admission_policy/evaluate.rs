//! Evaluation of a policy on one write with one parameter.
//!
//! # Invariants
//!
//! INVARIANT (budget): the match conditions of a write use at most [`limits::MATCH_CONDITIONS`] units, its validations with
//! their messages at most [`limits::OBJECT`] units, and its audit annotations as many again.
//!
//! # Reference
//!
//! Each of the three groups computes the variables anew, as in kube-apiserver, so that the costs are the same.

use apimachinery::status::Reason;
use expressions::{Cost, Value, limits};
use kinds::admission_expressions::VARIABLES;

use super::compiled::{CompiledPolicy, Validation};
use super::variables::Variables;
use crate::match_conditions::{BUDGET, Expression};

/// Maximum size of an evaluated message in bytes.
const MESSAGE_MAX: usize = 5 * 1024;

/// Failure policy of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePolicy {
    /// An error denies the write.
    Fail,
    /// An error is ignored.
    Ignore,
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Validations that deny the write, in order.
    pub(super) failures: Vec<Failure>,
    /// Audit annotations without the prefix of their key.
    pub(super) annotations: Vec<(String, String)>,
    /// Errors of audit annotations, which deny the write.
    pub(super) annotation_errors: Vec<String>,
}

/// A validation that denies the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Position of the validation.
    pub(super) index: usize,
    /// Message for the client.
    pub(super) message: String,
    /// Reason of the Status.
    pub(super) reason: Reason,
}

impl Outcome {
    /// The outcome after an error of the whole policy.
    fn of_error(policy: FailurePolicy, message: String) -> Self {
        let failure = Failure { index: 0, message, reason: Reason::Invalid };
        let failures = if policy == FailurePolicy::Fail { vec![failure] } else { Vec::new() };
        Outcome { failures, ..Outcome::default() }
    }
}

/// The exceeded budget of a group of expressions.
struct Exhausted;

/// Evaluates a policy. `conditions` and `inputs` are the variables of match conditions and of other expressions.
pub(super) fn evaluate<'a>(
    policy: &'a CompiledPolicy,
    failure_policy: FailurePolicy,
    conditions: &[(&'static str, Value<'a>)],
    inputs: &[(&'static str, Value<'a>)],
) -> Outcome {
    match policy.conditions.evaluate(conditions) {
        Ok(true) => {}
        Ok(false) => return Outcome::default(),
        Err(message) => return Outcome::of_error(failure_policy, message),
    }
    let mut outcome = Outcome::default();
    let mut group = Group::new(policy, inputs, limits::OBJECT);
    let mut failed: Vec<(usize, &'a Validation)> = Vec::new();
    let mut errors: Vec<Failure> = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        match group.evaluate(&validation.expression) {
            Err(Exhausted) => return Outcome::of_error(failure_policy, BUDGET.to_owned()),
            Ok(Ok(Value::Bool(true))) => {}
            Ok(Ok(_)) => failed.push((index, validation)),
            Ok(Err(message)) if failure_policy == FailurePolicy::Fail => {
                errors.push(Failure { index, message, reason: Reason::Invalid });
            }
            Ok(Err(_)) => {}
        }
    }
    match messages(policy, inputs, &failed, group.left) {
        Ok(failures) => outcome.failures = failures,
        Err(Exhausted) => {
            // Every validation fails then.
            let message = format!("failed messageExpression: {BUDGET}");
            return Outcome::of_error(failure_policy, message);
        }
    }
    outcome.failures.extend(errors);
    outcome.failures.sort_by_key(|failure| failure.index);
    annotate(policy, failure_policy, inputs, &mut outcome);
    outcome
}

/// The failures of validations with their messages.
fn messages<'a>(
    policy: &'a CompiledPolicy,
    inputs: &[(&'static str, Value<'a>)],
    failed: &[(usize, &'a Validation)],
    budget: u64,
) -> Result<Vec<Failure>, Exhausted> {
    let mut group = Group::new(policy, inputs, budget);
    let mut failures = Vec::with_capacity(failed.len());
    for (index, validation) in failed {
        let computed = match &validation.message_expression {
            None => None,
            Some(expression) => group.evaluate(expression)?.ok(),
        };
        let computed = computed.as_ref().and_then(|value| value.as_str()).map(str::trim);
        let computed = computed.filter(|text| text.len() <= MESSAGE_MAX && !text.contains('\n'));
        let message = match (computed.unwrap_or_default(), validation.message.as_str()) {
            ("", "") => format!("failed expression: {}", validation.expression.source.trim()),
            ("", message) | (message, _) => message.to_owned(),
        };
        failures.push(Failure { index: *index, message, reason: validation.reason });
    }
    Ok(failures)
}

/// Adds the audit annotations, or their errors.
fn annotate<'a>(
    policy: &'a CompiledPolicy,
    failure_policy: FailurePolicy,
    inputs: &[(&'static str, Value<'a>)],
    outcome: &mut Outcome,
) {
    let mut group = Group::new(policy, inputs, limits::OBJECT);
    for (key, expression) in &policy.annotations {
        match group.evaluate(expression) {
            Err(Exhausted) => {
                *outcome = Outcome::of_error(failure_policy, BUDGET.to_owned());
                return;
            }
            Ok(Ok(value)) => {
                let text = value.as_str().map(str::trim).unwrap_or_default();
                if !text.is_empty() {
                    outcome.annotations.push((key.clone(), text.to_owned()));
                }
            }
            Ok(Err(message)) if failure_policy == FailurePolicy::Fail => {
                outcome.annotation_errors.push(message);
            }
            Ok(Err(_)) => {}
        }
    }
}

/// Expressions that share a budget and computed variables.
struct Group<'a, 'i> {
    inputs: &'i [(&'static str, Value<'a>)],
    variables: Variables<'a, 'i>,
    /// Remaining cost units.
    left: u64,
}

impl<'a, 'i> Group<'a, 'i> {
    fn new(policy: &'a CompiledPolicy, inputs: &'i [(&'static str, Value<'a>)], budget: u64) -> Self {
        Group { inputs, variables: Variables::new(policy, inputs), left: budget }
    }

    /// Evaluates an expression. The inner error is its message.
    fn evaluate(&mut self, expression: &'a Expression) -> Result<Result<Value<'a>, String>, Exhausted> {
        let program = match expression.program() {
            Ok(program) => program,
            Err(message) => return Ok(Err(message)),
        };
        let mut cost = Cost::limit(limits::CALL);
        let outcome = program.evaluate_with_lazy(self.inputs, (VARIABLES, &self.variables), &mut cost);
        let used = self.variables.take_cost().saturating_add(cost.used());
        self.left = self.left.checked_sub(used).ok_or(Exhausted)?;
        Ok(outcome.map_err(|error| expression.failure(&error)))
    }
}
