//! A mock review service in this process, over TLS on loopback; for tests.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Value;
use hyper::body::Incoming;
use hyper::{Request, Response};
use jiff::Timestamp;
use parking_lot::Mutex;
use serving::body::{self, Body};
use serving::certs::{Authority, ensure_serving_pair};
use serving::client::retry::RetryPolicy;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;

use super::{Webhook, WebhookContext};

/// A back-off of microseconds, for tests.
pub(crate) const QUICK: RetryPolicy =
    RetryPolicy { first: Duration::from_micros(1), factor: 1.0, jitter: 0.0, attempts: 5 };

/// HTTP status and body of the responses; None means the mock never responds.
type MockReply = Option<(u16, String)>;

/// The mock service, with the requests that it received.
pub(crate) struct Mock {
    dir: TempDir,
    port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    reply: Arc<Mutex<MockReply>>,
    /// The clock of the webhook clients.
    pub(crate) clock: Arc<ManualClock>,
}

/// One received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
    /// Whether the client presented a certificate.
    pub(crate) certificate: bool,
}

impl Mock {
    pub(crate) async fn start() -> Mock {
        let now = SystemTime::now();
        let dir = tempfile::tempdir().unwrap();
        let pair = ensure_serving_pair(dir.path(), &["127.0.0.1".to_owned()], now).unwrap();
        let users =
            Authority::ensure(&dir.path().join("u.crt"), &dir.path().join("u.key"), "users", now).unwrap();
        let client_pair = users.client("authd", &[], Duration::from_secs(3600), now).unwrap();
        std::fs::write(dir.path().join("me.crt"), client_pair.cert).unwrap();
        std::fs::write(dir.path().join("me.key"), client_pair.key).unwrap();
        let tls =
            ServingTls::load(TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() }).unwrap();
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let port = listener.address().unwrap().port();
        let (requests, reply): (Arc<Mutex<Vec<ReceivedRequest>>>, Arc<Mutex<MockReply>>) = Default::default();
        let (received, set_response) = (Arc::clone(&requests), Arc::clone(&reply));
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (received, set_response) = (Arc::clone(&received), Arc::clone(&set_response));
            async move {
                let (head, body) = request.into_parts();
                let body = body::read(body, 1 << 20, Duration::from_secs(60)).await.unwrap();
                received.lock().push(ReceivedRequest {
                    method: head.method.to_string(),
                    path: head.uri.path_and_query().unwrap().to_string(),
                    body: serde_json::from_slice(&body).unwrap(),
                    certificate: connection.client_fingerprint.is_some(),
                });
                let reply = set_response.lock().clone();
                match reply {
                    Some((status, body)) => {
                        Response::builder().status(status).body(Body::from(body)).unwrap()
                    }
                    None => std::future::pending().await,
                }
            }
        };
        let options = ServerOptions::default();
        tokio::spawn(serve(listener, Some(tls), Arc::new(handler), options, std::future::pending::<()>()));
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        Mock { dir, port, requests, reply, clock }
    }

    /// Sets the response to all further requests.
    pub(crate) fn set_response(&self, status: u16, body: impl ToString) {
        *self.reply.lock() = Some((status, body.to_string()));
    }

    /// Stops responding.
    pub(crate) fn stop_responding(&self) {
        *self.reply.lock() = None;
    }

    /// Takes the requests received since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut *self.requests.lock())
    }

    pub(crate) fn names(&self) -> Arc<Names> {
        Arc::new(Names::new(Preset::Kubernetes, "").unwrap())
    }

    pub(crate) fn context(&self) -> WebhookContext {
        WebhookContext {
            names: self.names(),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(1)),
            metrics: Arc::default(),
        }
    }

    /// Creates a webhook client of the mock with the timeout of one call.
    pub(crate) fn webhook(&self, timeout: Duration) -> Webhook {
        let file = self.dir.path().join("config");
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{}/hook', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {{client-certificate: me.crt, client-key: me.key}}}}]\n",
            self.port
        );
        std::fs::write(&file, text).unwrap();
        Webhook::open(&file, timeout, &self.context()).unwrap().with_backoff(QUICK)
    }
}

/// The system time, for the validity of certificates.
struct SystemTime;

impl SystemTime {
    #[expect(clippy::disallowed_methods, reason = "certificates are checked against the machine's clock")]
    fn now() -> Timestamp {
        Timestamp::now()
    }
}
