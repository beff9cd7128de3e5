//! Latency of polite clients beside a greedy one, and the even division of the server among equal clients.
//!
//! ```text
//! fairness [--seconds 10] [--objects 50000] [--check]
//! ```
//!
//! The command starts apid and authd from the directory of this program. All clients are service accounts, so they have
//! flows of one priority level; none is exempt.
//!
//! 1. Ten polite clients read one object, and write a small one with each tenth request, at a fixed rate: first alone,
//!    then beside the greedy client. Latency counts from the time at which a request is due.
//! 2. The greedy client has 200 connections: it lists all objects as JSON and as Tables, creates ConfigMaps of 900 kB,
//!    updates an object through a webhook that takes half a second, and watches the collection. It runs in a process of
//!    its own at nice 15, so that its CPU time does not count as latency of the server.
//! 3. Equal clients list objects without a pause: eight connections of one account, which are one flow, and then eight
//!    accounts. Jain's index of their numbers of responses is 1 if all are equal, and 1/8 if one client gets everything.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bench::client::{Connection, Error, Target};
use bench::control_plane::ControlPlane;
use bench::figure::{self, Limits};
use bench::objects::{self, collection, config_map};
use bench::throughput::Figure;
use bench::tls_server::{ServerResponse, TlsServer};
use bytes::Bytes;
use clap::Parser;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

/// Number of polite clients, and of equal clients.
const POLITE: usize = 10;
const EQUAL: usize = 8;
/// Requests of a polite client in a second, and the part of them that are writes.
const RATE: u32 = 50;
const REQUESTS_PER_WRITE: usize = 10;
/// Connections of the greedy client for lists, creates, slowed writes and watches.
const GREEDY: [usize; 4] = [40, 40, 40, 80];
/// Bytes of text in an object of the greedy client.
const LARGE: usize = 900_000;
/// Time that the webhook takes.
const WEBHOOK_TIME: Duration = Duration::from_millis(500);
/// Time before the measurements beside the greedy client.
const WARM_UP: Duration = Duration::from_secs(2);

/// Maximum p99 latency beside the greedy client, in milliseconds; or twice that of the idle server, if that is more.
const P99_MILLIS: f64 = 10.0;
/// Minimum of Jain's index of equal clients.
const MIN_JAIN: f64 = 0.95;

/// Namespaces of the service accounts, of the greedy client's objects, and of the writes that the webhook reviews.
const ACCOUNTS: &str = "bench-accounts";
const GREEDY_OBJECTS: &str = "bench-greedy";
const REVIEWED: &str = "bench-reviewed";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Objects that the greedy client lists
    #[arg(long, default_value_t = 50_000)]
    objects: u64,
}

/// Environment variables of the process of the greedy client: the server, and the token.
const SERVER_VARIABLE: &str = "BENCH_GREEDY_SERVER";
const TOKEN_VARIABLE: &str = "BENCH_GREEDY_TOKEN";

#[tokio::main]
async fn main() -> Result<(), Error> {
    run(Args::parse()).await
}

