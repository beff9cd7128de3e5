//! The HTTP listener for health and metrics, on loopback and off by default.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serving::body::Body;
use serving::health::Checks;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions};

use crate::meters::{Meters, MirrorState};
use crate::mirror::Mirror;

/// The state that the listener serves.
#[derive(Clone)]
struct MonitoringState {
    mirror: Arc<Mirror>,
    meters: Arc<Meters>,
    live: Checks,
    ready: Checks,
}

/// Binds the address and serves in the background.
///
/// # Errors
///
/// The address cannot be bound.
pub(crate) async fn serve(
    address: SocketAddr,
    mirror: Arc<Mirror>,
    meters: Arc<Meters>,
) -> std::io::Result<()> {
    let listener = Listener::tcp(address.ip(), address.port()).await?;
    tracing::info!(address = %listener.address().unwrap_or(address), "serving metrics and health");
    let live = Checks::new().with("ping", || Ok(()));
    let feed = Arc::clone(&mirror);
    let ready = live.clone().with("mirror", move || {
        if feed.progress().synced { Ok(()) } else { Err("no complete feed from apid".to_owned()) }
    });
    let shown = MonitoringState { mirror, meters, live, ready };
    let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
        let (status, body) = shown.answer(request.uri().path(), request.uri().query().unwrap_or_default());
        async move {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
            response
        }
    };
    let served = serving::server::serve(
        listener,
        None,
        Arc::new(handler),
        ServerOptions::default(),
        std::future::pending(),
    );
    tokio::spawn(served);
    Ok(())
}

impl MonitoringState {
    fn answer(&self, path: &str, query: &str) -> (u16, String) {
        let path = path.trim_start_matches('/');
        let (endpoint, check) =
            path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let checks = match endpoint {
            "metrics" if check.is_none() => return (200, self.metrics()),
            "livez" | "healthz" => &self.live,
            "readyz" => &self.ready,
            _ => return (404, "404 page not found\n".to_owned()),
        };
        let answer = checks.answer(endpoint, check, query, false);
        (answer.status, answer.body)
    }

    fn metrics(&self) -> String {
        let progress = self.mirror.progress();
        let (roles, bindings) = self.mirror.policy(0).map(|policy| policy.len()).unwrap_or_default();
        self.meters.text(MirrorState {
            roles,
            bindings,
            revision: progress.revision,
            synced: progress.synced,
        })
    }
}
