//! Match conditions of an authorization webhook (access control, "Authorization configuration file").
//!
//! # Contract
//!
//! A match condition is a Boolean CEL expression over `request`, the `spec` of a v1 SubjectAccessReview. If
//! one condition is false, the webhook is not called. If the evaluation of a condition fails and no condition
//! is false, the failure policy decides.
//! If all are true, or there are none, the webhook is called. Each expression and all expressions together
//! have the CEL cost limits of kube-apiserver.

use std::sync::{Arc, LazyLock};

use apimachinery::attributes::Attributes;
use apimachinery::user::UserInfo;
use expressions::{Cost, Environment, Field, ObjectType, Program, Type, Value, limits};

use super::access_review;

/// The maximum number of match conditions of one webhook; a file with more is invalid.
pub const MAX_CONDITIONS: usize = 64;

/// The CEL variable of the expressions.
const REQUEST: &str = "request";

/// The type of the variable `request`, and the CEL environment that declares the variable.
static REQUEST_DECLARATION: LazyLock<(Type, Environment)> = LazyLock::new(|| {
    let request = request_type();
    let environment = Environment::new().variable(REQUEST, request.clone());
    (request, environment)
});

fn request_type() -> Type {
    let texts = |fields: &[&str]| -> Vec<(String, Type)> {
        fields.iter().map(|field| ((*field).to_owned(), Type::String)).collect()
    };
    let strings = || Type::list(Type::String);
    let requirement = |name: &str| {
        let mut fields = texts(&["key", "operator"]);
        fields.push(("values".to_owned(), strings()));
        object(&format!("{name}Requirement"), fields)
    };
    let selector = |name: &str| {
        let mut fields = texts(&["rawSelector"]);
        fields.push(("requirements".to_owned(), Type::list(requirement(name))));
        object(&format!("{name}Attributes"), fields)
    };
    let mut resource = texts(&["namespace", "verb", "group", "version", "resource", "subresource", "name"]);
    resource.push(("fieldSelector".to_owned(), selector("FieldSelector")));
    resource.push(("labelSelector".to_owned(), selector("LabelSelector")));
    let mut request = texts(&["user", "uid"]);
    request.push(("groups".to_owned(), strings()));
    request.push(("extra".to_owned(), Type::map(Type::String, strings())));
    request.push(("resourceAttributes".to_owned(), object("ResourceAttributes", resource)));
    let path = object("NonResourceAttributes", texts(&["path", "verb"]));
    request.push(("nonResourceAttributes".to_owned(), path));
    object("SubjectAccessReviewSpec", request)
}

/// Returns an object type whose fields have the same names in expressions as in the review.
/// Unlike in the types of OpenAPI schemas, the reserved word `namespace` is not escaped as `__namespace__`.
fn object(name: &str, fields: Vec<(String, Type)>) -> Type {
    let fields = fields.into_iter().map(|(name, ty)| (name.clone(), Field { name, ty })).collect();
    Type::Object(Arc::new(ObjectType { name: format!("kubernetes.{name}"), fields }))
}

/// The compiled match conditions of one webhook.
#[derive(Default)]
pub struct Conditions(Vec<Condition>);

struct Condition {
    source: String,
    program: Program,
}

/// The reason why an expression is not a valid match condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The expression does not compile.
    #[error("{0}")]
    Compilation(String),
    /// The result is not a boolean.
    #[error("must evaluate to bool")]
    ResultType,
}

/// The result of the conditions for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionResult {
    /// All conditions are true, or there are none: the webhook is called.
    Matches,
    /// A condition is false: the webhook is not called and has no opinion.
    Skipped,
    /// No condition is false, and the evaluation of the listed conditions failed.
    Failed(String),
}

impl Conditions {
    /// Compiles an expression and adds it.
    ///
    /// # Errors
    ///
    /// The expression does not compile, or its result is not a boolean.
    pub fn add(&mut self, source: &str) -> Result<(), ConditionError> {
        let program = REQUEST_DECLARATION
            .1
            .compile(source)
            .map_err(|error| ConditionError::Compilation(error.reason()))?;
        if *program.result_type() != Type::Bool {
            return Err(ConditionError::ResultType);
        }
        self.0.push(Condition { source: source.to_owned(), program });
        Ok(())
    }

    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Evaluates the conditions in order for a request, up to the first false one.
    pub fn check(&self, user: &UserInfo, attributes: &Attributes) -> ConditionResult {
        if self.is_empty() {
            return ConditionResult::Matches;
        }
        let fields = access_review::condition_fields(user, attributes);
        let request = Value::object(&fields, &REQUEST_DECLARATION.0);
        let mut budget = limits::MATCH_CONDITIONS;
        let mut failures = Vec::new();
        for Condition { source, program } in &self.0 {
            let mut cost = Cost::limit(limits::CALL.min(budget));
            match program.evaluate(&[(REQUEST, request.clone())], &mut cost) {
                Ok(Value::Bool(false)) => return ConditionResult::Skipped,
                Ok(Value::Bool(true)) => (),
                Ok(_) => failures.push(format!("`{source}`: must evaluate to bool")),
                Err(error) => failures.push(format!("`{source}`: {error}")),
            }
            budget = budget.saturating_sub(cost.used());
        }
        if failures.is_empty() {
            ConditionResult::Matches
        } else {
            ConditionResult::Failed(failures.join(", "))
        }
    }
}

