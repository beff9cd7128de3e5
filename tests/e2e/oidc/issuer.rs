//! A test OpenID Connect issuer: several issuers on one TLS server, and keys for arbitrary tokens.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, KeyPair, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serving::body::Body;
use serving::certs::{ServingPair, ensure_serving_pair};
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// The nine supported signature algorithms.
pub const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

/// A signing key with its key id.
pub struct Key {
    pub kid: String,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ec(&'static str, EcdsaKeyPair),
}

impl Key {
    pub fn rsa(kid: &str) -> Key {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("an RSA key");
        Key { kid: kid.to_owned(), pair: Pair::Rsa(Box::new(pair)) }
    }

    /// Generates a key on the curve of an ECDSA algorithm.
    pub fn ec(kid: &str, algorithm: &'static str) -> Key {
        let (curve, signing) = match algorithm {
            "ES256" => ("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => ("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            _ => ("P-521", &ECDSA_P521_SHA512_FIXED_SIGNING),
        };
        let pair = EcdsaKeyPair::generate(signing).expect("an ECDSA key");
        Key { kid: kid.to_owned(), pair: Pair::Ec(curve, pair) }
    }

    pub fn jwk(&self) -> Value {
        let base64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            Pair::Rsa(pair) => {
                let public = pair.public_key();
                let (n, e) = (public.modulus(), public.exponent());
                json!({"kty": "RSA", "kid": self.kid, "use": "sig", "n": base64(n.big_endian_without_leading_zero()),
                       "e": base64(e.big_endian_without_leading_zero())})
            }
            Pair::Ec(curve, pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "kid": self.kid, "crv": curve, "x": base64(x), "y": base64(y)})
            }
        }
    }

    /// The public key as a SubjectPublicKeyInfo. A vulnerable verifier uses these bytes as an HMAC secret.
    pub fn public_der(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair) => {
                let der: aws_lc_rs::encoding::PublicKeyX509Der<'_> = pair.public_key().as_der().expect("DER");
                der.as_ref().to_vec()
            }
            Pair::Ec(_, pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    pub fn signature(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(_, pair) => pair.sign(&random, message).expect("a signature").as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let padding: &'static dyn signature::RsaEncoding = match algorithm {
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    "PS512" => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message, &mut out).expect("a signature");
                out
            }
        }
    }

    pub fn sign(&self, algorithm: &str, claims: &Value) -> String {
        self.sign_text(
            &json!({"alg": algorithm, "kid": self.kid, "typ": "JWT"}).to_string(),
            &claims.to_string(),
        )
    }

    /// Signs an arbitrary header and arbitrary claims.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let algorithm = serde_json::from_str::<Value>(header).unwrap_or_default()["alg"].clone();
        let input = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.signature(algorithm.as_str().unwrap_or_default(), input.as_bytes());
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

#[derive(Default)]
struct State {
    keys: Mutex<Vec<Value>>,
    /// Responses that replace the default responses, by path.
    replaced_responses: Mutex<BTreeMap<String, (u16, String)>>,
    requested: Mutex<Vec<String>>,
    unavailable: Mutex<bool>,
}

/// The issuer server. The first path segment selects the issuer; all issuers publish the same keys.
pub struct Issuer {
    port: u16,
    /// Removed when the issuer is dropped.
    _dir: TempDir,
    tls: ServingPair,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    pub async fn start(keys: &[&Key]) -> Issuer {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let pair =
            ensure_serving_pair(&dir.path().join("tls"), &[], Timestamp::now()).expect("a certificate");
        let tls = ServingTls::load(TlsFiles {
            cert: pair.cert.clone(),
            key: pair.key.clone(),
            client_cas: Vec::new(),
        })
        .expect("TLS");
        let listener = Listener::tcp([127, 0, 0, 1].into(), 0).await.expect("a port");
        let port = listener.address().expect("an address").port();
        let state = Arc::new(State::default());
        *state.keys.lock() = keys.iter().map(|key| key.jwk()).collect();
        let server_state = Arc::clone(&state);
        let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
            let (status, body) = server_state.respond(port, request.uri().path());
            async move {
                let mut response = Response::new(Body::from(body));
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
                response
            }
        };
        let served = serve(
            listener,
            Some(tls),
            Arc::new(handler),
            ServerOptions::default(),
            std::future::pending::<()>(),
        );
        let task = tokio::spawn(async move {
            served.await;
        });
        Issuer { port, _dir: dir, tls: pair, state, task }
    }

    /// The CA bundle of the server certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.tls.ca.clone()
    }

    /// The server certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.tls.cert.clone()
    }

    /// The CA bundle as a quoted YAML string.
    pub fn ca(&self) -> String {
        let pem = std::fs::read_to_string(self.ca_file()).expect("the authority");
        serde_json::to_string(&pem).expect("JSON")
    }

    pub fn url(&self, name: &str) -> String {
        format!("https://127.0.0.1:{}/{name}", self.port)
    }

    pub fn publish(&self, keys: &[&Key]) {
        *self.state.keys.lock() = keys.iter().map(|key| key.jwk()).collect();
    }

    /// Sets the response for a path; `None` restores the default.
    pub fn set_response(&self, path: &str, answer: Option<(u16, String)>) {
        let mut replaced_responses = self.state.replaced_responses.lock();
        match answer {
            Some(answer) => drop(replaced_responses.insert(path.to_owned(), answer)),
            None => drop(replaced_responses.remove(path)),
        }
    }

    /// Makes the server respond with 503 to every request, or restores its normal responses.
    pub fn set_unavailable(&self, unavailable: bool) {
        *self.state.unavailable.lock() = unavailable;
    }

    /// The requested paths of one issuer, in order.
    pub fn requested_paths(&self, name: &str) -> Vec<String> {
        let requested = self.state.requested.lock();
        requested
            .iter()
            .filter_map(|path| path.strip_prefix(&format!("/{name}")).map(str::to_owned))
            .collect()
    }

    /// Claims that are valid for one hour; `more` replaces claims, and null removes one.
    pub fn claims(&self, name: &str, more: Value) -> Value {
        let now = Timestamp::now().as_second();
        let mut claims =
            json!({"iss": self.url(name), "aud": "x", "sub": "jane", "exp": now + 3600, "iat": now});
        for (claim, value) in more.as_object().into_iter().flatten() {
            match value {
                Value::Null => drop(claims.as_object_mut().expect("an object").remove(claim)),
                value => claims[claim] = value.clone(),
            }
        }
        claims
    }
}

impl State {
    fn respond(&self, port: u16, path: &str) -> (u16, String) {
        self.requested.lock().push(path.to_owned());
        if *self.unavailable.lock() {
            return (503, String::new());
        }
        if let Some(answer) = self.replaced_responses.lock().get(path) {
            return answer.clone();
        }
        let mut segments = path.trim_start_matches('/').splitn(2, '/');
        let (name, rest) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
        let issuer = format!("https://127.0.0.1:{port}/{name}");
        match rest {
            ".well-known/openid-configuration" => {
                (200, json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}).to_string())
            }
            "keys" => (200, json!({"keys": *self.keys.lock()}).to_string()),
            _ => (404, String::new()),
        }
    }
}
