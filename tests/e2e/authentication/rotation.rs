//! Rotation of service-account token keys, and the static token file, which has no hot reload.

use std::fs;

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

use super::{path_flag, user_name, whoami};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const ROBOT: &str = "system:serviceaccount:default:robot";

async fn issue(admin: &Client) -> String {
    let response = admin.post(&format!("{ACCOUNTS}/robot/token"), &json!({"spec": {}})).await.expect(201);
    response["status"]["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn service_account_key_rotation_keeps_tokens_until_key_removal() {
    let dir = tempfile::tempdir().expect("a folder");
    let keys = dir.path().join("keys.pem");
    let (old, new) = (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
    fs::write(&keys, old.serialize_pem()).expect("the keys");
    let plane =
        ControlPlane::start(Options::default().flag(&path_flag("service-account-key-file", &keys))).await;
    let admin = plane.admin();
    admin.post(ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let before = issue(&admin).await;
    let published = async || -> Vec<Value> {
        let keys = admin.get("/openid/v1/jwks").await.expect(200)["keys"].clone();
        keys.as_array().expect("keys").iter().map(|key| key["kid"].clone()).collect()
    };
    assert_eq!(published().await.len(), 1);

    // The new key signs and the old key still verifies, so that authd rejects no token during the rotation.
    fs::write(&keys, new.serialize_pem() + &old.public_key_pem()).expect("the keys");
    eventually("both keys in the JWKS", || async {
        assert_eq!(user_name(&plane, &plane.token(&before)).await.as_deref(), Some(ROBOT));
        (published().await.len() == 2).then_some(())
    })
    .await;
    let after = issue(&admin).await;
    for token in [&before, &after] {
        assert_eq!(user_name(&plane, &plane.token(token)).await.as_deref(), Some(ROBOT));
    }
    let rbac = plane.names().group("rbac.authorization");
    let binding = json!({"metadata": {"name": "robot"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]});
    admin.post(&format!("/apis/{rbac}/v1/clusterrolebindings"), &binding).await.expect(201);
    let mut watch = plane.token(&before).watch("/api/v1/namespaces/default/configmaps?watch=1").await;

    fs::write(&keys, new.serialize_pem()).expect("the keys");
    let ended = tokio::time::timeout(tests::harness::DEADLINE, watch.next()).await.expect("the watch ends");
    assert_eq!(ended, None);
    assert_eq!(user_name(&plane, &plane.token(&before)).await, None, "the signing key was removed");
    assert_eq!(user_name(&plane, &plane.token(&after)).await.as_deref(), Some(ROBOT));
    assert_eq!(published().await.len(), 1);
}

#[tokio::test]
async fn static_token_file_is_read_only_at_startup() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tokens.csv");
    let lines = "admin-token,admin,admin-uid,system:masters\n\
                 t-1._~+/=,a b/ü:x,u-1,\"g1,g2\"\n\
                 t-2,joe,u-2,g1,g2\n";
    fs::write(&file, lines).expect("the tokens");
    let mut plane = ControlPlane::start(Options::default().flag(&path_flag("token-auth-file", &file))).await;
    for (token, user) in [("t-1._~+/=", "a b/ü:x"), ("t-2", "joe")] {
        let user_info = whoami(&plane, &plane.token(token), &[]).await.expect("a response");
        assert_eq!(user_info["username"], user);
        assert_eq!(
            user_info["groups"],
            json!(["g1", "g2", "system:authenticated"]),
            "both forms of the groups column"
        );
    }
    fs::write(&file, "t-3,eve,u-3\nadmin-token,admin,admin-uid,system:masters\n").expect("the tokens");
    // authd does not reload the token file. The reload of a new signing key proves that authd has checked
    // its files since the change.
    let key = plane.data_dir().join("service-account.key");
    fs::write(&key, rcgen::KeyPair::generate().expect("a key").serialize_pem()).expect("the key");
    eventually("files reloaded", || async { plane.log().contains("files reloaded").then_some(()) }).await;
    assert_eq!(user_name(&plane, &plane.token("t-2")).await.as_deref(), Some("joe"));
    assert_eq!(user_name(&plane, &plane.token("t-3")).await, None);
    plane.stop().await;
    plane.launch().await;
    assert_eq!(user_name(&plane, &plane.token("t-2")).await, None);
    assert_eq!(user_name(&plane, &plane.token("t-3")).await.as_deref(), Some("eve"));
}
