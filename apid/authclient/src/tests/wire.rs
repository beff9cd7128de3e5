//! Tests of the streams against a gRPC server on a Unix socket: concurrency, reconnection, the mirror.

use std::path::Path;
use std::pin::Pin;

use authproto::auth::authn_server::{Authn, AuthnServer};
use authproto::auth::decide_server::{Decide, DecideServer};
use authproto::auth::mirror_server::{Mirror, MirrorServer};
use authproto::auth::{
    AuthorizeRequest, DecideRequest, DecideResponse, Epoch, Failure, IssueTokenRequest, IssueTokenResponse,
    KeysRequest, KeysResponse, MirrorDemand, MirrorUpdate, ObjectWrite, ReadyState, SharedMetrics,
    WriteBatch, decide_request, mirror_demand::Demand, mirror_update::Update, write_outcome::Outcome,
};
use authproto::peer::{PROTOCOL, Peer, PeerNames};
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use serde_json::json;
use storage::conformance::{RecordingObserver, StoreDouble};
use storage::{Observers, Op, Page, Row, Store, engine::memory::MemoryStore, unreadable_value};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Streaming};

use super::*;
use crate::transport::authd_api::AuthdApi as _;
use crate::transport::scripted::verdict;
use crate::transport::servers::Servers;
use crate::transport::stream::Client;

