//! What a decision costs: in authd, from apid's caches, and from one process to the other; and what authd keeps of a
//! binding. Each line is a figure with its bound.
//!
//! ```text
//! decisions [--others 100000] [--seconds 10] [--rate 5000] [--programs target/release] [--only NAME]
//! ```
//!
//! The policy is that of [`bench::policy`]: a hundred bindings of the caller, 100,000 of others. `apid` is this process, with
//! apid's own client and caches; its CPU time is counted together with that of authd, and what it takes to make the questions is
//! counted too.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apid::auth::{Authenticated, Credentials, Presented, ProxyHeaders};
use apimachinery::clock::{SystemChance, SystemClock};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names};
use authd::authz::webhook::Webhooks;
use authd::authz::{Modes, Question, Settings, Union};
use authd::meters::Meters;
use authd::mirror::Mirror;
use bench::authority::Authority;
use bench::client::Error;
use bench::figure::{Spent, percentile, report};
use bench::{policy, process};
use clap::Parser;
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;

/// As apid and authd allocate.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
struct Args {
    /// Bindings of others
    #[arg(long, default_value_t = 100_000)]
    others: usize,
    /// Seconds of each measure over the socket
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Questions a second of the open loop
    #[arg(long, default_value_t = 5000)]
    rate: u32,
    /// Folder of authd
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
    /// Run only the measures whose name contains this: authd, memory, kept, asked
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> Result<(), Error> {
    let args = Args::parse();
    // As apid's own.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // In a task, as the requests of apid are.
    runtime.block_on(async { tokio::spawn(run(args)).await? })
}

async fn run(args: Args) -> Result<(), Error> {
    let wants = |name: &str| name.contains(&args.only);
    let names = Arc::new(Names::new("svc".parse()?, DEFAULT_API_DOMAIN)?);
    if wants("authd") {
        in_authd(&names, args.others)?;
    }
    if !["memory", "kept", "asked"].into_iter().any(wants) {
        return Ok(());
    }
    let token = "t".repeat(900);
    let mut authority =
        Authority::start(&args.programs, &names, &token, policy::CALLER, policy::own()).await?;
    let before = settled(authority.pid).await?;
    authority.feed((0..args.others).map(|number| policy::other(&names, number))).await?;
    authority.settle().await?;
    if wants("memory") {
        let bytes = (settled(authority.pid).await? - before) * 1024.0 * 1024.0 / args.others as f64;
        report("memory: a binding in authd", bytes, 300.0, "bytes");
    }
    let caller = login(&authority, &names, &token).await?;
    if wants("kept") {
        kept(&authority, &caller, &names, &token).await?;
    }
    if wants("asked") {
        asked_one_by_one(&authority, &caller, args.seconds).await?;
        asked_at_a_rate(&authority, &caller, args.seconds, args.rate).await?;
    }
    authority.stop().await
}

/// Decisions by the modes `Node,RBAC` over a mirror, without a wire.
fn in_authd(names: &Arc<Names>, others: usize) -> Result<(), Error> {
    const ROUNDS: usize = 1_000_000;
    let mirror = Mirror::new(Arc::clone(names));
    let mut feed = mirror.begin();
    let mine = policy::own().into_iter();
    for (revision, object) in (1..).zip(mine.chain((0..others).map(|number| policy::other(names, number)))) {
        feed.put(policy::put(revision, object))?;
    }
    feed.synced(1)?;
    let ground = authd::webhook::Ground {
        names: Arc::clone(names),
        clock: Arc::new(SystemClock::new()),
        chance: Arc::new(SystemChance),
    };
    let settings = Settings {
        names: Arc::clone(names),
        nodes_by_selectors: true,
        policy_file: None,
        webhooks: Webhooks::new(ground),
    };
    let modes = Modes::parse(Some("Node,RBAC")).map_err(|mistakes| mistakes.join("; "))?;
    let union = Union::build(&modes, &settings, &mirror, &Meters::new([])).map_err(|m| m.join("; "))?;

    let caller = policy::caller(names);
    let allowed: Vec<_> =
        (0..policy::OWN).map(|n| policy::request(&format!("kind-{n}"), &format!("object-{n}"))).collect();
    let refused: Vec<_> =
        (0..policy::OWN).map(|n| policy::request(&format!("other-{n}"), &format!("object-{n}"))).collect();
    for (name, requests) in
        [("authd: allowed by one of 100 bindings", allowed), ("authd: refused after 100 bindings", refused)]
    {
        let spent = Spent::begin(&[std::process::id()])?;
        let mut count = 0;
        for attributes in requests.iter().cycle().take(ROUNDS) {
            let question = Question { user: &caller, attributes, at_least: 1, explain: false };
            let answer = union.authorize(question).now_or_never().ok_or("it waits for something")??;
            count += usize::from(black_box(answer).decision.allowed());
        }
        let wanted = if name.contains("allowed") { ROUNDS } else { 0 };
        if count != wanted {
            return Err(format!("{name}: {count} of {wanted} were allowed").into());
        }
        report(name, spent.each(ROUNDS)?, 1.0, "us");
    }
    Ok(())
}

/// Memory of a process once its allocator has given back what it does not need.
async fn settled(pid: u32) -> Result<f64, Error> {
    let mut least = f64::INFINITY;
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        least = least.min(process::resident_mib(pid).ok_or("authd ended")?);
    }
    Ok(least)
}

