//! The supervisor of authd as a child process: finds, starts, restarts and stops it.
//!
//! # Contract
//!
//! [`AuthdSupervisor::start`] starts authd on a private Unix socket. authd exits when its standard input
//! closes. The other end of this pipe belongs to apid and closes with apid, however apid ends. When authd
//! exits by itself, the supervisor restarts authd after a pause, which doubles until authd stays up. When
//! authd rejects its command line at the first start, the supervisor reports the rejection and does not
//! restart authd: apid cannot serve.
//!
//! authd listens at the socket once it has accepted its command line and its files.
//!
//! The supervisor kills and restarts an authd that fails its health check for
//! [`HealthPolicy::min_failure_duration`]. An authd that has never responded gets [`HealthPolicy::startup`]
//! in addition. After [`AuthdSupervisor::begin_shutdown`] the supervisor no longer kills an unresponsive
//! authd.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::config::EXIT_USAGE;

/// Maximum length in bytes of a Unix socket path that every system accepts (`sun_path` without its
/// terminator).
const LONGEST_PATH: usize = 103;
/// The pause before the first restart.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between restarts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The uptime after which the pause starts again with [`FIRST_PAUSE`].
const STABLE_UPTIME: Duration = Duration::from_secs(5);
/// Maximum time between the close of the standard input of authd and its exit; then apid kills authd.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The reason why authd cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program was found neither beside apid nor on PATH.
    #[error("authd not found beside apid or on PATH; name the program with `--authd-program`")]
    NotFound,
    /// The directory of the socket cannot be created.
    #[error("cannot create the authd socket directory `{}`: {error}", path.display())]
    Socket {
        /// The directory that cannot be created.
        path: PathBuf,
        /// The failure of the file system.
        error: io::Error,
    },
    /// The program cannot be started.
    #[error("{0}")]
    Start(io::Error),
}

/// The socket of a spawned authd.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// A directory created only for the socket; removed on drop.
    owned_directory: Option<PathBuf>,
}

impl Socket {
    /// Chooses a path in the data directory, or in a new private temporary directory when the path in the
    /// data directory is too long.
    ///
    /// # Errors
    ///
    /// [`SpawnError::Socket`]
    pub fn choose(data_dir: &Path, rng: &dyn Rng) -> Result<Self, SpawnError> {
        let directory = std::path::absolute(data_dir)
            .map_err(|error| SpawnError::Socket { path: data_dir.to_owned(), error })?;
        let path = directory.join("authd.sock");
        if path.as_os_str().len() <= LONGEST_PATH {
            return Ok(Socket { path, owned_directory: None });
        }
        let directory = std::env::temp_dir().join(format!("apid-{:016x}", rng.bits() >> 64));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|error| SpawnError::Socket { path: directory.clone(), error })?;
        Ok(Socket { path: directory.join("authd.sock"), owned_directory: Some(directory) })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(directory) = &self.owned_directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Finds authd's program: beside apid, then on PATH.
///
/// # Errors
///
/// [`SpawnError::NotFound`]
pub fn find_program() -> Result<PathBuf, SpawnError> {
    let sibling = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("authd")));
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let on_path = on_path.unwrap_or_default().into_iter().map(|folder| folder.join("authd"));
    sibling.into_iter().chain(on_path).find(|candidate| candidate.is_file()).ok_or(SpawnError::NotFound)
}

/// The handle of the task that starts, watches and restarts authd.
pub struct AuthdSupervisor {
    stop_sender: Option<oneshot::Sender<()>>,
    supervisor: tokio::task::JoinHandle<()>,
    /// Whether apid shuts down. The supervisor then no longer kills an unresponsive authd.
    is_shutting_down: Arc<AtomicBool>,
}

/// The rules that decide when authd is unresponsive, so that the supervisor kills authd.
#[derive(Clone, Copy, Debug)]
struct HealthPolicy {
    /// The pause between checks of a responsive authd.
    pause: Duration,
    /// The pause between checks before the first response, and after a failed check.
    retry: Duration,
    /// The timeout of one check.
    timeout: Duration,
    /// Number of consecutive failed checks before authd counts as unresponsive. One failed check is not
    /// enough, because apid may have been suspended.
    failures: u32,
    /// The minimum time from the start of the first to the end of the last consecutive failed check.
    min_failure_duration: Duration,
    /// The time after the start of authd in which failed checks before its first response do not count.
    startup: Duration,
}

