//! Tests of reviews, denials and reinvocation; calls are tested end to end.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::codec::Limits;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::json;

use super::Webhooks;
use super::mutating::parse_patch;
use super::review::{ResponseError, ReviewResponse, body, denial, read_response};
use crate::Phase;
use crate::reinvocation::Reinvocation;
use crate::testing::{Fake, TestedWrite};
use crate::validating_admission_policy::ValidatingAdmissionPolicy;
use crate::{Recorder, mutation};

/// Examples of the fuzz target.
const EXAMPLES: [&str; 4] = [
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":403,"message":"m","reason":"r","details":{"causes":[{"field":"f"}],"retryAfterSeconds":1}},"warnings":["w"],"auditAnnotations":{"k":"v"}}}"#,
    r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}"#,
    r#"{"apiVersion":"admission.example.test/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9hIiwidmFsdWUiOjF9XQ=="}}"#,
];

fn names() -> Names {
    Names::new(Preset::Kubernetes, "").unwrap()
}

fn read_admission_response(
    version: &str,
    is_mutating: bool,
    response: Value,
) -> Result<ReviewResponse, ResponseError> {
    let api_version = format!("admission.k8s.io/{version}");
    let review = json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response});
    read_response(review.to_string().as_bytes(), "u1", &names(), version, is_mutating)
}

#[test]
fn admission_response_is_read_with_all_fields() {
    let patch = STANDARD.encode("[]");
    let response = read_admission_response(
        "v1",
        true,
        json!({
            "uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": patch, "status": {"code": 400},
            "warnings": ["w"], "auditAnnotations": {"k": "v"},
        }),
    );
    let expected = ReviewResponse {
        is_allowed: true,
        status: Some(json!({"code": 400})),
        patch: Some(b"[]".to_vec()),
        patch_type: "JSONPatch".to_owned(),
        annotations: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        warnings: vec!["w".to_owned()],
    };
    assert_eq!(response.unwrap(), expected);
}

/// Webhooks in Rust encode bytes as an array of numbers, which the JSON decoder of Go accepts.
#[test]
fn patch_is_base64_or_an_array_of_bytes() {
    for patch in [json!("W10="), json!("W1\n0="), json!([91, 93])] {
        let response = json!({"uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": patch});
        let response = read_admission_response("v1", true, response).unwrap();
        assert_eq!(response.patch.as_deref(), Some(b"[]".as_slice()), "{patch}");
    }
    let empty = read_admission_response("v1", true, json!({"uid": "u1", "allowed": true, "patch": []}));
    assert_eq!(empty.unwrap().patch, None);
}

#[test]
fn faulty_admission_responses_are_rejected() {
    let invalid = |text: &str| Err(ResponseError::Invalid(text.to_owned()));
    let patch = STANDARD.encode("[]");
    for (is_mutating, response, expected) in [
        (true, Value::Null, invalid("webhook response was absent")),
        (true, json!({"uid": "u2", "allowed": true}), invalid("expected response.uid=\"u1\", got \"u2\"")),
        (true, json!({"allowed": true}), invalid("expected response.uid=\"u1\", got \"\"")),
        (
            true,
            json!({"uid": "u1", "patch": patch}),
            invalid("webhook returned response.patch but not response.patchType"),
        ),
        (
            true,
            json!({"uid": "u1", "patchType": "JSONPatch"}),
            invalid("webhook returned response.patchType but not response.patch"),
        ),
        (
            false,
            json!({"uid": "u1", "patch": patch, "patchType": "JSONPatch"}),
            invalid("validating webhook may not return response.patch"),
        ),
        (
            false,
            json!({"uid": "u1", "patchType": "JSONPatch"}),
            invalid("validating webhook may not return response.patchType"),
        ),
    ] {
        assert_eq!(read_admission_response("v1", is_mutating, response.clone()), expected, "{response}");
    }
    for response in [
        json!([]),
        json!({"uid": 1}),
        json!({"uid": "u1", "allowed": "yes"}),
        json!({"uid": "u1", "warnings": "w"}),
        json!({"uid": "u1", "warnings": [1]}),
        json!({"uid": "u1", "auditAnnotations": {"a": 1}}),
        json!({"uid": "u1", "patch": "?"}),
        json!({"uid": "u1", "patch": [256]}),
        json!({"uid": "u1", "patch": ["a"]}),
        json!({"uid": "u1", "patch": {"a": 1}}),
    ] {
        let result = read_admission_response("v1", true, response.clone());
        assert!(matches!(result, Err(ResponseError::Undecodable(_))), "{response}: {result:?}");
    }
    for body in ["", "<html>", "[]", "{\"response\":"] {
        let result = read_response(body.as_bytes(), "u1", &names(), "v1", true);
        assert!(matches!(result, Err(ResponseError::Undecodable(_))), "{body}: {result:?}");
    }
}

