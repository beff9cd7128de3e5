//! Compiled expressions of a policy.

use std::collections::{BTreeSet, HashMap};

use apimachinery::object::{Object, Value};
use apimachinery::status::Reason;
use expressions::{Parsed, Program};
use kinds::admission_expressions::{
    AUTHORIZER, Compiler, NAMESPACE_OBJECT, ObjectTypes, Purpose, REQUEST, REQUEST_RESOURCE, VARIABLES,
};

use crate::match_conditions::{Expression, MatchConditions};

/// Number of variables that may read each other in a chain during one evaluation. Longer chains are computed from
/// their beginning, so that the recursion is bounded.
const CHAIN_MAX: usize = 32;

/// The expressions of a policy.
#[derive(Default)]
pub(super) struct CompiledPolicy {
    /// Match conditions.
    pub(super) conditions: MatchConditions,
    /// Variables, in order.
    pub(super) variables: Vec<Variable>,
    /// Positions of the variables by name.
    pub(super) variable_positions: HashMap<String, usize>,
    /// Validations.
    pub(super) validations: Vec<Validation>,
    /// Audit annotations: key and value.
    pub(super) annotations: Vec<(String, Expression)>,
    /// Whether an expression reads the attributes of the request.
    pub(super) uses_request: bool,
    /// Whether an expression reads the namespace.
    pub(super) uses_namespace: bool,
    /// Whether an expression calls the authorizer.
    pub(super) uses_authorizer: bool,
}

/// A variable of a policy.
pub(super) struct Variable {
    /// The name.
    pub(super) name: String,
    /// The program, or the detail of the compile error.
    pub(super) program: Result<Program, String>,
    /// Variables that the program selects, if the chain below the variable is long.
    pub(super) dependencies: Option<Vec<usize>>,
}

/// A validation of a policy.
pub(super) struct Validation {
    /// The condition.
    pub(super) expression: Expression,
    /// The fixed message, trimmed; `""` without one.
    pub(super) message: String,
    /// The computed message.
    pub(super) message_expression: Option<Expression>,
    /// The reason of a denial.
    pub(super) reason: Reason,
}

impl CompiledPolicy {
    /// Compiles the expressions of a stored policy.
    pub(super) fn new(policy: &Object) -> Self {
        let list =
            |name: &str| policy.at(&["spec", name]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let has_params = policy.at(&["spec", "paramKind"]).is_some_and(Value::is_object);
        let variables = list("variables");
        let mut compiler = Compiler::of_stored(ObjectTypes::dynamic(has_params), !variables.is_empty());
        let conditions = MatchConditions::compile(&compiler, list("matchConditions"));
        let mut compiled = CompiledPolicy { conditions, ..CompiledPolicy::default() };
        for variable in variables {
            compiled.add_variable(&mut compiler, text(variable, "name"), text(variable, "expression"));
        }
        for validation in list("validations") {
            let message_expression = text(validation, "messageExpression");
            compiled.validations.push(Validation {
                expression: Expression::new(&compiler, text(validation, "expression"), Purpose::Validation),
                message: text(validation, "message").trim().to_owned(),
                message_expression: (!message_expression.trim().is_empty())
                    .then(|| Expression::new(&compiler, message_expression, Purpose::Message)),
                reason: match text(validation, "reason") {
                    "Forbidden" => Reason::Forbidden,
                    "Unauthorized" => Reason::Unauthorized,
                    "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
                    _ => Reason::Invalid,
                },
            });
        }
        for annotation in list("auditAnnotations") {
            let value = text(annotation, "valueExpression");
            let expression = Expression::new(&compiler, value, Purpose::AuditAnnotation);
            compiled.annotations.push((text(annotation, "key").to_owned(), expression));
        }
        compiled.note_uses();
        compiled
    }

    fn add_variable(&mut self, compiler: &mut Compiler<'_>, name: &str, source: &str) {
        let program = compiler.variable(name, source);
        let position = self.variables.len();
        // A short list of variables has no long chain.
        let dependencies = (position >= CHAIN_MAX).then(|| {
            let parsed = Parsed::new(source).ok();
            let selected =
                parsed.as_ref().map(|parsed| parsed.selected_fields(VARIABLES)).unwrap_or_default();
            selected.into_iter().filter_map(|name| self.variable_positions.get(name).copied()).collect()
        });
        self.variable_positions.insert(name.to_owned(), position);
        self.variables.push(Variable { name: name.to_owned(), program, dependencies });
    }

    fn note_uses(&mut self) {
        let uses = |variable: &str| self.programs().any(|program| program.uses(variable));
        let (request, namespace) = (uses(REQUEST), uses(NAMESPACE_OBJECT));
        let authorizer = uses(AUTHORIZER) || uses(REQUEST_RESOURCE);
        self.uses_request = request;
        self.uses_namespace = namespace;
        self.uses_authorizer = authorizer;
    }

    fn programs(&self) -> impl Iterator<Item = &Program> {
        let validations = self.validations.iter().map(|validation| &validation.expression.program);
        let messages =
            self.validations.iter().filter_map(|validation| validation.message_expression.as_ref());
        let annotations = self.annotations.iter().map(|(_, expression)| &expression.program);
        let variables = self.variables.iter().map(|variable| &variable.program);
        let messages = messages.map(|expression| &expression.program);
        let all = validations.chain(messages).chain(annotations).chain(variables);
        self.conditions.programs().chain(all.filter_map(|program| program.as_ref().ok()))
    }

    /// Variables that a variable reads directly or through others, in order; empty for a short list of variables.
    pub(super) fn chain_below(&self, position: usize) -> BTreeSet<usize> {
        let mut below = BTreeSet::new();
        let mut open = vec![position];
        while let Some(variable) = open.pop().and_then(|position| self.variables.get(position)) {
            let new = variable.dependencies.iter().flatten().filter(|position| below.insert(**position));
            open.extend(new.copied());
        }
        below
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
