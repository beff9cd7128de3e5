//! Tests of calls: pooled connections, limits, failures, back-off and credentials.

use super::*;

async fn post(
    clients: &WebhookClients,
    to: &ClientConfiguration,
    timeout: Duration,
) -> Result<Bytes, String> {
    clients.post(to, None, call(timeout)).await.map_err(|failure| failure.to_string())
}

#[tokio::test]
async fn calls_of_one_configuration_share_an_http2_connection() {
    let hook = Webhook::start(|request| Some((200, request.body.to_vec()))).await;
    let (clients, _) = clients(FixedServices::default(), "");
    for _ in 0..3 {
        assert_eq!(post(&clients, &hook.url("/a/b"), LONG_TIMEOUT).await.unwrap(), "{}");
    }
    let received = hook.received();
    assert_eq!(received.len(), 3);
    for request in &received {
        assert_eq!(request.path, "/a/b?timeout=60s");
        assert_eq!(request.version, Version::HTTP_2);
        assert_eq!(request.peer_port, received[0].peer_port);
    }
    let without_timeout = WebhookCall { sends_timeout: false, ..call(LONG_TIMEOUT) };
    clients.post(&hook.url(""), None, without_timeout).await.unwrap();
    assert_eq!(hook.received()[3].path, "/");
}

#[tokio::test]
async fn response_status_is_explained_like_the_reference_does() {
    let hook = Webhook::start(|request| {
        let status = request.path.split(['/', '?']).nth(1).unwrap().parse().unwrap();
        Some((status, b"oops\n".to_vec()))
    })
    .await;
    let (clients, _) = clients(FixedServices::default(), "");
    for (status, message) in [
        (404, "the server could not find the requested resource"),
        (403, "oops"),
        (500, "an error on the server (\"oops\") has prevented the request from succeeding"),
        (302, "the server responded with the status code 302 but did not return more information"),
    ] {
        let failure =
            clients.post(&hook.url(&format!("/{status}")), None, call(LONG_TIMEOUT)).await.unwrap_err();
        assert_eq!(failure, CallFailure::Status { code: status, message: message.to_owned() });
    }
}

#[tokio::test]
async fn silent_or_too_long_response_fails_within_limits() {
    let hook = Webhook::start(|request| match request.path.as_str() {
        "/long?timeout=60s" => Some((200, vec![b'x'; 1001])),
        _ => None,
    })
    .await;
    let (clients, _) = clients(FixedServices::default(), "");
    let origin = hook.origin();
    let short = Duration::from_millis(50);
    for (path, timeout, problem) in [
        ("/hang", short, "context deadline exceeded"),
        ("/long", LONG_TIMEOUT, "the response is larger than 1000 bytes"),
    ] {
        let error = post(&clients, &hook.url(path), timeout).await.unwrap_err();
        let seconds = timeout.as_secs().max(1);
        assert_eq!(error, format!("Post \"{origin}{path}?timeout={seconds}s\": {problem}"));
    }
}

#[tokio::test]
async fn unverified_certificate_is_rejected() {
    let (hook, other) = (Webhook::start(|_| None).await, Webhook::start(|_| None).await);
    let (clients, _) = clients(FixedServices::default(), "");
    let configuration = ClientConfiguration { ca_bundle: other.url("").ca_bundle, ..hook.url("/x") };
    let error = post(&clients, &configuration, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn unreachable_webhook_is_in_back_off_until_a_trial_succeeds() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/x", listener.local_addr().unwrap());
    drop(listener);
    let hook = Webhook::start(|_| None).await;
    let unreachable = ClientConfiguration { address: WebhookAddress::Url(url), ..hook.url("") };
    let (clients, clock) = clients(FixedServices::default(), "");
    for _ in 0..5 {
        let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
        assert!(error.contains("cannot connect"), "{error}");
    }
    let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("the last 5 connections failed; the next call is tried in 200ms"), "{error}");
    clock.advance(Duration::from_millis(200));
    let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("cannot connect"), "{error}");
    let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("the last 6 connections failed"), "{error}");
}

