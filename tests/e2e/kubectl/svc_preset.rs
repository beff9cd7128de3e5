//! kubectl with the svc preset: the plugin `deploy/kubectl-svc` maps API groups.

use super::{Kubectl, installed};
use crate::harness::{ControlPlane, Options};

/// Runs `deploy/kubectl-svc` with a kubeconfig.
fn run(kubectl: &Kubectl, line: &str) -> String {
    let plugin = prerequisites::repository().join("deploy/kubectl-svc");
    let output = std::process::Command::new(plugin)
        .args(line.split(' '))
        .env("KUBECTL", &kubectl.program)
        .env("KUBECONFIG", &kubectl.config)
        .env("HOME", kubectl.home())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("python3 runs the plugin");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs the plugin without a kubeconfig in the environment. The flags of the command line select the server.
fn run_with_flags(kubectl: &Kubectl) {
    let plugin = prerequisites::repository().join("deploy/kubectl-svc");
    let config = std::fs::read_to_string(&kubectl.config).expect("the kubeconfig");
    let other = kubectl.home().join("without-context.kubeconfig");
    std::fs::write(&other, config.replace("\"current-context\":\"plane\"", "\"current-context\":\"none\""))
        .expect("a kubeconfig");
    let output = std::process::Command::new(plugin)
        .args(["get", "roles", "-A", "--context", "plane"])
        .arg(format!("--kubeconfig={}", other.display()))
        .env("KUBECTL", &kubectl.program)
        .env("KUBECONFIG", "/no/such/file")
        .env("HOME", kubectl.home())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("python3 runs the plugin");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn session(kubectl: &Kubectl) {
    for (line, expected) in [
        ("auth can-i create roles", "yes"),
        ("explain role.rules", "rbac.authorization.k8s.io"),
        ("explain poddisruptionbudget", "GROUP:      policy"),
        ("create ns shop", "namespace/shop created"),
        (
            "create role viewer -n shop --verb=get --resource=pods,poddisruptionbudgets.policy",
            "viewer created",
        ),
        ("create rolebinding viewer -n shop --role=viewer --user=joe", "viewer created"),
        ("auth can-i get poddisruptionbudgets -n shop --as joe", "yes"),
        ("create pdb one -n shop --selector=a=b --min-available=1", "poddisruptionbudget.policy/one created"),
        ("get role viewer -n shop -o yaml", "  - policy\n"),
        ("create deployment web -n shop --image=web", "deployment.apps/web created"),
        ("auth whoami", "admin"),
        ("delete ns shop --wait=false", "deleted"),
    ] {
        let text = run(kubectl, line);
        assert!(text.contains(expected), "{line}: `{expected}` in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_plugin_works_with_svc_preset_and_keeps_its_names() {
    let Some(program) = installed("1.33") else { return };
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        return prerequisites::skip("python3", "python3 is not installed");
    }
    let plane = ControlPlane::start(Options::default()).await;
    let kubectl = Kubectl::new(program, "1.33", &plane, "admin");
    let watched = "/apis/rbac.authorization.svc.internal/v1/roles?watch=1";
    let mut watch = plane.admin().watch(watched).await;
    let ended = tokio::task::spawn_blocking(move || {
        session(&kubectl);
        run_with_flags(&kubectl);
    })
    .await;
    if let Err(error) = ended {
        panic!("{error}");
    }
    // The server has the groups of its preset.
    let role = loop {
        let event = watch.next().await.expect("an event");
        if event["object"]["metadata"]["name"] == "viewer" {
            break event["object"].clone();
        }
    };
    assert_eq!(role["apiVersion"], "rbac.authorization.svc.internal/v1");
    let groups: Vec<&str> = role["rules"]
        .as_array()
        .expect("rules")
        .iter()
        .filter_map(|rule| rule["apiGroups"][0].as_str())
        .collect();
    assert_eq!(groups, ["", "policy.svc.internal"]);
}
