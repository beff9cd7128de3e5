//! Authentication and authorization combined in one request.

use authproto::auth::mirror_object::Kind;
use authproto::auth::{
    self, Verdict, authenticate_response::Outcome, decide_request::Query, decide_response::Answer,
};

use super::harness::{Authd, Decide, binding, pods, role};

/// Builds an authentication with an authorization request for pods at a minimum revision.
fn authenticate_and_authorize(token: &str, verb: &str, revision: u64) -> Query {
    let auth::AuthorizeRequest { attributes, at_least, .. } = pods("", verb, "a", revision);
    Query::Authenticate(auth::AuthenticateRequest {
        bearer_token: token.to_owned(),
        next: Some(auth::AuthorizeNext { attributes, at_least }),
        ..auth::AuthenticateRequest::default()
    })
}

/// Returns the identified user, if any, and the verdict in the same response, if any.
fn user_and_verdict(answer: Answer) -> (Option<String>, Option<Verdict>) {
    let Answer::Authenticate(answer) = answer else { panic!("{answer:?}") };
    let verdict = answer.next.as_ref().map(auth::AuthorizeResponse::verdict);
    match answer.outcome {
        Some(Outcome::Identity(identity)) => (Some(identity.user.unwrap().name), verdict),
        _ => (None, verdict),
    }
}

#[tokio::test]
async fn available_decision_is_returned_with_identity_unless_stale() {
    let authd = Authd::start(&["--authorization-mode=Node,RBAC"]).await;
    let mirror = authd.mirror().await;
    let mut decide: Decide = authd.decide().await;
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(
        user_and_verdict(decide.ask(authenticate_and_authorize("alice-token", "get", 0)).await),
        (some("alice"), None),
        "no mirror yet"
    );
    mirror.put(2, "", "reader", Kind::ClusterRole(role(&["get"], &["pods"]))).await;
    mirror.put(3, "a", "grant", Kind::RoleBinding(binding("ClusterRole", "reader", "alice"))).await;
    mirror.synced(3).await;
    // The mirror is complete from now on.
    decide.authorize(pods("alice", "get", "a", 3)).await;
    for (token, verb, revision, expected) in [
        ("alice-token", "get", 3, (some("alice"), Some(Verdict::Allow))),
        ("alice-token", "delete", 3, (some("alice"), Some(Verdict::NoOpinion))),
        ("alice-token", "get", 4, (some("alice"), None)),
        ("", "get", 3, (some("system:anonymous"), Some(Verdict::NoOpinion))),
        ("wrong-token", "get", 3, (None, None)),
    ] {
        assert_eq!(
            user_and_verdict(decide.ask(authenticate_and_authorize(token, verb, revision)).await),
            expected,
            "{token} {verb} {revision}"
        );
    }
}

#[tokio::test]
async fn concurrent_requests_get_their_own_responses() {
    let authd = Authd::start(&["--authorization-mode=AlwaysAllow", "--anonymous-auth=false"]).await;
    let mut decide = authd.decide().await;
    let mut open = std::collections::HashMap::new();
    for number in 0..1000 {
        let (ask, expected) = match number % 3 {
            0 => (authenticate_and_authorize("alice-token", "get", 0), "alice"),
            1 => (authenticate_and_authorize("wrong-token", "get", 0), ""),
            _ => (Query::Authorize(pods("bob", "get", "a", 0)), "allowed"),
        };
        open.insert(decide.send(Some(ask)).await, expected);
    }
    while !open.is_empty() {
        let answer = decide.next().await;
        let expected = open.remove(&answer.id).expect("one response per request");
        let got = match answer.answer.unwrap() {
            Answer::Authorize(answer) => {
                assert_eq!(answer.verdict(), Verdict::Allow);
                "allowed".to_owned()
            }
            answer => match user_and_verdict(answer) {
                (Some(user), Some(Verdict::Allow)) => user,
                (None, None) => String::new(),
                other => panic!("{other:?}"),
            },
        };
        assert_eq!(got, expected);
    }
}
