//! Cost of an authorization decision in authd, from the caches of apid, and between both processes.
//!
//! The program also measures the memory of a binding in authd. Each line is a figure with its limit.
//!
//! ```text
//! decisions [--others 100000] [--seconds 10] [--rate 5000] [--only NAME]
//! ```
//!
//! The policy is that of [`bench::policy`]: a hundred bindings of the measured user, 100,000 of other users.
//! This process takes the role of `apid`, with its authorization client and caches; CPU time is that of both
//! processes. At a fixed rate, requests come from another process, as in apid: this program with
//! `--arrivals`, whose CPU time does not count.
//!
//! The report also contains the shortest exchange of the machine: two threads that do no other work exchange
//! the same number of bytes. If processors sleep between two messages, waking them takes most of the time.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::names::{DEFAULT_API_DOMAIN, Names};
use authclient::{Credentials, HeaderCredentials, Identity, ProxyHeaders};
use authd::authz::{AuthzRequest, Modes, Settings, Union};
use authd::config_error::ConfigError;
use authd::mirror::Mirror;
use authd::webhook::WebhookContext;
use bench::authd_process::AuthdProcess;
use bench::client::Error;
use bench::figure::{CpuMeter, Limits, percentile, report};
use bench::{policy, process};
use clap::Parser;
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// The allocator of apid and authd.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Sizes in bytes of a request and its response on the wire.
const REQUEST_BYTES: usize = 226;
const RESPONSE_BYTES: usize = 84;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Bindings of other users
    #[arg(long, default_value_t = 100_000)]
    others: usize,
    /// Seconds of each measurement over the socket
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Requests per second of the open loop
    #[arg(long, default_value_t = 5000)]
    rate: u32,
    /// Run only the measurements whose name contains this: authd, memory, cached, socket
    #[arg(long, default_value = "")]
    only: String,
    /// Generate arrivals: this many, one byte of standard output each, at the rate
    #[arg(long, hide = true)]
    arrivals: Option<u32>,
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    if let Some(count) = args.arrivals {
        return send_arrivals(count, args.rate);
    }
    // A runtime with the settings of that of apid.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The measurement runs in a task, as the requests of apid do.
    let limits = args.limits;
    runtime.block_on(async { tokio::spawn(run(args)).await? })?;
    limits.finish()
}

async fn run(args: Args) -> Result<(), Error> {
    let is_selected = |name: &str| name.contains(&args.only);
    let names = Arc::new(Names::new("svc".parse()?, DEFAULT_API_DOMAIN)?);
    if is_selected("authd") {
        measure_authd_decisions(&names, args.others)?;
    }
    if !["memory", "cached", "socket"].into_iter().any(is_selected) {
        return Ok(());
    }
    let token = "t".repeat(900);
    let mut authd_process = AuthdProcess::start(&names, &token, policy::USER, policy::user_objects()).await?;
    let before = settled_memory_mib(authd_process.pid).await?;
    authd_process.feed((0..args.others).map(|number| policy::unrelated_binding(&names, number))).await?;
    authd_process.settle().await?;
    if is_selected("memory") {
        let bytes =
            (settled_memory_mib(authd_process.pid).await? - before) * 1024.0 * 1024.0 / args.others as f64;
        report("memory: a binding in authd", bytes, 300.0, "bytes");
    }
    let caller = login(&authd_process, &names, &token).await?;
    if is_selected("cached") {
        measure_apid_caches(&authd_process, &caller, &names, &token).await?;
    }
    if is_selected("socket") {
        measure_minimal_exchange()?;
        measure_sequential_requests(&authd_process, &caller, args.seconds).await?;
        measure_open_loop(&authd_process, &caller, args.seconds, args.rate).await?;
    }
    authd_process.stop().await
}

