//! Proxies of Services, pods and nodes with both programs: permissions, certificates, upgrades, slow and closing backends.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use super::cluster_node::ClusterNode;
use super::container_streams::{MAX_GROWTH_KB, STREAMS, resident_kb};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Reads up to the end of a head; None at the end of the stream.
async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Starts a backend in plain HTTP. `/hang` gets no answer, `/close` a closed connection, `/endless` a body without end, an
/// upgrade an echo; any other request gets its own head.
async fn start_backend() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

async fn serve(mut stream: TcpStream) -> Option<()> {
    while let Some(head) = read_head(&mut stream).await {
        if head.starts_with("GET /hang") {
            std::future::pending::<()>().await;
        }
        if head.starts_with("GET /close") {
            return None;
        }
        if head.starts_with("GET /endless") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.ok()?;
            let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
            loop {
                stream.write_all(&chunk).await.ok()?;
            }
        }
        if head.to_lowercase().contains("upgrade: echo") {
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.ok()?;
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.ok()?;
            return None;
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
    None
}

/// Starts a control plane with the pod `web`, whose address is 127.0.0.1 and whose port is the one of the backend.
async fn start_with_pod(port: u16, flags: &[&str]) -> ControlPlane {
    let options = Options::kubernetes().flag("--forwarding-address-exceptions=127.0.0.0/8");
    let plane = ControlPlane::start(flags.iter().fold(options, |options, flag| options.flag(flag))).await;
    create_pod(&plane, port).await;
    plane
}

async fn create_pod(plane: &ControlPlane, port: u16) {
    let admin = plane.admin();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let made = admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.status;
    assert!(matches!(made, 201 | 409), "{made}");
    let containers = json!([{"name": "c", "image": "registry.example.com/i", "ports": [{"name": "http", "containerPort": port}]}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "automountServiceAccountToken": false, "containers": containers,
    }});
    admin.post(PODS, &pod).await.expect(201);
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    admin.patch(&format!("{PODS}/web/status"), "application/merge-patch+json", &status).await.expect(200);
}

#[tokio::test]
async fn pod_proxy_needs_the_verb_of_the_method_and_hides_credentials() {
    let plane = start_with_pod(start_backend().await, &[]).await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]);
    plane.grant("default", "reader", "User/alice", &rules).await;
    let alice = plane.user("alice");
    let url = format!("{PODS}/web:http/proxy/a/../b?c=d");
    eventually("the grant of alice", || async { (alice.get(&url).await.status == 200).then_some(()) }).await;
    let seen = alice.get(&url).await.text().to_lowercase();
    assert!(seen.starts_with("get /b?c=d http/1.1\r\n"), "{seen}");
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n"), "{seen}");
    assert!(!seen.contains("authorization") && !seen.contains("bearer"), "{seen}");
    for (status, method) in [(403, "POST"), (403, "DELETE"), (200, "HEAD")] {
        assert_eq!(alice.request(method, &url, &[], b"").await.status, status, "{method}");
    }
    let failed = plane.admin().get(&format!("{PODS}/web:http/proxy/close")).await.expect(503);
    assert_eq!(failed["message"], "error trying to reach service: EOF");
}

