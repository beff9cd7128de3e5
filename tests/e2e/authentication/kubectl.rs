//! kubectl authentication during key and CA rotation: certificate, `kubectl create token`, `--as`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Ca, path_flag};
use crate::harness::{ControlPlane, Options, eventually};
use crate::kubectl::installed;

/// kubectl with a separate kubeconfig.
struct Caller {
    program: PathBuf,
    config: PathBuf,
}

impl Caller {
    fn new(program: &Path, plane: &ControlPlane, name: &str, user: Value) -> Caller {
        let config = plane.dir().join(format!("{name}.kubeconfig"));
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": {"server": plane.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": name}}],
        });
        fs::write(&config, content.to_string()).expect("the configuration file");
        Caller { program: program.to_owned(), config }
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
    async fn who(&self, more: &str) -> Option<String> {
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
async fn people_sign_in_while_keys_and_authorities_change() {
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

    let root = Caller::new(&program, &plane, "root", certificate(&old, "root", &["system:masters"]));
    assert_eq!(root.who("").await.as_deref(), Some("root"));
    assert_eq!(root.who("--as=jane --as-group=dev").await.as_deref(), Some("jane"));
    let refused = root.run("get configmaps --as=jane").await.expect_err("jane is forbidden");
    assert!(refused.contains("User \"jane\" cannot list"), "{refused}");
    root.ok("create serviceaccount robot").await;
    let issue = async || {
        let token = root.ok("create token robot").await;
        json!({"token": token.trim()})
    };
    let robot = Caller::new(&program, &plane, "robot", issue().await);
    let account = Some("system:serviceaccount:default:robot");
    assert_eq!(robot.who("").await.as_deref(), account);
    let refused = robot.run("get configmaps --as=jane").await.expect_err("the robot cannot impersonate jane");
    assert!(refused.contains("cannot impersonate"), "{refused}");

    // Key rotation: old tokens stay valid while the file contains their key.
    fs::write(&keys, second.serialize_pem() + &first.public_key_pem()).expect("the keys");
    eventually("the new key in the JWKS", || async {
        let keys = plane.admin().get("/openid/v1/jwks").await.expect(200)["keys"].clone();
        (keys.as_array().map(Vec::len) == Some(2)).then_some(())
    })
    .await;
    let later = Caller::new(&program, &plane, "later", issue().await);
    for caller in [&robot, &later] {
        assert_eq!(caller.who("").await.as_deref(), account);
    }
    fs::write(&keys, second.serialize_pem()).expect("the keys");
    eventually("authd rejects tokens of the old key", || async {
        robot.who("").await.is_none().then_some(())
    })
    .await;
    assert_eq!(later.who("").await.as_deref(), account);

    // CA rotation: both CAs are valid until the file no longer contains the old CA.
    fs::write(&authorities, old.pem() + &new.pem()).expect("the CA bundle");
    let next = Caller::new(&program, &plane, "next", certificate(&new, "next", &["system:masters"]));
    eventually("authd accepts the new CA", || async { next.who("").await }).await;
    assert_eq!(root.who("").await.as_deref(), Some("root"));
    fs::write(&authorities, new.pem()).expect("the CA bundle");
    eventually("authd rejects the old CA", || async { root.who("").await.is_none().then_some(()) }).await;
    next.ok("get namespaces").await;
}
