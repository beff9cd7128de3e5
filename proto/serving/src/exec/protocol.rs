//! Plugin protocol: an ExecCredential as input and as output.

use std::path::PathBuf;

use apimachinery::codec;
use apimachinery::object::{Map, Value};
use apimachinery::time;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::Credentials;
use crate::client_config::{Cluster, Secret};
use crate::trust::{Identity, SettingsError};

const KIND: &str = "ExecCredential";

/// Description of the cluster for a plugin: `spec.cluster` of an ExecCredential.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterInfo {
    fields: Map<String, Value>,
}

impl ClusterInfo {
    /// Builds the description from the configuration. `extension` is the name of the extension that plugins
    /// get.
    ///
    /// # Errors
    ///
    /// The CA bundle is not readable: its path and the error.
    pub fn new(cluster: &Cluster, extension: &str) -> Result<Self, (PathBuf, std::io::Error)> {
        let mut fields = Map::new();
        let mut insert = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        let non_empty = |text: &str| (!text.is_empty()).then(|| Value::String(text.to_owned()));
        let if_true = |on: bool| on.then_some(Value::Bool(true));
        insert("server", non_empty(&cluster.server));
        insert("tls-server-name", cluster.tls_server_name.as_deref().and_then(non_empty));
        insert("insecure-skip-tls-verify", if_true(cluster.insecure_skip_tls_verify));
        let authority = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            (Some(pem), _) => Some(pem.clone()),
            (None, Some(file)) => Some(std::fs::read(file).map_err(|e| (file.clone(), e))?),
            (None, None) => None,
        };
        insert("certificate-authority-data", authority.map(|pem| Value::String(STANDARD.encode(pem))));
        let proxy = cluster.proxy_url.as_ref().and_then(Secret::text);
        insert("proxy-url", proxy.and_then(non_empty));
        insert("disable-compression", if_true(cluster.disable_compression));
        insert("config", cluster.extensions.get(extension).cloned());
        Ok(ClusterInfo { fields })
    }
}

/// Builds the ExecCredential that the plugin gets in an environment variable.
pub(super) fn build_input(api_version: &str, interactive: bool, cluster: Option<&ClusterInfo>) -> String {
    let mut spec = Map::new();
    if let Some(cluster) = cluster {
        spec.insert("cluster".to_owned(), Value::Object(cluster.fields.clone()));
    }
    spec.insert("interactive".to_owned(), Value::Bool(interactive));
    json!({"kind": KIND, "apiVersion": api_version, "spec": spec}).to_string()
}

/// Invalid output, as the rest of "the plugin printed …". It quotes only versions and kinds.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutputError {
    #[error("no JSON document")]
    Syntax,
    #[error("a `{0}` where an `{KIND}` is needed")]
    Kind(String),
    #[error("version `{printed}` while the configuration says `{configured}`")]
    Version { printed: String, configured: String },
    #[error("no status")]
    NoStatus,
    #[error("a status.{0} that is not a string")]
    NotText(&'static str),
    #[error("a certificate and a key that cannot be used: {0}")]
    Identity(#[source] SettingsError),
    #[error("a {present} without a {missing}")]
    HalfIdentity { present: &'static str, missing: &'static str },
    #[error("neither a token nor a certificate")]
    Empty,
    #[error("a token that a header cannot contain")]
    Token,
    #[error("an expirationTimestamp that is not an RFC 3339 time")]
    Expiration,
}

/// Parses the output of a plugin.
pub(super) fn parse_output(stdout: &[u8], api_version: &str) -> Result<Credentials, OutputError> {
    let limits = codec::Limits { bytes: stdout.len(), ..codec::Limits::BODY };
    let decoded = codec::json::decode(stdout, limits).map_err(|_| OutputError::Syntax)?;
    let top_level = |name: &str| decoded.value.get(name).and_then(Value::as_str).unwrap_or_default();
    if top_level("kind") != KIND {
        return Err(OutputError::Kind(shorten(top_level("kind"))));
    }
    if top_level("apiVersion") != api_version {
        let (printed, configured) = (shorten(top_level("apiVersion")), api_version.to_owned());
        return Err(OutputError::Version { printed, configured });
    }
    let Some(Value::Object(status)) = decoded.value.get("status") else {
        return Err(OutputError::NoStatus);
    };
    let text = |name: &'static str| match status.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(OutputError::NotText(name)),
    };
    let token = text("token")?;
    let (certificate_field, key_field) = ("clientCertificateData", "clientKeyData");
    let (certificate, key) = (text(certificate_field)?, text(key_field)?);
    let half_error = |present, missing| Err(OutputError::HalfIdentity { present, missing });
    let identity = match (certificate.is_empty(), key.is_empty()) {
        (true, true) => None,
        (false, false) => {
            let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes());
            Some(identity.map_err(OutputError::Identity)?)
        }
        (true, false) => return half_error(key_field, certificate_field),
        (false, true) => return half_error(certificate_field, key_field),
    };
    if token.is_empty() && identity.is_none() {
        return Err(OutputError::Empty);
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(OutputError::Token);
    }
    let expires = match text("expirationTimestamp")? {
        "" => None,
        expiration => Some(time::parse(expiration).ok_or(OutputError::Expiration)?),
    };
    Ok(Credentials { token: (!token.is_empty()).then(|| Secret::new(token)), identity, expires })
}

/// Shortens a version or kind for a message and removes control characters.
fn shorten(word: &str) -> String {
    word.chars().take(60).filter(|c| !c.is_control()).collect()
}
