//! Authenticating proxies (requirements A-PROXY).

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

use super::{Ca, path_flag, whoami};

const FLAGS: [&str; 5] = [
    "--requestheader-allowed-names=front,other-front",
    "--requestheader-username-headers=X-Remote-User,X-Second-User",
    "--requestheader-uid-headers=X-Remote-Uid",
    "--requestheader-group-headers=X-Remote-Group,X-Second-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
];

#[tokio::test]
async fn trusted_proxy_headers_set_identity() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proxies, strangers) = (Ca::new(dir.path(), "proxies"), Ca::new(dir.path(), "strangers"));
    let options = FLAGS.iter().fold(Options::default(), |options, flag| options.flag(flag));
    let plane =
        ControlPlane::start(options.flag(&path_flag("requestheader-client-ca-file", &proxies.cert))).await;
    let front = proxies.client(&plane, "front", &["ignored"]);
    let user = |name: &str, uid: Option<&str>, groups: &[&str], extra: Value| {
        let groups: Vec<&str> = groups.iter().copied().chain(["system:authenticated"]).collect();
        let mut user = json!({"username": name, "groups": groups});
        if let Some(uid) = uid {
            user["uid"] = json!(uid);
        }
        if extra != Value::Null {
            user["extra"] = extra;
        }
        Some(user)
    };
    for (case, headers, want) in [
        (
            "a uid and the groups of all headers",
            vec![
                ("x-remote-user", "jane"),
                ("x-remote-uid", "u-1"),
                ("X-Remote-Group", "a"),
                ("x-remote-group", "b"),
                ("x-second-group", "c"),
            ],
            user("jane", Some("u-1"), &["a", "b", "c"], Value::Null),
        ),
        (
            "extra attributes",
            vec![
                ("x-remote-user", "jane"),
                ("X-Remote-Extra-FOO", "v"),
                ("x-remote-extra-foo", "w"),
                ("x-remote-extra-example.org%2Ffoo", "x"),
            ],
            user("jane", None, &[], json!({"foo": ["v", "w"], "example.org/foo": ["x"]})),
        ),
    ] {
        assert_eq!(whoami(&plane, &front, &headers).await, want, "{case}");
    }
    assert_eq!(whoami(&plane, &front, &[]).await, None, "a proxy certificate alone does not authenticate");

    // authd ignores or rejects identity headers of all other clients.
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    let alice = whoami(&plane, &plane.user("alice"), &root).await.expect("a response");
    assert_eq!(alice["username"], "alice", "the token has precedence over the headers");
    let jane = whoami(&plane, &plane.certificate("jane", &["dev"]), &root).await.expect("a response");
    assert_eq!(
        (&jane["username"], &jane["groups"]),
        (&json!("jane"), &json!(["dev", "system:authenticated"]))
    );
    for (case, client) in [
        ("a proxy whose name is not allowed", proxies.client(&plane, "back", &[])),
        ("a proxy of an unknown CA", strangers.client(&plane, "front", &[])),
    ] {
        assert_eq!(whoami(&plane, &client, &root).await, None, "{case}");
    }
    let rejected = plane.anonymous().request("GET", "/api/v1/namespaces", &root, b"").await.expect(403);
    let message = rejected["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("system:anonymous"), "{message}");
    assert!(!plane.log().contains("\"root\""), "the log has no identity headers of untrusted clients");

    // apid publishes the settings for extension API servers.
    let settings_path = format!(
        "/api/v1/namespaces/{}/configmaps/extension-apiserver-authentication",
        plane.names().system_namespace
    );
    let data = tests::harness::eventually("the published settings", || async {
        let map = plane.admin().get(&settings_path).await;
        (map.status == 200).then(|| map.json()["data"].clone())
    })
    .await;
    assert_eq!(data["requestheader-client-ca-file"], proxies.pem().as_str());
    assert!(data["client-ca-file"].as_str().is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")), "{data}");
    for (key, want) in [
        ("requestheader-allowed-names", r#"["front","other-front"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User","X-Second-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group","X-Second-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ] {
        assert_eq!(data[key], want, "{key}");
    }
    plane.admin().delete(&settings_path).await.expect(200);
    tests::harness::eventually("the config map is recreated", || async {
        (plane.admin().get(&settings_path).await.status == 200).then_some(())
    })
    .await;
}
