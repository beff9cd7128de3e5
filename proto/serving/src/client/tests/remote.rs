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

    /// Creates a remote with these fields of the user.
    fn remote(&self, user: &str) -> Result<Remote, Vec<String>> {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: '{}', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n",
            self.server.url("/hook/?ignored=1")
        );
        self.write("config", &text);
        let config = ClientConfig::load(&self.dir().join("config")).unwrap();
        assert_eq!(config.warnings, [""; 0]);
        let target = config.target(None, &self.names).map_err(|e| e.mistakes)?;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        Remote::with_input(target, "tester/1", &self.names, clock, None)
    }

    /// Sends one request and returns it as the server received it.
    async fn post(&self, remote: &Remote) -> RecordedRequest {
        remote.post(Bytes::from("{}"), LIMITS).await.unwrap();
        self.server.seen().last().unwrap().clone()
    }

    fn later(&self) {
        self.clock.advance(FILE_CHECK_INTERVAL);
    }
}

#[tokio::test]
async fn token_token_file_and_basic_credentials_are_sent() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    bench.write("token", " from-file\n");
    for (user, authorization) in [
        ("", vec![]),
        ("token: t", vec!["Bearer t"]),
        ("tokenFile: token", vec!["Bearer from-file"]),
        ("token: t, tokenFile: token", vec!["Bearer from-file"]),
        ("token: t, tokenFile: absent", vec!["Bearer t"]),
        ("username: me, password: 'p:w'", vec!["Basic bWU6cDp3"]),
        ("username: me", vec!["Basic bWU6"]),
    ] {
        let remote = bench.remote(user).unwrap();
        let seen = bench.post(&remote).await;
        assert_eq!(seen.header("authorization"), authorization, "{user}");
        assert_eq!(seen.path, "/hook");
        assert_eq!(seen.header("impersonate-user").len(), 0);
    }
    let remote = bench.remote("").unwrap();
    remote.send(Method::GET, "/sub?x=1", Bytes::new(), LIMITS).await.unwrap();
    assert_eq!(bench.server.seen().last().unwrap().path, "/hook/sub?x=1");
}

#[tokio::test]
async fn impersonation_headers_are_sent() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    let user = "token: t, as: jane, as-uid: u1, as-groups: [a, b], as-user-extra: {'example.test/Ä': [x, z], s: [q]}";
    let seen = bench.post(&bench.remote(user).unwrap()).await;
    assert_eq!(seen.header("impersonate-user"), ["jane"]);
    assert_eq!(seen.header("impersonate-uid"), ["u1"]);
    assert_eq!(seen.header("impersonate-group"), ["a", "b"]);
    assert_eq!(seen.header("impersonate-extra-example.test%2f%c3%84"), ["x", "z"]);
    assert_eq!(seen.header("impersonate-extra-s"), ["q"]);
}

#[tokio::test]
async fn invalid_credential_files_are_named_in_errors() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    bench.write("empty", "\n");
    bench.write("secret", "hunter2");
    for (user, expected) in [
        ("tokenFile: absent", "absent: No such file"),
        ("tokenFile: empty", "empty: contains no token"),
        ("client-certificate: absent, client-key: secret", "absent: No such file"),
        ("client-certificate: ca.crt, client-key: secret", "the client key: contains no private key in PEM"),
    ] {
        let mistakes = bench.remote(user).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].contains(expected) && !mistakes[0].contains("hunter2"), "{mistakes:?}");
    }
}

#[tokio::test]
async fn changed_token_file_is_reloaded() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    bench.write("token", "one");
    let remote = bench.remote("tokenFile: token").unwrap();
    assert_eq!(bench.post(&remote).await.header("authorization"), ["Bearer one"]);
    bench.write("token", "two");
    assert_eq!(bench.post(&remote).await.header("authorization"), ["Bearer one"], "not yet");
    bench.later();
    assert_eq!(bench.post(&remote).await.header("authorization"), ["Bearer two"]);
    bench.write("token", "");
    bench.later();
    assert_eq!(
        bench.post(&remote).await.header("authorization"),
        ["Bearer two"],
        "an empty file keeps the previous token"
    );
    std::fs::remove_file(bench.dir().join("token")).unwrap();
    bench.later();
    assert_eq!(
        bench.post(&remote).await.header("authorization"),
        ["Bearer two"],
        "a missing file keeps the previous token"
    );
    bench.write("token", "three");
    bench.later();
    assert_eq!(bench.post(&remote).await.header("authorization"), ["Bearer three"]);
    assert_eq!(bench.server.connections(), 1, "a new token does not cause a new connection");
    assert!(!format!("{remote:?}").contains("three"));
}

