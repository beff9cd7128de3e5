//! Tests of the identity cache: each entry has its own lifetime.

use authproto::auth::{AuthorizeResponse, Dependencies, ObjectRef};

use parking_lot::Mutex;
use serving::metrics::Metrics;

use super::*;
use crate::transport::scripted::{ScriptedAuthd, verdict};

fn script() -> Arc<ScriptedAuthd> {
    ScriptedAuthd::new(|_| Ok(verdict(true)))
}

fn account(name: &str) -> ObjectRef {
    ObjectRef {
        resource: "serviceaccounts".into(),
        namespace: "a".into(),
        name: name.into(),
        ..ObjectRef::default()
    }
}

#[tokio::test]
async fn cached_identity_survives_unrelated_writes() {
    let (script, vector) = (script(), vector());
    script.identity.lock().depends_on = vec![account("mine")];
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let token = bearer("u");
    assert_eq!(auth.authenticate(&credentials(&token, "/x")).await.unwrap().user().name, "u");
    for (key, requests) in
        [("serviceaccounts/a/other", 0), ("clusterroles/r", 0), ("serviceaccounts/a/mine", 1)]
    {
        script.take_request_count();
        write(&vector, key, vector.observed() + 1);
        auth.authenticate(&credentials(&token, "/y")).await.unwrap();
        assert_eq!(script.take_request_count(), requests, "after a write of {key}; the path must not matter");
    }
}

#[tokio::test]
async fn dependency_change_during_authentication_prevents_caching() {
    let (script, vector) = (script(), vector());
    script.identity.lock().depends_on = vec![account("mine")];
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let baseline = vector.identity_baseline(Duration::ZERO);
    write(&vector, "serviceaccounts/a/mine", 5);
    // This is the order of events in `authenticate` when a write happens after `authenticate` has read the
    // revision and before the response arrives.
    let identity = authproto::auth::Identity {
        user: Some((&UserInfo::default()).into()),
        depends_on: vec![account("mine")],
        ..Default::default()
    };
    let token = bearer("u");
    let digests = auth.digester.digest(&credentials(&token, "/"));
    auth.accept_identity(identity, &digests, &baseline, Some(auth.epochs.number()), 0, "").unwrap();
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    assert_eq!(script.take_request_count(), 1, "the identity must not be cached");
}

#[tokio::test]
async fn identity_with_unmirrored_dependency_is_not_cached() {
    let script = script();
    script.identity.lock().depends_on = vec![ObjectRef { resource: "leases".into(), ..ObjectRef::default() }];
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let token = bearer("u");
    for _ in 0..2 {
        auth.authenticate(&credentials(&token, "/")).await.unwrap();
        assert_eq!(script.take_request_count(), 1);
    }
}

#[tokio::test]
async fn cached_identity_ends_at_expiry() {
    let (script, clock) = (script(), clock());
    script.identity.lock().expires_at_ms = 60_000;
    let auth = Auth::scripted(script.clone(), vector(), clock.clone());
    let token = bearer("u");
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    clock.advance(Duration::from_millis(59_999));
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    assert_eq!(script.take_request_count(), 1);
    clock.advance(Duration::from_millis(1));
    let status = auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
    assert_eq!(
        (status.code, script.take_request_count()),
        (401, 1),
        "authd must get a request, and its response is expired too"
    );
}

#[tokio::test]
async fn cached_identity_is_not_used_before_not_before_time() {
    let (script, clock) = (script(), clock());
    clock.advance(Duration::from_secs(100));
    script.identity.lock().not_before_ms = 60_000;
    let auth = Auth::scripted(script.clone(), vector(), clock.clone());
    let token = bearer("u");
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    clock.set_back(Duration::from_secs(40));
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    assert_eq!(script.take_request_count(), 1);
    clock.set_back(Duration::from_millis(1));
    let status = auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
    assert_eq!((status.code, script.take_request_count()), (401, 1));
}

#[tokio::test]
async fn cached_rejection_ends_with_identity_write() {
    let (script, vector) = (script(), vector());
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let token = bearer("bad");
    for _ in 0..3 {
        assert_eq!(auth.authenticate(&credentials(&token, "/")).await.unwrap_err().code, 401);
    }
    assert_eq!(script.take_request_count(), 1);
    write(&vector, "serviceaccounts/a/new", 9);
    auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
    assert_eq!(script.take_request_count(), 1, "the missing account may exist now");
}

