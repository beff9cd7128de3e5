//! How long the control plane takes from its start to ready, and how much memory both processes hold when idle.
//!
//! ```text
//! start [--runs 10] [--idle-seconds 3] [--programs target/release]
//! ```
//!
//! Each run is on an empty store in a directory of its own.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench::client::{Error, Target};
use bench::process;
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};
use tokio::process::Command;

#[derive(Parser)]
struct Args {
    /// Starts to measure
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Seconds to wait before memory is read
    #[arg(long, default_value_t = 3)]
    idle_seconds: u64,
    /// Folder of apid and authd
    #[arg(long, default_value = "target/release")]
    programs: PathBuf,
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
    println!(
        "median: ready after {:.0} ms, idle memory of both {:.1} MiB",
        median(&mut ready),
        median(&mut memory)
    );
    Ok(())
}

async fn run(args: &Args) -> Result<(f64, f64, f64), Error> {
    let data = tempfile::tempdir()?;
    let start = Instant::now();
    let mut child = Command::new(args.programs.join("apid"))
        .arg("--spawn-authd")
        .arg("--data-dir")
        .arg(data.path())
        .args(["--bind-address", "127.0.0.1", "--secure-port", "0", "--authorization-mode", "Node,RBAC"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().ok_or("apid ended at once")?;
    let port_file = data.path().join("apid.port");
    let port = loop {
        match std::fs::read_to_string(&port_file) {
            Ok(text) if !text.trim().is_empty() => break text.trim().to_owned(),
            _ => pause(start).await?,
        }
    };
    let target = Target::new(&format!("https://127.0.0.1:{port}"), "")?;
    loop {
        if let Ok(mut connection) = target.connect().await
            && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/readyz", Bytes::new()).await
        {
            break;
        }
        pause(start).await?;
    }
    let millis = start.elapsed().as_secs_f64() * 1e3;
    tokio::time::sleep(Duration::from_secs(args.idle_seconds)).await;
    let apid = process::resident_mib(pid).ok_or("apid ended")?;
    let authd = process::children(pid).into_iter().filter_map(process::resident_mib).sum();
    child.kill().await?;
    Ok((millis, apid, authd))
}

/// Waits a moment; gives up after 20 seconds.
async fn pause(start: Instant) -> Result<(), Error> {
    if start.elapsed() > Duration::from_secs(20) {
        return Err("not ready within 20 seconds".into());
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
