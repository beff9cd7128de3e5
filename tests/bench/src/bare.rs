//! Baseline server: hyper and rustls only, with a fixed response body. Its throughput per CPU-second is the
//! ceiling of any server with these libraries.
//!
//! `GET` returns the body; with `?watch` in the path the response stays open and forwards the body of each
//! `POST`. `POST` reads its body and returns 201 with the fixed body.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::broadcast;

use crate::client::Error;
use crate::tls_server::{ServerResponse, TlsServer};

/// Serves on a port chosen by the system until the process ends; calls `ready` with the port.
///
/// # Errors
///
/// The server cannot listen, or cannot create its certificate.
pub async fn serve(body: Bytes, ready: impl FnOnce(u16)) -> Result<(), Error> {
    let server = TlsServer::bind().await?;
    ready(server.port()?);
    let (events, _) = broadcast::channel::<Bytes>(65536);
    server.serve(move |request| respond(request, body.clone(), events.clone())).await
}

async fn respond(
    request: Request<Incoming>,
    body: Bytes,
    events: broadcast::Sender<Bytes>,
) -> Result<ServerResponse, Error> {
    let mut response = if request.method() == Method::POST {
        let posted = request.into_body().collect().await?.to_bytes();
        drop(events.send(posted));
        let mut response = Response::new(Full::new(body).boxed_unsync());
        *response.status_mut() = http::StatusCode::CREATED;
        response
    } else if request.uri().query().is_some_and(|q| q.contains("watch")) {
        let frames = futures_util::stream::unfold(events.subscribe(), |mut events| async move {
            let event = events.recv().await.ok()?;
            Some((Ok::<_, Infallible>(Frame::data(event)), events))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    } else {
        Response::new(Full::new(body).boxed_unsync())
    };
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
