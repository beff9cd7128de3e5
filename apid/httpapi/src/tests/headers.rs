//! Requests with too many headers, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;

use http::{Request, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::MAPS;
use super::audit::AuditedServer;
use super::connections::serve;

/// Sends a GET with header fields; returns the status code and the body.
async fn get(address: SocketAddr, version: Version, url: &str, fields: &[(&str, String)]) -> (u16, Value) {
    let mut request = Request::get(format!("http://x{url}"));
    for (name, value) in fields {
        request = request.header(*name, value);
    }
    if version < Version::HTTP_2 {
        request = request.header("host", "localhost");
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let response = if version == Version::HTTP_2 {
        let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = client.handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

fn groups(number: usize, length: usize) -> Vec<(&'static str, String)> {
    let mut fields = vec![("impersonate-user", "ada".to_owned())];
    fields.extend((0..number).map(|i| ("impersonate-group", format!("{i:0length$}"))));
    fields
}

#[tokio::test]
async fn request_with_too_many_headers_returns_431_status_and_is_audited() {
    for (version, accepted, too_many) in [(Version::HTTP_11, 240, 252), (Version::HTTP_2, 1_000, 2_000)] {
        let audited = AuditedServer::start().await;
        let address = serve(&audited.server).await;
        let url = format!("{MAPS}?audited");
        let fields = |number: usize| (0..number).map(|_| ("x", "y".to_owned())).collect::<Vec<_>>();
        assert_eq!(get(address, version, &url, &fields(accepted)).await.0, 200, "{version:?}");
        let (code, status) = get(address, version, &url, &fields(too_many)).await;
        assert_eq!((code, &status["kind"], &status["code"]), (431, &json!("Status"), &json!(431)));
        assert!(status["message"].as_str().unwrap().contains("header"), "{status}");
        let codes: Vec<_> =
            audited.events("?audited").iter().map(|event| event["responseStatus"]["code"].clone()).collect();
        assert_eq!(codes, [200, 431], "{version:?}");
    }
}

#[tokio::test]
async fn impersonated_groups_above_limit_return_431_status_and_are_audited() {
    for (version, accepted) in [(Version::HTTP_11, 240), (Version::HTTP_2, 999)] {
        let audited = AuditedServer::start().await;
        let address = serve(&audited.server).await;
        let url = format!("{MAPS}?audited");
        let cases = [
            (groups(97, 4), 200),
            (groups(accepted, 4), 200),
            (groups(accepted + 10, 4), 431),
            (groups(100, 700), 431),
        ];
        for (fields, code) in cases {
            let number = fields.len();
            let (found, status) = get(address, version, &url, &fields).await;
            assert_eq!(found, code, "{number} fields over {version:?}: {status}");
            if code == 431 {
                let message = status["message"].as_str().unwrap();
                assert!(message.contains("header fields"), "{status}");
            }
        }
        assert_eq!(audited.events("?audited").len(), 4);
    }
}
