//! Deletion of a large collection and of a large namespace, with the memory and disk space before and after.
//!
//! ```text
//! deletes [--objects 100000] [--retention 30]
//! ```
//!
//! The command starts apid and authd from the directory of this program, on an empty store.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::time::{Duration, Instant};

use bench::client::Error;
use bench::control_plane::ControlPlane;
use bench::figure::{self, Limits, verdict};
use bench::objects::{self, collection};
use bench::process;
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};

/// Minimum number of objects that a deletecollection request deletes in a second.
const MIN_COLLECTION_RATE: f64 = 20_000.0;

/// Maximum duration of the deletion of a namespace with 100,000 objects, in seconds.
const MAX_NAMESPACE_SECONDS: f64 = 15.0;

/// Idle time before the last report of memory and disk space, in addition to the history retention.
const FINAL_IDLE_TIME: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
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
    let plane = ControlPlane::start(&[&retention]).await?;
    objects::fill(&plane.target, 1).await?;
    report("with one object", &plane)?;
    delete_collection(&plane, args.objects).await?;
    delete_namespace(&plane, args.objects).await?;
    tokio::time::sleep(Duration::from_secs(args.retention) + FINAL_IDLE_TIME).await;
    report("idle after the retention and a minute", &plane)?;
    plane.stop().await?;
    args.limits.finish()
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
         limit {MIN_COLLECTION_RATE} each second: {}",
        body.len() as f64 / 1e6,
        verdict(rate >= MIN_COLLECTION_RATE),
    );
    report("after the deletion", plane)
}

async fn delete_namespace(plane: &ControlPlane, count: u64) -> Result<(), Error> {
    objects::fill(&plane.target, count).await?;
    let begun = Instant::now();
    objects::remove(&plane.target).await?;
    let name = format!("deletion of a namespace of {count} objects");
    figure::report(&name, begun.elapsed().as_secs_f64(), MAX_NAMESPACE_SECONDS, "s");
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
