//! Proxies of Services, pods and nodes, up to a backend on loopback.

use std::net::Ipv4Addr;

use forwarding::{AddressPolicy, ServiceMap};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::shares::MAX_FORWARDED_OF_USER;

/// Starts a backend that answers each request with its head and the bytes of its body that have arrived.
async fn start_backend() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
    port
}

async fn answer(mut stream: TcpStream) {
    let mut received = Vec::new();
    while !received.windows(4).any(|window| window == b"\r\n\r\n") {
        received.push(stream.read_u8().await.unwrap());
    }
    let mut body = vec![0; 100];
    if received.starts_with(b"POST") {
        let read = stream.read(&mut body).await.unwrap();
        received.extend_from_slice(&body[..read]);
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nCache-Control: max-age=5\r\nAudit-Id: of-backend\r\nSet-Cookie: a=1; Path=/\r\n\
         Set-Cookie: b=2\r\nConnection: close\r\n\r\n",
        received.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&received).await.unwrap();
}

fn options(map: &str) -> ForwardingOptions {
    let exceptions = ["127.0.0.0/8".to_owned(), "224.0.0.0/4".to_owned()];
    ForwardingOptions {
        addresses: Arc::new(AddressPolicy::new(&exceptions).unwrap()),
        service_map: ServiceMap::parse("map", map.as_bytes()).unwrap(),
        ..ForwardingOptions::default()
    }
}

/// A server with the pod `p` and the node `n` at 127.0.0.1, and the Service `s`, mapped to 127.0.0.1.
async fn start(port: u16) -> Server {
    let server = Server::start_with_forwarding(options(&format!("a/s:80: http://127.0.0.1:{port}"))).await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": port}]}]},
    });
    let pods = "/api/v1/namespaces/a/pods";
    assert_eq!(server.post(pods, pod).await.code, 201);
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    assert_eq!(server.merge(&format!("{pods}/p/status"), status).await.code, 200);
    let status = json!({"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]});
    assert_eq!(
        server.post("/api/v1/nodes", json!({"metadata": {"name": "n"}, "status": status})).await.code,
        201
    );
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    assert_eq!(server.post("/api/v1/namespaces/a/services", service).await.code, 201);
    server
}

/// requirements D-SVC-23
#[tokio::test]
async fn proxy_request_reaches_its_own_backend_with_cleaned_path() {
    let port = start_backend().await;
    let server = start(port).await;
    let in_namespace = "/api/v1/namespaces/a";
    for (prefix, suffix, path) in [
        (format!("{in_namespace}/services/s:80/proxy"), "/x?y=%2F", "/x?y=%2F"),
        (format!("{in_namespace}/services/http:s:http/proxy"), "/", "/"),
        (format!("{in_namespace}/pods/p/proxy"), "/a%2Fb//c/../d%20e/?x=%zz", "/a/b/d%20e/?x=%zz"),
        (format!("{in_namespace}/pods/p:web/proxy"), "/../../../api/v1/secrets", "/api/v1/secrets"),
        (format!("{in_namespace}/pods/http:p:{port}/proxy"), "/%2e%2e/x", "/x"),
        (format!("/api/v1/nodes/n:{port}/proxy"), "/metrics", "/metrics"),
    ] {
        let headers = [("x-remote-user", "root"), ("authorization", "Bearer x"), ("x-custom", "1")];
        let reply = server.send("GET", &format!("{prefix}{suffix}"), &headers, "").await;
        assert_eq!(reply.code, 200, "{prefix}{suffix}: {:?}", reply.body);
        let received = String::from_utf8_lossy(&reply.body).to_lowercase();
        assert!(received.starts_with(&format!("get {} http/1.1\r\n", path.to_lowercase())), "{received}");
        assert!(received.contains("x-custom: 1\r\n"), "{received}");
        let uri = format!("x-forwarded-uri: {prefix}{}\r\n", path.split('?').next().unwrap());
        assert!(received.contains(&uri.to_lowercase()), "{received}");
        assert!(!received.contains("x-remote") && !received.contains("bearer"), "{received}");
        let cache: Vec<_> = reply.headers.get_all("cache-control").into_iter().collect();
        assert_eq!(cache, ["no-cache, private", "max-age=5"]);
        assert!(
            reply.headers.get_all("audit-id").into_iter().count() == 1
                && reply.header("audit-id") != "of-backend"
        );
        let cookies: Vec<_> = reply.headers.get_all("set-cookie").into_iter().collect();
        assert_eq!(cookies, [format!("a=1; Path={prefix}/").as_str(), "b=2"]);
    }
}

#[tokio::test]
async fn proxy_accepts_each_method_and_streams_the_body() {
    let port = start_backend().await;
    let server = start(port).await;
    let url = format!("/api/v1/namespaces/a/pods/p:{port}/proxy/x");
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
        let reply = server.send(method, &url, &[("content-type", "text/plain")], "hello").await;
        assert_eq!(reply.code, 200, "{method}");
        let received = String::from_utf8_lossy(&reply.body).into_owned();
        match method {
            "HEAD" => assert!(received.is_empty() && reply.header("content-length") != "0"),
            "POST" => {
                assert!(received.ends_with("\r\n\r\nhello") && received.contains("content-type: text/plain"))
            }
            method => assert!(received.starts_with(method), "{received}"),
        }
    }
}

