//! The life of the process from configuration to exit: start-up and shutdown order.
//!
//! # Contract
//!
//! [`run`] serves until SIGTERM or SIGINT. SIGHUP opens the audit log again and reloads changed files.
//! [`run_with`] adds a stop condition and a callback at readiness.
//!
//! Start-up: apid checks that no process has the store open, starts authd, opens the store, binds the port
//! and writes the port to a file. Then apid serves requests. `/readyz` fails until authd has the policy
//! snapshot, and default policy and start-up objects exist.
//!
//! Shutdown: `/readyz` fails, apid gives up its leadership, the shutdown delay passes, watches end, open requests finish,
//! the store closes, authd exits.
//!
//! # Invariants
//!
//! INVARIANT (no store after a rejected command line): a new store is created only after a spawned authd has
//! accepted its flags, or has not responded for some seconds.

mod authd;
mod certificate_renewal;
mod components;
mod encryption_at_rest;
mod error;
mod freshness;
mod health_checks;
mod monitoring;
mod start_retries;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admission::{AdmissionMetrics, Environment};
use apimachinery::clock::{Clock, Rng, SystemClock, SystemRng};
use forwarding::Forwarding;
use kinds::{CurrentRegistry, Registry};
use serving::listener::Listener;
use serving::metrics::Metrics;
use serving::server::ServerOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::build_info::BUILD_INFO;
use crate::config::{Config, STORE, StorageFlags};
use crate::console::fail;
use authclient::{Auth, AuthOptions, PolicyRevisions, Reductions};
use authd::ProcessAuthd;
use controllers::start_objects::AdvertisedServer;
use controllers::{self, AdmissionWrites, ControllerOptions, ControllerState, ServerIdentity};
use error::ProcessError;
use health_checks::{HealthSources, Progress};
use httpapi::{Api, HttpSettings, HttpState};
use monitoring::{FileReloader, follow_states, hangup_signals, register_metrics};
use serving::service_manager::{ServiceManager, ServiceState};
use start_retries::StartRetries;
use verbs::addresses::ServiceAddresses;
use verbs::conversion::{ConversionContext, ConversionMetrics, WebhookConversionClient};
use verbs::{self, AdmissionBackend, ApiState, CurrentKinds, DeclarativeValidation, ReadMetrics, TokenKey};

/// Maximum time for which the shutdown waits for open requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for streams to write their last audit events after the end of all connections that speak HTTP.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which the shutdown waits for the end of the controllers and the release of their Lease.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which the exit waits for blocking tasks.
const RUNTIME_STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Four times the pause between two evictions of compacted events from memory, with the store in etcd.
const HISTORY_OF_ETCD: Duration = Duration::from_secs(20 * 60);

/// Interval of the check whether the parent still exists.
pub(crate) const PARENT_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Idle time after which a thread for blocking tasks ends: each thread retains freed memory.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// An event that ends the process, in addition to SIGTERM and SIGINT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopCondition {
    /// Only SIGTERM and SIGINT.
    #[default]
    Signal,
    /// The exit of the parent process, which has this process id.
    ParentExit(u32),
    /// The end of standard input.
    EndOfInput,
}

/// A function that is called with the bound port when the process is ready. An error ends the process.
pub type OnReady = Box<dyn FnOnce(u16) -> Result<(), OnReadyError> + Send>;

/// The error of an [`OnReady`] function; its type is up to the caller.
pub type OnReadyError = Box<dyn Error + Send + Sync>;

/// The options of [`run_with`]: a stop condition, and a callback at readiness.
#[derive(Default)]
pub struct RunOptions {
    /// The event that ends the process, in addition to the signals.
    pub stop: StopCondition,
    /// Called with the bound port when all readiness checks pass for the first time. An error ends the
    /// process.
    pub on_ready: Option<OnReady>,
}

impl std::fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// Serves the API until the process ends.
///
/// The exit code is 0 after a signal, 64 for an invalid command line, and 1 for any other failure.
pub fn run(config: Config) -> ExitCode {
    run_with(config, RunOptions::default())
}

