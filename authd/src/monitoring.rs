//! The small HTTP listener for health and metrics, on loopback and off by default.

use std::net::SocketAddr;
use std::sync::Arc;

use serving::body::Body;
use serving::health::Checks;
use serving::listener::Listener;
use serving::metrics::{Definition, Metrics, Stability};
use serving::server::{ConnectionInfo, ServerOptions};

use crate::mirror::Mirror;

const ROLES: Definition =
    Definition::new("authd_mirror_roles", Stability::Alpha, "Roles and ClusterRoles that exist.");
const BINDINGS: Definition = Definition::new(
    "authd_mirror_bindings",
    Stability::Alpha,
    "RoleBindings and ClusterRoleBindings that exist.",
);
const REVISION: Definition =
    Definition::new("authd_mirror_revision", Stability::Alpha, "Revision up to which the mirror is applied.");
const SYNCED: Definition = Definition::new(
    "authd_mirror_synced",
    Stability::Alpha,
    "1 while a feed from apid lives and is complete.",
);

/// Binds and serves in the background.
pub(crate) async fn serve(address: SocketAddr, mirror: Arc<Mirror>) -> std::io::Result<()> {
    let listener = Listener::tcp(address.ip(), address.port()).await?;
    let bound = listener.address().unwrap_or(address);
    tracing::info!(address = %bound, "metrics and health");
    let metrics = Metrics::new();
    let gauges = [ROLES, BINDINGS, REVISION, SYNCED].map(|definition| metrics.single_gauge(&definition));
    let live = Checks::new().with("ping", || Ok(()));
    let ready = live.clone().with("mirror", {
        let mirror = Arc::clone(&mirror);
        move || if mirror.progress().synced { Ok(()) } else { Err("no complete feed from apid".to_owned()) }
    });
    let handler = move |request: http::Request<hyper::body::Incoming>, _: Arc<ConnectionInfo>| {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer =
            match path.split_once('/').map_or((path.as_str(), None), |(first, rest)| (first, Some(rest))) {
                ("metrics", None) => {
                    let progress = mirror.progress();
                    let (roles, bindings) = mirror.policy(0).map(|policy| policy.len()).unwrap_or_default();
                    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
                    let revision = i64::try_from(progress.revision).unwrap_or(i64::MAX);
                    let values = [count(roles), count(bindings), revision, i64::from(progress.synced)];
                    for (gauge, value) in gauges.iter().zip(values) {
                        gauge.set(value);
                    }
                    (200, metrics.text())
                }
                (endpoint @ ("livez" | "healthz"), check) => health(&live, endpoint, check, &query),
                ("readyz", check) => health(&ready, "readyz", check, &query),
                _ => (404, "404 page not found\n".to_owned()),
            };
        async move {
            let (status, body) = answer;
            let mut response = http::Response::new(Body::from(body));
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
            response
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

fn health(checks: &Checks, endpoint: &str, check: Option<&str>, query: &str) -> (u16, String) {
    let answer = checks.answer(endpoint, check, query, false);
    (answer.status, answer.body)
}
