//! An authd process under measurement.
//!
//! The benchmark runs the authorization client of apid and feeds the policy mirror.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::SystemClock;
use apimachinery::names::Names;
use authclient::{Auth, AuthOptions, AuthdServer, PolicyRevisions, ProxyHeaders, Reductions};
use authproto::auth::mirror_client::MirrorClient;
use authproto::auth::mirror_update::Update;
use authproto::auth::{MirrorDemand, MirrorHello, MirrorObject, MirrorSynced, MirrorUpdate};
use hyper_util::rt::TokioIo;
use kinds::registry::Registry;
use storage::Revision;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::client::Error;
use crate::control_plane::command;
use crate::policy;

/// Time limit for the start of authd.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// authd in its own process, and the authorization client of apid in this process.
pub struct AuthdProcess {
    /// Authorization client of apid.
    pub auth: Arc<Auth>,
    /// Process id of authd.
    pub pid: u32,
    names: Arc<Names>,
    revisions: Arc<PolicyRevisions>,
    updates: mpsc::Sender<MirrorUpdate>,
    revision: u64,
    /// Requests of authd on the mirror stream, which must stay open. The benchmark ignores the requests.
    _demands: Streaming<MirrorDemand>,
    child: Child,
    _dir: TempDir,
}

impl AuthdProcess {
    /// Starts authd from the [directory of this program](command) with a names preset, a policy, and a static
    /// token for `user`.
    ///
    /// # Errors
    ///
    /// authd does not start, or does not accept the policy.
    pub async fn start(
        names: &Arc<Names>,
        token: &str,
        user: &str,
        policy: impl IntoIterator<Item = MirrorObject>,
    ) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir()?;
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, format!("{token},{user},1\n"))?;
        let socket = dir.path().join("authd.sock");
        let child = command("authd")?
            .arg("--socket")
            .arg(&socket)
            .arg("--token-auth-file")
            .arg(&tokens)
            .args([
                "--authorization-mode=Node,RBAC",
                "--exit-on-stdin-eof",
                "--names",
                names.preset().as_str(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or("authd ended at once")?;
        let channel = tokio::time::timeout(START_TIMEOUT, connect(&socket)).await?;

        let (updates, outgoing) = mpsc::channel(64);
        let hello = MirrorHello {
            preset: names.preset().to_string(),
            api_domain: names.api_domain().to_owned(),
            instance: "bench".to_owned(),
        };
        updates.send(MirrorUpdate { update: Some(Update::Hello(hello)) }).await?;
        let demands = MirrorClient::new(channel).sync(ReceiverStream::new(outgoing)).await?.into_inner();

        let reductions = Reductions::new(&Registry::new(names), names);
        let revisions = Arc::new(PolicyRevisions::new(reductions));
        let options = AuthOptions {
            servers: vec![AuthdServer::Socket(socket)],
            instance: String::new(),
            timeout: Duration::from_secs(10),
            names: Arc::clone(names),
            proxy_headers: ProxyHeaders::default(),
        };
        let auth = Auth::connect(options, Arc::clone(&revisions), Arc::new(SystemClock::new()))
            .map_err(|_| "no random bytes from the system")?;
        tokio::time::timeout(START_TIMEOUT, auth.connection().wait_for_connection()).await?;
        auth.connection().adopt_mirror();
        let mut process = AuthdProcess {
            auth,
            pid,
            names: Arc::clone(names),
            revisions,
            updates,
            revision: 0,
            _demands: demands,
            child,
            _dir: dir,
        };
        process.feed(policy).await?;
        let synced = Update::Synced(MirrorSynced { revision: process.revision });
        process.updates.send(MirrorUpdate { update: Some(synced) }).await?;
        process.settle().await?;
        Ok(process)
    }

    /// Sends objects to the policy mirror, each with its own revision.
    ///
    /// # Errors
    ///
    /// authd has ended.
    pub async fn feed(&mut self, objects: impl IntoIterator<Item = MirrorObject>) -> Result<(), Error> {
        for object in objects {
            self.revision += 1;
            let put = Update::Put(policy::put(self.revision, object));
            self.updates.send(MirrorUpdate { update: Some(put) }).await?;
        }
        Ok(())
    }

    /// Waits until authd has applied all objects; later decisions use the newest revision.
    ///
    /// # Errors
    ///
    /// authd does not decide at the newest revision.
    pub async fn settle(&self) -> Result<(), Error> {
        self.revisions.start_at(Revision(self.revision));
        let attributes = policy::request("nothing", "settled");
        match self.auth.decision(&Arc::new(policy::caller(&self.names)), attributes).await {
            Ok(_) => Ok(()),
            Err(status) => Err(status.message.into()),
        }
    }

    /// Kills authd.
    ///
    /// # Errors
    ///
    /// authd cannot be killed.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.child.kill().await?;
        Ok(())
    }
}

async fn connect(socket: &Path) -> Channel {
    let path: PathBuf = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    loop {
        match Endpoint::from_static("http://authd").connect_with_connector(connector.clone()).await {
            Ok(channel) => return channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}
