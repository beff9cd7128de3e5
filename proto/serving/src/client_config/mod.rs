//! Client configuration files: servers and the credentials for them, in the format of a kubeconfig file.
//!
//! # Contract
//!
//! [`ClientConfig::load`] reads every field of the format and reports all errors together. Each error
//! names the line and the path of the field and never the value, which may be a secret. Unknown fields have
//! no effect and are listed in [`ClientConfig::warnings`]. Relative paths start at the directory of the file.
//! [`ClientConfig::target`] selects a server and a user and checks that they can be used together.
//! [`crate::client::Remote`] reads the files that the selected server and user name.
//!
//! # Reference
//!
//! `k8s.io/client-go/tools/clientcmd`, one file, no merging. A duplicate name in a list is an error in both
//! implementations, and so are fields of a user or cluster that exclude each other. `tokenFile` wins over
//! `token`. Known difference: a file without `current-context` is accepted when it leaves no choice. It then
//! has one context, or no context, one cluster and at most one user. The reference rejects such a file.

mod fields;
mod plugin;
mod secret;
mod target;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apimachinery::codec;
use apimachinery::document::{self, Document, DocumentError, Fields};
use apimachinery::names::Names;
use apimachinery::object::Value;

use fields::{base64_data, file, non_empty_text, secret, string_lists};

pub(crate) use plugin::InteractiveMode;
pub use secret::Secret;
pub use target::Target;
pub(crate) use target::check_proxy;

/// Invalid client configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {}", .errors.join("; "), file = file.display())]
pub struct ConfigError {
    /// Path of the file.
    pub file: PathBuf,
    /// All errors in the file, one sentence each.
    pub errors: Vec<String>,
}

/// Decoded and well-formed client configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConfig {
    /// Path of the file.
    pub file: PathBuf,
    /// Name of the default context; may be empty.
    pub current_context: String,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Users by name.
    pub users: BTreeMap<String, User>,
    /// Contexts by name.
    pub contexts: BTreeMap<String, Context>,
    /// Unknown and duplicate fields, which have no effect and are probably errors.
    pub warnings: Vec<String>,
}

/// A cluster of the file: its server and how to connect to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// URL of the server.
    pub server: String,
    /// Name to verify in the certificate of the server; None means the host of the URL.
    pub tls_server_name: Option<String>,
    /// Whether the client accepts every server certificate without verification.
    pub insecure_skip_tls_verify: bool,
    /// File of the CA bundle.
    pub certificate_authority: Option<PathBuf>,
    /// CA bundle, PEM.
    pub certificate_authority_data: Option<Vec<u8>>,
    /// URL of the proxy.
    pub proxy_url: Option<Secret>,
    /// Whether responses must not be compressed. This client never requests compression.
    pub disable_compression: bool,
    /// Extensions by name, passed to credential plugins.
    pub extensions: BTreeMap<String, Value>,
}

/// A user of the file: the credentials for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// File of the client certificate.
    pub client_certificate: Option<PathBuf>,
    /// Client certificate, PEM.
    pub client_certificate_data: Option<Secret>,
    /// File of the client key.
    pub client_key: Option<PathBuf>,
    /// Client key, PEM.
    pub client_key_data: Option<Secret>,
    /// Bearer token.
    pub token: Option<Secret>,
    /// File of the bearer token, reloaded while it is used.
    pub token_file: Option<PathBuf>,
    /// User name of basic authentication.
    pub username: Option<String>,
    /// Password of basic authentication.
    pub password: Option<Secret>,
    /// User to impersonate.
    pub impersonate: Impersonate,
    /// Credential plugin.
    pub exec: Option<Exec>,
    /// Name of a built-in credential provider; none is supported.
    pub auth_provider: Option<String>,
}

