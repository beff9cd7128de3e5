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
use axum::extract::{Path, RawQuery};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serving::body::Body;
use serving::health::Checks;
use serving::listener::Listener;
use serving::metrics::{Definition, MEDIA_TYPE, Metrics, Stability};
use serving::server::{ConnectionInfo, ServerOptions};
use tower_service::Service;

use crate::mirror::Mirrors;

const APIDS: Definition =
    Definition::new("authd_mirrors", Stability::Alpha, "Connected apids, each with its own mirror");
const ROLES: Definition =
    Definition::new("authd_mirror_roles", Stability::Alpha, "Roles and ClusterRoles in the largest mirror");
const BINDINGS: Definition = Definition::new(
    "authd_mirror_bindings",
    Stability::Alpha,
    "RoleBindings and ClusterRoleBindings in the largest mirror",
);
const REVISION: Definition = Definition::new(
    "authd_mirror_revision",
    Stability::Alpha,
    "Revision up to which the mirror is applied; the oldest one of several apids",
);
const SYNCED: Definition = Definition::new(
    "authd_mirror_synced",
    Stability::Alpha,
    "1 while the mirror of each connected apid is complete, and at least one exists",
);

/// Binds the address and serves in the background.
///
/// # Errors
///
/// The address cannot be bound.
pub(crate) async fn serve(
    address: SocketAddr,
    mirrors: &Arc<Mirrors>,
    metrics: &Arc<Metrics>,
) -> std::io::Result<()> {
    let listener = Listener::tcp(address.ip(), address.port()).await?;
    tracing::info!(address = %listener.address().unwrap_or(address), "serving metrics and health");
    let router = router(mirrors, metrics);
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
fn router(mirrors: &Arc<Mirrors>, metrics: &Arc<Metrics>) -> Router {
    register_mirror_metrics(metrics, mirrors);
    let liveness = Checks::new().with("ping", || Ok(()));
    let complete = mirrors.complete();
    let readiness = liveness.clone().with("mirror", move || {
        if *complete.borrow() > 0 {
            Ok(())
        } else {
            Err("no mirror stream of an apid is open and complete".to_owned())
        }
    });
    let metrics = Arc::clone(metrics);
    let metrics_response = async move || ([(CONTENT_TYPE, MEDIA_TYPE)], metrics.text());
    Router::new()
        .route("/metrics", get(metrics_response))
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

/// Registers the metrics of the mirrors, which each scrape takes from the mirrors.
fn register_mirror_metrics(metrics: &Metrics, mirrors: &Arc<Mirrors>) {
    let [apids, roles, bindings, revision, synced] =
        [&APIDS, &ROLES, &BINDINGS, &REVISION, &SYNCED].map(|definition| metrics.single_gauge(definition));
    let mirrors = Arc::clone(mirrors);
    metrics.collect_with(move || {
        let all = mirrors.all();
        let as_gauge_value = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let counts = all.iter().map(|mirror| {
            mirror.policy(0).map(|policy| policy.role_and_binding_counts()).unwrap_or_default()
        });
        let (role_count, binding_count) =
            counts.fold((0, 0), |(roles, bindings), (more_roles, more_bindings)| {
                (roles.max(more_roles), bindings.max(more_bindings))
            });
        let oldest = all.iter().map(|mirror| mirror.progress().revision).min().unwrap_or_default();
        let is_synced = !all.is_empty() && all.iter().all(|mirror| mirror.progress().synced);
        apids.set(as_gauge_value(all.len()));
        roles.set(as_gauge_value(role_count));
        bindings.set(as_gauge_value(binding_count));
        revision.set(i64::try_from(oldest).unwrap_or(i64::MAX));
        synced.set(i64::from(is_synced));
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apimachinery::clock::ManualClock;
    use apimachinery::names::{Names, Preset};
    use serving::metrics::table::{families, renewed_table};

    use super::*;
    use crate::authn::jwt::metrics::JwtMetrics;
    use crate::authn::webhook::metrics::TokenWebhookMetrics;
    use crate::authz::AuthzMetrics;
    use crate::grpc::metrics::RequestMetrics;
    use crate::reload::metrics::ReloadMetrics;

    async fn get(router: &Router, path: &str) -> (u16, String, String) {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = router.clone().call(request).await.unwrap();
        let status = response.status().as_u16();
        let content_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The table of the metric families of both processes.
    const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.csv");

    #[test]
    fn metric_families_are_in_table_with_type_stability_and_labels() {
        let registry = Arc::<Metrics>::default();
        let mirrors = Mirrors::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()), true);
        let clock = ManualClock::at(jiff::Timestamp::UNIX_EPOCH);
        register_mirror_metrics(&registry, &mirrors);
        RequestMetrics::register(&registry, ["x509"]);
        let authz = AuthzMetrics::register(&registry);
        authz.counters("RBAC", "rbac").observe_condition(Duration::ZERO);
        authz.webhooks().observe_call("hook", "error", 1.0, true);
        TokenWebhookMetrics::register(&registry).observe_call("error", 1.0);
        ReloadMetrics::for_authentication(&registry).count("success", &clock);
        ReloadMetrics::for_authorization(&registry).count("success", &clock);
        let jwt = JwtMetrics::register(&registry);
        jwt.observe_authentication("hash", "success", 1.0);
        jwt.record_fetch("hash", "success", &clock);
        let text = registry.text();
        for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
            assert!(line.ends_with('.') && !line.ends_with(".."), "{line}");
        }
        let (served, declared) = (families(&text), registry.declared());
        let without_sample: Vec<&str> =
            declared.iter().map(|family| family.name).filter(|name| !served.contains_key(*name)).collect();
        assert_eq!(without_sample, [""; 0]);
        let table = std::fs::read_to_string(TABLE).unwrap();
        let renewed = renewed_table(&table, &served, &declared, &["authd-own", "authd"]);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(TABLE, &renewed).unwrap();
        } else {
            assert_eq!(table, renewed, "docs/metrics.csv is outdated: run the test with UPDATE=1");
        }
    }

    #[tokio::test]
    async fn monitoring_paths_return_health_metrics_or_404() {
        let mirrors = Mirrors::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()), true);
        let router = router(&mirrors, &Arc::default());
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
        assert_eq!((status, content_type.as_str()), (200, MEDIA_TYPE));
        assert!(body.contains("\nauthd_mirror_synced 0\n"), "{body}");

        let mut feed = mirrors.of_apid("one").begin();
        feed.synced(1).unwrap();
        assert_eq!(get(&router, "/readyz").await.0, 200, "the mirror is complete");
    }
}