/// Measures the CPU time of decisions with `--authorization-mode=Node,RBAC`, on a policy mirror in this
/// process.
fn measure_authd_decisions(names: &Arc<Names>, others: usize) -> Result<(), Error> {
    const ROUNDS: usize = 1_000_000;
    let mirror = Mirror::new(Arc::clone(names));
    let mut feed = mirror.begin();
    let user_objects = policy::user_objects().into_iter();
    for (revision, object) in
        (1..).zip(user_objects.chain((0..others).map(|number| policy::unrelated_binding(names, number))))
    {
        feed.put(policy::put(revision, object))?;
    }
    feed.synced(1)?;
    let settings = Settings::new(WebhookContext::new(Arc::clone(names), Arc::default()));
    let join =
        |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let modes = Modes::parse(Some("Node,RBAC")).map_err(join)?;
    let union = Union::build(&modes, &settings).map_err(join)?;

    let caller = policy::caller(names);
    let allowed: Vec<_> = (0..policy::USER_BINDINGS)
        .map(|n| policy::request(&format!("kind-{n}"), &format!("object-{n}")))
        .collect();
    let denied: Vec<_> = (0..policy::USER_BINDINGS)
        .map(|n| policy::request(&format!("other-{n}"), &format!("object-{n}")))
        .collect();
    for (name, requests) in
        [("authd: allowed by one of 100 bindings", allowed), ("authd: denied after 100 bindings", denied)]
    {
        let cpu = CpuMeter::begin(&[std::process::id()])?;
        let mut count = 0;
        for attributes in requests.iter().cycle().take(ROUNDS) {
            let request = AuthzRequest { user: &caller, attributes, at_least: mirror.at_least(1) };
            let response =
                union.authorize(request).now_or_never().ok_or("the decision is not immediate")??;
            count += usize::from(black_box(response).decision.allowed());
        }
        let expected = if name.contains("allowed") { ROUNDS } else { 0 };
        if count != expected {
            return Err(format!("{name}: {count} of {expected} were allowed").into());
        }
        report(name, cpu.micros_per_item(ROUNDS)?, 1.0, "us");
    }
    Ok(())
}

/// Returns the lowest resident memory of a process within 15 seconds, in MiB.
///
/// By then, the allocator of the process has returned unused memory.
async fn settled_memory_mib(pid: u32) -> Result<f64, Error> {
    let mut least = f64::INFINITY;
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        least = least.min(process::resident_mib(pid).ok_or("authd ended")?);
    }
    Ok(least)
}

/// Builds the header credentials of a request with a bearer token.
fn bearer_request(token: &str, names: &Names) -> Result<HeaderCredentials, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    Ok(HeaderCredentials::take(&mut headers, &ProxyHeaders::default(), names))
}

fn credentials(header_credentials: &HeaderCredentials) -> Credentials<'_> {
    Credentials {
        header_credentials,
        certificate_chain: &[],
        chain_fingerprint: None,
        impersonation_headers: None,
        path: "/api/v1/namespaces/default/configmaps",
        request_id: "bench",
    }
}

async fn login(authd_process: &AuthdProcess, names: &Names, token: &str) -> Result<Identity, Error> {
    let header_credentials = bearer_request(token, names)?;
    let client = authd_process.auth.authenticate(&credentials(&header_credentials)).await;
    client.map_err(|status| status.message.into())
}

/// Measures the CPU time of a decision and of an authentication that the caches of apid answer.
async fn measure_apid_caches(
    authd_process: &AuthdProcess,
    caller: &Identity,
    names: &Names,
    token: &str,
) -> Result<(), Error> {
    const ROUNDS: usize = 3_000_000;
    let auth = &authd_process.auth;
    for (name, request) in [
        ("cached: a decision in apid, for one name", policy::request("kind-3", "web")),
        ("cached: a decision in apid, for any name", policy::request("kind-1", "web")),
    ] {
        let request = Arc::new(request);
        // The first request is not measured, because authd decides it.
        let first = auth.authorize(caller, Arc::clone(&request), "bench").await;
        first.map_err(|rejection| rejection.status.message.clone())?;
        let cpu = CpuMeter::begin(&[std::process::id()])?;
        for _ in 0..ROUNDS {
            let result = auth.authorize(caller, Arc::clone(&request), "bench").await;
            drop(black_box(result));
        }
        report(name, cpu.micros_per_item(ROUNDS)? * 1e3, 400.0, "ns");
    }
    let header_credentials = bearer_request(token, names)?;
    let cpu = CpuMeter::begin(&[std::process::id()])?;
    for _ in 0..ROUNDS / 3 {
        drop(black_box(auth.authenticate(&credentials(&header_credentials)).await));
    }
    report(
        "cached: an identity in apid, for a token of 900 bytes",
        cpu.micros_per_item(ROUNDS / 3)?,
        2.0,
        "us",
    );
    Ok(())
}

/// Builds a request that no cache answers: each for its own resource, which the user may not read.
fn uncached_request(number: usize) -> Arc<apimachinery::attributes::Attributes> {
    Arc::new(policy::request(&format!("unknown-{number}"), "web"))
}

async fn measure_sequential_requests(
    authd_process: &AuthdProcess,
    caller: &Identity,
    seconds: u64,
) -> Result<(), Error> {
    let cpu = CpuMeter::begin(&[std::process::id(), authd_process.pid])?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let request = uncached_request(latencies.len());
        let started = Instant::now();
        expect_denied(authd_process.auth.authorize(caller, request, "bench").await.map(drop))?;
        latencies.push(started.elapsed());
    }
    let cpu_each = cpu.micros_per_item(latencies.len())?;
    latencies.sort_unstable();
    report("socket: sequential, p50", percentile(&latencies, 50), 100.0, "us");
    println!("socket: sequential, p99 {:.0} us", percentile(&latencies, 99));
    report("socket: sequential, CPU of both processes", cpu_each, 60.0, "us");
    Ok(())
}

