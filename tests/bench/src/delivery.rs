//! Event delivery to many watches, one connection each: throughput per CPU-second of the server, and latency.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::client::{Error, Target};
use crate::objects::{collection, config_map, watch_from_now};
use crate::throughput::{Figure, MeasuredServer, Rounds};

/// Number of connections that create events at a steady rate.
const WRITERS: u64 = 8;

/// Text before the number in the JSON of an event. The number has [`DIGITS`] digits.
const NUMBER_PREFIX: &[u8] = b"\"name\":\"event-";
const DIGITS: usize = 9;

/// Deliveries during this time are ignored: connections and their buffers are new.
const WARM_UP: Duration = Duration::from_secs(1);

/// Source of events on one server.
pub struct EventSource {
    server: MeasuredServer,
    /// Path of the watch; None means a watch of the ConfigMaps from the current revision on.
    watch: Option<String>,
    create: String,
    /// Builds the request body that creates the event with a number.
    make_body: Arc<dyn Fn(u64) -> Bytes + Send + Sync>,
}

impl EventSource {
    /// Creates a source whose events are creates of ConfigMaps on a control plane.
    pub fn for_objects(server: MeasuredServer) -> EventSource {
        EventSource {
            server,
            watch: None,
            create: collection(),
            make_body: Arc::new(|number| config_map(&event_name(number))),
        }
    }

    /// Creates a source on the baseline server, which forwards each request body as an event.
    ///
    /// The events are lines as long as `sample`.
    ///
    /// # Errors
    ///
    /// The sample has no event name.
    pub async fn for_lines(sample: &Bytes) -> Result<EventSource, Error> {
        let server = MeasuredServer::start_baseline(sample).await?;
        let sample = sample.clone();
        let at = number_position(&sample).ok_or("the sample names no event")?;
        let make_body = move |number: u64| {
            let mut line = sample.to_vec();
            if let Some(digits) = line.get_mut(at..at + DIGITS) {
                digits.copy_from_slice(format!("{number:09}").as_bytes());
            }
            Bytes::from(line)
        };
        Ok(EventSource {
            server,
            watch: Some("/?watch=1".to_owned()),
            create: "/".to_owned(),
            make_body: Arc::new(make_body),
        })
    }

    async fn watch(&self) -> Result<String, Error> {
        match &self.watch {
            Some(watch) => Ok(watch.clone()),
            None => watch_from_now(&self.server.target).await,
        }
    }

    /// Creates one event and returns its line of the watch.
    ///
    /// # Errors
    ///
    /// The event is not created, or does not arrive.
    pub async fn sample(&self, number: u64) -> Result<Bytes, Error> {
        let mut connection = self.server.target.connect().await?;
        let mut response = connection.open(Method::GET, &self.watch().await?, Bytes::new()).await?;
        create(&self.server.target, &self.create, (self.make_body)(number)).await?;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let frame = response.body_mut().frame().await.ok_or("the watch ended")??;
            line.extend_from_slice(frame.data_ref().ok_or("the watch has trailers")?);
        }
        Ok(Bytes::from(line))
    }
}

fn event_name(number: u64) -> String {
    format!("event-{number:09}")
}

/// Returns the position of the digits in the event name of a line.
fn number_position(line: &[u8]) -> Option<usize> {
    line.windows(NUMBER_PREFIX.len())
        .position(|window| window == NUMBER_PREFIX)
        .map(|at| at + NUMBER_PREFIX.len())
}

async fn create(target: &Target, path: &str, body: Bytes) -> Result<(), Error> {
    let (status, _) = target.connect().await?.call(Method::POST, path, body).await?;
    if status == StatusCode::CREATED {
        Ok(())
    } else {
        Err(format!("creating an event failed: {status}").into())
    }
}

/// Creates events at full speed over four connections, in rounds that alternate between both sources.
///
/// # Errors
///
/// A watch or a write fails.
pub async fn measure_at_full_speed(
    sources: [&EventSource; 2],
    watchers: usize,
    rounds: Rounds,
    first: u64,
) -> Result<[Figure; 2], Error> {
    let mut prepared = Vec::new();
    for source in sources {
        let delivered = Arc::new(AtomicU64::new(0));
        let (mut tasks, path) = (Vec::new(), source.watch().await?);
        for _ in 0..watchers {
            tasks.push(watch(&source.server.target, &path, Arc::new(EventCounter(delivered.clone()))).await?);
        }
        prepared.push((source, delivered, tasks, Figure::default()));
    }
    let numbers = Arc::new(AtomicU64::new(first));
    for _ in 0..rounds.count {
        for (source, delivered, _, figure) in &mut prepared {
            let before = delivered.load(Ordering::Relaxed);
            let (started, cpu) = (Instant::now(), source.server.cpu()?);
            let stop = Arc::new(AtomicBool::new(false));
            let mut writers = Vec::new();
            for _ in 0..4 {
                let (numbers, stop) = (numbers.clone(), stop.clone());
                let (make_body, path) = (source.make_body.clone(), source.create.clone());
                let mut connection = source.server.target.connect().await?;
                writers.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let body = make_body(numbers.fetch_add(1, Ordering::Relaxed));
                        let (status, _) = connection.call(Method::POST, &path, body).await?;
                        if status != StatusCode::CREATED {
                            return Err(format!("creating an event failed: {status}").into());
                        }
                    }
                    Ok::<(), Error>(())
                }));
            }
            tokio::time::sleep(rounds.length).await;
            stop.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.await??;
            }
            // Wait for events in transit, so that they are counted.
            wait_until_stable(delivered).await;
            let count = delivered.load(Ordering::Relaxed) - before;
            let (seconds, cpu) = (started.elapsed().as_secs_f64(), source.server.cpu()? - cpu);
            figure.count += count;
            figure.seconds += seconds;
            figure.cpu += cpu;
        }
    }
    for (_, _, tasks, _) in &prepared {
        tasks.iter().for_each(JoinHandle::abort);
    }
    let mut figures = prepared.into_iter().map(|(_, _, _, figure)| figure);
    Ok([figures.next().unwrap_or_default(), figures.next().unwrap_or_default()])
}

