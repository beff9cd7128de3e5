//! Evaluation of a policy on one write with one parameter.
//!
//! # Invariants
//!
//! INVARIANT (budget): one evaluation uses at most [`limits::MATCH_CONDITIONS`] cost units for match
//! conditions, [`limits::OBJECT`] for validations with their messages, and [`limits::OBJECT`] for audit
//! annotations.
//!
//! # Reference
//!
//! Validations, messages and audit annotations each compute the variables anew, as in kube-apiserver, so the
//! costs are the same.

use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::status::Reason;
use expressions::{Value, limits};

use super::compiled::{CompiledValidatingPolicy, Validation};
use crate::expression_inputs::ExpressionInputs;
use crate::match_conditions::{BUDGET, ConditionsOutcome};
use crate::policy::{BudgetExceeded, ExpressionGroup};

/// Maximum size of an evaluated message in bytes; a longer message is ignored.
const MESSAGE_MAX: usize = 5 * 1024;

/// The result of the evaluation of a policy with one parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Failed validations in order; the actions of the binding decide their effect.
    pub(super) failures: Vec<Failure>,
    /// Audit annotations: key without the policy name, and value.
    pub(super) annotations: Vec<(String, String)>,
    /// Errors of audit annotations, which deny the write.
    pub(super) annotation_errors: Vec<Failure>,
    /// Errors of validations or of the whole policy that the policy ignores, for metrics.
    pub(super) ignored: Vec<Failure>,
    /// Result of the match conditions; None without conditions.
    pub(super) conditions: Option<ConditionsOutcome>,
}

/// A failed validation, or an audit annotation with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Position of the validation or audit annotation in its list, from 0.
    pub(super) index: usize,
    /// Message for the client.
    pub(super) message: String,
    /// Reason of the Status.
    pub(super) reason: Reason,
    /// Duration of the evaluation.
    pub(super) took: Duration,
}

impl Failure {
    /// The failure of an expression with an error.
    fn of_error(index: usize, message: String, took: Duration) -> Self {
        Failure { index, message, reason: Reason::Invalid, took }
    }
}

impl Outcome {
    /// The outcome after an error of the whole policy.
    fn of_error(denies_errors: bool, message: String) -> Self {
        let failure = Failure::of_error(0, message, Duration::ZERO);
        match denies_errors {
            true => Outcome { failures: vec![failure], ..Outcome::default() },
            false => Outcome { ignored: vec![failure], ..Outcome::default() },
        }
    }
}

/// Evaluates the match conditions, and if they are true, the validations and audit annotations of a policy.
pub(super) fn evaluate<'a>(
    policy: &'a CompiledValidatingPolicy,
    denies_errors: bool,
    inputs: &ExpressionInputs<'a>,
    clock: &dyn Clock,
) -> Outcome {
    let conditions = &policy.common.conditions;
    let conditions =
        (!conditions.is_empty()).then(|| conditions.evaluate(&inputs.condition_variables(), clock));
    let outcome = match conditions.as_ref().map(|conditions| &conditions.result) {
        None | Some(Ok(true)) => evaluate_matched(policy, denies_errors, &inputs.variables(), clock),
        Some(Ok(false)) => Outcome::default(),
        Some(Err(error)) => Outcome::of_error(denies_errors, error.to_string()),
    };
    Outcome { conditions, ..outcome }
}

/// Evaluates a policy whose match conditions are true.
fn evaluate_matched<'a>(
    policy: &'a CompiledValidatingPolicy,
    denies_errors: bool,
    inputs: &[(&'static str, Value<'a>)],
    clock: &dyn Clock,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut group = ExpressionGroup::new(&policy.common, inputs, limits::OBJECT);
    let mut failed_validations: Vec<(usize, &'a Validation, Duration)> = Vec::new();
    let mut errors: Vec<Failure> = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        let started = clock.monotonic();
        let result = group.evaluate(&validation.expression);
        if matches!(result, Ok(Ok(Value::Bool(true)))) {
            continue;
        }
        let took = clock.monotonic().saturating_sub(started);
        match result {
            Err(BudgetExceeded) => return Outcome::of_error(denies_errors, BUDGET.to_owned()),
            Ok(Ok(_)) => failed_validations.push((index, validation, took)),
            Ok(Err(failure)) if denies_errors => {
                errors.push(Failure::of_error(index, failure.to_string(), took));
            }
            Ok(Err(failure)) => outcome.ignored.push(Failure::of_error(index, failure.to_string(), took)),
        }
    }
    match failures_with_messages(policy, inputs, &failed_validations, group.budget) {
        Ok(failures) => outcome.failures = failures,
        Err(BudgetExceeded) => {
            // An exceeded cost budget of the messages fails the whole policy.
            let message = format!("failed messageExpression: {BUDGET}");
            return Outcome::of_error(denies_errors, message);
        }
    }
    outcome.failures.extend(errors);
    outcome.failures.sort_by_key(|failure| failure.index);
    add_annotations(policy, denies_errors, inputs, &mut outcome, clock);
    outcome
}

/// Returns the failures of validations with their messages.
fn failures_with_messages<'a>(
    policy: &'a CompiledValidatingPolicy,
    inputs: &[(&'static str, Value<'a>)],
    failed_validations: &[(usize, &'a Validation, Duration)],
    budget: u64,
) -> Result<Vec<Failure>, BudgetExceeded> {
    let mut group = ExpressionGroup::new(&policy.common, inputs, budget);
    let mut failures = Vec::with_capacity(failed_validations.len());
    for (index, validation, took) in failed_validations {
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
        failures.push(Failure { index: *index, message, reason: validation.reason, took: *took });
    }
    Ok(failures)
}

/// Adds the audit annotations, or their errors.
fn add_annotations<'a>(
    policy: &'a CompiledValidatingPolicy,
    denies_errors: bool,
    inputs: &[(&'static str, Value<'a>)],
    outcome: &mut Outcome,
    clock: &dyn Clock,
) {
    let mut group = ExpressionGroup::new(&policy.common, inputs, limits::OBJECT);
    for (index, (key, expression)) in policy.annotations.iter().enumerate() {
        let started = clock.monotonic();
        match group.evaluate(expression) {
            Err(BudgetExceeded) => {
                *outcome = Outcome::of_error(denies_errors, BUDGET.to_owned());
                return;
            }
            Ok(Ok(value)) => {
                let text = value.as_str().map(str::trim).unwrap_or_default();
                if !text.is_empty() {
                    outcome.annotations.push((key.clone(), text.to_owned()));
                }
            }
            Ok(Err(failure)) if denies_errors => {
                let took = clock.monotonic().saturating_sub(started);
                outcome.annotation_errors.push(Failure::of_error(index, failure.to_string(), took));
            }
            Ok(Err(_)) => {}
        }
    }
}
