//! Authorizer library: authorization checks in expressions.
//!
//! # Contract
//! The caller implements [`Authorizer`] and binds [`authorizer`] in the API fields that have this variable.
//! [`request_resource`] is the value for the resource of the request. The functions exist in every
//! expression; the variables exist only in these fields.

use std::sync::Arc;

use crate::cost::CallCost::{Custom, Fixed};
use crate::cost::{CallCost, LIST_LITERAL, MESSAGE_LITERAL, READ};
use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Opaque, Value};
use crate::value_facts::{Estimate, ValueFacts};

use super::{Function, Library, library_value};

/// Cost of one authorization check, in cost units.
const CHECK_COST: u64 = 350_000;

/// Cost of parsing a selector: a list, reading the text, and a structure with a list for each two characters.
const SELECTOR_COST: CallCost = Custom(
    "10 + size/10 + 50 x size/2",
    |a, _| selector_estimate(Estimate::exactly(a.get(1).map_or(1, Value::size))).max,
    |a, _| selector_estimate(a.get(1).map_or(Estimate::UNKNOWN, ValueFacts::size)),
);

fn selector_estimate(length: Estimate) -> Estimate {
    #[expect(clippy::cast_precision_loss, reason = "small constants")]
    let requirement = (LIST_LITERAL + MESSAGE_LITERAL) as f64;
    Estimate::exactly(LIST_LITERAL) + length.scaled(READ) + length.scaled(0.5).scaled(requirement)
}

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
    Value::opaque(CheckBuilder { authorizer, check: AuthorizationCheck::default(), ty: AUTHORIZER_NAME })
}

/// Value of the variable `authorizer.requestResource`.
/// The value is a check of the request's resource that lacks only its verb.
pub fn request_resource<'a>(authorizer: Arc<dyn Authorizer>, check: AuthorizationCheck) -> Value<'a> {
    Value::opaque(CheckBuilder { authorizer, check, ty: RESOURCE })
}

/// Type of the variable `authorizer`.
pub const AUTHORIZER: Type = Type::Opaque(AUTHORIZER_NAME);
/// Type of the variable `authorizer.requestResource`.
pub const RESOURCE_CHECK: Type = Type::Opaque(RESOURCE);

// Names of the types that a check has while an expression builds it.
const AUTHORIZER_NAME: &str = "kubernetes.authorization.Authorizer";
const GROUP: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
const PATH: &str = "kubernetes.authorization.PathCheck";

