//! Tests of a remote from a client configuration whose credentials change.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::clock::{Clock, ManualClock};
use apimachinery::names::{Names, Preset};

use super::*;
use crate::client::remote::FILE_CHECK_INTERVAL;
use crate::client_config::ClientConfig;

/// Test server, configuration files in its directory, and a clock.
struct RemoteFixture {
    server: Server,
    clock: Arc<ManualClock>,
    names: Names,
}

impl RemoteFixture {
    async fn new(
        script: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> RemoteFixture {
        RemoteFixture {
            server: Server::start(script).await,
            clock: Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap())),
            names: Names::new(Preset::Kubernetes, "").unwrap(),
        }
    }

    fn dir(&self) -> &Path {
        self.server.dir.path()
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.dir().join(name), content).unwrap();
    }

    /// Creates a remote from a configuration whose user has the fields `user`.
    fn remote(&self, user: &str) -> Result<Remote, Vec<String>> {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: '{}', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n",
            self.server.url("/hook/?ignored=1")
        );
        self.write("config", &text);
        let config = ClientConfig::load(&self.dir().join("config")).unwrap();
        assert_eq!(config.warnings, [""; 0]);
        let target = config.target(None, &self.names).map_err(|e| e.errors)?;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        Remote::with_input(target, "tester/1", &self.names, clock, None)
    }

    /// Sends one request and returns it as the server received it.
    async fn post(&self, remote: &Remote) -> RecordedRequest {
        remote.post(Bytes::from("{}"), LIMITS).await.unwrap();
        self.server.requests().last().unwrap().clone()
    }

    fn pass_check_interval(&self) {
        self.clock.advance(FILE_CHECK_INTERVAL);
    }
}

#[tokio::test]
async fn token_token_file_and_basic_credentials_are_sent() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    fixture.write("token", " from-file\n");
    for (user, authorization) in [
        ("", vec![]),
        ("token: t", vec!["Bearer t"]),
        ("tokenFile: token", vec!["Bearer from-file"]),
        ("token: t, tokenFile: token", vec!["Bearer from-file"]),
        ("token: t, tokenFile: absent", vec!["Bearer t"]),
        ("username: me, password: 'p:w'", vec!["Basic bWU6cDp3"]),
        ("username: me", vec!["Basic bWU6"]),
    ] {
        let remote = fixture.remote(user).unwrap();
        let request = fixture.post(&remote).await;
        assert_eq!(request.header("authorization"), authorization, "{user}");
        assert_eq!(request.path, "/hook");
        assert_eq!(request.header("impersonate-user").len(), 0);
    }
    let remote = fixture.remote("").unwrap();
    remote.send(Method::GET, "/sub?x=1", Bytes::new(), LIMITS).await.unwrap();
    assert_eq!(fixture.server.requests().last().unwrap().path, "/hook/sub?x=1");
}

#[tokio::test]
async fn impersonation_headers_are_sent() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    let user = "token: t, as: jane, as-uid: u1, as-groups: [a, b], as-user-extra: {'example.test/Ä': [x, z], s: [q]}";
    let request = fixture.post(&fixture.remote(user).unwrap()).await;
    assert_eq!(request.header("impersonate-user"), ["jane"]);
    assert_eq!(request.header("impersonate-uid"), ["u1"]);
    assert_eq!(request.header("impersonate-group"), ["a", "b"]);
    assert_eq!(request.header("impersonate-extra-example.test%2f%c3%84"), ["x", "z"]);
    assert_eq!(request.header("impersonate-extra-s"), ["q"]);
}

#[tokio::test]
async fn invalid_credential_files_are_named_in_errors() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    fixture.write("empty", "\n");
    fixture.write("secret", "hunter2");
    for (user, expected) in [
        ("tokenFile: absent", "absent: No such file"),
        ("tokenFile: empty", "empty: contains no token"),
        ("client-certificate: absent, client-key: secret", "absent: No such file"),
        ("client-certificate: ca.crt, client-key: secret", "the client key: contains no private key in PEM"),
    ] {
        let errors = fixture.remote(user).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected) && !errors[0].contains("hunter2"), "{errors:?}");
    }
}

#[tokio::test]
async fn changed_token_file_is_reloaded() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    fixture.write("token", "one");
    let remote = fixture.remote("tokenFile: token").unwrap();
    assert_eq!(fixture.post(&remote).await.header("authorization"), ["Bearer one"]);
    fixture.write("token", "two");
    assert_eq!(fixture.post(&remote).await.header("authorization"), ["Bearer one"], "not yet");
    fixture.pass_check_interval();
    assert_eq!(fixture.post(&remote).await.header("authorization"), ["Bearer two"]);
    fixture.write("token", "");
    fixture.pass_check_interval();
    assert_eq!(
        fixture.post(&remote).await.header("authorization"),
        ["Bearer two"],
        "an empty file keeps the previous token"
    );
    std::fs::remove_file(fixture.dir().join("token")).unwrap();
    fixture.pass_check_interval();
    assert_eq!(
        fixture.post(&remote).await.header("authorization"),
        ["Bearer two"],
        "a missing file keeps the previous token"
    );
    fixture.write("token", "three");
    fixture.pass_check_interval();
    assert_eq!(fixture.post(&remote).await.header("authorization"), ["Bearer three"]);
    assert_eq!(fixture.server.connections(), 1, "a new token does not cause a new connection");
    assert!(!format!("{remote:?}").contains("three"));
}

