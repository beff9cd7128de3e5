//! Kept identities: each with its own end.

use authproto::auth::ObjectRef;

use super::super::scripted::{Script, verdict};
use super::*;

fn script() -> Arc<Script> {
    Script::new(|_| Ok(verdict(true)))
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
async fn an_accepted_credential_outlives_writes_that_it_does_not_rest_on() {
    let (script, vector) = (script(), vector());
    script.identity.lock().rests_on = vec![account("mine")];
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let token = bearer("u");
    assert_eq!(auth.authenticate(&credentials(&token, "/x")).await.unwrap().user().name, "u");
    for (key, asked) in [("serviceaccounts/a/other", 0), ("clusterroles/r", 0), ("serviceaccounts/a/mine", 1)]
    {
        script.questions();
        write(&vector, key, vector.observed() + 1);
        auth.authenticate(&credentials(&token, "/y")).await.unwrap();
        assert_eq!(script.questions(), asked, "after a write of {key}; the path does not matter");
    }
}

#[tokio::test]
async fn an_object_that_changed_while_authd_answered_is_not_missed() {
    let (script, vector) = (script(), vector());
    script.identity.lock().rests_on = vec![account("mine")];
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let as_of = vector.observed();
    write(&vector, "serviceaccounts/a/mine", 5);
    // As `authenticate` does when the write came between its reading and the answer.
    let identity = authproto::auth::Identity {
        user: Some((&UserInfo::default()).into()),
        rests_on: vec![account("mine")],
        ..Default::default()
    };
    let token = bearer("u");
    let digests = auth.digester.digest(&credentials(&token, "/"));
    auth.establish(identity, &digests, as_of, Some((auth.epochs.count(), auth.epochs.era())), None, "")
        .unwrap();
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    assert_eq!(script.questions(), 1, "it was not kept");
}

#[tokio::test]
async fn an_identity_that_rests_on_what_is_not_seen_is_not_kept() {
    let script = script();
    script.identity.lock().rests_on = vec![ObjectRef { resource: "leases".into(), ..ObjectRef::default() }];
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let token = bearer("u");
    for _ in 0..2 {
        auth.authenticate(&credentials(&token, "/")).await.unwrap();
        assert_eq!(script.questions(), 1);
    }
}

#[tokio::test]
async fn an_identity_ends_with_its_expiry() {
    let (script, clock) = (script(), clock());
    script.identity.lock().expires_at_ms = 60_000;
    let auth = Auth::scripted(script.clone(), vector(), clock.clone());
    let token = bearer("u");
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    clock.advance(Duration::from_millis(59_999));
    auth.authenticate(&credentials(&token, "/")).await.unwrap();
    assert_eq!(script.questions(), 1);
    clock.advance(Duration::from_millis(1));
    let status = auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
    assert_eq!((status.code, script.questions()), (401, 1), "asked again, and the answer is as old");
}

#[tokio::test]
async fn a_refusal_is_kept_until_identities_change() {
    let (script, vector) = (script(), vector());
    let auth = Auth::scripted(script.clone(), vector.clone(), clock());
    let token = bearer("bad");
    for _ in 0..3 {
        assert_eq!(auth.authenticate(&credentials(&token, "/")).await.unwrap_err().code, 401);
    }
    assert_eq!(script.questions(), 1);
    write(&vector, "serviceaccounts/a/new", 9);
    auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
    assert_eq!(script.questions(), 1, "the account it needs may have come");
}

#[tokio::test]
async fn anonymous_access_is_asked_for_each_path() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    let none = Presented::default();
    for (path, asked) in [("/livez", 1), ("/livez", 0), ("/readyz", 1)] {
        assert_eq!(
            auth.authenticate(&credentials(&none, path)).await.unwrap().user().name,
            "system:anonymous"
        );
        assert_eq!(script.questions(), asked, "{path}");
    }
}

#[tokio::test]
async fn a_new_epoch_ends_every_identity() {
    let script = script();
    let auth = Auth::scripted(script.clone(), vector(), clock());
    for token in ["u", "bad", ""] {
        let headers = bearer(token);
        for (generation, asked) in [(1, 1), (1, 0), (2, 1)] {
            let epoch = authproto::auth::Epoch { instance: token.into(), generation, identities: 1 };
            *script.epoch.lock() = epoch.clone();
            auth.epochs.observe(Some(&epoch));
            let _ = auth.authenticate(&credentials(&headers, "/")).await;
            assert_eq!(script.questions(), asked, "`{token}`, generation {generation}");
        }
    }
}

#[tokio::test]
async fn what_another_service_said_is_kept_no_longer_than_it_may_be() {
    for name in ["u", "bad"] {
        let (script, clock) = (script(), clock());
        let auth = Auth::scripted(script.clone(), vector(), clock.clone());
        let token = bearer(name);
        let ask = || async { auth.authenticate(&credentials(&token, "/")).await.map(|who| who.tenure) };
        script.ttl.store(3001, std::sync::atomic::Ordering::SeqCst);
        let first = ask().await;
        for (passed, asked) in [(0, 0), (2999, 0), (1, 1), (2999, 0), (1, 1)] {
            script.questions();
            clock.advance(Duration::from_millis(passed));
            assert_eq!(ask().await.is_ok(), name == "u");
            assert_eq!(script.questions(), asked, "{name} after {passed} ms more");
        }
        // What rests on no object ends with nothing else; a watch asks again by itself.
        assert!(first.is_err() || first.unwrap().lasts(clock.now()), "{name}");
    }
}

/// What a known identity adds to a request, with the token of a service account as it usually is. A measurement:
/// `cargo test --release -p apid --lib -- --ignored --nocapture known_identity`.
#[tokio::test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "it measures the machine's time")]
async fn a_known_identity_costs_little() {
    const ROUNDS: u32 = 200_000;
    let auth = Auth::scripted(script(), vector(), Arc::new(apimachinery::clock::SystemClock::new()));
    auth.count_in(&serving::metrics::Metrics::new());
    let token = bearer(&"t".repeat(900));
    auth.authenticate(&credentials(&token, "/api/v1/namespaces/default/configmaps")).await.unwrap();
    let begun = std::time::Instant::now();
    for _ in 0..ROUNDS {
        auth.authenticate(&credentials(&token, "/api/v1/namespaces/default/configmaps")).await.unwrap();
    }
    println!("a known identity: {:.0} ns", begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
}
