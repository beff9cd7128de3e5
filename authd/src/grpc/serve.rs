//! The connections from apid.
//!
//! # Contract
//!
//! [`serve`] accepts connections until its future is dropped; connections last until apid closes them, the process
//! ends, or the certificate of apid is not accepted any more. Connections use HTTP/2 with prior knowledge. The headers of every response carry the identity
//! of the process ([`authproto::peer`]).
//!
//! Connections on TCP have mutual TLS, with limits for connections without a finished handshake
//! ([`serving::mutual_tls`]). A connection whose apid does not answer pings is closed.
//!
//! # Concurrency
//!
//! One task serves a connection and its decision stream. The task reads a request, decides, and writes the
//! response without a switch of thread (see [`serving::single_task`]). Every other call runs in a separate
//! task, so that a large review or a signature does not delay decisions.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serving::listener::{ACCEPT_PAUSE, AcceptedConnection, Listener};
use serving::local::LocalStream;
use serving::mutual_tls::MutualTlsServer;
use serving::single_task::run_as_single_task;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tower_service::Service;

use super::Services;

/// The path of the call that runs in the task of the connection.
const DECISIONS: &str = "/auth.v1.Decide/Stream";
/// HTTP/2 flow-control window in bytes, so that apid can send a burst of requests without a wait.
const WINDOW: u32 = 4 * 1024 * 1024;
/// Interval of the pings on TCP, which find an apid whose machine has ended.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time within which an apid must answer a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts and serves all connections of a Unix socket and of a listener on TCP.
pub async fn serve(
    socket: Option<UnixListener>,
    tcp: Option<(Listener, MutualTlsServer)>,
    services: Services,
) -> Infallible {
    let services = Services { routes: services.routes.prepare(), ..services };
    let (local, remote) = (services.clone(), services);
    let serve_local = async {
        match socket {
            Some(listener) => serve_unix(listener, local).await,
            None => std::future::pending().await,
        }
    };
    let serve_remote = async {
        match tcp {
            Some((listener, tls)) => serve_tcp(listener, Arc::new(tls), remote).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        never = serve_local => never,
        never = serve_remote => never,
    }
}

async fn serve_unix(listener: UnixListener, services: Services) -> Infallible {
    loop {
        match listener.accept().await.and_then(|(stream, _)| LocalStream::of(stream)) {
            Ok(stream) => drop(tokio::spawn(serve_connection(stream, None, services.clone()))),
            Err(error) => pause_after(&error).await,
        }
    }
}

async fn serve_tcp(listener: Listener, tls: Arc<MutualTlsServer>, services: Services) -> Infallible {
    loop {
        match listener.accept().await {
            Ok(AcceptedConnection::Tcp(stream, peer)) => {
                let (tls, services) = (Arc::clone(&tls), services.clone());
                tokio::spawn(async move {
                    match tls.accept(stream, peer.ip()).await {
                        Ok(stream) => serve_connection(stream, Some(KEEP_ALIVE_INTERVAL), services).await,
                        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                            tracing::debug!(%peer, %error, "connection refused");
                        }
                        Err(error) => tracing::warn!(%peer, %error, "connection of an apid refused"),
                    }
                });
            }
            // A listener on TCP accepts connections on TCP only.
            Ok(AcceptedConnection::Unix(_)) => {}
            Err(error) => pause_after(&error).await,
        }
    }
}

async fn pause_after(error: &std::io::Error) {
    tracing::warn!(%error, "accept failed; retrying");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Serves a connection until its end. `keep_alive` is the interval of the pings.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    keep_alive: Option<Duration>,
    services: Services,
) {
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
            .timer(TokioTimer::new())
            .keep_alive_interval(keep_alive)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            // No limit of streams: the only peers are apids, and services that wait limit their waiting
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
