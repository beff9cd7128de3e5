//! End-to-end tests of the authorization configuration file: effect, start-up errors, hot reload.
//!
//! Requirements A-AZC, A-MODE-13 to 16. tests/e2e/webhooks.rs tests the webhooks of the file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tests::harness::{ControlPlane, Options, eventually};

const RBAC: &str = "- {type: RBAC, name: rbac}";

fn text(authorizers: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}\n"
    )
}

/// Writes the file to a temporary folder and returns options that refer to the file.
fn with_file(content: &str) -> (tempfile::TempDir, PathBuf, Options) {
    let dir = tempfile::tempdir().expect("a folder for the file");
    let path = dir.path().join("authorization.yaml");
    std::fs::write(&path, content).expect("the file");
    let flag = format!("--authorization-config={}", path.display());
    let options = Options { mode: String::new(), ..Options::kubernetes() }.flag(&flag);
    // Some of these files contain AlwaysAllow; the flag keeps anonymous authentication enabled in all cases.
    (dir, path, options.flag("--metrics-address=127.0.0.1:0").flag("--anonymous-auth=true"))
}

/// Grants carol the right to list namespaces.
async fn grant(plane: &ControlPlane) {
    let rules = json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}]);
    plane.grant("", "look", "User/carol", &rules).await;
}

async fn code(plane: &ControlPlane, user: &str) -> u16 {
    plane.user(user).get("/api/v1/namespaces").await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn authorization_config_enables_named_authorizers() {
    let (_dir, _path, options) = with_file(&text(&format!("- {{type: Node, name: node}}\n{RBAC}")));
    let plane = ControlPlane::start(options).await;
    assert_eq!(code(&plane, "carol").await, 403);
    grant(&plane).await;
    assert_eq!((code(&plane, "carol").await, code(&plane, "bob").await), (200, 403));
    plane.certificate("system:node:n1", &["system:nodes"]).get("/api/v1/services").await.expect(200);
    let metrics = plane.authd_get("/metrics").await;
    for (kind, name) in [("RBAC", "rbac"), ("Node", "node")] {
        let line = format!(
            "apiserver_authorization_decisions_total{{type=\"{kind}\",name=\"{name}\",decision=\"allowed\"}} "
        );
        let count = metrics.lines().find_map(|held| held.strip_prefix(&line)).expect(&line);
        assert!(count.trim().parse::<u64>().expect("a number") > 0, "{line}{count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_or_invalid_authorization_config_fails_startup() {
    let good = text(RBAC);
    for (content, flags, want) in [
        (
            good.as_str(),
            &["--authorization-mode=RBAC"][..],
            "--authorization-config can not be specified when",
        ),
        (&good, &["--authorization-webhook-version=v1"], "--authorization-config can not be specified when"),
        (
            &good,
            &["--feature-gates=StructuredAuthorizationConfiguration=false"],
            "StructuredAuthorizationConfiguration",
        ),
        (&text("- {type: RBAC, name: a, nmae: b}"), &[], "line 4: strict decoding error: unknown field"),
        (&text("- {type: RBAC, name: Bad_Name}"), &[], "authorizers[0].name: Invalid value"),
        ("{", &[], "authorization.yaml: line 1"),
    ] {
        let (_dir, _path, options) = with_file(content);
        let options = flags.iter().fold(options, |options, flag| options.flag(flag));
        let plane = ControlPlane::new_stopped(options);
        let child = plane.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let ended = tokio::task::spawn_blocking(|| child.expect("apid starts").wait_with_output());
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        let output = ended.expect("apid exits").expect("a thread").expect("its output");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(want),
            "{flags:?} {content}: {}\n{stderr}",
            output.status
        );
    }
}

fn rewrite(path: &Path, content: &str) {
    std::fs::write(path, content).expect("the file");
}

fn swap(path: &Path, content: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, content).expect("the next file");
    std::fs::rename(next, path).expect("the file is replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn authorization_config_hot_reload_keeps_last_known_good() {
    let (_dir, path, options) = with_file(&text(RBAC));
    let plane = ControlPlane::start(options).await;
    grant(&plane).await;
    let everybody = format!("{RBAC}\n- {{type: AlwaysAllow, name: alwaysallow}}");
    let reloads = async |status: &str| {
        let name = format!(
            "apiserver_authorization_config_controller_automatic_reloads_total{{apiserver_id_hash=\"\",status=\"{status}\"}} "
        );
        let metrics = plane.authd_get("/metrics").await;
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    for (round, (write, authorizers, bob, good)) in [
        (swap as fn(&Path, &str), everybody.as_str(), 200, true),
        (rewrite, "- {type: Nonsense, name: a}", 200, false),
        (swap, "- {type: AlwaysAllow, name: alwaysallow}", 200, false),
        (rewrite, RBAC, 403, true),
        (rewrite, "- {", 403, false),
        (swap, everybody.as_str(), 200, true),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, before) = (
            if good { "success" } else { "failure" },
            reloads(if good { "success" } else { "failure" }).await,
        );
        write(&path, &text(authorizers));
        eventually("authd processes the changed file", || async {
            (reloads(status).await > before).then_some(())
        })
        .await;
        eventually("apid decides with the new configuration", || async {
            (code(&plane, "bob").await == bob).then_some(())
        })
        .await;
        assert_eq!(code(&plane, "carol").await, 200, "round {round}: RBAC grants stay in force");
        let ready = plane.admin().get("/readyz?verbose").await;
        assert_eq!(ready.status, 200, "{}", ready.text());
        eventually("/readyz reports the invalid file", || async {
            let is_reported =
                plane.admin().get("/readyz?verbose").await.text().contains("authorization configuration");
            (is_reported != good).then_some(())
        })
        .await;
    }
    assert!(
        plane.log().contains("a reload cannot remove the authorizer types of the start, and RBAC is missing")
    );
    let reloads = |metrics: String| {
        let lines = metrics.lines().filter(|line| line.contains("config_controller_automatic_reload"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let of_authd = reloads(plane.authd_get("/metrics").await);
    for status in ["success", "failure"] {
        let name = format!(
            "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds{{apiserver_id_hash=\"\",status=\"{status}\"}} "
        );
        let seconds = of_authd.iter().find_map(|line| line.strip_prefix(&name)?.trim().parse::<f64>().ok());
        let now = jiff::Timestamp::now().as_second() as f64;
        assert!(seconds.is_some_and(|seconds| (now - 600.0..=now + 1.0).contains(&seconds)), "{of_authd:#?}");
    }
    eventually("apid serves the counters of authd", || async {
        (reloads(plane.admin().get("/metrics").await.text()) == of_authd).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_authorizer_ends_watch() {
    let (_dir, path, options) = with_file(&text(RBAC));
    let plane = ControlPlane::start(options).await;
    swap(&path, &text(&format!("{RBAC}\n- {{type: AlwaysAllow, name: alwaysallow}}")));
    eventually("AlwaysAllow is in force", || async { (code(&plane, "bob").await == 200).then_some(()) })
        .await;
    let mut watch = plane.user("bob").watch("/api/v1/namespaces?watch=1").await;
    assert_eq!(watch.next().await.expect("the initial ADDED event")["type"], "ADDED");
    swap(&path, &text(RBAC));
    let ended = async {
        while let Some(event) = watch.next().await {
            if event["type"] == "ERROR" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the watch ends");
    assert_eq!(code(&plane, "bob").await, 403);
}
