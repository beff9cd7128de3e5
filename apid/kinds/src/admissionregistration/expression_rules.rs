//! Rules for expressions of webhooks and policies: match conditions and variables.

use std::collections::BTreeSet;

use apimachinery::field::{FieldError, FieldErrors};
use expressions::Type;

use crate::admission_expressions::{Compiler, Purpose};
use crate::format;
use crate::validation::{Field, text};

/// Maximum number of match conditions of a webhook or policy.
const CONDITIONS_MAX: usize = 64;

/// Reserved words of CEL, which cannot be names of variables.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Validates an expression: it compiles, and its result has the type for its purpose.
pub(super) fn validate_expression(
    expression: &Field<'_, '_>,
    purpose: Purpose,
    compiler: &Compiler<'_>,
    errors: &mut FieldErrors,
) {
    if let Err(error) = compiler.compile(expression.text(), purpose) {
        errors.push(expression.invalid(&error.to_string()));
    }
}

/// Validates the names and the expressions of match conditions.
pub(super) fn validate_conditions(
    conditions: &Field<'_, '_>,
    compiler: &Compiler<'_>,
    errors: &mut FieldErrors,
) {
    let count = conditions.list().len();
    if count > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&conditions.path(), count, CONDITIONS_MAX));
    }
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let (expression, name) = (condition.child("expression"), condition.child("name"));
        if expression.text().trim().is_empty() {
            errors.push(expression.required(""));
        } else {
            validate_expression(&expression, Purpose::MatchCondition, compiler, errors);
        }
        text::require_format(&name, format::qualified_name, errors);
        if !name.text().is_empty() && !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
}

/// Validates the variables of a policy and adds them to the compiler.
pub(super) fn validate_variables(
    variables: &Field<'_, '_>,
    compiler: &mut Compiler<'_>,
    errors: &mut FieldErrors,
) {
    for variable in variables.items() {
        let (name, expression) = (variable.child("name"), variable.child("expression"));
        if name.text().trim().is_empty() {
            errors.push(name.required("name is not specified"));
        } else if !is_identifier(name.text()) {
            errors.push(name.invalid("must be a valid CEL identifier"));
        }
        if expression.text().trim().is_empty() {
            errors.push(expression.required("expression is not specified"));
        } else if let Err(error) = compiler.variable(name.text(), expression.text()) {
            errors.push(expression.invalid(&error.to_string()));
            // Later expressions can still read the variable, so that one mistake causes only one error.
            compiler.declare(name.text(), Type::Dyn);
        }
    }
}

fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !RESERVED.contains(&name)
}
