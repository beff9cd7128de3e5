//! The group `echo.example.com`: a response that tells what arrived.
//!
//! The last segments of a path choose the response:
//!
//! | path | response |
//! |---|---|
//! | `answer/CODE` | a small document with the code, a header and a warning |
//! | `redirect`, `redirect-full` | 302 with a `Location` |
//! | `reset` | none: the connection ends |
//! | `lines/N` | N JSON lines, one each 0.2 s |
//! | `slow/SECONDS` | the usual response, later |
//! | `size/BYTES` | that many bytes |
//! | any other | what arrived |

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE, WARNING};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response};
use serde_json::{Map, Value, json};
use serving::body::Body;

use super::{Answer, SeenRequest, document, respond as bytes_response};
use crate::server::CloseConnection;

pub(super) const GROUP: &str = "echo.example.com";
pub(super) const VERSION: &str = "v1";

/// Pause between two lines.
const LINE_PAUSE: Duration = Duration::from_millis(200);

/// Responds to a request.
pub(super) async fn respond(head: &Parts, seen: &SeenRequest) -> Answer {
    let segments: Vec<&str> = head.uri.path().rsplit('/').take(2).collect();
    let (last, before) = (segments.first().copied().unwrap_or(""), segments.get(1).copied().unwrap_or(""));
    let number = last.parse::<u32>().unwrap_or_default();
    match (before, last) {
        ("answer", _) => {
            let code = u16::try_from(number).unwrap_or(500);
            let mut response = document(code, &json!({"answered": code}));
            let headers = response.headers_mut();
            headers.insert(WARNING, HeaderValue::from_static("299 - \"from the backend\""));
            headers.insert(BACKEND, HeaderValue::from_static("yes"));
            Ok(response)
        }
        (_, "redirect") => Ok(redirect("/elsewhere?x=1")),
        (_, "redirect-full") => Ok(redirect("http://other.example.com/elsewhere")),
        (_, "reset") => Err(CloseConnection),
        ("lines", _) => Ok(lines(number)),
        ("size", _) => {
            let size = usize::try_from(number).unwrap_or_default();
            Ok(bytes_response(200, "application/octet-stream", vec![b'x'; size]))
        }
        ("slow", _) => {
            tokio::time::sleep(Duration::from_secs(number.into())).await;
            Ok(seen_document(last, seen))
        }
        _ => Ok(seen_document(last, seen)),
    }
}

/// A header of the backend.
const BACKEND: HeaderName = HeaderName::from_static("x-backend");

fn redirect(location: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(location));
    response
}

fn lines(count: u32) -> Response<Body> {
    let (sender, body) = serving::body::channel(1);
    tokio::spawn(async move {
        for number in 0..count {
            let object = json!({"kind": "Echo", "apiVersion": "echo.example.com/v1",
                "metadata": {"name": format!("e{number}")}});
            let line = format!("{}\n", json!({"type": "ADDED", "object": object}));
            if sender.send(line.into()).await.is_err() {
                return;
            }
            tokio::time::sleep(LINE_PAUSE).await;
        }
    });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn seen_document(name: &str, seen: &SeenRequest) -> Response<Body> {
    let mut headers = Map::new();
    for (header, value) in &seen.headers {
        if let Value::Array(values) = headers.entry(header.clone()).or_insert_with(|| json!([])) {
            values.push(value.as_str().into());
        }
    }
    let saw = json!({"method": seen.method, "path": seen.path, "query": seen.query, "headers": headers,
        "body": seen.body, "client": seen.client});
    let object =
        json!({"kind": "Echo", "apiVersion": "echo.example.com/v1", "metadata": {"name": name}, "saw": saw});
    let mut response = document(200, &object);
    let headers = response.headers_mut();
    headers.insert(SET_COOKIE, HeaderValue::from_static("c=1"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=5"));
    headers.insert(BACKEND, HeaderValue::from_static("yes"));
    response
}
