//! Server behavior visible to clients.
//!
//! Preset names, health checks, verb authorization, the in-flight limit, feature gates and transfer
//! encodings.

use std::net::{IpAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use apimachinery::names::Preset;
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, DEADLINE, Options, TOKENS, eventually, program};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": "v"}})
}

/// A running apid, which is killed at the end.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Bodies of GET by path, without the address of the server.
async fn documents(client: &Client, address: &str) -> Vec<(&'static str, Value)> {
    let mut documents = Vec::new();
    for path in ["/api", "/apis", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3", MAPS] {
        let text = client.get(path).await.expect(200).to_string().replace(address, "ADDRESS");
        documents.push((path, serde_json::from_str(&text).expect("JSON")));
    }
    documents
}

#[tokio::test(flavor = "multi_thread")]
async fn api_works_at_any_bind_address_and_port() {
    let mut served = Vec::new();
    for address in ["127.0.0.1", "127.0.0.3"].map(|address| address.parse::<IpAddr>().expect("an address")) {
        let folder = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind((address, 0)).expect("a port").local_addr().expect("an address").port();
        std::fs::write(folder.path().join("tokens.csv"), TOKENS).expect("the token file");
        let flag = |name: &str, value: &dyn std::fmt::Display| format!("--{name}={value}");
        let mut command = Command::new(program("apid"));
        command
            .args(["--spawn-authd", "--names=kubernetes", "--authorization-mode=RBAC"])
            .arg("--controllers=namespace")
            .arg(flag("data-dir", &folder.path().join("data").display()))
            .arg(flag("token-auth-file", &folder.path().join("tokens.csv").display()))
            .args([flag("bind-address", &address), flag("secure-port", &port)])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _server = Server(command.spawn().expect("apid starts"));
        let client = Client::new(port, Some("admin-token".to_owned())).at(address);
        eventually("apid is ready", || async {
            let ready = client.try_request("GET", "/readyz", &[], b"").await;
            ready.is_ok_and(|response| response.status == 200).then_some(())
        })
        .await;
        let other: IpAddr = [127, 0, 0, 4].into();
        assert!(client.clone().at(other).connect().await.is_err(), "only {address} listens");
        let authority = format!("{address}:{port}");
        let cidrs = client.get("/api").await.expect(200)["serverAddressByClientCIDRs"].clone();
        assert_eq!(cidrs[0]["serverAddress"], authority);
        served.push(documents(&client, &authority).await);
        client.post(MAPS, &map("a")).await.expect(201);
        assert_eq!(client.get(&format!("{MAPS}/a")).await.expect(200)["data"], json!({"k": "v"}));
    }
    let [first, second] = served.as_slice() else { panic!("two servers") };
    for ((path, one), (_, other)) in first.iter().zip(second) {
        assert_eq!(without_versions(one), without_versions(other), "{path}");
    }
}

/// A list without its resourceVersion.
fn without_versions(document: &Value) -> Value {
    let mut document = document.clone();
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    document
}

