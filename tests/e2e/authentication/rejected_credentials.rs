//! Rejected credentials: the log has the reason, the client receives only 401 (requirements A-PRIN-13).
//!
//! The log line names the authenticator, the failed check and the audit id of the response.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tests::harness::{Client, ControlPlane, Options};

use super::{Ca, path_flag};

/// Description, client, headers, and the authenticator and check that the log line must name.
type Case<'a> = (&'a str, Client, Vec<(&'a str, &'a str)>, &'a str, &'a str);

#[tokio::test]
async fn rejected_credential_is_logged_with_reason_and_client_gets_plain_401() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proxies, strangers) = (Ca::new(dir.path(), "proxies"), Ca::new(dir.path(), "strangers"));
    let options = Options::default()
        .flag("--enable-bootstrap-token-auth")
        .flag("--requestheader-allowed-names=front")
        .flag("--requestheader-username-headers=X-Remote-User")
        .flag(&path_flag("requestheader-client-ca-file", &proxies.cert));
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let issued = async |spec| {
        let response =
            admin.post(&format!("{accounts}/robot/token"), &json!({"spec": spec})).await.expect(201);
        response["status"]["token"].as_str().expect("a token").to_owned()
    };
    let good = issued(json!({})).await;
    let elsewhere = issued(json!({"audiences": ["elsewhere"]})).await;
    let mut parts: Vec<String> = good.split('.').map(str::to_owned).collect();
    let unsigned = [URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), parts[1].clone(), String::new()].join(".");
    parts[2] = URL_SAFE_NO_PAD.encode([0; 64]);
    let forged = parts.join(".");
    let token = |token: &str| plane.token(token);
    let upgrade = |protocols: &'static str| {
        vec![("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", protocols)]
    };
    let many = "x".repeat(100_000);
    let cases: Vec<Case<'_>> = vec![
        ("an unknown token", token("nonsense"), vec![], "token-file", "the token is not in the file"),
        ("a token of another key", token(&forged), vec![], "service-account", "verifies the signature"),
        ("a token without a signature", token(&unsigned), vec![], "", ""),
        ("a token with a wrong audience", token(&elsewhere), vec![], "service-account", "audiences"),
        ("a very long token", token(&many), vec![], "token-file", "the token is not in the file"),
        (
            "a bootstrap token without its Secret",
            token("abcdef.0123456789abcdef"),
            vec![],
            "bootstrap-token",
            "there is no token Secret",
        ),
        (
            "a certificate of an unknown CA",
            strangers.client(&plane, "jane", &[]),
            vec![],
            "x509",
            "signed by an unknown CA",
        ),
        (
            "a proxy whose name is not allowed",
            proxies.client(&plane, "back", &[]),
            vec![("x-remote-user", "jane")],
            "request-header",
            "is not in --requestheader-allowed-names",
        ),
        (
            "a proxy of an unknown CA",
            strangers.client(&plane, "front", &[]),
            vec![("x-remote-user", "jane")],
            "request-header",
            "signed by an unknown CA",
        ),
        (
            "a websocket token without a further sub-protocol",
            plane.anonymous(),
            upgrade("base64url.bearer.authorization.svc.internal.YWRtaW4tdG9rZW4"),
            "bearer",
            "the only WebSocket sub-protocol",
        ),
        (
            "a websocket token that is not base64url",
            plane.anonymous(),
            upgrade("a, base64url.bearer.authorization.svc.internal.*"),
            "bearer",
            "not base64url",
        ),
    ];
    for (case, client, headers, method, check) in cases {
        // Anonymous requests may read this path, but an invalid credential does not make a request anonymous.
        let response = client.request("GET", "/livez", &headers, b"").await;
        if case == "a very long token" && response.status == 431 {
            continue;
        }
        let status = response.expect(401);
        let want = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        assert_eq!(status, want, "{case}");
        let id = response.header("audit-id").to_owned();
        assert!(!id.is_empty(), "{case}");
        let log = tests::harness::eventually("the log line", || async {
            let log = plane.log();
            let mut lines =
                log.lines().filter(|line| line.contains(&id) && line.contains("credential rejected"));
            lines.next().map(|_| log.clone())
        })
        .await;
        let is_rejection = |line: &str| {
            line.contains(&id)
                && line.contains("credential rejected")
                && (method.is_empty() || line.contains(&format!("method=\"{method}\"")))
                && line.contains(check)
        };
        let about: Vec<&str> = log.lines().filter(|line| line.contains(&id)).collect();
        assert!(log.lines().any(is_rejection), "{case}: {about:#?}");
    }
    let log = plane.log();
    for secret in ["nonsense", "0123456789abcdef", parts[2].as_str(), good.as_str()] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}
