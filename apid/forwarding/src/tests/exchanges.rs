//! Requests and responses: reuse of connections, protocols, headers, trust.

use http::header::HOST;
use serving::certs::Authority;

use super::*;

#[tokio::test]
async fn connections_are_reused_in_both_protocols() {
    for (scheme, http2, version) in [
        (Scheme::Http, true, Version::HTTP_11),
        (Scheme::Https, false, Version::HTTP_11),
        (Scheme::Https, true, Version::HTTP_2),
    ] {
        let backend = Backend::start(scheme, |request| reply(200, request.path.clone())).await;
        let transport = Transport::new(TransportSettings { http2, ..settings() }).unwrap();
        for number in 0..5 {
            let path = format!("/{number}?x=%2F");
            let response = transport.send(&backend.target(), get(&path)).await.unwrap();
            assert_eq!(text(response).await, path);
            // The connection returns to the pool in a task.
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let received = backend.received();
        assert_eq!((received.len(), backend.connections()), (5, 1), "{scheme:?} {http2}");
        assert!(received.iter().all(|request| request.version == version), "{scheme:?} {http2}");
        let authority = backend.target().authority();
        if version == Version::HTTP_11 {
            assert_eq!(received[0].headers[HOST], authority);
        }
    }
}

#[tokio::test]
async fn server_certificate_is_verified_by_authority_and_name() {
    let backend = Backend::start(Scheme::Https, |_| reply(200, "ok")).await;
    let send = |trust: Trust, server_name: Option<&str>| {
        let settings = TransportSettings { trust, server_name: server_name.map(str::to_owned), ..settings() };
        let (transport, target) = (Transport::new(settings).unwrap(), backend.target());
        async move { transport.send(&target, get("/")).await.map(|response| response.status().as_u16()) }
    };
    assert_eq!(send(backend.trust(), None).await, Ok(200));
    assert_eq!(send(backend.trust(), Some("backend.team.svc")).await, Ok(200));
    for (trust, name) in [(backend.trust(), Some("other.team.svc")), (Trust::System, None)] {
        if trust == Trust::System && trust.tls().is_err() {
            continue;
        }
        let error = send(trust, name).await.unwrap_err();
        assert!(matches!(&error, TransportError::Tls(text) if text.starts_with("tls: ")), "{error:?}");
        assert!(error.is_connect());
    }
    assert_eq!(backend.received().len(), 2, "no request reaches a backend that is not verified");
}

#[tokio::test]
async fn client_certificate_is_presented_and_read_again_after_a_change() {
    let backend = Backend::start(Scheme::Https, |_| reply(200, "ok")).await;
    let dir = tempfile::tempdir().unwrap();
    let authority =
        Authority::ensure(&dir.path().join("ca.crt"), &dir.path().join("ca.key"), "front-proxy", now())
            .unwrap();
    let (certificate, key) = (dir.path().join("client.crt"), dir.path().join("client.key"));
    let write = |user: &str| {
        let pair = authority.client(user, &[], Duration::from_secs(3600), now()).unwrap();
        std::fs::write(&certificate, pair.cert).unwrap();
        std::fs::write(&key, pair.key).unwrap();
    };
    write("first");
    let clock = Arc::new(apimachinery::clock::ManualClock::at(Timestamp::UNIX_EPOCH));
    let credentials = ClientCredentials::read(certificate.clone(), key.clone(), clock.clone()).unwrap();
    let credentials = Arc::new(credentials);
    assert!(!format!("{credentials:?}").contains("PRIVATE"), "{credentials:?}");
    let transport =
        Transport::new(TransportSettings { credentials: Some(Arc::clone(&credentials)), ..settings() })
            .unwrap();
    let send = || async { text(transport.send(&backend.target(), get("/")).await.unwrap()).await };
    send().await;
    assert_eq!(backend.received()[0].chain, 1);
    write("second");
    clock.advance(Duration::from_secs(2));
    send().await;
    assert_eq!(credentials.current().0, 1);
    assert_eq!(backend.connections(), 2, "a new certificate needs a new connection");
    std::fs::write(&certificate, "broken").unwrap();
    clock.advance(Duration::from_secs(2));
    send().await;
    assert_eq!((credentials.current().0, backend.received()[2].chain), (1, 1));
    let error = ClientCredentials::read(certificate.clone(), key, clock).unwrap_err().to_string();
    assert!(error.contains(&certificate.display().to_string()), "{error}");
}

#[tokio::test]
async fn proxied_request_and_response_have_the_headers_of_the_reference() {
    let backend = Backend::start(Scheme::Http, |request| {
        let mut response = reply(302, request.body.clone()).unwrap();
        for (name, value) in [
            ("location", "/elsewhere?x=1"),
            ("set-cookie", "c=1; Path=/"),
            ("access-control-allow-origin", "*"),
            ("keep-alive", "timeout=5"),
            ("x-backend", "yes"),
        ] {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        Some(response)
    })
    .await;
    let prefix = "/api/v1/namespaces/px/services/s:http/proxy";
    let proxy = Proxy::below(backend.target(), prefix).await;
    let answer = proxy
        .exchange(
            "POST /a/b?c=d&e=%2F HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: script/1.0\r\nX-Forwarded-For: 192.0.2.7\r\n\
             X-Forwarded-Host: evil\r\nCookie: a=b\r\nX-Remote-User: root\r\nX_Remote_Group: system:masters\r\nX-Drop: 1\r\n\
             Connection: X-Drop, close\r\nX-Custom: 1\r\nContent-Length: 5\r\n\r\nhello",
        )
        .await
        .to_ascii_lowercase();
    let received = backend.received().remove(0);
    assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/a/b?c=d&e=%2F"));
    assert_eq!(received.body, "hello");
    let mut names: Vec<&str> = received.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let expected = [
        "apid-forwarded-by",
        "content-length",
        "cookie",
        "host",
        "user-agent",
        "x-custom",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-uri",
    ];
    assert_eq!(names, expected);
    assert_eq!(received.header("host"), ["api.example.com"]);
    assert_eq!(received.header("x-forwarded-for"), ["192.0.2.7, 127.0.0.1"]);
    assert_eq!(received.header("x-forwarded-uri"), [format!("{prefix}/a/b")]);
    for line in [
        "http/1.1 302 found\r\n".to_owned(),
        format!("location: {prefix}/elsewhere?x=1\r\n"),
        format!("set-cookie: c=1; path={prefix}/\r\n"),
        "x-backend: yes\r\n".to_owned(),
        "content-length: 5\r\n".to_owned(),
    ] {
        assert!(answer.contains(&line), "{line}: {answer}");
    }
    for name in ["access-control-allow-origin", "keep-alive:"] {
        assert!(!answer.contains(name), "{name}: {answer}");
    }
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
}

#[tokio::test]
async fn request_that_returns_to_a_proxy_is_rejected_with_508() {
    let backend = Backend::start(Scheme::Http, |_| reply(200, "ok")).await;
    let last = Proxy::start(backend.target(), Appearance::Aggregated, None).await;
    let first = Proxy::start(target(Scheme::Http, last.address.port()), Appearance::Aggregated, None).await;
    let request = |marks: &str| format!("GET /x HTTP/1.1\r\nHost: api\r\nConnection: close\r\n{marks}\r\n");
    assert!(first.exchange(&request("")).await.ends_with("ok"));
    let marks = backend.received().remove(0).header("apid-forwarded-by").join(",");
    let ids: Vec<&str> = marks.split(',').map(str::trim).collect();
    assert_eq!(ids.len(), 2, "{marks}");
    for id in ids {
        let answer = first.exchange(&request(&format!("Apid-Forwarded-By: other, {id}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 508"), "{answer}");
        assert!(answer.contains("leads back to this server"), "{answer}");
    }
    assert_eq!(backend.received().len(), 1);
}

/// CVE-2022-3172: a redirect of an aggregated API would lead clients, with their credentials, to another server.
#[tokio::test]
async fn aggregated_request_names_the_user_and_the_target() {
    let backend = Backend::start(Scheme::Http, |request| {
        let mut response = reply(200, "ok").unwrap();
        if request.path.starts_with("/redirect") {
            *response.status_mut() = http::StatusCode::FOUND;
            response.headers_mut().insert("location", "http://evil.example.com/".parse().unwrap());
        }
        Some(response)
    })
    .await;
    let user = UserInfo { name: "bob".to_owned(), groups: vec!["team-a".to_owned()], ..UserInfo::default() };
    let proxy = Proxy::start(backend.target(), Appearance::Aggregated, Some(user)).await;
    let request = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: api\r\nX-Remote-User: root\r\nX-Remote-Group: system:masters\r\n\
             X-Remote-Extra-Scopes: all\r\nX-Remote-Uid: 7\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: http\r\n\
             Connection: close, X-Remote-User\r\n\r\n"
        )
    };
    assert!(proxy.exchange(&request("/apis/g/v1?limit=5")).await.ends_with("ok"));
    let received = backend.received().remove(0);
    let authority = backend.target().authority();
    for (name, expected) in [
        ("x-remote-user", vec!["bob"]),
        ("x-remote-group", vec!["team-a"]),
        ("x-remote-uid", vec![]),
        ("x-remote-extra-scopes", vec![]),
        ("host", vec![authority.as_str()]),
        ("x-forwarded-host", vec![authority.as_str()]),
        ("x-forwarded-proto", vec!["https"]),
        ("x-forwarded-uri", vec!["/apis/g/v1"]),
    ] {
        assert_eq!(received.header(name), expected, "{name}");
    }
    let answer = proxy.exchange(&request("/redirect")).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(answer.ends_with("attempted to redirect this request, which is not permitted"), "{answer}");
    assert!(!answer.contains("evil"), "{answer}");
}

#[tokio::test]
async fn request_trailers_are_not_forwarded() {
    let backend = RawBackend::start(|mut stream, _| async move {
        let mut body = Vec::new();
        while !body.ends_with(b"0\r\n\r\n") && !body.ends_with(b"masters\r\n\r\n") {
            body.push(stream.read_u8().await.unwrap());
        }
        let text = String::from_utf8_lossy(&body).replace("\r\n", "|");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let proxy = Proxy::below(backend.target(), "/p").await;
    let answer = proxy
        .exchange(
            "POST /x HTTP/1.1\r\nHost: api\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Remote-Group\r\n\r\n\
             3\r\nabc\r\n0\r\nX-Remote-Group: system:masters\r\n\r\n",
        )
        .await;
    assert!(answer.ends_with("3|abc|0||"), "{answer}");
    assert!(!backend.heads.lock()[0].to_lowercase().contains("trailer"), "{:?}", backend.heads.lock());
}

#[tokio::test]
async fn failures_have_the_words_of_the_reference() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let proxy = Proxy::below(target(Scheme::Http, port), "/p").await;
    let request = "GET /x HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n";
    let answer = proxy.exchange(request).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let text =
        format!("error trying to reach service: dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert!(answer.ends_with(&text), "{answer}");
    let closing = RawBackend::start(|stream, _| async move { drop(stream) }).await;
    let answer = Proxy::below(closing.target(), "/p").await.exchange(request).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("error trying to reach service: EOF"),
        "{answer}"
    );
}
