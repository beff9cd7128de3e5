//! Credential plugins: programs that a client configuration names and that print credentials.
//!
//! # Contract
//!
//! [`Plugin::credentials`] runs the program when no valid credentials are cached, once for all concurrent
//! callers. The plugin keeps the credentials until their expiration time, or until [`Plugin::reject`] reports
//! that the server rejected them. The cache does not outlive the process. The program gets the environment of
//! this process, the variables of the configuration, and an ExecCredential in the variable that the names
//! preset calls `exec_info_env`. Standard input is passed only if the interactive mode and the caller allow
//! it; standard error is inherited. The program is killed when the run takes too long, when the output is too
//! large, or when no caller waits. Without standard input the program has its own process group, and the
//! children in this group are killed with it.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): the output of a plugin appears in no error, no log and no `Debug`.
//!
//! # Reference
//!
//! `k8s.io/client-go/plugin/pkg/client/auth/exec`; requirements A-EXEC. In client-go a plugin may run forever;
//! here [`Plugin::new`] sets a time limit.

mod process;
mod protocol;

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use jiff::Timestamp;
use tokio::sync::Mutex;

use crate::client_config::{Exec, InteractiveMode, Secret};
use crate::trust::Identity;

pub use protocol::ClusterInfo;

/// Error of a credential plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The program does not exist.
    #[error("the credential plugin `{command}` is not installed{}", hint_suffix(.hint))]
    NotInstalled {
        /// Command of the configuration.
        command: String,
        /// Installation hint of the configuration; may be empty.
        hint: String,
    },
    /// The plugin requires standard input, and there is no terminal.
    #[error(
        "the credential plugin `{0}` must have standard input (interactiveMode Always), and there is no terminal"
    )]
    NoInput(String),
    /// The program could not be started, failed, took too long, printed too much, or printed invalid output.
    #[error("the credential plugin `{command}` {problem}")]
    Failed {
        /// Command of the configuration.
        command: String,
        /// Description of the failure.
        problem: String,
    },
}

fn hint_suffix(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(": {}", hint.trim()) }
}

/// Credentials of a plugin. At least one of token and identity is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Bearer token.
    pub token: Option<Secret>,
    /// Client certificate.
    pub identity: Option<Identity>,
    /// Expiration time; None if the credentials are valid until the server rejects them.
    pub expires: Option<Timestamp>,
}

/// Standard input of this process if it is a terminal; None if prompts are impossible.
pub fn terminal() -> Option<File> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    stdin.as_fd().try_clone_to_owned().ok().map(File::from)
}

/// Configured plugin with its cached credentials.
pub struct Plugin {
    exec: Exec,
    /// Path of the program, if the command contains a slash; otherwise the command is searched on `PATH`.
    path: Option<PathBuf>,
    /// Name of the environment variable with the ExecCredential.
    info_env: &'static str,
    cluster: Option<ClusterInfo>,
    input: Option<File>,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    cached: Mutex<Option<Arc<Credentials>>>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("command", &self.exec.command).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Creates a plugin.
    ///
    /// `cluster` is passed to the plugin if its configuration requires that. `input` is standard input if it
    /// is a terminal ([`terminal`]). `timeout` is the time limit of one run.
    ///
    /// # Errors
    ///
    /// All errors in the configuration.
    pub fn new(
        exec: &Exec,
        names: &Names,
        cluster: ClusterInfo,
        input: Option<File>,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Vec<String>> {
        let errors = exec.errors(names);
        if !errors.is_empty() {
            return Err(errors);
        }
        let path = exec.command.contains('/').then(|| exec.dir.join(&exec.command));
        Ok(Plugin {
            exec: exec.clone(),
            path,
            info_env: names.exec_info_env,
            cluster: exec.provide_cluster_info.then_some(cluster),
            input,
            timeout,
            clock,
            cached: Mutex::new(None),
        })
    }

    /// Returns the cached credentials, or runs the program.
    ///
    /// # Errors
    ///
    /// See [`ExecError`]. Errors are not cached: the next caller runs the program again.
    pub async fn credentials(&self) -> Result<Arc<Credentials>, ExecError> {
        let mut cached = self.cached.lock().await;
        if let Some(credentials) = cached.as_ref()
            && credentials.expires.is_none_or(|end| self.clock.now() < end)
        {
            return Ok(Arc::clone(credentials));
        }
        *cached = None;
        let fresh = Arc::new(self.run().await?);
        *cached = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Drops credentials that the server rejected; newer cached credentials stay.
    pub async fn reject(&self, rejected: &Arc<Credentials>) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|credentials| Arc::ptr_eq(credentials, rejected)) {
            *cached = None;
        }
    }

    async fn run(&self) -> Result<Credentials, ExecError> {
        let Exec { command, args, env, api_version, install_hint, .. } = &self.exec;
        let input = match (self.exec.mode(), &self.input) {
            (InteractiveMode::Never, _) | (InteractiveMode::IfAvailable, None) => None,
            (InteractiveMode::IfAvailable | InteractiveMode::Always, Some(input)) => Some(input),
            (InteractiveMode::Always, None) => return Err(ExecError::NoInput(command.clone())),
        };
        let info = protocol::build_input(api_version, input.is_some(), self.cluster.as_ref());
        let failure = |problem: String| ExecError::Failed { command: command.clone(), problem };
        let program = match &self.path {
            Some(path) => path.exists().then(|| path.clone()),
            None => process::find_on_path(command),
        };
        let program = program.ok_or_else(|| ExecError::NotInstalled {
            command: command.clone(),
            hint: install_hint.clone(),
        })?;
        let mut program = tokio::process::Command::new(program);
        program.args(args);
        for (name, value) in env {
            program.env(name, std::ffi::OsStr::from_bytes(value.bytes()));
        }
        program.env(self.info_env, info);
        let run = process::run(program, input, self.timeout).await;
        let stdout = run.map_err(|error| failure(error.to_string()))?;
        protocol::parse_output(&stdout, api_version).map_err(|error| failure(format!("printed {error}")))
    }
}

#[cfg(test)]
mod tests;