/// The identity of the process of [`serve`].
pub(super) fn peer(instance: &str) -> Peer {
    let names = PeerNames { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    Peer { protocol: PROTOCOL, names, instance: instance.to_owned() }
}

/// The names of apid, which [`peer`] shares.
pub(super) fn expected() -> ExpectedAuthd {
    ExpectedAuthd::new(&names())
}

fn names() -> Arc<Names> {
    Arc::new(Names::new(apimachinery::names::Preset::Svc, "svc.internal").unwrap())
}

/// Adds the identity of the process to a response.
fn identify<T>(body: T, peer: &Option<Peer>) -> Response<T> {
    let metadata = peer.as_ref().map(Peer::to_metadata).unwrap_or_default();
    Response::from_parts(metadata, body, tonic::Extensions::default())
}

/// Responds in pairs in reverse order: allows the user `good`, and fails for the user `broken`.
struct ReversedResponses(Option<Peer>);

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

#[tonic::async_trait]
impl Decide for ReversedResponses {
    type StreamStream = ResponseStream<DecideResponse>;

    async fn stream(
        &self,
        request: Request<Streaming<DecideRequest>>,
    ) -> Result<Response<Self::StreamStream>, tonic::Status> {
        let answers = request.into_inner().chunks(2).flat_map(|pair| {
            let answer = |question: Result<DecideRequest, tonic::Status>| {
                let question = question?;
                let user = match question.query {
                    Some(decide_request::Query::Authorize(request)) => request.user.unwrap_or_default().name,
                    _ => String::new(),
                };
                let answer = match user.as_str() {
                    "broken" => decide_response::Answer::Failure(Failure { code: 503, ..Failure::default() }),
                    user => decide_response::Answer::Authorize(verdict(user == "good")),
                };
                let epoch = Some(Epoch { instance: "one".into(), generation: 1, identities: 1 });
                Ok(DecideResponse { id: question.id, epoch, answer: Some(answer) })
            };
            futures_util::stream::iter(pair.into_iter().rev().map(answer))
        });
        Ok(identify(Box::pin(answers), &self.0))
    }
}

/// A mirror that forwards the received messages to a test, and requests one write.
struct RecordingMirror {
    seen: mpsc::UnboundedSender<Update>,
    peer: Option<Peer>,
}

#[tonic::async_trait]
impl Mirror for RecordingMirror {
    type SyncStream = ResponseStream<MirrorDemand>;

    async fn sync(
        &self,
        request: Request<Streaming<MirrorUpdate>>,
    ) -> Result<Response<Self::SyncStream>, tonic::Status> {
        let (demands, outgoing) = mpsc::channel(16);
        let mut updates = request.into_inner();
        let seen = self.seen.clone();
        let instance = self.peer.as_ref().map(|peer| peer.instance.clone()).unwrap_or_default();
        let write = ObjectWrite { name: "written".into(), ..ObjectWrite::default() };
        for demand in [
            Demand::Epoch(Epoch { instance, generation: 1, identities: 1 }),
            Demand::Write(WriteBatch { id: 7, controller: "c".into(), writes: vec![write] }),
            Demand::SharedMetrics(SharedMetrics { text: "reloads_total 3\n".to_owned() }),
            Demand::Ready(ReadyState { ready: true, reasons: vec![] }),
        ] {
            demands.send(MirrorDemand { demand: Some(demand) }).await.unwrap();
        }
        tokio::spawn(async move {
            while let Ok(Some(update)) = updates.message().await {
                let _ = seen.send(update.update.unwrap());
            }
            drop(demands);
        });
        let demands: Self::SyncStream = Box::pin(ReceiverStream::new(outgoing).map(Ok));
        Ok(identify(demands, &self.peer))
    }
}

/// A server in its own runtime: a drop closes its connections, as the end of a process does.
pub(super) struct Server(Option<tokio::runtime::Runtime>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

/// Returns keys that name the instance of the process.
struct NamedKeys(Option<Peer>);

#[tonic::async_trait]
impl Authn for NamedKeys {
    async fn issue_token(
        &self,
        _: Request<IssueTokenRequest>,
    ) -> Result<Response<IssueTokenResponse>, tonic::Status> {
        Ok(identify(IssueTokenResponse::default(), &self.0))
    }

    async fn keys(&self, _: Request<KeysRequest>) -> Result<Response<KeysResponse>, tonic::Status> {
        let jwks = self.0.as_ref().map(|peer| peer.instance.clone()).unwrap_or_default();
        Ok(identify(KeysResponse { jwks: jwks.into(), ..KeysResponse::default() }, &self.0))
    }
}

fn serve(socket: &Path, seen: mpsc::UnboundedSender<Update>) -> Server {
    let peer = || Some(peer("one"));
    serve_as(socket, seen, [peer(), peer(), peer()])
}

/// Serves decisions, the mirror and keys, each with its own identity.
pub(super) fn serve_as(
    socket: &Path,
    seen: mpsc::UnboundedSender<Update>,
    [decisions, mirror, keys]: [Option<Peer>; 3],
) -> Server {
    let _ = std::fs::remove_file(socket);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = {
        let _entered = runtime.enter();
        tokio::net::UnixListener::bind(socket).unwrap()
    };
    runtime.spawn(async move {
        tonic::transport::Server::builder()
            .add_service(DecideServer::new(ReversedResponses(decisions)))
            .add_service(MirrorServer::new(RecordingMirror { seen, peer: mirror }))
            .add_service(AuthnServer::new(NamedKeys(keys)))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    });
    Server(Some(runtime))
}

/// The authd at a socket.
fn servers(socket: &Path) -> Arc<Servers> {
    Servers::new(vec![AuthdServer::Socket(socket.to_owned())], "")
}

pub(super) fn query(name: &str) -> decide_request::Query {
    let user = UserInfo { name: name.into(), ..UserInfo::default() };
    decide_request::Query::Authorize(AuthorizeRequest {
        user: Some((&user).into()),
        ..AuthorizeRequest::default()
    })
}

pub(super) fn is_allowed(response: Result<DecideResponse, AuthdError>) -> Option<bool> {
    match response.ok()?.answer? {
        decide_response::Answer::Authorize(response) => {
            Some(crate::decisions::cache::from_wire(&response).allowed())
        }
        _ => None,
    }
}

#[tokio::test]
async fn responses_in_any_order_reach_their_requests() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let server = serve(&socket, mpsc::unbounded_channel().0);
    let connection = Arc::new(AuthdConnection::new(clock()));
    let client = Client::connect(servers(&socket), Duration::from_secs(10), expected(), connection.clone());
    let requests = (0..1000).map(|i| {
        let client = &client;
        async move {
            let name = ["good", "evil", "broken"][i % 3];
            (name, is_allowed(client.decide("", query(name)).await))
        }
    });
    for (name, answer) in futures_util::future::join_all(requests).await {
        assert_eq!(
            answer,
            [("good", Some(true)), ("evil", Some(false)), ("broken", None)]
                .into_iter()
                .find(|(n, _)| *n == name)
                .unwrap()
                .1
        );
    }
    assert!(matches!(connection.health(), Err(AuthdProblem::NoPolicy(_))));
    drop(server);
}

#[tokio::test]
async fn request_without_response_times_out_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let server = serve(&socket, mpsc::unbounded_channel().0);
    let client = Client::connect(
        servers(&socket),
        Duration::from_millis(50),
        expected(),
        Arc::new(AuthdConnection::new(clock())),
    );
    // The server responds to pairs: a single request waits.
    assert!(matches!(
        client.decide("", query("good")).await,
        Err(AuthdError::Timeout | AuthdError::Unreachable(_))
    ));
    drop(server);
}

