//! authd: the authentication and authorization sidecar of apid.
//!
//! # Contract
//!
//! [`run`] is the whole process. apid opens the connections; authd never calls apid. authd receives stored
//! objects over the mirror stream and requests its writes over the same stream.
//!
//! # Code map
//!
//! `grpc` (the wire) calls `review` (the review resources), `authn` (one file per authenticator) and `authz`
//! (one file per authorizer). These modules use `rules` (roles and bindings), `tokens` (signed tokens) and
//! `mirror` (the policy mirror fed by apid). `controllers` compute the writes of authd. `config` is the
//! command line and its files, which `check` also reads without a server. `inspect` contains the commands
//! that explain the access control of a running server. `active_config` contains the active configuration,
//! and `reload` replaces it when a file changes.
//!
//! # Invariants
//!
//! INVARIANT (fail closed): a decision allows a request only if the user is a member of `system:masters`, or
//! if an authorizer allows the request. Authorizers read policy only of the minimum revision of the request
//! or newer.
//! INVARIANT (no call back): authd has no address of apid.

pub mod active_config;
pub mod authn;
pub mod authz;
mod build_info;
pub mod check;
mod command_line;
mod command_list;
mod commands;
pub mod config;
pub mod config_error;
pub mod controllers;
pub mod grpc;
mod inspect;
pub mod mirror;
mod monitoring;
pub mod reload;
pub mod review;
pub mod rules;
mod single_flight_cache;
mod token_input;
pub mod tokens;
pub mod webhook;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Rng, SystemClock, SystemRng};
use apimachinery::names::Names;
use processflags::command_line::text_arguments;
use serving::listener::Listener;
use serving::service_manager::{ServiceManager, ServiceState};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use active_config::SharedConfig;
use command_line::{print_errors, with_configuration_file};
use config::listen::Listeners;
use config::{Config, Flags};
use config_error::ConfigError;
use grpc::metrics::RequestMetrics;
use mirror::Mirrors;

/// The number of threads of the tokio runtime. Few are enough: one task serves each decision stream.
const WORKER_THREADS: usize = 2;
/// The time for which the process serves requests in progress after the shutdown signal.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// Runs the process until shutdown. `arguments` is the command line with the program name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_command = |word: &OsString| !word.is_empty() && !word.as_encoded_bytes().starts_with(b"-");
    if arguments.get(1).is_some_and(is_command) {
        return commands::run(arguments.into_iter().skip(1).collect());
    }
    let text_arguments = text_arguments(arguments.into_iter().skip(1));
    let (words, file) = match text_arguments.and_then(with_configuration_file) {
        Ok(merged) => merged,
        Err(flag_errors) => return print_errors(flag_errors),
    };
    let (flags, mut flag_errors) = match command_line::parse(words) {
        Ok(parsed) => parsed,
        Err(exit_code) => return exit_code,
    };
    let names = &flags.shared.names;
    // `configure` reports invalid names.
    if let (Some(file), Ok(names)) = (file, Names::new(names.names, &names.api_domain)) {
        flag_errors.extend(file.check_version(&names).err());
    }
    let clock = Arc::new(SystemClock::new());
    if serving::log::init(flags.shared.log.verbosity, flags.shared.log.logging_format, clock).is_err() {
        eprintln!("authd: logging is already initialized");
    }
    let (config, components) = match configure(flags) {
        Ok(configured) => configured,
        Err(errors) => {
            return print_errors(flag_errors.into_iter().chain(errors.iter().map(ToString::to_string)));
        }
    };
    if !flag_errors.is_empty() {
        return print_errors(flag_errors);
    }
    let build = build_info::BUILD_INFO;
    tracing::info!(
        version = build.version,
        commit = build.commit,
        date = build.date(),
        compiler = build.compiler,
        "authd starts"
    );
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the tokio runtime: {error}"));
    let result = runtime.and_then(|runtime| {
        let result = runtime.block_on(serve(config, components)).map_err(|error| error.to_string());
        // A read of standard input cannot be interrupted; the runtime does not wait for it.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "authd failed; exiting");
            ExitCode::FAILURE
        }
    }
}

