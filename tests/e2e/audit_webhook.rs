//! The audit webhook: what a receiver gets, as recorded from kube-apiserver, for each mode and each failure.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};
use tokio::net::TcpListener;

use super::audit_policies::{compare, read_script, restore, send};

/// A POST that the receiver got.
#[derive(Clone, Debug)]
struct Post {
    target: String,
    content_type: String,
    items: Vec<Value>,
}

/// A receiver of events, which answers with codes in order and then with 200.
#[derive(Clone, Default)]
struct Receiver {
    answers: Arc<Mutex<VecDeque<u16>>>,
    posts: Arc<Mutex<Vec<Post>>>,
}

impl Receiver {
    /// Starts the receiver. Returns its port.
    async fn start(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let receiver = self.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let receiver = receiver.clone();
                let service = service_fn(move |request| receiver.clone().receive(request));
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { server.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        port
    }

    async fn receive(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let list: Value = serde_json::from_slice(&body).expect("a list of events");
        let header = head.headers.get("content-type").and_then(|value| value.to_str().ok());
        // Only the events of the recorded requests count.
        let mut items = list["items"].as_array().cloned().expect("items");
        items.retain(is_recorded);
        if items.is_empty() {
            return Ok(Response::new(Full::default()));
        }
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
        let (target, content_type) = (head.uri.to_string(), header.unwrap_or_default().to_owned());
        self.posts.lock().push(Post { target, content_type, items });
        let code = self.answers.lock().pop_front().unwrap_or(200);
        Ok(Response::builder().status(code).body(Full::default()).expect("a response"))
    }
}

/// Whether an event is of a request of the script.
fn is_recorded(event: &Value) -> bool {
    event["auditID"].as_str().is_some_and(|id| id.len() == 3 && id.starts_with('r'))
}

/// The audit ID and the stage of each event.
fn ids(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| format!("{} {}", event["auditID"], event["stage"])).collect()
}

/// The events of recorded POSTs.
fn recorded_posts(row: &Value) -> Vec<Vec<Value>> {
    let posts = row["posts"].as_array().expect("posts").iter();
    posts.map(|post| post["body"]["items"].as_array().expect("items").clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn receiver_gets_recorded_events_in_each_mode_and_after_failures() {
    let Some(folder) = prerequisites::audit() else { return };
    let script = read_script(&folder);
    let dir = tempfile::tempdir().expect("a folder");
    let (config, policy) = (dir.path().join("webhook.kubeconfig"), dir.path().join("policy.yaml"));
    let receiver = Receiver::default();
    let port = receiver.start().await;
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}/events/here?x=1")}}],
        "users": [], "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
    });
    fs::write(&config, text.to_string()).expect("a file");
    let mut plane = ControlPlane::new_stopped(Options::kubernetes());
    plane.launch().await;
    send(&plane, &script.setup).await;
    let rows = fs::read_to_string(folder.join("webhook.jsonl")).expect("the recording");
    let mut differences = Vec::new();
    for row in rows.lines().map(|row| serde_json::from_str::<Value>(row).expect("JSON")) {
        let name = row["name"].as_str().expect("a name");
        fs::write(&policy, row["policy"].as_str().expect("a policy")).expect("a file");
        let flags = row["flags"].as_array().expect("flags").iter();
        let mut flags: Vec<String> = flags.map(|flag| flag.as_str().expect("a flag").to_owned()).collect();
        flags.push(format!("--audit-webhook-config-file={}", config.display()));
        flags.push(format!("--audit-policy-file={}", policy.display()));
        plane.relaunch_with(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
        restore(&plane, &script).await;
        if name == "batch of two" {
            // An event of the restoration would share a batch with a recorded one.
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
        receiver.posts.lock().clear();
        let answers = row["receiverAnswers"].as_array().into_iter().flatten();
        let answers = answers.map(|code| u16::try_from(code.as_u64().expect("a code")).expect("a code"));
        *receiver.answers.lock() = answers.collect();
        let is_failing = !receiver.answers.lock().is_empty();

        for id in row["requests"].as_array().expect("ids") {
            let request = script.requests.iter().find(|request| request["id"] == *id).expect("a request");
            let begin = Instant::now();
            let code = send(&plane, std::slice::from_ref(request)).await[0].1;
            let seconds = begin.elapsed().as_secs_f64();
            let recorded = &row["statusAndSeconds"][id.as_str().expect("an id")];
            if recorded[0] != code {
                differences.push(format!("{name}: {id} has code {code}, recorded {}", recorded[0]));
            }
            // In the blocking modes a request waits for the retries of the webhook. A busy machine delays all requests.
            if recorded[1].as_f64().expect("seconds") > 0.5 && seconds < 0.5 {
                differences.push(format!("{name}: {id} took {seconds} s, recorded {}", recorded[1]));
            }
        }
        let expected = recorded_posts(&row);
        for _ in 0..100 {
            let count: usize = receiver.posts.lock().iter().map(|post| post.items.len()).sum();
            if count >= expected.iter().map(Vec::len).sum() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let found = receiver.posts.lock().clone();
        differences.extend(
            found
                .iter()
                .filter(|post| {
                    post.target != "/events/here?timeout=30s" || post.content_type != "application/json"
                })
                .map(|post| format!("{name}: {} {}", post.target, post.content_type)),
        );
        let found: Vec<Vec<Value>> = found.into_iter().map(|post| post.items).collect();
        // Without a fixed size of batches, time decides which events are in one batch.
        let has_fixed_batches = name != "batch" && name != "truncation";
        let grouped = |posts: &[Vec<Value>]| match has_fixed_batches {
            true => posts.iter().map(|items| ids(items)).collect(),
            false => vec![ids(&posts.concat())],
        };
        if grouped(&expected) != grouped(&found) {
            differences.push(format!(
                "{name}: posts {:?}, recorded {:?}",
                grouped(&found),
                grouped(&expected)
            ));
        }
        if name.starts_with("truncation") {
            differences.extend(truncation_differences(name, &expected.concat(), &found.concat()));
        } else if !is_failing {
            differences.extend(compare(name, &expected.concat(), &found.concat()));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Compares which events are truncated. An event of apid is at least as long as the recorded one.
fn truncation_differences(name: &str, recorded: &[Value], found: &[Value]) -> Vec<String> {
    let is_truncated = |event: &Value| event["annotations"].get("audit.k8s.io/truncated").is_some();
    let has_objects =
        |event: &Value| event.get("requestObject").is_some() || event.get("responseObject").is_some();
    let differs = |(recorded, found): &(&Value, &Value)| {
        (is_truncated(recorded) && !is_truncated(found)) || (is_truncated(found) && has_objects(found))
    };
    let pairs = recorded.iter().zip(found).filter(differs);
    pairs.map(|(recorded, found)| format!("{name}: expected {recorded}\n  found {found}")).collect()
}