/// Impersonated user. An empty name: no impersonation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonate {
    /// `as`
    pub name: String,
    /// `as-uid`
    pub uid: String,
    /// `as-groups`
    pub groups: Vec<String>,
    /// `as-user-extra`
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Configuration of a credential plugin. See [`crate::exec`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    /// Program: a name to search in `PATH`, or a path.
    pub command: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Additional environment variables; values may be secrets.
    pub env: Vec<(String, Secret)>,
    /// API version of the plugin protocol.
    pub api_version: String,
    /// Installation hint for users without the program.
    pub install_hint: String,
    /// Whether the program gets the description of the cluster.
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable`, `Always` or empty.
    pub interactive_mode: String,
    /// Directory of the configuration file.
    pub dir: PathBuf,
}

/// A context of the file: a cluster with a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Key of [`ClientConfig::clusters`].
    pub cluster: String,
    /// Key of [`ClientConfig::users`]; empty: no credentials.
    pub user: String,
    /// Default namespace of commands.
    pub namespace: String,
}

impl ClientConfig {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file is not readable, or see [`ClientConfig::parse`].
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read(file) {
            Ok(text) => ClientConfig::parse(&text, file),
            Err(e) => Err(ConfigError { file: file.to_owned(), errors: vec![e.to_string()] }),
        }
    }

    /// Parses the content of a file, YAML or JSON.
    ///
    /// # Errors
    ///
    /// Invalid syntax, fields of wrong types, missing or duplicate names.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let config_error = |errors: Vec<String>| ConfigError { file: file.to_owned(), errors };
        let json = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let decode = if json { codec::json::decode } else { codec::yaml::decode };
        // A parser message may quote the document: report only the position.
        let decoded = decode(text, document::LIMITS)
            .map_err(|e| config_error(vec![syntax_error_position(&e.to_string(), json)]))?;
        let dir = file.parent().unwrap_or(Path::new(""));
        let texts = |errors: Vec<DocumentError>| errors.iter().map(ToString::to_string).collect();
        match Document::from_decoded(decoded, text).decode_lenient(|fields| read_config(fields, dir)) {
            Ok((config, warnings)) => {
                Ok(ClientConfig { file: file.to_owned(), warnings: texts(warnings), ..config })
            }
            Err(errors) => Err(config_error(texts(errors))),
        }
    }

    /// Selects the cluster and the user of a context; None means the current context.
    ///
    /// # Errors
    ///
    /// All reasons together: no such context, cluster or user, or settings that cannot be used.
    pub fn target(&self, context: Option<&str>, names: &Names) -> Result<Target, ConfigError> {
        target::select_target(self, context, names)
            .map_err(|errors| ConfigError { file: self.file.clone(), errors })
    }
}

/// Formats a syntax error with its position only.
fn syntax_error_position(problem: &str, json: bool) -> String {
    let format = if json { "JSON" } else { "YAML" };
    let words: Vec<&str> =
        problem.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let number = |word: &str| {
        let after = words.iter().position(|w| *w == word)? + 1;
        words.get(after)?.parse::<u64>().ok()
    };
    match (number("line"), number("column")) {
        (Some(line), Some(column)) => format!("is not valid {format}: line {line}, column {column}"),
        (Some(line), None) => format!("is not valid {format}: line {line}"),
        _ if problem.contains("deep") || problem.contains("large") => problem.to_owned(),
        _ => format!("is not valid {format}"),
    }
}

fn read_config(top: &mut Fields<'_>, dir: &Path) -> ClientConfig {
    for (field, expected) in [("apiVersion", "v1"), ("kind", "Config")] {
        let text = top.text(field);
        if !text.is_empty() && text != expected {
            top.errors().add_text(&top.path().child(field), &format!("must be `{expected}`"));
        }
    }
    // Settings of kubectl and of other tools.
    top.value("preferences");
    top.value("extensions");
    ClientConfig {
        current_context: top.text("current-context"),
        clusters: named_entries(top, "clusters", "cluster", |fields| read_cluster(fields, dir)),
        users: named_entries(top, "users", "user", |fields| read_user(fields, dir)),
        contexts: named_entries(top, "contexts", "context", read_context),
        ..ClientConfig::default()
    }
}

/// Reads a list of objects with the fields `name` and `part`, and returns the parts by name.
fn named_entries<T: Default>(
    top: &mut Fields<'_>,
    list: &'static str,
    part: &'static str,
    read: impl Fn(&mut Fields<'_>) -> T,
) -> BTreeMap<String, T> {
    let mut parts_by_name = BTreeMap::new();
    top.objects(list, |item| {
        let name = item.text("name");
        let name_path = item.path().child("name");
        // For a name of a wrong type, an error is recorded already.
        if name.is_empty() && item.value("name").is_none_or(Value::is_string) {
            item.errors().add_text(&name_path, "is missing");
        }
        // `user: {}` and `cluster:` are often omitted. [`ClientConfig::target`] reports missing fields.
        let value = item.object(part, &read).unwrap_or_default();
        if !name.is_empty() && parts_by_name.insert(name, value).is_some() {
            let text = format!("duplicate name in {list}, so {} is ambiguous", item.path().child(part));
            item.errors().add_text(&name_path, &text);
        }
    });
    parts_by_name
}

fn read_cluster(fields: &mut Fields<'_>, dir: &Path) -> Cluster {
    let mut extensions = BTreeMap::new();
    fields.objects("extensions", |item| {
        let name = item.text("name");
        if let Some(content) = item.value("extension") {
            extensions.insert(name, content.clone());
        }
    });
    Cluster {
        server: fields.text("server"),
        tls_server_name: non_empty_text(fields, "tls-server-name"),
        insecure_skip_tls_verify: fields.boolean("insecure-skip-tls-verify").unwrap_or_default(),
        certificate_authority: file(fields, "certificate-authority", dir),
        certificate_authority_data: base64_data(fields, "certificate-authority-data")
            .map(|pem| pem.bytes().to_vec()),
        proxy_url: secret(fields, "proxy-url"),
        disable_compression: fields.boolean("disable-compression").unwrap_or_default(),
        extensions,
    }
}

fn read_user(fields: &mut Fields<'_>, dir: &Path) -> User {
    fields.value("extensions");
    User {
        client_certificate: file(fields, "client-certificate", dir),
        client_certificate_data: base64_data(fields, "client-certificate-data"),
        client_key: file(fields, "client-key", dir),
        client_key_data: base64_data(fields, "client-key-data"),
        token: secret(fields, "token"),
        token_file: file(fields, "tokenFile", dir),
        username: non_empty_text(fields, "username"),
        password: secret(fields, "password"),
        impersonate: Impersonate {
            name: fields.text("as"),
            uid: fields.text("as-uid"),
            groups: fields.texts("as-groups"),
            extra: string_lists(fields, "as-user-extra"),
        },
        exec: fields.object("exec", |part| read_exec(part, dir)),
        auth_provider: fields.object("auth-provider", |part| {
            part.value("config");
            part.text("name")
        }),
    }
}

fn read_exec(fields: &mut Fields<'_>, dir: &Path) -> Exec {
    let env = fields.objects("env", |item| {
        let name = item.text("name");
        if name.is_empty() || name.contains(['=', '\0']) {
            item.errors().add_text(&item.path().child("name"), "must name a variable");
        }
        (name, Secret::new(item.text("value")))
    });
    Exec {
        command: fields.text("command"),
        args: fields.texts("args"),
        env,
        api_version: fields.text("apiVersion"),
        install_hint: fields.text("installHint"),
        provide_cluster_info: fields.boolean("provideClusterInfo").unwrap_or_default(),
        interactive_mode: fields.text("interactiveMode"),
        dir: dir.to_owned(),
    }
}

fn read_context(fields: &mut Fields<'_>) -> Context {
    fields.value("extensions");
    Context {
        cluster: fields.text("cluster"),
        user: fields.text("user"),
        namespace: fields.text("namespace"),
    }
}

#[cfg(test)]
mod tests;
