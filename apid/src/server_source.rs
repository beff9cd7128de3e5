//! A running API server as a source of texts and backups for the commands of apid.
//!
//! # Contract
//!
//! Flags of the commands name the server and the credentials. The error of a rejected request has the message
//! of the Status in the response.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::SystemClock;
use apimachinery::names::{Names, Preset};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serving::client::{CallError, Client, Identity, Limits, Remote, Settings, SettingsError, Trust, request};
use serving::client_config::{ClientConfig, Cluster, Target, User};

/// Timeout of a complete text response. For a backup, the timeout of the head of the response, and of each
/// part of the body.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size in bytes of a text response.
const MAX_TEXT: usize = 256 << 20;
/// Maximum length of the message in the error of a rejected request, in characters of a text response. A
/// download ignores further parts of the body after this number of bytes.
pub(crate) const MAX_MESSAGE: usize = 4096;

/// A server and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerSource {
    /// The URL of the server; empty for that of the kubeconfig.
    pub(crate) server: String,
    /// A kubeconfig with the server and the credentials, and its context; None for the other fields.
    pub(crate) kubeconfig: Option<(PathBuf, Option<String>)>,
    /// The CA bundle that verifies the server; None means the CAs of the system.
    pub(crate) authority: Option<PathBuf>,
    /// A file with a bearer token.
    pub(crate) token: Option<PathBuf>,
    /// The files of a client certificate and of its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason why a request to the server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// A file cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    File {
        /// The file that cannot be read or written.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The kubeconfig, or a file that it names, is invalid. Contains all errors.
    #[error("{0}")]
    Kubeconfig(String),
    /// The credentials or the CA bundle are invalid.
    #[error("the client settings are invalid: {0}")]
    Settings(#[from] SettingsError),
    /// The runtime of the client cannot start.
    #[error("the client cannot start: {0}")]
    Runtime(io::Error),
    /// The server cannot be reached.
    #[error("{0}")]
    Call(#[source] CallError),
    /// The certificate of the server is from a CA that the client does not know.
    #[error("{0}; set `--certificate-authority` to the CA bundle of the server")]
    UnknownAuthority(#[source] CallError),
    /// The server rejected the request.
    #[error("the server responded {code}: {message}")]
    Rejected {
        /// The HTTP status code of the response.
        code: StatusCode,
        /// The message of the Status in the response, or the beginning of the response body.
        message: String,
    },
}

impl ServerSource {
    /// Sends a GET request to the URL and returns the text of the response.
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

    /// Returns the server with its credentials, without a connection.
    pub(crate) fn remote(&self) -> Result<Remote, SourceError> {
        let names = Names::new(Preset::Kubernetes, "").map_err(|error| SettingsError(error.to_string()))?;
        let target = match &self.kubeconfig {
            Some((path, context)) => ClientConfig::load(path)
                .and_then(|config| config.target(context.as_deref(), &names))
                .map_err(|error| SourceError::Kubeconfig(error.to_string()))?,
            None => self.target(),
        };
        let agent = concat!("apid/", env!("CARGO_PKG_VERSION"));
        Remote::new(target, agent, &names, Arc::new(SystemClock::new()))
            .map_err(|errors| SourceError::Kubeconfig(errors.join("; ")))
    }

    /// Returns the flags in the form of a kubeconfig.
    fn target(&self) -> Target {
        let cluster = Cluster {
            server: self.server.clone(),
            certificate_authority: self.authority.clone(),
            ..Cluster::default()
        };
        let (client_certificate, client_key) = self.certificate.clone().unzip();
        let user = User { client_certificate, client_key, token_file: self.token.clone(), ..User::default() };
        Target { cluster, user, ..Target::default() }
    }

    /// Returns the value of the header `Authorization` with the token in the file, if the flags name a file.
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

    /// Reads the CA bundle and the client certificate from their files.
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

/// Creates the single-threaded runtime in which the client runs.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, SourceError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(SourceError::Runtime)
}

impl From<CallError> for SourceError {
    fn from(error: CallError) -> Self {
        match &error {
            // The TLS library reports an unknown CA only by the text of its error.
            CallError::Unreachable(text) if text.contains("UnknownIssuer") => {
                SourceError::UnknownAuthority(error)
            }
            _ => SourceError::Call(error),
        }
    }
}

impl SourceError {
    /// Creates a rejection with the message of the Status in `body`, or with `text` if `body` is not a
    /// Status.
    pub(crate) fn rejected(code: StatusCode, body: &str, text: String) -> Self {
        SourceError::Rejected { code, message: status_message(body).unwrap_or(text) }
    }
}

/// Returns the message of a Status in JSON.
fn status_message(body: &str) -> Option<String> {
    let status: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(status.get("message")?.as_str()?.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    std::fs::read(path).map_err(|error| SourceError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_unknown_authority_names_the_flag() {
        let text = |problem: &str| SourceError::from(CallError::Unreachable(problem.to_owned())).to_string();
        let unknown = text("invalid peer certificate: UnknownIssuer");
        assert!(
            unknown.ends_with("set `--certificate-authority` to the CA bundle of the server"),
            "{unknown}"
        );
        assert_eq!(text("refused"), "cannot connect: refused");
    }
}
