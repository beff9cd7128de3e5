//! authd as a child process: found, started, started again when it ends, and ended with this process.
//!
//! # Contract
//!
//! [`Supervised::start`] starts authd on a private unix socket. It ends when its standard input does: the pipe's other
//! end is this process's and closes with it, however it ends. An authd that ends by itself is started again, after a
//! pause that doubles while it does not stay up. One that refuses its command line is not: the process cannot serve.
//!
//! An authd that lives and does not answer its health check for [`HealthPolicy::unanswered`] is killed and started again;
//! one that has never answered only after [`HealthPolicy::startup`] besides, and none after [`Supervised::ending`].

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::{Chance, Clock};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::auth;
use crate::config::USAGE;

/// Bytes that a socket's path may have (`sun_path` less its end), on every system.
const LONGEST_PATH: usize = 103;
/// The pause before the first restart.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// An authd that stayed up so long is started again at once.
const STAYED: Duration = Duration::from_secs(5);
/// How long authd may take to end.
const ENDING: Duration = Duration::from_secs(3);

/// The socket of an authd that is started here.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// A folder that was made for it alone.
    made: Option<PathBuf>,
}

impl Socket {
    /// In the data folder, or in a private folder for temporary files when the path would be too long for a socket.
    ///
    /// # Errors
    ///
    /// The folder cannot be made.
    pub fn place(data_dir: &Path, chance: &dyn Chance) -> io::Result<Self> {
        let path = std::path::absolute(data_dir)?.join("authd.sock");
        if path.as_os_str().len() <= LONGEST_PATH {
            return Ok(Socket { path, made: None });
        }
        let folder = std::env::temp_dir().join(format!("apid-{:016x}", chance.bits() >> 64));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Socket { path: folder.join("authd.sock"), made: Some(folder) })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(folder) = &self.made {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// authd's program: beside this one, then on PATH.
///
/// # Errors
///
/// Where it was looked for.
pub fn find() -> Result<PathBuf, String> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("authd")));
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let on_path = on_path.unwrap_or_default().into_iter().map(|folder| folder.join("authd"));
    beside.into_iter().chain(on_path).find(|candidate| candidate.is_file()).ok_or_else(|| {
        "authd was found neither beside apid nor on PATH: name it with `--authd-program`".to_owned()
    })
}

/// A running authd.
pub struct Supervised {
    end: Option<oneshot::Sender<()>>,
    supervisor: tokio::task::JoinHandle<()>,
    /// This process ends: health is not checked any more.
    ending: Arc<AtomicBool>,
}

/// When authd counts as hanging.
#[derive(Clone, Copy, Debug)]
struct HealthPolicy {
    /// The pause between checks of an authd that answers.
    pause: Duration,
    /// The pause before the first answer and after a check that failed.
    retry: Duration,
    /// How long one check may take.
    timeout: Duration,
    /// Failed checks in a row before authd counts as hanging. One is not enough: this process may have been suspended.
    failures: u32,
    /// How long the checks must have failed.
    unanswered: Duration,
    /// How long an authd may take until its first answer.
    startup: Duration,
}

const HEALTH_POLICY: HealthPolicy = HealthPolicy {
    pause: Duration::from_secs(1),
    retry: Duration::from_millis(250),
    timeout: Duration::from_secs(1),
    failures: 4,
    unanswered: Duration::from_secs(5),
    startup: Duration::from_secs(30),
};

/// How an authd is started.
struct Recipe {
    program: PathBuf,
    arguments: Vec<String>,
    socket: PathBuf,
    clock: Arc<dyn Clock>,
    health: HealthPolicy,
    ending: Arc<AtomicBool>,
}

impl Supervised {
    /// Starts authd and watches over it. `refused` is told when it refuses its command line.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn start(
        program: PathBuf,
        flags: &[String],
        socket: &Path,
        clock: Arc<dyn Clock>,
        refused: oneshot::Sender<()>,
    ) -> io::Result<Self> {
        Supervised::start_under(HEALTH_POLICY, program, flags, socket, clock, refused)
    }

    fn start_under(
        health: HealthPolicy,
        program: PathBuf,
        flags: &[String],
        socket: &Path,
        clock: Arc<dyn Clock>,
        refused: oneshot::Sender<()>,
    ) -> io::Result<Self> {
        let mut arguments = vec![format!("--socket={}", socket.display()), "--exit-on-stdin-eof".to_owned()];
        arguments.extend(flags.iter().cloned());
        let ending = Arc::new(AtomicBool::new(false));
        let socket = socket.to_owned();
        let recipe = Recipe { program, arguments, socket, clock, health, ending: Arc::clone(&ending) };
        let child = recipe.start()?;
        let (end, ended) = oneshot::channel();
        let supervisor = tokio::spawn(supervise(recipe, child, ended, refused));
        Ok(Supervised { end: Some(end), supervisor, ending })
    }

    /// This process begins to end: an authd that hangs is not started again for it.
    pub fn ending(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Ends authd and waits for it.
    pub async fn end(mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        let _ = self.supervisor.await;
    }
}

