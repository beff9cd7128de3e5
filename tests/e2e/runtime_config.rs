//! `--runtime-config` and `--emulated-version`: versions that are off by default, disabled versions, and versions of
//! later releases.

use serde_json::{Value, json};
use tests::harness::{AuditLog, ControlPlane, Options, eventually};

/// The versions of all groups in discovery.
async fn versions(plane: &ControlPlane) -> Vec<String> {
    let groups = plane.admin().get("/apis").await.expect(200);
    let versions = groups["groups"].as_array().expect("groups").iter();
    let versions = versions.flat_map(|group| group["versions"].as_array().expect("versions"));
    versions.map(|version| version["groupVersion"].as_str().expect("a version").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_off_by_default_are_served_when_enabled() {
    for preset in [Options::default(), Options::kubernetes()] {
        let mut plane = ControlPlane::start(preset).await;
        let alpha = format!("{}/storageversions", plane.api("internal.apiserver", "v1alpha1"));
        let beta = format!("{}/servicecidrs", plane.api("networking", "v1beta1"));
        for path in [&alpha, &beta] {
            plane.admin().get(path).await.expect(404);
        }
        let is_stable = |version: &String| !version.contains("alpha") && !version.contains("beta");
        assert!(versions(&plane).await.iter().all(is_stable));

        plane.relaunch_with(&["--runtime-config=api/all=true"]).await;
        let admin = plane.admin();
        let names = versions(&plane).await;
        let off = names.iter().filter(|version| !is_stable(version));
        for version in off.clone() {
            let (_, version) = version.split_once('/').expect("a group version");
            let rest = version.trim_start_matches(|c: char| c == 'v' || c.is_ascii_digit());
            let number = rest.strip_prefix("alpha").or_else(|| rest.strip_prefix("beta"));
            assert!(number.is_some_and(|number| number.parse::<u32>().is_ok()), "{version}");
        }
        assert!(off.count() >= 12, "{names:?}");
        admin.get(&alpha).await.expect(200);
        // Both versions serve one object.
        let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.99.0.0/24"]}});
        let created = admin.post(&beta, &range).await.expect(201);
        assert_eq!(format!("/apis/{}/servicecidrs", created["apiVersion"].as_str().unwrap()), beta);
        let stable = format!("{}/servicecidrs/more", plane.api("networking", "v1"));
        assert_eq!(admin.get(&stable).await.expect(200)["metadata"]["uid"], created["metadata"]["uid"]);
        let documents = admin.get("/openapi/v3").await.expect(200);
        let documents = documents["paths"].as_object().expect("paths");
        assert!(names.iter().all(|version| documents.contains_key(&format!("apis/{version}"))));

        let deprecated =
            format!("{}/validatingadmissionpolicies", plane.api("admissionregistration", "v1beta1"));
        let list = admin.get(&deprecated).await;
        list.expect(200);
        let warning = list.header("warning").to_owned();
        assert!(warning.contains("ValidatingAdmissionPolicy is deprecated in v1.31+"), "{warning}");

        let review = json!({});
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let path = format!("{}/selfsubjectreviews", plane.api("authentication", version));
            let answer = admin.post(&path, &review).await.expect(201);
            assert_eq!(format!("/apis/{}/selfsubjectreviews", answer["apiVersion"].as_str().unwrap()), path);
            assert_eq!(answer["status"]["userInfo"]["username"], "admin");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_version_with_removal_release_has_annotation_and_metric() {
    let audit = AuditLog::new();
    let options = Options::kubernetes()
        .flag("--runtime-config=admissionregistration.k8s.io/v1beta1")
        .flag(&audit.flag());
    let mut plane = ControlPlane::start(options).await;
    let path = format!("{}/validatingadmissionpolicies", plane.api("admissionregistration", "v1beta1"));
    let response = plane.admin().get(&path).await;
    response.expect(200);
    assert!(response.header("warning").contains("unavailable in v1.34+"), "{}", response.header("warning"));
    let metrics = plane.admin().get("/metrics").await.text();
    let is_deprecated = |line: &&str| {
        line.starts_with("apiserver_requested_deprecated_apis{")
            && line.contains(r#"removed_release="1.34""#)
            && line.contains(r#"resource="validatingadmissionpolicies""#)
            && line.ends_with(" 1")
    };
    assert!(metrics.lines().any(|line| is_deprecated(&line)), "{metrics}");
    plane.stop().await;
    let mut of_request = audit.events();
    of_request.retain(|event| event["requestURI"] == path.as_str() && event["stage"] == "ResponseComplete");
    assert!(!of_request.is_empty(), "{:?}", audit.events());
    for event in &of_request {
        let annotations = &event["annotations"];
        assert_eq!(annotations["k8s.io/deprecated"], "true", "{event}");
        assert_eq!(annotations["k8s.io/removed-release"], "1.34", "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_version_is_not_served_and_keeps_its_objects() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let policy = plane.api("policy", "v1");
    let group = policy.trim_start_matches("/apis/").to_owned();
    let budgets = format!("{policy}/namespaces/default/poddisruptionbudgets");
    let budget = json!({"metadata": {"name": "kept"}, "spec": {"minAvailable": 1}});
    let created = plane.admin().post(&budgets, &budget).await.expect(201);

    plane.relaunch_with(&[&format!("--runtime-config={group}=false,batch/v1=false,api/alpha=false")]).await;
    let admin = plane.admin();
    admin.get(&budgets).await.expect(404);
    admin.get(&policy).await.expect(404);
    admin.get("/apis/batch/v1/jobs").await.expect(404);
    let names = versions(&plane).await;
    assert!(!names.contains(&group) && !names.iter().any(|name| name == "batch/v1"), "{names:?}");
    let documents = admin.get("/openapi/v3").await.expect(200);
    assert_eq!(documents["paths"]["apis/batch/v1"], Value::Null);

    plane.relaunch_with(&[]).await;
    let kept = plane.admin().get(&format!("{budgets}/kept")).await.expect(200);
    assert_eq!(kept["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn single_resource_of_version_can_be_enabled() {
    let plane = ControlPlane::new_stopped(Options::default());
    let resource = plane.api("resource", "v1beta1").trim_start_matches("/apis/").to_owned();
    let storage = plane.api("storage", "v1alpha1").trim_start_matches("/apis/").to_owned();
    let flag = format!("--runtime-config={resource}/resourceclaims=true,{storage}");
    let plane = ControlPlane::start(Options::default().flag(&flag)).await;
    let admin = plane.admin();
    admin.get(&format!("/apis/{resource}/resourceclaims")).await.expect(200);
    admin.get(&format!("/apis/{resource}/resourceslices")).await.expect(404);
    let list = admin.get(&format!("/apis/{resource}")).await.expect(200);
    let entries: Vec<&Value> =
        list["resources"].as_array().expect("resources").iter().map(|r| &r["name"]).collect();
    assert_eq!(entries, ["resourceclaims", "resourceclaims/status"]);
    // Only the alpha version is served; the objects are stored in the beta version.
    let classes = format!("/apis/{storage}/volumeattributesclasses");
    let class = json!({"metadata": {"name": "fast"}, "driverName": "d.example", "parameters": {"iops": "9"}});
    let created = admin.post(&classes, &class).await.expect(201);
    assert_eq!(created["apiVersion"], storage.as_str());
}

/// Returns a definition with two versions; one is the storage version.
fn two_versions(storage: &str) -> Value {
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == storage, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version("v1"), version("v2")]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_migration_rewrites_all_objects_of_resource() {
    let flags = ["--runtime-config=api/alpha", "--feature-gates=StorageVersionMigrator=true"];
    let options = flags.iter().fold(Options::kubernetes(), |options, flag| options.flag(flag));
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let definitions = format!("{}/customresourcedefinitions", plane.api("apiextensions", "v1"));
    admin.post(&definitions, &two_versions("v1")).await.expect(201);
    let widgets = "/apis/shop.example.com/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": {"name": "a"}});
    let created = eventually("the served kind", || async {
        let response = admin.post(widgets, &widget).await;
        (response.status == 201).then(|| response.json())
    })
    .await;
    let storage_hash = || async {
        let list = admin.get("/apis/shop.example.com/v1").await.expect(200);
        list["resources"][0]["storageVersionHash"].clone()
    };
    let hash = storage_hash().await;
    let path = format!("{definitions}/widgets.shop.example.com");
    let change = json!({"spec": two_versions("v2")["spec"]});
    admin.patch(&path, "application/merge-patch+json", &change).await.expect(200);
    eventually("the storage version", || async { (storage_hash().await != hash).then_some(()) }).await;

    let migrations = format!("{}/storageversionmigrations", plane.api("storagemigration", "v1alpha1"));
    let resource = json!({"group": "shop.example.com", "version": "v2", "resource": "widgets"});
    let migration =
        |name: &str, resource: &Value| json!({"metadata": {"name": name}, "spec": {"resource": resource}});
    let ended = |name: &'static str, kind: &'static str| {
        let (admin, path) = (&admin, format!("{migrations}/{name}"));
        async move {
            eventually(kind, || async {
                let migration = admin.get(&path).await.expect(200);
                let conditions = migration["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let is_ended = |c: &Value| c["type"] == kind && c["status"] == "True";
                conditions.iter().any(is_ended).then_some(migration)
            })
            .await
        }
    };
    admin.post(&migrations, &migration("widgets", &resource)).await.expect(201);
    let done = ended("widgets", "Succeeded").await;
    assert_ne!(done["status"]["resourceVersion"], Value::Null, "{done}");
    let rewritten = admin.get(&format!("{widgets}/a")).await.expect(200);
    assert_eq!(rewritten["metadata"]["uid"], created["metadata"]["uid"]);
    assert_ne!(rewritten["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    // A second migration finds nothing to rewrite.
    admin.post(&migrations, &migration("again", &resource)).await.expect(201);
    ended("again", "Succeeded").await;
    let unchanged = admin.get(&format!("{widgets}/a")).await.expect(200);
    assert_eq!(unchanged["metadata"]["resourceVersion"], rewritten["metadata"]["resourceVersion"]);

    let unknown = json!({"version": "v1", "resource": "nosuch"});
    admin.post(&migrations, &migration("unknown", &unknown)).await.expect(201);
    ended("unknown", "Failed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emulated_version_serves_versions_and_gates_of_release() {
    let mut plane = ControlPlane::start(Options::kubernetes()).await;
    let ranges = format!("{}/servicecidrs", plane.api("networking", "v1"));
    let stored = plane.admin().get(&ranges).await.expect(200)["items"].clone();

    plane.relaunch_with(&["--emulated-version=1.32"]).await;
    let admin = plane.admin();
    admin.get(&ranges).await.expect(404);
    let list = admin.get("/apis/networking.k8s.io/v1").await.expect(200);
    let names: Vec<&str> =
        list["resources"].as_array().expect("resources").iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"ingresses") && !names.contains(&"servicecidrs"), "{names:?}");
    let version = admin.get("/version").await.expect(200);
    assert_eq!((&version["minor"], &version["emulationMinor"]), (&"33".into(), &"32".into()));
    assert_eq!(version["minCompatibilityMinor"], "31");
    let metrics = admin.get("/metrics").await.text();
    let line = r#"kubernetes_feature_enabled{name="WatchList",stage="BETA"} 1"#;
    assert!(metrics.contains(line), "WatchList is on in 1.32 and off in 1.33");
    assert!(!metrics.contains(r#"name="ListFromCacheSnapshot""#), "a gate of 1.33");

    plane
        .relaunch_with(&["--emulated-version=1.32", "--runtime-config=networking.k8s.io/v1beta1=true"])
        .await;
    let beta = format!("{}/servicecidrs", plane.api("networking", "v1beta1"));
    let items = plane.admin().get(&beta).await.expect(200)["items"].clone();
    assert_eq!(items[0]["metadata"]["uid"], stored[0]["metadata"]["uid"], "the object of the later version");
}
