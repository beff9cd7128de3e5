//! Baseline server: hyper and rustls only, with a fixed response body. Its throughput per CPU-second is the
//! ceiling of any server with these libraries.
//!
//! `GET` returns the body; with `?watch` in the path the response stays open and forwards the body of each
//! `POST`. `POST` reads its body and returns 201 with the fixed body.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

use crate::client::Error;

/// Serves on a port chosen by the system until the process ends; calls `ready` with the port.
///
/// # Errors
///
/// No port, no certificate.
pub async fn serve(body: Bytes, ready: impl FnOnce(u16)) -> Result<(), Error> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    ready(listener.local_addr()?.port());
    let (events, _) = broadcast::channel::<Bytes>(65536);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (acceptor, body, events) = (acceptor.clone(), body.clone(), events.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| answer(request, body.clone(), events.clone()));
            // Broken connections are ignored.
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    body: Bytes,
    events: broadcast::Sender<Bytes>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Error> {
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