#[test]
fn review_of_other_version_or_kind_is_rejected_by_v1_only() {
    for (review, got) in [
        (json!({}), "/, Kind="),
        (json!({"apiVersion": "v1", "kind": "Status"}), "/v1, Kind=Status"),
        (json!({"apiVersion": "a.b/v1", "kind": "AdmissionReview"}), "a.b/v1, Kind=AdmissionReview"),
    ] {
        let mut review = review;
        review["response"] = json!({"uid": "u1", "allowed": true});
        let read_as =
            |version: &str| read_response(review.to_string().as_bytes(), "u1", &names(), version, true);
        let text =
            format!("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {got}");
        assert_eq!(read_as("v1"), Err(ResponseError::Invalid(text)));
        assert!(read_as("v1beta1").unwrap().is_allowed);
    }
}

#[test]
fn denial_passes_on_code_reason_message_and_details() {
    for (status, code, reason, message) in [
        (Value::Null, 400, "", " without explanation"),
        (json!({"code": 200, "status": "Success"}), 400, "", " without explanation"),
        (json!({"code": 409, "reason": "Conflict"}), 409, "Conflict", ": Conflict"),
        (json!({"code": 418, "reason": "Mine", "message": "no"}), 418, "Mine", ": no"),
    ] {
        let status = denial("w.test", Some(&status)).to_value();
        assert_eq!(status["message"], format!("admission webhook \"w.test\" denied the request{message}"));
        assert_eq!(status["code"], code);
        assert_eq!(status.get("reason").and_then(Value::as_str).unwrap_or(""), reason);
    }
    let details =
        json!({"name": "n", "kind": "k", "causes": [{"reason": "r", "message": "m", "field": "f"}]});
    assert_eq!(denial("w", Some(&json!({"details": details}))).to_value()["details"], details);
}

#[test]
fn patch_is_applied_or_rejected() {
    let patch = br#"[{"op": "add", "path": "/a", "value": 1}]"#;
    let apply = |patch: &[u8], preset| {
        apply_patch(patch, Object::default(), &Names::new(preset, "example.test").unwrap())
            .map(Object::into_value)
    };
    assert_eq!(apply(patch, Preset::Kubernetes), Some(json!({"a": 1})));
    for broken in
        ["", "{}", "[1]", r#"[{"op": "remove", "path": "/b"}]"#, r#"[{"op": "jump", "path": "/b"}]"#]
    {
        assert_eq!(apply(broken.as_bytes(), Preset::Kubernetes), None, "{broken}");
    }
    let replacement = br#"[{"op": "replace", "path": "/b", "value": 2}]"#;
    assert_eq!(apply(replacement, Preset::Kubernetes), Some(json!({"b": 2})));
    assert_eq!(apply(replacement, Preset::Svc), None);
}

#[test]
fn second_round_calls_webhooks_that_were_called_before_a_change() {
    let object = |name: &str| Object::from_value(json!({"metadata": {"name": name}})).unwrap();
    let mut write = Reinvocation::default();
    let state = &mut write.webhooks;
    state.record_call("first");
    state.record_change();
    state.record_call("second");
    state.end_first_round(Some(&object("a")));
    state.begin_second_round(Some(&object("a")));
    assert_eq!(["first", "second"].map(|webhook| state.is_pending(webhook)), [true, false]);
    state.begin_second_round(Some(&object("b")));
    assert!(state.is_pending("second"), "another plugin changed the object after the webhook");
    assert!(write.is_requested());
}

/// A webhook whose Service does not exist, with the changed fields.
fn webhook(changed: Value) -> Value {
    let mut webhook = json!({
        "name": "w.test", "clientConfig": {"service": {"namespace": "team", "name": "nobody", "path": "/x"}},
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}],
    });
    for (field, value) in changed.as_object().unwrap() {
        webhook[field] = value.clone();
    }
    webhook
}

