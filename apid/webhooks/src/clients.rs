//! Pooled clients of webhooks: one for each distinct origin, configuration and user.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use bytes::Bytes;
use forwarding::{Routing, ServiceResolver, url_path};
use http::{Method, Uri};
use moka::sync::Cache;
use serving::client::{CallError, ClientResponse, Limits, Remote};
use serving::client_config::{Cluster, Target, User};
use serving::waits::wait_for_process;
use tokio::sync::Semaphore;

use crate::circuit_breaker::CircuitBreaker;
use crate::users::FileId;
use crate::{CallFailure, ClientConfiguration, WebhookAddress, WebhookUsers};

/// Maximum number of concurrent calls of one client. Further calls wait, and fail if their timeout ends
/// first.
pub const MAX_CALLS_IN_FLIGHT: usize = 128;
/// Maximum number of pooled clients. The pool closes rarely used clients above this number.
const MAX_CLIENTS: u64 = 1000;
/// Time after which the pool closes an unused client.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Dependencies of the clients.
#[derive(Clone)]
pub struct ClientOptions {
    /// Finds the addresses of Services.
    pub services: Arc<ServiceResolver>,
    /// Names of the preset of this server.
    pub names: Arc<Names>,
    /// Clock of the back-off and of the checks of credential files.
    pub clock: Arc<dyn Clock>,
}

/// One call of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookCall {
    /// JSON body.
    pub body: Bytes,
    /// Maximum duration of the whole call, including the wait for other calls.
    pub timeout: Duration,
    /// Maximum size, in bytes, of the response body.
    pub response_bytes: usize,
    /// Whether the query parameter `timeout` contains the maximum duration of the call.
    pub sends_timeout: bool,
}

/// Pool of the clients of webhooks.
pub struct WebhookClients {
    services: Arc<ServiceResolver>,
    names: Arc<Names>,
    clock: Arc<dyn Clock>,
    clients: Cache<ClientKey, Arc<WebhookClient>>,
}

/// Key of a client in the pool: calls with equal keys share connections.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ClientKey {
    origin: String,
    configuration: ClientConfiguration,
    /// File and name of the user: two files may have different users with the same name.
    user: Option<(FileId, String)>,
}

/// Connections to a webhook, with its limit of calls in flight and its circuit breaker.
struct WebhookClient {
    remote: Remote,
    permits: Semaphore,
    circuit: CircuitBreaker,
}

/// Parts of the URL of a call.
struct CallUrl {
    /// The URL in messages: scheme, authority, path and query.
    display_url: String,
    /// Path and query.
    path: String,
    /// `HOST:PORT` for the choice of a user.
    server: String,
}

impl WebhookClients {
    /// Creates an empty pool.
    pub fn new(options: ClientOptions) -> Self {
        let ClientOptions { services, names, clock } = options;
        let clients = Cache::builder().max_capacity(MAX_CLIENTS).time_to_idle(CLIENT_IDLE_TIMEOUT).build();
        WebhookClients { services, names, clock, clients }
    }

    /// Posts a JSON body to a webhook and returns the body of a response with a status of 2xx.
    ///
    /// `users` are the credentials from the configuration of the admission plugin, if it has any.
    ///
    /// # Errors
    ///
    /// See [`CallFailure`].
    pub async fn post(
        &self,
        configuration: &ClientConfiguration,
        users: Option<&WebhookUsers>,
        call: WebhookCall,
    ) -> Result<Bytes, CallFailure> {
        let url = CallUrl::new(configuration, &call)?;
        let timeout = call.timeout;
        let sending = tokio::time::timeout(timeout, self.send(configuration, users, call, &url));
        // The webhook can depend on requests that wait for the slot of this one.
        let response = wait_for_process(sending)
            .await
            .unwrap_or_else(|_| Err(CallFailure::timeout(&url.display_url)))?;
        if response.status.is_success() {
            Ok(response.body)
        } else {
            Err(CallFailure::status(response.status, &response.body))
        }
    }

