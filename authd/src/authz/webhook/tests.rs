//! The webhook authorizer against a mock service in this process.

use super::*;
use crate::webhook::Version;
use crate::webhook::mock::Mock;
use apimachinery::attributes::{Operator, Requirement};
use serde_json::json;

const V1: &str = "authorization.k8s.io/v1";
const MINUTE: Duration = Duration::from_secs(60);

fn settings(version: Version, on_failure: OnFailure) -> WebhookSettings {
    WebhookSettings {
        client_config: std::path::PathBuf::new(),
        version,
        authorized_ttl: 5 * MINUTE,
        unauthorized_ttl: MINUTE / 2,
        timeout: MINUTE,
        on_failure,
        conditions: Arc::default(),
    }
}

fn mode(mock: &Mock, settings: &WebhookSettings) -> RemoteAuthorizer {
    from_webhook(mock.webhook(settings.timeout), "hook", settings, &Settings::new(mock.context()))
}

fn review(status: serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": V1, "kind": "SubjectAccessReview", "status": status})
}

fn jane() -> UserInfo {
    UserInfo { name: "jane".into(), groups: vec!["a".into(), "b".into()], ..UserInfo::default() }
}

fn pods() -> Attributes {
    Attributes {
        verb: "get".into(),
        resource_request: true,
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "n".into(),
        name: "p".into(),
        ..Attributes::default()
    }
}

async fn ask(mode: &RemoteAuthorizer, user: &UserInfo, attributes: &Attributes) -> AuthzOutcome {
    let mirror = crate::mirror::Mirror::empty();
    mode.authorize(AuthzRequest { user, attributes, at_least: mirror.at_least(0) }).await.unwrap()
}

#[tokio::test]
async fn authorization_webhook_sends_configured_review_version() {
    let mock = Mock::start().await;
    let mut request_attributes = pods();
    request_attributes.field_selector = ParsedSelector::Requirements(vec![Requirement {
        key: "spec.nodeName".into(),
        operator: Operator::In,
        values: vec!["n1".into()],
    }]);
    for (version, groups) in [(Version::V1, "groups"), (Version::V1Beta1, "group")] {
        let api_version = format!("authorization.k8s.io/{}", version.as_str());
        mock.set_response(
            200,
            json!({"apiVersion": api_version, "kind": "SubjectAccessReview", "status": {"allowed": true}}),
        );
        let mode = mode(&mock, &settings(version, OnFailure::NoOpinion));
        assert!(ask(&mode, &jane(), &request_attributes).await.decision.allowed());
        let request = &mock.take_requests()[0];
        assert_eq!(
            (request.method.as_str(), request.path.as_str(), request.certificate),
            ("POST", "/hook", true)
        );
        let requirement = json!({"key": "spec.nodeName", "operator": "In", "values": ["n1"]});
        let expected = json!({
            "apiVersion": api_version, "kind": "SubjectAccessReview", "metadata": {},
            "spec": {"user": "jane", groups: ["a", "b"], "resourceAttributes": {
                "namespace": "n", "verb": "get", "version": "v1", "resource": "pods", "name": "p",
                "fieldSelector": {"requirements": [requirement]}}},
        });
        assert_eq!(request.body, expected);
    }
}

#[tokio::test]
async fn webhook_status_decides_and_failure_follows_failure_policy() {
    let mock = Mock::start().await;
    let contradiction = json!({"allowed": true, "denied": true, "reason": "r"});
    let foreign = json!({"apiVersion": "authorization.k8s.io/v1beta1", "kind": "SubjectAccessReview", "status": {"allowed": true}});
    // A row is: response status and body; verdict (None means the verdict of the failure policy); number of calls.
    for (status, body, expected, calls) in [
        (200, review(json!({"allowed": true, "reason": "r"})).to_string(), Some(Verdict::Allow), 1),
        (201, review(json!({"allowed": true, "reason": "r"})).to_string(), Some(Verdict::Allow), 1),
        (200, review(json!({"denied": true, "reason": "r"})).to_string(), Some(Verdict::Deny), 1),
        (200, review(json!({"allowed": false, "reason": "r"})).to_string(), Some(Verdict::NoOpinion), 1),
        (200, review(contradiction).to_string(), Some(Verdict::Deny), 1),
        (200, "garbage".to_owned(), None, 1),
        (200, foreign.to_string(), None, 1),
        (200, review(json!({"allowed": "true"})).to_string(), None, 1),
        (404, String::new(), None, 1),
        (500, String::new(), None, 5),
        (503, String::new(), None, 5),
        (429, String::new(), None, 5),
    ] {
        for on_failure in [OnFailure::NoOpinion, OnFailure::Deny] {
            mock.set_response(status, &body);
            let mode = mode(&mock, &settings(Version::V1, on_failure));
            let answer = ask(&mode, &jane(), &pods()).await;
            assert_eq!(answer.decision.verdict, expected.unwrap_or(on_failure.verdict()), "{status} {body}");
            assert_eq!(mock.take_requests().len(), calls, "{status} {body}");
            assert!(!answer.any_name && answer.depends_on == Default::default());
            match expected {
                Some(_) => assert_eq!(answer.decision.reason, "r"),
                None => {
                    assert!(answer.decision.evaluation_error.starts_with("webhook `hook`: "), "{answer:?}");
                    assert_eq!(answer.ttl, Some(Duration::ZERO), "a failure is not cached");
                    mock.take_requests();
                    ask(&mode, &jane(), &pods()).await;
                    assert_eq!(mock.take_requests().len(), calls, "a failure is retried");
                }
            }
        }
    }
    mock.stop_responding();
    let slow =
        WebhookSettings { timeout: Duration::from_millis(30), ..settings(Version::V1, OnFailure::Deny) };
    let answer = ask(&mode(&mock, &slow), &jane(), &pods()).await;
    assert_eq!(answer.decision.verdict, Verdict::Deny);
    assert!(answer.decision.evaluation_error.contains("no response within 30ms"), "{answer:?}");
}

