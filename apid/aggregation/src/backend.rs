//! The server behind an APIService: where it is, the connections to it, and the own requests of apid.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use bytes::Bytes;
use forwarding::{
    FORWARDED_BY, Forwarding, ResolutionError, ServicePort, ServiceResolver, Target, Transport,
    TransportSettings,
};
use http::header::{ACCEPT, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, USER_AGENT};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serving::body::Body;
use serving::client::Trust;

use crate::{BackendReference, api_service};

/// Maximum size in bytes of a document of a server.
pub const MAX_DOCUMENT_BYTES: usize = 32 << 20;

/// Time for which a resolved address serves. The controllers forget it earlier when the Service changes.
const TARGET_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum time to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts of a check: they go to different endpoints of a Service.
const CHECK_ATTEMPTS: usize = 5;
/// Maximum time of a request for a document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The user of checks and of requests for discovery documents.
const CHECKING_USER: &str = "system:kube-aggregator";
/// The user of requests for OpenAPI documents.
const OPENAPI_USER: &str = "system:aggregator";

/// Resolver, client certificate, clock and names of all servers behind APIServices.
#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) names: Arc<Names>,
    pub(crate) services: Arc<ServiceResolver>,
    pub(crate) forwarding: Arc<Forwarding>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The server behind an APIService. Its connections are reused.
pub struct Backend {
    reference: BackendReference,
    environment: Environment,
    transport: Result<Transport, UnusableBackend>,
    /// The address of the last resolution, and the monotonic time until which it serves.
    resolved: Mutex<Option<(Target, Duration)>>,
}

/// The `caBundle` or the client certificate cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnusableBackend(String);

/// The reason why a check failed, as the message of a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failing or missing response from {url}: {reason}")]
pub struct CheckFailure {
    url: String,
    reason: String,
}

/// A document of a server.
pub(crate) enum Fetched {
    /// The document with its headers.
    Document(HeaderMap, Bytes),
    /// The document with the known ETag is current.
    NotModified,
    /// Another status code.
    Rejected(StatusCode),
}

/// The user with whom apid asks a server for a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Discovery,
    OpenApi,
}

impl Reader {
    fn user(self) -> UserInfo {
        match self {
            Reader::Discovery => checking_user(),
            Reader::OpenApi => UserInfo { name: OPENAPI_USER.to_owned(), ..UserInfo::default() },
        }
    }
}

fn checking_user() -> UserInfo {
    let groups = vec![apimachinery::user::MASTERS.to_owned()];
    UserInfo { name: CHECKING_USER.to_owned(), groups, ..UserInfo::default() }
}

impl Backend {
    pub(crate) fn new(reference: BackendReference, environment: Environment) -> Self {
        let transport = transport(&reference, &environment.forwarding);
        Backend { reference, environment, transport, resolved: Mutex::default() }
    }

    /// The Service and the certificates of the server.
    pub fn reference(&self) -> &BackendReference {
        &self.reference
    }

    pub(crate) fn names(&self) -> &Names {
        &self.environment.names
    }

    /// Returns the connections to the server.
    ///
    /// # Errors
    ///
    /// The `caBundle` or the client certificate cannot be used.
    pub fn transport(&self) -> Result<&Transport, UnusableBackend> {
        self.transport.as_ref().map_err(Clone::clone)
    }

    /// Returns the address for the next request.
    ///
    /// # Errors
    ///
    /// The Service has no address.
    pub async fn target(&self) -> Result<Target, ResolutionError> {
        let now = self.environment.clock.monotonic();
        if let Some((target, end)) = &*self.resolved.lock()
            && now < *end
        {
            return Ok(target.clone());
        }
        let target = self.resolve().await?;
        *self.resolved.lock() = Some((target.clone(), now + TARGET_LIFETIME));
        Ok(target)
    }

    /// Forgets the address, so that the next request resolves the Service.
    pub fn forget_target(&self) {
        *self.resolved.lock() = None;
    }

    /// Whether `--service-resolver-file` has an address for the Service, so that the Service need not exist.
    pub fn is_mapped(&self) -> bool {
        self.environment.services.mapped(self.port()).is_some()
    }

    async fn resolve(&self) -> Result<Target, ResolutionError> {
        let Environment { services, forwarding, .. } = &self.environment;
        services.resolve(self.port(), forwarding.routing).await
    }