impl std::fmt::Debug for Conditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|condition| &condition.source)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(sources: &[&str]) -> Conditions {
        let mut conditions = Conditions::default();
        for source in sources {
            conditions.add(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        }
        conditions
    }

    fn jane() -> UserInfo {
        UserInfo {
            name: "jane".into(),
            groups: vec!["team".into()],
            extra: [("example.com/k".to_owned(), vec!["v".to_owned()])].into(),
            ..UserInfo::default()
        }
    }

    #[test]
    fn false_match_condition_overrides_failed_condition() {
        let (yes, no, fails) =
            ("request.user == 'jane'", "request.user == 'joe'", "request.nonResourceAttributes.path == '/'");
        let pods = Attributes { resource_request: true, resource: "pods".into(), ..Attributes::default() };
        let failed = |got: &ConditionResult| matches!(got, ConditionResult::Failed(_));
        for (sources, expected) in [
            (vec![], ConditionResult::Matches),
            (vec![yes], ConditionResult::Matches),
            (vec![yes, yes], ConditionResult::Matches),
            (vec![no], ConditionResult::Skipped),
            (vec![yes, no], ConditionResult::Skipped),
            (vec![fails, no], ConditionResult::Skipped),
            (vec![no, fails], ConditionResult::Skipped),
            (vec![fails], ConditionResult::Failed(String::new())),
            (vec![yes, fails], ConditionResult::Failed(String::new())),
            (vec![fails, yes], ConditionResult::Failed(String::new())),
        ] {
            let got = conditions(&sources).check(&jane(), &pods);
            assert!(got == expected || failed(&got) && failed(&expected), "{sources:?}: {got:?}");
        }
    }

    /// All conditions of a request together have a cost limit (requirement D-CCOST-12).
    #[test]
    fn conditions_above_two_and_a_half_million_units_fail() {
        const SOURCE: &str = "request.groups.all(g, g != 'x')";
        let pods = Attributes { resource_request: true, resource: "pods".into(), ..Attributes::default() };
        let user = |groups: u64| {
            let groups = vec!["g".to_owned(); usize::try_from(groups).unwrap()];
            UserInfo { groups, ..jane() }
        };
        let cost = |groups: u64| {
            let user = user(groups);
            let fields = access_review::condition_fields(&user, &pods);
            let request = Value::object(&fields, &REQUEST_DECLARATION.0);
            let mut cost = Cost::limit(u64::MAX);
            REQUEST_DECLARATION
                .1
                .compile(SOURCE)
                .unwrap()
                .evaluate(&[(REQUEST, request)], &mut cost)
                .unwrap();
            cost.used()
        };
        let (base, each) = (cost(0), cost(1) - cost(0));
        let result = |conditions_count: u64, groups: u64| {
            conditions(&vec![SOURCE; usize::try_from(conditions_count).unwrap()]).check(&user(groups), &pods)
        };
        for (count, limit) in [(1, 1_000_000), (3, 2_500_000)] {
            let groups = (limit / count - base) / each;
            assert_eq!(result(count, groups), ConditionResult::Matches, "{count}");
            let above = result(count, groups + 1);
            let ConditionResult::Failed(message) = above else { panic!("{count}: {above:?}") };
            assert!(message.contains("cost limit"), "{message}");
        }
    }

    #[test]
    fn match_conditions_read_all_request_fields() {
        let pods = Attributes {
            verb: "list".into(),
            resource_request: true,
            group: "apps".into(),
            resource: "deployments".into(),
            namespace: "a".into(),
            field_selector: apimachinery::attributes::ParsedSelector::Requirements(vec![
                apimachinery::attributes::Requirement {
                    key: "metadata.name".into(),
                    operator: apimachinery::attributes::Operator::In,
                    values: vec!["x".into()],
                },
            ]),
            ..Attributes::default()
        };
        for source in [
            "'team' in request.groups && request.uid == ''",
            "request.extra['example.com/k'] == ['v']",
            "has(request.resourceAttributes) && !has(request.nonResourceAttributes)",
            "request.resourceAttributes.namespace == 'a' && request.resourceAttributes.name == ''",
            "request.resourceAttributes.group == 'apps' && request.resourceAttributes.verb == 'list'",
            "request.resourceAttributes.fieldSelector.requirements[0].values[0] == 'x'",
            "!has(request.resourceAttributes.labelSelector)",
            "!has(request.resourceAttributes) || request.resourceAttributes.subresource.startsWith('')",
        ] {
            assert_eq!(conditions(&[source]).check(&jane(), &pods), ConditionResult::Matches, "{source}");
        }
    }

    #[test]
    fn invalid_match_condition_is_rejected() {
        for source in ["request.user", "1", "", "request.nosuch == ''", "object.x == 1", "request.user =="] {
            assert!(Conditions::default().add(source).is_err(), "{source}");
        }
    }

    #[test]
    fn match_condition_over_cost_limit_fails() {
        let user = UserInfo { groups: vec!["g".to_owned(); 2000], ..jane() };
        let cube = "request.groups.all(a, request.groups.all(b, request.groups.all(c, a == b && b == c)))";
        let got = conditions(&[cube]).check(&user, &Attributes::default());
        assert!(matches!(got, ConditionResult::Failed(_)), "{got:?}");
    }
}
