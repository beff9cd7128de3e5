//! Compiled expressions of a mutating policy.

use apimachinery::object::{Object, Value};
use expressions::limits;
use kinds::admission_expressions::{Compiler, Purpose};

use crate::expression_inputs::ExpressionInputs;
use crate::match_conditions::{BUDGET, Expression, ExpressionFailure};
use crate::policy::{BudgetExceeded, CommonExpressions, ExpressionGroup, PolicyExpressions, items};
use crate::tree::text;

/// Maximum estimated memory of the result of a mutation in bytes; a larger result is an error.
const RESULT_MAX: usize = 32 << 20;

/// The compiled expressions of a mutating policy.
pub(super) struct CompiledMutatingPolicy {
    /// Match conditions and variables.
    pub(super) common: CommonExpressions,
    /// Mutations, in order.
    pub(super) mutations: Vec<Mutation>,
    /// Whether the policy is applied again after a later change.
    pub(super) is_reinvocable: bool,
}

/// A mutation of a policy.
pub(super) struct Mutation {
    expression: Expression,
    /// Patch type of the result.
    pub(super) patch_type: PatchType,
}

/// Patch type of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchType {
    /// A partial object to merge.
    ApplyConfiguration,
    /// A JSON patch.
    JsonPatch,
}

/// The reason why the expression of a mutation has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum EvaluationFailure {
    #[error("{BUDGET}")]
    Budget,
    #[error(transparent)]
    Expression(#[from] ExpressionFailure),
    /// CEL messages such as `Object.spec{}` are in fields of another type. One text for each such message.
    #[error("type mismatch: {}", .0.join("\n"))]
    MisplacedMessages(Vec<String>),
}

impl PolicyExpressions for CompiledMutatingPolicy {
    fn compile(policy: &Object) -> Self {
        let (mut common, compiler) = CommonExpressions::compile(policy);
        let mutations: Vec<Mutation> =
            items(policy, "mutations").iter().map(|item| Mutation::compile(&compiler, item)).collect();
        common.record_uses(mutations.iter().map(|mutation| &mutation.expression));
        let is_reinvocable = policy.str_at(&["spec", "reinvocationPolicy"]) == Some("IfNeeded");
        CompiledMutatingPolicy { common, mutations, is_reinvocable }
    }
}

impl Mutation {
    fn compile(compiler: &Compiler<'_>, mutation: &Value) -> Self {
        let (field, patch_type, purpose) = match text(mutation, "patchType") {
            "JSONPatch" => ("jsonPatch", PatchType::JsonPatch, Purpose::JsonPatch),
            _ => ("applyConfiguration", PatchType::ApplyConfiguration, Purpose::ApplyConfiguration),
        };
        let source = mutation.get(field).map_or("", |patch| text(patch, "expression"));
        Mutation { expression: Expression::new(compiler, source, purpose), patch_type }
    }

    /// Evaluates the expression, with its own cost budget. The result is a patch of the patch type.
    ///
    /// # Errors
    ///
    /// See [`EvaluationFailure`].
    pub(super) fn evaluate<'a>(
        &'a self,
        common: &'a CommonExpressions,
        inputs: &ExpressionInputs<'a>,
    ) -> Result<Value, EvaluationFailure> {
        let variables = inputs.variables();
        let mut group = ExpressionGroup::new(common, &variables, limits::OBJECT);
        let value =
            group.evaluate(&self.expression).map_err(|BudgetExceeded| EvaluationFailure::Budget)??;
        match self.patch_type {
            PatchType::ApplyConfiguration => check_messages(&value)?,
            PatchType::JsonPatch => check_values(&value)?,
        }
        Ok(value.to_json(RESULT_MAX).map_err(|error| self.expression.failure(error))?)
    }
}

/// Checks the types of the CEL messages in the field `value` of each patch operation.
fn check_values(patch: &expressions::Value<'_>) -> Result<(), EvaluationFailure> {
    let expressions::Value::List(operations) = patch else { return Ok(()) };
    for operation in operations.iter().flatten() {
        if let expressions::Value::Map(fields) = &operation
            && let Some(Ok(value)) = fields.field("value")
        {
            check_messages(&value)?;
        }
    }
    Ok(())
}

fn check_messages(value: &expressions::Value<'_>) -> Result<(), EvaluationFailure> {
    let misplaced = value.misplaced_messages();
    if misplaced.is_empty() { Ok(()) } else { Err(EvaluationFailure::MisplacedMessages(misplaced)) }
}
