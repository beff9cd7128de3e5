//! Authorizer library: authorization checks in expressions.
//!
//! # Contract
//! The caller implements [`Authorizer`] and binds [`authorizer`] in the API fields that have this variable.
//! [`request_resource`] is the value for the resource of the request. The functions exist in every
//! expression; the variables exist only in these fields.

use std::any::Any;
use std::sync::Arc;

use crate::cost::CallCost::{Fixed, Text};
use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Opaque, Value};

use super::{Function, Library};

/// Cost of one authorization check, in cost units.
const CHECK_COST: u64 = 350_000;

/// An authorization check of an expression. A text that the expression does not set is `""`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationCheck {
    /// Namespace and name of the checked service account; None for the user of the request.
    pub service_account: Option<(String, String)>,
    /// Verb of the checked request, such as `get`.
    pub verb: String,
    /// Path of a non-resource request; all following fields are then empty.
    pub path: Option<String>,
    /// API group of the resource.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Subresource, such as `status`.
    pub subresource: String,
    /// Namespace of the resource; `""` for cluster-scoped resources and for all namespaces.
    pub namespace: String,
    /// Object name.
    pub name: String,
    /// Text of the field selector; None without one.
    pub field_selector: Option<String>,
    /// Text of the label selector; None without one.
    pub label_selector: Option<String>,
}

/// Result of an [`AuthorizationCheck`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationResult {
    /// Whether the action is allowed.
    pub allowed: bool,
    /// Reason from the authorizer.
    pub reason: String,
    /// Error of a check without a decision.
    pub error: Option<String>,
}

/// Authorizer for expressions.
pub trait Authorizer: Send + Sync {
    /// Decides a check; expressions call it during evaluation.
    fn check(&self, check: &AuthorizationCheck) -> AuthorizationResult;
}

/// Value of the variable `authorizer`.
pub fn authorizer<'a>(authorizer: Arc<dyn Authorizer>) -> Value<'a> {
    Value::opaque(CheckBuilder { authorizer, check: AuthorizationCheck::default(), stage: Stage::Authorizer })
}

/// Value of the variable `authorizer.requestResource`.
/// The value is a check of the request's resource that lacks only its verb.
pub fn request_resource<'a>(authorizer: Arc<dyn Authorizer>, check: AuthorizationCheck) -> Value<'a> {
    Value::opaque(CheckBuilder { authorizer, check, stage: Stage::Resource })
}

/// Type of the variable `authorizer`.
pub const AUTHORIZER: Type = Type::Opaque("kubernetes.authorization.Authorizer");
/// Type of the variable `authorizer.requestResource`.
pub const RESOURCE_CHECK: Type = Type::Opaque("kubernetes.authorization.ResourceCheck");

