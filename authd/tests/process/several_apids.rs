//! One authd for several apids: mutual TLS over TCP, and a mirror for each apid.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock as _, SystemClock};
use authproto::auth::mirror_object::Kind;
use authproto::auth::{self, Verdict, decide_request::Query, decide_response::Answer};
use authproto::health::HealthCheckRequest;
use authproto::health::health_client::HealthClient;
use hyper_util::rt::TokioIo;
use serving::certs::{Authority, PemPair};
use serving::mutual_tls::{MutualTlsClient, MutualTlsFiles};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::harness::{Authd, Decide, LONG, Mirror, binding, pods, role};

const HOUR: Duration = Duration::from_secs(3600);

/// The certificates of an installation in a folder.
struct Certificates {
    dir: TempDir,
    authority: Authority,
}

impl Certificates {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ca, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
        let authority = Authority::ensure(&ca, &key, name, SystemClock::new().now()).unwrap();
        let certificates = Certificates { dir, authority };
        certificates.write_server("127.0.0.1");
        certificates
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, pair: &PemPair) {
        std::fs::write(self.path(&format!("{name}.crt")), &pair.cert).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), &pair.key).unwrap();
    }

    fn write_server(&self, host: &str) {
        let pair = self.authority.serving(&[host.to_owned()], HOUR, SystemClock::new().now()).unwrap();
        self.write("authd", &pair);
    }

    /// The TLS of a client that trusts the authority in `ca`.
    fn client(&self, name: &str, ca: &Path) -> MutualTlsClient {
        let pair = self.authority.client(name, &[], HOUR, SystemClock::new().now()).unwrap();
        self.write(name, &pair);
        MutualTlsClient::load(MutualTlsFiles {
            authority: ca.to_owned(),
            certificate: self.path(&format!("{name}.crt")),
            key: self.path(&format!("{name}.key")),
        })
        .unwrap()
    }
}

/// Starts authd with RBAC on a free port; returns the port.
async fn start(certificates: &Certificates) -> (Authd, u16) {
    start_with(certificates, &[]).await
}

async fn start_with(certificates: &Certificates, more: &[&str]) -> (Authd, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = |flag: &str, name: &str| format!("--listen-{flag}={}", certificates.path(name).display());
    let flags = [
        format!("--listen-address=127.0.0.1:{port}"),
        file("cafile", "ca.crt"),
        file("certfile", "authd.crt"),
        file("keyfile", "authd.key"),
        "--listen-allowed-names=apid,other".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let authd = Authd::start(&flags).await;
    // authd listens on the Unix socket before it listens on TCP.
    let listens = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, listens).await.expect("authd listens on TCP");
    (authd, port)
}

async fn connect(port: u16, tls: &Arc<MutualTlsClient>) -> Result<Channel, tonic::transport::Error> {
    let tls = Arc::clone(tls);
    Endpoint::from_static("http://authd")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let tls = Arc::clone(&tls);
            async move {
                let stream = TcpStream::connect(("127.0.0.1", port)).await?;
                tls.connect("127.0.0.1", stream).await.map(TokioIo::new)
            }
        }))
        .await
}

/// Calls the health service over a new connection.
async fn check(port: u16, tls: MutualTlsClient) -> Result<(), String> {
    let channel = connect(port, &Arc::new(tls)).await.map_err(|error| format!("{error:?}"))?;
    let response = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    response.map(drop).map_err(|status| format!("{status:?}"))
}

#[tokio::test]
async fn only_accepted_certificates_reach_a_shared_authd() {
    let (certificates, foreign) = (Certificates::new("ca"), Certificates::new("foreign"));
    let (_authd, port) = start(&certificates).await;
    let ca = certificates.path("ca.crt");
    check(port, certificates.client("apid", &ca)).await.unwrap();
    check(port, certificates.client("other", &ca)).await.unwrap();
    check(port, certificates.client("alice", &ca)).await.unwrap_err();
    check(port, foreign.client("apid", &ca)).await.unwrap_err();
    let error = check(port, certificates.client("apid", &foreign.path("ca.crt"))).await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");

    let mut plain = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut response = String::new();
    plain.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 400 ") && response.contains("to an HTTPS server"), "{response}");

    // New connections use a changed certificate at once.
    certificates.write_server("127.0.0.2");
    let error = check(port, certificates.client("apid", &ca)).await.unwrap_err();
    assert!(error.contains("NotValidForName"), "{error}");
    certificates.write_server("127.0.0.1");
    check(port, certificates.client("apid", &ca)).await.unwrap();
}

