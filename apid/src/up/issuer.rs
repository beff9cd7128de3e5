//! The OpenID issuer of `apid up --demo`: discovery, one key, and tokens in files.
//!
//! # Contract
//!
//! The issuer listens on a free port of the loopback address with the serving certificate of the control plane, in its
//! own thread. It has no login: it writes the token of its user to a file and renews the file long before the token
//! expires. The key lives in memory, so tokens of an earlier start are invalid.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock as _, Rng as _, SystemClock, SystemRng};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};
use serving::body::Body;
use serving::certs::{self, ServingPair};
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};

/// The audience of the tokens.
pub(super) const CLIENT_ID: &str = "apid-demo";
/// The algorithm of the tokens.
pub(super) const ALGORITHM: &str = "ES256";
/// Lifetime of a token in seconds.
const TOKEN_SECONDS: i64 = 24 * 3600;
/// Time between two tokens.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of connections: authd opens one.
const MAX_CONNECTIONS: usize = 64;

/// The reason why the issuer does not start.
#[derive(Debug, thiserror::Error)]
#[error("the OpenID issuer of the demo cannot start: {0}")]
pub(super) struct IssuerError(String);

/// A running issuer.
pub(super) struct Issuer {
    /// The issuer URL.
    pub(super) url: String,
}

/// A user of the issuer.
pub(super) struct IssuedUser {
    /// The claim `sub`.
    pub(super) name: &'static str,
    /// The claim `groups`.
    pub(super) groups: &'static [&'static str],
    /// The file of the token.
    pub(super) token_file: PathBuf,
}

impl Issuer {
    /// Writes the first token and starts the thread of the issuer.
    pub(super) fn start(pair: &ServingPair, user: IssuedUser) -> Result<Self, IssuerError> {
        let failed = |error: &dyn std::fmt::Display| IssuerError(error.to_string());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed(&error))?;
        listener.set_nonblocking(true).map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let signer = Signer::new(format!("https://{address}"))?;
        let files = TlsFiles { cert: pair.cert.clone(), key: pair.key.clone(), client_cas: Vec::new() };
        let tls = ServingTls::load(files).map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        signer.write_token(&user)?;
        let url = signer.url.clone();
        let thread = std::thread::Builder::new().name("issuer".to_owned());
        let run = move || runtime.block_on(run(listener, address, tls, signer, user));
        thread.spawn(run).map_err(|error| failed(&error))?;
        Ok(Issuer { url })
    }
}

/// Serves discovery and keys, and renews the token.
async fn run(
    listener: TcpListener,
    address: SocketAddr,
    tls: Arc<ServingTls>,
    signer: Signer,
    user: IssuedUser,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => Listener::Tcp(listener, address),
        Err(error) => return tracing::error!(%error, "issuer of the demo failed"),
    };
    let _watch = tls.spawn_watch();
    let documents = Arc::new(signer.documents());
    let handler = move |request: Request<hyper::body::Incoming>, _: Arc<ConnectionInfo>| {
        let response = respond(&documents, request.uri().path());
        async move { response }
    };
    let options = ServerOptions { max_connections: MAX_CONNECTIONS, ..ServerOptions::default() };
    let server = serve(listener, Some(tls), Arc::new(handler), options, std::future::pending());
    tokio::select! {
        _ = server => {}
        never = renew(&signer, &user) => match never {},
    }
}

/// Writes a new token each hour; never returns.
async fn renew(signer: &Signer, user: &IssuedUser) -> Infallible {
    loop {
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        if let Err(error) = signer.write_token(user) {
            tracing::error!(%error, "token of the demo not renewed; retrying");
        }
    }
}

