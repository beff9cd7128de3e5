//! The client of authd: authentication, authorization, caches, policy revisions and the policy mirror.
//!
//! # Contract
//!
//! [`Auth::admit`] authenticates and authorizes a request. Every open watch holds a [`WatchGuard`]. These
//! concepts lead from a request to its verb:
//!
//! | Concept | Meaning |
//! |---|---|
//! | [`Credentials`] | what a request presents: certificate, token, proxy and impersonation headers |
//! | [`Identity`] | the user whom the credentials name |
//! | [`Attributes`](apimachinery::attributes::Attributes) | what the request asks for |
//! | [`Decision`](apimachinery::decision::Decision) | allow, deny or no opinion, with a reason |
//! | [`Authorized`] | an identity with allowed attributes; every verb requires one |
//! | [`Validity`](validity::Validity) | until when and until which changes identity and decision serve |
//! | [`PolicyRevisions`] | for each component of the policy the revision of its last change |
//! | [epoch](decisions::epoch) | one authd process with one configuration |
//! | cache | the responses of authd with their validity: [identities](identity::cache), [decisions](decisions::cache) |
//! | [`AuthdConnection`] | whether authd is connected, and cached responses serve |
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a request that arrives after a policy write was acknowledged is never decided
//! on policy older than that write (design section 2). Three mechanisms ensure this:
//!
//! - The policy vector advances before the writer gets its response ([`decisions::revisions`]).
//! - A request to authd carries the vector from before the request. authd decides on policy at least as new, or
//!   fails.
//! - A cached response is used only while its components have not advanced ([`validity`]).
//!
//! INVARIANT (fail closed): a request that needs a response of authd and gets none fails with 503. Cached
//! responses serve only for a limited time after the loss of authd ([`transport::connection`]).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::status::Status;
use authproto::auth::{ReviewRequest, decide_response, review_response};
use http::HeaderMap;
use serving::metrics::Metrics;
use storage::Store;

mod admit;
mod decisions;
mod identity;
mod reduce;
#[cfg(test)]
mod tests;
mod transport;
mod validity;
mod watches;
pub use admit::{Admitted, Authorized, Identity};
pub use decisions::rejection::Rejection;
pub use decisions::revisions::PolicyRevisions;
pub use identity::credentials::Credentials;
pub use identity::header_credentials::{HeaderCredentials, ProxyHeaders};
pub use reduce::Reductions;
pub use transport::connection::{AuthdConnection, AuthdProblem};
pub use transport::mirror::PolicyWriter;
pub use transport::servers::AuthdServer;
pub use transport::stream::check_health;
pub use watches::authorization::WatchGuard;

use decisions::cache::DecisionCache;
use decisions::epoch::Epochs;
use identity::cache::IdentityCache;
use identity::credentials::Digester;
use identity::metrics::AuthMetrics;
use transport::authd_api::{AuthdApi, AuthdError};
use transport::mirror::Mirror;
use transport::peer::ExpectedAuthd;
use transport::servers::Servers;
use watches::authorization::Watches;

/// Statistics of the caches and of the mirror, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStats {
    /// The number of cached decisions.
    pub decisions: u64,
    /// The approximate size of the cached decisions in bytes.
    pub decision_bytes: u64,
    /// The number of revisions by which the policy mirror of authd lags behind the store.
    pub mirror_lag: u64,
    /// Whether authd has a complete snapshot of the policy.
    pub is_mirror_synced: bool,
}

/// The options of the connection to authd.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// The authds in the order of preference, at least one.
    pub servers: Vec<AuthdServer>,
    /// A random id of this process, for an authd that serves several apids; without an id, authd serves this one only.
    pub instance: String,
    /// The timeout of a request to authd.
    pub timeout: Duration,
    /// The names of apid, which authd must share.
    pub names: Arc<Names>,
    /// The headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
}

/// The client of authd: one per process.
pub struct Auth {
    authd_api: Arc<dyn AuthdApi>,
    revisions: Arc<PolicyRevisions>,
    clock: Arc<dyn Clock>,
    epochs: Arc<Epochs>,
    connection: Arc<AuthdConnection>,
    servers: Arc<Servers>,
    digester: Digester,
    options: AuthOptions,
    identities: IdentityCache,
    decisions: DecisionCache,
    watches: Watches,
    /// The metrics, set by [`Auth::register_metrics`]; without them, nothing is counted.
    auth_metrics: OnceLock<AuthMetrics>,
}

