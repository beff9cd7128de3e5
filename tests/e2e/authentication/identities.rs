//! Identities: users, service accounts, groups, anonymous requests (requirements A-PRIN).

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually};

use super::{user_name, whoami};

#[tokio::test]
async fn users_are_not_resources_and_service_accounts_are() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let groups = admin.get("/apis").await.expect(200);
    let versions = groups["groups"].as_array().expect("groups").iter().flat_map(|group| {
        let versions = group["versions"].as_array().cloned().unwrap_or_default();
        versions
            .into_iter()
            .map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap_or_default()))
    });
    let mut kinds = 0;
    for path in versions.chain(["/api/v1".to_owned()]) {
        for resource in admin.get(&path).await.expect(200)["resources"].as_array().expect("resources") {
            kinds += 1;
            let name = resource["name"].as_str().unwrap_or_default();
            assert!(!["users", "groups"].contains(&name), "{path}: {resource}");
            if path == "/api/v1" && name == "serviceaccounts" {
                assert_eq!(resource["namespaced"], true);
            }
        }
    }
    assert!(kinds > 50, "{kinds}");
    for (path, kind) in
        [("/api/v1/users", "User"), ("/api/v1/groups", "Group"), ("/apis/user/v1/users", "User")]
    {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "jane"}});
        assert_eq!(admin.post(path, &object).await.status, 404, "{path}");
    }
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.expect(201);
    let accounts = "/api/v1/namespaces/team/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "x"}})).await.expect(201);
    eventually("the default service account of the namespace", || async {
        (admin.get(&format!("{accounts}/default")).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn all_authenticators_add_system_authenticated_group() {
    let dir = tempfile::tempdir().expect("a folder");
    let proxies = super::Ca::new(dir.path(), "proxies");
    let options = Options::default()
        .flag("--requestheader-username-headers=X-Remote-User")
        .flag(&super::path_flag("requestheader-client-ca-file", &proxies.cert));
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "x"}})).await.expect(201);
    let token = admin.post(&format!("{accounts}/x/token"), &json!({"spec": {}})).await.expect(201);
    let token = token["status"]["token"].as_str().expect("a token").to_owned();
    for (want, client, headers) in [
        ("jane", plane.certificate("jane", &[]), vec![]),
        ("alice", plane.user("alice"), vec![]),
        ("system:serviceaccount:default:x", plane.token(&token), vec![]),
        ("joe", proxies.client(&plane, "front", &[]), vec![("x-remote-user", "joe")]),
    ] {
        let user = whoami(&plane, &client, &headers).await.expect(want);
        assert_eq!(user["username"], want);
        let groups = user["groups"].as_array().expect("groups");
        assert_eq!(groups.iter().filter(|group| **group == "system:authenticated").count(), 1, "{user}");
    }
}

#[tokio::test]
async fn anonymous_request_without_permission_returns_403() {
    let plane = ControlPlane::start(Options::default()).await;
    assert_eq!(plane.anonymous().get("/livez").await.status, 200);
    let rejected = plane.anonymous().get("/api/v1/namespaces").await.expect(403);
    assert!(
        rejected["message"].as_str().is_some_and(|text| text.contains("\"system:anonymous\"")),
        "{rejected}"
    );
    drop(plane);
    // The harness reads `/readyz` without credentials and therefore needs `--anonymous-auth`.
    let everything = Options { mode: "AlwaysAllow".to_owned(), ..Options::default() };
    let plane = ControlPlane::start(everything.flag("--anonymous-auth=true")).await;
    assert_eq!(user_name(&plane, &plane.anonymous()).await.as_deref(), Some("system:anonymous"));
    let user = whoami(&plane, &plane.anonymous(), &[]).await.unwrap_or(Value::Null);
    assert_eq!(user["groups"], json!(["system:unauthenticated"]));
}
