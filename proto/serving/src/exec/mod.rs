//! Credential plugins: programs that a client configuration names and that print credentials.
//!
//! # Contract
//!
//! [`Plugin::credentials`] runs the program when no valid credentials are cached, once for all concurrent
//! callers. The plugin keeps the credentials until their expiration time, or until [`Plugin::reject`] reports
//! that the server rejected them. The cache does not outlive the process. The program gets the environment of
//! this process, the variables of the configuration, and an ExecCredential in the variable that the names
//! preset calls `exec_info_env`. Standard input is passed only if the interactive mode and the caller allow
//! it; standard error is inherited. The program and all its children are killed when the run takes too long
//! or when no caller waits.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): the output of a plugin appears in no error, no log and no `Debug`.
//!
//! # Reference
//!
//! `k8s.io/client-go/plugin/pkg/client/auth/exec`; requirements A-EXEC. In the reference a plugin may run
//! forever; here [`Plugin::new`] sets a time limit.

mod process;
mod protocol;

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use jiff::Timestamp;
use tokio::sync::Mutex;

use crate::client::Identity;
use crate::client_config::{Exec, Secret};

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
    /// The program could not be started or failed.
    #[error("the credential plugin `{command}` {problem}")]
    Failed {
        /// Command of the configuration.
        command: String,
        /// Description of the failure.
        problem: String,
    },
    /// The output of the program is invalid.
    #[error("the credential plugin `{command}` printed {problem}")]
    Output {
        /// Command of the configuration.
        command: String,
        /// Description of the problem.
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
    /// Expiration time; None: valid until the server rejects them.
    pub expires: Option<Timestamp>,
}

/// Whether a plugin gets standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

impl InteractiveMode {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "Never" => Some(InteractiveMode::Never),
            "IfAvailable" => Some(InteractiveMode::IfAvailable),
            "Always" => Some(InteractiveMode::Always),
            _ => None,
        }
    }
}

/// Versions of the protocol, newest first.
fn versions(names: &Names) -> [String; 2] {
    let group = names.group("client.authentication");
    [format!("{group}/v1"), format!("{group}/v1beta1")]
}

/// Returns all mistakes in the configuration of a plugin.
pub fn check(plugin: &Exec, names: &Names) -> Vec<String> {
    let mut mistakes = Vec::new();
    if plugin.command.is_empty() {
        mistakes.push("command is missing".to_owned());
    }
    let [v1, v1beta1] = versions(names);
    match plugin.api_version.as_str() {
        "" => mistakes.push(format!("apiVersion is missing: `{v1}` or `{v1beta1}`")),
        known if known == v1 || known == v1beta1 => {}
        other => mistakes.push(format!("apiVersion `{other}` is not known: `{v1}` or `{v1beta1}`")),
    }
    match plugin.interactive_mode.as_str() {
        "" if plugin.api_version == v1 => {
            mistakes.push("interactiveMode is missing: `Never`, `IfAvailable` or `Always`".to_owned());
        }
        "" => {}
        word if InteractiveMode::parse(word).is_some() => {}
        other => {
            mistakes
                .push(format!("interactiveMode `{other}` is not known: `Never`, `IfAvailable` or `Always`"));
        }
    }
    mistakes
}

/// Standard input of this process if it is a terminal; None: prompts are impossible.
pub fn terminal() -> Option<File> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    stdin.as_fd().try_clone_to_owned().ok().map(File::from)
}

/// Configured plugin with its cached credentials.
pub struct Plugin {
    command: String,
    /// Path of the program, if the command is a path.
    path: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(String, Secret)>,
    api_version: String,
    hint: String,
    interactive: InteractiveMode,
    /// Environment variable for the ExecCredential.
    info_env: &'static str,
    cluster: Option<ClusterInfo>,
    input: Option<File>,
    within: Duration,
    clock: Arc<dyn Clock>,
    cached: Mutex<Option<Arc<Credentials>>>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("command", &self.command).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Creates a plugin.
    ///
    /// `cluster` is passed to the plugin if its configuration requires that. `input` is standard input if it
    /// is a terminal ([`terminal`]). `within` is the time limit of one run.
    ///
    /// # Errors
    ///
    /// The mistakes that [`check`] finds.
    pub fn new(
        plugin: &Exec,
        names: &Names,
        cluster: ClusterInfo,
        input: Option<File>,
        within: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Vec<String>> {
        let mistakes = check(plugin, names);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let path = plugin.command.contains('/').then(|| plugin.dir.join(&plugin.command));
        Ok(Plugin {
            command: plugin.command.clone(),
            path,
            args: plugin.args.clone(),
            env: plugin.env.clone(),
            api_version: plugin.api_version.clone(),
            hint: plugin.install_hint.clone(),
            interactive: InteractiveMode::parse(&plugin.interactive_mode)
                .unwrap_or(InteractiveMode::IfAvailable),
            info_env: names.exec_info_env,
            cluster: plugin.provide_cluster_info.then_some(cluster),
            input,
            within,
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
        if let Some(held) = cached.as_ref()
            && held.expires.is_none_or(|end| self.clock.now() < end)
        {
            return Ok(Arc::clone(held));
        }
        *cached = None;
        let fresh = Arc::new(self.run().await?);
        *cached = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Drops credentials that the server rejected; newer cached credentials stay.
    pub async fn reject(&self, refused: &Arc<Credentials>) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|held| Arc::ptr_eq(held, refused)) {
            *cached = None;
        }
    }

    async fn run(&self) -> Result<Credentials, ExecError> {
        let input = match (self.interactive, &self.input) {
            (InteractiveMode::Never, _) | (InteractiveMode::IfAvailable, None) => None,
            (InteractiveMode::IfAvailable | InteractiveMode::Always, Some(input)) => Some(input),
            (InteractiveMode::Always, None) => return Err(ExecError::NoInput(self.command.clone())),
        };
        let info = protocol::input(&self.api_version, input.is_some(), self.cluster.as_ref());
        let failed = |problem: String| ExecError::Failed { command: self.command.clone(), problem };
        let found = match &self.path {
            Some(path) => path.exists().then(|| path.clone()),
            None => process::find_on_path(&self.command),
        };
        let program = found.ok_or_else(|| ExecError::NotInstalled {
            command: self.command.clone(),
            hint: self.hint.clone(),
        })?;
        let mut command = tokio::process::Command::new(program);
        command.args(&self.args);
        for (name, value) in &self.env {
            let value = std::os::unix::ffi::OsStrExt::from_bytes(value.bytes());
            command.env(name, std::ffi::OsStr::to_os_string(value));
        }
        command.env(self.info_env, info);
        let printed = process::run(command, input, self.within).await.map_err(failed)?;
        protocol::output(&printed, &self.api_version)
            .map_err(|problem| ExecError::Output { command: self.command.clone(), problem })
    }
}

#[cfg(test)]
mod tests;
