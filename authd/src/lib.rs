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
//! (one file per authorizer). Those use `rules` (roles and bindings), `tokens` (signed tokens) and `mirror`
//! (the policy mirror fed by apid). `controllers` produce the writes of authd. `config` is the command line
//! and its files, which `check` also reads without a server. `live` holds the active configuration.
//!
//! # Invariants
//!
//! INVARIANT (fail closed): a response allows only if an authorizer allowed on policy at least as new as the
//! request demands.
//! INVARIANT (no call back): authd holds no address of apid.

pub mod authn;
pub mod authz;
pub mod check;
pub mod config;
pub mod controllers;
pub mod grpc;
pub mod live;
pub mod meters;
pub mod mirror;
mod monitoring;
pub mod review;
pub mod rules;
mod single_flight_cache;
pub mod tokens;
pub mod webhook;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Rng, SystemClock, SystemRng};
use clap::Parser;
use clap::error::ErrorKind;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use config::{Config, Flags};
use live::Live;
use meters::Meters;
use mirror::Mirror;

/// Exit code for an invalid command line (`EX_USAGE` of sysexits).
const USAGE: u8 = 64;
/// Worker threads of the runtime: one task serves a stream, and there are few streams.
const THREADS: usize = 2;
/// Time that requests in progress may take after the shutdown signal.
const DRAIN: Duration = Duration::from_millis(500);

/// Runs the process until shutdown. `words` is the command line with the program name.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    if words.get(1).is_some_and(|word| word == "check") {
        return check::run(words.into_iter().skip(2));
    }
    let flags = match Flags::try_parse_from(words) {
        Ok(flags) => flags,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            drop(error.print());
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let clock = Arc::new(SystemClock::new());
    if serving::log::init(flags.verbosity, flags.logging_format, clock).is_err() {
        eprintln!("authd: logging is already initialized");
    }
    let (config, built) = match configure(flags) {
        Ok(configured) => configured,
        Err(mistakes) => {
            for mistake in mistakes {
                eprintln!("authd: {mistake}");
            }
            return ExitCode::from(USAGE);
        }
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(serve(config, built)).map_err(|error| error.to_string());
            // A read of standard input cannot be interrupted; the runtime does not wait for it.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(format!("cannot start the tokio runtime: {error}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "authd failed; exiting");
            ExitCode::FAILURE
        }
    }
}

/// The parts built from the checked command line.
struct Components {
    mirror: Arc<Mirror>,
    meters: Arc<Meters>,
    live: Arc<Live>,
}

/// Checks the whole configuration before the process binds a socket.
fn configure(flags: Flags) -> Result<(Config, Components), Vec<String>> {
    let config = Config::check(flags, &SystemClock::new())?;
    let mirror = Mirror::new(Arc::clone(&config.names));
    let metrics =
        serving::metrics::Metrics::showing_hidden(&config.hidden_metrics).map_err(|why| vec![why])?;
    let meters = Meters::in_registry(metrics, authn::Union::methods());
    config.authz.webhooks.measure(meters.webhooks.clone());
    if let Some(webhook) = &config.authn.token_webhook {
        webhook.measure(meters.token_webhook.clone());
    }
    let authn = authn::Union::build(&config.authn, &mirror);
    let authz = authz::Union::build(&config.modes, &config.authz, &mirror, &meters);
    let (authn, authz) = match (authn, authz) {
        (Ok(authn), Ok(authz)) => (authn, authz),
        (authn, authz) => return Err([authn.err(), authz.err()].into_iter().flatten().flatten().collect()),
    };
    let live = Live::new(SystemRng.uuid(), authn, authz, config.modes.warnings.clone());
    Ok((config, Components { mirror, meters, live }))
}

async fn serve(config: Config, built: Components) -> Result<(), Box<dyn std::error::Error>> {
    let Components { mirror, meters, live } = built;
    let parts = grpc::Parts {
        names: Arc::clone(&config.names),
        live,
        issuer: config.authn.issuer.clone(),
        token_controllers: config.token_controllers,
        logins: grpc::Parts::permits(),
        meters: Arc::clone(&meters),
        mirror: Arc::clone(&mirror),
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SystemRng),
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    if let Some(address) = config.metrics_address {
        monitoring::serve(address, Arc::clone(&mirror), Arc::clone(&meters)).await?;
    }
    let Config { authentication, authorization, .. } = config;
    let _authentication = authentication.follow(&config.authn, &mirror, &meters, &parts.live, &parts.clock);
    let _authorization =
        authorization.follow(&config.modes, &config.authz, &mirror, &meters, &parts.live, &parts.clock);
    let _followed = config::reloaded_files::follow(config.followed, &config.authn, &parts.live, &parts.clock);
    let listener = serving::listener::unix(&config.socket)?;
    let in_force = parts.live.now();
    tracing::info!(
        socket = %config.socket.display(), names = %config.names.preset(),
        authentication = ?in_force.authn, authorization = ?in_force.authz, "authd is serving"
    );
    drop(in_force);
    let (reason, drain) = tokio::select! {
        never = grpc::serve(listener, grpc::services(&parts)) => match never {},
        _ = terminate.recv() => ("SIGTERM", DRAIN),
        _ = interrupt.recv() => ("SIGINT", DRAIN),
        () = end_of_stdin(), if config.exit_on_stdin_eof => ("standard input closed by the parent process", Duration::ZERO),
    };
    tracing::info!(reason, "authd is shutting down");
    let _ = std::fs::remove_file(&config.socket);
    // Streams have no end of their own: requests in progress get `drain`, then the connections end with the
    // process.
    tokio::time::sleep(drain).await;
    Ok(())
}

/// Returns when the other end of standard input is closed.
async fn end_of_stdin() {
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0; 256];
    while stdin.read(&mut nothing).await.is_ok_and(|read| read > 0) {}
}