/// Writes a ConfigMap with one validating webhook. Returns the message of the result, and the audit
/// annotations.
async fn write_with(changed: Value, dry_run: bool, fake: Fake) -> (String, Vec<(String, String)>) {
    let configuration = json!({"metadata": {"name": "c", "uid": "1"}, "webhooks": [webhook(changed)]});
    let fake = fake.with_objects("admissionregistration", "ValidatingWebhookConfiguration", &[configuration]);
    let plugin = Webhooks::new(Phase::Validating, &fake.environment, None).unwrap();
    let write = TestedWrite { kind: ("", "ConfigMap"), dry_run, ..TestedWrite::default() };
    let result = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "m"}})).await;
    (result.message().to_owned(), result.annotations)
}

const UNREACHABLE: &str = "Internal error occurred: failed calling webhook \"w.test\": failed to call webhook: Post \
    \"https://nobody.team.svc:443/x?timeout=1s\": service \"nobody\" not found; this server has no cluster network: add \
    \"team/nobody:443\" to the file of --service-resolver-file, or create the service with an external name or with \
    EndpointSlices";

#[tokio::test]
async fn dry_run_calls_only_webhooks_without_side_effects() {
    let unsupported = "admission webhook \"w.test\" does not support dry run";
    for (side_effects, policy, dry_run, message) in [
        ("None", "Fail", true, UNREACHABLE),
        ("NoneOnDryRun", "Fail", true, UNREACHABLE),
        ("Some", "Fail", false, UNREACHABLE),
        ("Some", "Fail", true, unsupported),
        ("Unknown", "Ignore", true, unsupported),
    ] {
        let fields = json!({"sideEffects": side_effects, "failurePolicy": policy});
        let (actual, _) = write_with(fields, dry_run, Fake::new(Preset::Kubernetes)).await;
        assert_eq!(actual, message, "{side_effects} {policy} {dry_run}");
    }
}

#[tokio::test]
async fn call_ends_with_the_request() {
    let fields = json!({"timeoutSeconds": 20});
    let configuration = json!({"metadata": {"name": "c", "uid": "1"}, "webhooks": [webhook(fields)]});
    for (seconds, expected) in [(5, "?timeout=5s"), (60, "?timeout=20s")] {
        let kind = "ValidatingWebhookConfiguration";
        let fake = Fake::new(Preset::Kubernetes).with_objects(
            "admissionregistration",
            kind,
            std::slice::from_ref(&configuration),
        );
        let plugin = Webhooks::new(Phase::Validating, &fake.environment, None).unwrap();
        let deadline = Some(fake.clock.monotonic() + Duration::from_secs(seconds));
        let write = TestedWrite { kind: ("", "ConfigMap"), deadline, ..TestedWrite::default() };
        let result = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "m"}})).await;
        assert!(result.message().contains(expected), "{}", result.message());
    }
}

#[tokio::test]
async fn ignored_failure_is_recorded_in_the_audit_event() {
    let (message, annotations) =
        write_with(json!({"failurePolicy": "Ignore"}), false, Fake::new(Preset::Kubernetes)).await;
    assert_eq!(message, "");
    let key = "failed-open.validating.webhook.admission.k8s.io/round_0_index_0";
    assert_eq!(annotations, [(key.to_owned(), "w.test".to_owned())]);
}

#[tokio::test]
async fn match_conditions_decide_on_the_call_and_fail_by_policy() {
    let failed =
        "configmaps \"m\" is forbidden: expression 'object.spec.x == 1' resulted in error: no such key: spec";
    let allowed = "authorizer.group('').resource('pods').namespace('n').name('x').check('get').allowed()";
    let requested = "authorizer.requestResource.check('break').allowed()";
    for (expressions, policy, message) in [
        (vec!["true"], "Fail", UNREACHABLE),
        (vec!["object.metadata.name == 'm' && oldObject == null"], "Fail", UNREACHABLE),
        (vec!["request.namespace == 'team' && request.operation == 'CREATE'"], "Fail", UNREACHABLE),
        (
            vec!["request.kind.kind == 'ConfigMap' && request.userInfo.username == 'alice'"],
            "Fail",
            UNREACHABLE,
        ),
        (vec!["object.metadata.name == 'n'"], "Fail", ""),
        (vec!["object.spec.x == 1"], "Fail", failed),
        (vec!["object.spec.x == 1"], "Ignore", ""),
        (vec!["object.spec.x == 1", "false"], "Fail", ""),
        (vec![allowed], "Fail", UNREACHABLE),
        (vec![requested], "Fail", ""),
    ] {
        let conditions: Vec<Value> =
            expressions.iter().map(|expression| json!({"name": "c", "expression": expression})).collect();
        let changed = json!({"matchConditions": conditions, "failurePolicy": policy});
        let fake = Fake::new(Preset::Kubernetes).with_right("alice get pods x");
        let (got, _) = write_with(changed, false, fake).await;
        assert_eq!(got, message, "{expressions:?} {policy}");
    }
}

