//! Duration of a decision over the socket, and throughput of a stream: `cargo bench -p authd`.
//! Without `--bench`, as in `cargo test`, it makes a few requests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use authproto::auth;
use authproto::auth::decide_client::DecideClient;
use authproto::auth::decide_request::Ask;
use authproto::auth::mirror_client::MirrorClient;
use authproto::auth::mirror_update::Update;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

type BenchError = Box<dyn std::error::Error>;

async fn connect(socket: &Path) -> Result<Channel, BenchError> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    loop {
        match Endpoint::from_static("http://authd").connect_with_connector(connector.clone()).await {
            Ok(channel) => return Ok(channel),
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

fn request(id: u64) -> auth::DecideRequest {
    let user = auth::UserInfo {
        name: "alice".to_owned(),
        groups: vec!["team-a".to_owned(), "system:authenticated".to_owned()],
        ..auth::UserInfo::default()
    };
    let attributes = auth::Attributes {
        verb: "get".to_owned(),
        resource_request: true,
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        ..auth::Attributes::default()
    };
    let ask = auth::AuthorizeRequest {
        user: Some(user),
        attributes: Some(attributes),
        at_least: Some(auth::Revisions { rbac_cluster: 1, ..auth::Revisions::default() }),
    };
    auth::DecideRequest { id, request_id: format!("request-{id}"), ask: Some(Ask::Authorize(ask)) }
}

#[tokio::main]
async fn main() -> Result<(), BenchError> {
    let count = if std::env::args().any(|argument| argument == "--bench") { 50_000 } else { 100 };
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("authd.sock");
    let mut authd = Command::new(env!("CARGO_BIN_EXE_authd"))
        .arg(format!("--socket={}", socket.display()))
        .args(["--authorization-mode=RBAC", "--names=kubernetes", "--exit-on-stdin-eof"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let channel = connect(&socket).await?;

    let (updates, outgoing) = mpsc::channel(8);
    let hello = auth::MirrorHello { preset: "kubernetes".to_owned(), ..auth::MirrorHello::default() };
    updates.send(auth::MirrorUpdate { update: Some(Update::Hello(hello)) }).await?;
    let synced = Update::Synced(auth::MirrorSynced { revision: 1 });
    updates.send(auth::MirrorUpdate { update: Some(synced) }).await?;
    let _demands = MirrorClient::new(channel.clone()).sync(ReceiverStream::new(outgoing)).await?;

    let clock = SystemClock::new();
    let (requests, outgoing) = mpsc::channel(256);
    let mut responses = DecideClient::new(channel).stream(ReceiverStream::new(outgoing)).await?.into_inner();
    requests.send(request(0)).await?;
    responses.message().await?;

    let mut times = Vec::with_capacity(count);
    for id in 0..count {
        let start = clock.monotonic();
        requests.send(request(id as u64)).await?;
        responses.message().await?;
        times.push(clock.monotonic() - start);
    }
    times.sort();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!("one at a time: median {:?}, p99 {:?}", at(0.5), at(0.99));

    let start = clock.monotonic();
    let sender = tokio::spawn(async move {
        for id in 0..count {
            if requests.send(request(id as u64)).await.is_err() {
                return;
            }
        }
    });
    for _ in 0..count {
        responses.message().await?;
    }
    sender.await?;
    let elapsed = clock.monotonic() - start;
    println!("all at once: {:.0} a second", count as f64 / elapsed.as_secs_f64());
    drop(authd.stdin.take());
    authd.wait()?;
    Ok(())
}
