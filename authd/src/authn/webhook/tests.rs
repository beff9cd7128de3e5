//! The token webhook against a mock service in this process.

use super::*;
use crate::webhook::mock::{Mock, ReceivedRequest};
use serde_json::json;

const V1: &str = "authentication.k8s.io/v1";
const V1BETA1: &str = "authentication.k8s.io/v1beta1";
const MINUTE: Duration = Duration::from_secs(60);

async fn method(mock: &Mock, version: Version, ttl: Duration, audiences: &[&str]) -> Arc<TokenWebhook> {
    let settings = TokenWebhookSettings {
        client_config: PathBuf::new(),
        version,
        ttl,
        api_audiences: audiences.iter().map(|a| (*a).to_owned()).collect(),
    };
    TokenWebhook::from_webhook(mock.webhook(MINUTE), settings, &mock.context()).unwrap()
}

fn review(version: &str, status: serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": version, "kind": "TokenReview", "status": status})
}

fn jane() -> serde_json::Value {
    json!({"authenticated": true, "user": {"username": "jane"}})
}

/// Returns the username and the audiences as text, or the reason of the rejection.
fn user_name_or_check(outcome: Outcome) -> Result<String, String> {
    match outcome {
        Outcome::Accepted(accepted) => Ok(format!("{} {:?}", accepted.user.name, accepted.audiences)),
        Outcome::RejectedWithTtl(check, _) => Err(check),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn token_webhook_sends_configured_review_version() {
    let mock = Mock::start().await;
    for (version, api_version) in [(Version::V1, V1), (Version::V1Beta1, V1BETA1)] {
        mock.set_response(200, review(api_version, jane()));
        let method = method(&mock, version, MINUTE, &["a", "b"]).await;
        assert_eq!(user_name_or_check(method.identify("opaque", &[]).await).unwrap(), "jane []");
        let [ReceivedRequest { method, path, body, certificate }] = &mock.take_requests()[..] else {
            panic!("one request")
        };
        assert_eq!((method.as_str(), path.as_str(), *certificate), ("POST", "/hook", true));
        let expected = json!({
            "apiVersion": api_version, "kind": "TokenReview", "metadata": {},
            "spec": {"token": "opaque", "audiences": ["a", "b"]},
        });
        assert_eq!(*body, expected);
    }
    let method = method(&mock, Version::V1Beta1, MINUTE, &[]).await;
    assert!(user_name_or_check(method.identify("opaque", &[]).await).is_ok());
    assert_eq!(mock.take_requests()[0].body["spec"], json!({"token": "opaque"}), "no audiences, no field");
}

#[tokio::test]
async fn token_review_status_gives_user_or_rejection() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, Duration::ZERO, &["api"]).await;
    let user =
        json!({"username": "jane", "uid": "u1", "groups": ["a", "b"], "extra": {"K": ["v"], "e": null}});
    let spec = json!({"token": "other", "audiences": ["x"]});
    let full = json!({"apiVersion": V1, "kind": "TokenReview", "spec": spec,
        "status": {"authenticated": true, "user": user, "audiences": ["api"], "error": "ignored"}});
    mock.set_response(200, full);
    let Outcome::Accepted(accepted) = method.identify("t", &[]).await else { panic!() };
    let expected = UserInfo {
        name: "jane".into(),
        uid: "u1".into(),
        groups: vec!["a".into(), "b".into()],
        extra: [("K".to_owned(), vec!["v".to_owned()]), ("e".to_owned(), vec![])].into(),
    };
    assert_eq!((accepted.user, accepted.ttl), (expected, Some(Duration::ZERO)));
    let other = "the webhook accepted the token for other audiences";
    for (status, body, expected) in [
        (200, review(V1, jane()).to_string(), Ok("jane []")),
        (201, review(V1, jane()).to_string(), Ok("jane []")),
        (200, json!({"status": jane()}).to_string(), Ok("jane []")),
        (
            200,
            review(V1, json!({"authenticated": false})).to_string(),
            Err("the webhook did not accept the token"),
        ),
        (200, review(V1, json!({})).to_string(), Err("the webhook did not accept the token")),
        (
            200,
            review(V1, json!({"user": {"username": "jane"}})).to_string(),
            Err("the webhook did not accept the token"),
        ),
        (
            200,
            review(V1, json!({"authenticated": false, "error": "t is\nold"})).to_string(),
            Err("the webhook did not accept the token: [token] is old"),
        ),
        (
            200,
            review(V1, json!({"authenticated": true})).to_string(),
            Err("the webhook accepted the token and named no user"),
        ),
        (
            200,
            review(V1, json!({"authenticated": true, "user": {"username": ""}})).to_string(),
            Err("the webhook accepted the token and named no user"),
        ),
        (
            200,
            review(V1, json!({"authenticated": true, "user": {"username": "j"}, "audiences": ["other"]}))
                .to_string(),
            Err(other),
        ),
        (200, review(V1BETA1, jane()).to_string(), Err("response has the apiVersion")),
        (
            200,
            json!({"apiVersion": V1, "kind": "Pod", "status": jane()}).to_string(),
            Err("response has the kind"),
        ),
        (
            200,
            review(V1, json!({"authenticated": "yes"})).to_string(),
            Err("field `authenticated` has the wrong type"),
        ),
        (
            200,
            review(V1, json!({"authenticated": true, "user": {"username": 5}})).to_string(),
            Err("field `username` has the wrong type"),
        ),
        (
            200,
            review(V1, json!({"authenticated": true, "user": {"username": "j", "groups": "a"}})).to_string(),
            Err("field `groups` has the wrong type"),
        ),
        (200, "hunter2".to_owned(), Err("the response is not JSON")),
        (200, String::new(), Err("the response is not JSON")),
        (200, "[".repeat(100_000), Err("the response is not JSON")),
        (200, format!("\"{}\"", "x".repeat(1 << 20)), Err("the response is larger than 1048576 bytes")),
        (403, review(V1, jane()).to_string(), Err("HTTP status 403")),
        (302, review(V1, jane()).to_string(), Err("HTTP status 302")),
    ] {
        mock.set_response(status, &body);
        let got = user_name_or_check(method.identify("t", &[]).await);
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(got), Err(expected)) => {
                assert!(got.contains(expected) && !got.contains("hunter2"), "{got}: {expected}");
            }
            (got, expected) => panic!("{body:.200}: {got:?}, not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn token_webhook_audiences_are_intersected() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, Duration::ZERO, &["api", "own"]).await;
    let list = |words: &str| -> Vec<String> { words.split_whitespace().map(str::to_owned).collect() };
    // A row is the requested audiences, the audiences in the response, and those of the identity (None:
    // rejected).
    for (requested, response_audiences, expected) in [
        ("", "", Some("")),
        ("", "api", Some("")),
        ("", "api other", Some("")),
        ("", "other", None),
        ("api x", "", Some("api")),
        ("x", "", None),
        ("x y", "y z", Some("y")),
        ("x", "api", None),
    ] {
        let mut status = jane();
        status["audiences"] = list(response_audiences).into();
        mock.set_response(200, review(V1, status));
        mock.take_requests();
        let outcome = method.identify("t", &list(requested)).await;
        let got = match outcome {
            Outcome::Accepted(accepted) => Some(accepted.audiences),
            _ => None,
        };
        assert_eq!(got, expected.map(list), "{requested} of {response_audiences}");
        let sent = if requested.is_empty() { "api own" } else { requested };
        assert_eq!(mock.take_requests()[0].body["spec"]["audiences"], json!(list(sent)));
    }
}

#[tokio::test]
async fn response_without_audiences_is_valid_for_the_audiences_of_the_api() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, Duration::ZERO, &["api"]).await;
    for status in [
        jane(),
        json!({"authenticated": true, "user": {"username": "jane"}, "audiences": null}),
        json!({"authenticated": true, "user": {"username": "jane"}, "audiences": []}),
    ] {
        mock.set_response(200, review(V1, status.clone()));
        for (requested, is_accepted) in [(&[][..], true), (&["api"][..], true), (&["other"][..], false)] {
            let requested: Vec<String> = requested.iter().map(|audience| (*audience).to_owned()).collect();
            let outcome = method.identify("t", &requested).await;
            assert_eq!(matches!(outcome, Outcome::Accepted(_)), is_accepted, "{status} {requested:?}");
        }
    }
}