#[tokio::test]
async fn changed_client_certificate_is_sent_on_new_connection() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    let (jane, bob) = (pair(bench.dir(), "jane"), pair(bench.dir(), "bob"));
    let write = |pair: &PemPair| {
        bench.write("me.crt", &pair.cert);
        bench.write("me.key", &pair.key);
    };
    write(&jane);
    let remote = bench.remote("client-certificate: me.crt, client-key: me.key").unwrap();
    let first = bench.post(&remote).await;
    assert!(first.fingerprint.is_some());
    bench.later();
    assert_eq!(bench.post(&remote).await.peer, first.peer, "nothing changed");
    bench.write("me.crt", &bob.cert);
    bench.later();
    let half = bench.post(&remote).await;
    assert_eq!(
        (half.peer, half.fingerprint),
        (first.peer, first.fingerprint),
        "mismatched pair: the previous one stays"
    );
    write(&bob);
    bench.later();
    let second = bench.post(&remote).await;
    assert_ne!(second.peer, first.peer);
    assert_ne!(second.fingerprint, first.fingerprint);
    assert!(second.fingerprint.is_some());
}

/// Writes `plugin`, which prints the content of the file `credentials` and counts its runs.
fn plugin(bench: &RemoteFixture) -> &'static str {
    bench.write("plugin", "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho run >> runs\ncat credentials\n");
    std::fs::set_permissions(bench.dir().join("plugin"), std::fs::Permissions::from_mode(0o755)).unwrap();
    "exec: {command: ./plugin, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"
}

fn prints(bench: &RemoteFixture, status: serde_json::Value) {
    let document = serde_json::json!({
        "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status,
    });
    bench.write("credentials", &document.to_string());
}

fn runs(bench: &RemoteFixture) -> usize {
    std::fs::read_to_string(bench.dir().join("runs")).map_or(0, |log| log.lines().count())
}

#[tokio::test]
async fn rejected_exec_plugin_token_is_renewed_and_request_retried() {
    let bench = RemoteFixture::new(|seen| match seen.header("authorization")[..] {
        ["Bearer good"] => reply(200, "{}"),
        _ => reply(401, "{}"),
    })
    .await;
    let user = plugin(&bench);
    let remote = bench.remote(user).unwrap();
    prints(&bench, serde_json::json!({"token": "good"}));
    for _ in 0..5 {
        assert_eq!(remote.post(Bytes::new(), LIMITS).await.unwrap().status, 200);
    }
    assert_eq!(runs(&bench), 1, "kept");
    prints(&bench, serde_json::json!({"token": "bad"}));
    let other = bench.remote(user).unwrap();
    assert_eq!(other.post(Bytes::new(), LIMITS).await.unwrap().status, 401);
    assert_eq!((runs(&bench), bench.server.seen().len()), (3, 7), "exactly one retry");
    prints(&bench, serde_json::json!({"token": "good"}));
    assert_eq!(other.post(Bytes::new(), LIMITS).await.unwrap().status, 200);
    assert_eq!((runs(&bench), bench.server.seen().len()), (4, 8));
    std::fs::remove_file(bench.dir().join("plugin")).unwrap();
    let third = bench.remote(user).unwrap();
    let error = third.post(Bytes::new(), LIMITS).await.unwrap_err();
    assert_eq!(error.to_string(), "no credentials: the credential plugin `./plugin` is not installed");
}

#[tokio::test]
async fn changed_exec_plugin_certificate_is_sent_on_new_connection() {
    let refused = Arc::new(AtomicUsize::new(usize::MAX));
    let limit = Arc::clone(&refused);
    let bench = RemoteFixture::new(move |_| {
        // The server responds 401 once, to the request that the test marks.
        let hit = limit.compare_exchange(0, usize::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        reply(if hit { 401 } else { 200 }, "{}")
    })
    .await;
    let remote = bench.remote(plugin(&bench)).unwrap();
    let status = |user: &str| {
        let pair = pair(bench.dir(), user);
        serde_json::json!({"clientCertificateData": pair.cert, "clientKeyData": pair.key})
    };
    prints(&bench, status("jane"));
    let first = bench.post(&remote).await;
    assert!(first.fingerprint.is_some());
    assert_eq!(bench.post(&remote).await.peer, first.peer);
    prints(&bench, status("bob"));
    assert_eq!(bench.post(&remote).await.fingerprint, first.fingerprint, "kept until the server rejects it");
    refused.store(0, Ordering::SeqCst);
    let second = bench.post(&remote).await;
    assert_ne!(second.peer, first.peer);
    assert_ne!(second.fingerprint, first.fingerprint);
    assert_eq!(runs(&bench), 2);
}

#[tokio::test]
async fn exec_plugin_certificate_chain_is_sent_completely() {
    let bench = RemoteFixture::new(|_| reply(200, "{}")).await;
    let remote = bench.remote(plugin(&bench)).unwrap();
    let jane = pair(bench.dir(), "jane");
    let intermediate = std::fs::read_to_string(bench.dir().join("users.crt")).unwrap();
    let chain = format!("{}{intermediate}", jane.cert);
    prints(&bench, serde_json::json!({"clientCertificateData": chain, "clientKeyData": jane.key}));
    assert_eq!(bench.post(&remote).await.chain, 2);
}
