//! Tests of policies on writes of config maps.

use std::sync::Arc;

use apimachinery::names::Preset;
use apimachinery::object::Value;
use serde_json::json;
use serving::metrics::Metrics;

use super::*;
use crate::AdmissionMetrics;
use crate::testing::{Fake, PluginResult, TestedWrite};

/// A server with one policy `p`, whose spec has these further fields, and one binding `b`.
struct Server {
    fake: Fake,
    plugin: ValidatingAdmissionPolicy,
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

fn server(policy: Value, binding: Value) -> Server {
    let fake = Fake::new(Preset::Kubernetes).with_objects(
        "",
        "Namespace",
        &[json!({"metadata": {"name": "team", "labels": {"team": "yes"}}, "status": {"phase": "Active"}})],
    );
    let plugin = ValidatingAdmissionPolicy::default();
    let server = Server { fake, plugin };
    server.set_policy("p", policy);
    server.set_binding("b", "p", binding);
    server
}

impl Server {
    fn set_policy(&self, name: &str, spec: Value) {
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"],
        });
        let base = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}});
        let version = self.fake.environment.reader.last_change(POLICY).unwrap_or(0).to_string();
        let metadata = json!({"name": name, "uid": name, "resourceVersion": version});
        let object = json!({"metadata": metadata, "spec": merged(base, spec)});
        self.fake.backend.put("admissionregistration", "ValidatingAdmissionPolicy", object);
    }

    fn set_binding(&self, name: &str, policy: &str, spec: Value) {
        let base = json!({"policyName": policy, "validationActions": ["Deny"]});
        let object = json!({"metadata": {"name": name}, "spec": merged(base, spec)});
        self.fake.backend.put("admissionregistration", "ValidatingAdmissionPolicyBinding", object);
    }

    async fn write(&self, object: Value) -> PluginResult {
        self.write_as(TestedWrite::default(), object).await
    }

    async fn write_as(&self, write: TestedWrite<'_>, object: Value) -> PluginResult {
        let write = TestedWrite { kind: ("", "ConfigMap"), ..write };
        self.fake.run_plugin(&self.plugin, write, object).await
    }
}

fn config_map(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, "data": data,
    })
}

fn validations(expressions: &[&str]) -> Value {
    json!({"validations": expressions.iter().map(|text| json!({"expression": text})).collect::<Vec<_>>()})
}

const DENIED: &str =
    "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";