/// Two servers whose pods lead to each other: a request passes each server once.
#[tokio::test]
async fn loop_over_two_servers_ends_at_the_first_one() {
    let start = || start_with_pod(80, &[]);
    let (first, second) = tokio::join!(start(), start());
    // A proxy removes the credentials, so the requests are anonymous at the next server.
    let rules = json!([{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]);
    for plane in [&first, &second] {
        plane.grant("default", "proxy", "User/system:anonymous", &rules).await;
    }
    let [to_first, to_second] =
        [&first, &second].map(|plane| format!("{PODS}/https:web:{}/proxy", plane.admin().port()));
    let admin = first.admin();
    let back = format!("{to_second}{to_first}/version");
    let version = eventually("the grants of anonymous requests", || async {
        let answer = admin.get(&back).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(
        version.json(),
        admin.get("/version").await.json(),
        "the first server answers a request itself"
    );
    let answer = admin.get(&format!("{to_second}{to_first}{to_second}/version")).await;
    assert_eq!(answer.status, 508, "{}", answer.text());
    assert!(answer.text().contains("this server has forwarded the request before"), "{}", answer.text());
}

#[tokio::test]
async fn pod_at_local_address_is_rejected_without_exception() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    create_pod(&plane, start_backend().await).await;
    let refused = plane.admin().get(&format!("{PODS}/web:http/proxy/")).await.expect(400);
    assert_eq!(refused["message"], "address not allowed");
}

#[tokio::test]
async fn service_of_resolver_file_is_proxied_without_endpoints() {
    let port = start_backend().await;
    let files = tempfile::tempdir().expect("a folder");
    let file = files.path().join("services.yaml");
    std::fs::write(&file, format!("default/web:80: http://127.0.0.1:{port}\n")).expect("a file");
    let flag = format!("--service-resolver-file={}", file.display());
    let plane = ControlPlane::start(Options::kubernetes().flag(&flag)).await;
    let admin = plane.admin();
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    admin.post(services, &service).await.expect(201);
    for name in ["web:80", "web:http", "http:web:http"] {
        let answer = admin.get(&format!("{services}/{name}/proxy/x")).await;
        assert!(answer.text().starts_with("GET /x HTTP/1.1\r\n"), "{name}: {}", answer.text());
    }
    let redirect = admin.get(&format!("{services}/web:80/proxy")).await;
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (301, format!("{services}/web:80/proxy/").as_str())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn node_proxy_reaches_the_kubelet_with_the_client_certificate() {
    let node = ClusterNode::start(Options::kubernetes()).await;
    let admin = node.plane.admin();
    // The kubelet of the test rejects clients without a certificate of its CA.
    for name in ["n1", "https:n1:"] {
        let answer = admin.get(&format!("/api/v1/nodes/{name}/proxy/containerLogs/default/q/c")).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
    let metrics = admin.get("/api/v1/nodes/n1/proxy/metrics").await.text();
    assert!(metrics.contains("kubelet_running_pods 2\n"), "{metrics}");
    let summary = admin.get("/api/v1/nodes/n1/proxy/stats/summary").await.expect(200);
    assert_eq!(summary["pods"][0]["podRef"], json!({"name": "p", "namespace": "default"}));
    let missing: Value = admin.get("/api/v1/nodes/n2/proxy/metrics").await.expect(404);
    assert_eq!(missing["message"], "nodes \"n2\" not found");
}

async fn connect(plane: &ControlPlane) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", plane.admin().port())).await.expect("apid listens");
    tls(&["http/1.1"]).connect("localhost".try_into().expect("a name"), stream).await.expect("TLS")
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_through_proxy_is_a_pipe_until_apid_stops() {
    let mut plane = start_with_pod(start_backend().await, &[]).await;
    let mut client = connect(&plane).await;
    let upgrade = format!(
        "GET {PODS}/web:http/proxy/x HTTP/1.1\r\nHost: apid\r\nAuthorization: Bearer admin-token\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
    );
    client.write_all(upgrade.as_bytes()).await.expect("apid reads");
    let head = read_head(&mut client).await.expect("a head");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let data: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(client);
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        writer.write_all(&sent).await.expect("apid reads");
        writer
    });
    let mut echoed = vec![0; data.len()];
    reader.read_exact(&mut echoed).await.expect("the echo");
    assert!(echoed == data);
    let _writer = sending.await.expect("sent");
    plane.stop().await;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), reader.read_to_end(&mut rest)).await;
    assert!(end.is_ok() && rest.is_empty(), "the tunnel ends with apid");
}

/// Clients that begin to read an endless response of a backend, and then read no more.
#[tokio::test(flavor = "multi_thread")]
async fn hundred_unread_responses_of_backends_need_little_memory() {
    let plane = start_with_pod(start_backend().await, &[]).await;
    let open = async || {
        let mut client = connect(&plane).await;
        let request = format!(
            "GET {PODS}/web:http/proxy/endless HTTP/1.1\r\nHost: apid\r\nAuthorization: Bearer admin-token\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.expect("apid reads");
        let head = read_head(&mut client).await.expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client
    };
    // The first responses fill caches.
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(open().await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = resident_kb(plane.pid());
    for _ in 0..STREAMS {
        clients.push(open().await);
    }
    // All buffers of the connections fill.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let growth = resident_kb(plane.pid()).saturating_sub(before);
    println!("{STREAMS} unread responses: {growth} kB");
    assert!(growth < MAX_GROWTH_KB, "memory grew by {growth} kB from {before} kB");
    // A response goes on when its client reads again.
    let mut more = vec![0; 4 << 20];
    let read = tokio::time::timeout(Duration::from_secs(60), clients[0].read_exact(&mut more)).await;
    assert!(read.is_ok_and(|read| read.is_ok()), "the response goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_backends_do_not_delay_other_requests() {
    let plane = start_with_pod(start_backend().await, &[]).await;
    let admin = plane.admin();
    let mut hanging = Vec::new();
    for _ in 0..60 {
        // The server limits TLS handshakes at once.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let admin = admin.clone();
        hanging.push(tokio::spawn(async move { admin.get(&format!("{PODS}/web:http/proxy/hang")).await }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..5 {
        let start = Instant::now();
        admin.get(&format!("{PODS}/web")).await.expect(200);
        assert_eq!(admin.get(&format!("{PODS}/web:http/proxy/x")).await.status, 200);
        // The bound is far below the request timeout, and allows slow test machines.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
    assert!(hanging.iter().all(|task| !task.is_finished()), "a slow backend has no time limit");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}
