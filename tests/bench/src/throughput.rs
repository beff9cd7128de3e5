//! How much a server does in a second and in a CPU-second, beside the bare server.
//!
//! Both servers take turns, a round each, so that what else the machine does meets both alike.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::client::{Connection, Error, Target};
use crate::{plane, process};

/// A server and the processes whose CPU time counts.
pub struct Side {
    /// Where requests go.
    pub target: Target,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Ends the bare server with this.
    _child: Option<tokio::process::Child>,
}

impl Side {
    /// A server that runs.
    pub fn new(target: &Target, pids: &[u32]) -> Self {
        Side { target: target.clone(), pids: pids.to_vec(), _child: None }
    }

    /// Starts the bare server, which answers with a body.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub async fn bare(body: &Bytes) -> Result<Self, Error> {
        let mut child = tokio::process::Command::new(plane::programs()?.join("bare"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or("no standard input")?;
        stdin.write_all(body).await?;
        drop(stdin);
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let port = BufReader::new(stdout).lines().next_line().await?;
        let port = port.ok_or("the bare server printed no port")?;
        let pids = vec![child.id().ok_or("the bare server ended")?];
        Ok(Side { target: Target::new(&format!("https://127.0.0.1:{port}"), "")?, pids, _child: Some(child) })
    }

    /// CPU seconds used so far.
    ///
    /// # Errors
    ///
    /// A process has ended.
    pub fn cpu(&self) -> Result<f64, Error> {
        Ok(process::cpu_seconds(&self.pids).ok_or("a process that is measured has ended")?)
    }
}

/// What a side did in its rounds.
#[derive(Default)]
pub struct Figure {
    /// Answers, or deliveries.
    pub count: u64,
    /// Seconds on the clock.
    pub seconds: f64,
    /// CPU seconds of the server.
    pub cpu: f64,
    /// How long each took, unordered; empty where that is not asked.
    pub times: Vec<Duration>,
}

impl Figure {
    fn add(&mut self, round: Figure) {
        self.count += round.count;
        self.seconds += round.seconds;
        self.cpu += round.cpu;
        self.times.extend(round.times);
    }

    /// In a second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// In a CPU-second of the server.
    pub fn per_cpu_second(&self) -> f64 {
        self.count as f64 / self.cpu
    }

    /// The time that a part of all took at most.
    pub fn percentile(&mut self, part: f64) -> Duration {
        self.times.sort_unstable();
        let index = (self.times.len() as f64 * part) as usize;
        self.times.get(index.min(self.times.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Rounds, and how long one is.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// How many of each side.
    pub count: u32,
    /// How long one takes.
    pub length: Duration,
}

/// A request that is made again and again.
#[derive(Clone)]
pub struct Load {
    /// Its method.
    pub method: Method,
    /// The code that it must be answered with.
    pub wanted: StatusCode,
    /// Path and body of the request of a number that no other has.
    pub make: Arc<dyn Fn(u64) -> (String, Bytes) + Send + Sync>,
}

/// Connections with one request under way at a time each, to both sides in turn.
///
/// # Errors
///
/// An answer with another code; a broken connection.
pub async fn closed_loop(
    sides: [(&Side, Load); 2],
    clients: usize,
    rounds: Rounds,
) -> Result<[Figure; 2], Error> {
    let numbers = Arc::new(AtomicU64::new(0));
    let mut prepared = Vec::new();
    for (side, load) in sides {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(side.target.connect().await?);
        }
        prepared.push((side, load, connections, Figure::default()));
    }
    for _ in 0..rounds.count {
        for (side, load, connections, figure) in &mut prepared {
            let (begun, cpu) = (Instant::now(), side.cpu()?);
            let stop = Arc::new(AtomicBool::new(false));
            let mut tasks = Vec::new();
            for connection in connections.drain(..) {
                tasks.push(tokio::spawn(client(connection, load.clone(), numbers.clone(), stop.clone())));
            }
            tokio::time::sleep(rounds.length).await;
            stop.store(true, Ordering::Relaxed);
            let mut times = Vec::new();
            for task in tasks {
                let (connection, of_one) = task.await??;
                connections.push(connection);
                times.extend(of_one);
            }
            let (seconds, cpu) = (begun.elapsed().as_secs_f64(), side.cpu()? - cpu);
            figure.add(Figure { count: times.len() as u64, seconds, cpu, times });
        }
    }
    let mut figures = prepared.into_iter().map(|(_, _, _, figure)| figure);
    Ok([figures.next().unwrap_or_default(), figures.next().unwrap_or_default()])
}

async fn client(
    mut connection: Connection,
    load: Load,
    numbers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<(Connection, Vec<Duration>), Error> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (path, body) = (load.make)(numbers.fetch_add(1, Ordering::Relaxed));
        let sent = Instant::now();
        let mut response = connection.open(load.method.clone(), &path, body).await?;
        // Read and let go, so that a large answer costs the client as little as it can.
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        if response.status() != load.wanted {
            return Err(format!("{} {path}: {}", load.method, response.status()).into());
        }
        times.push(sent.elapsed());
    }
    Ok((connection, times))
}
