//! A child process of the cluster, which is started again when it ends.

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::console::print;
use crate::parent_death;
use crate::spawn::{has_rejected_command_line, spawn_child};

/// Pause before the next start of a process that has ended.
const RESTART_PAUSE: Duration = Duration::from_secs(2);

/// A program to start.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The name in messages, such as `apid 1`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// The file that gets the output; None leaves the output on standard error.
    pub(super) log: Option<PathBuf>,
    /// Time for which the process may end in order; then it is killed.
    pub(super) exit_timeout: Duration,
}

impl Program {
    /// Starts the process. Call in the main thread: the process ends with the thread that starts it.
    fn start(&self) -> io::Result<Child> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(own);
        command.arg(parent_death::COMMAND).arg(std::process::id().to_string()).arg(&self.path);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(path) = &self.log {
            let log = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
            command.stderr(log);
        }
        spawn_child(&mut command)
    }

    /// The log as a hint in a message.
    fn log_hint(&self) -> String {
        self.log.as_ref().map_or_else(String::new, |log| format!("; log: {}", log.display()))
    }
}

/// Keeps a process running until `stop` is true, and then ends it. `id` has the process id while the process runs. A
/// process that rejects its command line at its first start is reported to `rejected`, and not started again.
pub(super) async fn supervise(
    program: Program,
    mut stop: watch::Receiver<bool>,
    id: watch::Sender<Option<u32>>,
    rejected: mpsc::Sender<String>,
) {
    let mut has_run = false;
    while !*stop.borrow() {
        match program.start() {
            Ok(mut child) => {
                id.send_replace(child.id());
                let status = tokio::select! {
                    status = child.wait() => status,
                    () = stopped(&mut stop) => end(child, program.exit_timeout).await,
                };
                id.send_replace(None);
                if *stop.borrow() {
                    return;
                }
                if !has_run && status.as_ref().is_ok_and(has_rejected_command_line) {
                    let text = format!("{} rejects its command line{}", program.name, program.log_hint());
                    let _ = rejected.send(text).await;
                    return;
                }
                has_run = true;
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                let (name, hint) = (&program.name, program.log_hint());
                print(format!(
                    "{name} ended ({status}); it starts again in {} s{hint}\n",
                    RESTART_PAUSE.as_secs()
                ));
            }
            Err(error) => {
                let _ = rejected.send(format!("{} does not start: {error}", program.name)).await;
                return;
            }
        }
        let _ = tokio::time::timeout(RESTART_PAUSE, stopped(&mut stop)).await;
    }
}

/// Waits for the stop, or for the end of its sender.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Ends a process with SIGTERM, and kills it after a time.
async fn end(mut child: Child, timeout: Duration) -> io::Result<ExitStatus> {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(id) = id {
        let _ = kill_process(id, Signal::TERM);
    }
    match tokio::time::timeout(timeout, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            child.start_kill()?;
            child.wait().await
        }
    }
}
