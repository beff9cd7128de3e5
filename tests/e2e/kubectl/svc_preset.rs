//! kubectl with the svc preset: the plugin `deploy/kubectl-svc` maps API groups and OpenAPI extensions.

use tests::harness::{ControlPlane, Options};

use super::{Kubectl, installed};

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

/// A definition with the extension names of Kubernetes. A property may have such a name too.
const DEFINITION: &str = r#"{
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.shop.example.com"},
    "spec": {
        "group": "shop.example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object",
            "x-kubernetes-validations": [{"rule": "has(self.part)"}],
            "properties": {
                "x-kubernetes-map-type": {"type": "string"},
                "part": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true
                }
            }
        }}}]
    }
}"#;

/// Applies a definition with the extension names of Kubernetes; responses have these names too.
fn apply_definition(kubectl: &Kubectl) {
    let file = kubectl.home().join("definition.json");
    std::fs::write(&file, DEFINITION).expect("the definition");
    let line = format!("apply -f {}", file.display());
    for expected in ["widgets.shop.example.com created", "widgets.shop.example.com unchanged"] {
        let text = run(kubectl, &line);
        assert!(text.contains(expected), "`{expected}` in {text}");
    }
    let text = run(kubectl, "get crd widgets.shop.example.com -o yaml");
    assert!(text.contains("x-kubernetes-embedded-resource: true") && !text.contains("x-svc-"), "{text}");
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
    let admin = plane.admin();
    let watched = "/apis/rbac.authorization.svc.internal/v1/roles?watch=1";
    let mut watch = plane.admin().watch(watched).await;
    let ended = tokio::task::spawn_blocking(move || {
        session(&kubectl);
        apply_definition(&kubectl);
        run_with_flags(&kubectl);
    })
    .await;
    if let Err(error) = ended {
        panic!("{error}");
    }
    // The server has the names of its preset.
    let path = "/apis/apiextensions.svc.internal/v1/customresourcedefinitions/widgets.shop.example.com";
    let definition = admin.get(path).await.expect(200);
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(schema["x-svc-validations"].is_array(), "{schema}");
    assert_eq!(schema["properties"]["part"]["x-svc-embedded-type"], true, "{schema}");
    assert_eq!(schema["properties"]["x-kubernetes-map-type"]["type"], "string", "{schema}");
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