/// Webhooks and policies decide equally on the same conditions.
#[tokio::test]
async fn webhook_and_policy_agree_on_match_conditions() {
    let account = "authorizer.serviceAccount('team', 'robot').group('').resource('pods')";
    let by_field =
        "authorizer.group('').resource('pods').fieldSelector('spec.nodeName=n').check('list').allowed()";
    let error = |text: &str| format!("expression '{text}' resulted in error: no such key: spec");
    let (absent, other) = ("object.spec.x == 1", "object.spec.y == 1");
    for (conditions, is_applied, reason) in [
        (vec!["namespaceObject == null".to_owned()], true, String::new()),
        (vec![format!("{account}.check('get').allowed()")], true, String::new()),
        (vec![format!("{account}.check('watch').allowed()")], false, String::new()),
        (vec![by_field.to_owned()], true, String::new()),
        (vec!["request.resource == request.requestResource".to_owned()], true, String::new()),
        (vec!["request.uid == 'x'".to_owned()], false, "undefined field 'uid'".to_owned()),
        (vec![absent.to_owned(), absent.to_owned()], false, error(absent)),
        (vec![absent.to_owned(), other.to_owned()], false, format!("[{}, {}]", error(absent), error(other))),
        (vec![absent.to_owned(), "false".to_owned()], false, String::new()),
    ] {
        let conditions: Vec<Value> =
            conditions.iter().map(|expression| json!({"name": "c", "expression": expression})).collect();
        let fake = || {
            Fake::new(Preset::Kubernetes)
                .with_objects("", "Namespace", &[json!({"metadata": {"name": "team"}})])
                .with_right("system:serviceaccount:team:robot get pods *")
                .with_right("alice list pods *")
                .with_right("system:authenticated watch pods *")
        };
        let (message, _) = write_with(json!({"matchConditions": conditions}), false, fake()).await;
        let expected = match (is_applied, reason.as_str()) {
            (true, _) => UNREACHABLE,
            (false, reason) => reason,
        };
        assert!(
            message.contains(expected) && message.is_empty() == expected.is_empty(),
            "{conditions:?}: {message}"
        );

        let policy = json!({"metadata": {"name": "p"}, "spec": {
            "failurePolicy": "Fail", "matchConditions": conditions,
            "matchConstraints": {"resourceRules": webhook(json!({}))["rules"]},
            "validations": [{"expression": "false", "message": "applied"}],
        }});
        let binding =
            json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        let fake = fake()
            .with_objects("admissionregistration", "ValidatingAdmissionPolicy", &[policy])
            .with_objects("admissionregistration", "ValidatingAdmissionPolicyBinding", &[binding]);
        let plugin = ValidatingAdmissionPolicy::default();
        let write = TestedWrite { kind: ("", "ConfigMap"), ..TestedWrite::default() };
        let result = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "m"}})).await;
        let expected = if is_applied { "denied request: applied" } else { reason.as_str() };
        let message = result.message();
        assert!(
            message.contains(expected) && message.is_empty() == expected.is_empty(),
            "{conditions:?}: {message}"
        );
    }
}

/// A clock that advances with each reading.
struct SteppingClock {
    step: Duration,
    readings: AtomicU32,
}

impl Clock for SteppingClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        self.step * self.readings.fetch_add(1, Ordering::Relaxed)
    }
}