#[tokio::test]
async fn failed_validation_denies_with_its_reason_and_message() {
    let policy = json!({"validations": [
        {"expression": "object.data.size() < 3", "message": " too many "},
        {"expression": "!('bad' in object.data)", "messageExpression": "'bad is ' + object.data.bad",
         "reason": "Forbidden"},
        {"expression": "object.data.?none.hasValue() || true", "messageExpression": "'x\\ny'"},
    ]});
    let server = server(policy, json!({}));
    for (data, code, message) in [
        (json!({"a": ""}), 0, ""),
        (json!({"a": "", "b": "", "c": ""}), 422, "too many"),
        (json!({"bad": "x"}), 403, "bad is x"),
    ] {
        let answer = server.write(config_map("a", data)).await;
        match answer.result {
            Ok(()) => assert_eq!(code, 0),
            Err(status) => {
                assert_eq!(status.message, format!("{DENIED}{message}"));
                assert_eq!((status.code, status.reason.code()), (code, code));
                let cause = &status.details.as_ref().unwrap().causes[0];
                assert!(status.message.ends_with(&cause.message) && cause.reason.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn evaluation_error_follows_failure_policy() {
    let expression = "object.data.missing == 'x'";
    let error = format!("expression '{expression}' resulted in error: no such key: missing");
    let server = server(validations(&[expression]), json!({}));
    let answer = server.write(config_map("a", json!({"k": "v"}))).await;
    assert_eq!(answer.message(), format!("{DENIED}{error}"));
    server.set_policy("p", merged(validations(&[expression]), json!({"failurePolicy": "Ignore"})));
    assert!(server.write(config_map("a", json!({"k": "v"}))).await.result.is_ok());
    let answer = server.write(config_map("a", json!({"missing": "y"}))).await;
    assert_eq!(answer.message(), format!("{DENIED}failed expression: {expression}"));
}

#[tokio::test]
async fn false_match_condition_precedes_failed_one() {
    let conditions = |texts: &[&str]| {
        let all = texts.iter().enumerate();
        all.map(|(i, text)| json!({"name": format!("c{i}"), "expression": text})).collect::<Vec<_>>()
    };
    let server = server(json!({}), json!({}));
    for (texts, message) in [
        (&["true"][..], "failed expression: false"),
        (&["object.data.none == ''", "false"], ""),
        (
            &["object.data.none == ''", "namespaceObject == null"],
            "expression 'object.data.none == ''' resulted in error: no such key: none",
        ),
    ] {
        let policy = merged(validations(&["false"]), json!({"matchConditions": conditions(texts)}));
        server.set_policy("p", policy);
        let answer = server.write(config_map("a", json!({}))).await;
        assert_eq!(answer.message().strip_prefix(DENIED).unwrap_or_default(), message, "{texts:?}");
    }
}

#[tokio::test]
async fn variables_are_lazy_and_compose() {
    let policy = json!({
        "variables": [
            {"name": "count", "expression": "object.data.size()"},
            {"name": "broken", "expression": "object.data.none"},
            {"name": "next", "expression": "variables.count + 1"},
        ],
        "validations": [
            {"expression": "variables.next == 2 || variables.broken == ''",
             "messageExpression": "string(variables.count)"},
        ],
    });
    let server = server(policy, json!({}));
    assert!(server.write(config_map("a", json!({"k": "v"}))).await.result.is_ok());
    let answer = server.write(config_map("a", json!({"k": "v", "l": "w"}))).await;
    let error = "expression 'variables.next == 2 || variables.broken == ''' resulted in error: composited variable \
                 \"broken\" fails to evaluate: no such key: none";
    assert_eq!(answer.message(), format!("{DENIED}{error}"));
}

#[tokio::test]
async fn long_chain_of_variables_is_evaluated() {
    let mut variables = vec![json!({"name": "v0", "expression": "1"})];
    for i in 1..5_000 {
        let expression = format!("variables.v{} + 1", i - 1);
        variables.push(json!({"name": format!("v{i}"), "expression": expression}));
    }
    let policy = merged(validations(&["variables.v4999 == 5000"]), json!({"variables": variables}));
    let server = server(policy, json!({}));
    let answer = server.write(config_map("a", json!({}))).await;
    assert!(answer.result.is_ok(), "{}", answer.message());
}

/// Returns an expression of about 600,000 cost units. 30 evaluations of the expression exceed the cost budget of
/// a policy, and 10 do not.
fn costly_expression() -> String {
    let list = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, [[a], [b], [c], [d]].size() == 4))))")
}

#[tokio::test]
async fn exceeded_budget_denies() {
    // Each expression stays below the limit of one evaluation; the sum of 30 exceeds the budget of the policy.
    let few = server(validations(&[costly_expression().as_str(); 10]), json!({}));
    let answer = few.write(config_map("a", json!({}))).await;
    assert!(answer.result.is_ok(), "{}", answer.message());
    let server = server(validations(&vec![costly_expression().as_str(); 30]), json!({}));
    let answer = server.write(config_map("a", json!({}))).await;
    let expected =
        "validation failed due to running out of cost budget, no further validation rules will be run";
    assert_eq!(answer.message(), format!("{DENIED}{expected}"));
}

#[tokio::test]
async fn warnings_and_audit_annotations_show_failures() {
    let policy = merged(
        validations(&["'a' in object.data", "'b' in object.data"]),
        json!({"auditAnnotations": [
            {"key": "count", "valueExpression": "string(object.data.size())"},
            {"key": "none", "valueExpression": "null"},
        ]}),
    );
    let server = server(policy, json!({"validationActions": ["Warn", "Audit"]}));
    let answer = server.write(config_map("a", json!({}))).await;
    assert!(answer.result.is_ok());
    let warning = |expression: &str| {
        format!(
            "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: {expression}"
        )
    };
    assert_eq!(answer.warnings, [warning("'a' in object.data"), warning("'b' in object.data")]);
    let [(failure_key, failure), (key, count)] = answer.annotations.as_slice() else {
        panic!("{:?}", answer.annotations)
    };
    assert_eq!((key.as_str(), count.as_str()), ("p/count", "0"));
    assert_eq!(failure_key, "validation.policy.admission.k8s.io/validation_failure");
    let expected = json!([{
        "message": "failed expression: 'a' in object.data", "policy": "p", "binding": "b",
        "expressionIndex": 0, "validationActions": ["Warn", "Audit"],
    }]);
    assert_eq!(serde_json::from_str::<Value>(failure).unwrap(), expected);
}

#[tokio::test]
async fn parameters_are_selected_by_name_and_labels() {
    let param_kind = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
    let policy = merged(validations(&["params == null || object.data.k == params.data.k"]), param_kind);
    let server = server(policy, json!({}));
    let param = |name: &str, value: &str| {
        let metadata = json!({"name": name, "namespace": "team", "labels": {"p": "yes"}});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": value}})
    };
    server.fake.backend.put("", "ConfigMap", param("one", "1"));
    let denied = format!("{DENIED}failed expression: params == null || object.data.k == params.data.k");
    let missing = format!(
        "{DENIED}failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
    let selector = json!({"matchLabels": {"p": "yes"}});
    for (reference, value, message) in [
        (json!({"name": "one", "parameterNotFoundAction": "Deny"}), "1", ""),
        (json!({"name": "one", "parameterNotFoundAction": "Deny"}), "2", denied.as_str()),
        (json!({"name": "two", "parameterNotFoundAction": "Deny"}), "1", &missing),
        (json!({"name": "two", "parameterNotFoundAction": "Allow"}), "2", ""),
        (json!({"selector": selector, "parameterNotFoundAction": "Deny"}), "1", ""),
        (json!({"selector": selector, "parameterNotFoundAction": "Deny"}), "2", &denied),
        (json!({"name": "one", "namespace": "other", "parameterNotFoundAction": "Deny"}), "1", &missing),
        (Value::Null, "2", ""),
    ] {
        server.set_binding("b", "p", json!({"paramRef": reference}));
        let answer = server.write(config_map("a", json!({"k": value}))).await;
        assert_eq!(answer.message(), message, "{reference} {value}");
    }
    server.fake.backend.put("", "ConfigMap", param("one", "2"));
    let reference = json!({"name": "one", "parameterNotFoundAction": "Deny"});
    server.set_binding("b", "p", json!({"paramRef": reference}));
    let answer = server.write(config_map("a", json!({"k": "1"}))).await;
    assert_eq!(answer.message(), denied, "a changed parameter counts at once");
}

#[tokio::test]
async fn unknown_parameter_kind_denies_by_failure_policy() {
    let param_kind = json!({"paramKind": {"apiVersion": "example.test/v1", "kind": "Limit"}});
    let server = server(merged(validations(&["true"]), param_kind.clone()), json!({}));
    let answer = server.write(config_map("a", json!({}))).await;
    let expected = "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed to configure \
                    policy: failed to find resource referenced by paramKind: 'example.test/v1, Kind=Limit'";
    assert_eq!(answer.message(), expected);
    let ignoring = merged(param_kind, json!({"failurePolicy": "Ignore"}));
    server.set_policy("p", merged(validations(&["true"]), ignoring));
    assert!(server.write(config_map("a", json!({}))).await.result.is_ok());
}

#[tokio::test]
async fn request_and_namespace_have_values_of_write() {
    let server = server(json!({}), json!({}));
    for expression in [
        "request.kind == request.requestKind && request.kind.kind == 'ConfigMap' && request.kind.group == ''",
        "request.resource.resource == 'configmaps' && request.resource.version == 'v1'",
        "request.operation == 'UPDATE' && request.name == 'a' && request.namespace == 'team'",
        "request.userInfo.username == 'alice' && request.dryRun && !has(request.subResource)",
        "namespaceObject.metadata.labels.team == 'yes' && namespaceObject.status.phase == 'Active'",
        "oldObject.data.k == 'old' && object.data.k == 'new' && object.kind == 'ConfigMap'",
    ] {
        server.set_policy("p", validations(&[expression]));
        let old = Some(config_map("a", json!({"k": "old"})));
        let write =
            TestedWrite { operation: Operation::Update, old, dry_run: true, ..TestedWrite::default() };
        let answer = server.write_as(write, config_map("a", json!({"k": "new"}))).await;
        assert!(answer.result.is_ok(), "{expression}: {}", answer.message());
    }
    server.set_policy("p", validations(&["object == null && oldObject.data.k == 'old'"]));
    let old = Some(config_map("a", json!({"k": "old"})));
    let write = TestedWrite { operation: Operation::Delete, old, ..TestedWrite::default() };
    assert!(server.write_as(write, Value::Null).await.result.is_ok());
}

#[tokio::test]
async fn authorizer_variable_decides_with_user_and_service_accounts() {
    let mut server = server(json!({}), json!({}));
    server.fake = server
        .fake
        .with_right("alice get secrets s")
        .with_right("alice delete configmaps a")
        .with_right("system:serviceaccount:team:bot list pods *");
    for (expression, is_allowed) in [
        ("authorizer.group('').resource('secrets').name('s').check('get').allowed()", true),
        ("authorizer.group('').resource('secrets').name('t').check('get').allowed()", false),
        ("authorizer.requestResource.check('delete').allowed()", true),
        ("authorizer.requestResource.check('update').allowed()", false),
        ("authorizer.serviceAccount('team', 'bot').group('').resource('pods').check('list').allowed()", true),
        ("['delete', 'get'].all(v, authorizer.requestResource.check(v).allowed())", false),
    ] {
        server.set_policy("p", validations(&[expression]));
        let answer = server.write(config_map("a", json!({}))).await;
        assert_eq!(answer.result.is_ok(), is_allowed, "{expression}: {}", answer.message());
    }
}

#[tokio::test]
async fn binding_limits_scope_and_policy_without_binding_is_inactive() {
    let server = server(validations(&["false"]), json!({}));
    let other = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "no"}}}});
    for (binding, is_denied) in [
        (json!({}), true),
        (other, false),
        (json!({"matchResources": {"objectSelector": {"matchLabels": {"x": "y"}}}}), false),
        (json!({"policyName": "other"}), false),
    ] {
        server.set_binding("b", "p", binding.clone());
        let answer = server.write(config_map("a", json!({}))).await;
        assert_eq!(answer.result.is_err(), is_denied, "{binding}");
    }
}

