//! Published CA bundle and authentication metrics (requirements A-SA-26, D-METRIC-14, -15, -29).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tests::harness::{ControlPlane, Options, eventually};

use super::{Ca, path_flag};

#[tokio::test]
async fn ca_of_generated_serving_certificate_is_published_by_default() {
    let options = Options { publishes_root_ca: true, ..Options::default() };
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let ca = std::fs::read_to_string(plane.data_dir().join("certs/ca.crt")).expect("the generated CA");
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    for namespace in ["default", "team"] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
        eventually("the published CA", || async {
            let map = admin.get(&path).await;
            (map.status == 200 && map.json()["data"] == json!({"ca.crt": ca})).then_some(())
        })
        .await;
    }
    // A list of controllers without the publisher. The service account controller acts on the same namespaces.
    let flag = "--controllers=*,-root-ca-certificate-publisher-controller";
    let plane = ControlPlane::start(Options::default().flag(flag)).await;
    let admin = plane.admin();
    for namespace in ["first", "second", "third"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
        let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        eventually("the default service account", || async {
            (admin.get(&account).await.status == 200).then_some(())
        })
        .await;
    }
    let published = admin.get("/api/v1/configmaps?fieldSelector=metadata.name%3Dkube-root-ca.crt").await;
    assert_eq!(published.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn root_ca_is_published_in_each_namespace_and_token_secret() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new(dir.path(), "root");
    let plane = ControlPlane::start(Options::default().flag(&path_flag("root-ca-file", &ca.cert))).await;
    let (admin, names) = (plane.admin(), plane.names());
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    let published = async |namespace: &str, want: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt");
        eventually("the published CA bundle", || async {
            let map = admin.get(&path).await;
            (map.status == 200 && map.json()["data"] == json!({"ca.crt": want})).then_some(())
        })
        .await;
        path
    };
    for namespace in ["default", names.system_namespace] {
        published(namespace, &ca.pem()).await;
    }
    let path = published("team", &ca.pem()).await;
    admin.delete(&path).await.expect(200);
    published("team", &ca.pem()).await;
    let patch = json!({"data": {"ca.crt": "mine", "more": "mine"}});
    admin.patch(&path, "application/merge-patch+json", &patch).await.expect(200);
    published("team", &ca.pem()).await;

    let accounts = "/api/v1/namespaces/team/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let secret = json!({"metadata": {"name": "s", "annotations": {names.label_key("service-account.name"): "robot"}},
        "type": names.label_key("service-account-token")});
    admin.post("/api/v1/namespaces/team/secrets", &secret).await.expect(201);
    let beside = async |want: &str| {
        eventually("the CA bundle in the token Secret", || async {
            let data = admin.get("/api/v1/namespaces/team/secrets/s").await.expect(200)["data"].clone();
            (data["token"].is_string() && data["ca.crt"] == STANDARD.encode(want)).then_some(())
        })
        .await;
    };
    beside(&ca.pem()).await;
    let other = Ca::new(dir.path(), "other").pem();
    std::fs::write(&ca.cert, &other).expect("the CA bundle");
    published("team", &other).await;
    beside(&other).await;
}

#[tokio::test]
async fn legacy_token_tracking_config_map_has_since_date() {
    let plane = ControlPlane::start(Options::default()).await;
    let path = format!(
        "/api/v1/namespaces/{}/configmaps/kube-apiserver-legacy-service-account-token-tracking",
        plane.names().system_namespace
    );
    let since = eventually("the date of `since`", || async {
        plane.admin().get(&path).await.json()["data"]["since"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!((since.len(), since.matches('-').count()), (10, 2), "{since}");
}

#[tokio::test]
async fn both_processes_export_authentication_metrics() {
    let plane = ControlPlane::start(Options::default().flag("--metrics-address=127.0.0.1:0")).await;
    plane.anonymous().get("/metrics").await.expect(403);
    assert_eq!(plane.token("nobody").get("/metrics").await.status, 401);
    let member = plane.certificate("prometheus", &["system:monitoring"]).get("/metrics").await;
    assert_eq!(member.status, 200);
    let ours = plane.authd_get("/metrics").await;
    for text in [&member.text(), &ours] {
        let helps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        assert!(helps.len() > 5, "{text}");
        for help in helps {
            let class = help.split_once(' ').map(|(_, rest)| rest).unwrap_or_default();
            assert!(
                ["[ALPHA] ", "[BETA] ", "[STABLE] "].iter().any(|known| class.starts_with(known)),
                "{help}"
            );
        }
    }
    let metrics = member.text();
    for name in [
        "authentication_attempts{result=\"success\"}",
        "authentication_attempts{result=\"failure\"} 1",
        "authentication_duration_seconds_count{result=\"failure\"} 1",
        "authenticated_user_requests{username=\"other\"}",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name} in\n{metrics}");
    }
    assert!(ours.contains("authentication_attempts_total{result=\"failure\",method=\"\"} 1"), "{ours}");
    assert!(
        plane.authd_get("/livez").await.contains("ok") && plane.authd_get("/readyz").await.contains("ok")
    );
}
