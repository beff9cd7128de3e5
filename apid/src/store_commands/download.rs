//! `apid store backup --server`: a backup of a running server.
//!
//! # Contract
//!
//! The file gets its name only after all checksums have been compared. A backup that fails or is interrupted by a
//! signal leaves no file. The next backup into the same file replaces what a killed process has left. A server cannot
//! fill the disk: the download ends at the size of `--max-size`.

use std::path::Path;

use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use serving::client::Remote;
use storage::engine::fjall::offline::{ArchiveError, ArchiveFile, ArchiveProblem, BackupSummary};
use tokio::signal::unix::{SignalKind, signal};

use crate::server_source::{MAX_MESSAGE, ServerSource, SourceError, TIMEOUT, runtime};

/// The path of the backup below the URL of the server.
const BACKUP_PATH: &str = "/store/backup";

/// The reason why a download failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    /// The request failed.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The file cannot be written.
    #[error("{0}")]
    File(#[from] ArchiveError),
    /// The server or the connection interrupted the backup; contains the reason.
    #[error("the backup was interrupted: {0}; try again, and see the log of the server")]
    Interrupted(String),
    /// The server sends more than the maximum size in bytes.
    #[error("the backup is larger than {0} bytes; set `--max-size` to more")]
    TooLarge(u64),
    /// The received file is incomplete or damaged.
    #[error("the received backup {0}")]
    Damaged(ArchiveProblem),
}

impl ServerSource {
    /// Receives a backup of the server into the new file `target`.
    ///
    /// # Errors
    ///
    /// See [`DownloadError`]. `max_bytes` is the maximum size of the file.
    pub(super) fn download(&self, target: &Path, max_bytes: u64) -> Result<BackupSummary, DownloadError> {
        let remote = self.remote()?;
        let runtime = runtime()?;
        let mut file = ArchiveFile::create(target)?;
        let receive = async {
            tokio::select! {
                result = receive(&remote, &mut file, max_bytes) => result,
                signal = wait_for_signal() => Err(DownloadError::Interrupted(signal)),
            }
        };
        let result = runtime.block_on(receive);
        let verify = |()| file.verify().map_err(|error| DownloadError::Damaged(error.problem));
        let result = result.and_then(verify);
        match result {
            Ok(summary) => Ok(file.finish().map(|()| summary)?),
            Err(error) => {
                file.discard();
                Err(error)
            }
        }
    }
}

/// Receives the body of the response into the file.
async fn receive(remote: &Remote, file: &mut ArchiveFile, max_bytes: u64) -> Result<(), DownloadError> {
    let accept = HeaderValue::from_static("application/octet-stream, */*");
    let response = remote.send_for_stream(Method::POST, BACKUP_PATH, accept, TIMEOUT).await;
    let response = response.map_err(SourceError::from)?;
    let (code, mut body) = (response.status(), response.into_body());
    let mut message = Vec::new();
    let mut received_bytes: u64 = 0;
    while code == StatusCode::OK || message.len() < MAX_MESSAGE {
        let frame = tokio::time::timeout(TIMEOUT, body.frame()).await;
        let frame = frame.map_err(|_| DownloadError::Interrupted(format!("no data within {TIMEOUT:?}")))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| DownloadError::Interrupted(error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        if code == StatusCode::OK {
            received_bytes = received_bytes.saturating_add(data.len() as u64);
            if received_bytes > max_bytes {
                return Err(DownloadError::TooLarge(max_bytes));
            }
            file.write(data)?;
        } else {
            message.extend_from_slice(data.get(..MAX_MESSAGE).unwrap_or(data));
        }
    }
    match code {
        StatusCode::OK => Ok(()),
        code => {
            let message = String::from_utf8_lossy(&message).trim().to_owned();
            Err(SourceError::rejected(code, &message, message.clone()).into())
        }
    }
}

/// Waits for SIGINT or SIGTERM. Returns the name of the signal.
async fn wait_for_signal() -> String {
    let wait = async |kind: SignalKind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => "SIGINT".to_owned(),
        () = wait(SignalKind::terminate()) => "SIGTERM".to_owned(),
    }
}