#[tokio::test]
async fn token_webhook_caches_only_acceptances() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, 2 * MINUTE, &["api"]).await;
    mock.set_response(200, review(V1, jane()));
    let ask = |token: &'static str, audiences: Vec<String>| {
        let (method, mock) = (Arc::clone(&method), &mock);
        async move {
            let outcome = method.identify(token, &audiences).await;
            let ttl = match &outcome {
                Outcome::Accepted(accepted) => accepted.ttl,
                Outcome::RejectedWithTtl(_, ttl) => Some(*ttl),
                _ => None,
            };
            (matches!(outcome, Outcome::Accepted(_)), ttl.unwrap().as_secs(), mock.take_requests().len())
        }
    };
    assert_eq!(ask("t", vec![]).await, (true, 120, 1));
    mock.clock.advance(Duration::from_secs(119));
    assert_eq!(ask("t", vec![]).await, (true, 1, 0), "the remaining TTL");
    assert_eq!(ask("u", vec![]).await, (true, 120, 1), "a second token");
    assert_eq!(ask("t", vec!["api".into()]).await, (true, 1, 0), "an equivalent request is a cache hit");
    assert_eq!(
        ask("t", vec!["x".into(), "y".into()]).await,
        (false, 120, 1),
        "different audiences have their own cache entry"
    );
    assert_eq!(ask("t", vec!["xy".into()]).await, (false, 120, 1), "different audience lists do not collide");
    mock.clock.advance(Duration::from_secs(1));
    mock.set_response(200, review(V1, json!({"authenticated": false})));
    assert_eq!(ask("t", vec![]).await, (false, 120, 1), "the TTL has expired");
    assert_eq!(ask("t", vec![]).await.2, 1, "a rejection is not cached");
    mock.set_response(500, "");
    assert_eq!(ask("t", vec![]).await, (false, 0, 5), "a failure is retried and not cached");
    assert_eq!(ask("t", vec![]).await, (false, 0, 5));
    mock.set_response(429, "");
    assert_eq!(ask("t", vec![]).await, (false, 0, 5));
    mock.set_response(400, "");
    assert_eq!(ask("t", vec![]).await, (false, 0, 1), "not retried");
    mock.set_response(200, review(V1, jane()));
    assert_eq!(ask("t", vec![]).await, (true, 120, 1));
}

