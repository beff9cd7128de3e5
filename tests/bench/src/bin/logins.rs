//! Cost of authentication: requests with new service-account tokens compared with requests with a cached
//! token.
//!
//! ```text
//! logins [--tokens 4000] [--connections 16]
//! ```
//!
//! The server issues the tokens beforehand. Each token is used once: first sequentially on one connection,
//! which gives the latency of a cache miss; then on many connections, which gives the verifications per
//! second. The difference to the cached token is the cost of authentication.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::client::{Connection, Error, Target};
use bench::control_plane::ControlPlane;
use bench::figure::{self, CpuMeter, Limits, percentile, report};
use bytes::Bytes;
use clap::Parser;
use futures_util::future::try_join_all;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Requested path. Every user may read it, and the response costs little.
const REQUEST_PATH: &str = "/version";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Distinct tokens
    #[arg(long, default_value_t = 4000)]
    tokens: usize,
    /// Concurrent connections
    #[arg(long, default_value_t = 16)]
    connections: usize,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let plane = ControlPlane::start(&[]).await?;
    let mut tokens = issue_tokens(&plane.target, args.tokens).await?;
    let sequential_tokens = tokens.split_off(tokens.len() - tokens.len() / 4);

    let mut connection = plane.target.connect().await?;
    let repeated_token: Vec<String> = sequential_tokens.iter().map(|_| plane.target.token.clone()).collect();
    let cached_latencies = measure_sequentially(&mut connection, &repeated_token).await?;
    let new_latencies = measure_sequentially(&mut connection, &sequential_tokens).await?;
    println!("one connection, known token: p50 {:.0} us", percentile(&cached_latencies, 50));
    println!("one connection, unknown tokens: p99 {:.0} us", percentile(&new_latencies, 99));
    report("one connection, unknown tokens: p50", percentile(&new_latencies, 50), 350.0, "us");

    let count = tokens.len();
    let queue = Arc::new(Mutex::new(tokens));
    let cpu = CpuMeter::begin(&plane.pids)?;
    let started = Instant::now();
    try_join_all((0..args.connections).map(|_| use_tokens(plane.target.clone(), Arc::clone(&queue)))).await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let holds = figure::verdict(rate >= 4000.0);
    println!(
        "{} connections, unknown tokens: {rate:.0} a second, at least 4000: {holds}; {:.0} us of CPU each",
        args.connections,
        cpu.micros_per_item(count)?
    );
    plane.stop().await?;
    args.limits.finish()
}

/// Issues tokens of one service account.
async fn issue_tokens(target: &Target, count: usize) -> Result<Vec<String>, Error> {
    let mut connection = target.connect().await?;
    let account = json!({"metadata": {"name": "robot"}}).to_string();
    connection.call(Method::POST, ACCOUNTS, account.into()).await?;
    let path = format!("{ACCOUNTS}/robot/token");
    let body = Bytes::from(json!({"spec": {}}).to_string());
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        let (_, response) = connection.call(Method::POST, &path, body.clone()).await?;
        let response: Value = serde_json::from_slice(&response)?;
        let token = response.pointer("/status/token").and_then(Value::as_str).ok_or("no token was issued")?;
        tokens.push(token.to_owned());
    }
    Ok(tokens)
}

/// Sends one request with each token, one after the other. Returns the sorted latencies.
async fn measure_sequentially(
    connection: &mut Connection,
    tokens: &[String],
) -> Result<Vec<Duration>, Error> {
    let mut latencies = Vec::with_capacity(tokens.len());
    for token in tokens {
        connection.token.clone_from(token);
        let started = Instant::now();
        send_request(connection).await?;
        latencies.push(started.elapsed());
    }
    latencies.sort_unstable();
    Ok(latencies)
}

/// Sends one request with each token that it takes from a queue, until the queue is empty.
async fn use_tokens(target: Target, queue: Arc<Mutex<Vec<String>>>) -> Result<(), Error> {
    let mut connection = target.connect().await?;
    loop {
        let Some(token) = queue.lock().pop() else { return Ok(()) };
        connection.token = token;
        send_request(&mut connection).await?;
    }
}

async fn send_request(connection: &mut Connection) -> Result<(), Error> {
    match connection.call(Method::GET, REQUEST_PATH, Bytes::new()).await? {
        (StatusCode::OK, _) => Ok(()),
        (status, _) => Err(format!("{REQUEST_PATH} returned {status}").into()),
    }
}
