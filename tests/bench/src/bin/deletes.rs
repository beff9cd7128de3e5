//! Deletion of a large collection and of a large namespace, and the memory and disk space that they give back.
//!
//! ```text
//! deletes [--objects 100000] [--retention 30]
//! ```
//!
//! The command starts apid and authd from the directory of this program, on an empty store.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::time::{Duration, Instant};

use bench::client::Error;
use bench::control_plane::{ControlPlane, programs};
use bench::figure::{self, verdict};
use bench::objects::{self, NAMESPACE, collection};
use bench::process;
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};

/// Minimum number of objects that a deletecollection request deletes in a second.
const COLLECTION_RATE: f64 = 20_000.0;

/// Maximum duration of the deletion of a namespace with 100,000 objects.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(15);

/// Time after the history retention after which an idle store must have freed memory and disk space.
const IDLE: Duration = Duration::from_secs(60);

/// Interval between reads of a namespace that is being deleted.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Parser)]
struct Args {
    /// Exit with an error when a limit is missed
    #[arg(long)]
    check: bool,
    /// Number of ConfigMaps of about 1.3 kB
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
    /// Seconds of history that the store keeps
    #[arg(long, default_value_t = 30)]
    retention: u64,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let retention = format!("--history-retention={}s", args.retention);
    let plane = ControlPlane::start(&programs()?, &[&retention]).await?;
    objects::fill(&plane.target, 1).await?;
    report("with one object", &plane)?;
    delete_collection(&plane, args.objects).await?;
    delete_namespace(&plane, args.objects).await?;
    tokio::time::sleep(Duration::from_secs(args.retention) + IDLE).await;
    report("idle after the retention and a minute", &plane)?;
    plane.stop().await?;
    figure::finish(args.check)
}

async fn delete_collection(plane: &ControlPlane, count: u64) -> Result<(), Error> {
    objects::fill(&plane.target, count).await?;
    report("with all objects", plane)?;
    let mut connection = plane.target.connect().await?;
    let begun = Instant::now();
    let (status, body) = connection.call(Method::DELETE, &collection(), Bytes::new()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    if status != StatusCode::OK {
        return Err(format!("delete of the collection: {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    let rate = count as f64 / seconds;
    println!(
        "collection of {count} objects deleted in {seconds:.2} s, {rate:.0} each second, response of {:.1} MB; \
         limit {COLLECTION_RATE} each second: {}",
        body.len() as f64 / 1e6,
        verdict(rate >= COLLECTION_RATE),
    );
    report("after the deletion", plane)
}

async fn delete_namespace(plane: &ControlPlane, count: u64) -> Result<(), Error> {
    objects::fill(&plane.target, count).await?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let mut connection = plane.target.connect().await?;
    let begun = Instant::now();
    let (status, _) = connection.call(Method::DELETE, &path, Bytes::new()).await?;
    if !status.is_success() {
        return Err(format!("delete of the namespace: {status}").into());
    }
    while connection.call(Method::GET, &path, Bytes::new()).await?.0 != StatusCode::NOT_FOUND {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    println!(
        "namespace of {count} objects deleted in {:.2} s; limit {} s: {}",
        begun.elapsed().as_secs_f64(),
        NAMESPACE_LIMIT.as_secs(),
        verdict(begun.elapsed() <= NAMESPACE_LIMIT),
    );
    report("after the deletion", plane)
}

/// Prints the memory of both processes and the disk space of the store.
fn report(moment: &str, plane: &ControlPlane) -> Result<(), Error> {
    let mut memory = Vec::new();
    for pid in &plane.pids {
        memory.push(format!("{:.0}", process::resident_mib(*pid).ok_or("a process ended")?));
    }
    println!("  {moment}: resident memory {} MiB, disk {:.1} MiB", memory.join(" and "), plane.disk_mib()?);
    Ok(())
}