#[tokio::test]
async fn changed_client_certificate_is_sent_on_new_connection() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    let (jane, bob) = (client_pair(fixture.dir(), "jane"), client_pair(fixture.dir(), "bob"));
    let write = |pair: &PemPair| {
        fixture.write("me.crt", &pair.cert);
        fixture.write("me.key", &pair.key);
    };
    write(&jane);
    let remote = fixture.remote("client-certificate: me.crt, client-key: me.key").unwrap();
    let first = fixture.post(&remote).await;
    assert!(first.fingerprint.is_some());
    fixture.pass_check_interval();
    assert_eq!(fixture.post(&remote).await.peer, first.peer, "nothing changed");
    fixture.write("me.crt", &bob.cert);
    fixture.pass_check_interval();
    let half = fixture.post(&remote).await;
    assert_eq!(
        (half.peer, half.fingerprint),
        (first.peer, first.fingerprint),
        "mismatched pair: the previous one stays"
    );
    write(&bob);
    fixture.pass_check_interval();
    let second = fixture.post(&remote).await;
    assert_ne!(second.peer, first.peer);
    assert_ne!(second.fingerprint, first.fingerprint);
    assert!(second.fingerprint.is_some());
}

/// Writes `plugin`, which prints the content of the file `credentials` and counts its runs. Returns the fields of
/// its user.
fn write_plugin(fixture: &RemoteFixture) -> &'static str {
    fixture.write("plugin", "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho run >> runs\ncat credentials\n");
    std::fs::set_permissions(fixture.dir().join("plugin"), std::fs::Permissions::from_mode(0o755)).unwrap();
    "exec: {command: ./plugin, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"
}

fn write_credentials(fixture: &RemoteFixture, status: serde_json::Value) {
    let document = serde_json::json!({
        "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status,
    });
    fixture.write("credentials", &document.to_string());
}

fn run_count(fixture: &RemoteFixture) -> usize {
    std::fs::read_to_string(fixture.dir().join("runs")).map_or(0, |log| log.lines().count())
}

#[tokio::test]
async fn rejected_exec_plugin_token_is_renewed_and_request_retried() {
    let fixture = RemoteFixture::new(|request| match request.header("authorization")[..] {
        ["Bearer good"] => reply(200, "{}"),
        _ => reply(401, "{}"),
    })
    .await;
    let user = write_plugin(&fixture);
    let remote = fixture.remote(user).unwrap();
    write_credentials(&fixture, serde_json::json!({"token": "good"}));
    for _ in 0..5 {
        assert_eq!(remote.post(Bytes::new(), LIMITS).await.unwrap().status, 200);
    }
    assert_eq!(run_count(&fixture), 1, "kept");
    write_credentials(&fixture, serde_json::json!({"token": "bad"}));
    let other = fixture.remote(user).unwrap();
    assert_eq!(other.post(Bytes::new(), LIMITS).await.unwrap().status, 401);
    assert_eq!((run_count(&fixture), fixture.server.requests().len()), (3, 7), "exactly one retry");
    write_credentials(&fixture, serde_json::json!({"token": "good"}));
    assert_eq!(other.post(Bytes::new(), LIMITS).await.unwrap().status, 200);
    assert_eq!((run_count(&fixture), fixture.server.requests().len()), (4, 8));
    std::fs::remove_file(fixture.dir().join("plugin")).unwrap();
    let third = fixture.remote(user).unwrap();
    let error = third.post(Bytes::new(), LIMITS).await.unwrap_err();
    assert_eq!(error.to_string(), "no credentials: the credential plugin `./plugin` is not installed");
}

#[tokio::test]
async fn changed_exec_plugin_certificate_is_sent_on_new_connection() {
    let rejection_mark = Arc::new(AtomicUsize::new(usize::MAX));
    let mark = Arc::clone(&rejection_mark);
    let fixture = RemoteFixture::new(move |_| {
        // The server responds 401 to the first request after the test has set the mark to 0.
        let is_rejected = mark.compare_exchange(0, usize::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        reply(if is_rejected { 401 } else { 200 }, "{}")
    })
    .await;
    let remote = fixture.remote(write_plugin(&fixture)).unwrap();
    let status = |user: &str| {
        let pair = client_pair(fixture.dir(), user);
        serde_json::json!({"clientCertificateData": pair.cert, "clientKeyData": pair.key})
    };
    write_credentials(&fixture, status("jane"));
    let first = fixture.post(&remote).await;
    assert!(first.fingerprint.is_some());
    assert_eq!(fixture.post(&remote).await.peer, first.peer);
    write_credentials(&fixture, status("bob"));
    assert_eq!(
        fixture.post(&remote).await.fingerprint,
        first.fingerprint,
        "kept until the server rejects it"
    );
    rejection_mark.store(0, Ordering::SeqCst);
    let second = fixture.post(&remote).await;
    assert_ne!(second.peer, first.peer);
    assert_ne!(second.fingerprint, first.fingerprint);
    assert_eq!(run_count(&fixture), 2);
}

#[tokio::test]
async fn exec_plugin_certificate_chain_is_sent_completely() {
    let fixture = RemoteFixture::new(|_| reply(200, "{}")).await;
    let remote = fixture.remote(write_plugin(&fixture)).unwrap();
    let jane = client_pair(fixture.dir(), "jane");
    let intermediate = std::fs::read_to_string(fixture.dir().join("users.crt")).unwrap();
    let chain = format!("{}{intermediate}", jane.cert);
    write_credentials(
        &fixture,
        serde_json::json!({"clientCertificateData": chain, "clientKeyData": jane.key}),
    );
    assert_eq!(fixture.post(&remote).await.chain, 2);
}