#[tokio::test]
async fn decision_stream_reconnects_after_authd_restart() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let connection = Arc::new(AuthdConnection::new(clock()));
    let client = Client::connect(servers(&socket), Duration::from_secs(10), expected(), connection.clone());
    assert!(
        matches!(client.decide("", query("good")).await, Err(AuthdError::Unreachable(_))),
        "authd must not be reachable yet"
    );
    for _ in 0..3 {
        let server = serve(&socket, mpsc::unbounded_channel().0);
        let responses = loop {
            let responses = tokio::join!(client.decide("", query("good")), client.decide("", query("evil")));
            if responses.0.is_ok() {
                break responses;
            }
        };
        assert_eq!((is_allowed(responses.0), is_allowed(responses.1)), (Some(true), Some(false)));
        // A request is open while the server stops.
        let waiting = client.decide("", query("good"));
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            answer = &mut waiting => panic!("a single request got a response: {answer:?}"),
            () = std::future::ready(()) => {}
        }
        drop(server);
        let answer = waiting.await;
        assert!(matches!(answer, Err(AuthdError::Unreachable(_) | AuthdError::Timeout)), "{answer:?}");
        while !matches!(connection.health(), Err(AuthdProblem::Unreachable(_))) {
            tokio::task::yield_now().await;
        }
    }
}

pub(super) struct Writer;

#[async_trait::async_trait]
impl PolicyWriter for Writer {
    async fn wait_for(&self, _revision: Revision) {}

    async fn write(&self, controller: &str, write: &ObjectWrite) -> Result<(), Status> {
        assert_eq!((controller, write.name.as_str()), ("c", "written"));
        Err(Status::bad_request("not today"))
    }
}

fn role(verb: &str) -> Bytes {
    json!({"metadata": {"name": "r", "namespace": "a"}, "rules": [{"verbs": [verb]}]}).to_string().into()
}

/// A store, and a server that records the messages of its mirror.
struct MirrorSetup {
    auth: Arc<Auth>,
    store: Arc<dyn Store>,
    socket: std::path::PathBuf,
    updates: mpsc::UnboundedReceiver<Update>,
    _server: Server,
    _dir: tempfile::TempDir,
}

impl MirrorSetup {
    /// Creates the store with further observers after the policy vector.
    fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let (seen, updates) = mpsc::unbounded_channel();
        let server = serve(&socket, seen);
        let vector = vector();
        let observers = std::iter::once::<Arc<dyn Observer>>(vector.clone()).chain(observers).collect();
        let authd = crate::transport::scripted::ScriptedAuthd::new(|_| Ok(verdict(true)));
        MirrorSetup {
            auth: Auth::scripted(authd, vector, clock()),
            store: Arc::new(MemoryStore::new(Arc::new(Observers(observers)))),
            socket,
            updates,
            _server: server,
            _dir: dir,
        }
    }

    /// Starts the mirror. The runtime of the test ends it.
    fn start(&self) {
        let mirror = crate::transport::mirror::Mirror {
            servers: servers(&self.socket),
            names: names(),
            instance: "i".to_owned(),
            connection: Arc::clone(&self.auth.connection),
            revisions: Arc::clone(&self.auth.revisions),
            store: Arc::clone(&self.store),
            writer: Arc::new(Writer),
            is_reread: std::sync::atomic::AtomicBool::new(false),
        };
        tokio::spawn(async move { mirror.run().await });
    }
}