const HEALTH_POLICY: HealthPolicy = HealthPolicy {
    pause: Duration::from_secs(1),
    retry: Duration::from_millis(250),
    timeout: Duration::from_secs(1),
    failures: 4,
    min_failure_duration: Duration::from_secs(5),
    startup: Duration::from_secs(30),
};

/// The command and the health policy of authd.
struct AuthdCommand {
    program: PathBuf,
    arguments: Vec<String>,
    socket: PathBuf,
    clock: Arc<dyn Clock>,
    health: HealthPolicy,
    is_shutting_down: Arc<AtomicBool>,
}

impl AuthdSupervisor {
    /// Starts and supervises authd. Sends to `rejection_sender` if authd rejects its command line at its
    /// first start.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn start(
        program: PathBuf,
        flags: &[String],
        socket: &Path,
        clock: Arc<dyn Clock>,
        rejection_sender: oneshot::Sender<()>,
    ) -> io::Result<Self> {
        AuthdSupervisor::start_with_policy(HEALTH_POLICY, program, flags, socket, clock, rejection_sender)
    }

    fn start_with_policy(
        health: HealthPolicy,
        program: PathBuf,
        flags: &[String],
        socket: &Path,
        clock: Arc<dyn Clock>,
        rejection_sender: oneshot::Sender<()>,
    ) -> io::Result<Self> {
        let mut arguments = vec![format!("--socket={}", socket.display()), "--exit-on-stdin-eof".to_owned()];
        arguments.extend(flags.iter().cloned());
        let is_shutting_down = Arc::new(AtomicBool::new(false));
        let socket = socket.to_owned();
        let command = AuthdCommand {
            program,
            arguments,
            socket,
            clock,
            health,
            is_shutting_down: Arc::clone(&is_shutting_down),
        };
        let child = command.start()?;
        let (stop_sender, stop_signal) = oneshot::channel();
        let supervisor = tokio::spawn(supervise(command, child, stop_signal, rejection_sender));
        Ok(AuthdSupervisor { stop_sender: Some(stop_sender), supervisor, is_shutting_down })
    }

    /// Records the start of the shutdown: an unresponsive authd is no longer killed.
    pub fn begin_shutdown(&self) {
        self.is_shutting_down.store(true, Ordering::SeqCst);
    }

    /// Stops authd and waits for its exit.
    pub async fn stop(mut self) {
        if let Some(stop_sender) = self.stop_sender.take() {
            let _ = stop_sender.send(());
        }
        let _ = self.supervisor.await;
    }
}

