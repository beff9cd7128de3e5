//! The HTTP listener for health and metrics, on loopback and off by default.
//!
//! # Contract
//!
//! An axum router serves `/metrics`, `/livez`, `/healthz` and `/readyz`. A path below a health endpoint runs
//! one check (`/readyz/mirror`).
//! [`serving::server`] accepts the connections and limits them; axum has no setting for these limits.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serving::body::Body;
use serving::health::Checks;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions};
use tower_service::Service;

use crate::metrics::{AuthdMetrics, MirrorGaugeValues};
use crate::mirror::Mirror;

/// The media type of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Binds the address and serves in the background.
///
/// # Errors
///
/// The address cannot be bound.
pub(crate) async fn serve(
    address: SocketAddr,
    mirror: Arc<Mirror>,
    metrics: Arc<AuthdMetrics>,
) -> std::io::Result<()> {
    let listener = Listener::tcp(address.ip(), address.port()).await?;
    tracing::info!(address = %listener.address().unwrap_or(address), "serving metrics and health");
    let router = router(mirror, metrics);
    let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
        // `call` needs no `poll_ready` here: a router without middleware is always ready, and does not fail.
        let response = router.clone().call(request);
        async move {
            match response.await {
                Ok(response) => response.map(Body::stream),
                Err(infallible) => match infallible {},
            }
        }
    };
    tokio::spawn(serving::server::serve(
        listener,
        None,
        Arc::new(handler),
        ServerOptions::default(),
        std::future::pending(),
    ));
    Ok(())
}

/// Returns the routes of the listener.
fn router(mirror: Arc<Mirror>, metrics: Arc<AuthdMetrics>) -> Router {
    let liveness = Checks::new().with("ping", || Ok(()));
    let checked_mirror = Arc::clone(&mirror);
    let readiness = liveness.clone().with("mirror", move || {
        let is_synced = checked_mirror.progress().synced;
        if is_synced { Ok(()) } else { Err("the mirror stream of apid is not open and complete".to_owned()) }
    });
    let metrics_routes = Router::new().route("/metrics", get(metrics_response)).with_state((mirror, metrics));
    metrics_routes
        .merge(health_routes("livez", liveness.clone()))
        .merge(health_routes("healthz", liveness))
        .merge(health_routes("readyz", readiness))
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
}

/// Returns the routes of one health endpoint and of its single checks.
fn health_routes(endpoint: &'static str, checks: Checks) -> Router {
    let response = move |check: Option<Path<String>>, RawQuery(query): RawQuery| async move {
        let check = check.as_deref().map(String::as_str);
        let result = checks.answer(endpoint, check, query.as_deref().unwrap_or_default(), false);
        (StatusCode::from_u16(result.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), result.body)
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(response.clone()))
        .route(&format!("/{endpoint}/{{*check}}"), get(response))
}

async fn metrics_response(
    State((mirror, metrics)): State<(Arc<Mirror>, Arc<AuthdMetrics>)>,
) -> impl IntoResponse {
    let progress = mirror.progress();
    let (roles, bindings) =
        mirror.policy(0).map(|policy| policy.role_and_binding_counts()).unwrap_or_default();
    let values = MirrorGaugeValues { roles, bindings, revision: progress.revision, synced: progress.synced };
    ([(CONTENT_TYPE, METRICS_TYPE)], metrics.text(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::{Names, Preset};

    async fn get(router: &Router, path: &str) -> (u16, String, String) {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = router.clone().call(request).await.unwrap();
        let status = response.status().as_u16();
        let content_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn monitoring_paths_return_health_metrics_or_404() {
        let mirror = Mirror::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()));
        let router = router(Arc::clone(&mirror), AuthdMetrics::new(["x509"]));
        for (path, status, text) in [
            ("/livez", 200, "ok"),
            ("/healthz", 200, "ok"),
            ("/livez/ping", 200, "ok"),
            ("/livez?verbose", 200, "[+]ping ok"),
            ("/readyz", 500, "[-]mirror failed"),
            ("/readyz/ping", 200, "ok"),
            ("/readyz?exclude=mirror", 200, "ok"),
            ("/livez/nosuch", 404, ""),
            ("/nosuch", 404, "404 page not found"),
            ("/metrics/x", 404, "404 page not found"),
        ] {
            let (got_status, content_type, body) = get(&router, path).await;
            assert_eq!(got_status, status, "{path}: {body}");
            assert!(body.contains(text), "{path}: {body}");
            assert_eq!(content_type, "text/plain; charset=utf-8", "{path}");
        }
        let (status, content_type, body) = get(&router, "/metrics").await;
        assert_eq!((status, content_type.as_str()), (200, METRICS_TYPE));
        assert!(body.contains("\nauthd_mirror_synced 0\n"), "{body}");

        let mut feed = mirror.begin();
        feed.synced(1).unwrap();
        assert_eq!(get(&router, "/readyz").await.0, 200, "the mirror is complete");
    }
}
