//! Starts authd on its own socket and plays the role of apid.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use authproto::auth;
use authproto::auth::decide_client::DecideClient;
use authproto::auth::mirror_client::MirrorClient;
use authproto::auth::{
    decide_request::Query, decide_response::Answer, mirror_demand::Demand, mirror_update::Update,
};
use authproto::peer::APID_KEY;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status, Streaming};

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// A timeout longer than any operation on a busy machine; a test that reaches it fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The authd process, killed on drop.
pub(crate) struct Authd {
    child: Child,
    pub(crate) dir: tempfile::TempDir,
}

impl Drop for Authd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_authd"));
    command.args(flags);
    command
}

/// Runs authd until it exits, and returns its output.
pub(crate) fn run(flags: &[&str]) -> Output {
    command(flags).output().unwrap()
}

impl Authd {
    /// Starts authd with a token file, under the `kubernetes` preset.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("tokens.csv"),
            "admin-token,admin,admin-uid,system:masters\nalice-token,alice,alice-uid,team-a\n",
        )
        .unwrap();
        let tokens = format!("--token-auth-file={}", dir.path().join("tokens.csv").display());
        let mut all_flags = vec!["--names=kubernetes", &tokens];
        all_flags.extend(flags);
        Self::start_in(dir, &all_flags).await
    }

    pub(crate) async fn start_in(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let socket = format!("--socket={}", dir.path().join("authd.sock").display());
        let child = command(flags).arg(socket).stdin(Stdio::piped()).spawn().unwrap();
        let mut authd = Authd { child, dir };
        let deadline = tokio::time::Instant::now() + LONG;
        while UnixStream::connect(authd.socket()).await.is_err() {
            assert_eq!(authd.child.try_wait().unwrap(), None, "authd ended");
            assert!(tokio::time::Instant::now() < deadline, "authd does not listen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        authd
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("authd.sock")
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.socket()).await
    }

    /// Opens the decision stream.
    pub(crate) async fn decide(&self) -> Decide {
        Decide::open(self.channel().await, "").await
    }

    /// Opens a mirror stream; does not send a snapshot.
    pub(crate) async fn mirror(&self) -> Mirror {
        Mirror::open(self.channel().await, "").await
    }
}

async fn connect(socket: &Path) -> Channel {
    let path = socket.to_owned();
    Endpoint::from_static("http://authd")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await
        .unwrap()
}

/// The decision stream.
pub(crate) struct Decide {
    requests: mpsc::Sender<auth::DecideRequest>,
    responses: Streaming<auth::DecideResponse>,
    next: u64,
}

/// A request with the name of an apid; an empty name is left out.
fn named<T>(message: T, apid: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !apid.is_empty() {
        request.metadata_mut().insert(APID_KEY, apid.parse().unwrap());
    }
    request
}

impl Decide {
    /// Opens the decision stream of an apid.
    pub(crate) async fn open(channel: Channel, apid: &str) -> Self {
        let (requests, outgoing) = mpsc::channel(64);
        let stream = DecideClient::new(channel).stream(named(ReceiverStream::new(outgoing), apid)).await;
        Decide { requests, responses: stream.unwrap().into_inner(), next: 1 }
    }

    /// Sends a request and returns its id.
    pub(crate) async fn send(&mut self, ask: Option<Query>) -> u64 {
        let id = self.next;
        self.next += 1;
        let request_id = format!("request-{id}");
        self.requests.send(auth::DecideRequest { id, request_id, query: ask }).await.unwrap();
        id
    }

    /// Returns the next response.
    pub(crate) async fn next(&mut self) -> auth::DecideResponse {
        tokio::time::timeout(LONG, self.responses.message())
            .await
            .expect("an answer in time")
            .unwrap()
            .unwrap()
    }

    /// Sends one request and waits for its response.
    pub(crate) async fn ask(&mut self, ask: Query) -> Answer {
        let id = self.send(Some(ask)).await;
        let answer = self.next().await;
        assert_eq!(answer.id, id);
        assert_eq!(answer.epoch.unwrap().generation, 1);
        answer.answer.unwrap()
    }