async fn run(args: Args) -> Result<(), Error> {
    if let Ok(server) = std::env::var(SERVER_VARIABLE) {
        return be_greedy(&Target::new(&server, &std::env::var(TOKEN_VARIABLE)?)?).await;
    }
    let webhook = TlsServer::bind().await?;
    let configuration = webhook_configuration(webhook.port()?, &webhook.certificate);
    tokio::spawn(webhook.serve(allow_slowly));
    let plane = ControlPlane::start(&["--names", "kubernetes"]).await?;
    objects::fill(&plane.target, args.objects).await?;
    let accounts = prepare(&plane.target, &configuration).await?;
    let length = Duration::from_secs(args.seconds);

    let idle = measure_polite(&accounts, length).await?;
    let greedy = spawn_greedy(&plane.target, &accounts)?;
    tokio::time::sleep(WARM_UP).await;
    let busy = measure_polite(&accounts, length).await?;
    let progress = greedy_progress(greedy).await?;
    println!("{:<30} {:>9} {:>9} {:>9} {:>9}", "polite clients, ms", "idle p50", "idle p99", "p50", "p99");
    for (name, mut idle, mut busy) in
        [("get 1 kB", idle.gets, busy.gets), ("create 1 kB", idle.creates, busy.creates)]
    {
        let millis = |figure: &mut Figure, part| figure.percentile(part).as_secs_f64() * 1e3;
        let (idle_p99, busy_p99) = (millis(&mut idle, 0.99), millis(&mut busy, 0.99));
        let bound = P99_MILLIS.max(2.0 * idle_p99);
        println!(
            "{name:<30} {:>9.2} {idle_p99:>9.2} {:>9.2} {busy_p99:>9.2}  at most {bound:.1}: {}",
            millis(&mut idle, 0.5),
            millis(&mut busy, 0.5),
            figure::verdict(busy_p99 <= bound)
        );
    }
    println!("greedy client beside them: {progress}");
    let one_flow: Vec<Target> =
        accounts.iter().cycle().step_by(accounts.len()).take(EQUAL).cloned().collect();
    let flows: Vec<Target> = accounts.iter().take(EQUAL).cloned().collect();
    for (name, clients) in [("connections of one flow", &one_flow[..]), ("flows of one level", &flows[..])] {
        let counts = measure_equal(clients, length).await?;
        let index = jain(&counts);
        let verdict = figure::verdict(index >= MIN_JAIN);
        println!("Jain's index of {EQUAL} {name:<24} {index:.3}  at least {MIN_JAIN}: {verdict}  {counts:?}");
    }
    plane.stop().await?;
    args.limits.finish()
}

