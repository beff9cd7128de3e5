//! Throughput of a server per second and per CPU-second, compared with the baseline server.
//!
//! Rounds alternate between both servers, so that other load of the machine affects both equally.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::client::{Connection, Error, Target};
use crate::{control_plane, process};

/// A server, and the processes whose CPU time counts.
pub struct MeasuredServer {
    /// Server.
    pub target: Target,
    /// Process ids of the server.
    pub pids: Vec<u32>,
    /// The process of the baseline server, killed on drop.
    _child: Option<tokio::process::Child>,
}

impl MeasuredServer {
    /// Uses a running server.
    pub fn new(target: &Target, pids: &[u32]) -> Self {
        MeasuredServer { target: target.clone(), pids: pids.to_vec(), _child: None }
    }

    /// Starts the baseline server, whose responses have this body.
    ///
    /// # Errors
    ///
    /// The server does not start.
    pub async fn start_baseline(body: &Bytes) -> Result<Self, Error> {
        let mut child = control_plane::command("bare")?
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
        Ok(MeasuredServer {
            target: Target::new(&format!("https://127.0.0.1:{port}"), "")?,
            pids,
            _child: Some(child),
        })
    }

    /// Returns the CPU seconds used so far.
    ///
    /// # Errors
    ///
    /// A process has ended.
    pub fn cpu(&self) -> Result<f64, Error> {
        Ok(process::cpu_seconds(&self.pids).ok_or("a process that is measured has ended")?)
    }
}

/// Result of the measurement of one server, summed over its rounds.
#[derive(Default)]
pub struct Figure {
    /// Number of responses or deliveries.
    pub count: u64,
    /// Duration of all rounds in seconds.
    pub seconds: f64,
    /// CPU seconds of the server.
    pub cpu: f64,
    /// Latencies, unordered; empty when not measured.
    pub times: Vec<Duration>,
}

impl Figure {
    fn add(&mut self, round: Figure) {
        self.count += round.count;
        self.seconds += round.seconds;
        self.cpu += round.cpu;
        self.times.extend(round.times);
    }

    /// Returns the count per second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// Returns the count per CPU-second of the server.
    pub fn per_cpu_second(&self) -> f64 {
        self.count as f64 / self.cpu
    }

    /// Returns a percentile of the latencies; `part` is between 0 and 1.
    pub fn percentile(&mut self, part: f64) -> Duration {
        self.times.sort_unstable();
        let index = (self.times.len() as f64 * part) as usize;
        self.times.get(index.min(self.times.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Number and length of the rounds.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Number of rounds of each server.
    pub count: u32,
    /// Length of a round.
    pub length: Duration,
}

/// A request that a measurement repeats.
#[derive(Clone)]
pub struct Load {
    /// Method.
    pub method: Method,
    /// Expected status code.
    pub expected_status: StatusCode,
    /// Builds path and body of a request from a number that is unique to the request.
    pub build_request: Arc<dyn Fn(u64) -> (String, Bytes) + Send + Sync>,
}

/// Measures two servers in alternating rounds, over `clients` connections with one request in flight each.
///
/// # Errors
///
/// A response has another status code than expected, or a connection breaks.
pub async fn measure_closed_loop(
    servers: [(&MeasuredServer, Load); 2],
    clients: usize,
    rounds: Rounds,
) -> Result<[Figure; 2], Error> {
    let numbers = Arc::new(AtomicU64::new(0));
    let mut prepared = Vec::new();
    for (server, load) in servers {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(server.target.connect().await?);
        }
        prepared.push((server, load, connections, Figure::default()));
    }
    for _ in 0..rounds.count {
        for (server, load, connections, figure) in &mut prepared {
            let (started, cpu) = (Instant::now(), server.cpu()?);
            let stop = Arc::new(AtomicBool::new(false));
            let mut tasks = Vec::new();
            for connection in connections.drain(..) {
                tasks.push(tokio::spawn(send_requests(
                    connection,
                    load.clone(),
                    numbers.clone(),
                    stop.clone(),
                )));
            }
            tokio::time::sleep(rounds.length).await;
            stop.store(true, Ordering::Relaxed);
            let mut times = Vec::new();
            for task in tasks {
                let (connection, latencies) = task.await??;
                connections.push(connection);
                times.extend(latencies);
            }
            let (seconds, cpu) = (started.elapsed().as_secs_f64(), server.cpu()? - cpu);
            figure.add(Figure { count: times.len() as u64, seconds, cpu, times });
        }
    }
    let mut figures = prepared.into_iter().map(|(_, _, _, figure)| figure);
    Ok([figures.next().unwrap_or_default(), figures.next().unwrap_or_default()])
}

/// Sends requests one after the other until `stop` is set. Returns their latencies.
async fn send_requests(
    mut connection: Connection,
    load: Load,
    numbers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<(Connection, Vec<Duration>), Error> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (path, body) = (load.build_request)(numbers.fetch_add(1, Ordering::Relaxed));
        let sent = Instant::now();
        let mut response = connection.open(load.method.clone(), &path, body).await?;
        // Chunks are not collected, so that a large response costs the client little memory and CPU time.
        while let Some(frame) = response.body_mut().frame().await {
            frame?;
        }
        if response.status() != load.expected_status {
            return Err(format!("{} {path}: {}", load.method, response.status()).into());
        }
        times.push(sent.elapsed());
    }
    Ok((connection, times))
}