#[tokio::test]
async fn concurrent_token_reviews_share_one_call_and_time_out() {
    let mock = Mock::start().await;
    mock.set_response(200, review(V1, jane()));
    let many = method(&mock, Version::V1, MINUTE, &[]).await;
    let all = futures_util::future::join_all((0..40).map(|_| many.identify("t", &[]))).await;
    assert!(all.into_iter().all(|outcome| user_name_or_check(outcome).is_ok()));
    assert_eq!(mock.take_requests().len(), 1);
    mock.stop_responding();
    let settings = TokenWebhookSettings { ttl: MINUTE, ..many.settings.clone() };
    let webhook = mock.webhook(Duration::from_millis(30));
    let method = TokenWebhook::from_webhook(webhook, settings, &mock.context()).unwrap();
    let check = user_name_or_check(method.identify("hunter2", &[]).await).unwrap_err();
    assert!(check.contains("no response within 30ms") && !check.contains("hunter2"), "{check}");
    assert!(!format!("{method:?}").contains("hunter2"));
}

#[tokio::test]
async fn request_without_token_skips_token_webhook() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, MINUTE, &[]).await;
    let mirror = crate::mirror::Mirror::empty();
    let context = AuthnContext { now: jiff::Timestamp::UNIX_EPOCH, at_least: mirror.at_least(0) };
    let outcome = method.authenticate(Credentials::default(), context).await.unwrap();
    assert!(matches!(outcome, Outcome::NotApplicable) && mock.take_requests().is_empty());
}

#[tokio::test]
async fn token_webhook_waiters_are_limited() {
    let mock = Mock::start().await;
    let method = method(&mock, Version::V1, MINUTE, &[]).await;
    mock.set_response(200, review(V1, jane()));
    assert!(user_name_or_check(method.identify("known", &[]).await).is_ok());
    mock.stop_responding();
    let waiting: Vec<_> = (0..MAX_WAITING)
        .map(|i| {
            let method = Arc::clone(&method);
            tokio::spawn(async move { method.identify(&format!("t{i}"), &[]).await })
        })
        .collect();
    while method.waiter_permits.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let Outcome::Undecided(reason) = method.identify("more", &[]).await else {
        panic!("expected an undecided outcome")
    };
    assert_eq!(reason, "1024 requests already wait for the webhook");
    assert!(user_name_or_check(method.identify("known", &[]).await).is_ok(), "cached responses stay usable");
    waiting.into_iter().for_each(|login| login.abort());
    while method.waiter_permits.available_permits() < MAX_WAITING {
        tokio::task::yield_now().await;
    }
}