#[tokio::test]
async fn anonymous_access_is_cached_per_path() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let none = HeaderCredentials::default();
    for (path, requests) in [("/livez", 1), ("/livez", 0), ("/readyz", 1)] {
        assert_eq!(
            auth.authenticate(&credentials(&none, path)).await.unwrap().user().name,
            "system:anonymous"
        );
        assert_eq!(script.take_request_count(), requests, "{path}");
    }
}

#[tokio::test]
async fn new_epoch_invalidates_cached_identities() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    for token in ["u", "bad", ""] {
        let headers = bearer(token);
        for (generation, requests) in [(1, 1), (1, 0), (2, 1)] {
            let epoch = authproto::auth::Epoch { instance: token.into(), generation, identities: 1 };
            auth.epochs.expect(&token.into());
            *script.epoch.lock() = epoch.clone();
            auth.epochs.observe(Some(&epoch));
            let _ = auth.authenticate(&credentials(&headers, "/")).await;
            assert_eq!(script.take_request_count(), requests, "`{token}`, generation {generation}");
        }
    }
}

#[tokio::test]
async fn webhook_identity_is_cached_until_ttl() {
    for name in ["u", "bad"] {
        let (script, clock) = (script(), clock());
        let auth = Auth::scripted(script.clone(), vector(), clock.clone());
        let token = bearer(name);
        let log_in =
            || async { auth.authenticate(&credentials(&token, "/")).await.map(|client| client.validity) };
        script.ttl.store(3001, std::sync::atomic::Ordering::SeqCst);
        let first = log_in().await;
        for (passed, requests) in [(0, 0), (2999, 0), (1, 1), (2999, 0), (1, 1)] {
            script.take_request_count();
            clock.advance(Duration::from_millis(passed));
            assert_eq!(log_in().await.is_ok(), name == "u");
            assert_eq!(script.take_request_count(), requests, "{name} after {passed} ms more");
        }
        // The end of the TTL does not end the identity of a watch: an open watch re-authenticates and continues.
        assert!(first.is_err() || first.unwrap().holds_at(clock.now()), "{name}");
    }
}

/// One request to authd returns the identity and the decision.
#[tokio::test]
async fn uncached_request_needs_one_request_to_authd() {
    let (script, vector) = (script(), vector());
    *script.authorize.lock() = Box::new(|request| {
        let depends_on = Dependencies { rbac_cluster: true, ..Dependencies::default() };
        let allowed = request.user.as_ref().is_some_and(|user| user.name == "good");
        Ok(AuthorizeResponse { depends_on: Some(depends_on), ..verdict(allowed) })
    });
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let attributes = Arc::new(pods("a"));
    for (name, between, requests) in [
        ("good", None, 1),
        ("evil", None, 1),
        ("", None, 1),
        ("good", Some("clusterroles/r"), 2),
        ("evil", Some("clusterroles/r"), 2),
        // The decision depends only on the cluster-wide part of the policy.
        ("good", Some("roles/b/r"), 1),
    ] {
        auth.drop_caches();
        script.take_request_count();
        let write_between = |_: &Identity| {
            if let Some(key) = between {
                write(&vector, key, vector.observed() + 1);
            }
        };
        let token = bearer(name);
        let admitted = auth.admit(&credentials(&token, "/x"), &attributes, write_between).await.unwrap();
        assert_eq!(admitted.decision.is_ok(), name == "good", "{name} {between:?}");
        assert_eq!(script.take_request_count(), requests, "{name}, with a write of {between:?} in between");
        let second_decision = auth.authorize(&admitted.caller, Arc::new(pods("c")), "test").await;
        assert_eq!(
            (second_decision.is_ok(), script.take_request_count()),
            (name == "good", 1),
            "another request of {name}"
        );
    }
    let rejection = auth.admit(&credentials(&bearer("bad"), "/x"), &attributes, |_| ()).await.unwrap_err();
    assert_eq!(rejection.status.code, 401);
}

