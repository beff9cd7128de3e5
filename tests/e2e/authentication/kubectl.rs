//! kubectl authentication during key and CA rotation: certificate, `kubectl create token`, `--as`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually};

use super::{Ca, path_flag};
use crate::e2e::kubectl::installed;

/// kubectl with a separate kubeconfig.
struct KubectlUser {
    program: PathBuf,
    config: PathBuf,
}

impl KubectlUser {
    fn new(program: &Path, plane: &ControlPlane, name: &str, user: Value) -> KubectlUser {
        let config = plane.dir().join(format!("{name}.kubeconfig"));
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": {"server": plane.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": name}}],
        });
        fs::write(&config, content.to_string()).expect("the configuration file");
        KubectlUser { program: program.to_owned(), config }
    }

    /// Runs a command and returns its standard output, or its standard error on failure.
    async fn run(&self, line: &str) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.config).args(line.split_whitespace());
        command.env("HOME", self.config.parent().expect("a folder"));
        let ran = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("the program runs")
            .expect("kubectl starts");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if ran.status.success() { Ok(text(ran.stdout)) } else { Err(text(ran.stderr)) }
    }

    async fn ok(&self, line: &str) -> String {
        self.run(line).await.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The user name that `kubectl auth whoami` prints, or `None` if authentication fails.
    async fn whoami(&self, more: &str) -> Option<String> {
        match self.run(&format!("auth whoami -o jsonpath={{.status.userInfo.username}} {more}")).await {
            Ok(name) => Some(name),
            Err(error) => {
                assert!(error.contains("Unauthorized") || error.contains("logged in"), "{error}");
                None
            }
        }
    }
}

fn certificate(ca: &Ca, user: &str, groups: &[&str]) -> Value {
    let pair = ca.pair(user, groups);
    json!({"client-certificate-data": STANDARD.encode(&pair.cert), "client-key-data": STANDARD.encode(&pair.key)})
}

#[tokio::test]
async fn kubectl_authenticates_during_key_and_ca_rotation() {
    let Some(program) = installed("1.33") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (old, new) = (Ca::new(dir.path(), "old"), Ca::new(dir.path(), "new"));
    let (authorities, keys) = (dir.path().join("ca.crt"), dir.path().join("keys.pem"));
    fs::write(&authorities, old.pem()).expect("the CA bundle");
    let (first, second) =
        (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
    fs::write(&keys, first.serialize_pem()).expect("the keys");
    let options = Options::kubernetes()
        .flag(&path_flag("client-ca-file", &authorities))
        .flag(&path_flag("service-account-key-file", &keys));
    let plane = ControlPlane::start(options).await;

    let root = KubectlUser::new(&program, &plane, "root", certificate(&old, "root", &["system:masters"]));
    assert_eq!(root.whoami("").await.as_deref(), Some("root"));
    assert_eq!(root.whoami("--as=jane --as-group=dev").await.as_deref(), Some("jane"));
    let rejected = root.run("get configmaps --as=jane").await.expect_err("jane is forbidden");
    assert!(rejected.contains("User \"jane\" cannot list"), "{rejected}");
    root.ok("create serviceaccount robot").await;
    let issue = async || {
        let token = root.ok("create token robot").await;
        json!({"token": token.trim()})
    };
    let robot = KubectlUser::new(&program, &plane, "robot", issue().await);
    let account = Some("system:serviceaccount:default:robot");
    assert_eq!(robot.whoami("").await.as_deref(), account);
    let rejected =
        robot.run("get configmaps --as=jane").await.expect_err("the robot cannot impersonate jane");
    assert!(rejected.contains("cannot impersonate"), "{rejected}");

    // Key rotation: old tokens stay valid while the file contains their key.
    fs::write(&keys, second.serialize_pem() + &first.public_key_pem()).expect("the keys");
    eventually("the new key in the JWKS", || async {
        let keys = plane.admin().get("/openid/v1/jwks").await.expect(200)["keys"].clone();
        (keys.as_array().map(Vec::len) == Some(2)).then_some(())
    })
    .await;
    let later = KubectlUser::new(&program, &plane, "later", issue().await);
    for user in [&robot, &later] {
        assert_eq!(user.whoami("").await.as_deref(), account);
    }
    fs::write(&keys, second.serialize_pem()).expect("the keys");
    eventually("authd rejects tokens of the old key", || async {
        robot.whoami("").await.is_none().then_some(())
    })
    .await;
    assert_eq!(later.whoami("").await.as_deref(), account);

    // CA rotation: both CAs are valid until the file no longer contains the old CA.
    fs::write(&authorities, old.pem() + &new.pem()).expect("the CA bundle");
    let next = KubectlUser::new(&program, &plane, "next", certificate(&new, "next", &["system:masters"]));
    eventually("authd accepts the new CA", || async { next.whoami("").await }).await;
    assert_eq!(root.whoami("").await.as_deref(), Some("root"));
    fs::write(&authorities, new.pem()).expect("the CA bundle");
    eventually("authd rejects the old CA", || async { root.whoami("").await.is_none().then_some(()) }).await;
    next.ok("get namespaces").await;
}
