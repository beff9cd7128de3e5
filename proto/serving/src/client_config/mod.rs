//! Client configuration files: a server and the credentials for it. The format is that of a kubeconfig file.
//!
//! # Contract
//!
//! [`ClientConfig::load`] reads every field of the format and reports all mistakes together. Each mistake
//! names the path of the field and never the value, which may be a secret. Unknown fields have no effect and
//! are listed in [`ClientConfig::warnings`]. Relative paths start at the directory of the file.
//! [`ClientConfig::target`] selects a server and a user and checks that they can be used together.
//! [`crate::client::Remote`] reads the files that they name.
//!
//! # Reference
//!
//! `k8s.io/client-go/tools/clientcmd`, one file, no merging. A duplicate name in a list is a mistake in both
//! implementations, and so are fields of a user or cluster that exclude each other. `tokenFile` wins over
//! `token`. Known difference: a file without `current-context` is accepted when it leaves no choice, that is
//! with one context, or without contexts and with one cluster and at most one user. The reference rejects
//! such a file.

mod fields;
mod plugin;
mod secret;
mod target;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apimachinery::codec;
use apimachinery::names::Names;
use apimachinery::object::Value;

use fields::{Fields, ParseReport, json_type};

pub(crate) use plugin::InteractiveMode;
pub use secret::Secret;
pub use target::Target;
pub(crate) use target::check_proxy;

/// Invalid client configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {}", .mistakes.join("; "), file = file.display())]
pub struct ConfigError {
    /// Path of the file.
    pub file: PathBuf,
    /// All mistakes in the file, one sentence each.
    pub mistakes: Vec<String>,
}

/// Decoded and well-formed client configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConfig {
    /// Path of the file.
    pub file: PathBuf,
    /// Default context; may be empty.
    pub current_context: String,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Users by name.
    pub users: BTreeMap<String, User>,
    /// Contexts by name.
    pub contexts: BTreeMap<String, Context>,
    /// Fields without effect that are probably mistakes.
    pub warnings: Vec<String>,
}

/// Server of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// URL of the server.
    pub server: String,
    /// Name to verify in the certificate of the server; None: the host of the URL.
    pub tls_server_name: Option<String>,
    /// Accept any server certificate.
    pub insecure_skip_tls_verify: bool,
    /// File of the CA bundle.
    pub certificate_authority: Option<PathBuf>,
    /// CA bundle, PEM.
    pub certificate_authority_data: Option<Vec<u8>>,
    /// URL of the proxy.
    pub proxy_url: Option<Secret>,
    /// Request uncompressed responses. This client always does.
    pub disable_compression: bool,
    /// Extensions by name, passed to credential plugins.
    pub extensions: BTreeMap<String, Value>,
}

