//! Requests to the server that this process serves, as the administrator.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use serving::client::{CallError, Client, Identity, Limits, Proxy, Settings, SettingsError, Trust, request};

use super::credentials::Credentials;

/// Time and size limits of a response.
const LIMITS: Limits = Limits { within: Duration::from_secs(10), bytes: 1 << 20 };
/// Time and size limits of a health check.
const HEALTH_LIMITS: Limits = Limits { within: Duration::from_secs(3), bytes: 1 << 20 };
/// Time after which an unknown path is an error: a new custom kind is served soon after its definition.
const APPEARANCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The reason why an object was not written; the text names the path.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// No response.
    #[error("{path}: {error}")]
    Call {
        /// The path of the object.
        path: String,
        /// The failure of the call.
        error: CallError,
    },
    /// The server rejected the object.
    #[error("{path}: the server responded {code}: {message}")]
    Rejected {
        /// The path of the object.
        path: String,
        /// The status code of the response.
        code: StatusCode,
        /// The message of the Status in the response.
        message: String,
    },
}

/// The result of a health check of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    /// The server does not answer.
    Gone,
    /// The server answers that it is not ready.
    NotReady,
    /// The server is ready.
    Ready,
}

/// The API of a server, with the credentials of a user.
pub(super) struct Api {
    client: Client,
    server: String,
}

impl Api {
    /// Creates the client; does not connect.
    pub(super) fn new(server: &str, ca: &Path, credentials: &Credentials) -> Result<Self, SettingsError> {
        let ca = std::fs::read(ca).map_err(|error| SettingsError(format!("{}: {error}", ca.display())))?;
        let pair = &credentials.certificate;
        let settings = Settings {
            trust: Trust::from_pem(&ca)?,
            identity: Some(Identity::from_pem(pair.cert.as_bytes(), pair.key.as_bytes())?),
            proxy: Proxy::None,
            ..Settings::default()
        };
        Ok(Api { client: Client::new(&settings)?, server: server.to_owned() })
    }

    /// Checks whether the server is ready, or answers at all.
    pub(super) async fn health(&self) -> Health {
        let url = format!("{}/readyz", self.server);
        let Ok(request) = request(Method::GET, &url, Bytes::new()) else { return Health::Gone };
        match self.client.send(request, HEALTH_LIMITS).await {
            Ok(response) if response.status.is_success() => Health::Ready,
            Ok(_) => Health::NotReady,
            Err(_) => Health::Gone,
        }
    }

    /// Creates or updates an object by server-side apply. Waits for a path that does not exist yet.
    pub(super) async fn apply(&self, path: &str, object: &Value) -> Result<(), ApiError> {
        let begin = tokio::time::Instant::now();
        loop {
            match self.apply_once(path, object).await {
                Err(ApiError::Rejected { code: StatusCode::NOT_FOUND, .. })
                    if begin.elapsed() < APPEARANCE_TIMEOUT => {}
                result => return result,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn apply_once(&self, path: &str, object: &Value) -> Result<(), ApiError> {
        let failed = |error| ApiError::Call { path: path.to_owned(), error };
        let url = format!("{}{path}?fieldManager=apid-up&force=true", self.server);
        let body = Bytes::from(object.to_string());
        let mut request = request(Method::PATCH, &url, body).map_err(failed)?;
        let apply = HeaderValue::from_static("application/apply-patch+yaml");
        request.headers_mut().insert(header::CONTENT_TYPE, apply);
        let response = self.client.send(request, LIMITS).await.map_err(failed)?;
        if response.status.is_success() {
            return Ok(());
        }
        let status: Option<Value> = serde_json::from_slice(&response.body).ok();
        let message = status.and_then(|status| Some(status.get("message")?.as_str()?.to_owned()));
        let (path, code) = (path.to_owned(), response.status);
        Err(ApiError::Rejected { path, code, message: message.unwrap_or_default() })
    }
}
