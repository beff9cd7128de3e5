//! Compiled expressions of a mutating policy.

use apimachinery::object::{Object, Value};
use expressions::limits;
use kinds::admission_expressions::{Compiler, Purpose};

use crate::match_conditions::{BUDGET, Expression};
use crate::policy::{
    BudgetExceeded, CommonExpressions, ExpressionGroup, Inputs, PolicyExpressions, items, text,
};

/// Maximum memory of the result of a mutation in bytes.
const RESULT_MAX: usize = 32 << 20;

/// The expressions of a policy.
pub(super) struct CompiledPolicy {
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
    patch_type: PatchType,
}

/// Patch type of a mutation.
#[derive(Clone, Copy)]
enum PatchType {
    ApplyConfiguration,
    JsonPatch,
}

/// Result of the expression of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// A partial object to merge.
    ApplyConfiguration(Value),
    /// A JSON patch.
    JsonPatch(Value),
}

impl PolicyExpressions for CompiledPolicy {
    fn compile(policy: &Object) -> Self {
        let (mut common, compiler) = CommonExpressions::compile(policy);
        let mutations: Vec<Mutation> =
            items(policy, "mutations").iter().map(|item| Mutation::compile(&compiler, item)).collect();
        common.record_uses(mutations.iter().map(|mutation| &mutation.expression));
        let is_reinvocable = policy.str_at(&["spec", "reinvocationPolicy"]) == Some("IfNeeded");
        CompiledPolicy { common, mutations, is_reinvocable }
    }

    fn common(&self) -> &CommonExpressions {
        &self.common
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

    /// Evaluates the expression, with its own cost budget.
    ///
    /// # Errors
    ///
    /// The message for the client.
    pub(super) fn evaluate<'a>(
        &'a self,
        common: &'a CommonExpressions,
        inputs: &Inputs<'a>,
    ) -> Result<Change, String> {
        let mut group = ExpressionGroup::new(common, &inputs.others, limits::OBJECT);
        let value =
            group.evaluate(&self.expression).unwrap_or_else(|BudgetExceeded| Err(BUDGET.to_owned()))?;
        let to_json = |value: &expressions::Value<'_>| {
            value.to_json(RESULT_MAX).map_err(|error| self.expression.failure(&error))
        };
        match self.patch_type {
            PatchType::ApplyConfiguration => {
                check_messages(&value)?;
                to_json(&value).map(Change::ApplyConfiguration)
            }
            PatchType::JsonPatch => {
                check_values(&value)?;
                to_json(&value).map(Change::JsonPatch)
            }
        }
    }
}

/// Checks the message types in the values of the operations of a patch.
fn check_values(patch: &expressions::Value<'_>) -> Result<(), String> {
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

fn check_messages(value: &expressions::Value<'_>) -> Result<(), String> {
    let misplaced = value.misplaced_messages();
    if misplaced.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", misplaced.join("\n"))) }
}