#[tokio::test]
async fn read_of_proxy_without_path_is_redirected_to_its_root() {
    let server = start(start_backend().await).await;
    for (url, location) in [
        ("/api/v1/namespaces/a/pods/p/proxy", "/api/v1/namespaces/a/pods/p/proxy/"),
        ("/api/v1/namespaces/a/services/s:80/proxy?x=y", "/api/v1/namespaces/a/services/s:80/proxy/?x=y"),
    ] {
        let reply = server.get(url).await;
        assert_eq!((reply.code, reply.header("location")), (301, location));
    }
    let reply = server.send("DELETE", "/api/v1/namespaces/a/pods/p/proxy", &[], "").await;
    assert!(reply.body.starts_with(b"DELETE / HTTP/1.1\r\n"), "{:?}", reply.body);
}

/// CVE-2021-25740: whoever writes Endpoints must not reach addresses of other namespaces or machines.
#[tokio::test]
async fn proxy_to_endpoint_needs_a_pod_with_its_address_in_the_namespace() {
    let server = Server::start_with_forwarding(options("")).await;
    let namespace = "/api/v1/namespaces/a";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    assert_eq!(server.post(&format!("{namespace}/services"), service).await.code, 201);
    for (name, address) in [("p", "224.0.1.1"), ("other", "10.0.0.2")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(server.post(&format!("{namespace}/pods"), pod).await.code, 201);
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        assert_eq!(server.merge(&format!("{namespace}/pods/{name}/status"), status).await.code, 200);
    }
    let endpoints = format!("{namespace}/endpoints");
    let mut is_first = true;
    // A connection to the address 224.0.1.1 fails at once.
    for (reference, text) in [
        (json!(null), "no endpoints available for service \"s:http\""),
        (json!({"kind": "Pod", "namespace": "a", "name": "gone"}), "no endpoints available"),
        (json!({"kind": "Pod", "namespace": "a", "name": "other"}), "no endpoints available"),
        (json!({"kind": "Pod", "namespace": "b", "name": "p"}), "no endpoints available"),
        (
            json!({"kind": "Pod", "namespace": "a", "name": "p"}),
            "error trying to reach service: dial tcp 224.0.1.1:81",
        ),
    ] {
        let mut address = json!({"ip": "224.0.1.1"});
        if !reference.is_null() {
            address["targetRef"] = reference.clone();
        }
        let subsets = json!([{"addresses": [address], "ports": [{"name": "http", "port": 81}]}]);
        let object = json!({"metadata": {"name": "s"}, "subsets": subsets});
        let reply = match std::mem::take(&mut is_first) {
            true => server.post(&endpoints, object).await,
            false => server.put(&format!("{endpoints}/s"), object).await,
        };
        assert!(reply.code < 300, "{reply:?}");
        let reply = server.get(&format!("{namespace}/services/s:http/proxy/x")).await;
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.code == 503 && message.contains(text), "{reference}: {message}");
    }
}

/// Starts a backend that answers each request with the same bytes, and keeps the connection open.
async fn start_stalling_backend(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(answer).await.unwrap();
            connections.push(stream);
        }
    });
    port
}

#[tokio::test]
async fn shutdown_ends_the_wait_for_a_backend_with_503() {
    let server = start(start_stalling_backend(b"").await).await;
    let (reply, ()) = tokio::join!(server.get("/api/v1/namespaces/a/pods/p/proxy/x"), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.stop.send_replace(true);
    });
    assert_eq!((reply.code, reply.header("retry-after")), (503, ""));
    assert_eq!(reply.json()["message"], "the server is stopping and the backend has not answered");
}

#[tokio::test]
async fn shutdown_breaks_a_proxied_body() {
    let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n";
    let server = start(start_stalling_backend(answer).await).await;
    let response = server.open("GET", "/api/v1/namespaces/a/pods/p/proxy/x", &[], Bytes::new()).await;
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "part");
    server.stop.send_replace(true);
    assert!(body.frame().await.unwrap().is_err(), "a part is not the whole");
}

/// Starts a backend that reads the head of a request, and answers with a part of a body and no end.
async fn start_endless_backend() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = Vec::new();
                while !received.ends_with(b"\r\n\r\n") {
                    received.push(stream.read_u8().await.unwrap());
                }
                let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n";
                stream.write_all(answer).await.unwrap();
                // The connection stays open until apid closes it.
                drop(stream.read_u8().await);
            });
        }
    });
    port
}

#[tokio::test]
async fn open_responses_of_backends_count_against_the_limit_of_the_user() {
    let server = start(start_endless_backend().await).await;
    let url = "/api/v1/namespaces/a/pods/p/proxy/x";
    let mut open = Vec::new();
    for _ in 0..MAX_FORWARDED_OF_USER {
        let response = server.open("GET", url, &[], Bytes::new()).await;
        assert_eq!(response.status(), 200);
        open.push(response);
    }
    let rejected = server.get(url).await;
    assert_eq!((rejected.code, rejected.header("retry-after")), (429, "1"));
    let message = rejected.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("256 open requests"), "{message}");
    assert_eq!(server.get("/api/v1/namespaces/a/pods/p").await.code, 200, "apid answers");
    drop(open);
    assert_eq!(server.open("GET", url, &[], Bytes::new()).await.status(), 200);
}
