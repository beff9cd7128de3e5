//! Start-up time of the control plane until ready, and idle memory of both processes.
//!
//! ```text
//! start [--runs 10] [--idle-seconds 3]
//! ```
//!
//! Each run uses an empty store in its own directory. Memory is resident memory (`VmRSS`): pages of the
//! programs count, and pages of libraries count for each process.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::time::{Duration, Instant};

use bench::client::Error;
use bench::control_plane::ControlPlane;
use bench::figure::{self, Limits};
use bench::process;
use clap::Parser;

/// Maximum idle memory of both processes, in MiB: a tenth of the idle memory of kube-apiserver.
const MEMORY_LIMIT_MIB: f64 = 32.0;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Number of measured starts
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Seconds to wait before memory is read
    #[arg(long, default_value_t = 3)]
    idle_seconds: u64,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args = Args::parse();
    let (mut ready, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let (millis, apid, authd) = run(&args).await?;
        println!("ready after {millis:.0} ms; idle: apid {apid:.1} MiB, authd {authd:.1} MiB");
        ready.push(millis);
        memory.push(apid + authd);
    }
    let memory = median(&mut memory);
    let holds = figure::verdict(memory <= MEMORY_LIMIT_MIB);
    println!(
        "median: ready after {:.0} ms; idle memory of both {memory:.1} MiB, at most {MEMORY_LIMIT_MIB} MiB: {holds}",
        median(&mut ready),
    );
    args.limits.finish()
}

async fn run(args: &Args) -> Result<(f64, f64, f64), Error> {
    let start = Instant::now();
    let plane = ControlPlane::start(&[]).await?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    tokio::time::sleep(Duration::from_secs(args.idle_seconds)).await;
    let (apid, authd) = plane.pids.split_first().ok_or("no process")?;
    let apid = process::resident_mib(*apid).ok_or("apid ended")?;
    let authd = authd.iter().copied().filter_map(process::resident_mib).sum();
    plane.stop().await?;
    Ok((millis, apid, authd))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