#[tokio::test]
async fn request_that_is_decided_again_counts_once() {
    let metrics = Metrics::new();
    let auth = Auth::scripted(script(), vector(), clock());
    auth.register_metrics(&metrics);
    let (token, attributes) = (bearer("u"), Arc::new(pods("a")));
    auth.admit(&credentials(&token, "/x"), &attributes, |_| ()).await.unwrap();
    let counts = || {
        let text = metrics.text();
        let is_counted = |line: &&str| {
            line.starts_with("authentication_attempts{result=\"success\"}")
                || line.starts_with("authorization_attempts_total{result=\"allowed\"}")
        };
        text.lines().filter(is_counted).map(str::to_owned).collect::<Vec<_>>()
    };
    let once = counts();
    assert!(once.len() == 2 && once.iter().all(|line| line.ends_with(" 1")), "{once:?}");
    let again = auth.admit_again(&credentials(&token, "/x"), &attributes).await.unwrap();
    assert!(again.decision.is_ok());
    assert_eq!(counts(), once);
}

#[tokio::test]
async fn cached_request_needs_no_request_to_authd() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let (token, attributes) = (bearer("u"), Arc::new(pods("a")));
    for requests in [1, 0] {
        script.take_request_count();
        let admitted = auth.admit(&credentials(&token, "/x"), &attributes, |_| ()).await.unwrap();
        assert_eq!(admitted.decision.unwrap().user().name, "u");
        assert_eq!(script.take_request_count(), requests);
    }
}

#[tokio::test]
async fn impersonated_request_is_decided_for_the_impersonated_user() {
    let script = ScriptedAuthd::new(|request| {
        let is_impersonation = request.attributes.as_ref().unwrap().verb == "impersonate";
        let expected_user = if is_impersonation { "u" } else { "other" };
        Ok(verdict(request.user.as_ref().unwrap().name == expected_user))
    });
    let auth = Auth::scripted(script, vector(), clock());
    let header = |name: &str| {
        [(http::HeaderName::from_static("impersonate-user"), name.parse().unwrap())].into_iter().collect()
    };
    for (caller, impersonated, is_allowed) in
        [("u", "other", true), ("u", "third", false), ("x", "other", false)]
    {
        let (token, headers) = (bearer(caller), header(impersonated));
        let credentials = Credentials { impersonation_headers: Some(&headers), ..credentials(&token, "/x") };
        let seen = Mutex::new(Vec::new());
        let identified = |identity: &Identity| seen.lock().push(identity.user().name.clone());
        let admitted = auth.admit(&credentials, &Arc::new(pods("a")), identified).await.unwrap();
        assert_eq!(admitted.decision.is_ok(), is_allowed, "{caller} as {impersonated}");
        let may_impersonate = caller == "u";
        let expected = if may_impersonate { &[caller, impersonated][..] } else { &[caller] };
        assert_eq!(seen.into_inner(), expected);
        assert_eq!(
            admitted.decision.is_err_and(|rejection| rejection.is_denial),
            may_impersonate && !is_allowed
        );
    }
}

#[tokio::test]
async fn decision_of_older_epoch_is_requested_again() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let newer = authproto::auth::Epoch { instance: "one".into(), generation: 2, identities: 1 };
    auth.epochs.observe(Some(&newer));
    let admitted = auth.admit(&credentials(&bearer("u"), "/x"), &Arc::new(pods("a")), |_| ()).await.unwrap();
    assert!(admitted.decision.is_ok());
    assert_eq!(script.take_request_count(), 2);
}

/// A webhook with TTL 0 gets one request: the decision made with the authentication serves the same request.
#[tokio::test]
async fn decision_with_zero_ttl_serves_its_request() {
    let (script, attributes) = (script(), Arc::new(pods("a")));
    *script.authorize.lock() = Box::new(|_| Ok(AuthorizeResponse { ttl_ms: 1, ..verdict(true) }));
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let admitted = auth.admit(&credentials(&bearer("u"), "/x"), &attributes, |_| ()).await.unwrap();
    assert_eq!(script.take_request_count(), 1);
    auth.authorize(&admitted.caller, attributes, "test").await.unwrap();
    assert_eq!(script.take_request_count(), 1, "the next request must get its own decision");
}