/// Checks the whole configuration and builds the components, before the process binds a socket.
fn configure(flags: Flags) -> Result<(Config, grpc::Components), Vec<ConfigError>> {
    let clock = SystemClock::new();
    expressions::Dialect::of(flags.shared.names.names).choose();
    let config = Config::check(flags, &clock)?;
    let mirrors = Mirrors::new(Arc::clone(&config.names), config.controllers.aggregation);
    let authn = authn::AuthenticatorUnion::build(&config.authn);
    let authz = authz::Union::build(&config.modes, &config.authz)?;
    let components = grpc::Components {
        names: Arc::clone(&config.names),
        config: SharedConfig::new(SystemRng.uuid(), authn, authz, config.modes.warnings.clone()),
        issuer: config.authn.issuer.clone(),
        controllers: config.controllers,
        metrics: RequestMetrics::register(&config.metrics, authn::AuthenticatorUnion::methods()),
        mirrors,
        clock: Arc::new(clock),
        rng: Arc::new(SystemRng),
    };
    Ok((config, components))
}

async fn serve(config: Config, components: grpc::Components) -> Result<(), Box<dyn std::error::Error>> {
    let grpc::Components { config: shared_config, mirrors, clock, .. } = &components;
    // SIGHUP makes the watches check their files.
    // This handler keeps SIGHUP from ending a process without watches.
    let _hangups = serving::reload::hangups();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    if let Some(address) = config.metrics_address {
        monitoring::serve(address, mirrors, &config.metrics).await?;
    }
    let context = reload::Context {
        config: Arc::clone(shared_config),
        metrics: Arc::clone(&config.metrics),
        clock: Arc::clone(clock),
    };
    let Config { authn, authz, modes, authorization_webhooks, .. } = config;
    let _authentication = reload::authentication::watch(config.authentication, &authn, &context);
    let _authorization =
        reload::authorization::watch(config.authorization, &modes, &authz, authorization_webhooks, &context);
    let _files = reload::certificates_and_keys::watch(config.reloaded_files, &authn, &context);
    let Listeners { socket, tcp } = config.listeners;
    let (socket_path, socket) = match socket {
        Some((path, mode)) => (Some(path.clone()), Some(serving::listener::unix_with_mode(&path, mode)?)),
        None => (None, None),
    };
    let (tcp_address, tcp) = match tcp {
        Some((address, tls)) => {
            let listener = Listener::tcp(address.ip(), address.port()).await?;
            (listener.address(), Some((listener, tls)))
        }
        None => (None, None),
    };
    let service_manager = ServiceManager::from_environment();
    service_manager.notify(ServiceState::Ready);
    let active = shared_config.current();
    tracing::info!(
        socket = socket_path.as_ref().map(|path| path.display().to_string()),
        address = tcp_address.map(|address| address.to_string()), names = %config.names.preset(),
        authentication = ?active.authn, authorization = ?active.authz, "authd is serving"
    );
    drop(active);
    let (reason, drain) = tokio::select! {
        never = grpc::serve(socket, tcp, grpc::services(&components)) => match never {},
        never = service_manager.feed_watchdog(|| true) => match never {},
        _ = terminate.recv() => ("SIGTERM", DRAIN_TIME),
        _ = interrupt.recv() => ("SIGINT", DRAIN_TIME),
        () = wait_for_stdin_eof(), if config.exit_on_stdin_eof => ("standard input closed by the parent process", Duration::ZERO),
    };
    tracing::info!(reason, "authd is shutting down");
    service_manager.notify(ServiceState::Stopping);
    if let Some(path) = socket_path {
        let _ = std::fs::remove_file(path);
    }
    // The streams of apid do not end by themselves. Requests in progress get the time `drain`; then the
    // process exits and ends the connections.
    tokio::time::sleep(drain).await;
    Ok(())
}

/// Returns when standard input is closed, or cannot be read.
async fn wait_for_stdin_eof() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 256];
    while stdin.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}