#[tokio::test]
async fn cancelled_slow_and_faulty_calls_begin_no_back_off() {
    let hook = Webhook::start(|request| match request.path.split('?').next() {
        Some("/long") => Some((200, vec![b'x'; 1001])),
        Some("/error") => Some((500, Vec::new())),
        _ => None,
    })
    .await;
    for path in ["/cancelled", "/slow", "/long", "/error"] {
        let (clients, _) = clients(FixedServices::default(), "");
        let configuration = hook.url(path);
        for number in 1..=6 {
            let timeout = if path == "/slow" { Duration::from_millis(500) } else { LONG_TIMEOUT };
            let before = hook.received().len();
            let post = clients.post(&configuration, None, call(timeout));
            if path == "/cancelled" {
                let received = async {
                    while hook.received().len() == before {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    result = post => panic!("the webhook does not respond: {result:?}"),
                    () = received => {}
                }
            } else {
                post.await.unwrap_err();
            }
            assert!(hook.received().len() > before, "{path}: call {number} does not reach the webhook");
        }
    }
}

#[tokio::test]
async fn cancelled_trial_leaves_the_next_call_as_trial() {
    let hook = Webhook::start(|_| None).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/x", listener.local_addr().unwrap());
    drop(listener);
    let unreachable = ClientConfiguration { address: WebhookAddress::Url(url), ..hook.url("") };
    let (clients, clock) = clients(FixedServices::default(), "");
    for _ in 0..5 {
        post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    }
    clock.advance(Duration::from_millis(200));
    {
        tokio::select! {
            biased;
            result = post(&clients, &unreachable, LONG_TIMEOUT) => panic!("no connection yet: {result:?}"),
            () = std::future::ready(()) => {}
        }
    }
    let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("cannot connect"), "{error}");
}

#[tokio::test]
async fn timeout_of_connection_keeps_the_back_off() {
    let hook = Webhook::start(|_| None).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("https://{address}/x");
    let unreachable = ClientConfiguration { address: WebhookAddress::Url(url), ..hook.url("") };
    let (clients, clock) = clients(FixedServices::default(), "");
    for _ in 0..5 {
        post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    }
    clock.advance(Duration::from_millis(200));
    // The kernel accepts connections, and no TLS handshake completes.
    let silent = std::net::TcpListener::bind(address).unwrap();
    for _ in 0..10 {
        let error = post(&clients, &unreachable, Duration::from_millis(20)).await.unwrap_err();
        assert!(error.contains("context deadline exceeded"), "{error}");
    }
    drop(silent);
    post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    let error = post(&clients, &unreachable, LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("the last 6 connections failed"), "{error}");
}

