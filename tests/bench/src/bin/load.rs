//! Load on any server of the resource API, in requests per second and per CPU-second of given processes, beside the bare
//! server that answers the same bytes.
//!
//! ```text
//! load --server https://127.0.0.1:6443 --token TOKEN --pid APID --pid AUTHD [--seconds 5] [--clients 16]
//! ```
//!
//! Makes the namespace `bench-load`, fills it, and removes it at the end. The server's address is a loopback address.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::client::{Error, Target};
use bench::process;
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const NAMESPACE: &str = "bench-load";
const OBJECT_BYTES: usize = 1000;

#[derive(Parser)]
struct Args {
    /// The server, for example https://127.0.0.1:6443
    #[arg(long)]
    server: String,
    /// Bearer token of a user who may do everything
    #[arg(long, default_value = "")]
    token: String,
    /// Processes whose CPU time counts (repeatable)
    #[arg(long)]
    pid: Vec<u32>,
    /// Seconds of each measure
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Clients at a time, a connection each
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Watchers of the fan-out
    #[arg(long, default_value_t = 200)]
    watchers: usize,
    /// Run only the measures whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// What one measure gave.
struct Figure {
    per_second: f64,
    per_cpu_second: f64,
    p50: Duration,
    p99: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let target = Target::new(&args.server, &args.token)?;
    setup(&target).await?;
    println!(
        "{:<18} {:>12} {:>14} {:>9} {:>9}   beside the bare server",
        "measure", "per second", "per CPU-second", "p50 ms", "p99 ms"
    );
    let one = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/item-0");
    let list = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    for (name, path) in [
        ("get", one),
        ("list 500 x 1 kB", format!("{list}?limit=500")),
        ("list 5000 x 1 kB", format!("{list}?limit=5000")),
    ] {
        if name.contains(&args.only) {
            reads(&args, &target, name, &path).await?;
        }
    }
    if "create".contains(&args.only) {
        creates(&args, &target).await?;
    }
    if "watch fan-out".contains(&args.only) {
        fan_out(&args, &target).await?;
    }
    let mut connection = target.connect().await?;
    connection.call(Method::DELETE, &format!("/api/v1/namespaces/{NAMESPACE}"), Bytes::new()).await?;
    Ok(())
}

fn config_map(name: &str) -> Bytes {
    let data = json!({"text": "x".repeat(OBJECT_BYTES)});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    Bytes::from(object.to_string())
}

async fn setup(target: &Target) -> Result<(), Error> {
    let mut connection = target.connect().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let (status, body) =
        connection.call(Method::POST, "/api/v1/namespaces", Bytes::from(namespace.to_string())).await?;
    if status != StatusCode::CREATED && status != StatusCode::CONFLICT {
        return Err(
            format!("the namespace could not be made: {status}: {}", String::from_utf8_lossy(&body)).into()
        );
    }
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..32 {
        let (target, path, next) = (target.clone(), path.clone(), next.clone());
        tasks.push(tokio::spawn(async move {
            let mut connection = target.connect().await?;
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= 5000 {
                    return Ok::<(), Error>(());
                }
                let (status, _) =
                    connection.call(Method::POST, &path, config_map(&format!("item-{i}"))).await?;
                if status != StatusCode::CREATED && status != StatusCode::CONFLICT {
                    return Err(format!("filling the namespace: {status}").into());
                }
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Reads of one path, here and on the bare server.
async fn reads(args: &Args, target: &Target, name: &str, path: &str) -> Result<(), Error> {
    let (status, body) = target.connect().await?.call(Method::GET, path, Bytes::new()).await?;
    if status != StatusCode::OK {
        return Err(format!("{name}: {status}").into());
    }
    let read = path.to_owned();
    let make = move |_, _| (read.clone(), Bytes::new());
    let ours = closed_loop(args, target, &args.pid, Method::GET, StatusCode::OK, make).await?;
    let (bare, pid, _child) = bare_server(&body).await?;
    let theirs =
        closed_loop(args, &bare, &[pid], Method::GET, StatusCode::OK, |_, _| ("/".to_owned(), Bytes::new()))
            .await?;
    report(name, &ours, &theirs);
    Ok(())
}

async fn creates(args: &Args, target: &Target) -> Result<(), Error> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let body = config_map("as-large-as-an-answer-to-a-create");
    let make = move |client: usize, i: u64| (path.clone(), config_map(&format!("new-{client}-{i}")));
    let ours = closed_loop(args, target, &args.pid, Method::POST, StatusCode::CREATED, make.clone()).await?;
    let (bare, pid, _child) = bare_server(&body).await?;
    let theirs = closed_loop(args, &bare, &[pid], Method::POST, StatusCode::CREATED, make).await?;
    report("create 1 kB", &ours, &theirs);
    Ok(())
}

/// `clients` connections, each with one request under way at a time.
async fn closed_loop<F>(
    args: &Args,
    target: &Target,
    pids: &[u32],
    method: Method,
    want: StatusCode,
    make: F,
) -> Result<Figure, Error>
where
    F: Fn(usize, u64) -> (String, Bytes) + Send + Sync + Clone + 'static,
{
    let stop = Arc::new(AtomicBool::new(false));
    let (cpu, start) = (process::cpu_seconds(pids), Instant::now());
    let mut tasks = Vec::new();
    for client in 0..args.clients {
        let (target, method, make, stop) = (target.clone(), method.clone(), make.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut connection = target.connect().await?;
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let (path, body) = make(client, times.len() as u64);
                let sent = Instant::now();
                let (status, _) = connection.call(method.clone(), &path, body).await?;
                if status != want {
                    return Err::<Vec<Duration>, Error>(format!("{method} {path}: {status}").into());
                }
                times.push(sent.elapsed());
            }
            Ok(times)
        }));
    }
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(figure(times, start.elapsed(), cpu, pids))
}

/// Events delivered to many watchers while a few writers create objects.
async fn fan_out(args: &Args, target: &Target) -> Result<(), Error> {
    let list = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let body = config_map("fan-out");
    let mut event = b"{\"type\":\"ADDED\",\"object\":".to_vec();
    event.extend_from_slice(&body);
    event.extend_from_slice(b"}\n");
    let ours = deliveries(
        args,
        target,
        &args.pid,
        &format!("{list}?watch=1&fieldSelector=metadata.namespace%3D{NAMESPACE}"),
        &list,
    )
    .await?;
    let (bare, pid, _child) = bare_server(&Bytes::from(event)).await?;
    let theirs = deliveries(args, &bare, &[pid], "/?watch=1", "/").await?;
    report(&format!("fan-out to {}", args.watchers), &ours, &theirs);
    Ok(())
}

async fn deliveries(
    args: &Args,
    target: &Target,
    pids: &[u32],
    watch: &str,
    create: &str,
) -> Result<Figure, Error> {
    let (delivered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let current = current_revision(target, create).await.unwrap_or_default();
    let mut tasks = Vec::new();
    for _ in 0..args.watchers {
        let mut connection = target.connect().await?;
        let response = connection.open(Method::GET, &format!("{watch}{current}"), Bytes::new()).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("watch: {}", response.status()).into());
        }
        let delivered = delivered.clone();
        tasks.push(tokio::spawn(async move {
            let mut body = response.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                if let Some(data) = frame.data_ref() {
                    let events = data.iter().filter(|byte| **byte == b'\n').count() as u64;
                    delivered.fetch_add(events, Ordering::Relaxed);
                }
            }
            drop(connection);
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    delivered.store(0, Ordering::Relaxed);
    let (cpu, start) = (process::cpu_seconds(pids), Instant::now());
    let mut writers = Vec::new();
    for writer in 0..4 {
        let (target, create, stop) = (target.clone(), create.to_owned(), stop.clone());
        let seed = start.elapsed().as_nanos();
        writers.push(tokio::spawn(async move {
            let mut connection = target.connect().await?;
            let mut i = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let name = format!("event-{seed}-{writer}-{i}");
                connection.call(Method::POST, &create, config_map(&name)).await?;
                i += 1;
            }
            Ok::<(), Error>(())
        }));
    }
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    let (count, elapsed) = (delivered.load(Ordering::Relaxed), start.elapsed());
    let used = cpu_used(cpu, pids);
    for task in tasks {
        task.abort();
    }
    Ok(Figure {
        per_second: count as f64 / elapsed.as_secs_f64(),
        per_cpu_second: count as f64 / used,
        p50: Duration::ZERO,
        p99: Duration::ZERO,
    })
}

/// `&resourceVersion=N` of the collection, so that a watch begins with what comes. None for the bare server.
async fn current_revision(target: &Target, list: &str) -> Option<String> {
    let path = format!("{list}?limit=1");
    let (_, body) = target.connect().await.ok()?.call(Method::GET, &path, Bytes::new()).await.ok()?;
    let value: serde_json::Value = serde_json::from_slice(&body).ok()?;
    Some(format!("&resourceVersion={}", value.get("metadata")?.get("resourceVersion")?.as_str()?))
}

fn figure(mut times: Vec<Duration>, elapsed: Duration, cpu: Option<f64>, pids: &[u32]) -> Figure {
    times.sort_unstable();
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default();
    Figure {
        per_second: times.len() as f64 / elapsed.as_secs_f64(),
        per_cpu_second: times.len() as f64 / cpu_used(cpu, pids),
        p50: at(0.5),
        p99: at(0.99),
    }
}

fn cpu_used(before: Option<f64>, pids: &[u32]) -> f64 {
    match (before, process::cpu_seconds(pids)) {
        (Some(before), Some(after)) if after > before => after - before,
        _ => f64::NAN,
    }
}

fn report(name: &str, ours: &Figure, bare: &Figure) {
    println!(
        "{name:<18} {:>12.0} {:>14.0} {:>9.2} {:>9.2}   {:>10.0} per second, {:>10.0} per CPU-second: {:.0}%",
        ours.per_second,
        ours.per_cpu_second,
        ours.p50.as_secs_f64() * 1e3,
        ours.p99.as_secs_f64() * 1e3,
        bare.per_second,
        bare.per_cpu_second,
        100.0 * ours.per_cpu_second / bare.per_cpu_second,
    );
}

/// Starts the bare server with a body; it ends when the handle is dropped.
async fn bare_server(body: &Bytes) -> Result<(Target, u32, tokio::process::Child), Error> {
    let program = std::env::current_exe()?.with_file_name("bare");
    let mut child = tokio::process::Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    stdin.write_all(body).await?;
    drop(stdin);
    let stdout = child.stdout.take().ok_or("no standard output")?;
    let port = BufReader::new(stdout).lines().next_line().await?.ok_or("the bare server printed no port")?;
    let pid = child.id().ok_or("the bare server ended")?;
    Ok((Target::new(&format!("https://127.0.0.1:{port}"), "")?, pid, child))
}