impl AuthdCommand {
    fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped());
        spawn_child(&mut command).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", self.program.display()))
        })
    }

    /// Returns when authd is unresponsive. `started_at` is the monotonic time of the start of authd.
    async fn wait_until_unresponsive(&self, started_at: Duration) {
        let HealthPolicy { pause, retry, timeout, failures, min_failure_duration, startup } = self.health;
        let mut has_responded = false;
        // The number of consecutive failed checks, and the monotonic time at which the first of them began.
        let (mut failed, mut first_failure) = (0, Duration::ZERO);
        loop {
            tokio::time::sleep(if has_responded && failed == 0 { pause } else { retry }).await;
            let check_start = self.clock.monotonic();
            let result = tokio::time::timeout(timeout, authclient::check_health(&self.socket)).await;
            if matches!(result, Ok(Ok(()))) {
                if !has_responded {
                    tracing::info!("authd answers its health check");
                }
                (has_responded, failed) = (true, 0);
                continue;
            }
            if !has_responded && check_start.saturating_sub(started_at) < startup {
                continue;
            }
            if failed == 0 {
                first_failure = check_start;
            }
            failed += 1;
            let is_unresponsive = failed >= failures
                && self.clock.monotonic().saturating_sub(first_failure) >= min_failure_duration;
            if is_unresponsive && !self.is_shutting_down.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

/// Restarts authd after each exit, until the stop signal or a rejected command line at the first start.
async fn supervise(
    command: AuthdCommand,
    first_child: Child,
    mut stop_signal: oneshot::Receiver<()>,
    rejection_sender: oneshot::Sender<()>,
) {
    let mut rejection_sender = Some(rejection_sender);
    // Whether an earlier authd has run. A rejection by a later authd comes from changed files, which may
    // change again, so the supervisor restarts authd.
    let mut has_run = false;
    let mut pause = FIRST_PAUSE;
    let mut running = Some(first_child);
    loop {
        if let Some(mut child) = running.take() {
            let started_at = command.clock.monotonic();
            tracing::info!(pid = child.id(), program = %command.program.display(), "authd started");
            // `wait` closes the standard input of a child, which would end authd; `input` keeps the pipe
            // open.
            let input = child.stdin.take();
            let status = tokio::select! {
                status = child.wait() => status,
                _ = &mut stop_signal => return stop(child, input).await,
                () = command.wait_until_unresponsive(started_at) => {
                    let (pid, seconds) = (child.id(), command.health.min_failure_duration.as_secs());
                    tracing::error!(pid, seconds, "authd does not answer its health check; killing it");
                    kill(&mut child).await
                }
            };
            if status.as_ref().is_ok_and(has_rejected_command_line) {
                match rejection_sender.take() {
                    // At the first start, apid ends, so that the user corrects the command line.
                    Some(rejection_sender) if !has_run => {
                        let _ = rejection_sender.send(());
                        return;
                    }
                    sender => rejection_sender = sender,
                }
                tracing::error!(
                    "authd rejects its flags or files; correct the errors that it reported above; only cached decisions \
                     allow requests until then"
                );
            }
            has_run = true;
            match status {
                Ok(status) => tracing::error!(%status, "authd exited; restarting it"),
                Err(error) => tracing::error!(%error, "waiting for authd failed; restarting it"),
            }
            if command.clock.monotonic().saturating_sub(started_at) >= STABLE_UPTIME {
                pause = FIRST_PAUSE;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = &mut stop_signal => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        match command.start() {
            Ok(child) => running = Some(child),
            Err(error) => tracing::error!(%error, "authd start failed; retrying"),
        }
    }
}

/// Kills a child and waits for its exit.
async fn kill(child: &mut Child) -> io::Result<ExitStatus> {
    child.start_kill()?;
    child.wait().await
}

/// Starts a child that ends when the handle is dropped, at the latest.
///
/// With its own process group, the child gets no Ctrl-C of the terminal: this process stops it at the right time. The service
/// manager expects notifications of this process alone.
pub(crate) fn spawn_child(command: &mut Command) -> io::Result<Child> {
    command
        .kill_on_drop(true)
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .process_group(0)
        .spawn()
}

/// Whether a child rejected its command line or a file that it names.
pub(crate) fn has_rejected_command_line(status: &ExitStatus) -> bool {
    status.code() == Some(i32::from(EXIT_USAGE))
}

/// Closes the standard input of authd and waits for its exit; kills authd after [`EXIT_TIMEOUT`].
async fn stop(mut child: Child, input: Option<ChildStdin>) {
    drop(input);
    if tokio::time::timeout(EXIT_TIMEOUT, child.wait()).await.is_err() {
        tracing::warn!("authd did not exit in time; killing it");
        let _ = child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::{SystemClock, SystemRng};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn long_data_dir_gets_private_temporary_socket() {
        let short = Socket::choose(Path::new("/tmp/x"), &SystemRng).unwrap();
        assert_eq!(short.path(), Path::new("/tmp/x/authd.sock"));
        let long = Path::new("/tmp").join("x".repeat(200));
        let socket = Socket::choose(&long, &SystemRng).unwrap();
        let folder = socket.path().parent().unwrap().to_owned();
        assert!(socket.path().as_os_str().len() <= LONGEST_PATH);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        drop(socket);
        assert!(!folder.exists());
    }

    /// Creates a program that records each start and then runs a command.
    fn program(folder: &Path, command: &str) -> PathBuf {
        let path = folder.join("authd");
        let text = format!("#!/bin/sh\necho started >> {}/starts\n{command}\n", folder.display());
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn starts(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("starts")).unwrap_or_default().lines().count()
    }

    fn start(folder: &Path, command: &str) -> (AuthdSupervisor, oneshot::Receiver<()>) {
        let (rejection_sender, rejection) = oneshot::channel();
        let program = program(folder, command);
        let supervisor = AuthdSupervisor::start(
            program,
            &[],
            &folder.join("s"),
            Arc::new(SystemClock::new()),
            rejection_sender,
        );
        (supervisor.unwrap(), rejection)
    }

    #[tokio::test]
    async fn crashed_authd_is_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, _rejection) = start(folder.path(), "exit 1");
        while starts(folder.path()) < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        authd.stop().await;
        let last = starts(folder.path());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(starts(folder.path()), last, "authd must not be restarted after the end");
    }

    #[tokio::test]
    async fn authd_that_rejects_its_command_line_is_not_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, rejection) = start(folder.path(), "exit 64");
        rejection.await.unwrap();
        authd.stop().await;
        assert_eq!(starts(folder.path()), 1);
    }

    /// Answers health checks at a socket until dropped.
    struct HealthService(Option<tokio::runtime::Runtime>);

    impl Drop for HealthService {
        fn drop(&mut self) {
            self.0.take().unwrap().shutdown_background();
        }
    }

    /// A health service that always responds.
    struct RespondingHealth;

    #[tonic::async_trait]
    impl authproto::health::health_server::Health for RespondingHealth {
        async fn check(
            &self,
            _: tonic::Request<authproto::health::HealthCheckRequest>,
        ) -> Result<tonic::Response<authproto::health::HealthCheckResponse>, tonic::Status> {
            Ok(tonic::Response::new(authproto::health::HealthCheckResponse::default()))
        }

        type WatchStream =
            tokio_stream::Pending<Result<authproto::health::HealthCheckResponse, tonic::Status>>;

        async fn watch(
            &self,
            _: tonic::Request<authproto::health::HealthCheckRequest>,
        ) -> Result<tonic::Response<Self::WatchStream>, tonic::Status> {
            Err(tonic::Status::unimplemented("no watch"))
        }
    }

    fn answer_health_at(socket: &Path) -> HealthService {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _entered = runtime.enter();
            tokio::net::UnixListener::bind(socket).unwrap()
        };
        let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let health = authproto::health::health_server::HealthServer::new(RespondingHealth);
        runtime.spawn(tonic::transport::Server::builder().add_service(health).serve_with_incoming(incoming));
        HealthService(Some(runtime))
    }

    /// A health policy whose times are in milliseconds instead of seconds.
    fn quick_policy(startup: Duration) -> HealthPolicy {
        HealthPolicy {
            pause: Duration::from_millis(10),
            retry: Duration::from_millis(10),
            timeout: Duration::from_millis(500),
            failures: 3,
            min_failure_duration: Duration::from_millis(100),
            startup,
        }
    }

    fn start_hanging(folder: &Path, health: HealthPolicy) -> AuthdSupervisor {
        let (rejection_sender, _) = oneshot::channel();
        let program = program(folder, "exec sleep 1000");
        let clock = Arc::new(SystemClock::new());
        AuthdSupervisor::start_with_policy(health, program, &[], &folder.join("s"), clock, rejection_sender)
            .unwrap()
    }

    async fn wait_for_starts(folder: &Path, times: usize) {
        while starts(folder) < times {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn unresponsive_authd_is_killed_and_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let service = answer_health_at(&folder.path().join("s"));
        let authd = start_hanging(folder.path(), quick_policy(Duration::from_secs(1000)));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1, "a responsive authd must not be restarted");
        drop(service);
        tokio::time::timeout(Duration::from_secs(30), wait_for_starts(folder.path(), 2)).await.unwrap();
        drop(authd);
    }

    #[tokio::test]
    async fn authd_without_first_response_is_killed_after_startup_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let slow = start_hanging(folder.path(), quick_policy(Duration::from_secs(1000)));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1);
        drop(slow);
        let folder = tempfile::tempdir().unwrap();
        let hanging = start_hanging(folder.path(), quick_policy(Duration::from_millis(200)));
        tokio::time::timeout(Duration::from_secs(30), wait_for_starts(folder.path(), 2)).await.unwrap();
        drop(hanging);
    }

    #[tokio::test]
    async fn unresponsive_authd_is_not_restarted_during_shutdown() {
        let folder = tempfile::tempdir().unwrap();
        let authd = start_hanging(folder.path(), quick_policy(Duration::ZERO));
        authd.begin_shutdown();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1);
        drop(authd);
    }

    #[tokio::test]
    async fn authd_exits_when_stdin_closes() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, _rejection) =
            start(folder.path(), &format!("cat > /dev/null; echo ended > {}/ended", folder.path().display()));
        while starts(folder.path()) < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        authd.stop().await;
        assert!(folder.path().join("ended").exists(), "authd must exit by itself, not be killed");
    }
}