#[tokio::test]
async fn mirror_sends_snapshot_then_policy_changes() {
    let mut setup = MirrorSetup::new(Vec::new());
    let (auth, store) = (Arc::clone(&setup.auth), Arc::clone(&setup.store));
    store.commit("roles/a/r", Op::Create(role("get"))).await.unwrap();
    store.commit("configmaps/a/c", Op::Create(Bytes::from_static(b"{}"))).await.unwrap();
    auth.connection.set_mirror_lost("set by the test".to_owned());
    setup.start();

    let mut results = Vec::new();
    let mut next = async || loop {
        match setup.updates.recv().await.unwrap() {
            Update::WriteResult(result) => results.push(result),
            Update::Progress(_) => {}
            other => break other,
        }
    };
    assert!(matches!(next().await, Update::Hello(hello) if hello.preset == "svc" && hello.instance == "i"));
    assert!(matches!(next().await, Update::Put(put) if put.revision == 1));
    assert!(matches!(next().await, Update::Synced(synced) if synced.revision == 2));
    store.commit("roles/a/r", Op::Update(role("list"), Revision(1))).await.unwrap();
    store.commit("configmaps/a/c", Op::Delete(Revision(2))).await.unwrap();
    store.commit("roles/a/r", Op::Delete(Revision(3))).await.unwrap();
    assert!(matches!(next().await, Update::Put(put) if put.revision == 3));
    assert!(matches!(next().await, Update::Delete(delete) if delete.revision == 5));
    let Some(Outcome::Failure(failure)) = &results[0].outcomes[0].outcome else { panic!("{results:?}") };
    assert_eq!((results[0].id, failure.code), (7, 400), "the write must get its result");
    assert_eq!(auth.connection().health(), Ok(()));
    assert_eq!(auth.connection().shared_metrics(), "reloads_total 3\n");
}

#[tokio::test]
async fn mirror_snapshot_contains_unpublished_change() {
    let observer = Arc::new(RecordingObserver::default());
    let release = observer.block_next_batch();
    let mut setup = MirrorSetup::new(vec![observer.clone()]);
    let writing_store = Arc::clone(&setup.store);
    let commit = std::thread::spawn(move || {
        writing_store.commit("roles/a/r", Op::Create(role("get"))).now_or_never().unwrap().unwrap();
    });
    while observer.changes().is_empty() {
        tokio::task::yield_now().await;
    }

    setup.start();
    let mut next_policy_update = async || loop {
        match setup.updates.recv().await.unwrap() {
            Update::Put(put) => break ("put", put.revision),
            Update::Synced(synced) => break ("synced", synced.revision),
            _ => {}
        }
    };
    assert_eq!(next_policy_update().await, ("put", 1));
    assert_eq!(next_policy_update().await, ("synced", 1));
    drop(release);
    commit.join().unwrap();
    setup.store.commit("roles/a/s", Op::Create(role("get"))).await.unwrap();
    assert_eq!(next_policy_update().await, ("put", 2), "the stream continues after the snapshot");
}

#[tokio::test]
async fn mirror_snapshot_contains_only_cluster_info_config_map() {
    let mut setup = MirrorSetup::new(Vec::new());
    for key in ["a/c", "a/cluster-info", "svc-public/cluster-info", "svc-public/cluster-info-2"] {
        let (namespace, name) = key.split_once('/').unwrap();
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": {"k": "v"}});
        let create = Op::Create(object.to_string().into());
        setup.store.commit(&format!("configmaps/{key}"), create).await.unwrap();
    }
    setup.start();
    let mut mirrored = Vec::new();
    loop {
        match setup.updates.recv().await.unwrap() {
            Update::Put(object) => {
                let object = object.object.unwrap();
                mirrored.push(format!("{}/{}", object.namespace, object.name));
            }
            Update::Synced(_) => break,
            _ => {}
        }
    }
    assert_eq!(mirrored, ["svc-public/cluster-info"]);
}

