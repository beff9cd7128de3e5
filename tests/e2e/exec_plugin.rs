//! kubectl with an exec credential plugin: tokens, certificates, plugin input (requirements A-EXEC).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use serving::certs::Authority;
use tests::harness::{ControlPlane, Options};

use crate::e2e::kubectl::installed;

/// Writes a kubeconfig with the exec plugin `./bin/plugin`.
///
/// The plugin logs each run with its input and prints the file `printed`.
fn configure(plane: &ControlPlane, version: &str) {
    let dir = plane.dir().join("exec");
    fs::create_dir_all(dir.join("bin")).expect("a folder");
    let plugin = dir.join("bin/plugin");
    let script = "#!/bin/sh\ncd \"$(dirname \"$0\")/..\"\necho \"$1 $WORD $KUBERNETES_EXEC_INFO\" >> runs\ncat printed\n";
    fs::write(&plugin, script).expect("the plugin");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("an executable");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "it", "cluster": {
            "server": plane.url(),
            "certificate-authority": plane.data_dir().join("certs/ca.crt"),
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "it"}}],
        }}],
        "users": [{"name": "me", "user": {"exec": {
            "apiVersion": version, "command": "./bin/plugin", "args": ["given"],
            "env": [{"name": "WORD", "value": "word"}], "provideClusterInfo": true, "interactiveMode": "Never",
        }}}],
        "contexts": [{"name": "here", "context": {"cluster": "it", "user": "me"}}],
    });
    fs::write(dir.join("config"), config.to_string()).expect("the configuration");
}

fn prints(plane: &ControlPlane, version: &str, status: &serde_json::Value) {
    let printed = json!({"kind": "ExecCredential", "apiVersion": version, "status": status});
    fs::write(plane.dir().join("exec/printed"), printed.to_string()).expect("the plugin output");
}

fn whoami(plane: &ControlPlane, kubectl: &std::path::Path) -> Result<String, String> {
    let output = Command::new(kubectl)
        .env("KUBECONFIG", plane.dir().join("exec/config"))
        .env("HOME", plane.dir())
        .current_dir("/")
        .args(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
        .output()
        .expect("kubectl runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_authenticates_with_exec_plugin_credentials() {
    // `kubectl auth whoami` uses the stable SelfSubjectReview since 1.28.
    let Some(kubectl) = installed("1.33") else { return };
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let now = Timestamp::now();
    let dir = plane.dir().to_owned();
    let authority = Authority::load(&dir.join("client-ca.crt"), &dir.join("client-ca.key")).expect("the CA");
    let jane = authority.client("jane", &[], Duration::from_secs(3600), now).expect("a certificate");
    for version in ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"] {
        configure(&plane, version);
        for (status, want) in [
            (json!({"token": "alice-token"}), Some("alice")),
            (json!({"clientCertificateData": jane.cert, "clientKeyData": jane.key}), Some("jane")),
            (json!({"token": "nobody's"}), None),
        ] {
            fs::write(dir.join("exec/runs"), "").expect("the log of runs");
            prints(&plane, version, &status);
            let got = whoami(&plane, &kubectl);
            match want {
                Some(name) => assert_eq!(got.as_deref(), Ok(name)),
                None => assert!(got.is_err(), "{got:?}"),
            }
            let runs = fs::read_to_string(dir.join("exec/runs")).expect("the log of runs");
            assert!(runs.starts_with("given word {"), "{runs}");
            for expected in [version, "\"audience\":\"it\"", "\"interactive\":false", plane.url().as_str()] {
                assert!(runs.contains(expected), "{expected} in {runs}");
            }
        }
    }
}
