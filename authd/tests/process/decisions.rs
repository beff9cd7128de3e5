//! Decisions over gRPC: allow and deny, wait for a revision, never on stale policy.

use authproto::auth::mirror_object::Kind;
use authproto::auth::{self, Verdict, decide_request::Query, decide_response::Answer};

use super::harness::{Authd, Decide, Mirror, binding, pods, role, user};

async fn rbac() -> (Authd, Mirror, Decide) {
    let authd = Authd::start(&["--authorization-mode=Node,RBAC"]).await;
    let mirror = authd.mirror().await;
    let decide = authd.decide().await;
    (authd, mirror, decide)
}

#[tokio::test]
async fn rbac_rules_allow_and_missing_rules_deny() {
    let (_authd, mirror, mut decide) = rbac().await;
    mirror.put(2, "", "reader", Kind::ClusterRole(role(&["get"], &["pods"]))).await;
    mirror.put(3, "a", "grant", Kind::RoleBinding(binding("ClusterRole", "reader", "alice"))).await;
    mirror.put(4, "b", "grant", Kind::RoleBinding(binding("Role", "nosuch", "alice"))).await;
    mirror.put(5, "", "bob", Kind::ClusterRoleBinding(binding("ClusterRole", "reader", "bob"))).await;
    mirror.synced(5).await;

    let answer = decide.authorize(pods("alice", "get", "a", 5)).await;
    assert_eq!(answer.verdict(), Verdict::Allow);
    assert_eq!(
        answer.reason,
        r#"RBAC: allowed by RoleBinding "grant/a" of ClusterRole "reader" to User "alice""#
    );
    let depends = answer.depends_on.clone().unwrap();
    assert_eq!((depends.rbac_cluster, depends.rbac_namespace.as_slice()), (true, &["a".to_owned()][..]));
    assert_eq!((depends.identity, answer.covers(), answer.ttl_ms), (false, auth::Covers::AnyName, 0));

    let answer = decide.authorize(pods("bob", "get", "a", 5)).await;
    assert_eq!(answer.verdict(), Verdict::Allow);
    let depends = answer.depends_on.unwrap();
    assert_eq!(
        (depends.rbac_cluster, depends.rbac_namespace.len()),
        (true, 0),
        "a cluster-wide grant depends on no namespace"
    );

    let answer = decide.authorize(pods("alice", "delete", "a", 5)).await;
    assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::NoOpinion, ""));
    let answer = decide.authorize(pods("alice", "get", "b", 5)).await;
    let reason = r#"RBAC: role.rbac.authorization.k8s.io "nosuch" not found"#;
    assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::NoOpinion, reason));

    let auth::AuthorizeRequest { user, attributes, at_least } = pods("alice", "delete", "a", 5);
    match decide.ask(Query::Explain(auth::ExplainRequest { user, attributes, at_least })).await {
        Answer::Explain(explanation) => {
            let [line] = explanation.nearest_misses.as_slice() else { panic!("{explanation:?}") };
            assert!(line.ends_with("allows `get` on `pods`, not `delete`"), "{line}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn request_waits_for_its_revision_without_blocking_others() {
    let (_authd, mirror, mut decide) = rbac().await;
    mirror.put(2, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
    mirror.synced(9).await;
    let waiting_id = decide.send(Some(Query::Authorize(pods("alice", "get", "a", 10)))).await;
    let immediate_id = decide.send(Some(Query::Authorize(pods("alice", "get", "a", 9)))).await;
    let first = decide.next().await;
    assert_eq!(first.id, immediate_id, "the second request needs no wait");
    mirror.put(10, "a", "grant", Kind::RoleBinding(binding("Role", "r", "alice"))).await;
    let second = decide.next().await;
    assert_eq!(second.id, waiting_id);
    for (answer, expected) in [(first, Verdict::NoOpinion), (second, Verdict::Allow)] {
        match answer.answer.unwrap() {
            Answer::Authorize(answer) => assert_eq!(answer.verdict(), expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn stale_policy_returns_503() {
    let (_authd, mirror, mut decide) = rbac().await;
    mirror.put(2, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
    mirror.put(3, "a", "grant", Kind::RoleBinding(binding("Role", "r", "alice"))).await;
    mirror.synced(3).await;
    assert_eq!(decide.authorize(pods("alice", "get", "a", 3)).await.verdict(), Verdict::Allow);
    // apid acknowledged a revocation at revision 4, and the message to the mirror is lost.
    let assert_unavailable = |answer: Answer| match answer {
        Answer::Failure(failure) => {
            assert_eq!((failure.code, failure.reason.as_str()), (503, "ServiceUnavailable"));
            assert!(!failure.message.contains('4') && failure.detail.contains('4'), "{failure:?}");
        }
        other => panic!("{other:?}"),
    };
    assert_unavailable(decide.ask(Query::Authorize(pods("alice", "get", "a", 4))).await);
    // The message of the revocation arrives and takes effect.
    mirror.delete(4, "a", "grant", Kind::RoleBinding(auth::MirrorBinding::default())).await;
    assert_eq!(decide.authorize(pods("alice", "get", "a", 4)).await.verdict(), Verdict::NoOpinion);
}

#[tokio::test]
async fn without_mirror_feed_only_system_masters_are_decided() {
    let (authd, mirror, mut decide) = rbac().await;
    mirror.synced(3).await;
    mirror.progress(4).await;
    assert_eq!(decide.authorize(pods("alice", "get", "a", 4)).await.verdict(), Verdict::NoOpinion);
    drop(mirror);
    let master =
        auth::AuthorizeRequest { user: Some(user("root", &["system:masters"])), ..pods("", "get", "a", 9) };
    assert_eq!(decide.authorize(master).await.verdict(), Verdict::Allow);
    // The request waits for the next mirror stream.
    let id = decide.send(Some(Query::Authorize(pods("alice", "get", "a", 9)))).await;
    let next = authd.mirror().await;
    next.put(1, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
    next.put(2, "a", "grant", Kind::RoleBinding(binding("Role", "r", "alice"))).await;
    next.synced(9).await;
    let answer = decide.next().await;
    assert_eq!(answer.id, id);
    match answer.answer.unwrap() {
        Answer::Authorize(answer) => assert_eq!(answer.verdict(), Verdict::Allow),
        other => panic!("{other:?}"),
    }
    // The mirror also follows a restored store, whose revisions are lower.
    let restored = authd.mirror().await;
    restored.synced(2).await;
    drop(next);
    let mut is_denied = false;
    while !is_denied {
        is_denied = decide.authorize(pods("alice", "get", "a", 2)).await.verdict() == Verdict::NoOpinion;
    }
}

#[tokio::test]
async fn malformed_request_fails_and_stream_continues() {
    let (_authd, mirror, mut decide) = rbac().await;
    mirror.synced(1).await;
    for ask in [
        None,
        Some(Query::Authorize(auth::AuthorizeRequest::default())),
        Some(Query::Authorize(auth::AuthorizeRequest { user: None, ..pods("alice", "get", "a", 1) })),
        Some(Query::Authorize(auth::AuthorizeRequest { attributes: None, ..pods("alice", "get", "a", 1) })),
    ] {
        decide.send(ask).await;
        assert!(matches!(decide.next().await.answer, Some(Answer::Failure(_))));
    }
    assert_eq!(decide.authorize(pods("alice", "get", "a", 1)).await.verdict(), Verdict::NoOpinion);
}

#[tokio::test]
async fn always_allow_and_always_deny_need_no_mirror() {
    for (mode, expected) in [("AlwaysAllow", Verdict::Allow), ("AlwaysDeny", Verdict::NoOpinion)] {
        let authd = Authd::start(&[&format!("--authorization-mode={mode}")]).await;
        let mut decide = authd.decide().await;
        assert_eq!(decide.authorize(pods("alice", "get", "a", 99)).await.verdict(), expected, "{mode}");
    }
}