#[tokio::test]
async fn open_connection_of_an_apid_ends_when_its_ca_is_removed() {
    let (certificates, foreign) = (Certificates::new("ca"), Certificates::new("foreign"));
    let (_authd, port) = start(&certificates).await;
    // The apid goes on to trust authd.
    let ca_of_authd = certificates.path("ca-of-authd.crt");
    std::fs::copy(certificates.path("ca.crt"), &ca_of_authd).unwrap();
    let channel = connect(port, &Arc::new(certificates.client("apid", &ca_of_authd))).await.unwrap();
    let mut health = HealthClient::new(channel);
    health.check(HealthCheckRequest::default()).await.unwrap();
    std::fs::copy(foreign.path("ca.crt"), certificates.path("ca.crt")).unwrap();
    let refused = async {
        while health.check(HealthCheckRequest::default()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, refused).await.expect("the open connection ends");
    check(port, certificates.client("apid", &ca_of_authd)).await.unwrap_err();
    check(port, foreign.client("apid", &ca_of_authd)).await.expect("authd serves clients of the new CA");
}

#[tokio::test]
async fn apids_of_a_shared_authd_have_separate_mirrors() {
    let certificates = Certificates::new("ca");
    let (_authd, port) = start(&certificates).await;
    let tls = Arc::new(certificates.client("apid", &certificates.path("ca.crt")));
    let channel = async || connect(port, &tls).await.unwrap();
    let grant = || Kind::RoleBinding(binding("Role", "r", "alice"));
    let mut streams = Vec::new();
    for apid in ["one", "two"] {
        let mirror = Mirror::open(channel().await, apid).await;
        mirror.put(2, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
        mirror.put(3, "a", "grant", grant()).await;
        mirror.synced(3).await;
        streams.push((mirror, Decide::open(channel().await, apid).await));
    }
    let [(first, decide_first), (second, decide_second)] = &mut streams[..] else { panic!("two apids") };
    for decide in [&mut *decide_first, &mut *decide_second] {
        let answer = decide.authorize(pods("alice", "get", "a", 3)).await;
        assert_eq!(answer.verdict(), Verdict::Allow);
    }
    // Both apids see one history. The second apid has not seen the revocation when it asks without its revision.
    first.delete(4, "a", "grant", Kind::RoleBinding(auth::MirrorBinding::default())).await;
    let answer = decide_first.authorize(pods("alice", "get", "a", 4)).await;
    assert_eq!(answer.verdict(), Verdict::NoOpinion);
    assert_eq!(decide_second.authorize(pods("alice", "get", "a", 3)).await.verdict(), Verdict::Allow);
    // A request that needs the revocation waits for the own mirror, although the other one has it.
    let id = decide_second.send(Some(Query::Authorize(pods("alice", "get", "a", 4)))).await;
    let pause = tokio::time::timeout(Duration::from_millis(300), decide_second.next()).await;
    assert!(pause.is_err(), "the mirror of the second apid is at revision 3");
    second.delete(4, "a", "grant", Kind::RoleBinding(auth::MirrorBinding::default())).await;
    let answer = decide_second.next().await;
    assert_eq!(answer.id, id);
    match answer.answer.unwrap() {
        Answer::Authorize(answer) => assert_eq!(answer.verdict(), Verdict::NoOpinion),
        other => panic!("{other:?}"),
    }
    // The end of one apid leaves the other one served, and the mirror of the first one is gone.
    let (first, mut decide_first) = streams.remove(0);
    drop(first);
    let mut failed = false;
    while !failed {
        failed = matches!(
            decide_first.ask(Query::Authorize(pods("bob", "get", "a", 5))).await,
            Answer::Failure(failure) if failure.code == 503
        );
    }
    let (_, decide_second) = &mut streams[0];
    assert_eq!(decide_second.authorize(pods("alice", "get", "a", 4)).await.verdict(), Verdict::NoOpinion);
}

#[tokio::test]
async fn silent_connections_of_one_address_do_not_keep_apids_from_connecting() {
    let certificates = Certificates::new("ca");
    let (_authd, port) = start(&certificates).await;
    let server = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut silent = Vec::new();
    for _ in 0..400 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(std::net::SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        silent.push(socket.connect(server).await.unwrap());
    }
    let apid = certificates.client("apid", &certificates.path("ca.crt"));
    let connected = tokio::time::timeout(Duration::from_secs(3), check(port, apid)).await;
    connected.expect("an apid at another address connects at once").unwrap();
}

#[tokio::test]
async fn apid_without_a_mirror_takes_no_permits_of_verification_from_others() {
    let certificates = Certificates::new("ca");
    let (_authd, port) = start_with(&certificates, &["--enable-bootstrap-token-auth"]).await;
    let tls = Arc::new(certificates.client("apid", &certificates.path("ca.crt")));
    let token = || {
        let bearer_token = "abcdef.0123456789abcdef".to_owned();
        Query::Authenticate(auth::AuthenticateRequest { bearer_token, ..Default::default() })
    };
    // Each token of the first apid waits for its mirror.
    let mut first = Decide::open(connect(port, &tls).await.unwrap(), "one").await;
    for _ in 0..2500 {
        first.send(Some(token())).await;
    }
    let pause = tokio::time::timeout(Duration::from_millis(300), first.next()).await;
    assert!(pause.is_err(), "an answer without a mirror: {pause:?}");
    let mirror = Mirror::open(connect(port, &tls).await.unwrap(), "two").await;
    mirror.synced(1).await;
    let mut second = Decide::open(connect(port, &tls).await.unwrap(), "two").await;
    let answer = second.ask(token()).await;
    assert!(matches!(answer, Answer::Authenticate(_)), "{answer:?}");
    // The tokens are verified when the mirror is complete.
    let mirror = Mirror::open(connect(port, &tls).await.unwrap(), "one").await;
    mirror.synced(1).await;
    for _ in 0..2500 {
        let answer = first.next().await.answer.unwrap();
        assert!(matches!(answer, Answer::Authenticate(_)), "{answer:?}");
    }
}
