//! Memory of the control plane under many concurrent large lists, and under many idle watches.
//!
//! ```text
//! memory lists [--objects 80000] [--clients 16]
//! memory watches [--connections 100] [--streams 100]
//! ```
//!
//! Each command starts apid and authd from the directory of this program, on an empty store.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::time::{Duration, Instant};

use bench::client::{Error, Target};
use bench::control_plane::ControlPlane;
use bench::figure::{Limits, verdict};
use bench::objects::{self, collection, watch_from_now};
use bench::process;
use bytes::Bytes;
use clap::{Parser, Subcommand};
use http::{Method, StatusCode};
use http_body_util::BodyExt;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// Clients that list a large collection at the same time
    Lists {
        /// Objects of about 1.3 kB in the list
        #[arg(long, default_value_t = 80_000)]
        objects: u64,
        /// Clients, one connection each
        #[arg(long, default_value_t = 16)]
        clients: usize,
    },
    /// Idle watches over HTTP/2
    Watches {
        /// Connections
        #[arg(long, default_value_t = 100)]
        connections: usize,
        /// Watches per connection
        #[arg(long, default_value_t = 100)]
        streams: usize,
    },
}

/// Maximum peak memory of apid under the lists, in MiB above the memory before them.
const LIST_MEMORY_LIMIT_MIB: f64 = 64.0;

/// Maximum memory of both processes for the watches, in MiB above the memory before them.
const WATCH_MEMORY_LIMIT_MIB: f64 = 100.0;

/// Time before memory is measured, in which the allocator returns freed memory to the system.
const WAIT_BEFORE_MEASUREMENT: Duration = Duration::from_secs(3);

/// Delay of slow clients between the head of the response and the read of its body.
const READ_DELAY: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let plane = ControlPlane::start(&[]).await?;
    let args = Args::parse();
    match args.subject {
        Subject::Lists { objects, clients } => measure_lists(&plane, objects, clients).await?,
        Subject::Watches { connections, streams } => measure_watches(&plane, connections, streams).await?,
    }
    plane.stop().await?;
    args.limits.finish()
}

async fn measure_lists(plane: &ControlPlane, count: u64, clients: usize) -> Result<(), Error> {
    let apid = *plane.pids.first().ok_or("no process")?;
    objects::fill(&plane.target, count).await?;
    // The first list is not measured, because it fills the cache of encoded objects.
    let bytes = list(&plane.target, "", Duration::ZERO).await?;
    println!("a list has {count} objects and {:.0} MB", bytes as f64 / 1e6);
    for (name, encoding, pause) in [
        ("read at once", "", Duration::ZERO),
        ("read late", "", READ_DELAY),
        ("compressed", "gzip", Duration::ZERO),
    ] {
        tokio::time::sleep(WAIT_BEFORE_MEASUREMENT).await;
        let before = process::resident_mib(apid).ok_or("apid ended")?;
        process::reset_peak(apid)?;
        let started = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let target = plane.target.clone();
            tasks.push(tokio::spawn(async move { list(&target, encoding, pause).await }));
        }
        for task in tasks {
            task.await??;
        }
        let peak = process::peak_mib(apid).ok_or("apid ended")?;
        println!(
            "{clients} lists {name}: {before:.0} MiB before, at most {peak:.0} MiB, {:.1} MiB more, in {:.1} s; \
             limit {LIST_MEMORY_LIMIT_MIB} MiB: {}",
            peak - before,
            started.elapsed().as_secs_f64(),
            verdict(peak - before <= LIST_MEMORY_LIMIT_MIB),
        );
    }
    Ok(())
}

/// Lists the collection and reads the whole response; returns its size in bytes.
async fn list(target: &Target, encoding: &'static str, pause: Duration) -> Result<usize, Error> {
    let mut connection = target.connect().await?;
    connection.accept_encoding = encoding;
    let response = connection.open(Method::GET, &collection(), Bytes::new()).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("list: {}", response.status()).into());
    }
    tokio::time::sleep(pause).await;
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(bytes)
}

async fn measure_watches(plane: &ControlPlane, connections: usize, streams: usize) -> Result<(), Error> {
    objects::fill(&plane.target, 10).await?;
    let path = watch_from_now(&plane.target).await?;
    tokio::time::sleep(WAIT_BEFORE_MEASUREMENT).await;
    let before = resident(plane)?;
    let mut responses = Vec::new();
    for _ in 0..connections {
        let mut connection = plane.target.connect_http2().await?;
        for _ in 0..streams {
            let response = connection.open(&path).await?;
            if response.status() != StatusCode::OK {
                return Err(format!("watch: {}", response.status()).into());
            }
            responses.push(response);
        }
    }
    tokio::time::sleep(WAIT_BEFORE_MEASUREMENT).await;
    let after = resident(plane)?;
    println!(
        "{} idle watches over {connections} connections: {before:.1} MiB before, {after:.1} MiB with them, \
         {:.1} MiB or {:.1} kB each; limit {WATCH_MEMORY_LIMIT_MIB} MiB: {}",
        responses.len(),
        after - before,
        (after - before) * 1048.576 / responses.len() as f64,
        verdict(after - before <= WATCH_MEMORY_LIMIT_MIB),
    );
    Ok(())
}

/// Returns the resident memory of apid and authd in MiB.
fn resident(plane: &ControlPlane) -> Result<f64, Error> {
    plane.pids.iter().map(|pid| process::resident_mib(*pid).ok_or_else(|| "a process ended".into())).sum()
}