#[tokio::test]
async fn webhook_decision_is_cached_for_its_ttl() {
    let mock = Mock::start().await;
    let remote = mode(&mock, &settings(Version::V1, OnFailure::NoOpinion));
    for (status, ttl) in
        [(json!({"allowed": true}), 300), (json!({"denied": true}), 30), (json!({"allowed": false}), 30)]
    {
        mock.set_response(200, review(status));
        for (elapsed, remaining, calls) in [(0, ttl, 1), (ttl - 1, 1, 0), (1, ttl, 1)] {
            mock.clock.advance(Duration::from_secs(elapsed));
            let answer = ask(&remote, &jane(), &pods()).await;
            assert_eq!((answer.ttl.unwrap().as_secs(), mock.take_requests().len()), (remaining, calls));
        }
        mock.clock.advance(Duration::from_secs(ttl));
    }
    let uncached =
        WebhookSettings { authorized_ttl: Duration::ZERO, ..settings(Version::V1, OnFailure::NoOpinion) };
    mock.set_response(200, review(json!({"allowed": true})));
    let remote = mode(&mock, &uncached);
    for _ in 0..2 {
        assert_eq!(ask(&remote, &jane(), &pods()).await.ttl, Some(Duration::ZERO));
        assert_eq!(mock.take_requests().len(), 1);
    }
}

/// Requests whose cache keys would be equal if values were joined, sorted or shortened.
#[tokio::test]
async fn similar_requests_do_not_share_cached_decision() {
    let mock = Mock::start().await;
    mock.set_response(200, review(json!({"allowed": true})));
    let mode = mode(&mock, &settings(Version::V1, OnFailure::NoOpinion));
    let user = |name: &str, groups: &[&str], extra: &[(&str, &[&str])]| UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        extra: extra
            .iter()
            .map(|(key, values)| ((*key).to_owned(), values.iter().map(|v| (*v).to_owned()).collect()))
            .collect(),
        ..UserInfo::default()
    };
    let users = [
        user("jane", &["a", "b"], &[]),
        user("jane", &["b", "a"], &[]),
        user("jane", &["a,b"], &[]),
        user("jane", &["a", "b", ""], &[]),
        user("jane,a", &["b"], &[]),
        user("jane", &["a"], &[("b", &[])]),
        user("jane", &["a", "b"], &[("k", &["v", "w"])]),
        user("jane", &["a", "b"], &[("k", &["v,w"])]),
        user("jane", &["a", "b"], &[("k", &["v"]), ("w", &[])]),
    ];
    for user in &users {
        ask(&mode, user, &pods()).await;
    }
    assert_eq!(mock.take_requests().len(), users.len());
    let change = |change: fn(&mut Attributes)| {
        let mut attributes = pods();
        change(&mut attributes);
        attributes
    };
    let requirement = |values: &[&str]| {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        ParsedSelector::Requirements(vec![Requirement { key: "k".into(), operator: Operator::In, values }])
    };
    let mut attributes = vec![
        change(|a| a.name = "p2".into()),
        change(|a| (a.namespace, a.name) = ("n/p".into(), String::new())),
        change(|a| (a.namespace, a.name) = ("n/".into(), "p".into())),
        change(|a| a.subresource = "log".into()),
        change(|a| a.resource = "pods/log".into()),
        change(|a| a.group = "v1".into()),
        change(|a| a.version = "v2".into()),
        change(|a| a.verb = "list".into()),
        change(|a| a.resource_request = false),
        change(|a| a.path = "/api".into()),
        change(|a| a.label_selector = ParsedSelector::Unparsable("x".into())),
    ];
    for (field, values) in
        [(true, &["a", "b"][..]), (true, &["a,b"]), (false, &["a", "b"]), (true, &["b", "a"])]
    {
        let mut changed = pods();
        *(if field { &mut changed.field_selector } else { &mut changed.label_selector }) =
            requirement(values);
        attributes.push(changed);
    }
    for changed in &attributes {
        ask(&mode, &users[0], changed).await;
    }
    assert_eq!(mock.take_requests().len(), attributes.len());
    for (user, request) in
        users.iter().map(|user| (user, pods())).chain(attributes.iter().map(|a| (&users[0], a.clone())))
    {
        ask(&mode, user, &request).await;
    }
    assert_eq!(mock.take_requests().len(), 0, "each request has its own cached decision");
}

#[test]
fn webhook_rules_are_incomplete() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mock = runtime.block_on(Mock::start());
    let mode = mode(&mock, &settings(Version::V1, OnFailure::Deny));
    let mirror = crate::mirror::Mirror::empty();
    let rules = mode.rules(&jane(), "n", mirror.at_least(0)).unwrap();
    assert!(rules.incomplete && rules.rules.is_empty());
    assert_eq!(rules.problems, ["webhook authorizer does not support user rule resolution"]);
}
