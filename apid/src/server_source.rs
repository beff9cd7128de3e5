//! A running server as a source of texts and backups for commands.
//!
//! # Contract
//!
//! Commands name the server and the credentials with flags. A rejection shows the message of its Status.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serving::client::{CallError, Client, Identity, Limits, Settings, SettingsError, Trust, request};

/// Time limit for the head of the response, and for each part of its body.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a text.
const MAX_TEXT: usize = 256 << 20;
/// Maximum size of the message of a rejection.
pub(crate) const MAX_MESSAGE: usize = 4096;

/// A server and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerSource {
    /// The URL of the server.
    pub(crate) server: String,
    /// The CA bundle of its certificate; None: that of the system.
    pub(crate) authority: Option<PathBuf>,
    /// A file with a bearer token.
    pub(crate) token: Option<PathBuf>,
    /// A client certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// A file cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The credentials or the CA bundle are invalid.
    #[error("the client settings are invalid: {0}")]
    Settings(#[from] SettingsError),
    /// The runtime of the client cannot start.
    #[error("the client cannot start: {0}")]
    Runtime(io::Error),
    /// The server cannot be reached.
    #[error("{0}")]
    Call(#[from] CallError),
    /// The server rejected the request.
    #[error("the server responded {code}: {message}")]
    Rejected {
        /// The HTTP code.
        code: StatusCode,
        /// The beginning of the response body.
        message: String,
    },
}

impl ServerSource {
    /// Reads the text at the URL of the server.
    pub(crate) fn text(&self) -> Result<String, SourceError> {
        let client = Client::new(&self.settings()?)?;
        let mut request = request(Method::GET, &self.server, Bytes::new())?;
        request.headers_mut().extend(self.authorization()?.map(|value| (header::AUTHORIZATION, value)));
        let response =
            runtime()?.block_on(client.send(request, Limits { within: TIMEOUT, bytes: MAX_TEXT }))?;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        match response.status {
            StatusCode::OK => Ok(text),
            code => {
                let message = text.chars().take(MAX_MESSAGE).collect::<String>().trim().to_owned();
                Err(SourceError::rejected(code, &text, message))
            }
        }
    }

    /// The header with the token, if there is one.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, SourceError> {
        let Some(path) = &self.token else { return Ok(None) };
        let token = String::from_utf8_lossy(&read(path)?).trim().to_owned();
        let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            SettingsError(format!(
                "`{}` does not contain a valid bearer token; write one token on one line",
                path.display()
            ))
        })?;
        Ok(Some(value))
    }

    pub(crate) fn settings(&self) -> Result<Settings, SourceError> {
        let trust = match &self.authority {
            Some(path) => Trust::from_pem(&read(path)?)?,
            None => Trust::System,
        };
        let identity = match &self.certificate {
            Some((certificate, key)) => Some(Identity::from_pem(&read(certificate)?, &read(key)?)?),
            None => None,
        };
        Ok(Settings { trust, identity, ..Settings::default() })
    }
}

/// The runtime of the client.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, SourceError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SourceError::Runtime)
}

impl SourceError {
    /// A rejection with the message of the Status in a body, or with another text.
    pub(crate) fn rejected(code: StatusCode, body: &str, text: String) -> Self {
        SourceError::Rejected { code, message: status_message(body).unwrap_or(text) }
    }
}

/// The message of a Status.
fn status_message(body: &str) -> Option<String> {
    let status: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(status.get("message")?.as_str()?.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    std::fs::read(path).map_err(|error| SourceError::File { path: path.to_owned(), error })
}
