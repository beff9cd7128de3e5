//! A control plane to measure: started for the bench, or one that runs already.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::{Error, Target};
use crate::process;

/// The token of the user of a started plane who may do everything.
const TOKEN: &str = "bench-token";

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where requests go, and whose CPU time counts.
pub struct Plane {
    /// The server.
    pub target: Target,
    /// apid first.
    pub pids: Vec<u32>,
    child: Option<Child>,
    /// Removed at the end, with the data.
    _dir: Option<TempDir>,
}

impl Plane {
    /// A plane that somebody else started.
    pub fn running(target: Target, pids: Vec<u32>) -> Self {
        Plane { target, pids, child: None, _dir: None }
    }

    /// Starts the programs that stand in a folder, on an empty store.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn start(programs: &Path, flags: &[&str]) -> Result<Plane, Error> {
        let begun = Instant::now();
        let dir = tempfile::Builder::new().prefix("bench-").tempdir()?;
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, format!("{TOKEN},bench,bench,system:masters\n"))?;
        let data = dir.path().join("data");
        let child = Command::new(programs.join("apid"))
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
                _ => pause(begun).await?,
            }
        };
        let target = Target::new(&format!("https://127.0.0.1:{port}"), TOKEN)?;
        loop {
            if let Ok(mut connection) = target.connect().await
                && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/readyz", Bytes::new()).await
            {
                break;
            }
            pause(begun).await?;
        }
        let apid = child.id().ok_or("apid ended at once")?;
        let pids = std::iter::once(apid).chain(process::children(apid)).collect();
        Ok(Plane { target, pids, child: Some(child), _dir: Some(dir) })
    }

    /// Whether it was started for the bench and goes with it.
    pub fn is_own(&self) -> bool {
        self.child.is_some()
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// It cannot be ended.
    pub async fn stop(mut self) -> Result<(), Error> {
        if let Some(child) = &mut self.child {
            child.kill().await?;
        }
        Ok(())
    }
}

/// The folder of this program, where the others are built to.
///
/// # Errors
///
/// The system does not say.
pub fn programs() -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?;
    Ok(program.parent().ok_or("this program has no folder")?.to_owned())
}

/// Waits a moment; gives up when the start takes too long.
async fn pause(begun: Instant) -> Result<(), Error> {
    if begun.elapsed() > PATIENCE {
        return Err("not ready within 20 seconds".into());
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}
