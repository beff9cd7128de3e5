//! Explanations of denials: the audit annotation, the warnings of callers who may create access reviews, and the
//! correlation id of a 401.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::clock::SystemClock;
use authproto::auth::AuthorizeRequest;
use serde_json::Value;

use super::{Server, audit_log};
use audit::AuditLog;
use authclient::Auth;

const MISSES: [&str; 2] = ["RoleBinding \"b/a\" allows `get` on `pods`, not `list`", "and 2 more"];

/// Denies `/version` to all; only `reviewer` may create SubjectAccessReviews.
fn decide(request: &AuthorizeRequest) -> bool {
    let user = request.user.as_ref().map_or("", |user| user.name.as_str());
    let Some(attributes) = &request.attributes else { return false };
    attributes.path != "/version" && (attributes.resource != "subjectaccessreviews" || user == "reviewer")
}

/// A server, and the number of explanations that apid requested.
async fn server(audit: AuditLog, misses: &[&str]) -> (Server, Arc<AtomicUsize>) {
    server_with(audit, misses, decide).await
}

async fn server_with(
    audit: AuditLog,
    misses: &[&str],
    decide: impl Fn(&AuthorizeRequest) -> bool + Send + 'static,
) -> (Server, Arc<AtomicUsize>) {
    let mut count = None;
    let start = |clock: Arc<SystemClock>| {
        let (auth, explanations) = Auth::with_explanations(clock, decide, misses);
        count = Some(explanations);
        auth
    };
    let server = Server::start_with_audit(start, audit).await;
    (server, count.unwrap())
}

fn token(user: &str) -> [(&'static str, String); 1] {
    [("authorization", format!("Bearer {user}"))]
}

async fn version(server: &Server, user: &str) -> super::Reply {
    let headers = token(user);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    server.send("GET", "/version", &headers, "").await
}

#[tokio::test]
async fn denial_names_nearest_misses_only_to_callers_with_review_permission() {
    let (server, explanations) = server(AuditLog::off(), &MISSES).await;
    let ordinary = version(&server, "ordinary").await;
    assert_eq!((ordinary.code, ordinary.headers.get("warning")), (403, None));
    assert_eq!(explanations.load(Ordering::SeqCst), 0, "nobody reads an explanation");
    let reviewer = version(&server, "reviewer").await;
    let warnings: Vec<_> = reviewer.headers.get_all("warning").iter().map(|w| w.to_str().unwrap()).collect();
    assert_eq!(reviewer.code, 403);
    assert_eq!(
        warnings,
        [r#"299 - "RoleBinding \"b/a\" allows `get` on `pods`, not `list`""#, r#"299 - "and 2 more""#]
    );
    let message =
        |reply: &super::Reply| reply.json()["message"].as_str().unwrap().replace("reviewer", "ordinary");
    assert_eq!(message(&reviewer), message(&ordinary), "the body of the 403 is the same");
}

#[tokio::test]
async fn denial_without_review_permission_is_independent_of_explanation() {
    let mut replies = Vec::new();
    for misses in [&MISSES[..], &[], &["another rule"]] {
        let (server, _) = server(AuditLog::off(), misses).await;
        let mut reply = version(&server, "ordinary").await;
        for header in ["audit-id", "date"] {
            reply.headers.remove(header);
        }
        replies.push((reply.code, reply.headers, reply.body));
    }
    assert!(replies.windows(2).all(|pair| pair[0] == pair[1]), "{replies:?}");
}

#[tokio::test]
async fn audit_reason_of_denial_names_nearest_misses_cached_and_uncached() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let (server, explanations) = server(audit_log(&file), &MISSES).await;
    for _ in 0..2 {
        assert_eq!(version(&server, "ordinary").await.headers.get("warning"), None);
    }
    assert_eq!(explanations.load(Ordering::SeqCst), 2);
    server.http_state.audit.close();
    let text = std::fs::read_to_string(file).unwrap();
    let key = format!("{}/reason", server.api_state.names.group("authorization"));
    let reasons: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["annotations"][&key].clone())
        .collect();
    let expected = "nearest: RoleBinding \"b/a\" allows `get` on `pods`, not `list`; and 2 more";
    assert_eq!(reasons, [expected, expected]);
}

#[tokio::test]
async fn explanation_permission_is_one_cached_decision_of_denied_requests() {
    let questions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&questions);
    let count_and_decide = move |request: &AuthorizeRequest| {
        let is_permission =
            request.attributes.as_ref().is_some_and(|asked| asked.resource == "subjectaccessreviews");
        counter.fetch_add(usize::from(is_permission), Ordering::SeqCst);
        decide(request)
    };
    let (server, _) = server_with(AuditLog::off(), &MISSES, count_and_decide).await;
    assert_eq!(server.send("GET", "/api", &[("authorization", "Bearer ordinary")], "").await.code, 200);
    assert_eq!(questions.load(Ordering::SeqCst), 0, "an allowed request has no explanation");
    for _ in 0..5 {
        assert_eq!(version(&server, "ordinary").await.code, 403);
    }
    assert_eq!(questions.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn cached_denial_has_no_explanation_while_authd_is_unreachable() {
    let (server, explanations) = server(AuditLog::off(), &MISSES).await;
    let explained = version(&server, "reviewer").await;
    assert!(explained.headers.contains_key("warning"));
    server.api_state.auth.disconnect_authd();
    let cached = version(&server, "reviewer").await;
    assert_eq!((cached.code, cached.headers.get("warning")), (403, None));
    assert_eq!(cached.body, explained.body);
    assert_eq!(explanations.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn unauthorized_status_has_audit_id_of_client_only() {
    let (server, _) = server(AuditLog::off(), &MISSES).await;
    let credentials = ("authorization", "Bearer bad");
    let reply = server.send("GET", "/version", &[credentials], "").await;
    assert_eq!((reply.code, reply.json().get("details")), (401, None), "the body of kube-apiserver");
    assert!(!reply.headers["audit-id"].is_empty());
    let reply_to_id = server.send("GET", "/version", &[credentials, ("audit-id", "build-7")], "").await;
    assert_eq!(
        (reply_to_id.code, &reply_to_id.json()["details"]),
        (401, &serde_json::json!({"uid": "build-7"}))
    );
    assert_eq!(reply_to_id.headers["audit-id"], "build-7");
    let invalid = server.send("GET", "/version", &[credentials, ("audit-id", "a b")], "").await;
    assert_eq!((invalid.code, invalid.json().get("details")), (401, None));
    let denied =
        server.send("GET", "/version", &[("authorization", "Bearer ordinary"), ("audit-id", "a")], "");
    assert_eq!(denied.await.json()["details"].get("uid"), None, "the uid of a 403 names an object");
}
