//! A migration as in the guide: `apid deprecations` finds old manifests and requests, `apid convert` converts
//! the manifests, the server accepts them, and then `apid deprecations` finds nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tests::harness::{AuditLog, Client, ControlPlane, Options, program};

const OLD: &str = "\
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: web, namespace: default}
spec:
  rules:
  - host: h.example.com
    http: {paths: [{path: /, backend: {serviceName: web, servicePort: 80}}]}
---
apiVersion: apps/v1beta1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: policy/v1beta1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
";

fn apid(arguments: &[&str]) -> Output {
    apid_without_names(&[arguments, &["--names", "kubernetes"]].concat())
}

fn apid_without_names(arguments: &[&str]) -> Output {
    Command::new(program("apid")).args(arguments).output().expect("apid runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The subjects that `apid deprecations` finds in a source.
fn subjects(arguments: &[&str]) -> Vec<String> {
    let output = apid(&[&["deprecations", "-o", "json"][..], arguments].concat());
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a list of findings");
    let subjects: Vec<String> =
        findings.iter().map(|finding| finding["subject"].as_str().unwrap_or_default().to_owned()).collect();
    let code = if subjects.is_empty() { 0 } else { 2 };
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    subjects
}

async fn apply(client: &Client, manifest: &Value) -> Value {
    let (group, plural) = match manifest["kind"].as_str() {
        Some("Ingress") => ("networking.k8s.io/v1", "ingresses"),
        Some("Deployment") => ("apps/v1", "deployments"),
        _ => ("policy/v1", "poddisruptionbudgets"),
    };
    assert_eq!(manifest["apiVersion"], group);
    let name = manifest["metadata"]["name"].as_str().expect("a name");
    let path = format!("/apis/{group}/namespaces/default/{plural}/{name}?fieldManager=migration");
    client.patch(&path, "application/apply-patch+yaml", manifest).await.expect(201)
}

#[tokio::test]
async fn old_manifests_and_requests_are_found_converted_and_applied() {
    let dir = tempfile::tempdir().expect("a folder");
    let audit = AuditLog::new();
    let options = Options::kubernetes().flag(&audit.flag());
    let mut plane = ControlPlane::start(options).await;
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    for folder in [&old, &new] {
        fs::create_dir(folder).expect("a folder");
    }
    let (old_file, new_file) = (old.join("web.yaml"), new.join("web.json"));
    fs::write(&old_file, OLD).expect("the manifests");

    // The server no longer has the old versions; requests to deprecated versions get a warning and are
    // counted in metrics.
    let admin = plane.admin();
    admin.get("/apis/extensions/v1beta1/namespaces/default/ingresses").await.expect(404);
    let response = admin.get("/api/v1/namespaces/default/endpoints").await;
    assert!(
        response.header("warning").contains("v1 Endpoints is deprecated in v1.33+"),
        "{}",
        response.text()
    );
    let expected =
        ["apps/v1beta1 Deployment", "extensions/v1beta1 Ingress", "policy/v1beta1 PodDisruptionBudget"];
    assert_eq!(subjects(&["--manifests", path(&old)]), expected);
    let token = dir.path().join("token");
    fs::write(&token, "admin-token").expect("the token");
    let authority = plane.data_dir().join("certs/ca.crt");
    let server = ["--token-file", path(&token), "--certificate-authority", path(&authority)];
    let subjects_of_metrics = |plane: &ControlPlane| {
        let url = format!("{}/metrics", plane.url());
        subjects(&[&["--metrics", url.as_str()][..], &server[..]].concat())
    };
    assert_eq!(subjects_of_metrics(&plane), ["v1 Endpoints"]);

    // The converted manifests keep the meaning and are accepted.
    let converted = apid(&["convert", "-f", path(&old_file), "-o", "json"]);
    assert!(converted.status.success(), "{}", text(&converted.stderr));
    let warnings = text(&converted.stderr);
    assert!(warnings.contains("Warning: Deployment `web`: spec.selector: "), "{warnings}");
    assert!(!warnings.contains("will reject"), "{warnings}");
    fs::write(&new_file, &converted.stdout).expect("the converted manifests");
    assert_eq!(subjects(&["--manifests", path(&new)]), [""; 0]);
    let list: Value = serde_json::from_slice(&converted.stdout).expect("a List");
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(3)));
    for manifest in list["items"].as_array().expect("items") {
        let created = apply(&admin, manifest).await;
        if created["kind"] == "Deployment" {
            assert_eq!(created["spec"]["revisionHistoryLimit"], 2, "the default of the old version");
        }
    }

    // The audit log has the old use, and after the migration metrics and audit log have none.
    plane.stop().await;
    assert_eq!(subjects(&["--audit", path(&audit.path())]), ["extensions/v1beta1 Ingress", "v1 Endpoints"]);
    fs::remove_file(audit.path()).expect("the audit log");
    plane.launch().await;
    plane.admin().get("/apis/networking.k8s.io/v1/namespaces/default/ingresses/web").await.expect(200);
    assert_eq!(subjects_of_metrics(&plane), [""; 0]);
    plane.stop().await;
    assert_eq!(subjects(&["--audit", path(&audit.path())]), [""; 0], "{:?}", audit.events());
}

#[tokio::test]
async fn invalid_command_lines_of_migration_commands_exit_64_with_all_errors() {
    for (arguments, errors) in [
        (
            &["convert", "--output-version", "a/b/c"][..],
            &["`--filename` is missing", "`--output-version=a/b/c`"][..],
        ),
        (&["deprecations", "--client-key", "k"], &["no source", "need each other"]),
    ] {
        let output = apid(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        for error in errors {
            assert!(text(&output.stderr).contains(error), "{}", text(&output.stderr));
        }
    }
    let output = apid(&["convert", "-f", "/nonexistent"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
}

#[tokio::test]
async fn manifests_with_groups_of_kubernetes_need_its_names() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("policy.yaml");
    let policy = "apiVersion: policy/v1beta1\nkind: PodSecurityPolicy\nmetadata: {name: web}\n";
    fs::write(&file, policy).expect("the manifest");
    let found = apid_without_names(&["deprecations", "--manifests", path(dir.path())]);
    assert_eq!(found.status.code(), Some(2));
    assert!(text(&found.stdout).starts_with("policy/v1beta1 PodSecurityPolicy: removed in 1.25"));
    let converted = apid_without_names(&["convert", "-f", path(&file)]);
    assert_eq!((converted.status.code(), text(&converted.stdout)), (Some(1), String::new()));
    assert!(text(&converted.stderr).contains("`--names kubernetes`"), "{}", text(&converted.stderr));

    let ingress = "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: web}\n";
    fs::write(&file, ingress).expect("the manifest");
    let convert_to =
        |version: &str| apid_without_names(&["convert", "-f", path(&file), "--output-version", version]);
    for (version, code, error) in [
        ("networking.k8s.io/v1", 64, "use `--names kubernetes`"),
        ("networking.svc.internal/v7", 64, "no built-in kind has the version"),
        ("apps/v1", 1, "no manifest of the input converts to this version"),
    ] {
        let output = convert_to(version);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), String::new()), "{version}");
        assert!(text(&output.stderr).contains(error), "{}", text(&output.stderr));
    }
    assert_eq!(convert_to("networking.svc.internal/v1").status.code(), Some(0));
}
