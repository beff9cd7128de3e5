//! Tests of the decision cache: no entry serves on policy older than the last acknowledged write.

use authproto::auth::{AuthorizeResponse, Dependencies};
use parking_lot::Mutex;

use super::*;
use crate::transport::scripted::{ScriptedAuthd, verdict};

/// A decision that depends on the cluster-wide policy and on the policy of namespace `a`.
fn rbac_decision(allowed: bool) -> AuthorizeResponse {
    let depends_on =
        Dependencies { rbac_cluster: true, rbac_namespace: vec!["a".into()], ..Dependencies::default() };
    AuthorizeResponse { depends_on: Some(depends_on), ..verdict(allowed) }
}

#[tokio::test]
async fn cached_decision_ends_with_write_to_its_dependencies() {
    for (key, expected_requests) in [
        ("clusterroles/r", 1),
        ("clusterrolebindings/b", 1),
        ("roles/a/r", 1),
        ("rolebindings/a/b", 1),
        ("rolebindings/elsewhere/b", 0),
        ("serviceaccounts/a/s", 0),
        ("configmaps/a/c", 0),
    ] {
        for allowed in [true, false] {
            let script = ScriptedAuthd::new(move |_| Ok(rbac_decision(allowed)));
            let vector = vector();
            let auth = Auth::scripted(script.clone(), vector.clone(), clock());
            for _ in 0..3 {
                assert_eq!(auth.authorize(&user("u"), pods("a"), "").await.is_ok(), allowed);
            }
            assert_eq!(script.take_request_count(), 1, "authd must get one request");
            write(&vector, key, 10);
            assert_eq!(auth.authorize(&user("u"), pods("a"), "").await.is_ok(), allowed);
            assert_eq!(script.take_request_count(), expected_requests, "{key}, allowed: {allowed}");
        }
    }
}

#[tokio::test]
async fn decision_overtaken_by_policy_write_is_not_cached() {
    // The write is acknowledged after authd decides and before the response is cached.
    let vector = vector();
    let vector_for_script = vector.clone();
    let mut revision = 10;
    let script = ScriptedAuthd::new(move |_| {
        revision += 1;
        write(&vector_for_script, "rolebindings/a/b", revision);
        Ok(rbac_decision(true))
    });
    let auth = Auth::scripted(script.clone(), vector, clock());
    for _ in 0..3 {
        auth.authorize(&user("u"), pods("a"), "").await.unwrap();
        assert_eq!(script.take_request_count(), 1, "every request must go to authd");
    }
}

#[tokio::test]
async fn authorize_request_carries_current_policy_vector() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests_for_script = seen.clone();
    let script = ScriptedAuthd::new(move |request| {
        requests_for_script.lock().push(request.at_least.clone().unwrap());
        Ok(rbac_decision(false))
    });
    let vector = vector();
    vector.start_at(Revision(7));
    let auth = Auth::scripted(script, vector.clone(), clock());
    auth.authorize(&user("u"), pods("a"), "").await.unwrap_err();
    write(&vector, "rolebindings/a/b", 8);
    auth.authorize(&user("u"), pods("a"), "").await.unwrap_err();
    let seen = seen.lock();
    assert_eq!(
        (seen[0].rbac_cluster, seen[0].rbac_namespace["a"]),
        (7, 7),
        "a new process must demand the revision of its store"
    );
    assert_eq!((seen[1].rbac_cluster, seen[1].rbac_namespace["a"]), (7, 8));
}

#[tokio::test]
async fn cached_decision_expires_after_ttl() {
    let script = ScriptedAuthd::new(|_| Ok(AuthorizeResponse { ttl_ms: 5001, ..verdict(true) }));
    let clock = clock();
    let auth = Auth::scripted(script.clone(), vector(), clock.clone());
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    clock.advance(Duration::from_millis(4999));
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    assert_eq!(script.take_request_count(), 1);
    clock.advance(Duration::from_millis(1));
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    assert_eq!(script.take_request_count(), 1);
}

