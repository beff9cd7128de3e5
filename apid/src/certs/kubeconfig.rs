//! Kubeconfigs with the CA bundle, the certificate and the key of a client in one file.

use std::path::Path;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serving::certs::facts::CertificateFacts;
use serving::certs::{self, CertError};

use super::CertsError;
use super::folder::{ClientFiles, Folder};

/// The URL of a server with the scheme https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerUrl {
    text: String,
    /// Name or address, without brackets.
    host: String,
}

impl Default for ServerUrl {
    fn default() -> Self {
        ServerUrl { text: "https://127.0.0.1:6443".to_owned(), host: "127.0.0.1".to_owned() }
    }
}

/// A URL is not one of a server.
#[derive(Debug, thiserror::Error)]
#[error("it must be a URL such as https://HOST:6443")]
pub(super) struct NoServerUrl;

impl FromStr for ServerUrl {
    type Err = NoServerUrl;

    fn from_str(text: &str) -> Result<Self, NoServerUrl> {
        let url: http::Uri = text.parse().map_err(|_| NoServerUrl)?;
        let host = url.host().filter(|_| url.scheme_str() == Some("https")).ok_or(NoServerUrl)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(ServerUrl { text: text.to_owned(), host })
    }
}

impl ServerUrl {
    /// Returns a note if the serving certificate of the folder does not have the host of the URL.
    pub(super) fn note_on_names(&self, folder: &Folder) -> Option<String> {
        let certificate = CertificateFacts::read_all(&folder.pair.cert).ok()?.into_iter().next()?;
        let is_wildcard_of = |name: &String| {
            let domain = name.strip_prefix("*.");
            domain.is_some_and(|domain| self.host.split_once('.').is_some_and(|(_, rest)| rest == domain))
        };
        let is_named = certificate
            .names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(&self.host) || is_wildcard_of(name));
        (!is_named).then(|| {
            format!(
                "{} is not in the serving certificate {}; `apid certs --cert-dir {} --host {}` adds it",
                self.host,
                folder.pair.cert.display(),
                folder.dir.display(),
                self.host
            )
        })
    }
}

/// The kubeconfig of a client.
pub(super) struct Kubeconfig<'a> {
    pub(super) user: &'a str,
    pub(super) server: &'a ServerUrl,
    pub(super) folder: &'a Folder,
    pub(super) files: &'a ClientFiles,
}

impl Kubeconfig<'_> {
    /// Writes the kubeconfig with mode 0600.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub(super) fn write(&self, path: &Path) -> Result<(), CertsError> {
        Ok(certs::write(path, self.text()?.as_bytes(), 0o600)?)
    }

    /// Returns the kubeconfig, in YAML.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub(super) fn text(&self) -> Result<String, CertsError> {
        let encode = |path: &Path| {
            let content = std::fs::read(path).map_err(|error| CertError::unusable(path, error))?;
            Ok::<_, CertError>(STANDARD.encode(content))
        };
        let (ca, cert, key) =
            (encode(&self.folder.pair.ca)?, encode(&self.files.cert)?, encode(&self.files.key)?);
        // A string of JSON is one of YAML.
        let quote = |text: &str| Value::from(text).to_string();
        let (user, server) = (quote(self.user), quote(&self.server.text));
        Ok(format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: apid\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {ca}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {cert}\n    \
             client-key-data: {key}\ncontexts:\n- name: {user}\n  context:\n    cluster: apid\n    user: {user}\n\
             current-context: {user}\n"
        ))
    }
}
