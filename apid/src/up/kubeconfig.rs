//! The kubeconfig that `apid up` writes for its users.
//!
//! # Contract
//!
//! The write changes only the entries of this server. Its cluster and its users replace those with the same names. An
//! existing context keeps its namespace and gets cluster and user. Other entries and the current context stay.

use std::io;
use std::path::Path;

use apimachinery::codec::yaml;
use apimachinery::document;
use apimachinery::names::Preset;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use serving::certs::{self, CertError};
use serving::client_config::{ClientConfig, ConfigError};

use super::credentials::Credentials;

/// The reason why a kubeconfig is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubeconfigError {
    /// The existing file is not readable.
    #[error("{0}; correct the file, or move it away, so that `apid up` writes a new one")]
    Existing(#[from] ConfigError),
    /// The file cannot be written.
    #[error("{0}")]
    Write(#[from] CertError),
}

/// A cluster and a context for each user. Contains keys: no `Debug`.
pub(super) struct Kubeconfig {
    /// The cluster by its name.
    cluster: (&'static str, Value),
    /// The users by name.
    users: Vec<(String, Value)>,
    /// The namespaces of the contexts by user.
    namespaces: Vec<(String, String)>,
}

impl Kubeconfig {
    /// Creates a kubeconfig without users. Reads the CA bundle of the server.
    pub(super) fn new(preset: Preset, server: &str, ca: &Path) -> io::Result<Self> {
        let authority = STANDARD.encode(std::fs::read(ca)?);
        let cluster = json!({"server": server, "certificate-authority-data": authority});
        Ok(Kubeconfig { cluster: (preset.as_str(), cluster), users: Vec::new(), namespaces: Vec::new() })
    }

    /// Adds a user with a client certificate, and a context with a namespace.
    pub(super) fn add_client(&mut self, credentials: &Credentials, namespace: &str) {
        let pair = &credentials.certificate;
        let (cert, key) = (STANDARD.encode(&pair.cert), STANDARD.encode(&pair.key));
        let user = json!({"client-certificate-data": cert, "client-key-data": key});
        self.add_user(&credentials.user, user, namespace);
    }

    /// Adds a user whose token is in a file, which clients read again when it changes.
    pub(super) fn add_token_file(&mut self, user: &str, file: &Path, namespace: &str) {
        self.add_user(user, json!({"tokenFile": file.display().to_string()}), namespace);
    }

    fn add_user(&mut self, name: &str, user: Value, namespace: &str) {
        self.users.push((name.to_owned(), user));
        self.namespaces.push((name.to_owned(), namespace.to_owned()));
    }

    /// Returns the part without users in YAML, for clients that have no credentials yet.
    pub(super) fn cluster(&self) -> String {
        let (name, cluster) = &self.cluster;
        let config =
            json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": name, "cluster": cluster}]});
        String::from_utf8_lossy(&yaml::encode(&config)).into_owned()
    }

    /// Merges the entries into a file of mode 0600. A file without a current context gets `current_context`.
    ///
    /// # Errors
    ///
    /// An existing file is not readable, or the file cannot be written.
    pub(super) fn write(&self, path: &Path, current_context: &str) -> Result<(), KubeconfigError> {
        let mut file = read(path)?;
        self.merge_into(&mut file, current_context);
        Ok(certs::write(path, &yaml::encode(&Value::Object(file)), 0o600)?)
    }

    fn merge_into(&self, file: &mut Map<String, Value>, current_context: &str) {
        file.insert("apiVersion".to_owned(), "v1".into());
        file.insert("kind".to_owned(), "Config".into());
        let (cluster, fields) = &self.cluster;
        change_entry(file, ("clusters", "cluster"), cluster, |_| fields.clone());
        for (user, fields) in &self.users {
            change_entry(file, ("users", "user"), user, |_| fields.clone());
        }
        for (user, namespace) in &self.namespaces {
            change_entry(file, ("contexts", "context"), user, |existing| {
                let existing = existing.and_then(Value::as_object).cloned();
                let mut context = existing
                    .unwrap_or_else(|| Map::from_iter([("namespace".to_owned(), namespace.as_str().into())]));
                context.insert("cluster".to_owned(), (*cluster).into());
                context.insert("user".to_owned(), user.as_str().into());
                context.into()
            });
        }
        if !has_current_context(file) {
            file.insert("current-context".to_owned(), current_context.into());
        }
    }
}

/// Reads an existing kubeconfig. An absent or empty file has no fields.
pub(super) fn read(path: &Path) -> Result<Map<String, Value>, KubeconfigError> {
    let invalid = |error: String| ConfigError { file: path.to_owned(), errors: vec![error] };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(invalid(error.to_string()).into()),
    };
    if text.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    // The errors name lines and fields, and no values, which may be secrets.
    ClientConfig::parse(&text, path)?;
    match yaml::decode(&text, document::LIMITS).map(|decoded| decoded.value) {
        Ok(Value::Object(file)) => Ok(file),
        _ => Err(invalid("is not a mapping in YAML".to_owned()).into()),
    }
}

/// Replaces the part of an entry in a list, or adds the entry. `change` gets the existing part.
fn change_entry(
    file: &mut Map<String, Value>,
    (list, part): (&str, &str),
    name: &str,
    change: impl FnOnce(Option<&Value>) -> Value,
) {
    // kubectl writes null for an empty list.
    let mut entries = match file.remove(list) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    let existing = entries.iter_mut().find(|entry| is_named(entry, name));
    let changed = change(existing.as_deref().and_then(|entry| entry.get(part)));
    let changed = json!({"name": name, (part): changed});
    match existing {
        Some(existing) => *existing = changed,
        None => entries.push(changed),
    }
    file.insert(list.to_owned(), entries.into());
}

fn is_named(entry: &Value, name: &str) -> bool {
    entry.get("name").and_then(Value::as_str) == Some(name)
}

/// Whether the current context is one of the file.
fn has_current_context(file: &Map<String, Value>) -> bool {
    let current = file.get("current-context").and_then(Value::as_str).unwrap_or_default();
    let contexts = file.get("contexts").and_then(Value::as_array);
    contexts.is_some_and(|contexts| contexts.iter().any(|context| is_named(context, current)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use apimachinery::names::Names;
    use serving::certs::PemPair;

    /// A kubeconfig with the users admin and jane for the server on a port.
    fn kubeconfig(dir: &Path, port: u16) -> Kubeconfig {
        let ca = dir.join("ca.crt");
        std::fs::write(&ca, "bundle").unwrap();
        let server = format!("https://127.0.0.1:{port}");
        let mut kubeconfig = Kubeconfig::new(Preset::Kubernetes, &server, &ca).unwrap();
        let certificate = PemPair { cert: format!("certificate {port}"), key: "key".to_owned() };
        kubeconfig.add_client(&Credentials { user: "admin".to_owned(), certificate }, "default");
        kubeconfig.add_token_file("jane", &dir.join("a \"token\""), "shop");
        kubeconfig
    }

    #[test]
    fn new_kubeconfig_names_server_and_all_users() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, "\n").unwrap();
        let kubeconfig = kubeconfig(dir.path(), 1);
        kubeconfig.write(&file, "admin").unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let config = ClientConfig::load(&file).unwrap();
        assert_eq!((config.contexts.len(), config.warnings.len()), (2, 0), "{:?}", config.warnings);
        assert_eq!(
            (config.current_context.as_str(), config.contexts["jane"].namespace.as_str()),
            ("admin", "shop")
        );
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        assert!(config.target(None, &names).is_ok() && config.target(Some("jane"), &names).is_ok());
        assert_eq!(config.users["jane"].token_file, Some(dir.path().join("a \"token\"")));
        let cluster = kubeconfig.cluster();
        assert!(cluster.contains("server: https://127.0.0.1:1\n") && !cluster.contains("users"), "{cluster}");
    }

    #[test]
    fn edits_of_the_user_and_other_entries_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let existing = json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {"colors": true}, "current-context": "alice",
            "clusters": [{"name": "other", "cluster": {"server": "https://other"}},
                {"name": "kubernetes", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
            "users": [{"name": "alice", "user": {"token": "secret"}}, {"name": "admin", "user": {"token": "old"}}],
            "contexts": [{"name": "admin", "context": {"cluster": "other", "user": "admin", "namespace": "edited"}},
                {"name": "alice", "context": {"cluster": "kubernetes", "user": "alice", "namespace": "shop"}}],
        });
        std::fs::write(&file, yaml::encode(&existing)).unwrap();
        kubeconfig(dir.path(), 2).write(&file, "admin").unwrap();
        let config = ClientConfig::load(&file).unwrap();
        assert_eq!(config.current_context, "alice");
        assert_eq!(config.contexts["alice"].user, "alice");
        let admin = &config.contexts["admin"];
        assert_eq!((admin.cluster.as_str(), admin.namespace.as_str()), ("kubernetes", "edited"));
        assert_eq!(config.contexts["jane"].namespace, "shop");
        assert_eq!(config.clusters["other"].server, "https://other");
        let own = &config.clusters["kubernetes"];
        assert_eq!((own.server.as_str(), own.insecure_skip_tls_verify), ("https://127.0.0.1:2", false));
        assert!(config.users["alice"].token.is_some() && config.users["admin"].token.is_none());
        let fields = read(&file).unwrap();
        assert_eq!(fields["preferences"], existing["preferences"]);
        let before = std::fs::read(&file).unwrap();
        kubeconfig(dir.path(), 2).write(&file, "admin").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }

    #[test]
    fn empty_lists_of_kubectl_and_an_unknown_current_context_are_filled() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        for current in ["\"\"", "gone"] {
            let text = format!("clusters: null\ncontexts: null\nusers: null\ncurrent-context: {current}\n");
            std::fs::write(&file, text).unwrap();
            kubeconfig(dir.path(), 1).write(&file, "admin").unwrap();
            let config = ClientConfig::load(&file).unwrap();
            assert_eq!((config.contexts.len(), config.current_context.as_str()), (2, "admin"));
        }
    }

    #[test]
    fn unreadable_kubeconfig_is_reported_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        for text in ["a: [", "- a\n", "users: secret\n", "users: [{user: {}}]\n"] {
            std::fs::write(&file, text).unwrap();
            let error = kubeconfig(dir.path(), 1).write(&file, "admin").unwrap_err().to_string();
            let path = file.display().to_string();
            assert!(error.starts_with(&path) && error.contains("move it away"), "{error}");
            assert!(!error.contains("secret"), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(read(&file).is_err());
    }
}