#[tokio::test]
async fn decision_ttl_counts_from_request() {
    let clock = clock();
    let clock_for_script = clock.clone();
    let script = ScriptedAuthd::new(move |_| {
        clock_for_script.advance(Duration::from_secs(3));
        Ok(AuthorizeResponse { ttl_ms: 5001, ..verdict(true) })
    });
    let auth = Auth::scripted(script.clone(), vector(), clock.clone());
    for (passed, expected_requests) in [(0, 1), (1999, 0), (1, 1)] {
        clock.advance(Duration::from_millis(passed));
        auth.authorize(&user("u"), pods("a"), "").await.unwrap();
        assert_eq!(script.take_request_count(), expected_requests, "after {passed} ms more");
    }
}

#[tokio::test]
async fn decision_with_zero_ttl_serves_only_its_request() {
    let script = ScriptedAuthd::new(|_| Ok(AuthorizeResponse { ttl_ms: 1, ..verdict(true) }));
    let auth = Auth::scripted(script.clone(), vector(), clock());
    for _ in 0..3 {
        auth.authorize(&user("u"), pods("a"), "").await.unwrap();
        assert_eq!(script.take_request_count(), 1);
    }
}

#[tokio::test]
async fn new_epoch_invalidates_cached_decisions() {
    let script = ScriptedAuthd::new(|_| Ok(rbac_decision(true)));
    let auth = Auth::scripted(script.clone(), vector(), clock());
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    script.epoch.lock().generation = 2;
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    assert_eq!(script.take_request_count(), 1, "no message contained the new epoch yet");
    auth.epochs.observe(Some(&script.epoch.lock()));
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    assert_eq!(script.take_request_count(), 1, "the mirror stream reported the new epoch");
}

#[tokio::test]
async fn cached_decisions_serve_30_seconds_after_loss_of_authd() {
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_gone = gone.clone();
    let script = ScriptedAuthd::new(move |_| match is_gone.load(std::sync::atomic::Ordering::SeqCst) {
        true => Err(AuthdError::Unreachable("gone".into())),
        false => Ok(rbac_decision(true)),
    });
    let clock = clock();
    let vector = vector();
    let auth = Auth::scripted(script.clone(), vector.clone(), clock.clone());
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    gone.store(true, std::sync::atomic::Ordering::SeqCst);
    auth.disconnect_authd();

    let rejection = auth.authorize(&user("other"), pods("a"), "").await.unwrap_err();
    assert_eq!(rejection.status.code, 503, "uncached decisions must fail closed");
    clock.advance(Duration::from_secs(30));
    auth.authorize(&user("u"), pods("a"), "").await.unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(auth.authorize(&user("u"), pods("a"), "").await.unwrap_err().status.code, 503);

    auth.connection.set_decisions_open(&"one".into());
    write(&vector, "clusterroles/r", 10);
    let rejection = auth.authorize(&user("u"), pods("a"), "").await.unwrap_err();
    assert_eq!(rejection.status.code, 503, "a policy write must count at once, also without a connection");
}

#[tokio::test]
async fn unknown_verdict_is_denied() {
    use authproto::auth::Verdict;
    for (wire_verdict, expected) in [(Verdict::Deny, 403), (Verdict::NoOpinion, 403), (Verdict::Allow, 200)] {
        let script = ScriptedAuthd::new(move |_| {
            Ok(AuthorizeResponse { verdict: wire_verdict.into(), ..AuthorizeResponse::default() })
        });
        let auth = Auth::scripted(script, vector(), clock());
        let code = auth
            .authorize(&user("u"), pods("a"), "")
            .await
            .map_or_else(|rejection| rejection.status.code, |_| 200);
        assert_eq!(code, expected, "{wire_verdict:?}");
    }
    let script =
        ScriptedAuthd::new(|_| Ok(AuthorizeResponse { verdict: 77, ..AuthorizeResponse::default() }));
    let auth = Auth::scripted(script, vector(), clock());
    assert!(auth.authorize(&user("u"), pods("a"), "").await.is_err(), "an unknown verdict must deny");
}
