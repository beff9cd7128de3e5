//! Malformed and hostile requests: correct Status, no panic, no hang, no memory growth.

use std::fs;

use tests::harness::{ControlPlane, Options, eventually};

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
