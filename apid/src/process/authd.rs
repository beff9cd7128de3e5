//! The authds that apid uses: one that apid spawns and supervises, or external ones.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use tokio::sync::oneshot;

use super::error::ProcessError;
use crate::config::{Authd, Config};
use crate::spawn::{self, AuthdSupervisor, SpawnError};
use authclient::{Auth, AuthdServer};

/// Maximum time for which the start waits for a connection to a spawned authd. Then apid starts without it.
///
/// An authd that rejects its command line exits within this time.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The authds that this process uses.
pub(super) struct ProcessAuthd {
    servers: Vec<AuthdServer>,
    /// The supervisor of a spawned authd.
    supervisor: Option<AuthdSupervisor>,
    /// Signalled when a spawned authd rejects its command line. None for an external authd, and after the
    /// signal.
    rejected: Option<oneshot::Receiver<()>>,
    /// The directory created for the socket, removed on drop.
    _socket: Option<spawn::Socket>,
}

impl ProcessAuthd {
    /// Spawns authd if the configuration says so; otherwise uses external ones.
    pub(super) fn start(
        config: &Config,
        clock: &Arc<dyn Clock>,
        rng: &dyn Rng,
    ) -> Result<Self, ProcessError> {
        let shared = || config.shared_authds.iter().cloned();
        let external =
            |servers| Ok(ProcessAuthd { servers, supervisor: None, rejected: None, _socket: None });
        let (program, flags) = match &config.authd {
            Authd::Shared => return external(shared().collect()),
            Authd::At(socket) => {
                return external(
                    std::iter::once(AuthdServer::Socket(socket.clone())).chain(shared()).collect(),
                );
            }
            Authd::Spawned { program, flags } => (program, flags),
        };
        // authd signs service account tokens with this generated key when no flag names a key.
        let mut flags = flags.clone();
        let is_shared = !config.flags.etcd.servers().is_empty();
        if is_shared && !flags.iter().any(|flag| flag.starts_with("--service-account-signing-key-file")) {
            tracing::warn!(
                "the other servers of the cluster reject the service account tokens of this server, unless all of them \
                 have one key in `--service-account-signing-key-file` and `--service-account-key-file`"
            );
        }
        flags.push(format!("--generated-key-file={}", config.data_dir.join("service-account.key").display()));
        let program = match program {
            Some(program) => program.clone(),
            None => spawn::find_program()?,
        };
        let (socket, default_socket) = match &config.flags.authd.authd_socket {
            Some(socket) => (socket.clone(), None),
            None => {
                let socket = spawn::Socket::choose(&config.data_dir, rng)?;
                (socket.path().to_owned(), Some(socket))
            }
        };
        let (rejection_sender, rejected) = oneshot::channel();
        let supervisor =
            AuthdSupervisor::start(program, &flags, &socket, Arc::clone(clock), rejection_sender)
                .map_err(SpawnError::Start)?;
        Ok(ProcessAuthd {
            servers: std::iter::once(AuthdServer::Socket(socket)).chain(shared()).collect(),
            supervisor: Some(supervisor),
            rejected: Some(rejected),
            _socket: default_socket,
        })
    }

    /// The authds in the order of preference.
    pub(super) fn servers(&self) -> &[AuthdServer] {
        &self.servers
    }

    /// Waits until a spawned authd accepts connections, at most [`START_TIMEOUT`]. Returns at once for an
    /// external authd.
    ///
    /// # Errors
    ///
    /// authd rejected its command line.
    pub(super) async fn wait_for_start(&mut self, auth: &Auth) -> Result<(), ProcessError> {
        if self.supervisor.is_none() {
            return Ok(());
        }
        tokio::select! {
            () = auth.connection().wait_for_connection() => {}
            error = self.wait_for_rejection() => return Err(error),
            () = tokio::time::sleep(START_TIMEOUT) => {
                tracing::warn!("authd accepts no connections yet; apid starts without it");
            }
        }
        Ok(())
    }

    /// Waits until authd rejects its command line. Never returns if authd is external or accepts its command
    /// line.
    pub(super) async fn wait_for_rejection(&mut self) -> ProcessError {
        if let Some(rejected) = &mut self.rejected
            && rejected.await.is_ok()
        {
            self.rejected = None;
            return ProcessError::authd_rejected_flags();
        }
        // No rejection can come any more: the supervisor has ended, the rejection was returned before, or
        // authd is external.
        self.rejected = None;
        std::future::pending().await
    }

    /// Tells the supervisor that apid shuts down, so that it no longer kills an unresponsive authd.
    pub(super) fn begin_shutdown(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.begin_shutdown();
        }
    }

    /// Stops a spawned authd and waits for its exit.
    pub(super) async fn stop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.stop().await;
        }
    }
}
