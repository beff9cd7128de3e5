//! APIServices that lead back to the server.

use serde_json::json;
use tests::harness::Options;

use super::{Aggregator, SERVICES, api_service};

#[tokio::test]
async fn api_service_that_leads_back_to_the_server_is_not_available() {
    let aggregator = Aggregator::start(Options::kubernetes()).await;
    let admin = aggregator.plane.admin();
    let service =
        json!({"metadata": {"name": "back"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    admin.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let mut object = api_service("loop.example.com", "v1", admin.port(), "");
    object["spec"]["caBundle"].take();
    object["spec"]["insecureSkipTLSVerify"] = true.into();
    admin.post(SERVICES, &object).await.expect(201);
    let message = aggregator.wait_for_reason("v1.loop.example.com", "FailedDiscoveryCheck").await;
    assert!(message.contains("the Service leads back to this server: status 508 from "), "{message}");
    // A condition that a client sets to True opens no loop.
    let status = json!({"status": {"conditions": [{"type": "Available", "status": "True", "reason": "Passed",
        "message": "all checks passed", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let path = format!("{SERVICES}/v1.loop.example.com/status");
    admin.patch(&path, "application/merge-patch+json", &status).await.expect(200);
    let answer = admin.get("/apis/loop.example.com/v1/namespaces/default/things").await;
    // The status is 503 if the check has already reset the condition.
    assert!(matches!(answer.status, 508 | 503), "{} {}", answer.status, answer.text());
    aggregator.wait_for_reason("v1.loop.example.com", "FailedDiscoveryCheck").await;
    admin.get("/readyz").await.expect(200);
}