    fn port(&self) -> ServicePort<'_> {
        let BackendReference { namespace, name, port, .. } = &self.reference;
        ServicePort { namespace, name, port: *port }
    }

    /// Checks that the server answers the discovery of an API version. Several attempts go to different endpoints.
    ///
    /// # Errors
    ///
    /// The last failure of the attempts.
    pub async fn check(&self, group: &str, version: &str) -> Result<(), CheckFailure> {
        let path = format!("/{}", api_service::root(group, version));
        let attempts = async {
            let mut last = self.check_once(&path).await;
            let mut seen = vec![last.as_ref().err().map(|failure| failure.url.clone())];
            for _ in 1..CHECK_ATTEMPTS {
                if last.is_ok() {
                    break;
                }
                let next = self.check_once(&path).await;
                let url = next.as_ref().err().map(|failure| failure.url.clone());
                last = next;
                // All endpoints were asked.
                if seen.contains(&url) {
                    break;
                }
                seen.push(url);
            }
            last
        };
        let url = || format!("https://{}:{}{path}", self.reference.server_name(), self.reference.port);
        let timeout = || CheckFailure { url: url(), reason: "timed out waiting for the response".to_owned() };
        tokio::time::timeout(CHECK_TIMEOUT, attempts).await.unwrap_or_else(|_elapsed| Err(timeout()))
    }

    async fn check_once(&self, path: &str) -> Result<(), CheckFailure> {
        let service_url = format!("https://{}:{}{path}", self.reference.server_name(), self.reference.port);
        let failure = |url: &str, reason: String| CheckFailure { url: url.to_owned(), reason };
        let transport = self.transport().map_err(|error| failure(&service_url, error.to_string()))?;
        let target = self.resolve().await.map_err(|error| failure(&service_url, error.to_string()))?;
        let url = format!("{}{path}", target.origin());
        let request = self.own_request(path, &checking_user(), None, None);
        let request = request.map_err(|error| failure(&url, error))?;
        let response = transport.send(&target, request).await;
        let response = response.map_err(|error| failure(&url, format!("Get {url:?}: {error}")))?;
        match response.status() {
            status if status.is_success() => Ok(()),
            StatusCode::LOOP_DETECTED => {
                let reason = format!("the Service leads back to this server: status 508 from {url}");
                Err(failure(&url, reason))
            }
            status => Err(failure(&url, format!("bad status from {url}: {}", status.as_u16()))),
        }
    }

    /// Fetches a document.
    ///
    /// # Errors
    ///
    /// The server did not answer, as text for the log.
    pub(crate) async fn fetch(
        &self,
        path: &str,
        reader: Reader,
        accept: &str,
        known_etag: Option<&str>,
    ) -> Result<Fetched, String> {
        let transport = self.transport().map_err(|error| error.to_string())?;
        let target = self.resolve().await.map_err(|error| error.to_string())?;
        let request = self.own_request(path, &reader.user(), Some(accept), known_etag)?;
        let fetching = async {
            let response = transport.send(&target, request).await.map_err(|error| error.to_string())?;
            let (head, mut body) = response.into_parts();
            match head.status {
                StatusCode::OK => {
                    let body = serving::body::collect(&mut body, MAX_DOCUMENT_BYTES).await;
                    Ok(Fetched::Document(head.headers, body.map_err(|error| error.to_string())?))
                }
                StatusCode::NOT_MODIFIED => Ok(Fetched::NotModified),
                status => Ok(Fetched::Rejected(status)),
            }
        };
        let result = tokio::time::timeout(DOCUMENT_TIMEOUT, fetching).await;
        result.unwrap_or_else(|_elapsed| Err("the server did not answer in time".to_owned()))
    }

    /// Returns a request of apid itself.
    pub(crate) fn own_request(
        &self,
        path: &str,
        user: &UserInfo,
        accept: Option<&str>,
        known_etag: Option<&str>,
    ) -> Result<Request<Body>, String> {
        let agent = concat!("apid/", env!("CARGO_PKG_VERSION"));
        let mut request = Request::builder().method(Method::GET).uri(path).header(USER_AGENT, agent);
        if let Some(accept) = accept {
            request = request.header(ACCEPT, accept);
        }
        if let Some(etag) = known_etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(hop) = self.environment.forwarding.hops.first() {
            request = request.header(FORWARDED_BY, hop);
        }
        let mut request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        forwarding::headers::set_remote_user(request.headers_mut(), user)
            .map_err(|error| error.to_string())?;
        Ok(request)
    }
}

/// Returns the ETag of a document.
pub(crate) fn etag(headers: &HeaderMap) -> Option<String> {
    headers.get(ETAG).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn transport(reference: &BackendReference, forwarding: &Forwarding) -> Result<Transport, UnusableBackend> {
    let trust = if reference.is_insecure {
        Trust::Insecure
    } else if reference.ca_bundle.is_empty() {
        Trust::System
    } else {
        Trust::from_pem(&reference.ca_bundle)
            .map_err(|error| UnusableBackend(format!("spec.caBundle cannot be used: {error}")))?
    };
    let settings = TransportSettings {
        trust,
        server_name: Some(reference.server_name()),
        credentials: forwarding.aggregator_credentials.clone(),
        connect_timeout: CONNECT_TIMEOUT,
        http2: true,
    };
    Transport::new(settings).map_err(|error| UnusableBackend(error.to_string()))
}