    /// Authenticates credentials. Returns the identity, or the detail of the rejection.
    pub(crate) async fn authenticate(
        &mut self,
        ask: auth::AuthenticateRequest,
    ) -> Result<auth::Identity, String> {
        match self.ask(Query::Authenticate(ask)).await {
            Answer::Authenticate(answer) => match answer.outcome.unwrap() {
                auth::authenticate_response::Outcome::Identity(identity) => Ok(identity),
                auth::authenticate_response::Outcome::Rejected(rejected) => Err(rejected.detail),
            },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn authorize(&mut self, ask: auth::AuthorizeRequest) -> auth::AuthorizeResponse {
        match self.ask(Query::Authorize(ask)).await {
            Answer::Authorize(answer) => answer,
            other => panic!("{other:?}"),
        }
    }
}

/// The mirror stream, from apid's side.
pub(crate) struct Mirror {
    updates: mpsc::Sender<auth::MirrorUpdate>,
    demands: Streaming<auth::MirrorDemand>,
}

impl Mirror {
    /// Opens the mirror stream of an apid with the preset `kubernetes`; does not send a snapshot.
    pub(crate) async fn open(channel: Channel, apid: &str) -> Self {
        Mirror::begin_as(channel, apid, "kubernetes", "").await.unwrap()
    }

    pub(crate) async fn begin(channel: Channel, preset: &str, api_domain: &str) -> Result<Self, Status> {
        Mirror::begin_as(channel, "", preset, api_domain).await
    }

    async fn begin_as(channel: Channel, apid: &str, preset: &str, api_domain: &str) -> Result<Self, Status> {
        let (updates, outgoing) = mpsc::channel(4096);
        let hello = auth::MirrorHello {
            preset: preset.to_owned(),
            api_domain: api_domain.to_owned(),
            instance: "test".to_owned(),
        };
        updates.send(auth::MirrorUpdate { update: Some(Update::Hello(hello)) }).await.unwrap();
        let request = named(ReceiverStream::new(outgoing), apid);
        let demands = MirrorClient::new(channel).sync(request).await?.into_inner();
        Ok(Mirror { updates, demands })
    }

    pub(crate) async fn send(&self, update: Update) {
        self.updates.send(auth::MirrorUpdate { update: Some(update) }).await.unwrap();
    }

    pub(crate) async fn put(
        &self,
        revision: u64,
        namespace: &str,
        name: &str,
        kind: auth::mirror_object::Kind,
    ) {
        let object = Some(object(namespace, name, kind));
        self.send(Update::Put(auth::MirrorPut { revision, object })).await;
    }

    pub(crate) async fn delete(
        &self,
        revision: u64,
        namespace: &str,
        name: &str,
        kind: auth::mirror_object::Kind,
    ) {
        let object = Some(object(namespace, name, kind));
        self.send(Update::Delete(auth::MirrorDelete { revision, object })).await;
    }

    pub(crate) async fn synced(&self, revision: u64) {
        self.send(Update::Synced(auth::MirrorSynced { revision })).await;
    }

    pub(crate) async fn progress(&self, revision: u64) {
        self.send(Update::Progress(auth::MirrorProgress { revision })).await;
    }

    pub(crate) async fn demand(&mut self) -> Result<Demand, Status> {
        let demand = tokio::time::timeout(LONG, self.demands.message()).await.expect("a demand in time")?;
        demand.and_then(|demand| demand.demand).ok_or_else(|| Status::cancelled("authd closed the stream"))
    }

    /// Returns the next batch of writes; skips other messages.
    pub(crate) async fn batch(&mut self) -> auth::WriteBatch {
        loop {
            if let Demand::Write(batch) = self.demand().await.unwrap() {
                return batch;
            }
        }
    }

    /// Returns the next readiness message; skips other messages.
    pub(crate) async fn ready(&mut self) -> auth::ReadyState {
        loop {
            if let Demand::Ready(ready) = self.demand().await.unwrap() {
                return ready;
            }
        }
    }
}

fn object(namespace: &str, name: &str, kind: auth::mirror_object::Kind) -> auth::MirrorObject {
    auth::MirrorObject {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        kind: Some(kind),
        ..auth::MirrorObject::default()
    }
}

pub(crate) fn role(verbs: &[&str], resources: &[&str]) -> auth::MirrorRole {
    let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
    let rule = auth::PolicyRule {
        verbs: list(verbs),
        api_groups: vec![String::new()],
        resources: list(resources),
        ..auth::PolicyRule::default()
    };
    auth::MirrorRole { rules: vec![rule], ..auth::MirrorRole::default() }
}

pub(crate) fn binding(role_kind: &str, role_name: &str, user: &str) -> auth::MirrorBinding {
    let subject = auth::Subject {
        kind: "User".to_owned(),
        api_group: GROUP.to_owned(),
        name: user.to_owned(),
        namespace: String::new(),
    };
    auth::MirrorBinding {
        role_kind: role_kind.to_owned(),
        role_name: role_name.to_owned(),
        subjects: vec![subject],
    }
}

pub(crate) fn user(name: &str, groups: &[&str]) -> auth::UserInfo {
    auth::UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..auth::UserInfo::default()
    }
}

/// Builds an authorization request for pods in a namespace, at a minimum policy revision.
pub(crate) fn pods(name: &str, verb: &str, namespace: &str, revision: u64) -> auth::AuthorizeRequest {
    let attributes = auth::Attributes {
        verb: verb.to_owned(),
        resource_request: true,
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        namespace: namespace.to_owned(),
        name: "x".to_owned(),
        ..auth::Attributes::default()
    };
    let at_least = auth::Revisions {
        rbac_cluster: 1,
        rbac_namespace: [(namespace.to_owned(), revision)].into(),
        ..auth::Revisions::default()
    };
    auth::AuthorizeRequest {
        user: Some(user(name, &["system:authenticated"])),
        attributes: Some(attributes),
        at_least: Some(at_least),
    }
}
