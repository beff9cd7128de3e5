//! A private API server for Rust tests.
//!
//! ```no_run
//! let server = testenv::Server::start()?;
//! println!("{}", server.kubeconfig().display());
//! # Ok::<(), testenv::StartError>(())
//! ```
//!
//! # Contract
//!
//! [`Server::start`] returns when the server is ready. The server has the names preset `kubernetes`, an empty
//! store in a temporary folder and a free port. The server ends when the value is dropped, and when the test
//! process ends in any way. The program is `$APID`, or `apid` in the folder of the test program or in the
//! parent of this folder, or `apid` on PATH.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Maximum number of bytes of the log that are kept in memory; older bytes are dropped.
const LOG_LIMIT: usize = 256 * 1024;
/// Interval of the checks whether a stopped server has ended, and their number. After the last check the
/// server is killed.
const STOP_POLL: (Duration, u32) = (Duration::from_millis(2), 5_000);

/// The error of a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program cannot be started.
    #[error("{}: {error}; set APID to the path of apid", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The server ended before it printed a line.
    #[error("apid ended before it was ready:\n{log}")]
    Ended {
        /// The log of the server.
        log: String,
    },
    /// The first line that the server printed is not the expected JSON object.
    #[error("apid printed `{line}`: {error}")]
    Line {
        /// The line.
        line: String,
        /// The error of the JSON decoder.
        error: serde_json::Error,
    },
}

/// The JSON object that the server prints in one line when it is ready.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadyLine {
    kubeconfig: PathBuf,
    server: String,
    token: String,
    certificate_authority: PathBuf,
    directory: PathBuf,
}

/// A running control plane. `Debug` shows neither the token nor the log.
pub struct Server {
    process: Child,
    /// Standard input of the server. The server ends when this pipe closes.
    stdin: Option<ChildStdin>,
    log: Arc<Mutex<Vec<u8>>>,
    ready: ReadyLine,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.ready.server).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start() -> Result<Self, StartError> {
        Self::start_with_flags::<&str>(&[])
    }

    /// Starts a server with further flags of apid.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start_with_flags<S: AsRef<str>>(flags: &[S]) -> Result<Self, StartError> {
        let program = program();
        let result = Command::new(&program)
            .arg("test-server")
            .args(flags.iter().map(AsRef::as_ref))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = result.map_err(|error| StartError::Program { program, error })?;
        let stdin = process.stdin.take();
        let log = collect_log(process.stderr.take());
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match serde_json::from_str(&line) {
            Ok(ready) => Ok(Server { process, stdin, log, ready }),
            Err(error) => {
                drop(stdin);
                let _ = process.kill();
                let _ = process.wait();
                let text = String::from_utf8_lossy(&log.lock()).into_owned();
                Err(if line.is_empty() {
                    StartError::Ended { log: text }
                } else {
                    StartError::Line { line, error }
                })
            }
        }
    }

    /// The kubeconfig of the user `admin` in group `system:masters`.
    pub fn kubeconfig(&self) -> &Path {
        &self.ready.kubeconfig
    }

    /// The URL of the server.
    pub fn url(&self) -> &str {
        &self.ready.server
    }

    /// The bearer token of the user `admin`.
    pub fn token(&self) -> &str {
        &self.ready.token
    }

    /// The CA bundle of the server.
    pub fn certificate_authority(&self) -> &Path {
        &self.ready.certificate_authority
    }

    /// The folder with all files of the server.
    pub fn directory(&self) -> &Path {
        &self.ready.directory
    }

    /// The process id of apid.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The log of the server so far, at most its last 256 KiB.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock()).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let (interval, checks) = STOP_POLL;
        for _ in 0..checks {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(interval);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads a log to its end in a new thread and keeps its last [`LOG_LIMIT`] bytes.
fn collect_log(stream: Option<std::process::ChildStderr>) -> Arc<Mutex<Vec<u8>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    if let Some(mut stream) = stream {
        let collected = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                let mut collected = collected.lock();
                collected.extend_from_slice(chunk.get(..length).unwrap_or_default());
                let excess = collected.len().saturating_sub(LOG_LIMIT);
                collected.drain(..excess);
            }
        });
    }
    log
}

/// Returns the path of apid.
///
/// The path is `$APID`, a file in the folder of the test program or in its parent folder, or the name `apid`, which
/// is searched on PATH.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("APID") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap_or_default();
    let candidates = test.ancestors().skip(1).take(2).map(|folder| folder.join("apid"));
    candidates.into_iter().find(|candidate| candidate.is_file()).unwrap_or_else(|| "apid".into())
}
