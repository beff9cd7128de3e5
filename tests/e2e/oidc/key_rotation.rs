//! Key rotation and outages of issuers.

use jiff::Timestamp;
use serde_json::json;
use tests::harness::{ControlPlane, Options, eventually};

use super::issuer::{Issuer, Key};
use super::{authentication_config, token_user, token_username, wait_for_log};

async fn plane(dir: &std::path::Path, text: &str) -> ControlPlane {
    let path = dir.join("authentication.yaml");
    std::fs::write(&path, text).unwrap();
    ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display()))).await
}

#[tokio::test]
async fn rotated_key_is_accepted_at_once_and_unknown_keys_are_rate_limited() {
    let (old, new) = (Key::ec("old", "ES256"), Key::ec("new", "ES256"));
    let issuer = Issuer::start(&[&old]).await;
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path(), &authentication_config(&issuer, &[("one", "")])).await;
    let token = |key: &Key, sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub})));
    assert_eq!(token_username(&plane, &token(&old, "before")).await, "before");
    issuer.publish(&[&old, &new]);
    assert_eq!(token_username(&plane, &token(&new, "rotated")).await, "rotated");
    assert_eq!(token_username(&plane, &token(&old, "still")).await, "still");
    // A different key with the same key id.
    let renewed = Key::ec("new", "ES256");
    issuer.publish(&[&renewed]);
    assert_eq!(token_username(&plane, &token(&renewed, "renewed")).await, "renewed");
    assert_eq!(
        token_user(&plane, &token(&old, "gone")).await,
        None,
        "the issuer no longer publishes the key"
    );

    let before = issuer.requested_paths("one").len();
    let stranger = Key::ec("stranger", "ES256");
    for at in 0..100 {
        assert_eq!(token_user(&plane, &token(&stranger, &format!("s{at}"))).await, None);
    }
    let fetches = issuer.requested_paths("one").len() - before;
    assert!(fetches < 50, "{fetches} JWKS fetches for 100 tokens with an unknown key");
    wait_for_log(&plane, "(key id `stranger`)").await;
}

#[tokio::test]
async fn removed_key_ends_cached_identities_and_watches() {
    let (old, new) = (Key::ec("old", "ES256"), Key::ec("new", "ES256"));
    let issuer = Issuer::start(&[&old]).await;
    let dir = tempfile::tempdir().unwrap();
    let rules = "  claimMappings: {username: {claim: sub, prefix: ''}, groups: {expression: '[\"system:masters\"]'}}\n";
    let plane = plane(dir.path(), &authentication_config(&issuer, &[("one", rules)])).await;
    let token = |key: &Key| key.sign("ES256", &issuer.claims("one", json!({})));
    let first = plane.token(&token(&old));
    assert_eq!(first.get("/api/v1/namespaces").await.status, 200);
    let mut watch = first.watch("/api/v1/namespaces?watch=true").await;
    issuer.publish(&[&new]);
    // A token of the new key triggers a JWKS fetch, which removes the old key.
    assert_eq!(plane.token(&token(&new)).get("/api/v1/namespaces").await.status, 200);
    eventually("the cached identity of the old key is dropped", || async {
        (first.get("/api/v1/namespaces").await.status == 401).then_some(())
    })
    .await;
    let ended =
        tokio::time::timeout(tests::harness::DEADLINE, async { while watch.next().await.is_some() {} });
    ended.await.expect("the watch ends");
}

#[tokio::test]
async fn issued_token_stays_valid_until_its_expiry_without_the_issuer() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path(), &authentication_config(&issuer, &[("one", "")])).await;
    let expires = Timestamp::now().as_second() + 8;
    let token = |sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub, "exp": expires})));
    let (used, unused) = (token("used"), token("unused"));
    assert_eq!(token_username(&plane, &used).await, "used");
    // The provider can neither withdraw a token nor be asked about one.
    issuer.set_unavailable(true);
    assert_eq!(token_username(&plane, &used).await, "used");
    assert_eq!(token_username(&plane, &unused).await, "unused");
    eventually("both tokens have expired", || async {
        let is_expired =
            token_user(&plane, &used).await.is_none() && token_user(&plane, &unused).await.is_none();
        is_expired.then_some(())
    })
    .await;
    assert!(Timestamp::now().as_second() >= expires, "the tokens end with their claim `exp`");
}

#[tokio::test]
async fn unavailable_issuer_at_startup_is_accepted_after_recovery() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    issuer.set_unavailable(true);
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path(), &authentication_config(&issuer, &[("one", "")])).await;
    let token = |sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub})));
    assert_eq!(token_user(&plane, &token("early")).await, None);
    wait_for_log(&plane, "the keys of the issuer are not known yet: ").await;
    wait_for_log(&plane, "unexpected HTTP status 503 Service Unavailable").await;
    assert_eq!(plane.admin().get("/api/v1/namespaces").await.status, 200);
    issuer.set_unavailable(false);
    eventually("the keys of the issuer are fetched", || async {
        (token_username(&plane, &token("late")).await == "late").then_some(())
    })
    .await;
    issuer.set_unavailable(true);
    for at in 0..20 {
        let sub = format!("away-{at}");
        assert_eq!(
            token_username(&plane, &token(&sub)).await,
            sub,
            "fetched keys stay valid during an outage"
        );
    }
    let expiring = issuer.claims("one", json!({"exp": jiff::Timestamp::now().as_second() + 2}));
    let client = plane.token(&key.sign("ES256", &expiring));
    assert_eq!(client.get("/api/v1/namespaces").await.status, 403);
    eventually("an expired token is rejected", || async {
        (client.get("/api/v1/namespaces").await.status == 401).then_some(())
    })
    .await;
}