/// Creates the service accounts with all permissions, the namespaces and the webhook. Returns the clients: the polite
/// ones, at last the greedy one.
async fn prepare(admin: &Target, configuration: &Value) -> Result<Vec<Target>, Error> {
    let mut connection = admin.connect().await?;
    for name in [ACCOUNTS, GREEDY_OBJECTS, REVIEWED] {
        create(&mut connection, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?;
    }
    let group = format!("system:serviceaccounts:{ACCOUNTS}");
    let binding = json!({
        "metadata": {"name": "bench"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    });
    create(&mut connection, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    create(&mut connection, hooks, configuration).await?;
    let slowed = format!("/api/v1/namespaces/{REVIEWED}/configmaps");
    create(&mut connection, &slowed, &json!({"metadata": {"name": "slowed"}})).await?;
    let mut targets = Vec::new();
    let accounts = format!("/api/v1/namespaces/{ACCOUNTS}/serviceaccounts");
    for number in 0..=POLITE {
        let name = format!("client-{number}");
        create(&mut connection, &accounts, &json!({"metadata": {"name": name}})).await?;
        let token =
            create(&mut connection, &format!("{accounts}/{name}/token"), &json!({"spec": {}})).await?;
        let token =
            token.pointer("/status/token").and_then(Value::as_str).ok_or("no token in the response")?;
        targets.push(admin.with_token(token));
    }
    Ok(targets)
}

async fn create(connection: &mut Connection, path: &str, object: &Value) -> Result<Value, Error> {
    let (status, body) = connection.call(Method::POST, path, Bytes::from(object.to_string())).await?;
    if status != StatusCode::CREATED {
        return Err(format!("POST {path}: {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    Ok(serde_json::from_slice(&body)?)
}

/// Builds a configuration that reviews the updates of ConfigMaps in one namespace.
fn webhook_configuration(port: u16, certificate: &str) -> Value {
    json!({"metadata": {"name": "bench"}, "webhooks": [{
        "name": "slow.bench.example.com",
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": STANDARD.encode(certificate)},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["UPDATE"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": REVIEWED}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }]})
}

/// Allows the request of an AdmissionReview after [`WEBHOOK_TIME`].
async fn allow_slowly(request: Request<Incoming>) -> Result<ServerResponse, Error> {
    let body = request.into_body().collect().await?.to_bytes();
    tokio::time::sleep(WEBHOOK_TIME).await;
    let review: Value = serde_json::from_slice(&body)?;
    let uid = review.pointer("/request/uid").ok_or("a review without a uid")?;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": true},
    });
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())).boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Latencies of the polite clients.
#[derive(Default)]
struct Figures {
    gets: Figure,
    creates: Figure,
}

/// Measures the polite clients, which send requests at a fixed rate.
async fn measure_polite(accounts: &[Target], length: Duration) -> Result<Figures, Error> {
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for (client, target) in accounts.iter().take(POLITE).enumerate() {
        let target = target.clone();
        tasks.push(tokio::spawn(async move { send_politely(&target, client, begin, length).await }));
    }
    let mut all = Figures::default();
    for task in tasks {
        let Figures { gets, creates } = task.await??;
        all.gets.times.extend(gets.times);
        all.creates.times.extend(creates.times);
    }
    Ok(all)
}

async fn send_politely(
    target: &Target,
    client: usize,
    begin: Instant,
    length: Duration,
) -> Result<Figures, Error> {
    let mut connection = target.connect().await?;
    let mut figures = Figures::default();
    let period = Duration::from_secs(1) / RATE;
    // The clients do not send at the same time.
    let offset = period.mul_f64(client as f64 / POLITE as f64);
    let (item, writes) =
        (format!("{}/item-{client}", collection()), format!("/api/v1/namespaces/{ACCOUNTS}/configmaps"));
    for number in 0.. {
        let due = begin + offset + period * number;
        if due >= begin + length {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let is_write = (number as usize + client).is_multiple_of(REQUESTS_PER_WRITE);
        let (status, body) = if is_write {
            let name = format!("polite-{client}-{}", unique());
            connection.call(Method::POST, &writes, config_map(&name)).await?
        } else {
            connection.call(Method::GET, &item, Bytes::new()).await?
        };
        if !status.is_success() {
            return Err(
                format!("a polite request failed: {status}: {}", String::from_utf8_lossy(&body)).into()
            );
        }
        let figure = if is_write { &mut figures.creates } else { &mut figures.gets };
        figure.times.push(due.elapsed());
    }
    Ok(figures)
}

/// Returns a number that this process has not used.
fn unique() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Starts the greedy client at a low priority.
fn spawn_greedy(admin: &Target, accounts: &[Target]) -> Result<tokio::process::Child, Error> {
    let token = &accounts.last().ok_or("no account for the greedy client")?.token;
    let child = tokio::process::Command::new("nice")
        .args(["-n", "15"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(SERVER_VARIABLE, format!("https://{}", admin.address))
        .env(TOKEN_VARIABLE, token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Ends the greedy client and returns what it reports.
async fn greedy_progress(mut greedy: tokio::process::Child) -> Result<String, Error> {
    drop(greedy.stdin.take());
    let output = greedy.wait_with_output().await?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || text.is_empty() {
        return Err("the greedy client failed".into());
    }
    Ok(text)
}

/// Responses to the requests of the greedy client.
#[derive(Default)]
struct Progress {
    lists: AtomicUsize,
    creates: AtomicUsize,
    slowed: AtomicUsize,
    events: AtomicUsize,
    rejected: AtomicUsize,
}

/// Runs the greedy client until the end of standard input, then reports its progress.
async fn be_greedy(target: &Target) -> Result<(), Error> {
    let progress = Arc::new(Progress::default());
    let [lists, creates, slowed, watches] = GREEDY;
    let roles =
        [(Role::List, lists), (Role::Create, creates), (Role::Slowed, slowed), (Role::Watch, watches)];
    for (role, connections) in roles {
        for number in 0..connections {
            let (target, progress) = (target.clone(), Arc::clone(&progress));
            tokio::spawn(async move {
                loop {
                    // A connection that the server closed is opened again.
                    let _ = repeat(&target, role, number, &progress).await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
    }
    let mut end = tokio::io::stdin();
    tokio::io::AsyncReadExt::read_to_end(&mut end, &mut Vec::new()).await?;
    let count = |number: &AtomicUsize| number.load(Ordering::Relaxed);
    println!(
        "{} lists, {} creates of 900 kB, {} slowed writes, {} frames of events, {} rejections",
        count(&progress.lists),
        count(&progress.creates),
        count(&progress.slowed),
        count(&progress.events),
        count(&progress.rejected)
    );
    std::process::exit(0);
}

/// The requests of a connection of the greedy client.
#[derive(Clone, Copy)]
enum Role {
    List,
    Create,
    Slowed,
    Watch,
}

/// Sends the requests of one connection of the greedy client until it breaks.
async fn repeat(target: &Target, role: Role, number: usize, progress: &Progress) -> Result<(), Error> {
    let mut connection = target.connect().await?;
    if number % 2 == 1 {
        connection.accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    }
    let large = format!("/api/v1/namespaces/{GREEDY_OBJECTS}/configmaps");
    let text = "x".repeat(LARGE);
    for count in 0_usize.. {
        let (method, path, body, done) = match role {
            Role::List => (Method::GET, collection(), Bytes::new(), &progress.lists),
            Role::Create => {
                let object =
                    json!({"metadata": {"name": format!("large-{number}-{count}")}, "data": {"text": text}});
                (Method::POST, large.clone(), Bytes::from(object.to_string()), &progress.creates)
            }
            Role::Slowed => {
                let object =
                    json!({"metadata": {"name": "slowed"}, "data": {"n": format!("{number}-{count}")}});
                let path = format!("/api/v1/namespaces/{REVIEWED}/configmaps/slowed");
                (Method::PUT, path, Bytes::from(object.to_string()), &progress.slowed)
            }
            Role::Watch => {
                let path = format!("{large}?watch=1&timeoutSeconds=5");
                (Method::GET, path, Bytes::new(), &progress.events)
            }
        };
        let mut response = connection.open(method, &path, body).await?;
        let status = response.status();
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
            if matches!(role, Role::Watch) {
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            progress.rejected.fetch_add(1, Ordering::Relaxed);
        } else if !matches!(role, Role::Watch) {
            done.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(role, Role::Create) && status == StatusCode::CREATED {
            // Deleted at once, so that the store of a long run stays small.
            let path = format!("{large}/large-{number}-{count}");
            connection.call(Method::DELETE, &path, Bytes::new()).await?;
        }
    }
    Ok(())
}

/// Returns how many lists each of the clients gets, with one connection each.
async fn measure_equal(clients: &[Target], length: Duration) -> Result<Vec<usize>, Error> {
    let mut connections = Vec::new();
    for target in clients {
        connections.push(target.connect().await?);
    }
    let end = Instant::now() + length;
    let tasks: Vec<_> =
        connections.into_iter().map(|connection| tokio::spawn(count_lists(connection, end))).collect();
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await??);
    }
    Ok(counts)
}

/// Returns the number of lists until `end`.
async fn count_lists(mut connection: Connection, end: Instant) -> Result<usize, Error> {
    let mut count = 0;
    connection.accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let path = format!("{}?limit=2000", collection());
    while Instant::now() < end {
        let mut response = connection.open(Method::GET, &path, Bytes::new()).await?;
        let status = response.status();
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        match status {
            StatusCode::OK => count += 1,
            StatusCode::TOO_MANY_REQUESTS => tokio::time::sleep(Duration::from_millis(10)).await,
            other => return Err(format!("a list failed: {other}").into()),
        }
    }
    Ok(count)
}

/// Jain's index of fairness: 1 if all counts are equal.
fn jain(counts: &[usize]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (counts.len() as f64 * squares) }
}