impl Recipe {
    fn start(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            // A terminal's Ctrl-C is for this process, which then ends authd in order.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("cannot start {}: {error}", self.program.display()))
            })
    }

    /// Returns when authd hangs. `started` is when it was started, on the monotonic clock.
    async fn hangs(&self, started: Duration) {
        let HealthPolicy { pause, retry, timeout, failures, unanswered, startup } = self.health;
        let mut has_answered = false;
        // Failed checks in a row, and when the first of them began.
        let (mut failed, mut since) = (0, Duration::ZERO);
        loop {
            tokio::time::sleep(if has_answered && failed == 0 { pause } else { retry }).await;
            let begun = self.clock.monotonic();
            let answer = tokio::time::timeout(timeout, auth::check_health(&self.socket)).await;
            if matches!(answer, Ok(Ok(()))) {
                (has_answered, failed) = (true, 0);
                continue;
            }
            if !has_answered && begun.saturating_sub(started) < startup {
                continue;
            }
            if failed == 0 {
                since = begun;
            }
            failed += 1;
            let enough = failed >= failures && self.clock.monotonic().saturating_sub(since) >= unanswered;
            if enough && !self.ending.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

async fn supervise(
    recipe: Recipe,
    first: Child,
    mut ended: oneshot::Receiver<()>,
    refused: oneshot::Sender<()>,
) {
    let mut refused = Some(refused);
    // Whether authd once ran with these flags: then files have changed, and may change again.
    let mut ran = false;
    let mut pause = FIRST_PAUSE;
    let mut running = Some(first);
    loop {
        if let Some(mut child) = running.take() {
            let started = recipe.clock.monotonic();
            tracing::info!(pid = child.id(), program = %recipe.program.display(), "authd is started");
            // Waiting for a child closes its input: the pipe that tells authd of our end is held here.
            let input = child.stdin.take();
            let status = tokio::select! {
                status = child.wait() => status,
                _ = &mut ended => return end(child, input).await,
                () = recipe.hangs(started) => {
                    let (pid, seconds) = (child.id(), recipe.health.unanswered.as_secs());
                    tracing::error!(pid, seconds, "authd does not answer its health check; killing it");
                    kill(&mut child).await
                }
            };
            if status.as_ref().is_ok_and(refuses) {
                match refused.take() {
                    // At the start a mistake is for the person who starts.
                    Some(refused) if !ran => {
                        let _ = refused.send(());
                        return;
                    }
                    told => refused = told,
                }
                tracing::error!(
                    "authd does not take its flags or files any more: what it said above is to be mended; until then \
                     nothing new is allowed"
                );
            }
            ran = true;
            match status {
                Ok(status) => tracing::error!(%status, "authd has ended, it is started again"),
                Err(error) => tracing::error!(%error, "authd cannot be waited for, it is started again"),
            }
            if recipe.clock.monotonic().saturating_sub(started) >= STAYED {
                pause = FIRST_PAUSE;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = &mut ended => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        match recipe.start() {
            Ok(child) => running = Some(child),
            Err(error) => tracing::error!(%error, "authd is not started"),
        }
    }
}

/// Kills a child and waits for its end.
async fn kill(child: &mut Child) -> io::Result<ExitStatus> {
    child.start_kill()?;
    child.wait().await
}

/// Its command line is wrong: it would be the next time.
fn refuses(status: &ExitStatus) -> bool {
    status.code() == Some(i32::from(USAGE))
}

async fn end(mut child: Child, input: Option<ChildStdin>) {
    drop(input);
    if tokio::time::timeout(ENDING, child.wait()).await.is_err() {
        tracing::warn!("authd did not end in time, it is killed");
        let _ = child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::{SystemChance, SystemClock};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_long_data_folder_gets_a_short_private_socket() {
        let short = Socket::place(Path::new("/tmp/x"), &SystemChance).unwrap();
        assert_eq!(short.path(), Path::new("/tmp/x/authd.sock"));
        let long = Path::new("/tmp").join("x".repeat(200));
        let socket = Socket::place(&long, &SystemChance).unwrap();
        let folder = socket.path().parent().unwrap().to_owned();
        assert!(socket.path().as_os_str().len() <= LONGEST_PATH);
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        drop(socket);
        assert!(!folder.exists());
    }

    /// A program that notes each start and then does as it is told.
    fn program(folder: &Path, then: &str) -> PathBuf {
        let path = folder.join("authd");
        let text = format!("#!/bin/sh\necho started >> {}/starts\n{then}\n", folder.display());
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn starts(folder: &Path) -> usize {
        std::fs::read_to_string(folder.join("starts")).unwrap_or_default().lines().count()
    }

    fn start(folder: &Path, then: &str) -> (Supervised, oneshot::Receiver<()>) {
        let (refused, told) = oneshot::channel();
        let program = program(folder, then);
        let started =
            Supervised::start(program, &[], &folder.join("s"), Arc::new(SystemClock::new()), refused);
        (started.unwrap(), told)
    }

    #[tokio::test]
    async fn one_that_crashes_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, _told) = start(folder.path(), "exit 1");
        while starts(folder.path()) < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        authd.end().await;
        let last = starts(folder.path());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(starts(folder.path()), last, "not after the end");
    }

    #[tokio::test]
    async fn one_that_refuses_its_command_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, told) = start(folder.path(), "exit 64");
        told.await.unwrap();
        authd.end().await;
        assert_eq!(starts(folder.path()), 1);
    }

    /// Answers health checks at a socket until it is dropped.
    struct HealthService(Option<tokio::runtime::Runtime>);

    impl Drop for HealthService {
        fn drop(&mut self) {
            self.0.take().unwrap().shutdown_background();
        }
    }

    struct Healthy;

    #[tonic::async_trait]
    impl authproto::health::health_server::Health for Healthy {
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
            Err(tonic::Status::unimplemented("not here"))
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
        let health = authproto::health::health_server::HealthServer::new(Healthy);
        runtime.spawn(tonic::transport::Server::builder().add_service(health).serve_with_incoming(incoming));
        HealthService(Some(runtime))
    }

    /// A policy of milliseconds.
    fn quick(startup: Duration) -> HealthPolicy {
        HealthPolicy {
            pause: Duration::from_millis(10),
            retry: Duration::from_millis(10),
            timeout: Duration::from_millis(500),
            failures: 3,
            unanswered: Duration::from_millis(100),
            startup,
        }
    }

    fn start_hanging(folder: &Path, health: HealthPolicy) -> Supervised {
        let (refused, _) = oneshot::channel();
        let program = program(folder, "exec sleep 1000");
        let clock = Arc::new(SystemClock::new());
        Supervised::start_under(health, program, &[], &folder.join("s"), clock, refused).unwrap()
    }

    async fn started(folder: &Path, times: usize) {
        while starts(folder) < times {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn authd_that_stops_answering_its_health_check_is_killed_and_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let service = answer_health_at(&folder.path().join("s"));
        let authd = start_hanging(folder.path(), quick(Duration::from_secs(1000)));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1, "authd answers");
        drop(service);
        tokio::time::timeout(Duration::from_secs(30), started(folder.path(), 2)).await.unwrap();
        drop(authd);
    }

    #[tokio::test]
    async fn authd_that_never_answers_is_killed_only_after_the_startup_allowance() {
        let folder = tempfile::tempdir().unwrap();
        let slow = start_hanging(folder.path(), quick(Duration::from_secs(1000)));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1);
        drop(slow);
        let folder = tempfile::tempdir().unwrap();
        let hanging = start_hanging(folder.path(), quick(Duration::from_millis(200)));
        tokio::time::timeout(Duration::from_secs(30), started(folder.path(), 2)).await.unwrap();
        drop(hanging);
    }

    #[tokio::test]
    async fn authd_that_hangs_is_not_started_again_while_this_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let authd = start_hanging(folder.path(), quick(Duration::ZERO));
        authd.ending();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(starts(folder.path()), 1);
        drop(authd);
    }

    #[tokio::test]
    async fn the_end_of_its_input_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let (authd, _told) =
            start(folder.path(), &format!("cat > /dev/null; echo ended > {}/ended", folder.path().display()));
        while starts(folder.path()) < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        authd.end().await;
        assert!(folder.path().join("ended").exists(), "it ended by itself, it was not killed");
    }
}