/// Declares a function that sets one property of a check.
macro_rules! builder_step {
    ($declares:literal, $from:ident, $to:ident, $set:expr) => {
        Function::new(&[$declares], Fixed(1), |a| advance(a, Stage::$from, Stage::$to, $set))
    };
}

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        builder_step!(
            ".kubernetes.authorization.Authorizer.path(string) -> kubernetes.authorization.PathCheck",
            Authorizer,
            Path,
            |check, path| check.path = Some(path)
        ),
        builder_step!(
            ".kubernetes.authorization.Authorizer.group(string) -> kubernetes.authorization.GroupCheck",
            Authorizer,
            Group,
            |check, group| check.group = group
        ),
        Function::new(
            &[
                ".kubernetes.authorization.Authorizer.serviceAccount(string, string) -> kubernetes.authorization.Authorizer",
            ],
            Fixed(1),
            |a| match a {
                [builder, Value::String(namespace), Value::String(name)] => {
                    let builder = at_stage(builder, Stage::Authorizer)?;
                    let mut check = builder.check.clone();
                    check.service_account = Some((namespace.as_str().to_owned(), name.as_str().to_owned()));
                    Ok(Value::opaque(CheckBuilder {
                        authorizer: builder.authorizer.clone(),
                        check,
                        stage: builder.stage,
                    }))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        builder_step!(
            ".kubernetes.authorization.GroupCheck.resource(string) -> kubernetes.authorization.ResourceCheck",
            Group,
            Resource,
            |check, resource| check.resource = resource
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.subresource(string) -> kubernetes.authorization.ResourceCheck",
            Resource,
            Resource,
            |check, subresource| check.subresource = subresource
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.namespace(string) -> kubernetes.authorization.ResourceCheck",
            Resource,
            Resource,
            |check, namespace| check.namespace = namespace
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.name(string) -> kubernetes.authorization.ResourceCheck",
            Resource,
            Resource,
            |check, name| check.name = name
        ),
        Function::new(
            &[".kubernetes.authorization.ResourceCheck.check(string) -> kubernetes.authorization.Decision"],
            Fixed(CHECK_COST),
            |a| check(a, Stage::Resource),
        ),
        Function::new(
            &[".kubernetes.authorization.PathCheck.check(string) -> kubernetes.authorization.Decision"],
            Fixed(CHECK_COST),
            |a| check(a, Stage::Path),
        ),
        Function::new(&[".kubernetes.authorization.Decision.allowed() -> bool"], Fixed(1), |a| {
            decision(a, |result| Value::Bool(result.allowed))
        }),
        Function::new(&[".kubernetes.authorization.Decision.reason() -> string"], Fixed(1), |a| {
            decision(a, |result| Value::text(&result.reason))
        }),
        Function::new(&[".kubernetes.authorization.Decision.errored() -> bool"], Fixed(1), |a| {
            decision(a, |result| Value::Bool(result.error.is_some()))
        }),
        Function::new(&[".kubernetes.authorization.Decision.error() -> string"], Fixed(1), |a| {
            decision(a, |result| Value::text(result.error.as_deref().unwrap_or_default()))
        }),
    ],
};

/// Selector functions, since 1.31.
pub(super) static SELECTORS: Library = Library {
    since: 31,
    functions: &[
        Function::new(
            &[
                ".kubernetes.authorization.ResourceCheck.fieldSelector(string) -> kubernetes.authorization.ResourceCheck",
            ],
            Text(1),
            |a| advance(a, Stage::Resource, Stage::Resource, |check, text| check.field_selector = Some(text)),
        ),
        Function::new(
            &[
                ".kubernetes.authorization.ResourceCheck.labelSelector(string) -> kubernetes.authorization.ResourceCheck",
            ],
            Text(1),
            |a| advance(a, Stage::Resource, Stage::Resource, |check, text| check.label_selector = Some(text)),
        ),
    ],
};

/// Stage of a [`CheckBuilder`], which determines its type in expressions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Authorizer,
    Group,
    Resource,
    Path,
}

/// An authorization check that an expression builds by calls such as `authorizer.group('').resource('pods')`.
struct CheckBuilder {
    authorizer: Arc<dyn Authorizer>,
    check: AuthorizationCheck,
    stage: Stage,
}

impl Opaque for CheckBuilder {
    fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
            Stage::Path => "kubernetes.authorization.PathCheck",
        }
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other = other.as_any().downcast_ref::<CheckBuilder>();
        other.is_some_and(|other| other.stage == self.stage && other.check == self.check)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opaque for AuthorizationResult {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<AuthorizationResult>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the builder in a value; an error if it is at another stage.
fn at_stage<'v>(value: &'v Value<'_>, stage: Stage) -> Result<&'v CheckBuilder, EvalError> {
    value.downcast::<CheckBuilder>().filter(|builder| builder.stage == stage).ok_or(EvalError::NoOverload)
}

/// Sets a property of the check to the text argument, and returns the builder at stage `to`.
fn advance<'a>(
    arguments: &[Value<'a>],
    from: Stage,
    to: Stage,
    set: fn(&mut AuthorizationCheck, String),
) -> Result<Value<'a>, EvalError> {
    let [builder, Value::String(text)] = arguments else { return Err(EvalError::NoOverload) };
    let builder = at_stage(builder, from)?;
    let mut check = builder.check.clone();
    set(&mut check, text.as_str().to_owned());
    Ok(Value::opaque(CheckBuilder { authorizer: builder.authorizer.clone(), check, stage: to }))
}

fn check<'a>(arguments: &[Value<'a>], stage: Stage) -> Result<Value<'a>, EvalError> {
    let [builder, Value::String(verb)] = arguments else { return Err(EvalError::NoOverload) };
    let builder = at_stage(builder, stage)?;
    let check = AuthorizationCheck { verb: verb.as_str().to_owned(), ..builder.check.clone() };
    Ok(Value::opaque(builder.authorizer.check(&check)))
}

fn decision<'a>(
    arguments: &[Value<'a>],
    f: fn(&AuthorizationResult) -> Value<'a>,
) -> Result<Value<'a>, EvalError> {
    match arguments {
        [value] => value.downcast::<AuthorizationResult>().map(f).ok_or(EvalError::NoOverload),
        _ => Err(EvalError::NoOverload),
    }
}
