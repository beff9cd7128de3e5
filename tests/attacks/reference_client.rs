//! Reference client: GETs and creates at a fixed rate on its own connection.
//!
//! Periodically the client also opens a new connection for a GET and an access review that no cache answers.
//!
//! # Contract
//!
//! The load is open loop: requests start when they are due, independent of earlier ones, and latency counts
//! from that time. A request without a response within [`RESPONSE_TIME_LIMIT`] is an error, and so is an
//! unexpected code.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use crate::client::{Error, Link, Prepared, READ_STREAM_WINDOW, tls};
use crate::dataset::{self, REFERENCE_NAMESPACE, REFERENCE_OBJECT};
use crate::server::REFERENCE_TOKEN;

/// Interval of GETs.
const GET_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of creates.
const CREATE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of new connections.
const CONNECT_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a request without a response counts as an error.
const RESPONSE_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Interval at which the thread checks whether to start the requests.
const START_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Measurements of the reference client.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Latencies of GETs.
    pub gets: Vec<Duration>,
    /// Latencies of creates.
    pub creates: Vec<Duration>,
    /// Latencies of a GET and an access review on new connections, including the TLS handshake.
    pub connects: Vec<Duration>,
    /// Failed requests by operation and cause.
    pub errors: BTreeMap<String, u64>,
}

/// Thread of the reference client.
pub struct ReferenceClient {
    begin: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Samples>,
}

impl ReferenceClient {
    /// Connects; `run` makes the names of its objects unique. Requests start at [`ReferenceClient::begin`].
    pub fn connect(port: u16, run: u64) -> ReferenceClient {
        let (begin, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begun, stopped) = (Arc::clone(&begin), Arc::clone(&stop));
        let (connected, is_connected) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let session = async {
                let link = Link::open(port, &tls("h2"), Some(REFERENCE_TOKEN), READ_STREAM_WINDOW).await;
                let _ = connected.send(());
                while !begun.load(Ordering::Relaxed) {
                    tokio::time::sleep(START_POLL_INTERVAL).await;
                }
                match link {
                    Ok(link) => run_load(port, link, run, stopped).await,
                    Err(error) => Samples {
                        errors: BTreeMap::from([(format!("connection: {error}"), 1)]),
                        ..Samples::default()
                    },
                }
            };
            LocalSet::new().block_on(&runtime.expect("a runtime"), session)
        });
        is_connected.recv().expect("the reference client connects");
        ReferenceClient { begin, stop, thread }
    }

    /// Starts the requests.
    pub fn begin(&self) {
        self.begin.store(true, Ordering::Relaxed);
    }

    /// Stops sending requests, waits for those in flight, and returns the measurements.
    pub fn stop(self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the reference client ends")
    }
}

/// Operation of the reference client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Get,
    Create,
    Connect,
}

/// State shared by the tasks.
struct Shared {
    port: u16,
    get: Prepared,
    create: Prepared,
    tls: tokio_rustls::TlsConnector,
    /// Number of the next access review.
    next_review: AtomicU64,
    samples: RefCell<Samples>,
}

async fn run_load(port: u16, link: Link, run: u64, stop: Arc<AtomicBool>) -> Samples {
    let collection = format!("/api/v1/namespaces/{REFERENCE_NAMESPACE}/configmaps");
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"generateName":"run-{run}-"}},"data":{{"a":"b"}}}}"#
    );
    let shared = Rc::new(Shared {
        port,
        get: Prepared::get(format!("{collection}/{REFERENCE_OBJECT}")),
        create: Prepared::post(collection, body),
        tls: tls("h2"),
        next_review: AtomicU64::new(run * 1_000_000),
        samples: RefCell::default(),
    });
    let link = Rc::new(link);
    let mut tasks = Vec::new();
    for (operation, interval) in [
        (Operation::Get, GET_INTERVAL),
        (Operation::Create, CREATE_INTERVAL),
        (Operation::Connect, CONNECT_INTERVAL),
    ] {
        let (shared, link, stop) = (Rc::clone(&shared), Rc::clone(&link), Arc::clone(&stop));
        tasks.push(tokio::task::spawn_local(async move {
            let mut requests = Vec::new();
            let mut due = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep_until(due.into()).await;
                let (shared, link) = (Rc::clone(&shared), Rc::clone(&link));
                requests.push(tokio::task::spawn_local(measure(shared, link, operation, due)));
                due += interval;
            }
            for request in requests {
                request.await.expect("a request of the reference client");
            }
        }));
    }
    for task in tasks {
        task.await.expect("the reference client continues");
    }
    shared.samples.take()
}

async fn measure(shared: Rc<Shared>, link: Rc<Link>, operation: Operation, due: Instant) {
    let result = match tokio::time::timeout(RESPONSE_TIME_LIMIT, shared.execute(&link, operation)).await {
        Ok(Ok(code)) => Ok(code),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no response".to_owned()),
    };
    let latency = due.elapsed();
    let (name, expected) = match operation {
        Operation::Get => ("get", 200),
        Operation::Create => ("create", 201),
        Operation::Connect => ("connect", 200),
    };
    let mut samples = shared.samples.borrow_mut();
    match operation {
        Operation::Get => samples.gets.push(latency),
        Operation::Create => samples.creates.push(latency),
        Operation::Connect => samples.connects.push(latency),
    }
    match result {
        Ok(code) if code == expected => {}
        Ok(code) => *samples.errors.entry(format!("{name} {code}")).or_default() += 1,
        Err(cause) => *samples.errors.entry(format!("{name} {cause}")).or_default() += 1,
    }
}

impl Shared {
    async fn execute(&self, link: &Link, operation: Operation) -> Result<u16, Error> {
        match operation {
            Operation::Get => Ok(link.exchange(&self.get, 0).await?.code),
            Operation::Create => Ok(link.exchange(&self.create, 0).await?.code),
            Operation::Connect => {
                let link =
                    Link::open(self.port, &self.tls, Some(REFERENCE_TOKEN), READ_STREAM_WINDOW).await?;
                let code = link.exchange(&self.get, 0).await?.code;
                if code != 200 {
                    return Ok(code);
                }
                let number = self.next_review.fetch_add(1, Ordering::Relaxed);
                let review = dataset::access_review(number.into());
                match link.exchange(&review, 0).await?.code {
                    201 => Ok(200),
                    code => Err(format!("review {code}").into()),
                }
            }
        }
    }
}
