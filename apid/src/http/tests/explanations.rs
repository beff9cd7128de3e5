//! Explanations of denials: the audit annotation, and the warnings of callers who may create access reviews.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::clock::SystemClock;
use authproto::auth::AuthorizeRequest;
use serde_json::Value;

use super::{Server, audit_log};
use crate::audit::AuditLog;
use crate::auth::Auth;

const MISSES: [&str; 2] = ["RoleBinding \"b/a\" allows `get` on `pods`, not `list`", "and 2 more"];

/// Denies `/version` to all; only `reviewer` may create SubjectAccessReviews.
fn decide(request: &AuthorizeRequest) -> bool {
    let user = request.user.as_ref().map_or("", |user| user.name.as_str());
    let Some(attributes) = &request.attributes else { return false };
    attributes.path != "/version" && (attributes.resource != "subjectaccessreviews" || user == "reviewer")
}

/// A server, and the number of explanations that apid requested.
async fn server(audit: AuditLog, misses: &[&str]) -> (Server, Arc<AtomicUsize>) {
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
async fn denial_of_ordinary_caller_is_independent_of_explanation() {
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
    server.server_state.audit.close();
    let text = std::fs::read_to_string(file).unwrap();
    let key = format!("{}/reason", server.server_state.names.group("authorization"));
    let reasons: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["annotations"][&key].clone())
        .collect();
    let expected = "nearest: RoleBinding \"b/a\" allows `get` on `pods`, not `list`; and 2 more";
    assert_eq!(reasons, [expected, expected]);
}