#[tokio::test]
async fn slow_webhook_is_limited_and_does_not_delay_other_webhooks() {
    let slow = Webhook::start(|_| None).await;
    let quick = Webhook::start(|_| Some((200, Vec::new()))).await;
    let clients = Arc::new(clients(FixedServices::default(), "").0);
    let (slow_configuration, timeout) = (slow.url("/slow"), LONG_TIMEOUT);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..MAX_CALLS_IN_FLIGHT + 5 {
        let (clients, configuration) = (Arc::clone(&clients), slow_configuration.clone());
        calls.spawn(async move { clients.post(&configuration, None, call(timeout)).await });
    }
    while slow.received().len() < MAX_CALLS_IN_FLIGHT {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    post(&clients, &quick.url("/quick"), timeout).await.unwrap();
    assert_eq!(slow.received().len(), MAX_CALLS_IN_FLIGHT, "further calls wait for a permit");
    assert!(calls.try_join_next().is_none(), "no call has ended");
}

#[tokio::test]
async fn user_of_the_server_sends_its_credentials() {
    let hook = Webhook::start(|_| Some((200, Vec::new()))).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    let server = format!("127.0.0.1:{}", hook.port);
    let text =
        format!("users: [{{name: '{server}', user: {{token: one}}}}, {{name: '*', user: {{token: any}}}}]");
    std::fs::write(&file, text).unwrap();
    let users = WebhookUsers::load(&file).unwrap();
    let (clients, _) = clients(FixedServices::default(), &format!("team/hook:8443: {}", hook.origin()));
    clients.post(&hook.url("/x"), Some(&users), call(LONG_TIMEOUT)).await.unwrap();
    clients.post(&hook.service(), Some(&users), call(LONG_TIMEOUT)).await.unwrap();
    clients.post(&hook.url("/x"), None, call(LONG_TIMEOUT)).await.unwrap();
    let sent: Vec<String> = hook.received().into_iter().map(|request| request.authorization).collect();
    assert_eq!(sent, ["Bearer one", "Bearer any", ""]);
}

#[tokio::test]
async fn users_of_one_name_in_two_files_send_their_own_credentials() {
    let hook = Webhook::start(|_| Some((200, Vec::new()))).await;
    let dir = tempfile::tempdir().unwrap();
    let load = |token: &str| {
        let file = dir.path().join(token);
        std::fs::write(&file, format!("users: [{{name: '*', user: {{token: {token}}}}}]")).unwrap();
        WebhookUsers::load(&file).unwrap()
    };
    let (clients, _) = clients(FixedServices::default(), "");
    for token in ["one", "two"] {
        clients.post(&hook.url("/x"), Some(&load(token)), call(LONG_TIMEOUT)).await.unwrap();
    }
    let sent: Vec<String> = hook.received().into_iter().map(|request| request.authorization).collect();
    assert_eq!(sent, ["Bearer one", "Bearer two"]);
}

#[test]
fn client_configuration_without_address_or_with_defects_is_rejected() {
    for (config, error) in [
        (json!({}), InvalidConfiguration::NoAddress),
        (json!({"url": ""}), InvalidConfiguration::NoAddress),
        (json!({"url": "https://h", "caBundle": "?"}), InvalidConfiguration::CaBundle),
        (json!({"service": {"port": 0}}), InvalidConfiguration::Port),
        (json!({"service": {"port": 65536}}), InvalidConfiguration::Port),
    ] {
        assert_eq!(ClientConfiguration::read(&config), Err(error), "{config}");
    }
    let service = ClientConfiguration::read(&json!({"service": {"namespace": "n", "name": "s"}})).unwrap();
    assert_eq!(service.url(), "https://s.n.svc:443/");
}

#[tokio::test]
async fn log_text_of_failure_contains_nothing_of_the_response() {
    let hook = Webhook::start(|request| match request.path.split('?').next() {
        Some("/forbidden") => Some((403, b"internal secret".to_vec())),
        _ => Some((500, b"internal secret".to_vec())),
    })
    .await;
    for (path, code) in [("/forbidden", 403), ("/broken", 500)] {
        let (clients, _) = clients(FixedServices::default(), "");
        let failure = clients.post(&hook.url(path), None, call(LONG_TIMEOUT)).await.unwrap_err();
        assert!(
            failure.to_string().contains("internal secret"),
            "the client sees the text, as in kube-apiserver"
        );
        assert_eq!(failure.log_text(), format!("the webhook responded with the status code {code}"));
    }
}

/// CVE-2020-8561: a webhook must not lead apid to other servers.
#[tokio::test]
async fn redirect_of_webhook_is_not_followed() {
    let hook = Webhook::start(|_| Some((302, b"/elsewhere".to_vec()))).await;
    let (clients, _) = clients(FixedServices::default(), "");
    let error = post(&clients, &hook.url("/x"), LONG_TIMEOUT).await.unwrap_err();
    assert!(error.contains("status code 302"), "{error}");
    assert_eq!(hook.received().len(), 1);
}
