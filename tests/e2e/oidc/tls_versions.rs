//! TLS versions of issuers (requirement A-OIDC-11): authd fetches no keys over TLS 1.1.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use jiff::Timestamp;
use serving::certs::{ServingPair, ensure_serving_pair};
use tests::harness::{ControlPlane, Options};

use super::wait_for_log;

/// The log text about a page that is no discovery document.
const UNREADABLE_PAGE: &str = "expected value at line 1";

/// An `openssl s_server`, which is killed when the test ends.
struct OpensslServer {
    child: Child,
    port: u16,
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl OpensslServer {
    /// Starts a server with a TLS version on a free port. The certificate names 127.0.0.1.
    fn start(pair: &ServingPair, version: &str) -> Self {
        let mut child = Command::new("openssl")
            .args(["s_server", "-accept", "127.0.0.1:0", "-www", version])
            .args(["-cipher", "ALL:@SECLEVEL=0"])
            .arg("-cert")
            .arg(&pair.cert)
            .arg("-key")
            .arg(&pair.key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl starts");
        let output = BufReader::new(child.stdout.take().expect("standard output"));
        let mut lines = output.lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned));
        let port = address.and_then(|address| address.rsplit(':').next()?.trim().parse().ok());
        // The server must be able to write its log until the test ends.
        std::thread::spawn(move || lines.for_each(drop));
        OpensslServer { child, port: port.expect("the port of openssl") }
    }
}

/// Starts a server with an issuer at this port.
async fn plane_with_issuer(dir: &Path, pair: &ServingPair, port: u16) -> ControlPlane {
    let ca = std::fs::read_to_string(&pair.ca).expect("a certificate").replace('\n', "\\n");
    let path = dir.join("authentication.yaml");
    let text = format!(
        "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\njwt:\n\
         - issuer:\n    url: https://127.0.0.1:{port}\n    audiences: [x]\n    certificateAuthority: \"{ca}\"\n  \
         claimMappings: {{username: {{claim: sub, prefix: ''}}}}\n"
    );
    std::fs::write(&path, text).expect("a configuration");
    ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display()))).await
}

#[tokio::test]
async fn keys_of_issuer_with_tls_1_1_are_not_fetched() {
    let is_missing = Command::new("openssl").arg("version").output().is_err();
    if is_missing {
        prerequisites::skip("openssl", "it is not on PATH");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let pair = ensure_serving_pair(&dir.path().join("tls"), &[], Timestamp::now()).expect("a certificate");
    // The page of `openssl s_server -www` is no discovery document, but TLS 1.2 lets authd read the page.
    let current = OpensslServer::start(&pair, "-tls1_2");
    let plane = plane_with_issuer(dir.path(), &pair, current.port).await;
    wait_for_log(&plane, UNREADABLE_PAGE).await;
    let old = OpensslServer::start(&pair, "-tls1_1");
    let plane = plane_with_issuer(dir.path(), &pair, old.port).await;
    wait_for_log(&plane, "ProtocolVersion").await;
    assert!(!plane.log().contains(UNREADABLE_PAGE), "{}", plane.log());
}