/// Waits until the counter no longer changes.
async fn wait_until_stable(counter: &AtomicU64) {
    loop {
        let before = counter.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if counter.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Creates events at a steady rate and measures the latency of each delivery, from the time of the write
/// request.
///
/// # Errors
///
/// A watch or a write fails.
pub async fn measure_at_rate(
    source: &EventSource,
    watchers: usize,
    rate: u64,
    length: Duration,
    first: u64,
) -> Result<Figure, Error> {
    let events = rate * (WARM_UP + length).as_secs();
    let started = Instant::now();
    let sent: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let ignored = rate * WARM_UP.as_secs();
    let times = Arc::new(Mutex::new(Vec::<Duration>::new()));
    let (mut tasks, path) = (Vec::new(), source.watch().await?);
    for _ in 0..watchers {
        let recorder = LatencyRecorder { started, first, ignored, sent: sent.clone(), times: times.clone() };
        tasks.push(watch(&source.server.target, &path, Arc::new(recorder)).await?);
    }
    let (counted_from, cpu) = (Instant::now(), source.server.cpu()?);
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut connection = source.server.target.connect().await?;
        let (make_body, path, sent) = (source.make_body.clone(), source.create.clone(), sent.clone());
        let start = tokio::time::Instant::now();
        writers.push(tokio::spawn(async move {
            for event in (writer..events).step_by(WRITERS as usize) {
                let body = make_body(first + event);
                let due = Duration::from_nanos(event * 1_000_000_000 / rate);
                tokio::time::sleep_until(start + due).await;
                if let Some(sent) = sent.get(event as usize) {
                    sent.store(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
                let (status, _) = connection.call(Method::POST, &path, body).await?;
                if status != StatusCode::CREATED {
                    return Err(format!("creating an event failed: {status}").into());
                }
            }
            Ok::<(), Error>(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    let (seconds, cpu_used) = (counted_from.elapsed().as_secs_f64(), source.server.cpu()? - cpu);
    let expected = (events - ignored) * watchers as u64;
    let deadline = Instant::now() + Duration::from_secs(30);
    while (times.lock().len() as u64) < expected && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks.iter().for_each(JoinHandle::abort);
    let times = std::mem::take(&mut *times.lock());
    if (times.len() as u64) < expected {
        return Err(format!("{} of {expected} deliveries arrived", times.len()).into());
    }
    Ok(Figure { count: events * watchers as u64, seconds, cpu: cpu_used, times })
}

/// Processes the data of a watch when a part of it arrives.
trait LineReader: Send + Sync + 'static {
    fn read(&self, lines: &mut Vec<u8>, data: &[u8]);
}

/// Reader that counts the events of all watches.
struct EventCounter(Arc<AtomicU64>);

impl LineReader for EventCounter {
    fn read(&self, _: &mut Vec<u8>, data: &[u8]) {
        let lines = data.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.0.fetch_add(lines, Ordering::Relaxed);
    }
}

/// Measures the latency of events.
struct LatencyRecorder {
    started: Instant,
    /// Number of the first event.
    first: u64,
    /// Number of events during [`WARM_UP`], whose latency is ignored.
    ignored: u64,
    /// Time at which each event was sent, in nanoseconds since `started`.
    sent: Arc<Vec<AtomicU64>>,
    times: Arc<Mutex<Vec<Duration>>>,
}

impl LineReader for LatencyRecorder {
    fn read(&self, rest: &mut Vec<u8>, data: &[u8]) {
        let now = self.started.elapsed().as_nanos() as u64;
        rest.extend_from_slice(data);
        let mut consumed = 0;
        for line in rest.split_inclusive(|byte| *byte == b'\n') {
            if line.last() != Some(&b'\n') {
                break;
            }
            consumed += line.len();
            let digits = number_position(line).and_then(|at| line.get(at..at + DIGITS));
            let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
            let event = number.and_then(|number| number.checked_sub(self.first));
            if let Some(event) = event.filter(|event| *event >= self.ignored)
                && let Some(sent) = self.sent.get(event as usize)
            {
                let latency = now.saturating_sub(sent.load(Ordering::Relaxed));
                self.times.lock().push(Duration::from_nanos(latency));
            }
        }
        rest.drain(..consumed);
    }
}

/// Opens a watch on its own connection.
async fn watch(target: &Target, path: &str, reader: Arc<dyn LineReader>) -> Result<JoinHandle<()>, Error> {
    let mut connection = target.connect().await?;
    let response = connection.open(Method::GET, path, Bytes::new()).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("watch: {}", response.status()).into());
    }
    Ok(tokio::spawn(async move {
        let mut body = response.into_body();
        let mut rest = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                reader.read(&mut rest, data);
            }
        }
        drop(connection);
    }))
}
