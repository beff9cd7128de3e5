//! Tests of half-connected states: apid must fail closed until one suitable process serves everything.

use std::path::{Path, PathBuf};

use authproto::auth::{ObjectWrite, mirror_update::Update};
use authproto::peer::{Peer, PeerNames};
use storage::engine::memory::MemoryStore;
use storage::{Observers, Store};
use tokio::sync::mpsc;

use super::wire::{Server, Writer, peer, query, serve_as};
use super::*;

/// The problem of a state without a usable mirror stream.
const NO_MIRROR: &str = "stored policy";

/// apid with both streams to a socket, and a cached decision.
struct Apid {
    auth: Arc<Auth>,
    clock: Arc<ManualClock>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Apid {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, clock) = (dir.path().join("s"), clock());
        let options = AuthOptions {
            servers: vec![AuthdServer::Socket(socket.clone())],
            instance: "i".to_owned(),
            timeout: Duration::from_secs(2),
            names: Arc::new(Names::new(apimachinery::names::Preset::Svc, "svc.internal").unwrap()),
            proxy_headers: ProxyHeaders::default(),
        };
        let auth = Auth::connect(options, vector(), clock.clone()).unwrap();
        Apid { auth, clock, socket, _dir: dir }
    }

    fn start_mirror(&self, writer: Arc<dyn PolicyWriter>) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
        tokio::spawn(self.auth.clone().run_mirror(store, writer));
    }

    /// Puts a decision for the user `u` in the cache, with the epoch of the connected process.
    fn cache_decision(&self) {
        let attributes = Arc::new(pods("a"));
        let epoch = Some(self.auth.epochs.number());
        let baseline = self.auth.revisions.identity_baseline(Duration::ZERO);
        let allow = crate::transport::scripted::verdict(true);
        self.auth.cache_decision(user("u").user(), &attributes, &allow, &baseline, epoch);
    }

    /// The HTTP code of a request with a cached decision.
    async fn code(&self) -> u16 {
        match self.auth.authorize(&user("u"), pods("a"), "").await {
            Ok(_) => 200,
            Err(rejection) => rejection.status.code,
        }
    }
}

fn serve(socket: &Path, processes: [Option<Peer>; 3]) -> Server {
    serve_as(socket, mpsc::unbounded_channel().0, processes)
}

async fn wait_until(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
}

/// Connects, replaces authd by processes that do not agree, and checks that the cached decision ends after
/// 30 s, with 503 and not 401.
async fn check_fails_closed(processes: [Option<Peer>; 3], expected_problem: &str) {
    let one = || Some(peer("one"));
    let apid = Apid::new();
    let server = serve(&apid.socket, [one(), one(), one()]);
    apid.start_mirror(Arc::new(Writer));
    apid.auth.connection().wait_until_healthy().await;
    apid.cache_decision();
    assert_eq!(apid.code().await, 200);
    drop(server);
    wait_until(|| apid.auth.connection().unreachable().is_some()).await;
    let _server = serve(&apid.socket, processes);
    wait_until(|| {
        apid.auth.connection().health().is_err_and(|problem| problem.to_string().contains(expected_problem))
    })
    .await;
    assert!(apid.auth.connection().answers_health_alone(), "/readyz must not wait for authd");
    assert_eq!(apid.code().await, 200, "the cached decision serves during the grace period");
    apid.clock.advance(Duration::from_secs(31));
    assert_eq!(apid.code().await, 503);
    let token = bearer("t");
    if expected_problem != NO_MIRROR {
        let rejection = apid.auth.authenticate(&credentials(&token, "/")).await.unwrap_err();
        assert_eq!(rejection.code, 503, "a process that apid cannot use must not reject credentials");
    }
}

#[tokio::test]
async fn authd_with_other_names_does_not_count_as_connected() {
    let names = PeerNames { preset: "kubernetes".to_owned(), api_domain: String::new() };
    let other = Some(Peer { names, ..peer("two") });
    check_fails_closed([other.clone(), other.clone(), other], "`kubernetes `").await;
}

#[tokio::test]
async fn authd_with_other_version_does_not_count_as_connected() {
    let other = Some(Peer { protocol: 7, ..peer("two") });
    check_fails_closed([other.clone(), other.clone(), other], "version 7").await;
    check_fails_closed([None, None, None], "does not identify itself").await;
}

#[tokio::test]
async fn decision_stream_without_mirror_does_not_count_as_connected() {
    check_fails_closed([Some(peer("two")), None, None], NO_MIRROR).await;
}

#[tokio::test]
async fn mirror_without_decision_stream_does_not_count_as_connected() {
    check_fails_closed([None, Some(peer("two")), None], "does not identify itself").await;
}

/// A wrong agreement of the streams would restart the grace period, so the test detects an agreement of any duration.
#[tokio::test]
async fn streams_of_two_processes_do_not_count_as_connected() {
    let one = || Some(peer("one"));
    let apid = Apid::new();
    apid.clock.advance(Duration::from_secs(31));
    assert!(!apid.auth.connection.cache_serves());
    let (seen, mut updates) = mpsc::unbounded_channel();
    let server = serve_as(&apid.socket, seen, [Some(peer("older")), one(), one()]);
    apid.start_mirror(Arc::new(Writer));
    let mut mirrors = 0;
    while mirrors < 3 {
        let update = tokio::time::timeout(Duration::from_secs(20), updates.recv()).await;
        mirrors += u32::from(matches!(update.unwrap(), Some(Update::Hello(_))));
        assert!(apid.auth.connection().unreachable().is_some());
    }
    assert!(!apid.auth.connection.cache_serves(), "streams of two processes were accepted");
    drop(server);
    let _server = serve(&apid.socket, [one(), one(), one()]);
    apid.auth.connection().wait_until_healthy().await;
    assert!(apid.auth.connection.cache_serves());
}

#[tokio::test]
async fn unary_response_of_another_process_is_not_used() {
    let apid = Apid::new();
    let one = || Some(peer("one"));
    let server = serve(&apid.socket, [one(), one(), one()]);
    apid.auth.connection().wait_for_connection().await;
    assert_eq!(apid.auth.keys("").await.unwrap().jwks, b"one");
    drop(server);
    wait_until(|| matches!(apid.auth.connection().health(), Err(AuthdProblem::Unreachable(_)))).await;
    let _server = serve(&apid.socket, [one(), one(), Some(peer("older"))]);
    apid.auth.connection().wait_for_connection().await;
    let result = apid.auth.keys("").await;
    assert_eq!(result.unwrap_err().code, 503);
}

/// A writer that panics.
struct PanickingWriter;

#[async_trait::async_trait]
impl PolicyWriter for PanickingWriter {
    async fn wait_for(&self, _revision: storage::Revision) {}

    async fn write(&self, _: &str, _: &ObjectWrite) -> Result<(), Status> {
        panic!("the test makes the writer panic")
    }
}

#[tokio::test]
async fn panic_of_mirror_task_reconnects() {
    let apid = Apid::new();
    let one = || Some(peer("one"));
    let (seen, mut updates) = mpsc::unbounded_channel();
    let server = serve_as(&apid.socket, seen, [one(), one(), one()]);
    apid.start_mirror(Arc::new(PanickingWriter));
    for _ in 0..2 {
        while !matches!(updates.recv().await.unwrap(), Update::Hello(_)) {}
    }
    drop(server);
    wait_until(|| apid.auth.connection().unreachable().is_some()).await;
    let result = apid.auth.authd_api.decide("", query("good")).await;
    assert!(matches!(result, Err(AuthdError::Unreachable(_))));
}