/// Measures an exchange of the same number of bytes between two threads that do no other work. The result is
/// a lower bound for the exchange between apid and authd.
fn measure_minimal_exchange() -> Result<(), Error> {
    const ROUNDS: usize = 20_000;
    let (mut client, mut server) = UnixStream::pair()?;
    let responder = std::thread::spawn(move || -> std::io::Result<()> {
        let mut request = [0; REQUEST_BYTES];
        for _ in 0..ROUNDS {
            server.read_exact(&mut request)?;
            server.write_all(&[0; RESPONSE_BYTES])?;
        }
        Ok(())
    });
    let cpu = CpuMeter::begin(&[std::process::id()])?;
    let mut latencies = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        client.write_all(&[0; REQUEST_BYTES])?;
        client.read_exact(&mut [0; RESPONSE_BYTES])?;
        latencies.push(started.elapsed());
    }
    let cpu_each = cpu.micros_per_item(ROUNDS)?;
    responder.join().map_err(|_| "the other thread panicked")??;
    latencies.sort_unstable();
    println!(
        "socket: minimal exchange on this machine, p50 {:.0} us, CPU of both processes {cpu_each:.0} us",
        percentile(&latencies, 50)
    );
    Ok(())
}

/// Writes a byte to standard output at each time at which a request is due, `rate` per second.
fn send_arrivals(count: u32, rate: u32) -> Result<(), Error> {
    let started = Instant::now();
    let mut out = std::io::stdout().lock();
    for number in 0..count {
        let due = started + Duration::from_secs(1) * number / rate;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        out.write_all(&[0])?;
        out.flush()?;
    }
    Ok(())
}

/// Measures requests at a fixed rate. Each starts when it is due, even if earlier ones have no response yet.
async fn measure_open_loop(
    authd_process: &AuthdProcess,
    caller: &Identity,
    seconds: u64,
    rate: u32,
) -> Result<(), Error> {
    let count = rate * u32::try_from(seconds)?;
    let latencies = Arc::new(Mutex::new(Vec::with_capacity(count as usize)));
    let mut child = std::process::Command::new(std::env::current_exe()?)
        .args(["--arrivals", &count.to_string(), "--rate", &rate.to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let arrivals = child.stdout.take().ok_or("it has no standard output")?;
    let mut arrivals = pipe::Receiver::from_owned_fd(arrivals.into())?;
    let cpu = CpuMeter::begin(&[std::process::id(), authd_process.pid])?;
    let mut tasks = Vec::with_capacity(count as usize);
    let mut bytes = [0; 64];
    loop {
        let due_requests = arrivals.read(&mut bytes).await?;
        if due_requests == 0 {
            break;
        }
        for _ in 0..due_requests {
            let (auth, caller, latencies) =
                (Arc::clone(&authd_process.auth), caller.clone(), Arc::clone(&latencies));
            let request = uncached_request(10_000_000 + tasks.len());
            let started = Instant::now();
            tasks.push(tokio::spawn(async move {
                let result = auth.authorize(&caller, request, "bench").await.map(drop);
                latencies.lock().push(started.elapsed());
                result
            }));
        }
    }
    if tasks.len() != count as usize {
        return Err(format!("{} of {count} requests arrived", tasks.len()).into());
    }
    for task in tasks {
        expect_denied(task.await?)?;
    }
    let cpu_each = cpu.micros_per_item(count as usize)?;
    child.wait()?;
    let mut latencies = latencies.lock().clone();
    latencies.sort_unstable();
    println!(
        "socket: {rate} a second, p50 {:.0} us, p90 {:.0} us",
        percentile(&latencies, 50),
        percentile(&latencies, 90)
    );
    report(&format!("socket: {rate} a second, p99"), percentile(&latencies, 99), 300.0, "us");
    report(&format!("socket: {rate} a second, CPU of both processes"), cpu_each, 60.0, "us");
    Ok(())
}

/// Checks that the authorizer denied a request. Neither a failure nor an allowed request passes.
fn expect_denied(result: Result<(), authclient::Rejection>) -> Result<(), Error> {
    match result {
        Err(rejection) if rejection.status.code == 403 => Ok(()),
        Err(rejection) => Err(rejection.status.message.clone().into()),
        Ok(()) => Err("a request without permission was allowed".into()),
    }
}
