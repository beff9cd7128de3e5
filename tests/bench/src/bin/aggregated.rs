//! Latency that apid adds to a read of an aggregated API.
//!
//! ```text
//! aggregated [--reads 5000]
//! ```
//!
//! The command starts apid and authd from the directory of this program, and a server of 1 kB documents in this process.
//! It reads a document directly and through apid by turns, each on one connection.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::time::{Duration, Instant};

use bench::client::{Connection, Error, Target};
use bench::control_plane::ControlPlane;
use bench::figure::{self, Limits, percentile};
use bench::tls_server::{ServerResponse, TlsServer};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::json;

/// Maximum of the latency that apid adds at the median, in microseconds.
const ADDED_LIMIT_MICROS: f64 = 150.0;

/// Number of reads of each kind before the measurement.
const WARM_UP: usize = 500;

/// The document that is read.
const PATH: &str = "/apis/bench.example.com/v1/documents/one";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Number of measured reads of each kind
    #[arg(long, default_value_t = 5000)]
    reads: usize,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let server = TlsServer::bind().await?;
    let port = server.port()?;
    tokio::spawn(server.serve(respond));
    let plane = ControlPlane::start(&["--names", "kubernetes"]).await?;
    let mut proxied = plane.target.connect().await?;
    register(&mut proxied, port).await?;
    let mut direct = Target::new(&format!("https://127.0.0.1:{port}"), "")?.connect().await?;
    wait_until_available(&mut proxied).await?;
    for _ in 0..WARM_UP {
        read(&mut direct).await?;
        read(&mut proxied).await?;
    }
    let (mut direct_times, mut proxied_times) = (Vec::new(), Vec::new());
    for _ in 0..args.reads {
        direct_times.push(read(&mut direct).await?);
        proxied_times.push(read(&mut proxied).await?);
    }
    direct_times.sort_unstable();
    proxied_times.sort_unstable();
    for percent in [50, 99] {
        println!(
            "p{percent}: {:.0} µs through apid, {:.0} µs directly",
            percentile(&proxied_times, percent),
            percentile(&direct_times, percent)
        );
    }
    let added = percentile(&proxied_times, 50) - percentile(&direct_times, 50);
    figure::report("apid adds to a read of an aggregated API at the median", added, ADDED_LIMIT_MICROS, "µs");
    plane.stop().await?;
    args.limits.finish()
}

/// Creates a Service for the server of this process, and its APIService.
async fn register(connection: &mut Connection, port: u16) -> Result<(), Error> {
    let service =
        json!({"metadata": {"name": "bench"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    let api_service = json!({
        "metadata": {"name": "v1.bench.example.com"},
        "spec": {
            "group": "bench.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "bench", "port": port},
        },
    });
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    for (path, object) in [("/api/v1/namespaces/default/services", service), (services, api_service)] {
        let (status, body) = connection.call(Method::POST, path, Bytes::from(object.to_string())).await?;
        if status != StatusCode::CREATED {
            return Err(format!("create: {status}: {}", String::from_utf8_lossy(&body)).into());
        }
    }
    Ok(())
}

async fn wait_until_available(connection: &mut Connection) -> Result<(), Error> {
    for _ in 0..500 {
        if read(connection).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("the aggregated API is not available after 10 s".into())
}

/// Reads the document and returns the latency.
async fn read(connection: &mut Connection) -> Result<Duration, Error> {
    let begun = Instant::now();
    let (status, body) = connection.call(Method::GET, PATH, Bytes::new()).await?;
    if status != StatusCode::OK {
        return Err(format!("read: {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    Ok(begun.elapsed())
}

/// Responds to each request with a document of 1 kB, which is a discovery document too.
async fn respond(request: Request<Incoming>) -> Result<ServerResponse, Error> {
    drop(request.into_body().collect().await?);
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "bench.example.com/v1",
        "resources": [], "padding": "x".repeat(900)});
    let mut response = Response::new(Full::new(Bytes::from(list.to_string())).boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
