//! The life of the process from configuration to exit: start-up and shutdown order.
//!
//! # Contract
//!
//! [`run`] serves until SIGTERM or SIGINT.
//!
//! Start-up: apid starts authd, opens the store, binds the port and writes the port to a file. Then apid
//! serves requests. `/readyz` fails until authd has the policy snapshot and default policy exists.
//!
//! Shutdown: `/readyz` fails, the shutdown delay passes, watches end, open requests finish, the store
//! closes, authd exits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admission::{Chain, Environment};
use apimachinery::clock::{Clock, Rng, SystemClock, SystemRng};
use apimachinery::names::Names;
use kinds::{CurrentRegistry, Registry};
use serving::health::Checks;
use serving::listener::Listener;
use serving::metrics::Metrics;
use serving::server::ServerOptions;
use serving::tls::{ServingTls, TlsFiles};
use storage::engine::fjall::{self, FjallStore};
use storage::{Observers, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::audit::AuditLog;
use crate::auth::{Auth, AuthOptions, MirrorOptions, PolicyRevisions, Reductions};
use crate::background::start_objects::AdvertisedServer;
use crate::background::{self, AdmissionWrites};
use crate::config::{Authd, Config, EXIT_USAGE, STORE};
use crate::http::Api;
use crate::server_state::{Cache, Health, Parts, ServerState};
use crate::spawn::{self, AuthdSupervisor};
use crate::verbs::{AdmissionBackend, TokenKey};

/// The interval of checks of the certificate files.
///
/// Clients send a certificate only when the server names its CA, so a new CA takes effect within a second.
const CERT_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The wait for authd before serving. An authd that rejects its command line exits within this time.
const AUTHD_START_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of open requests at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The idle time after which a blocking thread ends: each thread retains freed memory.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Why the process failed.
#[derive(Debug)]
enum ProcessError {
    /// The command line is invalid.
    Usage(Vec<String>),
    /// Opening, binding or starting a component failed.
    Start(String),
}

impl From<String> for ProcessError {
    fn from(why: String) -> Self {
        ProcessError::Start(why)
    }
}

/// Serves. The exit code is 0 after a signal, 64 for an invalid command line, 1 for any other failure.
pub fn run(config: Config) -> ExitCode {
    let format = if config.log_json { serving::log::Format::Json } else { serving::log::Format::Text };
    if serving::log::init(config.verbosity, format, Arc::new(SystemClock::new())).is_err() {
        eprintln!("apid: logging is set up already");
    }
    for flag in &config.unimplemented_flags {
        tracing::warn!("`--{flag}` is accepted but has no effect yet");
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.allows_everything && matches!(config.authd, Authd::Spawned { .. }) {
        tracing::warn!(
            "no authorizer is configured; every request is allowed, anonymous requests are disabled"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("apid: the runtime cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(serve(config));
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(ProcessError::Usage(mistakes)) => {
            mistakes.iter().for_each(|mistake| eprintln!("apid: {mistake}"));
            ExitCode::from(EXIT_USAGE)
        }
        Err(ProcessError::Start(why)) => {
            tracing::error!("{why}");
            eprintln!("apid: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The progress of start-up and shutdown, for health checks.
#[derive(Default)]
struct Progress {
    namespaces: AtomicBool,
    objects: AtomicBool,
    policy: AtomicBool,
    stopping: AtomicBool,
}

/// Creates a folder with mode 0700, or restricts an existing one: stored objects contain secrets.
fn private_folder(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
}

async fn serve(config: Config) -> Result<(), ProcessError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng: Arc<dyn Rng> = Arc::new(SystemRng);
    let names = Arc::new(config.names.clone());
    let current_registry = Arc::new(CurrentRegistry::new(Registry::new(&names)));
    let registry = current_registry.get();
    let cache = Arc::new(Cache::new(storage::cache::Limits::default()));
    let backend = Arc::new(AdmissionBackend::new(&registry, &cache));
    let admission_writes = Arc::new(AdmissionWrites::default());
    let admission = admission(
        &config,
        Environment {
            names: Arc::clone(&names),
            clock: Arc::clone(&clock),
            rng: Arc::clone(&rng),
            reader: backend.clone(),
            writer: admission_writes.clone(),
            authorizer: backend.clone(),
            registry: Arc::clone(&current_registry),
            reservations: Arc::default(),
        },
    )?;
    private_folder(&config.data_dir)
        .map_err(|e| format!("data directory {}: {e}", config.data_dir.display()))?;

    let mut authd = start_authd(&config, &clock, &*rng)?;
    let revisions = Arc::new(PolicyRevisions::new(Reductions::new(&registry, &names)));
    // authd starts meanwhile. The store waits for the disk while certificates and the first random bytes
    // use a processor.
    let (store, tls) =
        tokio::try_join!(open_store(&config, &names, &clock, &revisions, &cache), load_tls(&config, &clock))?;
    let options = AuthOptions {
        socket: authd.socket.clone(),
        timeout: config.authd_timeout,
        proxy_headers: config.proxy_headers.clone(),
    };
    let auth = Auth::connect(options, Arc::clone(&revisions), Arc::clone(&clock))
        .map_err(|_| "the system gave no random bytes".to_owned())?;
    if authd.running.is_some() {
        tokio::select! {
            () = auth.wait_for_connection() => {}
            Ok(()) = &mut authd.rejected => return Err(authd_rejected_flags()),
            () = tokio::time::sleep(AUTHD_START_TIMEOUT) => tracing::warn!("authd start is slow; serving without it"),
        }
    }

    let _reload = tls.spawn_watch(CERT_CHECK_INTERVAL);
    let audit = match &config.audit_log {
        Some(path) => AuditLog::open(path).map_err(|error| format!("{path}: {error}"))?,
        None => AuditLog::off(),
    };
    let listener = Listener::tcp(config.bind_address, config.secure_port).await.map_err(|e| e.to_string())?;
    let address = listener.address().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    write_port(&config.port_file, address.port())?;

    let progress = Arc::new(Progress::default());
    let (stop, stopping) = watch::channel(false);
    let token_key = TokenKey::load_or_create(&*store)
        .await
        .map_err(|error| format!("the store cannot keep the key of continue tokens: {error}"))?;
    let server_state = Arc::new(ServerState::new(Parts {
        health: health(&config, &auth, &store, &progress, &clock),
        names: Arc::clone(&names),
        clock: Arc::clone(&clock),
        rng: Arc::clone(&rng),
        current_registry,
        store: Arc::clone(&store),
        cache,
        token_key,
        auth: Arc::clone(&auth),
        admission,
        audit,
        gates: config.gates.clone(),
        metrics: Arc::new(Metrics::showing_hidden(&config.hidden_metrics)?),
        server_address: connectable_address(address).to_string(),
        stopping,
        request_timeout: config.request_timeout,
        delete_workers: config.delete_workers,
        min_watch_timeout: config.min_request_timeout,
        body_limits: config.body_limits,
    }));
    auth.register_metrics(&server_state.metrics);
    let definitions = Arc::new(background::DefinitionController::new(&server_state));
    definitions
        .load()
        .await
        .map_err(|status| format!("the definitions of custom kinds cannot be read: {status}"))?;
    backend.attach(&server_state);
    admission_writes.attach(&server_state);
    let (drain, draining) = oneshot::channel::<()>();
    let options = ServerOptions { drain: DRAIN_TIMEOUT, ..ServerOptions::default() };
    let api = Api::new(Arc::clone(&server_state))
        .map_err(|error| format!("worker threads cannot start: {error}"))?;
    let server = tokio::spawn(serving::server::serve(
        listener,
        Some(tls),
        Arc::new(api.with_limits(config.max_in_flight.0, config.max_in_flight.1)),
        options,
        async {
            let _ = draining.await;
        },
    ));
    tracing::info!(%address, names = %names.preset(), revision = %store.revision(), "serving requests");

    let stopped = async {
        let mut rejected = std::mem::replace(&mut authd.rejected, oneshot::channel().1);
        tokio::select! {
            ended = start_background_work(&server_state, &config, address, &authd, &progress, definitions) => ended?,
            signal = wait_for_stop_signal() => return signal.map_err(ProcessError::from),
            Ok(()) = &mut rejected => return Err(authd_rejected_flags()),
        }
        tokio::select! {
            signal = wait_for_stop_signal() => signal.map_err(ProcessError::from),
            Ok(()) = &mut rejected => Err(authd_rejected_flags()),
        }
    };
    let stopped = stopped.await;

    progress.stopping.store(true, Ordering::SeqCst);
    if let Some(running) = &authd.running {
        running.begin_shutdown();
    }
    if stopped.is_ok() {
        tokio::time::sleep(config.shutdown_delay).await;
    }
    stop.send_replace(true);
    let _ = drain.send(());
    let _ = server.await;
    store.close().await;
    server_state.audit.close();
    auth.begin_shutdown();
    if let Some(running) = authd.running.take() {
        running.end().await;
    }
    let _ = std::fs::remove_file(&config.port_file);
    stopped
}

/// Starts all writers: built-in namespaces, then the mirror and the start-up objects, then the loops.
async fn start_background_work(
    server_state: &Arc<ServerState>,
    config: &Config,
    bound: SocketAddr,
    authd: &RunningAuthd,
    progress: &Arc<Progress>,
    definitions: Arc<background::DefinitionController>,
) -> Result<(), ProcessError> {
    let accounts = config.controllers_have_accounts;
    background::namespaces::ensure_built_in(server_state)
        .await
        .map_err(|status| format!("cannot create the built-in namespaces: {status}"))?;
    progress.namespaces.store(true, Ordering::SeqCst);
    let (auth, socket) = (Arc::clone(&server_state.auth), authd.socket.clone());
    tokio::spawn(async move { auth.log_outages(&socket).await });
    let mirror = MirrorOptions::new(authd.socket.clone(), &server_state.names, server_state.rng.uuid());
    let writer = Arc::new(background::PolicyWrites::new(Arc::clone(server_state), accounts));
    tokio::spawn(Arc::clone(&server_state.auth).run_mirror(mirror, Arc::clone(&server_state.store), writer));
    tokio::spawn(definitions.run());
    let published = AdvertisedServer::new(config.advertise_address, bound, config.service_ranges.clone());
    let made = Arc::clone(progress);
    tokio::spawn(background::start_objects::run(Arc::clone(server_state), published, move || {
        made.objects.store(true, Ordering::SeqCst);
    }));
    background::publish(server_state, accounts, config.published_config.clone());
    background::start(server_state, accounts, config.garbage_collector, config.event_ttl);
    Ok(())
}

fn authd_rejected_flags() -> ProcessError {
    ProcessError::Usage(vec!["authd rejected its flags; see its message above".to_owned()])
}

async fn wait_for_stop_signal() -> Result<(), String> {
    let told = |error: io::Error| format!("cannot register signal handlers: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(told)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(told)?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "shutdown started");
    Ok(())
}

fn admission(config: &Config, environment: Environment) -> Result<Chain, ProcessError> {
    Chain::new(
        &config.enable_admission,
        &config.disable_admission,
        &config.admission_configuration,
        &environment,
    )
    .map_err(|errors| ProcessError::Usage(errors.iter().map(ToString::to_string).collect()))
}

async fn open_store(
    config: &Config,
    names: &Names,
    clock: &Arc<dyn Clock>,
    revisions: &Arc<PolicyRevisions>,
    cache: &Arc<Cache>,
) -> Result<Arc<dyn Store>, String> {
    let identity =
        fjall::Identity { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() };
    let options = fjall::Options {
        history_retention: config.history_retention,
        quota_bytes: config.storage_quota,
        ..fjall::Options::new(config.data_dir.join(STORE), identity, Arc::clone(clock))
    };
    // The vector precedes the cache: an event becomes visible only after policy writes below it have
    // advanced the vector.
    let observers = Arc::new(Observers(vec![
        Arc::clone(revisions) as Arc<dyn storage::Observer>,
        Arc::clone(cache) as Arc<dyn storage::Observer>,
    ]));
    let opened = tokio::task::spawn_blocking(move || FjallStore::open(options, observers)).await;
    let store: Arc<dyn Store> = match opened {
        Ok(Ok(store)) => Arc::new(store),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(panic) => return Err(format!("opening the store failed: {panic}")),
    };
    revisions.start_at(store.revision());
    cache.attach(&store);
    Ok(store)
}

/// authd as this process uses it: spawned or external.
struct RunningAuthd {
    socket: std::path::PathBuf,
    running: Option<AuthdSupervisor>,
    /// Signalled when authd rejects its command line.
    rejected: oneshot::Receiver<()>,
    /// Keeps `rejected` pending for an external authd.
    _silent: Option<oneshot::Sender<()>>,
    /// Removes a folder created for the socket.
    _socket: Option<spawn::Socket>,
}

fn start_authd(config: &Config, clock: &Arc<dyn Clock>, rng: &dyn Rng) -> Result<RunningAuthd, String> {
    let (refuse, rejected) = oneshot::channel();
    let (program, flags) = match &config.authd {
        Authd::At(socket) => {
            return Ok(RunningAuthd {
                socket: socket.clone(),
                running: None,
                rejected,
                _silent: Some(refuse),
                _socket: None,
            });
        }
        Authd::Spawned { program, flags } => (program, flags),
    };
    // Used when no flag names another key.
    let mut flags = flags.clone();
    flags.push(format!("--generated-key-file={}", config.data_dir.join("service-account.key").display()));
    let program = match program {
        Some(program) => program.clone(),
        None => spawn::find()?,
    };
    let placed = match &config.authd_socket {
        Some(_) => None,
        None => Some(spawn::Socket::place(&config.data_dir, rng).map_err(|error| error.to_string())?),
    };
    let named = config.authd_socket.clone();
    let socket = named.or_else(|| placed.as_ref().map(|s| s.path().to_owned())).unwrap_or_default();
    let running = AuthdSupervisor::start(program, &flags, &socket, Arc::clone(clock), refuse)
        .map_err(|e| e.to_string())?;
    Ok(RunningAuthd { socket, running: Some(running), rejected, _silent: None, _socket: placed })
}

async fn load_tls(config: &Config, clock: &Arc<dyn Clock>) -> Result<Arc<ServingTls>, String> {
    let (given, dir, clock) = (config.tls.clone(), config.cert_dir.clone(), Arc::clone(clock));
    let (hosts, client_cas) = ([config.bind_address.to_string()], config.client_cas.clone());
    let load = move || {
        let (cert, key) = match given {
            Some(pair) => pair,
            None => {
                let pair = serving::certs::ensure_serving_pair(&dir, &hosts, clock.now())
                    .map_err(|error| error.to_string())?;
                (pair.cert, pair.key)
            }
        };
        ServingTls::load(TlsFiles { cert, key, client_cas }).map_err(|error| error.to_string())
    };
    match tokio::task::spawn_blocking(load).await {
        Ok(loaded) => loaded,
        Err(panic) => Err(format!("loading certificates failed: {panic}")),
    }
}

fn write_port(file: &Path, port: u16) -> Result<(), String> {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{port}\n"))
        .and_then(|()| std::fs::rename(&new, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// An address that a client on this machine can connect to.
fn connectable_address(bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), bound.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), bound.port()),
        _ => bound,
    }
}

/// The checks, under the names that Kubernetes uses (requirements D-HEALTH).
fn health(
    config: &Config,
    auth: &Arc<Auth>,
    store: &Arc<dyn Store>,
    progress: &Arc<Progress>,
    clock: &Arc<dyn Clock>,
) -> Health {
    let store_check = |checks: Checks, name: &str| {
        let store = Arc::clone(store);
        checks.with(name, move || store.health().map_err(|error| error.to_string()))
    };
    // During the grace period after the start, `/livez` ignores unfinished start-up work.
    let grace = clock.monotonic() + config.livez_grace;
    let hook = |checks: Checks,
                name: &str,
                lenient: bool,
                done: Box<dyn Fn() -> Result<(), String> + Send + Sync>| {
        let clock = Arc::clone(clock);
        checks.with(&format!("poststarthook/{name}"), move || {
            done().or_else(|why| if lenient && clock.monotonic() < grace { Ok(()) } else { Err(why) })
        })
    };
    let all = |lenient: bool, ready: bool| {
        let mut checks = Checks::new().with("ping", || Ok(())).with("log", serving::log::check);
        checks = store_check(checks, config.names.store_check);
        if ready {
            checks = store_check(checks, &format!("{}-readiness", config.names.store_check));
            checks = checks.with("informer-sync", || Ok(()));
        }
        let made = Arc::clone(progress);
        checks = hook(
            checks,
            "start-system-namespaces-controller",
            lenient,
            Box::new(move || match made.namespaces.load(Ordering::SeqCst) {
                true => Ok(()),
                false => Err("the built-in namespaces are not made yet".to_owned()),
            }),
        );
        let policy = Arc::clone(auth);
        let made = Arc::clone(progress);
        checks = hook(
            checks,
            "rbac/bootstrap-roles",
            lenient,
            // Success is final. The loss of authd is not a reason to restart this process.
            Box::new(move || {
                if made.policy.load(Ordering::SeqCst) || (!ready && policy.unreachable().is_some()) {
                    return Ok(());
                }
                policy.health()?;
                made.policy.store(true, Ordering::SeqCst);
                Ok(())
            }),
        );
        if ready {
            let auth = Arc::clone(auth);
            let noted = Arc::clone(&auth);
            checks = checks.with("authd", move || auth.health()).with_notes(move || noted.notes());
        }
        let objects_made = || {
            let made = Arc::clone(progress);
            move || match made.objects.load(Ordering::SeqCst) {
                true => Ok(()),
                false => Err("the objects of the start are not made yet".to_owned()),
            }
        };
        for name in ["scheduling/bootstrap-system-priority-classes", "priority-and-fairness-config-producer"]
        {
            checks = hook(checks, name, lenient, Box::new(objects_made()));
        }
        checks = checks.with("autoregister-completion", objects_made());
        if config.allows_everything {
            checks = checks.with("warning/every-request-is-allowed", || Ok(()));
        }
        if ready {
            let stopping = Arc::clone(progress);
            checks = checks.with("shutdown", move || match stopping.stopping.load(Ordering::SeqCst) {
                false => Ok(()),
                true => Err("the process is stopping".to_owned()),
            });
        }
        checks
    };
    Health { livez: all(true, false), readyz: all(false, true), healthz: all(false, false) }
}
