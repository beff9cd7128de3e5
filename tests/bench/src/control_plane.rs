//! A control plane under measurement: started by the benchmark, or already running.

use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::{Error, Target};
use crate::process;

/// Bearer token of a user with all permissions, on a control plane that the benchmark starts.
const TOKEN: &str = "bench-token";

/// Time limit for the start of a control plane.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A control plane: the address of apid, and the processes whose CPU time counts.
pub struct ControlPlane {
    /// Server.
    pub target: Target,
    /// Process ids, apid first.
    pub pids: Vec<u32>,
    child: Option<Child>,
    /// Directory of a control plane that the benchmark started, removed on drop. The store is in `data`.
    dir: Option<TempDir>,
}

impl ControlPlane {
    /// Attaches to a running control plane. `pids` are the processes whose CPU time counts, apid first.
    pub fn attach(target: Target, pids: Vec<u32>) -> Self {
        ControlPlane { target, pids, child: None, dir: None }
    }

    /// Starts apid and authd from the [directory of this program](command) on an empty store.
    ///
    /// # Errors
    ///
    /// The server does not become ready.
    pub async fn start(flags: &[&str]) -> Result<ControlPlane, Error> {
        let started = Instant::now();
        let dir = tempfile::Builder::new().prefix("bench-").tempdir()?;
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, format!("{TOKEN},bench,bench,system:masters\n"))?;
        let data = dir.path().join("data");
        let child = command("apid")?
            .arg("--spawn-authd")
            .arg("--data-dir")
            .arg(&data)
            .args(["--bind-address", "127.0.0.1", "--secure-port", "0", "--authorization-mode", "Node,RBAC"])
            .arg("--token-auth-file")
            .arg(&tokens)
            .args(flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let port_file = data.join("apid.port");
        let port = loop {
            match std::fs::read_to_string(&port_file) {
                Ok(text) if !text.trim().is_empty() => break text.trim().to_owned(),
                _ => pause(started).await?,
            }
        };
        let target = Target::new(&format!("https://127.0.0.1:{port}"), TOKEN)?;
        loop {
            if let Ok(mut connection) = target.connect().await
                && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/readyz", Bytes::new()).await
            {
                break;
            }
            pause(started).await?;
        }
        let apid = child.id().ok_or("apid ended at once")?;
        let pids = std::iter::once(apid).chain(process::children(apid)).collect();
        Ok(ControlPlane { target, pids, child: Some(child), dir: Some(dir) })
    }

    /// Whether the benchmark started the control plane.
    pub fn is_started_by_benchmark(&self) -> bool {
        self.child.is_some()
    }

    /// Returns the allocated disk space of a control plane that the benchmark started, in MiB.
    ///
    /// # Errors
    ///
    /// The control plane was not started by the benchmark, or the directory cannot be read.
    pub fn disk_mib(&self) -> Result<f64, Error> {
        let dir = self.dir.as_ref().ok_or("the data directory is unknown")?;
        Ok(process::disk_mib(&dir.path().join("data"))?)
    }

    /// Stops the control plane.
    ///
    /// # Errors
    ///
    /// The process cannot be killed.
    pub async fn stop(mut self) -> Result<(), Error> {
        if let Some(child) = &mut self.child {
            child.kill().await?;
        }
        Ok(())
    }
}

/// Returns the command of a program in the directory of this program.
///
/// # Errors
///
/// The system does not report the path of this program, or the program is missing.
pub fn command(name: &str) -> Result<Command, Error> {
    let program = std::env::current_exe()?.with_file_name(name);
    if !program.is_file() {
        return Err(format!("{} is missing: build it with cargo build --release", program.display()).into());
    }
    Ok(Command::new(program))
}

/// Pauses between two checks whether a server is ready. Fails [`START_TIMEOUT`] after `started`.
async fn pause(started: Instant) -> Result<(), Error> {
    if started.elapsed() > START_TIMEOUT {
        return Err("not ready within 20 seconds".into());
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}
