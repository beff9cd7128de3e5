//! Tests of the webhook against a receiver on loopback.

use std::collections::VecDeque;

use apimachinery::clock::{SeededRng, SystemClock};
use apimachinery::names::Preset;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::*;
use crate::backend::{BackendOptions, Mode};
use crate::batch::{Batching, Throttle};
use crate::{AuditLog, Event, Outcome, Policy, Stage};
use apimachinery::attributes::Attributes;

/// A request as the receiver got it.
#[derive(Clone, Debug)]
struct Received {
    head: String,
    body: Value,
}

/// A server without TLS that records requests and responds with queued codes, then with 200.
struct Receiver {
    address: std::net::SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    async fn start(codes: &[u16], pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let codes: Arc<Mutex<VecDeque<u16>>> = Arc::new(Mutex::new(codes.iter().copied().collect()));
        let record = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&record), Arc::clone(&codes), pause));
            }
        });
        Receiver { address, received }
    }

    fn webhook(&self, folder: &Path, first_pause: Duration) -> Webhook {
        let file = folder.join("webhook.yaml");
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {{server: 'http://{}/events/here?a=b'}}\n\
             users:\n- name: u\n  user: {{token: secret}}\n\
             contexts:\n- name: x\n  context: {{cluster: c, user: u}}\ncurrent-context: x\n",
            self.address
        );
        std::fs::write(&file, text).unwrap();
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let rng = Arc::new(SeededRng::new(1));
        Webhook::load(&file, first_pause, &names, Arc::new(SystemClock::new()), rng).unwrap()
    }

    fn audit_log(&self, folder: &Path, mode: Mode, max_event_bytes: Option<usize>) -> AuditLog {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        AuditLog::new(&names, Arc::new(SystemClock::new())).with_policy(all_stages(&names)).with_webhook(
            self.webhook(folder, Duration::from_millis(5)),
            BackendOptions { mode, max_event_bytes },
        )
    }

    fn events(&self) -> usize {
        let received = self.received.lock();
        received.iter().map(|request| request.body["items"].as_array().unwrap().len()).sum()
    }
}

fn all_stages(names: &Names) -> Policy {
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    Policy::read(text.as_bytes(), names).unwrap().0
}

async fn serve(
    mut stream: TcpStream,
    record: Arc<Mutex<Vec<Received>>>,
    codes: Arc<Mutex<VecDeque<u16>>>,
    pause: Duration,
) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
                break end;
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.parse().unwrap();
        while bytes.len() < end + 4 + length {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let body = serde_json::from_slice(&bytes[end + 4..end + 4 + length]).unwrap();
        bytes.drain(..end + 4 + length);
        record.lock().push(Received { head, body });
        tokio::time::sleep(pause).await;
        let code = codes.lock().pop_front().unwrap_or(200);
        let response = format!("HTTP/1.1 {code} x\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn event(audit: &AuditLog, id: &str) -> Event {
    let attributes =
        Arc::new(Attributes { verb: "get".into(), path: "/version".into(), ..Attributes::default() });
    let received = jiff::Timestamp::UNIX_EPOCH;
    let mut event = Event::new(id.into(), received, "/version".into(), Arc::clone(&attributes));
    event.decision = Some(audit.evaluate(&attributes, None));
    event
}

async fn receive(audit: &AuditLog, id: &str) -> bool {
    let encoded = audit.encode(&event(audit, id), Stage::RequestReceived, None).unwrap();
    audit.send(encoded).await
}

const BATCHING: Batching =
    Batching { buffer_size: 100, max_size: 2, max_wait: Duration::from_millis(20), throttle: None };

#[tokio::test]
async fn batches_are_posted_as_event_lists_without_token_and_query() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[], Duration::ZERO).await;
    let audit = receiver.audit_log(folder.path(), Mode::Batch(BATCHING), None);
    for id in ["a", "b", "c"] {
        assert!(receive(&audit, id).await);
    }
    audit.finish_batches().await;
    let mut received = receiver.received.lock().clone();
    received.sort_by_key(|request| std::cmp::Reverse(request.body["items"].as_array().unwrap().len()));
    assert_eq!(received.len(), 2);
    let first = &received[0];
    assert!(first.head.starts_with("post /events/here?timeout=30s http/1.1\r\n"), "{}", first.head);
    assert!(first.head.contains("content-type: application/json"), "{}", first.head);
    assert!(!first.head.contains("authorization"), "{}", first.head);
    let ids: Vec<&Value> =
        first.body["items"].as_array().unwrap().iter().map(|item| &item["auditID"]).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(first.body["items"][0].get("kind"), None);
    let list = [&first.body["kind"], &first.body["apiVersion"], &first.body["metadata"]];
    assert_eq!(list, [&json!("EventList"), &json!("audit.k8s.io/v1"), &json!({})]);
}