    async fn send(
        &self,
        configuration: &ClientConfiguration,
        users: Option<&WebhookUsers>,
        call: WebhookCall,
        url: &CallUrl,
    ) -> Result<ClientResponse, CallFailure> {
        let failure = |problem: &dyn std::fmt::Display| CallFailure::transport(&url.display_url, problem);
        let origin = match &configuration.address {
            WebhookAddress::Url(_) => url.origin().to_owned(),
            WebhookAddress::Service(service) => {
                let target = self.services.resolve(service.port(), Routing::Endpoints).await;
                target.map_err(|error| failure(&error))?.origin()
            }
        };
        let client = self.client(configuration, origin, users, url).map_err(|error| failure(&error))?;
        // A call waits for its permit first, so that its back-off check sees the failures of the calls before it.
        let _permit = client.permits.acquire().await.map_err(|error| failure(&error))?;
        let permission = client.circuit.permit(self.clock.monotonic()).map_err(|error| failure(&error))?;
        let limits = Limits { within: call.timeout, bytes: call.response_bytes };
        let result = client.remote.send(Method::POST, &url.path, call.body, limits).await;
        match &result {
            Ok(_) | Err(CallError::Broken(_) | CallError::TooLarge(_)) => permission.report_success(),
            Err(CallError::Unreachable(_)) => permission.report_failure(self.clock.monotonic()),
            // It is unknown whether a connection succeeded, so the call neither begins nor ends a back-off.
            Err(CallError::Timeout(_) | CallError::Request(_) | CallError::Credentials(_)) => {
                drop(permission)
            }
        }
        result.map_err(|error| CallFailure::from_call_error(&url.display_url, &error))
    }

    fn client(
        &self,
        configuration: &ClientConfiguration,
        origin: String,
        users: Option<&WebhookUsers>,
        url: &CallUrl,
    ) -> Result<Arc<WebhookClient>, String> {
        let user = users.and_then(|users| Some((users.file_id(), users.user(&url.server)?)));
        let user_key = user.map(|(file, (name, _))| (file, name.to_owned()));
        let key = ClientKey { origin, configuration: configuration.clone(), user: user_key };
        if let Some(client) = self.clients.get(&key) {
            return Ok(client);
        }
        let user = user.map(|(_, (_, user))| user);
        let client = self.clients.try_get_with_by_ref(&key, || self.build(&key, user));
        client.map_err(|error| (*error).clone())
    }

    fn build(&self, key: &ClientKey, user: Option<&User>) -> Result<Arc<WebhookClient>, String> {
        let ca_bundle = &key.configuration.ca_bundle;
        let server_name = match &key.configuration.address {
            WebhookAddress::Url(_) => None,
            WebhookAddress::Service(service) => Some(service.server_name()),
        };
        let cluster = Cluster {
            server: key.origin.clone(),
            tls_server_name: server_name,
            certificate_authority_data: (!ca_bundle.is_empty()).then(|| ca_bundle.to_vec()),
            ..Cluster::default()
        };
        let target = Target {
            cluster,
            user: user.cloned().unwrap_or_default(),
            user_name: key.user.as_ref().map(|(_, name)| name.clone()).unwrap_or_default(),
            ..Target::default()
        };
        let agent = concat!("apid/", env!("CARGO_PKG_VERSION"));
        let remote = Remote::new(target, agent, &self.names, Arc::clone(&self.clock))
            .map_err(|errors| errors.join("; "))?;
        let permits = Semaphore::new(MAX_CALLS_IN_FLIGHT);
        Ok(Arc::new(WebhookClient { remote, permits, circuit: CircuitBreaker::default() }))
    }
}

impl CallUrl {
    fn new(configuration: &ClientConfiguration, call: &WebhookCall) -> Result<Self, CallFailure> {
        let url = configuration.url();
        let query =
            if call.sends_timeout { format!("?timeout={}s", seconds(call.timeout)) } else { String::new() };
        let uri: Uri = url.parse().map_err(|error| CallFailure::transport(&url, error))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let path = format!("{}{query}", url_path::clean(uri.path()));
        let scheme = uri.scheme_str().unwrap_or("https");
        let port = uri.port_u16().unwrap_or(443);
        Ok(CallUrl {
            display_url: format!("{scheme}://{authority}{path}"),
            path,
            server: format!("{}:{port}", uri.host().unwrap_or_default()),
        })
    }

    /// Scheme and authority.
    fn origin(&self) -> &str {
        self.display_url.strip_suffix(self.path.as_str()).unwrap_or_default()
    }
}

/// A duration in whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