#[tokio::test]
async fn slow_match_conditions_of_webhook_yield_to_other_tasks() {
    let excluded = webhook(json!({"matchConditions": [{"name": "c", "expression": "false"}]}));
    let configuration = json!({"metadata": {"name": "c", "uid": "1"}, "webhooks": [excluded]});
    let mut fake = Fake::new(Preset::Kubernetes).with_objects(
        "admissionregistration",
        "ValidatingWebhookConfiguration",
        &[configuration],
    );
    // A slow write pauses twice: once in its turn before the webhook, and once after the conditions.
    for (step, expected) in [(Duration::from_micros(1), 0), (Duration::from_secs(1), 2)] {
        fake.environment.clock = Arc::new(SteppingClock { step, readings: AtomicU32::default() });
        let plugin = Webhooks::new(Phase::Validating, &fake.environment, None).unwrap();
        let run = || {
            let write = TestedWrite { kind: ("", "ConfigMap"), ..TestedWrite::default() };
            fake.run_plugin(&plugin, write, json!({"metadata": {"name": "m"}}))
        };
        // The first write also waits for the compilation of the webhooks.
        assert_eq!(run().await.message(), "");
        let (mut review, mut pauses) = (pin!(run()), 0);
        let result = poll_fn(|context| {
            let poll = review.as_mut().poll(context);
            pauses += u32::from(poll.is_pending());
            poll
        });
        assert_eq!(result.await.message(), "");
        assert_eq!(pauses, expected, "{step:?}");
    }
}

#[tokio::test]
async fn repeated_warnings_reach_the_client_once() {
    let output = Recorder::default();
    for text in ["one", "", "two", "one"] {
        output.warn(text);
    }
    output.reset();
    assert_eq!(output.take_warnings(), ["one", "two"]);
}

#[test]
fn review_body_has_request_uid_and_objects() {
    let request = json!({"name": "m", "dryRun": true});
    for (preset, group) in [(Preset::Kubernetes, "admission.k8s.io"), (Preset::Svc, "admission.example.test")]
    {
        let names = Names::new(preset, "example.test").unwrap();
        let body = body(&names, "v1", "u1", request.as_object().unwrap(), "{\"a\":\"}\"}", "null");
        let expected = json!({
            "kind": "AdmissionReview", "apiVersion": format!("{group}/v1"),
            "request": {"name": "m", "dryRun": true, "uid": "u1", "object": {"a": "}"}, "oldObject": null},
        });
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    }
}

#[tokio::test]
async fn configurations_and_policies_are_never_sent_to_webhooks() {
    let configuration = json!({"metadata": {"name": "c", "uid": "1"}, "webhooks": [webhook(json!({}))]});
    let fake = Fake::new(Preset::Svc).with_objects(
        "admissionregistration",
        "ValidatingWebhookConfiguration",
        &[configuration],
    );
    let plugin = Webhooks::new(Phase::Validating, &fake.environment, None).unwrap();
    for (group, kind, is_exempt) in [
        ("admissionregistration", "MutatingWebhookConfiguration", true),
        ("admissionregistration", "ValidatingWebhookConfiguration", true),
        ("admissionregistration", "ValidatingAdmissionPolicy", true),
        ("admissionregistration", "ValidatingAdmissionPolicyBinding", true),
        ("", "Secret", false),
        ("apps", "Deployment", false),
    ] {
        let write = TestedWrite { kind: (group, kind), ..TestedWrite::default() };
        let result = fake.run_plugin(&plugin, write, json!({"metadata": {"name": "m"}})).await;
        assert_eq!(result.message().is_empty(), is_exempt, "{kind}");
    }
}

/// Applies the patch of a response to an object. Returns None if the patch has no result.
fn apply_patch(patch: &[u8], object: Object, names: &Names) -> Option<Object> {
    mutation::apply_json_patch(&parse_patch(patch).ok()?, object, names, Limits::BODY).ok()
}

/// Reads a response in all versions and phases.
fn read_in_all_versions(bytes: &[u8], names: &Names) {
    for (version, is_mutating) in [("v1", true), ("v1", false), ("v1beta1", true)] {
        if let Ok(response) = read_response(bytes, "u", names, version, is_mutating) {
            let _ = denial("w", response.status.as_ref()).to_value().to_string();
            if let Some(patch) = response.patch {
                let _ = apply_patch(&patch, Object::default(), names);
            }
        }
    }
}

/// Fuzz target for responses of admission webhooks: nothing panics. [`fuzzing::run`] describes the environment
/// variables.
#[test]
fn fuzz_admission_responses() {
    let names = [Preset::Kubernetes, Preset::Svc].map(|preset| Names::new(preset, "example.test").unwrap());
    fuzzing::run("fuzz_admission_responses", &EXAMPLES, |bytes| {
        names.iter().for_each(|names| read_in_all_versions(bytes, names));
    });
}