impl Auth {
    /// Connects to authd and reconnects after failures; returns at once.
    ///
    /// `revisions` must be an observer of the store.
    ///
    /// # Errors
    ///
    /// The system supplied no random bytes.
    pub fn connect(
        options: AuthOptions,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, aws_lc_rs::error::Unspecified> {
        let connection = Arc::new(AuthdConnection::new(clock.clone()));
        let expected = ExpectedAuthd::new(&options.names);
        let servers = Servers::new(options.servers.clone(), &options.instance);
        let authd_api = Arc::new(transport::stream::Client::connect(
            Arc::clone(&servers),
            options.timeout,
            expected,
            connection.clone(),
        ));
        Self::with_api(authd_api, connection, servers, revisions, clock, options)
    }

    fn with_api(
        authd_api: Arc<dyn AuthdApi>,
        connection: Arc<AuthdConnection>,
        servers: Arc<Servers>,
        revisions: Arc<PolicyRevisions>,
        clock: Arc<dyn Clock>,
        options: AuthOptions,
    ) -> Result<Arc<Self>, aws_lc_rs::error::Unspecified> {
        let auth = Arc::new(Auth {
            authd_api,
            revisions,
            clock,
            epochs: Arc::clone(&connection.epochs),
            connection,
            servers,
            digester: Digester::new()?,
            options,
            identities: IdentityCache::new(),
            decisions: DecisionCache::new(),
            watches: Watches::default(),
            auth_metrics: OnceLock::new(),
        });
        tokio::spawn(auth.clone().run_reauthorization_task());
        let auth_of_task = auth.clone();
        tokio::spawn(async move { auth_of_task.decisions.maintain().await });
        Ok(auth)
    }

    /// The connection to authd.
    pub fn connection(&self) -> &AuthdConnection {
        &self.connection
    }

    /// Reads the statistics of the decision cache and of the mirror.
    pub fn cache_stats(&self) -> AuthStats {
        let (decisions, decision_bytes) = self.decisions.size();
        let (sent_revision, is_mirror_synced) = self.connection.mirror_progress();
        let mirror_lag = self.revisions.observed().saturating_sub(sent_revision);
        AuthStats { decisions, decision_bytes, mirror_lag, is_mirror_synced }
    }

    /// Logs each outage of authd and its end; never returns.
    pub async fn log_outages(&self) {
        self.connection.log_outages(&self.options.servers).await;
    }

    /// Sends the policy objects of a store to authd, and performs authd's writes; never returns.
    pub async fn run_mirror(self: Arc<Self>, store: Arc<dyn Store>, writer: Arc<dyn PolicyWriter>) {
        let AuthOptions { instance, names, .. } = self.options.clone();
        let servers = Arc::clone(&self.servers);
        let (connection, revisions) = (Arc::clone(&self.connection), Arc::clone(&self.revisions));
        let is_reread = AtomicBool::new(false);
        Mirror { servers, names, instance, connection, revisions, store, writer, is_reread }.run().await;
    }

    /// Registers the authentication and authorization metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        // A second call changes nothing: a process has one registry.
        let _ = self.auth_metrics.set(AuthMetrics::new(metrics));
    }

    /// Removes the credentials from the headers of a request.
    pub fn take_credentials(&self, headers: &mut HeaderMap) -> HeaderCredentials {
        HeaderCredentials::take(headers, &self.options.proxy_headers, &self.options.names)
    }

    /// Creates a review.
    ///
    /// `object` is the review as JSON with apiVersion and kind, pruned and defaulted. Returns the review in
    /// the same form, with its status.
    ///
    /// # Errors
    ///
    /// authd's rejection of the object (422 with causes, 400, 403); 503 when authd does not respond.
    pub async fn review(
        &self,
        authorized: &Authorized,
        resource: &str,
        object: Vec<u8>,
        request_id: &str,
    ) -> Result<Vec<u8>, Status> {
        let request = ReviewRequest {
            resource: resource.to_owned(),
            namespace: authorized.attributes().namespace.clone(),
            user: Some((&**authorized.user()).into()),
            object: object.into(),
            at_least: Some(self.revisions.newest()),
            request_id: request_id.to_owned(),
        };
        match self.authd_api.review(request).await?.outcome {
            Some(review_response::Outcome::Object(object)) => Ok(object),
            Some(review_response::Outcome::Status(status)) => {
                Err(transport::authd_api::from_status_body(&status))
            }
            None => Err(AuthdError::Malformed.into()),
        }
    }

    fn drop_caches(&self) {
        self.identities.clear();
        self.decisions.clear();
    }
}

fn to_authd_error(response: Option<decide_response::Answer>) -> AuthdError {
    match response {
        Some(decide_response::Answer::Failure(failure)) => AuthdError::Failed(failure),
        _ => AuthdError::Malformed,
    }
}
