//! Expressions of admission policies and webhooks: their variables, result types and compilation.
//!
//! # Contract
//!
//! A [`Compiler`] compiles the expressions of one policy, in the order of their fields. [`Compiler::variable`] adds a
//! variable of the policy, which later expressions read as `variables.<name>`. The validation of written policies, the
//! type check of their status and the admission plugins use the same compiler with different [`ObjectTypes`].
//!
//! # Invariants
//!
//! INVARIANT (bounded compilation): the environment of an expression declares only the policy variables that the
//! expression selects. The compilation of all expressions takes time in proportion to their text.

mod object_types;
mod type_check;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use apimachinery::names::Preset;
use expressions::{CompileError, Environment, Field, ObjectType, Parsed, Program, Type};

pub use object_types::object_type;
pub use type_check::{ExpressionWarning, type_check};
pub use types::NAMESPACE_TYPE;
use types::REQUEST_TYPE;

/// Variable with the new object; null for a deletion.
pub const OBJECT: &str = "object";
/// Variable with the old object; null for a creation.
pub const OLD_OBJECT: &str = "oldObject";
/// Variable with the parameter object; null without one.
pub const PARAMS: &str = "params";
/// Variable with the fields of the AdmissionRequest.
pub const REQUEST: &str = "request";
/// Variable with the namespace of the request; null for cluster-scoped objects.
pub const NAMESPACE_OBJECT: &str = "namespaceObject";
/// Variable for authorization checks of the user of the request.
pub const AUTHORIZER: &str = "authorizer";
/// Variable with an authorization check for the resource of the request; the expression adds the verb.
pub const REQUEST_RESOURCE: &str = "authorizer.requestResource";
/// Variable whose fields are the variables that the policy declares.
pub const VARIABLES: &str = "variables";

/// Use of an expression, which determines its variables and its result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A match condition: a boolean, without the variables of the policy.
    MatchCondition,
    /// A validation: a boolean.
    Validation,
    /// A message: a string, without the authorizer.
    Message,
    /// The value of an audit annotation: a string or null.
    AuditAnnotation,
    /// A variable: any type.
    Variable,
    /// An apply configuration of a mutation: a message `Object`.
    ApplyConfiguration,
    /// The operations of a JSON patch of a mutation.
    JsonPatch,
    /// An expression in the type check of a policy; its result type is not checked.
    TypeCheck,
}

impl Purpose {
    fn has_variables(self) -> bool {
        self != Purpose::MatchCondition
    }

    fn has_authorizer(self) -> bool {
        self != Purpose::Message
    }

    /// Whether expressions can construct the types of mutations: `Object` and `JSONPatch`.
    fn has_mutation_types(self) -> bool {
        matches!(self, Purpose::ApplyConfiguration | Purpose::JsonPatch)
    }

    /// Checks that the result has the type that this purpose requires.
    fn check(self, result: &Type) -> Result<(), ExpressionError> {
        let (expected, is_expected) = match self {
            Purpose::MatchCondition | Purpose::Validation => ("bool", *result == Type::Bool),
            Purpose::Message => ("string", *result == Type::String),
            Purpose::AuditAnnotation => {
                ("one of [string null_type]", matches!(result, Type::String | Type::Null))
            }
            Purpose::ApplyConfiguration => ("Object", result.to_string() == "Object"),
            Purpose::JsonPatch => ("list(JSONPatch)", result.to_string() == "list(JSONPatch)"),
            Purpose::Variable | Purpose::TypeCheck => return Ok(()),
        };
        if is_expected {
            Ok(())
        } else {
            Err(ExpressionError::ResultType { expected, actual: result.clone() })
        }
    }
}

/// Chooses the dialect of the expressions of this process. Only the first call has an effect.
pub fn choose_dialect(preset: Preset) {
    expressions::Dialect::of(preset).choose();
}

/// The error of an invalid expression, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExpressionError {
    /// The compilation fails.
    #[error("{}", .0.reason())]
    Compilation(CompileError),
    /// The result type is not the type that the purpose requires.
    #[error("must evaluate to {expected} but got {actual}")]
    ResultType {
        /// Name of the type that the purpose requires.
        expected: &'static str,
        /// Type of the result of the expression.
        actual: Type,
    },
}

/// Types of the variables that depend on the kind of the object.
#[derive(Clone, Debug)]
pub struct ObjectTypes {
    /// Type of the new and of the old object.
    pub object: Type,
    /// Type of the parameter object; None if the policy has no parameters.
    pub params: Option<Type>,
}