#[tokio::test(flavor = "multi_thread")]
async fn api_names_follow_preset() {
    let svc = || Options::default().flag("--api-domain=example.test");
    for (options, groups, label, namespaces) in [
        (
            svc(),
            ["storage.example.test", "policy.example.test"],
            "example.test",
            ["svc-system", "svc-public"],
        ),
        (
            Options::kubernetes(),
            ["storage.k8s.io", "policy"],
            "kubernetes.io",
            ["kube-system", "kube-public"],
        ),
    ] {
        let preset = options.preset;
        let plane = ControlPlane::start(options).await;
        let admin = plane.admin();
        let all = admin.get("/apis").await.expect(200);
        let served: Vec<&str> =
            all["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
        assert!(groups.iter().all(|group| served.contains(group)), "{served:?}");
        let other = if preset == Preset::Svc { "k8s.io" } else { "example.test" };
        assert!(!served.iter().any(|group| group.ends_with(other)), "{served:?}");
        for namespace in namespaces {
            admin.get(&format!("/api/v1/namespaces/{namespace}")).await.expect(200);
        }
        let default = admin.get("/api/v1/namespaces/default").await.expect(200);
        assert_eq!(default["metadata"]["labels"][format!("{label}/metadata.name")], "default");

        let group = if preset == Preset::Svc {
            "rbac.authorization.example.test"
        } else {
            "rbac.authorization.k8s.io"
        };
        let roles = format!("/apis/{group}/v1/clusterroles");
        let view = admin.get(&format!("{roles}/view")).await.expect(200);
        assert_eq!(view["metadata"]["labels"][format!("{label}/bootstrapping")], "rbac-defaults");
        let (autoupdate, aggregate) = match preset {
            Preset::Svc => (
                "rbac.authorization.example.test/autoupdate",
                "rbac.authorization.example.test/aggregate-to-admin",
            ),
            Preset::Kubernetes => (
                "rbac.authorization.kubernetes.io/autoupdate",
                "rbac.authorization.k8s.io/aggregate-to-admin",
            ),
        };
        let chief = admin.get(&format!("{roles}/admin")).await.expect(200);
        assert_eq!(chief["metadata"]["annotations"][autoupdate], "true");
        let selectors = &chief["aggregationRule"]["clusterRoleSelectors"];
        assert_eq!(selectors[0]["matchLabels"], json!({aggregate: "true"}));

        let (meta, protobuf) = match preset {
            Preset::Svc => ("meta.example.test", "application/vnd.svc.protobuf"),
            Preset::Kubernetes => ("meta.k8s.io", "application/vnd.kubernetes.protobuf"),
        };
        let get = async |accept: &str| admin.request("GET", MAPS, &[("accept", accept)], b"").await;
        let table = |group: &str| format!("application/json;as=Table;g={group};v=v1");
        assert_eq!(get(&table(meta)).await.expect(200)["apiVersion"], format!("{meta}/v1"));
        get(&table("meta.other.test")).await.expect(406);
        let answer = get(protobuf).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, protobuf));
        assert_eq!(answer.body[..4], *b"k8s\0");
        let answer = get(&format!("{protobuf}x, application/json")).await;
        assert_eq!(answer.header("content-type"), "application/json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_endpoints_list_their_checks() {
    for (options, store) in [(Options::default(), "storage"), (Options::kubernetes(), "etcd")] {
        let own_name = options.preset == Preset::Kubernetes;
        let plane = ControlPlane::start(options.flag("--livez-grace-period=1h")).await;
        let admin = plane.admin();
        for endpoint in ["livez", "readyz", "healthz"] {
            let plain = plane.anonymous().get(&format!("/{endpoint}")).await;
            assert_eq!((plain.status, plain.text().as_str()), (200, "ok"), "{endpoint}");
            assert_eq!(plain.header("content-type"), "text/plain; charset=utf-8");
            let verbose = admin.get(&format!("/{endpoint}?verbose")).await.text();
            let mut checks: Vec<&str> = verbose.lines().collect();
            let last = checks.pop().unwrap();
            assert_eq!(last, format!("{} check passed", if own_name { endpoint } else { "healthz" }));
            let checks: Vec<&str> = checks
                .into_iter()
                .map(|line| line.strip_prefix("[+]").and_then(|line| line.strip_suffix(" ok")).expect(line))
                .collect();
            let mut expected = vec!["ping", "log", store, "autoregister-completion"];
            if endpoint == "readyz" {
                expected.push("shutdown");
                expected.push("informer-sync");
            }
            assert!(expected.iter().all(|check| checks.contains(check)), "{endpoint}: {checks:?}");
            assert!(checks.iter().any(|check| check.starts_with("poststarthook/")), "{checks:?}");
            let readiness = format!("{store}-readiness");
            assert_eq!(checks.contains(&readiness.as_str()), endpoint == "readyz");
            for check in &checks {
                let single = admin.get(&format!("/{endpoint}/{check}")).await;
                assert_eq!((single.status, single.text().as_str()), (200, "ok"), "{endpoint}/{check}");
                plane.anonymous().get(&format!("/{endpoint}/{check}")).await.expect(403);
            }
            admin.get(&format!("/{endpoint}/nope")).await.expect(404);
            let without =
                admin.get(&format!("/{endpoint}?verbose&exclude={store}&exclude=nope")).await.text();
            assert!(without.contains(&format!("[+]{store} excluded: ok\n")), "{without}");
            assert!(
                without.contains("warn: some health checks cannot be excluded: no matches for \"nope\"\n")
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_health_check_is_named_and_logged() {
    let plane = ControlPlane::start(Options::default()).await;
    let client = plane.anonymous();
    plane.signal_authd(rustix::process::Signal::STOP);
    let failed = eventually("readyz fails", || async {
        let answer = client.get("/readyz").await;
        (answer.status == 500).then(|| answer.text())
    })
    .await;
    assert!(failed.contains("[-]authd failed: reason withheld\n"), "{failed}");
    assert!(failed.ends_with("readyz check failed\n"), "{failed}");
    // apid replaces an unresponsive authd. Requests during the start of the new one are rejected.
    for path in ["/readyz?exclude=authd", "/livez"] {
        eventually("healthy without authd", || async {
            let answer = client.get(path).await;
            (answer.status == 200 && answer.text() == "ok").then_some(())
        })
        .await;
    }
    let log = plane.log();
    assert!(log.lines().any(|line| line.contains("health check failed") && line.contains("authd")), "{log}");
    plane.signal_authd(rustix::process::Signal::CONT);
}

/// Creates a user with a client certificate and a Role for one verb on ConfigMaps.
async fn user_with_verb(plane: &ControlPlane, verb: &str) -> Client {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}]);
    let name = format!("only-{verb}");
    plane.grant("default", &name, &format!("User/{name}"), &rules).await;
    plane.certificate(&name, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn each_verb_is_authorized_separately() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let item = format!("{MAPS}/x");
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1");
    let watch_item = format!("{item}?watch=1&timeoutSeconds=1");
    let legacy = "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1".to_owned();
    // Method, path, and the verb of the request.
    let requests = [
        ("GET", &item, "get"),
        ("HEAD", &item, "get"),
        ("GET", &MAPS.to_owned(), "list"),
        ("HEAD", &MAPS.to_owned(), "list"),
        ("GET", &watch, "watch"),
        ("GET", &watch_item, "watch"),
        ("GET", &legacy, "watch"),
        ("POST", &format!("{MAPS}?dryRun=All"), "create"),
        ("PUT", &item, "update"),
        ("PATCH", &item, "patch"),
        ("DELETE", &format!("{item}?dryRun=All"), "delete"),
        ("DELETE", &format!("{MAPS}?dryRun=All"), "deletecollection"),
    ];
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
        let user = user_with_verb(&plane, verb).await;
        admin.post(MAPS, &map("x")).await;
        for (method, path, needed) in &requests {
            let media_type =
                if *method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            let body = match *method {
                "POST" => map("new").to_string(),
                "PUT" => map("x").to_string(),
                "PATCH" => "{}".to_owned(),
                _ => String::new(),
            };
            let answer = user.request(method, path, &[("content-type", media_type)], body.as_bytes()).await;
            let code = match (*needed == verb, *method) {
                (false, _) => 403,
                (true, "POST") => 201,
                (true, _) => 200,
            };
            assert_eq!(answer.status, code, "{verb}: {method} {path}: {}", answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_compression_follows_feature_gate() {
    let large = json!({"metadata": {"name": "large"}, "data": {"k": "text ".repeat(60_000)}});
    for (gates, encoding) in [("APIResponseCompression=true", "gzip"), ("APIResponseCompression=false", "")] {
        let plane = ControlPlane::start(Options::default().flag(&format!("--feature-gates={gates}"))).await;
        let admin = plane.admin();
        admin.post(MAPS, &large).await.expect(201);
        for path in [MAPS.to_owned(), format!("{MAPS}/large")] {
            let answer = admin.request("GET", &path, &[("accept-encoding", "gzip")], b"").await;
            assert_eq!((answer.status, answer.header("content-encoding")), (200, encoding), "{gates} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_on_http1_uses_chunked_encoding() {
    let plane = ControlPlane::start(Options::default()).await;
    let url = format!("{}{MAPS}?watch=1&timeoutSeconds=1", plane.url());
    let seconds = DEADLINE.as_secs().to_string();
    let output = Command::new("curl")
        .args(["--silent", "--insecure", "--http1.1", "--dump-header", "-", "--max-time", &seconds])
        .args(["--header", "Authorization: Bearer admin-token", &url])
        .output();
    let Ok(output) = output else {
        return prerequisites::skip("curl", "it is not on PATH");
    };
    let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
}
