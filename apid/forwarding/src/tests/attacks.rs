//! Hostile backends: endless heads, late answers, answers that nobody asked for, slow bodies.

use http_body_util::BodyExt as _;

use super::*;

async fn send(transport: &Transport, backend: &RawBackend, path: &str) -> Result<String, TransportError> {
    let target = backend.target();
    let exchange = transport.send(&target, get(path));
    let response = tokio::time::timeout(LONG, exchange).await.expect("the exchange ends")?;
    Ok(text(response).await)
}

#[tokio::test]
async fn endless_response_head_ends_the_exchange() {
    for line in ["X-Endless: yes\r\n", "x", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let (sender, mut written) = tokio::sync::mpsc::unbounded_channel();
        let backend = RawBackend::start(move |mut stream, _| {
            let sender = sender.clone();
            async move {
                let begin = if line.starts_with("HTTP") { "" } else { "HTTP/1.1 200 OK\r\n" };
                stream.write_all(begin.as_bytes()).await.unwrap();
                let block = line.repeat(4096 / line.len());
                let mut total = 0;
                while stream.write_all(block.as_bytes()).await.is_ok() && total < 1 << 30 {
                    total += block.len();
                }
                sender.send(total).unwrap();
            }
        })
        .await;
        let transport = transport();
        let exchange = send(&transport, &backend, "/");
        match tokio::time::timeout(Duration::from_secs(2), exchange).await {
            // Informational heads are skipped: the caller limits the time to the head.
            Err(_) => assert!(line.starts_with("HTTP"), "{line:?}"),
            Ok(result) => {
                let error = result.unwrap_err();
                assert_eq!(error, TransportError::HeadTooLarge(MAX_HEAD_BYTES), "{line:?}");
            }
        }
        let total = tokio::time::timeout(LONG, written.recv()).await.unwrap().unwrap();
        assert!(total < 1 << 30, "{line:?}: the connection stays open");
    }
}

#[tokio::test]
async fn answer_after_a_cancelled_request_reaches_no_other_request() {
    let backend = RawBackend::start(|mut stream, number| async move {
        if number == 0 {
            // The answer comes when the client has given up.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let body = format!("answer of connection {number}");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        drop(stream.write_all(answer.as_bytes()).await);
        drop(stream.read_u8().await);
    })
    .await;
    let transport = transport();
    let cancelled = send(&transport, &backend, "/first");
    assert!(tokio::time::timeout(Duration::from_millis(100), cancelled).await.is_err());
    for _ in 0..3 {
        let answer = send(&transport, &backend, "/second").await.unwrap();
        assert!(answer.starts_with("answer of connection ") && !answer.ends_with(" 0"), "{answer}");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[tokio::test]
async fn second_answer_to_one_request_reaches_no_other_request() {
    let backend = RawBackend::start(|mut stream, number| async move {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst";
        let injected = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ninjected";
        let both = if number == 0 { format!("{answer}{injected}") } else { answer.to_owned() };
        drop(stream.write_all(both.as_bytes()).await);
        drop(stream.read_u8().await);
    })
    .await;
    let transport = transport();
    for _ in 0..3 {
        assert_eq!(send(&transport, &backend, "/").await.as_deref(), Ok("first"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn switch_of_protocols_without_request_is_an_error() {
    let backend = RawBackend::start(|mut stream, _| async move {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        drop(stream.write_all(head.as_bytes()).await);
        drop(stream.read_u8().await);
    })
    .await;
    assert_eq!(send(&transport(), &backend, "/").await, Err(TransportError::UnexpectedUpgrade));
}

#[tokio::test]
async fn read_on_closed_idle_connection_is_sent_again_and_a_write_is_not() {
    let backend = RawBackend::start(|mut stream, _| async move {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await);
        // The backend takes the second request of the connection and closes without an answer.
        drop(read_head(&mut stream).await);
    })
    .await;
    let transport = transport();
    let pause = || tokio::time::sleep(Duration::from_millis(20));
    assert_eq!(send(&transport, &backend, "/").await.as_deref(), Ok("ok"));
    pause().await;
    assert_eq!(send(&transport, &backend, "/again").await.as_deref(), Ok("ok"));
    pause().await;
    let post = Request::builder().method("POST").uri("/w").body(Body::from("x")).unwrap();
    let error = transport.send(&backend.target(), post).await.unwrap_err();
    assert!(matches!(error, TransportError::Closed | TransportError::Reset(_)), "{error:?}");
}

#[tokio::test]
async fn slow_stream_of_one_client_does_not_stop_the_others() {
    // More unread responses than streams of a connection, each larger than the window of a stream.
    let large = Bytes::from(vec![7; 128 * 1024]);
    let backend = Backend::start(Scheme::Https, move |request| match request.path.as_str() {
        "/large" => reply(200, large.clone()),
        _ => reply(200, "small"),
    })
    .await;
    let transport = transport();
    let mut unread = Vec::new();
    for _ in 0..(MAX_STREAMS + 2) {
        unread.push(transport.send(&backend.target(), get("/large")).await.unwrap());
    }
    for _ in 0..20 {
        let exchange = async { text(transport.send(&backend.target(), get("/small")).await.unwrap()).await };
        assert_eq!(tokio::time::timeout(LONG, exchange).await.unwrap(), "small");
    }
    assert!(backend.received().iter().any(|request| request.version == Version::HTTP_2));
    let body = unread.swap_remove(0).into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len(), 128 * 1024);
}

#[tokio::test]
async fn connection_goes_to_the_checked_address_with_another_host_header() {
    let backend = Backend::start(Scheme::Http, |_| reply(200, "ok")).await;
    let mut request = get("http://127.0.0.1:1/absolute");
    request.headers_mut().insert("host", "127.0.0.1:2".parse().unwrap());
    let response = transport().send(&backend.target(), request).await.unwrap();
    assert_eq!(text(response).await, "ok");
    assert_eq!(backend.received()[0].header("host"), ["127.0.0.1:2"]);
}