impl ObjectTypes {
    /// Dynamic types, for evaluation.
    pub fn dynamic(has_params: bool) -> Self {
        ObjectTypes { object: Type::Dyn, params: has_params.then_some(Type::Dyn) }
    }
}

/// Compiler of the expressions of one policy or webhook.
pub struct Compiler<'s> {
    types: ObjectTypes,
    /// Whether the policy declares variables.
    has_variables: bool,
    /// Types of the compiled variables.
    variables: HashMap<String, Type>,
    /// Expressions that the stored object contains already; they may use CEL libraries of later releases.
    stored: StoredExpressions<'s>,
}

/// The expressions that may use CEL libraries of later releases, because the stored object contains them
/// already.
#[derive(Clone, Debug)]
enum StoredExpressions<'s> {
    /// All expressions: the compiled object is the stored object.
    All,
    /// Only these expressions: the compiled object is new, and the stored object contains them.
    Only(BTreeSet<&'s str>),
}

impl<'s> Compiler<'s> {
    /// A compiler of expressions of a stored object. `has_variables`: whether the policy declares variables.
    pub fn of_stored(types: ObjectTypes, has_variables: bool) -> Self {
        Compiler { types, has_variables, variables: HashMap::new(), stored: StoredExpressions::All }
    }

    /// A compiler of the expressions of a written object. `stored` are the expressions of the stored object.
    pub fn of_new(types: ObjectTypes, has_variables: bool, stored: BTreeSet<&'s str>) -> Self {
        Compiler { types, has_variables, variables: HashMap::new(), stored: StoredExpressions::Only(stored) }
    }

    /// Compiles an expression and checks its result type.
    ///
    /// # Errors
    ///
    /// See [`ExpressionError`].
    pub fn compile(&self, source: &str, purpose: Purpose) -> Result<Program, ExpressionError> {
        let parsed = Parsed::new(source).map_err(ExpressionError::Compilation)?;
        let environment = self.environment(&parsed, source, purpose);
        let program = environment.check(&parsed).map_err(ExpressionError::Compilation)?;
        purpose.check(program.result_type())?;
        Ok(program)
    }

    /// Compiles a variable. Later expressions can read the variable if its compilation succeeds.
    ///
    /// # Errors
    ///
    /// See [`ExpressionError`].
    pub fn variable(&mut self, name: &str, source: &str) -> Result<Program, ExpressionError> {
        let program = self.compile(source, Purpose::Variable)?;
        self.declare(name, program.result_type().clone());
        Ok(program)
    }

    /// Declares a variable. A variable whose value is an authorizer or an authorization check has a dynamic
    /// type, as in kube-apiserver.
    pub(crate) fn declare(&mut self, name: &str, result: Type) {
        let result = if matches!(result, Type::Opaque(_)) { Type::Dyn } else { result };
        self.variables.insert(name.to_owned(), result);
    }

    fn environment(&self, parsed: &Parsed, source: &str, purpose: Purpose) -> Environment {
        let is_stored = match &self.stored {
            StoredExpressions::All => true,
            StoredExpressions::Only(stored) => stored.contains(source),
        };
        let mut environment = if is_stored { Environment::stored() } else { Environment::new() };
        environment = environment
            .variable(OBJECT, self.types.object.clone())
            .variable(OLD_OBJECT, self.types.object.clone())
            .variable(REQUEST, REQUEST_TYPE.clone())
            .variable(NAMESPACE_OBJECT, NAMESPACE_TYPE.clone());
        if let Some(params) = &self.types.params {
            environment = environment.variable(PARAMS, params.clone());
        }
        if purpose.has_authorizer() {
            environment = environment
                .variable(AUTHORIZER, expressions::AUTHORIZER)
                .variable(REQUEST_RESOURCE, expressions::RESOURCE_CHECK);
        }
        if purpose.has_mutation_types() {
            environment = environment.with_mutation_types();
        }
        if purpose.has_variables() && self.has_variables {
            environment = environment.variable(VARIABLES, self.selected_variables(parsed));
        }
        environment
    }

