//! Latency that a validating webhook on this machine adds to a write.
//!
//! ```text
//! webhook [--writes 5000]
//! ```
//!
//! The command starts apid and authd from the directory of this program, and a webhook server in this process. It
//! sends dry-run creates of ConfigMaps in two namespaces by turns; the webhook matches one of them. Dry runs keep
//! the disk out of the figures.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bench::client::{Connection, Error};
use bench::control_plane::ControlPlane;
use bench::figure::{self, Limits, percentile};
use bench::objects::config_map;
use bench::tls_server::{ServerResponse, TlsServer};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

/// Maximum of the latency that the webhook adds at the median, in microseconds.
const ADDED_LIMIT_MICROS: f64 = 300.0;

/// Namespace whose writes the webhook reviews, and namespace that it does not match.
const REVIEWED: &str = "bench-reviewed";
const UNMATCHED: &str = "bench-unmatched";

/// Number of writes to each namespace before the measurement.
const WARM_UP: usize = 200;

/// Number of calls that the webhook has received.
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Number of measured writes to each namespace
    #[arg(long, default_value_t = 5000)]
    writes: usize,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let server = TlsServer::bind().await?;
    let configuration = configuration(server.port()?, &server.certificate);
    tokio::spawn(server.serve(allow));
    let plane = ControlPlane::start(&["--names", "kubernetes"]).await?;
    let mut connection = plane.target.connect().await?;
    for name in [REVIEWED, UNMATCHED] {
        create(&mut connection, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?;
    }
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    create(&mut connection, path, &configuration).await?;
    for _ in 0..WARM_UP {
        write(&mut connection, REVIEWED).await?;
        write(&mut connection, UNMATCHED).await?;
    }
    let (mut reviewed, mut unmatched) = (Vec::new(), Vec::new());
    for _ in 0..args.writes {
        reviewed.push(write(&mut connection, REVIEWED).await?);
        unmatched.push(write(&mut connection, UNMATCHED).await?);
    }
    let (calls, expected) = (CALLS.load(Ordering::Relaxed), WARM_UP + args.writes);
    if calls != expected {
        return Err(format!("the webhook was called {calls} times, not {expected}").into());
    }
    reviewed.sort_unstable();
    unmatched.sort_unstable();
    for percent in [50, 99] {
        println!(
            "p{percent}: {:.0} µs with the webhook, {:.0} µs without a match",
            percentile(&reviewed, percent),
            percentile(&unmatched, percent)
        );
    }
    let added = percentile(&reviewed, 50) - percentile(&unmatched, 50);
    figure::report("a local webhook adds at the median", added, ADDED_LIMIT_MICROS, "µs");
    plane.stop().await?;
    args.limits.finish()
}

/// Builds a configuration that reviews creates of ConfigMaps in one namespace.
fn configuration(port: u16, certificate: &str) -> Value {
    json!({"metadata": {"name": "bench"}, "webhooks": [{
        "name": "allow.bench.example.com",
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": STANDARD.encode(certificate)},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": REVIEWED}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }]})
}

/// Allows the request of an AdmissionReview.
async fn allow(request: Request<Incoming>) -> Result<ServerResponse, Error> {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body)?;
    let uid = review.pointer("/request/uid").ok_or("a review without a uid")?;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": true},
    });
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())).boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Sends a dry-run create and returns its latency.
async fn write(connection: &mut Connection, namespace: &str) -> Result<Duration, Error> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
    let begun = Instant::now();
    let (status, body) = connection.call(Method::POST, &path, config_map("measured")).await?;
    expect_created(status, &body)?;
    Ok(begun.elapsed())
}

async fn create(connection: &mut Connection, path: &str, object: &Value) -> Result<(), Error> {
    let (status, body) = connection.call(Method::POST, path, Bytes::from(object.to_string())).await?;
    expect_created(status, &body)
}

fn expect_created(status: StatusCode, body: &[u8]) -> Result<(), Error> {
    if status == StatusCode::CREATED {
        return Ok(());
    }
    Err(format!("create: {status}: {}", String::from_utf8_lossy(body)).into())
}
