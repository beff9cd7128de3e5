//! Servers that end, come back, are slow, or have a wrong certificate.

use std::time::Duration;

use backends::server::ServingCertificate;
use serde_json::json;
use tests::harness::{Options, eventually};

use super::{FLAVORS, Flavors, flavor};

const NAME: &str = "v1.flavors.example.com";

#[tokio::test]
async fn killed_server_gives_503_until_it_is_back() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    admin.post(FLAVORS, &flavor("vanilla", "sweet")).await.expect(201);
    flavors.server = None;
    let answer = admin.get(FLAVORS).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().starts_with("error trying to reach service: "), "{}", answer.text());
    let message = flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
    let port = flavors.address.port();
    let url = format!("https://localhost:{port}/apis/flavors.example.com/v1");
    let expected = format!("failing or missing response from {url}: Get \"{url}\": ");
    assert!(message.starts_with(&expected) && message.contains("connection refused"), "{message}");
    eventually("requests fail at once", || async {
        (admin.get(FLAVORS).await.text() == "service unavailable\n").then_some(())
    })
    .await;
    let aggregated = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let list = admin.request("GET", "/apis", &aggregated, b"").await.expect(200);
    let entry = list["items"].as_array().unwrap().last().unwrap();
    assert_eq!(entry["versions"], json!([{"version": "v1", "freshness": "Stale"}]));
    admin.get("/apis/flavors.example.com").await.expect(200);

    let certificate = flavors.certificate.clone();
    flavors.restart(&certificate, Duration::ZERO).await;
    flavors.aggregator.wait_for_reason(NAME, "Passed").await;
    let list = eventually("the server serves again", || async {
        let answer = admin.get(FLAVORS).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await;
    assert_eq!(list["items"][0]["metadata"]["name"], "vanilla");
}

#[tokio::test]
async fn slow_server_delays_only_its_own_requests() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    let certificate = flavors.certificate.clone();
    flavors.restart(&certificate, Duration::from_secs(2)).await;
    flavors.aggregator.wait_for_reason(NAME, "Passed").await;
    let admin = flavors.plane().admin();
    let slow = (0..20).map(|_| {
        let admin = admin.clone();
        tokio::spawn(async move { admin.get(&format!("{FLAVORS}?timeout=1s")).await.status })
    });
    let slow: Vec<_> = slow.collect();
    let started = std::time::Instant::now();
    admin.get("/api/v1/namespaces/default/configmaps").await.expect(200);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    for answer in slow {
        let status = answer.await.unwrap();
        // 503 while the condition of the restarted server is not true yet.
        assert!(matches!(status, 504 | 503), "{status}");
    }
    let answer = eventually("an answer of the slow server", || async {
        let answer = admin.get(FLAVORS).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(answer.json()["kind"], "FlavorList");
}

#[tokio::test]
async fn server_with_a_wrong_certificate_is_not_available() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    let other = ServingCertificate::generate(&["back.default.svc".to_owned()]).unwrap();
    flavors.restart(&other, Duration::ZERO).await;
    let admin = flavors.plane().admin();
    assert_eq!(admin.get(FLAVORS).await.status, 503);
    // The first failed check may come before the other server listens.
    eventually("the message names the certificate", || async {
        let message = flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
        message.contains("certificate").then_some(())
    })
    .await;
    let seen = flavors.server.as_ref().unwrap().take_seen();
    assert!(seen.is_empty(), "no request reaches a server whose certificate is not trusted: {seen:?}");
}

#[tokio::test]
async fn server_that_ended_is_found_unavailable_after_restart_of_apid() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    flavors.aggregator.plane.stop().await;
    flavors.server = None;
    flavors.aggregator.plane.launch().await;
    // No request and no change of an object begins the check.
    flavors.aggregator.wait_for_reason(NAME, "FailedDiscoveryCheck").await;
}