    /// The type of `variables` with the fields that an expression selects.
    fn selected_variables(&self, parsed: &Parsed) -> Type {
        let field = |name: &str| {
            let ty = self.variables.get(name)?.clone();
            Some((name.to_owned(), Field { name: name.to_owned(), ty }))
        };
        let fields: BTreeMap<String, Field> =
            parsed.selected_fields(VARIABLES).into_iter().filter_map(field).collect();
        Type::Object(Arc::new(ObjectType { name: VARIABLES.to_owned(), fields }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler() -> Compiler<'static> {
        Compiler::of_new(ObjectTypes::dynamic(false), true, BTreeSet::new())
    }

    fn error(compiler: &Compiler<'_>, source: &str, purpose: Purpose) -> String {
        compiler.compile(source, purpose).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn result_type_is_that_of_purpose() {
        let compiler = compiler();
        for (purpose, source, expected) in [
            (Purpose::Validation, "object.metadata.name == 'a'", ""),
            (Purpose::Validation, "object.metadata.name", "must evaluate to bool but got dyn"),
            (Purpose::MatchCondition, "[1]", "must evaluate to bool but got list(int)"),
            (Purpose::Message, "'a' + object.metadata.name", ""),
            (Purpose::Message, "1", "must evaluate to string but got int"),
            (Purpose::AuditAnnotation, "null", ""),
            (Purpose::AuditAnnotation, "1", "must evaluate to one of [string null_type] but got int"),
            (Purpose::Variable, "{'a': 1}", ""),
            (Purpose::ApplyConfiguration, "Object{}", ""),
            (Purpose::ApplyConfiguration, "Object.spec{}", "must evaluate to Object but got Object.spec"),
            (Purpose::JsonPatch, "[JSONPatch{op: 'remove', path: '/a/' + jsonpatch.escapeKey('b/c')}]", ""),
            (Purpose::JsonPatch, "object.a ? [JSONPatch{op: 'remove', path: '/a'}] : []", ""),
            (Purpose::JsonPatch, "[]", "must evaluate to list(JSONPatch) but got list(dyn)"),
        ] {
            assert_eq!(error(&compiler, source, purpose), expected, "{source}");
        }
    }

    #[test]
    fn variable_set_is_that_of_purpose_and_policy() {
        let minimal = Compiler::of_new(ObjectTypes::dynamic(false), false, BTreeSet::new());
        let complete = Compiler::of_new(ObjectTypes::dynamic(true), true, BTreeSet::new());
        for (compiler, purpose, source, undeclared) in [
            (&minimal, Purpose::Validation, "variables.a == 1", "variables"),
            (&complete, Purpose::MatchCondition, "variables.a == 1", "variables"),
            (&minimal, Purpose::Validation, "params == null", "params"),
            (&complete, Purpose::MatchCondition, "params == null", ""),
            (&complete, Purpose::Message, "authorizer.path('/').check('get').reason()", "authorizer"),
            (&complete, Purpose::Validation, "authorizer.requestResource.check('get').allowed()", ""),
            (&complete, Purpose::Validation, "self.x == 1", "self"),
            (&complete, Purpose::Validation, "namespaceObject.metadata.labels['a'] == request.name", ""),
        ] {
            let found = error(compiler, source, purpose);
            match undeclared {
                "" => assert_eq!(found, "", "{source}"),
                name => {
                    let expected =
                        format!("compilation failed: ERROR: <input>:1:1: undeclared reference to '{name}'");
                    assert!(found.starts_with(&expected), "{source}: {found}");
                }
            }
        }
    }

    #[test]
    fn variables_compose_in_order() {
        let mut compiler = compiler();
        assert!(
            compiler.variable("early", "variables.late").is_err(),
            "a later variable is not declared yet"
        );
        compiler.variable("late", "1").unwrap();
        compiler.variable("text", "string(variables.late) + 'x'").unwrap();
        assert_eq!(error(&compiler, "variables.text == '1x'", Purpose::Validation), "");
        let message = error(&compiler, "variables.late == 'x'", Purpose::Validation);
        assert!(
            message.contains("found no matching overload for '_==_' applied to '(int, string)'"),
            "{message}"
        );
        let message = error(&compiler, "variables.early", Purpose::Validation);
        assert!(message.contains("<input>:1:10: undefined field 'early'"), "{message}");
    }

    #[test]
    fn request_has_declared_fields_only() {
        let compiler = compiler();
        for field in ["nosuch", "uid", "object"] {
            let message = error(&compiler, &format!("request.{field} == 'x'"), Purpose::Validation);
            assert!(message.contains(&format!("<input>:1:8: undefined field '{field}'")), "{message}");
        }
        let expression = "request.userInfo.extra['a'][0] == request.requestSubResource && request.options.dryRun == ['All']";
        assert_eq!(error(&compiler, expression, Purpose::Validation), "");
    }
}
