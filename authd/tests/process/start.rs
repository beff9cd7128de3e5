//! The command line and the life cycle of the process.

use std::time::Duration;

use super::harness::{Authd, LONG, command, run};

#[test]
fn invalid_flags_exit_with_64_before_bind() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("--socket={}", dir.path().join("s").display());
    std::fs::write(dir.path().join("bad.csv"), "token,user\n").unwrap();
    let bad_tokens = format!("--token-auth-file={}", dir.path().join("bad.csv").display());
    let configuration = dir.path().join("authd.yaml");
    std::fs::write(&configuration, "apiVersion: config.other/v1\nkind: ServerConfiguration\n").unwrap();
    let configuration = format!("--config={}", configuration.display());
    for (flags, expected_texts) in [
        (&["--no-such-flag"][..], vec!["--no-such-flag"]),
        (&["--authorization-mode=Webhook,Foo", "--names=x"], vec!["`Foo`", "--names"]),
        (&["--authorization-mode=Webhook"], vec!["--authorization-webhook-config-file"]),
        (&["--authorization-mode=RBAC,RBAC"], vec!["is duplicated"]),
        (
            &["--token-auth-file=/nonexistent", "--client-ca-file=/nonexistent"],
            vec!["--token-auth-file", "--client-ca-file"],
        ),
        (&[&bad_tokens], vec!["line 1: at least 3 columns"]),
        (
            &[&configuration, "--no-such-flag", "--authorization-mode=Foo"],
            vec!["config.other", "such", "`Foo`"],
        ),
    ] {
        let output = run(&[&[socket.as_str()], flags].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {text}");
        assert!(expected_texts.iter().all(|expected| text.contains(expected)), "{flags:?}: {text}");
        assert!(!dir.path().join("s").exists(), "{flags:?}: no socket was bound");
    }
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(help.contains("AlwaysAllow: allows every request; for testing only"), "{help}");
    assert!(help.contains("AlwaysDeny: denies every request; for testing only"), "{help}");
}

#[tokio::test]
async fn end_of_stdin_stops_authd() {
    let mut authd = Authd::start(&["--authorization-mode=RBAC", "--exit-on-stdin-eof"]).await;
    let socket = authd.socket();
    drop(authd.child().stdin.take());
    let deadline = tokio::time::Instant::now() + LONG;
    while authd.child().try_wait().unwrap().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "authd still runs after its parent closed the pipe");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(authd.child().wait().unwrap().success());
    assert!(!socket.exists(), "authd removes its socket");
}

#[tokio::test]
async fn second_process_on_same_socket_fails() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let socket = format!("--socket={}", authd.socket().display());
    let output = command(&[&socket, "--authorization-mode=RBAC"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    authd.decide().await;
}

#[tokio::test]
async fn grpc_health_reports_whether_authd_decides() {
    use authproto::health::HealthCheckRequest;
    use authproto::health::health_check_response::ServingStatus::{NotServing, Serving};
    use authproto::health::health_client::HealthClient;
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mut client = HealthClient::new(authd.channel().await);
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    assert_eq!(client.check(ask("")).await.unwrap().into_inner().status(), Serving);
    assert_eq!(
        client.check(ask("auth.v1.Decide")).await.unwrap().into_inner().status(),
        NotServing,
        "no apid yet"
    );
    assert_eq!(client.check(ask("other")).await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(client.watch(ask("other")).await.unwrap_err().code(), tonic::Code::NotFound);

    let mut watch = client.watch(ask("auth.v1.Decide")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), NotServing);
    let feed = authd.mirror().await;
    feed.synced(7).await;
    assert_eq!(watch.message().await.unwrap().unwrap().status(), Serving);
    drop(feed);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), NotServing, "apid has disconnected");
}