#[tokio::test]
async fn each_failure_is_retried_five_times() {
    for (codes, lost, posts) in [(&[500_u16, 400, 403, 429][..], 0, 5), (&[500, 500, 500, 500, 500], 1, 5)] {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(codes, Duration::ZERO).await;
        let audit = receiver.audit_log(folder.path(), Mode::Blocking, None);
        assert!(receive(&audit, "a").await, "the mode is not strict");
        assert_eq!((audit.lost_events(), receiver.received.lock().len()), (lost, posts), "{codes:?}");
    }
}

#[tokio::test]
async fn strict_mode_rejects_request_after_loss_of_first_event() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[500; 10], Duration::ZERO).await;
    let audit = receiver.audit_log(folder.path(), Mode::BlockingStrict, None);
    assert!(!receive(&audit, "a").await);
    let outcome = Some(Outcome { code: 200, status: None });
    let later = audit.encode(&event(&audit, "a"), Stage::ResponseComplete, outcome).unwrap();
    assert!(audit.send(later).await, "only the first event decides");
    assert!(receive(&audit, "b").await, "the receiver works again");
}

#[tokio::test]
async fn delivery_continues_when_the_request_no_longer_waits() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[500], Duration::from_millis(200)).await;
    let audit = receiver.audit_log(folder.path(), Mode::Blocking, None);
    assert!(tokio::time::timeout(Duration::from_millis(50), receive(&audit, "a")).await.is_err());
    audit.finish_batches().await;
    assert_eq!((audit.lost_events(), receiver.received.lock().len()), (0, 2), "the event is posted again");
}

#[tokio::test]
async fn events_in_delivery_without_waiting_are_limited_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[], Duration::from_millis(500)).await;
    let audit = receiver.audit_log(folder.path(), Mode::Blocking, None);
    let id = "a".repeat(20 << 20);
    for _ in 0..5 {
        audit.send_now(audit.encode(&event(&audit, &id), Stage::RequestReceived, None).unwrap());
    }
    assert_eq!(audit.lost_events(), 2, "64 MiB contain three of the events");
    audit.finish_batches().await;
    assert_eq!((audit.lost_events(), receiver.events()), (2, 3));
}

#[tokio::test]
async fn events_above_the_size_limit_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[], Duration::ZERO).await;
    let audit = receiver.audit_log(folder.path(), Mode::Blocking, Some(500));
    receive(&audit, "a").await;
    receive(&audit, &"b".repeat(500)).await;
    assert_eq!((audit.lost_events(), receiver.events()), (1, 1));
}

/// 20,000 events a second for a second to a receiver that takes a second for each request.
#[tokio::test]
async fn slow_receiver_delays_no_request_in_batch_mode() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&[], Duration::from_secs(1)).await;
    let throttle = Some(Throttle { qps: 10.0, burst: 15 });
    let batching =
        Batching { buffer_size: 1_000, max_size: 400, max_wait: Duration::from_secs(30), throttle };
    let audit = receiver.audit_log(folder.path(), Mode::Batch(batching), None);
    let (mut slowest, start) = (Duration::ZERO, Instant::now());
    for number in 0..20_000_u32 {
        let before = Instant::now();
        assert!(receive(&audit, "a").await);
        slowest = slowest.max(before.elapsed());
        if number % 20 == 0 {
            let due = start + Duration::from_millis(u64::from(number / 20));
            tokio::time::sleep_until(due).await;
        }
    }
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    // The buffer, the batches in delivery and the batch that is collected.
    let most = 1_000 + 400 * 9 + u64::try_from(receiver.events()).unwrap();
    assert!(audit.lost_events() >= 20_000 - most, "{} of 20000 are lost", audit.lost_events());
}

#[tokio::test]
async fn invalid_client_configuration_is_rejected_with_its_file() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let load = |file: &str| {
        let rng = Arc::new(SeededRng::new(1));
        let clock = Arc::new(SystemClock::new());
        Webhook::load(Path::new(file), Duration::ZERO, &names, clock, rng).err().unwrap().to_string()
    };
    assert!(load("absent.yaml").contains("absent.yaml"));
}