/// Credentials of a user.
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
    /// Pass the cluster to the program.
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable`, `Always` or empty.
    pub interactive_mode: String,
    /// Directory of the configuration file.
    pub dir: PathBuf,
}

/// Cluster with a user.
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
            Err(e) => Err(ConfigError { file: file.to_owned(), mistakes: vec![e.to_string()] }),
        }
    }

    /// Parses the content of a file, YAML or JSON.
    ///
    /// # Errors
    ///
    /// Invalid syntax, fields of wrong types, missing or duplicate names.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let failed = |mistakes: Vec<String>| ConfigError { file: file.to_owned(), mistakes };
        let json = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let decode = if json { codec::json::decode } else { codec::yaml::decode };
        // A parser message may quote the document: report only the position.
        let decoded = decode(text, codec::Limits::BODY)
            .map_err(|e| failed(vec![syntax_error_position(&e.to_string(), json)]))?;
        let Value::Object(map) = &decoded.value else {
            let content = if decoded.value.is_null() { "nothing" } else { json_type(&decoded.value) };
            return Err(failed(vec![format!(
                "a client configuration must be a mapping, this file contains {content}"
            )]));
        };
        let mut report = ParseReport::default();
        let dir = file.parent().unwrap_or(Path::new(""));
        let config = read(Fields::new(map, String::new()), dir, &mut report);
        report.warnings.extend(decoded.duplicates.iter().map(|path| format!("{path}: appears twice")));
        if report.mistakes.is_empty() {
            Ok(ClientConfig { file: file.to_owned(), warnings: report.warnings, ..config })
        } else {
            Err(failed(report.mistakes))
        }
    }

    /// Selects the cluster and the user of a context, or of the current context.
    ///
    /// # Errors
    ///
    /// All reasons together: no such context, cluster or user, or settings that cannot be used.
    pub fn target(&self, context: Option<&str>, names: &Names) -> Result<Target, ConfigError> {
        target::choose(self, context, names)
            .map_err(|mistakes| ConfigError { file: self.file.clone(), mistakes })
    }
}

/// Position of a syntax error.
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

fn read(mut top: Fields<'_>, dir: &Path, report: &mut ParseReport) -> ClientConfig {
    let version = top.string("apiVersion", report);
    if !matches!(version.as_str(), "" | "v1") {
        report.mistakes.push("apiVersion: must be `v1`".to_owned());
    }
    let kind = top.string("kind", report);
    if !matches!(kind.as_str(), "" | "Config") {
        report.mistakes.push("kind: must be `Config`".to_owned());
    }
    // Settings of kubectl and of other tools.
    top.any("preferences");
    top.any("extensions");
    let current_context = top.string("current-context", report);
    let clusters =
        named_entries(&mut top, "clusters", "cluster", report, |part, report| cluster(part, dir, report));
    let users = named_entries(&mut top, "users", "user", report, |part, report| user(part, dir, report));
    let contexts = named_entries(&mut top, "contexts", "context", report, context);
    top.end(report);
    ClientConfig { current_context, clusters, users, contexts, ..ClientConfig::default() }
}

/// Reads a list of `{name, <part>}`.
fn named_entries<T: Default>(
    top: &mut Fields<'_>,
    list: &'static str,
    part: &'static str,
    report: &mut ParseReport,
    read: impl Fn(Fields<'_>, &mut ParseReport) -> T,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for mut item in top.items(list, report) {
        let (at, at_name) = (item.at(part), item.at("name"));
        let before = report.mistakes.len();
        let name = item.string("name", report);
        if name.is_empty() && report.mistakes.len() == before {
            report.mistakes.push(format!("{at_name}: is missing"));
        }
        let value = match item.part(part, report) {
            Some(fields) => read(fields, report),
            // `user: {}` and `cluster:` are often omitted. [`ClientConfig::target`] reports missing fields.
            None => T::default(),
        };
        if !name.is_empty() && all.insert(name, value).is_some() {
            report.mistakes.push(format!("{at_name}: duplicate name in {list}, so {at} is ambiguous"));
        }
        item.end(report);
    }
    all
}

fn cluster(mut fields: Fields<'_>, dir: &Path, report: &mut ParseReport) -> Cluster {
    let mut extensions = BTreeMap::new();
    for mut item in fields.items("extensions", report) {
        let name = item.string("name", report);
        if let Some(content) = item.any("extension") {
            extensions.insert(name, content.clone());
        }
    }
    let some = |text: String| (!text.is_empty()).then_some(text);
    let cluster = Cluster {
        server: fields.string("server", report),
        tls_server_name: some(fields.string("tls-server-name", report)),
        insecure_skip_tls_verify: fields.boolean("insecure-skip-tls-verify", report),
        certificate_authority: fields.file("certificate-authority", dir, report),
        certificate_authority_data: fields
            .data("certificate-authority-data", report)
            .map(|pem| pem.bytes().to_vec()),
        proxy_url: fields.secret("proxy-url", report),
        disable_compression: fields.boolean("disable-compression", report),
        extensions,
    };
    fields.end(report);
    cluster
}

fn user(mut fields: Fields<'_>, dir: &Path, report: &mut ParseReport) -> User {
    fields.any("extensions");
    let username = fields.string("username", report);
    let user = User {
        client_certificate: fields.file("client-certificate", dir, report),
        client_certificate_data: fields.data("client-certificate-data", report),
        client_key: fields.file("client-key", dir, report),
        client_key_data: fields.data("client-key-data", report),
        token: fields.secret("token", report),
        token_file: fields.file("tokenFile", dir, report),
        username: (!username.is_empty()).then_some(username),
        password: fields.secret("password", report),
        impersonate: Impersonate {
            name: fields.string("as", report),
            uid: fields.string("as-uid", report),
            groups: fields.strings("as-groups", report),
            extra: fields.lists("as-user-extra", report),
        },
        exec: fields.part("exec", report).map(|part| exec(part, dir, report)),
        auth_provider: fields.part("auth-provider", report).map(|mut part| part.string("name", report)),
    };
    fields.end(report);
    user
}

fn exec(mut fields: Fields<'_>, dir: &Path, report: &mut ParseReport) -> Exec {
    let mut env = Vec::new();
    for mut item in fields.items("env", report) {
        let name = item.string("name", report);
        let value = item.string("value", report);
        if name.is_empty() || name.contains(['=', '\0']) {
            report.mistakes.push(format!("{}: must name a variable", item.at("name")));
        }
        env.push((name, Secret::new(value)));
        item.end(report);
    }
    let exec = Exec {
        command: fields.string("command", report),
        args: fields.strings("args", report),
        env,
        api_version: fields.string("apiVersion", report),
        install_hint: fields.string("installHint", report),
        provide_cluster_info: fields.boolean("provideClusterInfo", report),
        interactive_mode: fields.string("interactiveMode", report),
        dir: dir.to_owned(),
    };
    fields.end(report);
    exec
}

fn context(mut fields: Fields<'_>, report: &mut ParseReport) -> Context {
    fields.any("extensions");
    let context = Context {
        cluster: fields.string("cluster", report),
        user: fields.string("user", report),
        namespace: fields.string("namespace", report),
    };
    fields.end(report);
    context
}

#[cfg(test)]
mod tests;
