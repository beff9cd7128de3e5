//! A real OpenID provider: the npm package `oidc-provider` over TLS with a private CA.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http::{Method, Request};
use serde_json::json;
use serving::client::{Client, Limits, Settings, Trust};
use tests::harness::{ControlPlane, DEADLINE, Options, eventually};

use super::{token_user, token_username};

/// The folder where `.ci/run` installs the package; `None` with a skip line if it is missing.
fn installed() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = root.join("target/oidc-provider");
    let node = Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if node && folder.join("node_modules/oidc-provider").is_dir() {
        return Some(folder);
    }
    prerequisites::skip("oidc-provider", "node or its package oidc-provider is missing; see tests/README.md");
    None
}

struct Provider {
    process: Child,
    port: u16,
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Provider {
    /// Starts the provider with new keys whose ids have this prefix. Port 0 selects a free port.
    fn start(folder: &Path, tls: &serving::certs::ServingPair, port: u16, keys: &str) -> Provider {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/oidc/provider/provider.mjs");
        let mut process = Command::new("node")
            .current_dir(folder)
            .arg(script)
            .args([&tls.cert, &tls.key])
            .args([&port.to_string(), keys])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Provider { process, port: line.trim().parse().expect("the provider prints its port") }
    }

    async fn token(&self, client: &Client, algorithm: &str, subject: &str) -> String {
        let body = Bytes::from(json!({"client": algorithm, "subject": subject}).to_string());
        let request =
            Request::builder().method(Method::POST).uri(format!("https://127.0.0.1:{}/issue", self.port));
        let limits = Limits { within: DEADLINE, bytes: 64 * 1024 };
        let answer = client.send(request.body(body).unwrap(), limits).await.unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        String::from_utf8(answer.body.to_vec()).unwrap()
    }
}

#[tokio::test]
async fn oidc_provider_tokens_survive_outage_until_key_rotation() {
    let Some(folder) = installed() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tls =
        serving::certs::ensure_serving_pair(&dir.path().join("tls"), &[], jiff::Timestamp::now()).unwrap();
    let ca = std::fs::read_to_string(&tls.ca).unwrap();
    let settings = Settings { trust: Trust::from_pem(ca.as_bytes()).unwrap(), ..Settings::default() };
    let client = Client::new(&settings).unwrap();
    let provider = Provider::start(&folder, &tls, 0, "first");
    let port = provider.port;

    let text = format!(
        "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: https://127.0.0.1:{port}\n    audiences: [RS256, ES256, PS256]\n    audienceMatchPolicy: MatchAny\n    certificateAuthority: {}\n  claimMappings:\n    username: {{claim: sub, prefix: 'op:'}}\n    groups: {{claim: groups, prefix: 'op:'}}\n",
        serde_json::to_string(&ca).unwrap()
    );
    let path = dir.path().join("authentication.yaml");
    std::fs::write(&path, text).unwrap();
    let plane =
        ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display())))
            .await;

    let mut old = Vec::new();
    for algorithm in ["RS256", "ES256", "PS256"] {
        let token = provider.token(&client, algorithm, "jane").await;
        let user =
            token_user(&plane, &token).await.unwrap_or_else(|| panic!("the {algorithm} token is rejected"));
        assert_eq!(user["username"], "op:jane");
        assert_eq!(user["groups"], json!(["op:staff", "system:authenticated"]));
        old.push(token);
    }

    // During an outage the fetched keys verify new tokens as well.
    let unseen = provider.token(&client, "ES256", "joe").await;
    drop(provider);
    assert_eq!(token_username(&plane, &unseen).await, "op:joe");

    // The provider restarts with different keys.
    let provider = Provider::start(&folder, &tls, port, "second");
    for algorithm in ["RS256", "ES256", "PS256"] {
        let token = provider.token(&client, algorithm, "kim").await;
        eventually(algorithm, || async { (token_username(&plane, &token).await == "op:kim").then_some(()) })
            .await;
    }
    for token in &old {
        eventually("tokens of the old keys are rejected", || async {
            token_username(&plane, token).await.is_empty().then_some(())
        })
        .await;
    }
}
