//! curl with the neutral names: the same requests as kubectl in `kubectl.rs`.

use std::process::Command;

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

/// Runs curl once and returns the HTTP status code and the JSON body.
fn curl(plane: &ControlPlane, user: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--insecure",
        "--max-time",
        "20",
        "--write-out",
        "\n%{http_code}",
        "--request",
        method,
    ]);
    command.arg("--header").arg(format!("Authorization: Bearer {user}-token"));
    if let Some(body) = body {
        command.args(["--header", "Content-Type: application/json", "--data", &body.to_string()]);
    }
    let output = command.arg(format!("{}{path}", plane.url())).output().expect("curl runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let (body, code) = text.rsplit_once('\n').expect("the status code on a separate line");
    (code.parse().expect("a number"), serde_json::from_str(body).unwrap_or(Value::Null))
}

fn is_installed() -> bool {
    let found = Command::new("curl").arg("--version").output().is_ok();
    if !found {
        prerequisites::skip("curl", "it is not on PATH");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_manages_objects_under_svc_preset() {
    if !is_installed() {
        return;
    }
    let plane = ControlPlane::start(Options::default()).await;
    let rbac = plane.names().group("rbac.authorization");
    let (code, _) =
        curl(&plane, "admin", "POST", "/api/v1/namespaces", Some(&json!({"metadata": {"name": "shop"}})));
    assert_eq!(code, 201);
    let core = "/api/v1/namespaces/shop".to_owned();
    let roles = format!("/apis/{rbac}/v1");
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let subject = json!([{"kind": "User", "name": "alice"}]);
    let role_ref = |kind: &str, name: &str| json!({"apiGroup": rbac, "kind": kind, "name": name});
    for (collection, kind, body) in [
        (format!("{core}/configmaps"), "ConfigMap", json!({"data": {"color": "blue"}})),
        (format!("{core}/secrets"), "Secret", json!({"stringData": {"user": "me"}})),
        (format!("{core}/serviceaccounts"), "ServiceAccount", json!({})),
        (
            format!("{core}/events"),
            "Event",
            json!({"reason": "Tested", "type": "Normal", "involvedObject": {"kind": "ConfigMap", "namespace": "shop", "name": "x"}}),
        ),
        (
            format!("/apis/{}/v1/namespaces/shop/leases", plane.names().group("coordination")),
            "Lease",
            json!({"spec": {}}),
        ),
        (format!("{roles}/namespaces/shop/roles"), "Role", json!({"rules": rule})),
        (format!("{roles}/clusterroles"), "ClusterRole", json!({"rules": rule})),
        (
            format!("{roles}/namespaces/shop/rolebindings"),
            "RoleBinding",
            json!({"subjects": subject, "roleRef": role_ref("Role", "thing")}),
        ),
        (
            format!("{roles}/clusterrolebindings"),
            "ClusterRoleBinding",
            json!({"subjects": subject, "roleRef": role_ref("ClusterRole", "view")}),
        ),
    ] {
        let item = format!("{collection}/thing");
        let mut object = body;
        object["metadata"] = json!({"name": "thing"});
        let (code, made) = curl(&plane, "admin", "POST", &collection, Some(&object));
        assert_eq!((code, &made["kind"]), (201, &json!(kind)), "{made}");
        let (code, mut read) = curl(&plane, "admin", "GET", &item, None);
        assert_eq!((code, &read), (200, &made), "{kind}: GET returns the object of the create response");
        let (code, list) = curl(&plane, "admin", "GET", &collection, None);
        assert_eq!((code, &list["kind"]), (200, &json!(format!("{kind}List"))), "{list}");
        read["metadata"]["labels"] = json!({"touched": "yes"});
        let (code, replaced) = curl(&plane, "admin", "PUT", &item, Some(&read));
        assert_eq!((code, &replaced["metadata"]["labels"]["touched"]), (200, &json!("yes")), "{replaced}");
        assert_eq!(
            curl(&plane, "admin", "PUT", &item, Some(&read)).0,
            409,
            "{kind}: a stale resourceVersion conflicts"
        );
        assert_eq!(curl(&plane, "admin", "DELETE", &item, None).0, 200);
        assert_eq!(curl(&plane, "admin", "GET", &item, None).0, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_role_binding_and_access_reviews_under_svc_preset() {
    if !is_installed() {
        return;
    }
    let plane = ControlPlane::start(Options::default()).await;
    let rbac = plane.names().group("rbac.authorization");
    let review = |verb: &str| json!({"spec": {"resourceAttributes": {"namespace": "default", "verb": verb, "resource": "configmaps"}}});
    let reviews = format!("/apis/{}/v1/selfsubjectaccessreviews", plane.names().group("authorization"));
    let who = format!("/apis/{}/v1/selfsubjectreviews", plane.names().group("authentication"));
    let (code, me) = curl(&plane, "alice", "POST", &who, Some(&json!({})));
    assert_eq!((code, &me["status"]["userInfo"]["username"]), (201, &json!("alice")), "{me}");
    assert_eq!(curl(&plane, "alice", "GET", "/api/v1/namespaces/default/configmaps", None).0, 403);
    let (_, response) = curl(&plane, "alice", "POST", &reviews, Some(&review("list")));
    assert_eq!(response["status"]["allowed"], json!(false));
    let path = format!("/apis/{rbac}/v1/namespaces/default/rolebindings");
    let binding = json!({"metadata": {"name": "viewers"}, "subjects": [{"kind": "Group", "name": "team-a"}],
                         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "view"}});
    assert_eq!(curl(&plane, "admin", "POST", &path, Some(&binding)).0, 201);
    let (_, response) = curl(&plane, "alice", "POST", &reviews, Some(&review("list")));
    assert_eq!(response["status"]["allowed"], json!(true), "{response}");
    assert_eq!(curl(&plane, "alice", "GET", "/api/v1/namespaces/default/configmaps", None).0, 200);
    assert_eq!(
        curl(&plane, "carol", "GET", "/api/v1/namespaces/default/configmaps", None).0,
        403,
        "carol has no role binding"
    );
    assert_eq!(curl(&plane, "admin", "DELETE", &format!("{path}/viewers"), None).0, 200);
    assert_eq!(curl(&plane, "alice", "GET", "/api/v1/namespaces/default/configmaps", None).0, 403);
}
