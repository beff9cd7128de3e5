//! Explanations of decisions end to end: explanation kinds, commands and kubectl plugins.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, program};

/// The exit code of `matrix/page.mjs` when the browser does not start.
const NO_BROWSER: i32 = 77;

/// A server on which alice may get and list deployments in `a`.
async fn start(options: Options) -> ControlPlane {
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
    let rules = json!([{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]}]);
    plane.grant("a", "viewer", "User/alice", &rules).await;
    let kubeconfig = |user: &str| {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": plane.url(),
                "certificate-authority": plane.data_dir().join("certs/ca.crt")}}],
            "users": [{"name": "u", "user": {"token": format!("{user}-token")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "a"}}],
        });
        fs::write(plane.dir().join(format!("{user}.config")), config.to_string()).expect("a kubeconfig");
    };
    kubeconfig("admin");
    kubeconfig("alice");
    plane
}

/// Runs authd with the kubeconfig of a user.
fn authd(plane: &ControlPlane, user: &str, words: &[&str], input: &str) -> Output {
    let mut child = Command::new(program("authd"))
        .args(words)
        .env("KUBECONFIG", plane.dir().join(format!("{user}.config")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("authd starts");
    let mut stdin = child.stdin.take().expect("standard input");
    // A command that reads no input has closed the pipe.
    let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("authd ends")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn user_explains_own_requests_and_administrator_all() {
    let plane = start(Options::default()).await;
    let path = format!("{}/accessexplanations", plane.api("explain", "v1alpha1"));
    let spec = |verb: &str| json!({"resourceAttributes": {"verb": verb, "group": "apps", "resource": "deployments", "namespace": "a"}});
    let own = plane.user("alice").post(&path, &json!({"spec": spec("delete")})).await.expect(201);
    assert_eq!(own["status"]["allowed"], false);
    let manifest = own["status"]["manifest"].as_str().expect("a manifest");
    let names: Vec<&str> = own["status"]["authorizers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert!(names.contains(&"rbac"), "{own}");
    let mut other = spec("get");
    other["user"] = "bob".into();
    plane.user("alice").post(&path, &json!({"spec": other})).await.expect(403);
    plane.admin().post(&path, &json!({"spec": other})).await.expect(201);
    plane.anonymous().post(&path, &json!({"spec": spec("get")})).await.expect(403);
    assert_eq!(plane.admin().get(&path).await.status, 405, "explanations are created only");
    let tokens = format!("{}/tokenexplanations", plane.api("explain", "v1alpha1"));
    let token = json!({"spec": {"token": "alice-token"}});
    plane.user("alice").post(&tokens, &token).await.expect(403);
    let explained = plane.admin().post(&tokens, &token).await.expect(201);
    assert_eq!(explained["status"]["user"]["username"], "alice");
    assert!(!explained.to_string().contains("alice-token"), "{explained}");

    // The suggested objects allow the request.
    for document in manifest.split("---\n") {
        let kind = if document.contains("kind: RoleBinding") { "rolebindings" } else { "roles" };
        let path = format!("{}/namespaces/a/{kind}", plane.api("rbac.authorization", "v1"));
        let yaml = [("Content-Type", "application/yaml")];
        plane.admin().request("POST", &path, &yaml, document.as_bytes()).await.expect(201);
    }
    let again = plane.user("alice").post(&path, &json!({"spec": spec("delete")})).await.expect(201);
    assert_eq!(again["status"]["allowed"], true, "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_explain_access_over_the_api() {
    let plane = start(Options::kubernetes()).await;
    let why = authd(&plane, "alice", &["why", "me", "delete", "deploy"], "");
    assert_eq!(why.status.code(), Some(2), "{}", text(&why));
    assert!(
        text(&why).starts_with("# denied\n") && text(&why).contains("kind: RoleBinding"),
        "{}",
        text(&why)
    );
    let why = authd(&plane, "admin", &["why", "alice", "get", "deployments.apps", "-n", "a"], "");
    assert_eq!(why.status.code(), Some(0), "{}", text(&why));
    assert!(text(&why).contains("RoleBinding \"viewer/a\""), "{}", text(&why));
    let unlisted = authd(&plane, "alice", &["why", "me", "get", "nosuch"], "");
    assert!(text(&unlisted).contains("# the server has no resource `nosuch`"), "{}", text(&unlisted));
    let other = authd(&plane, "alice", &["why", "bob", "get", "deployments", "-n", "a"], "");
    assert_eq!(other.status.code(), Some(1), "{}", text(&other));

    let token = authd(&plane, "admin", &["why-token"], "alice-token\n");
    assert!(token.status.success() && text(&token).contains("valid for the user alice"), "{}", text(&token));
    let bad = authd(&plane, "admin", &["why-token"], "unknown-token");
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad));
    assert!(!text(&bad).contains("unknown-token"));

    let who = authd(&plane, "admin", &["who-can", "list", "deploy", "-n", "a"], "");
    assert!(text(&who).contains("User alice: RoleBinding \"viewer/a\" of Role \"viewer\""), "{}", text(&who));
    let nobody = authd(&plane, "admin", &["who-can", "list", "deploy", "-n", "default"], "");
    assert!(!text(&nobody).contains("alice"), "{}", text(&nobody));

    let cluster_wide = authd(&plane, "admin", &["who-can", "list", "deploy"], "");
    assert!(!text(&cluster_wide).contains("alice"), "{}", text(&cluster_wide));
    let comment = "# RoleBindings are not included; select a namespace with -n\n";
    assert!(text(&cluster_wide).ends_with(comment), "{}", text(&cluster_wide));
    let nodes = authd(&plane, "admin", &["who-can", "list", "nodes"], "");
    assert!(!text(&nodes).contains(comment), "{}", text(&nodes));

    let matrix = |format: &str| {
        let words =
            ["matrix", "-n", "a", "--resources", "deployments", "--verbs", "get,delete", "-o", format];
        text(&authd(&plane, "admin", &words, ""))
    };
    assert!(matrix("csv").contains("User,alice,deployments.apps,all,none\n"), "{}", matrix("csv"));
    let json: Value = serde_json::from_str(&matrix("json")).expect("JSON");
    assert_eq!(json["rows"][0]["access"], json!({"get": "all", "delete": "none"}), "{json}");
    assert!(matrix("html").starts_with("<!DOCTYPE html>"));
    assert!(matrix("text").contains("User alice"), "{}", matrix("text"));

    for (plugin, words, expected) in [
        ("kubectl-why", &["alice", "get", "deployments", "-n", "a"][..], "allowed"),
        ("kubectl-who_can", &["get", "deployments", "-n", "a"], "User alice"),
    ] {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/").to_owned() + plugin;
        let output = Command::new(file)
            .args(words)
            .env("AUTHD", program("authd"))
            .env("KUBECONFIG", plane.dir().join("admin.config"))
            .output()
            .expect("the plugin runs");
        assert!(output.status.success() && text(&output).contains(expected), "{plugin}: {}", text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn matrix_page_in_browser_filters_sorts_and_loads_no_outside_resource() {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let packages = format!("{repository}/target/matrix-page");
    if !std::path::Path::new(&packages).join("node_modules").is_dir() {
        prerequisites::skip(
            "matrix-page",
            "run `npm ci` in target/matrix-page with the packages of tests/e2e/matrix",
        );
        return;
    }
    let plane = start(Options::kubernetes()).await;
    let group = plane.names().group("rbac.authorization");
    let rbac = plane.api("rbac.authorization", "v1");
    let role = json!({"metadata": {"name": "named"}, "rules": [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"], "resourceNames": ["web"]}]});
    plane.admin().post(&format!("{rbac}/clusterroles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": "named"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "named"},
        "subjects": [{"kind": "User", "name": "zoe <script>"}, {"kind": "Group", "name": "bakers"}]});
    plane.admin().post(&format!("{rbac}/clusterrolebindings"), &binding).await.expect(201);
    let words = ["matrix", "-n", "a", "--resources", "deployments", "-o", "html"];
    let page = plane.dir().join("matrix.html");
    fs::write(&page, authd(&plane, "admin", &words, "").stdout).expect("the page");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/matrix/page.mjs");
    // The browser is unpacked below the packages.
    let command =
        Command::new("node").arg(script).arg(&page).arg(&packages).env("TMPDIR", &packages).output();
    let output = command.expect("node runs");
    if output.status.code() == Some(NO_BROWSER) {
        prerequisites::skip("matrix-page", text(&output).lines().next().unwrap_or_default());
        return;
    }
    assert!(output.status.success(), "{}", text(&output));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON line");
    // The service accounts of the default policy have rows too.
    let subjects = |list: &str| -> Vec<&str> {
        let names = found[list].as_array().expect("a list").iter().filter_map(Value::as_str);
        names.filter(|name| !name.starts_with("kube-system/")).collect()
    };
    assert_eq!(subjects("all"), ["alice", "zoe <script>", "bakers"], "{found}");
    assert_eq!((&found["filtered"], &found["count"]), (&json!(["alice"]), &json!("1 row")), "{found}");
    assert_eq!(subjects("ascending"), ["alice", "bakers", "zoe <script>"], "{found}");
    assert_eq!(subjects("descending"), ["zoe <script>", "bakers", "alice"], "{found}");
    assert_eq!(
        (&found["sorted"], &found["named"]),
        (&json!("descending"), &json!(["zoe <script>", "bakers"]))
    );
    for empty in ["violations", "outside", "errors"] {
        assert_eq!(found[empty], json!([]), "{empty}: {found}");
    }
}
