//! Request metrics, and size limits of ConfigMaps and Secrets.

use serde_json::json;

use super::{MAPS, Server, audit_log, map};
use authclient::Auth;

impl Server {
    /// Returns the metric lines that begin with a text.
    async fn metric_lines(&self, begin: &str) -> Vec<String> {
        let text = String::from_utf8(self.get("/metrics").await.body.to_vec()).unwrap();
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn request_metrics_count_by_verb_resource_and_code() {
    let server = Server::start().await;
    let labels = r#"group="",version="v1",resource="configmaps",subresource="",scope="resource",component="apiserver""#;
    let total = format!(r#"apiserver_request_total{{verb="GET",dry_run="",{labels},code="200"}} "#);
    let timed =
        |part: &str| format!(r#"apiserver_request_duration_seconds_{part}{{verb="GET",dry_run="",{labels}"#);
    server.post(MAPS, map("one", "1")).await;
    assert!(
        server.metric_lines(&total).await.is_empty() && server.metric_lines(&timed("count")).await.is_empty()
    );
    for round in 1..=2 {
        assert_eq!(server.get(&format!("{MAPS}/one")).await.code, 200);
        assert_eq!(server.metric_lines(&total).await, [format!("{total}{round}")]);
        assert!(server.metric_lines(&timed("count")).await[0].ends_with(&format!("}} {round}")));
        let buckets = server.metric_lines("apiserver_request_duration_seconds_bucket{").await;
        let is_of_get = |line: &&String| line.contains(labels) && line.contains(r#"verb="GET""#);
        let infinite = buckets.iter().filter(is_of_get).find(|line| line.contains(r#"le="+Inf""#)).unwrap();
        assert!(infinite.ends_with(&format!("}} {round}")), "{infinite}");
        assert_eq!(server.metric_lines(&timed("sum")).await.len(), 1);
    }
    let trial = format!("{MAPS}?dryRun=All");
    assert_eq!(server.post(&trial, map("two", "2")).await.code, 201);
    let dry = r#"apiserver_request_total{verb="POST",dry_run="All",group="",version="v1",resource="configmaps",subresource="",scope="resource",component="apiserver",code="201"} 1"#;
    assert_eq!(server.metric_lines(dry).await, [dry]);
}

#[tokio::test]
async fn deprecated_api_request_sets_metric_and_audit_annotation() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let audit = audit_log(&file);
    let server = Server::start_with_audit(|clock| Auth::allow_all(clock), audit).await;
    assert_eq!(server.get("/api/v1/namespaces").await.code, 200);
    let gauge = "apiserver_requested_deprecated_apis{";
    assert!(server.metric_lines(gauge).await.is_empty(), "no deprecated API was requested");
    for _ in 0..2 {
        assert_eq!(server.get("/api/v1/componentstatuses").await.code, 200);
    }
    let joined = r#"group="",version="v1",resource="componentstatuses",subresource="""#;
    assert_eq!(server.metric_lines(gauge).await, [format!(r#"{gauge}{joined},removed_release=""}} 1"#)]);
    let counter = server.metric_lines(r#"apiserver_request_total{verb="LIST""#).await;
    assert!(counter.iter().any(|line| line.contains(joined)), "{counter:?}");
    server.http_state.audit.close();
    let lines = std::fs::read_to_string(file).unwrap();
    for line in lines.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_deprecated = event["requestURI"].as_str().unwrap().contains("componentstatuses");
        let key = server.api_state.names.group_key("deprecated");
        let annotation = event["annotations"].get(&key);
        assert_eq!(annotation, is_deprecated.then(|| json!("true")).as_ref(), "{line}");
    }
    assert_eq!(lines.matches("/deprecated\"").count(), 2, "{lines}");
}

#[tokio::test]
async fn config_map_or_secret_above_1_mib_returns_422() {
    const MEBIBYTE: usize = 1 << 20;
    let server = Server::start().await;
    let secrets = MAPS.replace("configmaps", "secrets");
    for (bytes, code) in [(MEBIBYTE, 201), (MEBIBYTE + 1, 422)] {
        let map = json!({"metadata": {"name": format!("m{bytes}")}, "data": {"k": "x".repeat(bytes)}});
        assert_eq!(server.post(MAPS, map).await.code, code, "a ConfigMap of {bytes}");
        let secret =
            json!({"metadata": {"name": format!("s{bytes}")}, "stringData": {"k": "x".repeat(bytes)}});
        assert_eq!(server.post(&secrets, secret).await.code, code, "a Secret of {bytes}");
    }
}
