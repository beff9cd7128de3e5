//! The connections that apid dials.
//!
//! # Contract
//!
//! [`serve`] accepts until it is dropped; connections go on until their peer or the process ends. They speak HTTP/2 from
//! the first byte.
//!
//! # Concurrency
//!
//! A connection with the stream of decisions is one task: reading a question, deciding it and writing the answer take one
//! turn of one thread (see [`serving::together`]). Every other call is a task of its own, so that a large review or a
//! signature keeps no decision waiting.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serving::local::LocalStream;
use serving::together::together;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tower_service::Service;

/// The call whose questions are answered in the connection's own task.
const DECISIONS: &str = "/auth.v1.Decide/Stream";
/// Flow-control window, so that a burst of questions does not wait for the other side.
const WINDOW: u32 = 4 * 1024 * 1024;
/// After an accept that failed: it does so at once as long as the process has no descriptors left.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Serves every connection of a socket.
pub async fn serve(listener: UnixListener, routes: Routes) -> Infallible {
    let routes = routes.prepare();
    loop {
        match listener.accept().await.and_then(|(stream, _)| LocalStream::of(stream)) {
            Ok(stream) => drop(tokio::spawn(connection(stream, routes.clone()))),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: LocalStream, routes: Routes) {
    let service = service_fn(move |request: http::Request<Incoming>| call(routes.clone(), request));
    let served = together(|spawner| {
        http2::Builder::new(spawner)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            // Its own process asks: what may wait for a slow service is bounded where it waits.
            .max_concurrent_streams(None)
            .serve_connection(TokioIo::new(stream), service)
    });
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn call(
    mut routes: Routes,
    request: http::Request<Incoming>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let decisions = request.uri().path() == DECISIONS;
    let answering = routes.call(request);
    if decisions {
        return answering.await;
    }
    // Ends with this future: when the caller goes away.
    let mut task = JoinSet::new();
    task.spawn(answering);
    match task.join_next().await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => {
            Ok(tonic::Status::internal("the call failed; authd's log says why").into_http())
        }
    }
}
