//! `apid store backup --server`: a backup of a running server, and texts of a running server.
//!
//! # Contract
//!
//! The file gets its name only after all checksums have been compared. A backup that breaks off leaves no file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use serving::client::{CallError, Client, Identity, Limits, Settings, SettingsError, Trust, request};
use storage::engine::fjall::offline::{ArchiveFile, BackupSummary};

/// The path of the backup below the URL of the server.
const BACKUP_PATH: &str = "/store/backup";
/// Time limit for the head of the response, and for each part of its body.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a text.
const MAX_TEXT: usize = 256 << 20;
/// Maximum size of the message of a rejection.
const MAX_MESSAGE: usize = 4096;

/// A server and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    /// The URL of the server.
    pub(crate) server: String,
    /// The CA bundle of its certificate; None: that of the system.
    pub(crate) authority: Option<PathBuf>,
    /// A file with a bearer token.
    pub(crate) token: Option<PathBuf>,
    /// A client certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason why a backup failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DownloadError {
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
    /// The backup broke off.
    #[error("the backup broke off: {0}; try again, and see the log of the server")]
    BrokenOff(String),
    /// The received file is incomplete or damaged.
    #[error("the received backup is not usable: {0}")]
    Damaged(#[from] storage::Error),
}

impl Source {
    /// Receives a backup into a new file.
    pub(super) fn download(&self, to: &Path) -> Result<BackupSummary, DownloadError> {
        let file_error = |error| DownloadError::File { path: to.to_owned(), error };
        let client = Client::new(&self.settings()?)?;
        let runtime = runtime()?;
        let mut file = ArchiveFile::create(to).map_err(file_error)?;
        let received = runtime
            .block_on(self.receive(&client, &mut file, to))
            .and_then(|()| file.verify().map_err(DownloadError::Damaged));
        match received {
            Ok(summary) => file.finish().map(|()| summary).map_err(file_error),
            Err(error) => {
                file.discard();
                Err(error)
            }
        }
    }

    async fn receive(&self, client: &Client, file: &mut ArchiveFile, to: &Path) -> Result<(), DownloadError> {
        let url = format!("{}{BACKUP_PATH}", self.server.trim_end_matches('/'));
        let mut request = request(Method::POST, &url, Bytes::new())?;
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/octet-stream, */*"));
        headers.extend(self.authorization()?.map(|value| (header::AUTHORIZATION, value)));
        let response = client.send_for_stream(request, TIMEOUT).await?;
        let (code, mut body) = (response.status(), response.into_body());
        let mut message = Vec::new();
        loop {
            let frame = tokio::time::timeout(TIMEOUT, body.frame()).await;
            let frame = frame.map_err(|_| DownloadError::BrokenOff(format!("no data within {TIMEOUT:?}")))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| DownloadError::BrokenOff(error.to_string()))?;
            let Some(data) = frame.data_ref() else { continue };
            if code == StatusCode::OK {
                file.write(data).map_err(|error| DownloadError::File { path: to.to_owned(), error })?;
            } else if message.len() < MAX_MESSAGE {
                message.extend_from_slice(data);
            }
        }
        match code {
            StatusCode::OK => Ok(()),
            code => {
                let message = String::from_utf8_lossy(&message).trim().to_owned();
                Err(DownloadError::Rejected { code, message: status_message(&message).unwrap_or(message) })
            }
        }
    }

    /// Reads the text at the URL of the server.
    pub(crate) fn text(&self) -> Result<String, DownloadError> {
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
                Err(DownloadError::Rejected { code, message: status_message(&text).unwrap_or(message) })
            }
        }
    }

    /// The header with the token, if there is one.
    fn authorization(&self) -> Result<Option<HeaderValue>, DownloadError> {
        let Some(path) = &self.token else { return Ok(None) };
        let token = String::from_utf8_lossy(&read(path)?).trim().to_owned();
        let value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| SettingsError(format!("`{}` contains no token", path.display())))?;
        Ok(Some(value))
    }

    fn settings(&self) -> Result<Settings, DownloadError> {
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
fn runtime() -> Result<tokio::runtime::Runtime, DownloadError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DownloadError::Runtime)
}

/// The message of a Status.
fn status_message(body: &str) -> Option<String> {
    let status: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(status.get("message")?.as_str()?.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, DownloadError> {
    std::fs::read(path).map_err(|error| DownloadError::File { path: path.to_owned(), error })
}
