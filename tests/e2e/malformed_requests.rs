//! Malformed and hostile requests: correct Status, no panic, no hang, no memory growth.

use std::fs;

use serde_json::json;
use tests::harness::{Client, ControlPlane, Options, eventually};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Bodies of create requests with the expected status code and reason.
fn bodies() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let object = |metadata: &str, rest: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{metadata}{rest}}}"#).into_bytes()
    };
    let nested = |open: &str, close: &str, n: usize| format!("{}{}", open.repeat(n), close.repeat(n));
    let whole = object(r#"{"name":"a"}"#, "");
    vec![
        ("empty", Vec::new(), 400, "BadRequest"),
        ("a brace", b"{".to_vec(), 400, "BadRequest"),
        ("truncated", whole[..whole.len() - 3].to_vec(), 400, "BadRequest"),
        ("two documents", [whole.clone(), whole.clone()].concat(), 400, "BadRequest"),
        ("a number", b"5".to_vec(), 400, "BadRequest"),
        ("a list", b"[]".to_vec(), 400, "BadRequest"),
        ("not UTF-8", b"{\"kind\":\"\xff\xfe\"}".to_vec(), 400, "BadRequest"),
        ("100,000 brackets", nested("[", "]", 100_000).into_bytes(), 400, "BadRequest"),
        (
            "100,000 objects",
            format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000)).into_bytes(),
            400,
            "BadRequest",
        ),
        (
            "deep nesting in the data",
            object(r#"{"name":"a"}"#, &format!(r#","data":{}"#, nested("[", "]", 5000))),
            400,
            "BadRequest",
        ),
        ("over 3 MiB", vec![b' '; 3 * 1024 * 1024 + 1], 413, "RequestEntityTooLarge"),
        ("8 MiB", vec![b'{'; 8 * 1024 * 1024], 413, "RequestEntityTooLarge"),
        ("data is a number", object(r#"{"name":"a"}"#, r#","data":5"#), 400, "BadRequest"),
        ("a value is a number", object(r#"{"name":"a"}"#, r#","data":{"a":1}"#), 400, "BadRequest"),
        ("metadata is a list", object("[]", ""), 400, "BadRequest"),
        ("labels are a list", object(r#"{"name":"a","labels":["x"]}"#, ""), 400, "BadRequest"),
        ("name is an object", object(r#"{"name":{}}"#, ""), 400, "BadRequest"),
        ("a huge number", object(r#"{"name":"a","generation":1e999}"#, ""), 400, "BadRequest"),
        ("a valid object", object(r#"{"name":"a"}"#, ""), 201, ""),
        ("a name with a slash", object(r#"{"name":"a/b"}"#, ""), 422, "Invalid"),
        ("a name with a NUL", object(r#"{"name":"a\u0000b"}"#, ""), 422, "Invalid"),
        ("no name", object("{}", ""), 422, "Invalid"),
        (
            "a name of 300 characters",
            object(&format!(r#"{{"name":"{}"}}"#, "a".repeat(300)), ""),
            422,
            "Invalid",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bodies_return_status() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    for (case, body, code, reason) in bodies() {
        let response =
            admin.request("POST", CONFIG_MAPS, &[("content-type", "application/json")], &body).await;
        assert_eq!(response.status, code, "{case}: {}", response.text());
        if code >= 400 {
            let status = response.json();
            assert_eq!(status["kind"], "Status", "{case}");
            assert_eq!(status["reason"], reason, "{case}: {status}");
            assert_eq!(status["code"], code, "{case}");
            assert!(response.body.len() < 16 * 1024, "{case}: the response repeats the input");
        }
    }
    for (content_type, code) in
        [("text/plain", 415), ("application/xml", 415), ("application/vnd.unknown", 415), ("///", 415)]
    {
        let response = admin.request("POST", CONFIG_MAPS, &[("content-type", content_type)], b"{}").await;
        response.expect(code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_json_and_yaml_keys_are_rejected_or_warned() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let json =
        br#"{"metadata":{"name":"twice","labels":{"a":"1","a":"2"}},"data":{"k":"v"},"data":{"k":"w"}}"#;
    let yaml = b"metadata:\n  name: thrice\ndata:\n  k: v\n  k: w\n";
    for (kind, body, text) in [
        ("application/json", json.as_slice(), "duplicate field"),
        ("application/yaml", yaml.as_slice(), "already set in map"),
    ] {
        let strict = admin
            .request(
                "POST",
                &format!("{CONFIG_MAPS}?fieldValidation=Strict"),
                &[("content-type", kind)],
                body,
            )
            .await;
        let status = strict.expect(400);
        assert!(status["message"].as_str().unwrap_or("").contains(text), "{status}");
        let warned = admin.request("POST", CONFIG_MAPS, &[("content-type", kind)], body).await;
        let object = warned.expect(201);
        assert_eq!(object["data"]["k"], "w", "the last value wins");
        assert!(warned.header("warning").contains(text), "{:?}", warned.headers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_credentials_return_401() {
    let plane = ControlPlane::start(Options::default()).await;
    let long = "x".repeat(60_000);
    for token in
        ["wrong", "a.b.c", "admin-tokem", "admin-token-", "Admin-Token", "%00", "\u{7f}x", "=", long.as_str()]
    {
        let Ok(response) = plane.token(token).try_request("GET", "/api/v1/namespaces", &[], b"").await else {
            // The HTTP client does not send an invalid header value.
            assert!(token.bytes().any(|b| b < 0x20 || b == 0x7f), "{token}: no response");
            continue;
        };
        assert!(response.status == 401 || response.status == 431, "{}: {}", token.len(), response.text());
    }
    // An invalid token gets 401 on paths that anonymous requests may read.
    plane.token("wrong").get("/healthz").await.expect(401);
    plane.anonymous().get("/healthz").await.expect(200);
    plane.admin().get("/api/v1/namespaces").await.expect(200);
    // A certificate of an unknown CA: the TLS handshake succeeds, and authd rejects the chain.
    let key = rcgen::KeyPair::generate().expect("a key");
    let cert = rcgen::CertificateParams::new(vec!["stranger".to_owned()])
        .expect("parameters")
        .self_signed(&key)
        .expect("a certificate");
    let stranger = Client::with_certificate(plane.admin().port(), &cert.pem(), &key.serialize_pem());
    stranger.get("/api/v1/namespaces").await.expect(401);
    plane.certificate("operator", &["system:masters"]).get("/api/v1/namespaces").await.expect(200);
    plane.certificate("operator", &["visitors"]).get("/api/v1/namespaces").await.expect(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_headers_are_never_ignored() {
    let plane = ControlPlane::start(Options::default()).await;
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-x"] {
        let response = plane.admin().request("GET", "/api/v1/namespaces", &[(header, "someone")], b"").await;
        assert!(response.status >= 400, "{header}: {}", response.status);
        assert_eq!(response.json()["kind"], "Status", "{header}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn path_traversal_and_encoded_slashes_are_rejected() {
    let plane = ControlPlane::start(Options::default()).await;
    let rbac = plane.names().group("rbac.authorization");
    let binding = json!({"metadata": {"name": "viewers"}, "subjects": [{"kind": "User", "name": "carol"}],
                         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "view"}});
    plane
        .admin()
        .post(&format!("/apis/{rbac}/v1/namespaces/default/rolebindings"), &binding)
        .await
        .expect(201);
    let carol = plane.user("carol");
    carol.get(CONFIG_MAPS).await.expect(200);
    let system = plane.names().system_namespace;
    for path in [
        format!("/api/v1/namespaces/default/../{system}/configmaps"),
        format!("/api/v1/namespaces/default%2f..%2f{system}/configmaps"),
        format!("/api/v1/namespaces//{system}/configmaps"),
        format!("//api/v1/namespaces/{system}/configmaps"),
        format!("/api/v1/namespaces/default/configmaps/..%2f..%2f..%2f{system}%2fsecrets"),
        format!("/API/v1/namespaces/{system}/configmaps"),
        format!("/api/v1/namespaces/{system}/configmaps/"),
        format!("/api/v1/watch/namespaces/{system}/configmaps"),
        "/api/v1/namespaces/default/secrets".to_owned(),
        "/api/v1/namespaces/default/configmaps/../secrets".to_owned(),
    ] {
        let response = carol.get(&path).await;
        assert!((400..500).contains(&response.status), "{path}: {} {}", response.status, response.text());
        assert!(response.json().get("items").is_none(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn role_binding_without_valid_role_ref_returns_422() {
    let plane = ControlPlane::start(Options::default()).await;
    let rbac = plane.names().group("rbac.authorization");
    let path = format!("/apis/{rbac}/v1/namespaces/default/rolebindings");
    for role_ref in [json!({"apiGroup": rbac, "kind": "Foo", "name": "x"}), json!({"name": "x"}), json!({})] {
        let status = plane
            .admin()
            .post(&path, &json!({"metadata": {"name": "b"}, "roleRef": role_ref}))
            .await
            .expect(422);
        assert_eq!(status["reason"], "Invalid", "{status}");
    }
    plane.admin().post(&path, &json!({"metadata": {"name": "b"}})).await.expect(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_with_invalid_table_options_returns_400_and_stores_nothing() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let table = format!("application/json;as=Table;g={};v=v1", plane.names().meta_group());
    let headers = [("accept", table.as_str()), ("content-type", "application/json")];
    let body = br#"{"metadata":{"name":"unseen"}}"#;
    let response = admin.request("POST", &format!("{CONFIG_MAPS}?includeObject=bad"), &headers, body).await;
    response.expect(400);
    admin.get(&format!("{CONFIG_MAPS}/unseen")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_grow_under_hostile_input() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let bodies = bodies();
    let round = || async {
        for (_, body, code, _) in bodies.iter().filter(|b| b.2 >= 400) {
            let response =
                admin.request("POST", CONFIG_MAPS, &[("content-type", "application/json")], body).await;
            assert_eq!(response.status, *code);
            let response = plane.token(&format!("wrong-{}", body.len())).get("/api").await;
            assert_eq!(response.status, 401);
        }
    };
    for _ in 0..5 {
        round().await;
    }
    let before = resident_kib(plane.pid());
    for _ in 0..20 {
        round().await;
    }
    eventually("20 rounds add less than 24 MiB to the resident memory", || async {
        (resident_kib(plane.pid()).saturating_sub(before) < 24 * 1024).then_some(())
    })
    .await;
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("resident size");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
