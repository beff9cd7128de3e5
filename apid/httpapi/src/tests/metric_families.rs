//! The families of `/metrics` compared with `docs/metrics.csv`, the table of the families of kube-apiserver.

use std::collections::{BTreeMap, BTreeSet};

use http_body_util::BodyExt as _;
use serde_json::json;
use serving::metrics::table::{Family, families, renewed_table};

use super::{MAPS, Server, map};

const TABLE: &str = include_str!("../../../../docs/metrics.csv");

/// Families of parts that this server does not have: listener, controllers, authd, other servers on the store.
const FAMILIES_OF_OTHER_PARTS: [&str; 6] = [
    "leader_election_master_status",
    "apiserver_tls_handshake_errors_total",
    "apid_serving_certificate_",
    "apid_policy_age_seconds",
    "apid_newest_revision_",
    "workqueue_",
];

fn is_elsewhere(family: &str) -> bool {
    FAMILIES_OF_OTHER_PARTS.iter().any(|part| family.starts_with(part))
}

/// A row of the table.
struct Row<'a> {
    family: &'a str,
    state: &'a str,
    note: &'a str,
}

fn rows() -> Vec<Row<'static>> {
    let row = |line: &'static str| {
        let fields: Vec<&str> = line.split(',').collect();
        let [family, _, _, _, state, note] = fields[..] else { panic!("{line}") };
        Row { family, state, note }
    };
    TABLE.lines().skip(1).map(row).collect()
}

/// Sends requests that together use every metric family. No request fails.
async fn use_all(server: &Server) {
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(server.merge(&format!("{MAPS}/one"), json!({"data": {"k": "2"}})).await.code, 200);
    let version = server.get(&format!("{MAPS}/one")).await.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap();
    assert_eq!(server.get(MAPS).await.code, 200);
    assert_eq!(server.get(&format!("{MAPS}?resourceVersion={version}")).await.code, 200);
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(server.get(&exact).await.code, 200);
    assert_eq!(server.get("/api/v1/componentstatuses").await.code, 200);
    let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let watch = server.open("GET", &format!("{MAPS}?{options}"), &[], "".into()).await;
    let mut body = watch.into_body();
    for _ in 0..2 {
        body.frame().await.unwrap().unwrap();
    }
}

async fn scrape(server: &Server, path: &str) -> BTreeMap<String, Family> {
    families(std::str::from_utf8(&server.get(path).await.body).unwrap())
}

#[tokio::test]
async fn families_of_table_are_served_with_type_stability_and_labels_of_reference() {
    let server = Server::start_with_gates("WatchList=true").await;
    use_all(&server).await;
    let (mut served, slis) = (scrape(&server, "/metrics").await, {
        server.get("/readyz").await;
        scrape(&server, "/metrics/slis").await
    });
    served.extend(slis);
    let mut problems = Vec::new();
    for row in rows() {
        let is_expected = matches!(row.state, "served" | "own" | "slis")
            && !row.note.starts_with("after ")
            && !is_elsewhere(row.family);
        match served.get(row.family) {
            None if is_expected => problems.push(format!("{} is not served", row.family)),
            None => {}
            Some(_) if row.state == "absent" => problems.push(format!("{} is served", row.family)),
            Some(_) => {}
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.csv");
    let table = std::fs::read_to_string(file).unwrap();
    let declared = server.http_state.metrics.declared();
    let renewed = renewed_table(&table, &served, &declared, &["own", "served", "slis"]);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &renewed).unwrap();
    } else {
        assert_eq!(table, renewed, "docs/metrics.csv is outdated: run the test with UPDATE=1");
    }
}

#[tokio::test]
async fn every_declared_family_has_a_sample_after_its_use() {
    let server = Server::start_with_gates("WatchList=true").await;
    use_all(&server).await;
    let served = scrape(&server, "/metrics").await;
    let rare: BTreeSet<&str> =
        rows().iter().filter(|row| row.note.starts_with("after ")).map(|row| row.family).collect();
    let declared = server.http_state.metrics.declared();
    let unused: Vec<&str> = declared
        .iter()
        .map(|family| family.name)
        .filter(|name| !served.contains_key(*name) && !rare.contains(name) && !is_elsewhere(name))
        .collect();
    assert!(unused.is_empty(), "declared and never served: {unused:?}");
}

#[tokio::test]
async fn stable_histograms_have_buckets_of_reference() {
    let server = Server::start().await;
    use_all_without_watch_list(&server).await;
    let served = scrape(&server, "/metrics").await;
    let durations = "0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 +Inf";
    for (family, bounds) in [
        ("apiserver_request_duration_seconds", durations),
        ("apiserver_request_sli_duration_seconds", durations),
        ("apiserver_response_sizes", "1000 10000 100000 1e+06 1e+07 1e+08 1e+09 +Inf"),
        ("apiserver_admission_controller_admission_duration_seconds", "0.005 0.025 0.1 0.5 1 2.5 +Inf"),
        ("apiserver_admission_step_admission_duration_seconds", "0.005 0.025 0.1 0.5 1 2.5 +Inf"),
    ] {
        assert_eq!(served[family].bounds.join(" "), bounds, "{family}");
    }
}

async fn use_all_without_watch_list(server: &Server) {
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(server.get(&format!("{MAPS}/one")).await.code, 200);
}

#[tokio::test]
async fn in_flight_and_long_running_requests_are_gauges() {
    let server = Server::start().await;
    let lines = |text: &str, begin: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    };
    let watch = server.open("GET", &format!("{MAPS}?watch=1"), &[], "".into()).await;
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let open = r#"apiserver_longrunning_requests{verb="WATCH",group="",version="v1",resource="configmaps",subresource="",scope="namespace",component="apiserver"}"#;
    assert_eq!(lines(&text, open), [format!("{open} 1")]);
    assert_eq!(
        lines(&text, r#"apiserver_current_inflight_requests{request_kind="readOnly"}"#),
        [r#"apiserver_current_inflight_requests{request_kind="readOnly"} 1"#]
    );
    drop(watch);
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    assert_eq!(lines(&text, open), [format!("{open} 0")]);
}

#[tokio::test]
async fn feature_gates_are_metrics_with_state_and_stage() {
    let server = Server::start_with_gates("AllAlpha=true,WatchList=true").await;
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        r#"kubernetes_feature_enabled{name="WatchList",stage="BETA"} 1"#,
        r#"kubernetes_feature_enabled{name="StorageVersionAPI",stage="ALPHA"} 1"#,
        r#"kubernetes_feature_enabled{name="DeclarativeValidationTakeover",stage="BETA"} 0"#,
        r#"kubernetes_feature_enabled{name="DryRun",stage=""} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}
