//! Match conditions: CEL expressions that decide whether a webhook handles a write.
//!
//! # Contract
//!
//! The variables are `object`, `oldObject`, `request`, `authorizer` and `authorizer.requestResource`. A write
//! is excluded if one condition is false, whatever the other conditions. Otherwise failed conditions are the
//! result. All conditions together have a cost limit.
//!
//! # Invariants
//!
//! INVARIANT (no blocked thread): an evaluation never waits for the authorizer. A check without a decision ends
//! the round; the decision is awaited, and the conditions are evaluated again.

use std::sync::{Arc, LazyLock};

use apimachinery::attributes::{Attributes as Question, ParsedSelector};
use apimachinery::object::{Map, Object};
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use expressions::{
    AUTHORIZER, AuthorizationCheck, AuthorizationResult, Cost, EvalError, Field, ObjectType, Program,
    RESOURCE_CHECK, Type, authorizer, limits, request_resource,
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{Attributes, Authorizer};

const OBJECT: &str = "object";
const OLD_OBJECT: &str = "oldObject";
const REQUEST: &str = "request";
const AUTHORIZER_NAME: &str = "authorizer";
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

/// The type of `request`, and the environment of all conditions.
static DECLARED: LazyLock<(Type, expressions::Environment)> = LazyLock::new(|| {
    let request = request_type();
    let environment = expressions::Environment::stored()
        .variable(OBJECT, Type::Dyn)
        .variable(OLD_OBJECT, Type::Dyn)
        .variable(REQUEST, request.clone())
        .variable(AUTHORIZER_NAME, AUTHORIZER)
        .variable(REQUEST_RESOURCE, RESOURCE_CHECK);
    (request, environment)
});

fn request_type() -> Type {
    let texts = |names: &[&'static str]| -> Vec<(&'static str, Type)> {
        names.iter().map(|name| (*name, Type::String)).collect()
    };
    let kind = || object_type("GroupVersionKind", texts(&["group", "version", "kind"]));
    let resource = || object_type("GroupVersionResource", texts(&["group", "version", "resource"]));
    let mut user = texts(&["username", "uid"]);
    user.push(("groups", Type::list(Type::String)));
    user.push(("extra", Type::map(Type::String, Type::list(Type::String))));
    let mut request = texts(&["uid", "subResource", "requestSubResource", "name", "namespace", "operation"]);
    request.extend([
        ("kind", kind()),
        ("requestKind", kind()),
        ("resource", resource()),
        ("requestResource", resource()),
        ("userInfo", object_type("UserInfo", user)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ]);
    object_type("AdmissionRequest", request)
}

/// An object type whose field names are not escaped: `request.namespace`.
fn object_type(name: &str, fields: Vec<(&'static str, Type)>) -> Type {
    let field = |(name, ty): (&str, Type)| (name.to_owned(), Field { name: name.to_owned(), ty });
    let fields = fields.into_iter().map(field).collect();
    Type::Object(Arc::new(ObjectType { name: format!("kubernetes.{name}"), fields }))
}

/// Compiled conditions of one webhook.
pub(crate) struct MatchConditions(Vec<Condition>);

struct Condition {
    expression: String,
    /// The program, or the message of the compile error.
    program: Result<Program, String>,
}

/// The values of the variables.
pub(crate) struct ConditionInput<'a> {
    /// The new object in the matched version.
    pub(crate) object: Option<&'a Object>,
    /// The old object in the matched version.
    pub(crate) old: Option<&'a Object>,
    /// The fields of an AdmissionRequest, without objects.
    pub(crate) request: &'a Map<String, Value>,
}

/// The result of the conditions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConditionResult {
    /// All conditions are true.
    Matches,
    /// A condition is false.
    Excluded,
    /// Conditions failed and none is false.
    Failed(String),
}

impl MatchConditions {
    /// Compiles the field `matchConditions`.
    pub(crate) fn compile(conditions: Option<&Value>) -> Self {
        let expressions = conditions.and_then(Value::as_array).into_iter().flatten();
        let expressions = expressions.filter_map(|condition| condition.get("expression")?.as_str());
        let compile = |expression: &str| Condition {
            expression: expression.to_owned(),
            program: DECLARED.1.compile(expression).map_err(|error| error.to_string()),
        };
        MatchConditions(expressions.map(compile).collect())
    }

    /// Evaluates the conditions for a write.
    pub(crate) async fn evaluate(
        &self,
        input: &ConditionInput<'_>,
        attributes: &Attributes<'_>,
        authorizer: &dyn Authorizer,
    ) -> ConditionResult {
        let decisions = Arc::new(Decisions::default());
        loop {
            let result = self.evaluate_with(input, attributes, &decisions);
            let missing = std::mem::take(&mut *decisions.missing.lock());
            if missing.is_empty() {
                return result;
            }
            for check in missing {
                let decision = decide(&check, attributes.user, authorizer).await;
                decisions.known.lock().push((check, decision));
            }
        }
    }

    fn evaluate_with(
        &self,
        input: &ConditionInput<'_>,
        attributes: &Attributes<'_>,
        decisions: &Arc<Decisions>,
    ) -> ConditionResult {
        let shared: Arc<dyn expressions::Authorizer> = decisions.clone();
        let variables = [
            (OBJECT, value(input.object)),
            (OLD_OBJECT, value(input.old)),
            (REQUEST, expressions::Value::object(input.request, &DECLARED.0)),
            (AUTHORIZER_NAME, authorizer(Arc::clone(&shared))),
            (REQUEST_RESOURCE, request_resource(shared, requested(attributes))),
        ];
        let mut budget = limits::MATCH_CONDITIONS;
        let mut failures = Vec::new();
        for Condition { expression, program } in &self.0 {
            let program = match program {
                Ok(program) => program,
                Err(error) => {
                    failures.push(format!("compilation error: compilation failed: {error}"));
                    continue;
                }
            };
            let mut cost = Cost::limit(limits::CALL.min(budget));
            let result = program.evaluate(&variables, &mut cost);
            budget = budget.saturating_sub(cost.used());
            match result {
                Ok(expressions::Value::Bool(true)) => {}
                Ok(expressions::Value::Bool(false)) => return ConditionResult::Excluded,
                Ok(_) => failures.push(format!("expression '{expression}' must evaluate to bool")),
                Err(EvalError::CostLimit) if budget == 0 => {
                    let text = "validation failed due to running out of cost budget, no further validation rules will be run";
                    return ConditionResult::Failed(text.to_owned());
                }
                Err(error) => failures.push(format!("expression '{expression}' resulted in error: {error}")),
            }
        }
        match failures.as_slice() {
            [] => ConditionResult::Matches,
            [one] => ConditionResult::Failed(one.clone()),
            several => ConditionResult::Failed(format!("[{}]", several.join(", "))),
        }
    }
}

fn value(object: Option<&Object>) -> expressions::Value<'_> {
    object.map_or(expressions::Value::Null, |object| expressions::Value::object(&object.0, &Type::Dyn))
}

