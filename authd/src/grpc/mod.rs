//! The gRPC services of `authproto`.
//!
//! # Invariants
//!
//! INVARIANT (thin): a service decodes a message, calls components, and encodes the response. `status`
//! creates each failure and each gRPC status that a service returns.

mod authn;
mod authz;
mod decide;
mod health;
pub mod metrics;
mod mirror;
mod review;
mod serve;
mod status;

use metrics::RequestMetrics;
pub use serve::serve;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use authproto::auth;
use authproto::auth::authn_server::AuthnServer;
use authproto::auth::authz_server::AuthzServer;
use authproto::auth::decide_server::DecideServer;
use authproto::auth::mirror_server::MirrorServer;
use authproto::auth::review_server::ReviewServer;
use authproto::peer::{PROTOCOL, Peer, PeerNames, apid_of};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;

use crate::active_config::SharedConfig;
use crate::controllers::tokens::EnabledControllers;
use crate::mirror::{AtLeast, Mirror, MirrorNotReady, Mirrors};
use crate::tokens::service_account::Issuer;

/// The longest wait of a request for the mirror to reach the minimum revision of the request.
pub const MIRROR_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit in bytes of a message with an object or with authorization requests. It is above the size of the
/// largest object.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Limit in bytes of a message without an object: requests for tokens and keys, health checks.
const MAX_PLAIN_MESSAGE_BYTES: usize = 1024 * 1024;

/// The components behind all services.
#[derive(Clone)]
pub struct Components {
    /// The names preset.
    pub names: Arc<Names>,
    /// The active authenticators and authorizers.
    pub config: Arc<SharedConfig>,
    /// The issuer of service-account tokens. None if no keys are configured.
    pub issuer: Option<Arc<Issuer>>,
    /// The enabled controllers.
    pub controllers: EnabledControllers,
    /// The metrics of requests.
    pub metrics: Arc<RequestMetrics>,
    /// The policy mirrors of all apids.
    pub mirrors: Arc<Mirrors>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The random source.
    pub rng: Arc<dyn Rng>,
}

impl std::fmt::Debug for Components {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Components").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The components with the mirror of the apid that sent a request.
#[derive(Clone, Debug)]
struct Caller {
    components: Components,
    mirror: Arc<Mirror>,
}

impl std::ops::Deref for Caller {
    type Target = Components;

    fn deref(&self) -> &Components {
        &self.components
    }
}

/// All services, and the headers that identify the process in every response.
#[derive(Clone, Debug)]
pub struct Services {
    routes: Routes,
    identity: Arc<http::HeaderMap>,
}

/// Creates all services. Needs a tokio runtime.
pub fn services(components: &Components) -> Services {
    let decide = DecideServer::new(decide::DecideService(components.clone()));
    let mirror = MirrorServer::new(mirror::MirrorService(components.clone()));
    let authz = AuthzServer::new(authz::AuthzService(components.clone()));
    let authn = AuthnServer::new(authn::AuthnService(components.clone()));
    let health = health::service(&components.mirrors);
    let review = ReviewServer::new(review::ReviewService(components.clone()));
    let mut routes = Routes::builder();
    routes
        .add_service(decide.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(mirror.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(authz.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(authn.max_decoding_message_size(MAX_PLAIN_MESSAGE_BYTES))
        .add_service(health.max_decoding_message_size(MAX_PLAIN_MESSAGE_BYTES))
        .add_service(review.max_decoding_message_size(MAX_MESSAGE_BYTES));
    let identity = Peer {
        protocol: PROTOCOL,
        names: PeerNames::new(&components.names),
        instance: components.config.current().epoch.instance.clone(),
    };
    Services { routes: routes.routes(), identity: Arc::new(identity.to_metadata().into_headers()) }
}

/// Returns the minimum mirror revision for a request: the greatest revision in its policy revisions.
/// One number is enough, because one stream carries the changes of all components in order.
fn min_revision(revisions: Option<&auth::Revisions>) -> u64 {
    let Some(revisions) = revisions else { return 0 };
    let component_revisions = revisions.rbac_namespace.values().chain(revisions.graph_node.values()).copied();
    component_revisions.fold(revisions.rbac_cluster.max(revisions.identity), u64::max)
}

impl Components {
    /// Returns the components for a request with this metadata, which names its apid.
    fn caller(&self, metadata: &MetadataMap) -> Caller {
        let mirror = self.mirrors.of_apid(apid_of(metadata));
        Caller { components: self.clone(), mirror }
    }
}

impl Caller {
    /// Returns the mirror of the apid at the minimum revision of a request.
    fn at_least(&self, revision: u64) -> AtLeast<'_> {
        self.mirror.at_least(revision)
    }

    /// Calls `attempt` again while the result is [`MirrorNotReady`], at most for [`MIRROR_TIMEOUT`].
    /// Between two calls, waits until the mirror reaches the revision `at_least`.
    async fn retry_until_synced<T, Attempt: Future<Output = Result<T, MirrorNotReady>>>(
        &self,
        at_least: u64,
        mut attempt: impl FnMut() -> Attempt,
    ) -> Result<T, MirrorNotReady> {
        let deadline = self.clock.monotonic() + MIRROR_TIMEOUT;
        loop {
            let not_ready = match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(not_ready) => not_ready,
            };
            let remaining = deadline.saturating_sub(self.clock.monotonic());
            if remaining.is_zero() {
                return Err(not_ready);
            }
            self.mirror.wait_for_revision(at_least, remaining).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_revision_is_greatest_vector_component() {
        assert_eq!(min_revision(None), 0);
        let revisions = auth::Revisions {
            rbac_cluster: 3,
            rbac_namespace: [("a".to_owned(), 9), ("b".to_owned(), 1)].into(),
            identity: 4,
            graph_node: [("n".to_owned(), 8)].into(),
        };
        assert_eq!(min_revision(Some(&revisions)), 9);
    }
}