/// Declares a function that sets one property of a check to a text.
macro_rules! builder_step {
    ($declares:literal, $cost:expr, $from:ident, $to:ident, $set:expr) => {
        Function::new(&[$declares], $cost, |a| match a {
            [builder, Value::String(text)] => {
                advance(builder, $from, $to, |check: &mut AuthorizationCheck| {
                    let set: fn(&mut AuthorizationCheck, String) = $set;
                    set(check, text.as_str().to_owned());
                })
            }
            _ => Err(EvalError::NoOverload),
        })
    };
}

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        builder_step!(
            ".kubernetes.authorization.Authorizer.path(string) -> kubernetes.authorization.PathCheck",
            Fixed(1),
            AUTHORIZER_NAME,
            PATH,
            |check, path| check.path = Some(path)
        ),
        builder_step!(
            ".kubernetes.authorization.Authorizer.group(string) -> kubernetes.authorization.GroupCheck",
            Fixed(1),
            AUTHORIZER_NAME,
            GROUP,
            |check, group| check.group = group
        ),
        Function::new(
            &[
                ".kubernetes.authorization.Authorizer.serviceAccount(string, string) -> kubernetes.authorization.Authorizer",
            ],
            Fixed(1),
            |a| match a {
                [builder, Value::String(namespace), Value::String(name)] => {
                    advance(builder, AUTHORIZER_NAME, AUTHORIZER_NAME, |check| {
                        let account = (namespace.as_str().to_owned(), name.as_str().to_owned());
                        check.service_account = Some(account);
                    })
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        builder_step!(
            ".kubernetes.authorization.GroupCheck.resource(string) -> kubernetes.authorization.ResourceCheck",
            Fixed(1),
            GROUP,
            RESOURCE,
            |check, resource| check.resource = resource
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.subresource(string) -> kubernetes.authorization.ResourceCheck",
            Fixed(1),
            RESOURCE,
            RESOURCE,
            |check, subresource| check.subresource = subresource
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.namespace(string) -> kubernetes.authorization.ResourceCheck",
            Fixed(1),
            RESOURCE,
            RESOURCE,
            |check, namespace| check.namespace = namespace
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.name(string) -> kubernetes.authorization.ResourceCheck",
            Fixed(1),
            RESOURCE,
            RESOURCE,
            |check, name| check.name = name
        ),
        Function::new(
            &[".kubernetes.authorization.ResourceCheck.check(string) -> kubernetes.authorization.Decision"],
            Fixed(CHECK_COST),
            |a| check(a, RESOURCE),
        ),
        Function::new(
            &[".kubernetes.authorization.PathCheck.check(string) -> kubernetes.authorization.Decision"],
            Fixed(CHECK_COST),
            |a| check(a, PATH),
        ),
        Function::new(&[".kubernetes.authorization.Decision.allowed() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(library_value::<AuthorizationResult>(a)?.allowed))
        }),
        Function::new(&[".kubernetes.authorization.Decision.reason() -> string"], Fixed(1), |a| {
            Ok(Value::text(&library_value::<AuthorizationResult>(a)?.reason))
        }),
        Function::new(&[".kubernetes.authorization.Decision.errored() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(library_value::<AuthorizationResult>(a)?.error.is_some()))
        }),
        Function::new(&[".kubernetes.authorization.Decision.error() -> string"], Fixed(1), |a| {
            Ok(Value::text(library_value::<AuthorizationResult>(a)?.error.as_deref().unwrap_or_default()))
        }),
    ],
};

/// Selector functions, since 1.31.
pub(super) static SELECTORS: Library = Library {
    since: 31,
    functions: &[
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.fieldSelector(string) -> kubernetes.authorization.ResourceCheck",
            SELECTOR_COST,
            RESOURCE,
            RESOURCE,
            |check, text| check.field_selector = Some(text)
        ),
        builder_step!(
            ".kubernetes.authorization.ResourceCheck.labelSelector(string) -> kubernetes.authorization.ResourceCheck",
            SELECTOR_COST,
            RESOURCE,
            RESOURCE,
            |check, text| check.label_selector = Some(text)
        ),
    ],
};

/// An authorization check that an expression builds by calls such as `authorizer.group('').resource('pods')`.
struct CheckBuilder {
    authorizer: Arc<dyn Authorizer>,
    check: AuthorizationCheck,
    /// The name of its type, which determines the next functions.
    ty: &'static str,
}

impl Opaque for CheckBuilder {
    fn type_name(&self) -> &'static str {
        self.ty
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other = other.downcast::<CheckBuilder>();
        other.is_some_and(|other| other.ty == self.ty && other.check == self.check)
    }
}

impl Opaque for AuthorizationResult {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<AuthorizationResult>() == Some(self)
    }
}

/// Returns the builder in a value; an error if it has another type.
fn builder<'v>(value: &'v Value<'_>, ty: &str) -> Result<&'v CheckBuilder, EvalError> {
    value.downcast::<CheckBuilder>().filter(|builder| builder.ty == ty).ok_or(EvalError::NoOverload)
}

/// Sets a property of the check of a builder of type `from`, and returns a builder of type `to`.
fn advance<'a>(
    value: &Value<'a>,
    from: &str,
    to: &'static str,
    set: impl FnOnce(&mut AuthorizationCheck),
) -> Result<Value<'a>, EvalError> {
    let builder = builder(value, from)?;
    let mut check = builder.check.clone();
    set(&mut check);
    Ok(Value::opaque(CheckBuilder { authorizer: builder.authorizer.clone(), check, ty: to }))
}

fn check<'a>(arguments: &[Value<'a>], ty: &str) -> Result<Value<'a>, EvalError> {
    let [value, Value::String(verb)] = arguments else { return Err(EvalError::NoOverload) };
    let builder = builder(value, ty)?;
    let check = AuthorizationCheck { verb: verb.as_str().to_owned(), ..builder.check.clone() };
    Ok(Value::opaque(builder.authorizer.check(&check)))
}