/// The check of the variable `authorizer.requestResource`, which lacks a verb.
fn requested(attributes: &Attributes<'_>) -> AuthorizationCheck {
    AuthorizationCheck {
        group: attributes.served.group_resource.group.clone(),
        resource: attributes.served.group_resource.resource.clone(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.request_namespace().to_owned(),
        name: attributes.name.to_owned(),
        ..AuthorizationCheck::default()
    }
}

/// Decisions of the authorizer, known and missing.
#[derive(Default)]
struct Decisions {
    known: Mutex<Vec<(AuthorizationCheck, AuthorizationResult)>>,
    missing: Mutex<Vec<AuthorizationCheck>>,
}

impl expressions::Authorizer for Decisions {
    fn check(&self, question: &AuthorizationCheck) -> AuthorizationResult {
        let known =
            self.known.lock().iter().find(|(check, _)| check == question).map(|(_, known)| known.clone());
        known.unwrap_or_else(|| {
            let mut missing = self.missing.lock();
            if !missing.contains(question) {
                missing.push(question.clone());
            }
            AuthorizationResult { error: Some("the decision is pending".to_owned()), ..Default::default() }
        })
    }
}

async fn decide(
    check: &AuthorizationCheck,
    user: &Arc<UserInfo>,
    authorizer: &dyn Authorizer,
) -> AuthorizationResult {
    let account;
    let user = match &check.service_account {
        None => user,
        Some((namespace, name)) => {
            account = Arc::new(service_account(namespace, name));
            &account
        }
    };
    match authorizer.decide(user, question(check)).get().await {
        Ok(decision) => AuthorizationResult {
            allowed: decision.allowed(),
            reason: decision.reason,
            error: (!decision.evaluation_error.is_empty()).then_some(decision.evaluation_error),
        },
        Err(Status { message, .. }) => {
            AuthorizationResult { error: Some(message), ..AuthorizationResult::default() }
        }
    }
}

fn service_account(namespace: &str, name: &str) -> UserInfo {
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        groups: groups.into_iter().chain(["system:authenticated".to_owned()]).collect(),
        ..UserInfo::default()
    }
}

fn question(check: &AuthorizationCheck) -> Question {
    let labels = check.label_selector.as_deref().map(|text| match LabelSelector::parse(text) {
        Ok(selector) => selector.requirements(),
        Err(_) => ParsedSelector::Unparsable(text.to_owned()),
    });
    let fields = check.field_selector.clone().map(ParsedSelector::Unparsable);
    Question {
        verb: check.verb.clone(),
        resource_request: check.path.is_none(),
        group: check.group.clone(),
        version: "*".to_owned(),
        resource: check.resource.clone(),
        subresource: check.subresource.clone(),
        namespace: check.namespace.clone(),
        name: check.name.clone(),
        path: check.path.clone().unwrap_or_default(),
        field_selector: fields.unwrap_or_default(),
        label_selector: labels.unwrap_or_default(),
    }
}
