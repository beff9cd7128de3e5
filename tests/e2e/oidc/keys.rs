//! Key rotation and outages of issuers.

use serde_json::json;

use super::issuer::{Issuer, Key};
use super::{file, logged, name, who};
use crate::harness::{ControlPlane, Options, eventually};

async fn plane(dir: &std::path::Path, text: &str) -> ControlPlane {
    let path = dir.join("authentication.yaml");
    std::fs::write(&path, text).unwrap();
    ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display()))).await
}

#[tokio::test]
async fn a_new_key_is_accepted_at_once_and_strangers_make_us_ask_seldom() {
    let (old, new) = (Key::ec("old", "ES256"), Key::ec("new", "ES256"));
    let issuer = Issuer::start(&[&old]).await;
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path(), &file(&issuer, &[("one", "")])).await;
    let token = |key: &Key, sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub})));
    assert_eq!(name(&plane, &token(&old, "before")).await, "before");
    issuer.publish(&[&old, &new]);
    assert_eq!(name(&plane, &token(&new, "rotated")).await, "rotated");
    assert_eq!(name(&plane, &token(&old, "still")).await, "still");
    // A different key with the same key id.
    let renewed = Key::ec("new", "ES256");
    issuer.publish(&[&renewed]);
    assert_eq!(name(&plane, &token(&renewed, "renewed")).await, "renewed");
    assert_eq!(who(&plane, &token(&old, "gone")).await, None, "the issuer no longer publishes the key");

    let before = issuer.asked("one").len();
    let stranger = Key::ec("stranger", "ES256");
    for at in 0..100 {
        assert_eq!(who(&plane, &token(&stranger, &format!("s{at}"))).await, None);
    }
    let asked = issuer.asked("one").len() - before;
    assert!(asked < 50, "{asked} JWKS fetches for 100 tokens with an unknown key");
    logged(&plane, "(key id `stranger`)").await;
}

#[tokio::test]
async fn identities_and_watches_end_with_their_key() {
    let (old, new) = (Key::ec("old", "ES256"), Key::ec("new", "ES256"));
    let issuer = Issuer::start(&[&old]).await;
    let dir = tempfile::tempdir().unwrap();
    let rules = "  claimMappings: {username: {claim: sub, prefix: ''}, groups: {expression: '[\"system:masters\"]'}}\n";
    let plane = plane(dir.path(), &file(&issuer, &[("one", rules)])).await;
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
        tokio::time::timeout(crate::harness::DEADLINE, async { while watch.next().await.is_some() {} });
    ended.await.expect("the watch ends");
}

#[tokio::test]
async fn the_server_starts_without_its_issuer_and_knows_it_when_it_comes() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    issuer.away(true);
    let dir = tempfile::tempdir().unwrap();
    let plane = plane(dir.path(), &file(&issuer, &[("one", "")])).await;
    let token = |sub: &str| key.sign("ES256", &issuer.claims("one", json!({"sub": sub})));
    assert_eq!(who(&plane, &token("early")).await, None);
    logged(&plane, "the keys of the issuer are not known yet: ").await;
    logged(&plane, "unexpected HTTP status 503 Service Unavailable").await;
    assert_eq!(plane.admin().get("/api/v1/namespaces").await.status, 200);
    issuer.away(false);
    eventually("the keys of the issuer are fetched", || async {
        (name(&plane, &token("late")).await == "late").then_some(())
    })
    .await;
    issuer.away(true);
    for at in 0..20 {
        let sub = format!("away-{at}");
        assert_eq!(name(&plane, &token(&sub)).await, sub, "fetched keys stay valid during an outage");
    }
    let expiring = issuer.claims("one", json!({"exp": jiff::Timestamp::now().as_second() + 2}));
    let client = plane.token(&key.sign("ES256", &expiring));
    assert_eq!(client.get("/api/v1/namespaces").await.status, 403);
    eventually("an expired token is rejected", || async {
        (client.get("/api/v1/namespaces").await.status == 401).then_some(())
    })
    .await;
}
