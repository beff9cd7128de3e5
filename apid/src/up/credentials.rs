//! Client certificates of users, and the kubeconfig that contains them.

use std::path::Path;

use apimachinery::names::Preset;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serving::certs::PemPair;

use crate::certs::CertsError;
use crate::certs::ensured::ClientCertificates;

/// The client certificate of a user.
#[derive(Debug)]
pub(super) struct Credentials {
    /// The name of the user and of the context.
    pub(super) user: String,
    pub(super) certificate: PemPair,
}

impl Credentials {
    /// Reads the client certificate of a user with groups, or makes it.
    pub(super) fn ensure(
        clients: &ClientCertificates,
        user: &str,
        groups: &[&str],
        now: Timestamp,
    ) -> Result<Self, CertsError> {
        Ok(Credentials { user: user.to_owned(), certificate: clients.ensure(user, groups, now)? })
    }
}

/// A kubeconfig with one cluster and a context for each user. Contains keys: no `Debug`.
pub(super) struct Kubeconfig {
    cluster: String,
    users: String,
    contexts: String,
    name: &'static str,
}

impl Kubeconfig {
    /// Creates a kubeconfig without users. Reads the CA bundle of the server.
    pub(super) fn new(preset: Preset, server: &str, ca: &Path) -> std::io::Result<Self> {
        let name = preset.as_str();
        let authority = STANDARD.encode(std::fs::read(ca)?);
        let cluster = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {authority}\n"
        );
        Ok(Kubeconfig { cluster, users: String::new(), contexts: String::new(), name })
    }

    /// Adds a user with a client certificate, and a context with a namespace.
    pub(super) fn add_client(&mut self, credentials: &Credentials, namespace: &str) {
        let (cert, key) =
            (STANDARD.encode(&credentials.certificate.cert), STANDARD.encode(&credentials.certificate.key));
        let fields = format!("    client-certificate-data: {cert}\n    client-key-data: {key}\n");
        self.add_user(&credentials.user, &fields, namespace);
    }

    /// Adds a user whose token is in a file, which clients read again when it changes.
    pub(super) fn add_token_file(&mut self, user: &str, file: &Path, namespace: &str) {
        // A JSON text is a YAML text.
        let path = serde_json::Value::from(file.display().to_string());
        self.add_user(user, &format!("    tokenFile: {path}\n"), namespace);
    }

    fn add_user(&mut self, user: &str, fields: &str, namespace: &str) {
        self.users.push_str(&format!("- name: {user}\n  user:\n{fields}"));
        self.contexts.push_str(&format!(
            "- name: {user}\n  context:\n    cluster: {}\n    user: {user}\n    namespace: {namespace}\n",
            self.name
        ));
    }

    /// Returns the part without users, for clients that have no credentials yet.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns the whole kubeconfig, in YAML.
    pub(super) fn text(&self, current_context: &str) -> String {
        let Kubeconfig { cluster, users, contexts, .. } = self;
        format!("{cluster}users:\n{users}contexts:\n{contexts}current-context: {current_context}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::{Clock as _, SystemClock};
    use apimachinery::names::Names;
    use serving::client_config::ClientConfig;

    #[test]
    fn kubeconfig_names_server_and_all_users() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemClock::new().now();
        let pair = serving::certs::ensure_serving_pair(dir.path(), &[], now).unwrap();
        let clients = ClientCertificates::open(dir.path(), now).unwrap();
        let admin = Credentials::ensure(&clients, "admin", &["system:masters"], now).unwrap();
        let mut kubeconfig = Kubeconfig::new(Preset::Kubernetes, "https://127.0.0.1:1", &pair.ca).unwrap();
        kubeconfig.add_client(&admin, "default");
        kubeconfig.add_token_file("jane", &dir.path().join("a \"token\""), "shop");
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig.text("admin")).unwrap();
        let config = ClientConfig::load(&file).unwrap();
        assert_eq!((config.contexts.len(), config.warnings.len()), (2, 0), "{:?}", config.warnings);
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        assert!(config.target(None, &names).is_ok() && config.target(Some("jane"), &names).is_ok());
        assert_eq!(config.users["jane"].token_file, Some(dir.path().join("a \"token\"")));
        assert!(!kubeconfig.cluster().contains("users"));
    }
}
