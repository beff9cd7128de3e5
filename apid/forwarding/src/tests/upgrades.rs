//! Upgrades: tunnels, and backends that refuse them (CVE-2018-1002105, CVE-2020-8559).

use super::*;

const UPGRADE: &str = "POST /exec HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let next = tokio::time::timeout(LONG, stream.read_u8()).await.unwrap();
        match next {
            Ok(byte) => read.push(byte),
            Err(_) => panic!("end of stream after {:?}", String::from_utf8_lossy(&read)),
        }
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn upgraded_connection_is_a_pipe_in_both_directions() {
    let backend = RawBackend::start(|mut stream, _| async move {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Backend: yes\r\n\r\nearly";
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    })
    .await;
    let mut proxy = Proxy::below(backend.target(), "/p").await;
    let mut client = proxy.connect().await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    let head = read_until(&mut client, "early").await.to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("upgrade: spdy/3.1\r\n") && head.contains("x-backend: yes\r\n"), "{head}");
    let sent = backend.heads.lock()[0].to_lowercase();
    assert!(sent.contains("content-length: 0\r\n"), "{sent}");
    assert!(sent.contains("connection: upgrade\r\n") && sent.contains("upgrade: spdy/3.1\r\n"), "{sent}");
    assert!(sent.contains("x-forwarded-for: 127.0.0.1\r\n") && !sent.contains("x-forwarded-uri"), "{sent}");
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut reader, mut writer) = client.into_split();
    let expected = data.clone();
    let echo = tokio::spawn(async move {
        let mut echoed = vec![0; expected.len()];
        tokio::time::timeout(LONG, reader.read_exact(&mut echoed)).await.unwrap().unwrap();
        assert!(echoed == expected);
        reader
    });
    writer.write_all(&data).await.unwrap();
    let reader = echo.await.unwrap();
    drop((reader, writer));
    let bytes = tokio::time::timeout(LONG, proxy.ended_tunnels.recv()).await.unwrap().unwrap();
    assert_eq!(bytes, TunnelBytes { to_backend: 3_000_000, to_client: 3_000_005 });
}

/// CVE-2018-1002105: after a refused upgrade, the connection to the backend would serve requests as this server.
#[tokio::test]
async fn rejected_upgrade_leaves_no_connection_to_the_backend() {
    // The backend answers with an error and then obeys every further request on its connection, as a kubelet would.
    let backend = RawBackend::start(|mut stream, _| async move {
        let answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Backend: yes\r\n\r\nno";
        stream.write_all(answer.as_bytes()).await.unwrap();
        while let Some(head) = read_head(&mut stream).await {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await;
    let proxy = Proxy::below(backend.target(), "/p").await;
    let second = "GET /run/as/server HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n";
    let answer = proxy.exchange(&format!("{UPGRADE}{second}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.to_lowercase().contains("x-backend: yes"), "{answer}");
    // The second request is an ordinary request of the client: the proxy forwards it on a connection of its own.
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer}");
    let heads = backend.heads.lock().clone();
    assert_eq!(heads.len(), 2, "{heads:?}");
    assert!(heads[1].starts_with("GET /run/as/server") && heads[1].contains("x-forwarded-uri"), "{heads:?}");
}

/// CVE-2020-8559: a redirect of an upgrade would send the credentials of this server to another node.
#[tokio::test]
async fn upgrade_that_is_answered_by_success_or_redirect_fails() {
    for (answer, code) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/evil\r\nContent-Length: 0\r\n\r\n", 302),
    ] {
        let backend = RawBackend::start(move |mut stream, _| async move {
            stream.write_all(answer.as_bytes()).await.unwrap();
            // The connection stays open until the proxy closes it.
            drop(stream.read_u8().await);
        })
        .await;
        let proxy = Proxy::below(backend.target(), "/p").await;
        let mut client = proxy.connect().await;
        client.write_all(UPGRADE.as_bytes()).await.unwrap();
        let text = format!("invalid upgrade response: status code {code}");
        let received = read_until(&mut client, &text).await;
        assert!(
            received.starts_with("HTTP/1.1 500 ") && !received.to_lowercase().contains("location"),
            "{received}"
        );
        assert_eq!(backend.heads.lock().len(), 1);
    }
}

#[tokio::test]
async fn switch_to_another_protocol_than_requested_is_an_error() {
    let backend = RawBackend::start(|mut stream, _| async move {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream.read_u8().await);
    })
    .await;
    let proxy = Proxy::below(backend.target(), "/p").await;
    let mut client = proxy.connect().await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    let text = "invalid upgrade response: the backend did not switch to the requested protocol";
    let answer = read_until(&mut client, text).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
}

#[tokio::test]
async fn upgrade_to_unreachable_backend_returns_the_words_of_the_reference() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let proxy = Proxy::below(target(Scheme::Http, port), "/p").await;
    let mut client = proxy.connect().await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    let text = format!("error dialing backend: dial tcp 127.0.0.1:{port}: connect: connection refused");
    let answer = read_until(&mut client, &text).await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
}

#[tokio::test]
async fn tunnel_of_slow_reader_stops_the_backend() {
    let (sender, mut sent) = tokio::sync::mpsc::unbounded_channel();
    let backend = RawBackend::start(move |mut stream, _| {
        let sender = sender.clone();
        async move {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            let chunk = vec![7; 64 * 1024];
            let mut total = 0;
            while stream.write_all(&chunk).await.is_ok() {
                total += chunk.len();
                sender.send(total).unwrap();
            }
        }
    })
    .await;
    let proxy = Proxy::below(backend.target(), "/p").await;
    let mut client = proxy.connect().await;
    client.write_all(UPGRADE.as_bytes()).await.unwrap();
    read_until(&mut client, "\r\n\r\n").await;
    // The backend writes until the buffers of the two TCP connections are full, then no more.
    let mut total = 0;
    while let Ok(Some(next)) = tokio::time::timeout(Duration::from_millis(500), sent.recv()).await {
        total = next;
        assert!(total < 64 << 20, "the backend is never stopped");
    }
    let mut read = vec![0; 64 * 1024];
    client.read_exact(&mut read).await.unwrap();
    assert!(total > 0 && read.iter().all(|byte| *byte == 7));
}