/// The documents by path.
type Documents = [(&'static str, String); 2];

fn respond(documents: &Documents, path: &str) -> Response<Body> {
    let Some((_, text)) = documents.iter().find(|(name, _)| *name == path) else {
        let mut response = Response::new(Body::from("not found\n".to_owned()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    };
    let mut response = Response::new(Body::from(text.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The key of the issuer. No `Debug`: contains the private key.
struct Signer {
    url: String,
    key: EcdsaKeyPair,
    key_id: String,
}

impl Signer {
    fn new(url: String) -> Result<Self, IssuerError> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .map_err(|_| IssuerError("no key could be generated".to_owned()))?;
        Ok(Signer { url, key, key_id: format!("demo-{:016x}", SystemRng.bits() >> 64) })
    }

    /// Returns the discovery document and the key set.
    fn documents(&self) -> Documents {
        let discovery = json!({"issuer": self.url, "jwks_uri": format!("{}/keys", self.url),
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM]});
        // The public key is the byte 4 with both coordinates of the point.
        let point = self.key.public_key().as_ref().get(1..).unwrap_or_default();
        let (x, y) = point.split_at(point.len() / 2);
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let key = json!({"kty": "EC", "use": "sig", "alg": ALGORITHM, "kid": self.key_id, "crv": "P-256",
            "x": encode(x), "y": encode(y)});
        [
            ("/.well-known/openid-configuration", discovery.to_string()),
            ("/keys", json!({"keys": [key]}).to_string()),
        ]
    }

    /// Writes a new token of the user to its file, with mode 0600.
    fn write_token(&self, user: &IssuedUser) -> Result<(), IssuerError> {
        let now = SystemClock::new().now().as_second();
        let claims = json!({"iss": self.url, "aud": CLIENT_ID, "sub": user.name, "groups": user.groups,
            "iat": now, "exp": now + TOKEN_SECONDS});
        let token = self.sign(&claims)?;
        write_private(&user.token_file, token.as_bytes())
    }

    fn sign(&self, claims: &Value) -> Result<String, IssuerError> {
        let head = json!({"alg": ALGORITHM, "typ": "JWT", "kid": self.key_id});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let input = format!("{}.{}", encode(&head), encode(claims));
        let signature = self.key.sign(&SystemRandom::new(), input.as_bytes());
        let signature = signature.map_err(|_| IssuerError("a token could not be signed".to_owned()))?;
        Ok(format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn write_private(path: &Path, content: &[u8]) -> Result<(), IssuerError> {
    certs::write(path, content, 0o600).map_err(|error| IssuerError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serving::client::{Client, Limits, Proxy, Settings, Trust};

    #[tokio::test]
    async fn issuer_serves_discovery_and_the_key_of_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let pair = certs::ensure_serving_pair(dir.path(), &[], SystemClock::new().now()).unwrap();
        let token_file = dir.path().join("token");
        let user = IssuedUser { name: "jane", groups: &["clerks"], token_file: token_file.clone() };
        let issuer = Issuer::start(&pair, user).unwrap();
        let trust = Trust::from_pem(&std::fs::read(&pair.ca).unwrap()).unwrap();
        let client = Client::new(&Settings { trust, proxy: Proxy::None, ..Settings::default() }).unwrap();
        let get = async |path: &str| {
            let limits = Limits { within: Duration::from_secs(10), bytes: 1 << 16 };
            let response = client.get(&format!("{}{path}", issuer.url), limits).await.unwrap();
            (response.status, String::from_utf8(response.body.to_vec()).unwrap())
        };
        let (status, discovery) = get("/.well-known/openid-configuration").await;
        assert!(
            status == StatusCode::OK && discovery.contains(&format!("\"{}\"", issuer.url)),
            "{discovery}"
        );
        let (_, keys) = get("/keys").await;
        assert_eq!(get("/other").await.0, StatusCode::NOT_FOUND);
        let keys: Value = serde_json::from_str(&keys).unwrap();
        let token = std::fs::read_to_string(&token_file).unwrap();
        let [head, claims, signature] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        let decode =
            |part: &str| -> Value { serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap() };
        assert_eq!(decode(head)["kid"], keys["keys"][0]["kid"]);
        assert_eq!(
            (decode(claims)["sub"].as_str(), decode(claims)["groups"][0].as_str()),
            (Some("jane"), Some("clerks"))
        );
        let mut point = vec![4];
        for coordinate in ["x", "y"] {
            point.extend(URL_SAFE_NO_PAD.decode(keys["keys"][0][coordinate].as_str().unwrap()).unwrap());
        }
        let key = aws_lc_rs::signature::UnparsedPublicKey::new(
            &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED,
            point,
        );
        key.verify(format!("{head}.{claims}").as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap())
            .unwrap();
    }
}
