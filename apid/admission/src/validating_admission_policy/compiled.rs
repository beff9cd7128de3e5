//! Compiled expressions of a validating policy.

use apimachinery::object::{Object, Value};
use apimachinery::status::Reason;
use kinds::admission_expressions::{Compiler, Purpose};

use crate::match_conditions::Expression;
use crate::policy::{CommonExpressions, PolicyExpressions, items};
use crate::tree::text;

/// The compiled expressions of a validating policy.
pub(super) struct CompiledValidatingPolicy {
    /// Match conditions and variables.
    pub(super) common: CommonExpressions,
    /// Validations.
    pub(super) validations: Vec<Validation>,
    /// Audit annotations: key and value.
    pub(super) annotations: Vec<(String, Expression)>,
}

/// A validation of a policy.
pub(super) struct Validation {
    /// The expression that must be true.
    pub(super) expression: Expression,
    /// The fixed message, trimmed; `""` without one.
    pub(super) message: String,
    /// The expression of the message. Its result replaces the fixed message, if the result is usable.
    pub(super) message_expression: Option<Expression>,
    /// The reason of a denial.
    pub(super) reason: Reason,
}

impl PolicyExpressions for CompiledValidatingPolicy {
    fn compile(policy: &Object) -> Self {
        let (mut common, compiler) = CommonExpressions::compile(policy);
        let validations: Vec<Validation> =
            items(policy, "validations").iter().map(|item| Validation::compile(&compiler, item)).collect();
        let annotation = |item: &Value| {
            let value = text(item, "valueExpression");
            let expression = Expression::new(&compiler, value, Purpose::AuditAnnotation);
            (text(item, "key").to_owned(), expression)
        };
        let annotations: Vec<(String, Expression)> =
            items(policy, "auditAnnotations").iter().map(annotation).collect();
        let messages = validations.iter().filter_map(|validation| validation.message_expression.as_ref());
        let conditions = validations.iter().map(|validation| &validation.expression);
        common.record_uses(conditions.chain(messages).chain(annotations.iter().map(|(_, value)| value)));
        CompiledValidatingPolicy { common, validations, annotations }
    }
}

impl Validation {
    fn compile(compiler: &Compiler<'_>, validation: &Value) -> Self {
        let message_expression = text(validation, "messageExpression");
        Validation {
            expression: Expression::new(compiler, text(validation, "expression"), Purpose::Validation),
            message: text(validation, "message").trim().to_owned(),
            message_expression: (!message_expression.trim().is_empty())
                .then(|| Expression::new(compiler, message_expression, Purpose::Message)),
            reason: match text(validation, "reason") {
                "Forbidden" => Reason::Forbidden,
                "Unauthorized" => Reason::Unauthorized,
                "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
                _ => Reason::Invalid,
            },
        }
    }
}