#[tokio::test]
async fn mirror_progress_follows_changes_up_to_its_revision() {
    let mut setup = MirrorSetup::new(Vec::new());
    let store = Arc::clone(&setup.store);
    setup.start();
    while !matches!(setup.updates.recv().await.unwrap(), Update::Synced(_)) {}
    let mut at = store.commit("roles/a/r", Op::Create(role("0"))).await.unwrap().revision;
    for i in 1..200 {
        at = store.commit("roles/a/r", Op::Update(role(&i.to_string()), at)).await.unwrap().revision;
        if i % 50 == 0 {
            store.commit(&format!("configmaps/a/{i}"), Op::Create(Bytes::new())).await.unwrap();
        }
    }
    store.commit("configmaps/a/last", Op::Create(Bytes::new())).await.unwrap();
    let (mut last_seen, mut received) = (0, 0);
    while last_seen < store.revision().0 {
        match setup.updates.recv().await.unwrap() {
            Update::Put(put) => {
                assert!(put.revision > last_seen, "{} after {last_seen}", put.revision);
                last_seen = put.revision;
                received += 1;
            }
            Update::Progress(progress) => {
                assert!(progress.revision > last_seen);
                last_seen = progress.revision;
            }
            _ => {}
        }
    }
    assert_eq!(received, 200);
}

/// A store that cannot decrypt the key `roles/a/r` at first.
struct LockedStore {
    store: Arc<dyn Store>,
    is_locked: std::sync::atomic::AtomicBool,
}

impl LockedStore {
    fn read(&self, mut row: Row) -> Row {
        if *row.key == *"roles/a/r" && self.is_locked.load(std::sync::atomic::Ordering::SeqCst) {
            row.value = unreadable_value("wrong key");
        }
        row
    }
}

#[async_trait::async_trait]
impl StoreDouble for LockedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }
    async fn get(&self, key: &str, at: Option<Revision>) -> storage::Result<Option<Row>> {
        Ok(self.store.get(key, at).await?.map(|row| self.read(row)))
    }
    async fn range(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        at: Option<Revision>,
    ) -> storage::Result<Page> {
        let mut page = self.store.range(prefix, start, limit, at).await?;
        page.rows = page.rows.into_iter().map(|row| self.read(row)).collect();
        Ok(page)
    }
}

#[tokio::test]
async fn policy_object_that_becomes_readable_reaches_the_mirror_and_ends_cached_responses() {
    let mut setup = MirrorSetup::new(Vec::new());
    setup.store.commit("roles/a/r", Op::Create(role("get"))).await.unwrap();
    setup.store.commit("roles/a/s", Op::Create(role("get"))).await.unwrap();
    let locked = Arc::new(LockedStore { store: Arc::clone(&setup.store), is_locked: true.into() });
    setup.store = locked.clone();
    setup.start();
    let mut snapshot = async || {
        let mut revisions = Vec::new();
        loop {
            match setup.updates.recv().await.unwrap() {
                Update::Put(put) => revisions.push(put.revision),
                Update::Synced(_) => return revisions,
                _ => {}
            }
        }
    };
    assert_eq!(snapshot().await, [2]);
    let epochs = Arc::clone(&setup.auth.connection.epochs);
    let before = epochs.number();
    // A change of keys that makes nothing readable keeps the stream.
    setup.auth.revisions.reread_unreadable();
    let further = tokio::time::timeout(std::time::Duration::from_millis(200), snapshot()).await;
    assert!(further.is_err(), "{further:?}");
    locked.is_locked.store(false, std::sync::atomic::Ordering::SeqCst);
    setup.auth.revisions.reread_unreadable();
    assert_eq!(snapshot().await, [1, 2]);
    tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while epochs.number().generation == before.generation {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("cached responses end");
    assert_eq!(epochs.number().identities, before.identities, "watches continue");
}
