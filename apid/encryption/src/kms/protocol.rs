//! The gRPC protocol of KMS plugins, version 2, and the message around a stored value.
//!
//! # Reference
//!
//! The KMS API v2 of Kubernetes and the message `EncryptedObject` of kube-apiserver.

use std::collections::BTreeMap;
use std::fmt;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use zeroize::Zeroize as _;

/// Request of the state of a plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

/// The state of a plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// The version of the protocol.
    #[prost(string, tag = "1")]
    pub version: String,
    /// `ok`, or the reason why the plugin is not healthy.
    #[prost(string, tag = "2")]
    pub healthz: String,
    /// The name of the key that encrypts now.
    #[prost(string, tag = "3")]
    pub key_id: String,
}

/// Request to encrypt a data encryption key.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct EncryptRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    /// The name of the request, for logs.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// An encrypted data encryption key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptResponse {
    /// The encrypted key.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// The name of the key that encrypted it.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// Data that the plugin needs for the decryption.
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

/// Request to decrypt a data encryption key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptRequest {
    /// The encrypted key.
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    /// The name of the request, for logs.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The name of the key that encrypted it.
    #[prost(string, tag = "3")]
    pub key_id: String,
    /// The data of the encryption.
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

/// A decrypted data encryption key.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct DecryptResponse {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

/// The bytes of a stored value after the name of the provider.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptedObject {
    /// The encrypted value.
    #[prost(bytes = "vec", tag = "1")]
    pub encrypted_data: Vec<u8>,
    /// The name of the key of the plugin.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// The encrypted data encryption key or seed.
    #[prost(bytes = "vec", tag = "3")]
    pub encrypted_dek_source: Vec<u8>,
    /// The data that the plugin needs for the decryption.
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
    /// [`DEK`] or [`SEED`].
    #[prost(int32, tag = "5")]
    pub encrypted_dek_source_type: i32,
}

/// The source is a key of AES-GCM.
pub const DEK: i32 = 0;
/// The source is a seed from which HKDF derives one key for each value.
pub const SEED: i32 = 1;

impl Drop for EncryptRequest {
    fn drop(&mut self) {
        self.plaintext.zeroize();
    }
}

impl fmt::Debug for EncryptRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptRequest").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl fmt::Debug for DecryptResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecryptResponse").finish_non_exhaustive()
    }
}

/// The methods of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Returns the state.
    Status,
    /// Encrypts a key.
    Encrypt,
    /// Decrypts a key.
    Decrypt,
}

impl Method {
    /// The path of the method.
    pub fn path(self) -> &'static str {
        match self {
            Method::Status => "/v2.KeyManagementService/Status",
            Method::Encrypt => "/v2.KeyManagementService/Encrypt",
            Method::Decrypt => "/v2.KeyManagementService/Decrypt",
        }
    }
}

/// Opens a channel to the Unix socket of a plugin. The channel connects at each call without a connection.
pub(super) fn channel(socket: &str) -> Channel {
    let socket = socket.to_owned();
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { connect(&socket).await.map(TokioIo::new) }
    }))
}

/// Connects to a path, or to an abstract socket if the path begins with `@`.
async fn connect(socket: &str) -> std::io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.strip_prefix('@') {
        use std::os::linux::net::SocketAddrExt as _;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        return UnixStream::from_std(stream);
    }
    UnixStream::connect(socket).await
}

/// Calls a method.
pub(super) async fn call<Q, R>(channel: Channel, method: Method, request: Q) -> Result<R, Status>
where
    Q: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(cause_text(&error)))?;
    let codec = ProstCodec::<Q, R>::default();
    let path = PathAndQuery::from_static(method.path());
    client.unary(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}

/// The innermost cause of an error, which says why a connection failed.
fn cause_text(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The text of kube-apiserver about a failed call.
pub(super) fn error_text(status: &Status) -> String {
    let message = match std::error::Error::source(status) {
        Some(source) if status.message() == "transport error" => cause_text(source),
        _ => status.message().to_owned(),
    };
    format!("rpc error: code = {} desc = {message}", code_name(status.code()))
}

/// The name of a code in gRPC for Go.
pub(super) fn code_name(code: tonic::Code) -> String {
    match code {
        tonic::Code::Ok => "OK".to_owned(),
        tonic::Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}