/// Serves the API as [`run`], with a stop condition besides the signals, and with a callback at readiness.
pub fn run_with(config: Config, options: RunOptions) -> ExitCode {
    let log_flags = &config.flags.shared.log;
    if serving::log::init(log_flags.verbosity, log_flags.logging_format, Arc::new(SystemClock::new()))
        .is_err()
    {
        eprintln!("apid: logging is set up already");
    }
    let build = BUILD_INFO;
    tracing::info!(
        version = build.version,
        commit = build.commit,
        date = build.date(),
        compiler = build.compiler,
        "apid starts"
    );
    for (flag, reason) in &config.unneeded_flags {
        tracing::info!(flag, reason, "flag accepted without an effect");
    }
    for flag in &config.unimplemented_flags {
        tracing::warn!("`--{flag}` is accepted but has no effect yet");
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.allows_everything {
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
        Err(error) => return fail(format_args!("the runtime cannot start: {error}")),
    };
    let result = runtime.block_on(serve(config, options));
    runtime.shutdown_timeout(RUNTIME_STOP_TIMEOUT);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

/// Starts all components, serves until a stop signal, stop condition or error, and shuts down.
async fn serve(mut config: Config, run_options: RunOptions) -> Result<(), ProcessError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng: Arc<dyn Rng> = Arc::new(SystemRng);
    let names = Arc::new(config.names.clone());
    kinds::admission_expressions::choose_dialect(names.preset());
    let current_registry =
        Arc::new(CurrentRegistry::new(Registry::with_versions(&names, &config.enabled_versions)));
    let registry = current_registry.get();
    let caches = components::caches(&config, &registry);
    let backend = Arc::new(AdmissionBackend::new(&registry, caches.clone()));
    let addresses = Arc::new(ServiceAddresses::new(
        &registry,
        Arc::clone(&names),
        Arc::clone(&rng),
        &config.flags.serving.service_cluster_ip_range.0,
        config.flags.serving.service_node_port_range,
    ));
    let admission_writes = Arc::new(AdmissionWrites::default());
    let webhooks = admission::webhook_clients(backend.clone(), &config.forwarding, &names, &clock, &rng);
    let metrics = Metrics::showing_hidden(&config.flags.shared.log.show_hidden_metrics_for_version)
        .map_err(ProcessError::Metrics)?;
    let admission = components::build_admission(
        &config,
        Environment {
            webhooks: Arc::clone(&webhooks),
            metrics: Arc::new(AdmissionMetrics::new(&metrics)),
            gates: config.gates.clone(),
            limits: config.flags.limits.body_limits(),
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
    let is_new_store = !config.data_dir.join(STORE).exists();
    components::create_private_folder(&config.data_dir)?;
    components::check_unlocked_store(&config)?;

    let mut authd = ProcessAuthd::start(&config, &clock, &*rng)?;
    let revisions = Arc::new(PolicyRevisions::new(Reductions::new(&registry, &names)));
    let options = AuthOptions {
        servers: authd.servers().to_vec(),
        instance: rng.uuid(),
        timeout: config.flags.authd.authd_timeout,
        names: Arc::clone(&names),
        proxy_headers: config.proxy_headers.clone(),
    };
    let auth = Auth::connect(options, Arc::clone(&revisions), Arc::clone(&clock))
        .map_err(|_| ProcessError::Random)?;
    // Certificates are loaded or created while authd starts and while the store waits for the disk.
    let readers = (&revisions, &addresses);
    let encryption =
        encryption_at_rest::start(&config, &names, (&clock, &rng), &metrics, &caches, readers).await?;
    let observers = (&revisions, &caches, &addresses);
    let retries = StartRetries::new(
        &config.flags.etcd,
        encryption.as_ref().map(|process| Arc::clone(&process.encryption)),
    );
    let open_stores = components::open_stores(
        &config,
        &names,
        &clock,
        observers,
        (encryption.as_ref(), &retries),
        &metrics,
    );
    let start = authd.wait_for_start(&auth);
    let stores = async {
        if is_new_store {
            start.await?;
            open_stores.await
        } else {
            tokio::try_join!(open_stores, start).map(|(stores, ())| stores)
        }
    };
    let start = async {
        tokio::try_join!(
            stores,
            components::load_tls(&config, &clock),
            components::check_signing_authority(&config)
        )
    };
    let service_manager = ServiceManager::from_environment();
    let (stores, (tls, serving_ca), ()) = service_manager.extend_start(start).await?;
    let store = Arc::clone(&stores.main);

    admission.environment().reservations.share(&store);
    config.published_config.complete(serving_ca, &config.controllers);

    let _reload = tls.spawn_watch();
    if config.tls.is_none() {
        let hosts = components::serving_hosts(&config);
        let (dir, clock) = (config.cert_dir.clone(), Arc::clone(&clock));
        let interval = certificate_renewal::INTERVAL;
        tokio::spawn(certificate_renewal::renew_serving_certificate(dir, hosts, clock, interval));
    }
    let audit = config.flags.audit.open(&names, &clock, &rng).map_err(ProcessError::Audit)?;
    let audit = Arc::new(audit);
    let _policy_watch = audit.watch_policy();
    let (ip, port) = (config.flags.serving.bind_address, config.flags.serving.secure_port);
    let listener = Listener::tcp(ip, port).await.map_err(ProcessError::Bind)?;
    let address = listener.address().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
    components::write_port(&config.port_file, address.port())?;

    let progress = Arc::new(Progress::default());
    let (stop, stopping) = watch::channel(false);
    let load = async || TokenKey::load_or_create(&*store).await.map_err(ProcessError::TokenKey);
    let token_key = retries.run(load).await?;
    let fresh_reads = freshness::start(config.flags.etcd.policy_consistency, &stores, &metrics);
    let separate_store = fresh_reads.as_ref().and_then(|reads| reads.separate_store(&stores, &caches));
    let freshness = fresh_reads.map(|reads| reads.freshness);
    let health = HealthSources {
        config: &config,
        auth: &auth,
        stores: &stores,
        freshness: freshness.as_ref(),
        encryption: encryption.as_ref(),
        tls: &tls,
        progress: &progress,
        clock: &clock,
    }
    .health();
    let conversion = ConversionContext {
        names: Arc::clone(&names),
        rng: Arc::clone(&rng),
        client: Arc::new(WebhookConversionClient::new(webhooks)),
        clock: Arc::clone(&clock),
        metrics: Arc::new(ConversionMetrics::new(&metrics)),
    };
    let forwarding =
        Forwarding::new(config.forwarding.clone(), &clock, &*rng).map_err(ProcessError::Forwarding)?;
    let forwarding = Arc::new(forwarding);
    let api_state = Arc::new(ApiState {
        names: Arc::clone(&names),
        clock,
        rng,
        kinds: CurrentKinds::new(current_registry, caches.clone(), conversion),
        store: Arc::clone(&store),
        cache: Arc::clone(caches.main()),
        separate_store,
        addresses,
        auth: Arc::clone(&auth),
        admission,
        declarative_validation: DeclarativeValidation::new(
            &config.gates,
            verbs::type_table_validator(),
            &metrics,
        ),
        gates: config.gates.clone(),
        forwarding,
        token_key,
        read_metrics: ReadMetrics::new(&metrics),
        body_limits: config.flags.limits.body_limits(),
        min_watch_timeout: config.flags.serving.min_request_timeout,
        stopping,
    });
    auth.register_metrics(&metrics);
    let metrics = Arc::new(metrics);
    let aggregation = Arc::new(components::build_aggregation(&api_state, backend.clone()));
    let http_state = Arc::new(HttpState::new(
        Arc::clone(&api_state),
        Arc::clone(&audit),
        Arc::clone(&metrics),
        health,
        HttpSettings {
            build: BUILD_INFO,
            compatibility_versions: config.compatibility_versions,
            server_address: components::connectable_address(address).to_string(),
            request_timeout: config.flags.serving.request_timeout,
            request_limits: config.flags.limits.request_limits(),
            delete_workers: config.flags.limits.delete_collection_workers,
        },
        Arc::clone(&aggregation),
        freshness,
    ));
    let controller_state = Arc::new(ControllerState::new(
        Arc::clone(&api_state),
        Arc::clone(&audit),
        metrics,
        config.flags.controllers.use_service_account_credentials,
        aggregation,
        http_state.flow_control().cloned(),
        components::leadership(&config, &api_state.clock),
    ));
    let handshake_errors = register_metrics(&http_state.metrics, &tls);
    tokio::spawn(http_state.measure_peaks());
    if let Some(flow_control) = http_state.flow_control() {
        tokio::spawn(Arc::clone(flow_control).run());
    }
    let definitions = Arc::new(controllers::DefinitionController::new(&controller_state));
    let failure = |status| ProcessError::Definitions(Box::new(status));
    retries.run(async || definitions.load().await.map_err(failure)).await?;
    let failure = |status| ProcessError::ApiServices(Box::new(status));
    retries.run(async || controllers::aggregation::load(&controller_state).await.map_err(failure)).await?;
    backend.attach(&api_state);
    admission_writes.attach(&controller_state);
    let (drain, draining) = oneshot::channel::<()>();
    let options = ServerOptions { drain: DRAIN_TIMEOUT, handshake_errors, ..ServerOptions::default() };
    let api = Api::new(Arc::clone(&http_state)).map_err(ProcessError::Workers)?;
    let draining = async {
        let _ = draining.await;
    };
    let server = tokio::spawn(api.serve(listener, Some(Arc::clone(&tls)), options, Box::pin(draining)));
    tracing::info!(%address, names = %names.preset(), revision = store.revision().0, "serving requests");

    let (ready_error_sender, ready_error) = oneshot::channel();
    let readiness = Arc::clone(&progress);
    let streams = Arc::clone(&http_state);
    let starting = service_manager.clone();
    let live_state = Arc::clone(&http_state);
    // A failed liveness check counts only after the start, which has its own timeout.
    let is_ready = Arc::new(AtomicBool::new(false));
    let mark_ready = Arc::clone(&is_ready);
    let ready = async move {
        let ready = readiness.wait_until_ready(&http_state.health.readyz, &http_state.api_state.auth);
        starting.extend_start(ready).await;
        mark_ready.store(true, Ordering::SeqCst);
    };
    let on_ready = move || {
        if let Some(Err(error)) = run_options.on_ready.map(|on_ready| on_ready(address.port())) {
            let _ = ready_error_sender.send(error);
        }
    };
    let file_reloader = FileReloader { tls, audit: Arc::clone(&audit) };
    let reload = move || file_reloader.clone().reload();
    let watchdog = service_manager.clone();
    // A restart would end the requests that need no separate store, and would itself wait for that store.
    let is_alive =
        move || !is_ready.load(Ordering::SeqCst) || live_state.health.livez.passes_ungrouped_checks();
    let states = follow_states(service_manager.clone(), ready, on_ready, hangup_signals(), reload);
    let states = tokio::spawn(async move {
        tokio::join!(states, watchdog.feed_watchdog(is_alive));
    });
    let result = tokio::select! {
        result = run_until_stopped(
            &controller_state,
            &config,
            address,
            &mut authd,
            &progress,
            definitions,
            &retries,
        ) => result,
        () = wait_for_stop_condition(run_options.stop) => Ok(()),
        Ok(error) = ready_error => Err(ProcessError::Ready(error)),
    };

    states.abort();
    service_manager.notify(ServiceState::Stopping);
    progress.begin_shutdown();
    authd.begin_shutdown();
    let delay = async {
        if result.is_ok() {
            tokio::time::sleep(config.flags.serving.shutdown_delay_duration).await;
        }
    };
    // Another apid takes over while this apid still serves.
    tokio::join!(
        delay,
        controller_state.leadership.resign(RESIGN_TIMEOUT),
        controller_state.end_registration(RESIGN_TIMEOUT)
    );
    stop.send_replace(true);
    let _ = drain.send(());
    let _ = server.await;
    streams.finish_streams(STREAM_END_TIMEOUT).await;
    stores.close().await;
    audit.finish_batches().await;
    audit.close();
    auth.connection().begin_shutdown();
    authd.stop().await;
    let _ = std::fs::remove_file(&config.port_file);
    result
}

/// Starts the background work and waits for SIGTERM, SIGINT, or an authd that rejects its command line.
async fn run_until_stopped(
    state: &Arc<ControllerState>,
    config: &Config,
    address: SocketAddr,
    authd: &mut ProcessAuthd,
    progress: &Arc<Progress>,
    definitions: Arc<controllers::DefinitionController>,
    retries: &StartRetries,
) -> Result<(), ProcessError> {
    let background_work = async {
        start_background_work(state, config, address, progress, definitions, retries).await?;
        std::future::pending().await
    };
    tokio::select! {
        result = background_work => result,
        result = wait_for_stop_signal() => result,
        error = authd.wait_for_rejection() => Err(error),
    }
}

/// Creates the built-in namespaces, then starts the policy mirror, the creation of the start-up objects and
/// the background controllers.
async fn start_background_work(
    state: &Arc<ControllerState>,
    config: &Config,
    bound: SocketAddr,
    progress: &Arc<Progress>,
    definitions: Arc<controllers::DefinitionController>,
    retries: &StartRetries,
) -> Result<(), ProcessError> {
    let api_state = &state.api_state;
    let failure = |status| ProcessError::Namespaces(Box::new(status));
    retries.run(async || controllers::namespaces::ensure_built_in(state).await.map_err(failure)).await?;
    progress.complete_namespaces();
    let auth = Arc::clone(&api_state.auth);
    tokio::spawn(async move { auth.log_outages().await });
    let writer = Arc::new(controllers::PolicyWrites::new(Arc::clone(state)));
    let mirror_auth = Arc::clone(&api_state.auth);
    tokio::spawn(mirror_auth.run_mirror(Arc::clone(&api_state.store), writer));
    tokio::spawn(definitions.run());
    let serving_flags = &config.flags.serving;
    let service_ranges = serving_flags.service_cluster_ip_range.0.clone();
    let advertised_server = AdvertisedServer::new(serving_flags.advertise_address, bound, service_ranges);
    let reconciler = serving_flags.endpoint_reconciler();
    tokio::spawn(controllers::start_objects::endpoints::run(
        Arc::clone(state),
        advertised_server.clone(),
        reconciler,
    ));
    let progress = Arc::clone(progress);
    tokio::spawn(controllers::start_objects::run(
        Arc::clone(state),
        advertised_server,
        reconciler,
        move || {
            progress.complete_objects();
        },
    ));
    let StorageFlags { event_ttl, history_retention, .. } = config.flags.storage;
    // etcd removes Events by leases, and the compaction of etcd is its own clock.
    let (event_ttl, history_retention) = match config.flags.etcd.servers().is_empty() {
        true => (event_ttl, history_retention),
        false => (Duration::ZERO, HISTORY_OF_ETCD),
    };
    let server = ServerIdentity {
        host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        port: bound.port(),
    };
    let options = ControllerOptions {
        server,
        enabled: config.controllers.clone(),
        signing: config.certificate_signing.clone(),
        published_config: config.published_config.clone(),
        event_ttl,
        history_retention,
    };
    controllers::start(state, options);
    Ok(())
}

/// Waits for the event of a stop condition.
async fn wait_for_stop_condition(condition: StopCondition) {
    match condition {
        StopCondition::Signal => std::future::pending().await,
        StopCondition::ParentExit(parent) => {
            tracing::warn!(parent, "env test: the process ends with its parent");
            while std::os::unix::process::parent_id() == parent {
                tokio::time::sleep(PARENT_CHECK_INTERVAL).await;
            }
            tracing::info!(parent, "parent process ended; shutdown started");
        }
        StopCondition::EndOfInput => {
            let (end_sender, end_receiver) = oneshot::channel();
            // A thread, not a blocking task: at exit the runtime would wait for the blocking read.
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                let _ = end_sender.send(());
            });
            let _ = end_receiver.await;
            tracing::info!("end of standard input; shutdown started");
        }
    }
}

async fn wait_for_stop_signal() -> Result<(), ProcessError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ProcessError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ProcessError::Signals)?;
    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal, "shutdown started");
    Ok(())
}
