//! Credential plugins: programs that a client configuration names and that print credentials.
//!
//! # Contract
//!
//! [`Plugin::credentials`] runs the program when nothing valid is cached, once for all who wait, and keeps what it
//! printed until the time that the program named, or for as long as nobody says that the server refused it
//! ([`Plugin::reject`]). Nothing outlives the process. The program gets the caller's environment, what the configuration
//! adds, and the description of what is wanted in the variable that the names preset calls `exec_info_env`; standard
//! input only when the mode and the caller agree; standard error is the caller's. It is killed, with all it started,
//! when it takes too long or nobody waits any more.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): what a plugin prints appears in no error, no log and no `Debug`.
//!
//! # Reference
//!
//! `k8s.io/client-go/plugin/pkg/client/auth/exec`; requirements A-EXEC. There a plugin may run for ever; here it has
//! [`Plugin::new`]'s time.

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

/// Why a plugin gave no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The program is not there.
    #[error("the credential plugin `{command}` is not installed{}", said(.hint))]
    NotInstalled {
        /// As configured.
        command: String,
        /// The configuration's hint; may be empty.
        hint: String,
    },
    /// It wants to ask somebody, and nobody is there.
    #[error(
        "the credential plugin `{0}` must have standard input (interactiveMode Always), and there is no terminal"
    )]
    NoInput(String),
    /// It could not be run, or did not end well.
    #[error("the credential plugin `{command}` {problem}")]
    Failed {
        /// As configured.
        command: String,
        /// What happened.
        problem: String,
    },
    /// What it printed is not what it must print.
    #[error("the credential plugin `{command}` printed {problem}")]
    Output {
        /// As configured.
        command: String,
        /// What is wrong.
        problem: String,
    },
}

fn said(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(": {}", hint.trim()) }
}

/// What a plugin gave. At least one of token and identity is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Bearer token.
    pub token: Option<Secret>,
    /// Certificate for the handshake.
    pub identity: Option<Identity>,
    /// When it ends; None: when the server says so.
    pub expires: Option<Timestamp>,
}

/// Whether a plugin gets standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interactive {
    Never,
    IfAvailable,
    Always,
}

impl Interactive {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "Never" => Some(Interactive::Never),
            "IfAvailable" => Some(Interactive::IfAvailable),
            "Always" => Some(Interactive::Always),
            _ => None,
        }
    }
}

/// The versions of the protocol, the newest first.
fn versions(names: &Names) -> [String; 2] {
    let group = names.group("client.authentication");
    [format!("{group}/v1"), format!("{group}/v1beta1")]
}

/// All that is wrong with a plugin's configuration.
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
        word if Interactive::parse(word).is_some() => {}
        other => {
            mistakes
                .push(format!("interactiveMode `{other}` is not known: `Never`, `IfAvailable` or `Always`"));
        }
    }
    mistakes
}

/// The terminal that this process has for standard input; None: nobody can be asked.
pub fn terminal() -> Option<File> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    stdin.as_fd().try_clone_to_owned().ok().map(File::from)
}

/// A configured plugin with what it last gave.
pub struct Plugin {
    command: String,
    /// Where the program is if the command is a path.
    path: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(String, Secret)>,
    api_version: String,
    hint: String,
    interactive: Interactive,
    /// The description of what is wanted, with standard input and without.
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
    /// `cluster` is told to the plugin if its configuration asks for it; `input` is standard input if somebody can be
    /// asked there ([`terminal`]); `within` is the longest that one run may take.
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
            interactive: Interactive::parse(&plugin.interactive_mode).unwrap_or(Interactive::IfAvailable),
            info_env: names.exec_info_env,
            cluster: plugin.provide_cluster_info.then_some(cluster),
            input,
            within,
            clock,
            cached: Mutex::new(None),
        })
    }

    /// What is cached, or what the program prints now.
    ///
    /// # Errors
    ///
    /// See [`ExecError`]. Nothing of it is kept: the next caller runs the program again.
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

    /// The server refused these: the next caller gets others. Those that somebody got meanwhile stay.
    pub async fn reject(&self, refused: &Arc<Credentials>) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|held| Arc::ptr_eq(held, refused)) {
            *cached = None;
        }
    }

    async fn run(&self) -> Result<Credentials, ExecError> {
        let input = match (self.interactive, &self.input) {
            (Interactive::Never, _) | (Interactive::IfAvailable, None) => None,
            (Interactive::IfAvailable | Interactive::Always, Some(input)) => Some(input),
            (Interactive::Always, None) => return Err(ExecError::NoInput(self.command.clone())),
        };
        let info = protocol::input(&self.api_version, input.is_some(), self.cluster.as_ref());
        let failed = |problem: String| ExecError::Failed { command: self.command.clone(), problem };
        let found = match &self.path {
            Some(path) => path.exists().then(|| path.clone()),
            None => process::on_path(&self.command),
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