/// What presents a token.
fn presenting(token: &str, names: &Names) -> Result<Presented, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    Ok(Presented::take(&mut headers, &ProxyHeaders::default(), names))
}

fn credentials(presented: &Presented) -> Credentials<'_> {
    Credentials {
        presented,
        certificate_chain: &[],
        chain_fingerprint: None,
        path: "/api/v1/namespaces/default/configmaps",
        request_id: "bench",
    }
}

async fn login(authority: &Authority, names: &Names, token: &str) -> Result<Authenticated, Error> {
    let presented = presenting(token, names)?;
    let who = authority.auth.authenticate(&credentials(&presented)).await;
    who.map_err(|status| status.message.into())
}

/// What apid's caches add to a request.
async fn kept(
    authority: &Authority,
    caller: &Authenticated,
    names: &Names,
    token: &str,
) -> Result<(), Error> {
    const ROUNDS: usize = 3_000_000;
    let auth = &authority.auth;
    for (name, request) in [
        ("kept: a decision in apid, of one name", policy::request("kind-3", "web")),
        ("kept: a decision in apid, of every name", policy::request("kind-1", "web")),
    ] {
        let request = Arc::new(request);
        // The first one is asked of authd.
        let first = auth.authorize(caller, Arc::clone(&request), "bench").await;
        first.map_err(|refusal| refusal.status.message.clone())?;
        let spent = Spent::begin(&[std::process::id()])?;
        for _ in 0..ROUNDS {
            let decided = auth.authorize(caller, Arc::clone(&request), "bench").await;
            drop(black_box(decided));
        }
        report(name, spent.each(ROUNDS)? * 1e3, 300.0, "ns");
    }
    let presented = presenting(token, names)?;
    let spent = Spent::begin(&[std::process::id()])?;
    for _ in 0..ROUNDS / 3 {
        drop(black_box(auth.authenticate(&credentials(&presented)).await));
    }
    report("kept: an identity in apid, of a token of 900 bytes", spent.each(ROUNDS / 3)?, 2.0, "us");
    Ok(())
}

/// Questions that nothing kept answers: each is about a resource of its own, which the caller may not read.
fn unknown(number: usize) -> Arc<apimachinery::attributes::Attributes> {
    Arc::new(policy::request(&format!("unknown-{number}"), "web"))
}

async fn asked_one_by_one(authority: &Authority, caller: &Authenticated, seconds: u64) -> Result<(), Error> {
    let spent = Spent::begin(&[std::process::id(), authority.pid])?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut took = Vec::new();
    while Instant::now() < end {
        let request = unknown(took.len());
        let begun = Instant::now();
        refused(authority.auth.authorize(caller, request, "bench").await.map(drop))?;
        took.push(begun.elapsed());
    }
    let each = spent.each(took.len())?;
    took.sort_unstable();
    report("asked: one after the other, p50", percentile(&took, 50), 100.0, "us");
    println!("asked: one after the other, p99 {:.0} us", percentile(&took, 99));
    report("asked: one after the other, CPU of both", each, 60.0, "us");
    Ok(())
}

/// An open loop: a thread hands over a question each time one is due, whatever became of those before.
async fn asked_at_a_rate(
    authority: &Authority,
    caller: &Authenticated,
    seconds: u64,
    rate: u32,
) -> Result<(), Error> {
    let count = rate as usize * seconds as usize;
    let took = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let spent = Spent::begin(&[std::process::id(), authority.pid])?;
    let runtime = tokio::runtime::Handle::current();
    let (auth, caller, out) = (Arc::clone(&authority.auth), caller.clone(), Arc::clone(&took));
    let asking = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let mut all = Vec::with_capacity(count);
        for number in 0..count {
            let due = begun + Duration::from_secs(1) * u32::try_from(number).unwrap_or(u32::MAX) / rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (auth, caller, out) = (Arc::clone(&auth), caller.clone(), Arc::clone(&out));
            // From here on: how late the system wakes this thread is not what is measured.
            let handed = Instant::now();
            all.push(runtime.spawn(async move {
                let request = unknown(10_000_000 + number);
                let decided = auth.authorize(&caller, request, "bench").await.map(drop);
                out.lock().push(handed.elapsed());
                decided
            }));
        }
        all
    });
    for one in asking.await? {
        refused(one.await?)?;
    }
    let each = spent.each(count)?;
    let mut took = took.lock().clone();
    took.sort_unstable();
    println!("asked: {rate} a second, p50 {:.0} us", percentile(&took, 50));
    report(&format!("asked: {rate} a second, p99"), percentile(&took, 99), 300.0, "us");
    report(&format!("asked: {rate} a second, CPU of both"), each, 60.0, "us");
    Ok(())
}

/// The answer was a refusal, as it must be, and no failure.
fn refused(decided: Result<(), apid::auth::Refusal>) -> Result<(), Error> {
    match decided {
        Err(refusal) if refusal.status.code == 403 => Ok(()),
        Err(refusal) => Err(refusal.status.message.clone().into()),
        Ok(()) => Err("what nobody granted was allowed".into()),
    }
}
