//! The connections from apid.
//!
//! # Contract
//!
//! [`serve`] accepts connections until its future is dropped; connections last until apid closes them or the
//! process ends. Connections use HTTP/2 with prior knowledge. The headers of every response carry the identity
//! of the process ([`authproto::peer`]).
//!
//! # Concurrency
//!
//! One task serves a connection and its decision stream. The task reads a request, decides, and writes the
//! response without a switch of thread (see [`serving::single_task`]). Every other call runs in a separate
//! task, so that a large review or a signature does not delay decisions.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serving::local::LocalStream;
use serving::single_task::run_as_single_task;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tower_service::Service;

use super::Services;

/// The path of the call that runs in the task of the connection.
const DECISIONS: &str = "/auth.v1.Decide/Stream";
/// HTTP/2 flow-control window in bytes, so that apid can send a burst of requests without a wait.
const WINDOW: u32 = 4 * 1024 * 1024;
/// Pause after a failed accept. While the process has no file descriptors left, each accept fails at once.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Accepts and serves all connections of a Unix socket.
pub async fn serve(listener: UnixListener, services: Services) -> Infallible {
    let services = Services { routes: services.routes.prepare(), ..services };
    loop {
        match listener.accept().await.and_then(|(stream, _)| LocalStream::of(stream)) {
            Ok(stream) => drop(tokio::spawn(serve_connection(stream, services.clone()))),
            Err(error) => {
                tracing::warn!(%error, "accept failed; retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: LocalStream, services: Services) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let Services { routes, identity } = services.clone();
        async move {
            let mut response = call(routes, request).await?;
            response.headers_mut().extend((*identity).clone());
            Ok::<_, Infallible>(response)
        }
    });
    let served = run_as_single_task(|spawner| {
        http2::Builder::new(spawner)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            // No limit of streams: the only peer is apid, and services that wait limit their waiting
            // requests.
            .max_concurrent_streams(None)
            .serve_connection(TokioIo::new(stream), service)
    });
    if let Err(error) = served.await {
        tracing::debug!(%error, "connection failed");
    }
}

async fn call(
    mut routes: Routes,
    request: http::Request<Incoming>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let is_decision_stream = request.uri().path() == DECISIONS;
    let response = routes.call(request);
    if is_decision_stream {
        return response.await;
    }
    // If apid cancels the call, this future is dropped, and the set aborts the task.
    let mut task = JoinSet::new();
    task.spawn(response);
    match task.join_next().await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => {
            Ok(tonic::Status::internal("internal error; see the log of authd").into_http())
        }
    }
}