#[tokio::test]
async fn policies_and_reviews_are_exempt() {
    let rule =
        json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*", "*/*"]});
    let policy = merged(validations(&["false"]), json!({"matchConstraints": {"resourceRules": [rule]}}));
    let server = server(policy, json!({}));
    for (kind, is_denied) in [
        (("admissionregistration", "ValidatingAdmissionPolicyBinding"), false),
        (("admissionregistration", "MutatingWebhookConfiguration"), false),
        (("authorization", "SubjectAccessReview"), false),
        (("", "Secret"), true),
    ] {
        let write = TestedWrite { kind, ..TestedWrite::default() };
        let answer = server.fake.run_plugin(&server.plugin, write, json!({"metadata": {"name": "x"}})).await;
        assert_eq!(answer.result.is_err(), is_denied, "{kind:?}");
    }
}

#[tokio::test]
async fn failed_validations_and_match_conditions_are_counted() {
    let mut fake = Fake::new(Preset::Kubernetes);
    let metrics = Metrics::default();
    fake.environment.metrics = Arc::new(AdmissionMetrics::new(&metrics));
    let plugin = ValidatingAdmissionPolicy::default();
    let server = Server { fake, plugin };
    let condition = |expression: &str| json!({"matchConditions": [{"name": "c", "expression": expression}]});
    let actions = |actions: &[&str]| json!({"validationActions": actions});
    let ignored = merged(validations(&["object.data.none == ''"]), json!({"failurePolicy": "Ignore"}));
    server.set_policy("a", validations(&["false", "true"]));
    server.set_binding("a", "a", actions(&["Warn", "Audit"]));
    server.set_policy("b", ignored);
    server.set_binding("b", "b", actions(&["Deny"]));
    server.set_policy("c", merged(validations(&["false"]), condition("false")));
    server.set_binding("c", "c", actions(&["Deny"]));
    server.set_policy("d", merged(validations(&["true"]), condition("object.data.none == ''")));
    server.set_binding("d", "d", actions(&["Deny"]));
    server.set_policy("e", validations(&["object.data.?"]));
    server.set_binding("e", "e", actions(&["Deny"]));
    let ignoring = json!({"failurePolicy": "Ignore"});
    let failing = merged(validations(&["true"]), condition("object.data.none == ''"));
    server.set_policy("f", merged(failing, ignoring.clone()));
    server.set_binding("f", "f", actions(&["Deny"]));
    server.set_policy("g", merged(validations(&vec![costly_expression().as_str(); 30]), ignoring));
    server.set_binding("g", "g", actions(&["Deny"]));
    assert!(server.write(config_map("a", json!({}))).await.result.is_err());
    let text = metrics.text();
    let of_policy = |policy: &str, error: &str, action: &str| {
        format!(
            "apiserver_validating_admission_policy_check_total{{policy=\"{policy}\",policy_binding=\"{policy}\",\
             error_type=\"{error}\",enforcement_action=\"{action}\"}} 1"
        )
    };
    let of_condition = |family: &str, policy: &str| {
        format!(
            "apiserver_admission_match_condition_{family}{{name=\"{policy}\",kind=\"policy\",type=\"validate\",\
             operation=\"CREATE\"}} 1"
        )
    };
    for line in [
        of_policy("a", "invalid_error", "warn"),
        of_policy("a", "invalid_error", "audit"),
        of_policy("b", "invalid_error", "allow"),
        of_policy("d", "invalid_error", "deny"),
        of_policy("e", "compile_error", "deny"),
        of_policy("f", "invalid_error", "allow"),
        of_policy("g", "out_of_budget", "allow"),
        of_condition("exclusions_total", "c"),
        of_condition("evaluation_errors_total", "d"),
        of_condition("evaluation_seconds_count", "d"),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert_eq!(text.matches("validating_admission_policy_check_total{").count(), 7, "{text}");
    let limits: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("apiserver_admission_match_condition_evaluation_seconds_bucket"))
        .filter(|line| line.contains("name=\"d\""))
        .filter_map(|line| line.split_once("le=\"")?.1.split('"').next())
        .collect();
    assert_eq!(limits, ["0.001", "0.005", "0.01", "0.025", "0.1", "0.2", "0.25", "+Inf"]);
}
