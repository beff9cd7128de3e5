//! A KMS plugin for tests: real gRPC on a Unix socket, with failures on request. apid does not use it.
//!
//! # Reference
//!
//! The format is that of the plugin behind the recorded vectors: a nonce of 12 bytes and AES-256-GCM, with the name of
//! the key as additional data.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test program that other crates use too")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::protocol::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, Method, StatusRequest, StatusResponse,
};
use crate::providers::ciphers::AesGcm;

/// The behavior of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Behavior {
    /// All calls succeed.
    #[default]
    Healthy,
    /// `Status` reports this text, and the other calls fail as unavailable.
    Unhealthy(String),
    /// All calls fail as unavailable.
    Failing,
    /// No call ends.
    Hanging,
}

/// The keys and the behavior, which all clones share.
#[derive(Clone, Default)]
pub struct MockPlugin {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    keys: BTreeMap<String, [u8; 32]>,
    key_id: String,
    behavior: Behavior,
    calls: BTreeMap<&'static str, usize>,
}

impl MockPlugin {
    /// A plugin that encrypts with this key.
    pub fn new(key_id: &str, key: [u8; 32]) -> Self {
        let plugin = MockPlugin::default();
        plugin.use_key(key_id, key);
        plugin
    }

    /// Encrypts with this key from now on. Earlier keys still decrypt.
    pub fn use_key(&self, key_id: &str, key: [u8; 32]) {
        let mut shared = self.shared.lock();
        shared.keys.insert(key_id.to_owned(), key);
        key_id.clone_into(&mut shared.key_id);
    }

    /// Removes a key: values of this key are not readable.
    pub fn forget_key(&self, key_id: &str) {
        self.shared.lock().keys.remove(key_id);
    }

    /// Changes the behavior.
    pub fn behave(&self, behavior: Behavior) {
        self.shared.lock().behavior = behavior;
    }

    /// Number of calls of a method so far.
    pub fn calls(&self, method: Method) -> usize {
        self.shared.lock().calls.get(method.path()).copied().unwrap_or_default()
    }

    /// Serves on a socket until the task is aborted. Replaces an old socket.
    ///
    /// # Panics
    ///
    /// The socket cannot be bound.
    pub fn serve(&self, socket: &Path) -> JoinHandle<()> {
        // The socket of an earlier plugin, if any.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).expect("the socket of the plugin can be bound");
        let server = tonic::transport::Server::builder().add_service(self.clone());
        tokio::spawn(async move {
            let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
        })
    }

    /// Counts a call, and fails or waits as the behavior says. Returns the reported health.
    async fn begin(&self, method: Method) -> Result<String, Status> {
        let behavior = {
            let mut shared = self.shared.lock();
            *shared.calls.entry(method.path()).or_default() += 1;
            shared.behavior.clone()
        };
        match behavior {
            Behavior::Healthy => Ok("ok".to_owned()),
            Behavior::Unhealthy(text) if method == Method::Status => Ok(text),
            Behavior::Unhealthy(_) | Behavior::Failing => Err(Status::unavailable("the mock plugin fails")),
            Behavior::Hanging => std::future::pending().await,
        }
    }

    fn cipher(&self, key_id: &str) -> Result<AesGcm, Status> {
        let shared = self.shared.lock();
        let key = shared.keys.get(key_id);
        let key = key.ok_or_else(|| Status::not_found(format!("unknown key id {key_id}")))?;
        Ok(AesGcm::new(key).expect("32 bytes are a key"))
    }
}

type MethodFuture<R> = BoxFuture<Response<R>, Status>;

impl UnaryService<StatusRequest> for MockPlugin {
    type Response = StatusResponse;
    type Future = MethodFuture<StatusResponse>;

    fn call(&mut self, _: Request<StatusRequest>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move {
            let healthz = plugin.begin(Method::Status).await?;
            let key_id = plugin.shared.lock().key_id.clone();
            Ok(Response::new(StatusResponse { version: "v2".to_owned(), healthz, key_id }))
        })
    }
}

impl UnaryService<EncryptRequest> for MockPlugin {
    type Response = EncryptResponse;
    type Future = MethodFuture<EncryptResponse>;

    fn call(&mut self, request: Request<EncryptRequest>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move {
            plugin.begin(Method::Encrypt).await?;
            let key_id = plugin.shared.lock().key_id.clone();
            let mut ciphertext = Vec::new();
            let request = request.into_inner();
            plugin.cipher(&key_id)?.encrypt(&request.plaintext, key_id.as_bytes(), &mut ciphertext).unwrap();
            let annotations = [("kek.kms.example.com".to_owned(), b"mock-1".to_vec())].into();
            Ok(Response::new(EncryptResponse { ciphertext, key_id, annotations }))
        })
    }
}

impl UnaryService<DecryptRequest> for MockPlugin {
    type Response = DecryptResponse;
    type Future = MethodFuture<DecryptResponse>;

    fn call(&mut self, request: Request<DecryptRequest>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move {
            plugin.begin(Method::Decrypt).await?;
            let DecryptRequest { ciphertext, key_id, .. } = request.into_inner();
            let plaintext = plugin.cipher(&key_id)?.decrypt(&ciphertext, key_id.as_bytes());
            let plaintext = plaintext.map_err(Status::invalid_argument)?;
            Ok(Response::new(DecryptResponse { plaintext }))
        })
    }
}

impl NamedService for MockPlugin {
    const NAME: &'static str = "v2.KeyManagementService";
}

impl Service<http::Request<Body>> for MockPlugin {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                path if path == Method::Status.path() => {
                    let codec = ProstCodec::<StatusResponse, StatusRequest>::default();
                    Grpc::new(codec).unary::<_, Body>(plugin, request).await
                }
                path if path == Method::Encrypt.path() => {
                    let codec = ProstCodec::<EncryptResponse, EncryptRequest>::default();
                    Grpc::new(codec).unary::<_, Body>(plugin, request).await
                }
                path if path == Method::Decrypt.path() => {
                    let codec = ProstCodec::<DecryptResponse, DecryptRequest>::default();
                    Grpc::new(codec).unary::<_, Body>(plugin, request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
