//! Client configuration files: where a server is, and as whom to speak to it. The format of kubectl's kubeconfig.
//!
//! # Contract
//!
//! [`ClientConfig::load`] reads everything such a file may hold and reports all its mistakes together, each with the
//! field's path and never with a value, which may be a secret. Fields that nobody knows have no effect and are named in
//! [`ClientConfig::warnings`]. Relative paths count from the file's folder. [`ClientConfig::target`] chooses a server
//! and a user and checks that they can be used together; the files they name are read by [`crate::client::Remote`].
//!
//! # Reference
//!
//! `k8s.io/client-go/tools/clientcmd`, one file, no merging. A name that stands twice in a list is a mistake there and
//! here; so is what a user or cluster may not hold at the same time. `tokenFile` wins over `token`. Known difference: a
//! file without `current-context` is used when it leaves no choice, that is with one context, or with none and one
//! cluster and at most one user; the reference refuses it.

mod fields;
mod secret;
mod target;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apimachinery::codec;
use apimachinery::names::Names;
use apimachinery::object::Value;

use fields::{Fields, Findings, what};

pub use secret::Secret;
pub use target::Target;

/// A client configuration file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {}", .mistakes.join("; "), file = file.display())]
pub struct ConfigError {
    /// Which.
    pub file: PathBuf,
    /// All that is wrong with it, a sentence each.
    pub mistakes: Vec<String>,
}

/// A client configuration file, read and well-formed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientConfig {
    /// Where it was read from.
    pub file: PathBuf,
    /// The context that is meant when none is named; may be empty.
    pub current_context: String,
    /// Servers by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Users by name.
    pub users: BTreeMap<String, User>,
    /// Pairs of the two by name.
    pub contexts: BTreeMap<String, Context>,
    /// What has no effect and is probably a slip.
    pub warnings: Vec<String>,
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Its URL.
    pub server: String,
    /// The name that its certificate must bear, when it is not the URL's host.
    pub tls_server_name: Option<String>,
    /// Any certificate is believed.
    pub insecure_skip_tls_verify: bool,
    /// File of the authorities that vouch for it.
    pub certificate_authority: Option<PathBuf>,
    /// The same, PEM.
    pub certificate_authority_data: Option<Vec<u8>>,
    /// What stands between.
    pub proxy_url: Option<Secret>,
    /// Answers are asked for uncompressed. They always are.
    pub disable_compression: bool,
    /// Further content by name: what plugins are given.
    pub extensions: BTreeMap<String, Value>,
}

/// A user's credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// File of the certificate shown to the server.
    pub client_certificate: Option<PathBuf>,
    /// The same, PEM.
    pub client_certificate_data: Option<Secret>,
    /// File of its key.
    pub client_key: Option<PathBuf>,
    /// The same, PEM.
    pub client_key_data: Option<Secret>,
    /// Bearer token.
    pub token: Option<Secret>,
    /// File of the bearer token, read again while it is used.
    pub token_file: Option<PathBuf>,
    /// User name of basic authentication.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// Whom to act as.
    pub impersonate: Impersonate,
    /// A program that gives credentials.
    pub exec: Option<Exec>,
    /// A built-in provider of credentials, by name: none is supported.
    pub auth_provider: Option<String>,
}

/// Whom a user acts as. An empty name: as himself.
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

/// A credential plugin as the file describes it. See [`crate::exec`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    /// The program: a name to be found on the path, or a path.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to its environment; values may be secrets.
    pub env: Vec<(String, Secret)>,
    /// The version it speaks.
    pub api_version: String,
    /// What to tell whoever lacks the program.
    pub install_hint: String,
    /// Tell it of the server.
    pub provide_cluster_info: bool,
    /// `Never`, `IfAvailable`, `Always` or empty.
    pub interactive_mode: String,
    /// Folder of the configuration file.
    pub dir: PathBuf,
}

/// A server with a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// A key of [`ClientConfig::clusters`].
    pub cluster: String,
    /// A key of [`ClientConfig::users`]; empty: without credentials.
    pub user: String,
    /// The namespace that commands are meant for.
    pub namespace: String,
}

impl ClientConfig {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or see [`ClientConfig::parse`].
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read(file) {
            Ok(text) => ClientConfig::parse(&text, file),
            Err(e) => Err(ConfigError { file: file.to_owned(), mistakes: vec![e.to_string()] }),
        }
    }

    /// Reads the content of a file, YAML or JSON.
    ///
    /// # Errors
    ///
    /// It is no such document, or fields have the wrong types, or names are missing or stand twice.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let failed = |mistakes: Vec<String>| ConfigError { file: file.to_owned(), mistakes };
        let json = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let decode = if json { codec::json::decode } else { codec::yaml::decode };
        // What a parser says may quote the document: the place is enough.
        let decoded =
            decode(text, codec::Limits::BODY).map_err(|e| failed(vec![place(&e.to_string(), json)]))?;
        let Value::Object(map) = &decoded.value else {
            let found = if decoded.value.is_null() { "nothing" } else { what(&decoded.value) };
            return Err(failed(vec![format!(
                "a client configuration is a mapping, this file holds {found}"
            )]));
        };
        let mut found = Findings::default();
        let dir = file.parent().unwrap_or(Path::new(""));
        let config = read(Fields::new(map, String::new()), dir, &mut found);
        found.warnings.extend(decoded.duplicates.iter().map(|path| format!("{path}: stands twice")));
        if found.mistakes.is_empty() {
            Ok(ClientConfig { file: file.to_owned(), warnings: found.warnings, ..config })
        } else {
            Err(failed(found.mistakes))
        }
    }

    /// The server and the user of a context, or of the current one.
    ///
    /// # Errors
    ///
    /// There is no such context, cluster or user, or they cannot be used: all reasons together.
    pub fn target(&self, context: Option<&str>, names: &Names) -> Result<Target, ConfigError> {
        target::choose(self, context, names)
            .map_err(|mistakes| ConfigError { file: self.file.clone(), mistakes })
    }
}

/// Where a document is broken.
fn place(problem: &str, json: bool) -> String {
    let format = if json { "JSON" } else { "YAML" };
    let words: Vec<&str> =
        problem.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let number = |word: &str| {
        let after = words.iter().position(|w| *w == word)? + 1;
        words.get(after)?.parse::<u64>().ok()
    };
    match (number("line"), number("column")) {
        (Some(line), Some(column)) => format!("is no {format}: line {line}, column {column}"),
        (Some(line), None) => format!("is no {format}: line {line}"),
        _ if problem.contains("deep") || problem.contains("large") => problem.to_owned(),
        _ => format!("is no {format}"),
    }
}

fn read(mut top: Fields<'_>, dir: &Path, found: &mut Findings) -> ClientConfig {
    let version = top.string("apiVersion", found);
    if !matches!(version.as_str(), "" | "v1") {
        found.mistakes.push("apiVersion: must be `v1`".to_owned());
    }
    let kind = top.string("kind", found);
    if !matches!(kind.as_str(), "" | "Config") {
        found.mistakes.push("kind: must be `Config`".to_owned());
    }
    // Settings of kubectl's and of other tools' own.
    top.any("preferences");
    top.any("extensions");
    let current_context = top.string("current-context", found);
    let clusters = named(&mut top, "clusters", "cluster", found, |part, found| cluster(part, dir, found));
    let users = named(&mut top, "users", "user", found, |part, found| user(part, dir, found));
    let contexts = named(&mut top, "contexts", "context", found, context);
    top.end(found);
    ClientConfig { current_context, clusters, users, contexts, ..ClientConfig::default() }
}

/// A list of `{name, <part>}`.
fn named<T: Default>(
    top: &mut Fields<'_>,
    list: &'static str,
    part: &'static str,
    found: &mut Findings,
    read: impl Fn(Fields<'_>, &mut Findings) -> T,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for mut item in top.items(list, found) {
        let (at, at_name) = (item.at(part), item.at("name"));
        let before = found.mistakes.len();
        let name = item.string("name", found);
        if name.is_empty() && found.mistakes.len() == before {
            found.mistakes.push(format!("{at_name}: is missing"));
        }
        let value = match item.part(part, found) {
            Some(fields) => read(fields, found),
            // `user: {}` is often left out, and so is `cluster:`; what is then missing is said when it is used.
            None => T::default(),
        };
        if !name.is_empty() && all.insert(name, value).is_some() {
            found
                .mistakes
                .push(format!("{at_name}: the same name stands before in {list}, so {at} is ambiguous"));
        }
        item.end(found);
    }
    all
}

fn cluster(mut fields: Fields<'_>, dir: &Path, found: &mut Findings) -> Cluster {
    let mut extensions = BTreeMap::new();
    for mut item in fields.items("extensions", found) {
        let name = item.string("name", found);
        if let Some(content) = item.any("extension") {
            extensions.insert(name, content.clone());
        }
    }
    let some = |text: String| (!text.is_empty()).then_some(text);
    let cluster = Cluster {
        server: fields.string("server", found),
        tls_server_name: some(fields.string("tls-server-name", found)),
        insecure_skip_tls_verify: fields.boolean("insecure-skip-tls-verify", found),
        certificate_authority: fields.file("certificate-authority", dir, found),
        certificate_authority_data: fields
            .data("certificate-authority-data", found)
            .map(|pem| pem.bytes().to_vec()),
        proxy_url: fields.secret("proxy-url", found),
        disable_compression: fields.boolean("disable-compression", found),
        extensions,
    };
    fields.end(found);
    cluster
}

fn user(mut fields: Fields<'_>, dir: &Path, found: &mut Findings) -> User {
    fields.any("extensions");
    let username = fields.string("username", found);
    let user = User {
        client_certificate: fields.file("client-certificate", dir, found),
        client_certificate_data: fields.data("client-certificate-data", found),
        client_key: fields.file("client-key", dir, found),
        client_key_data: fields.data("client-key-data", found),
        token: fields.secret("token", found),
        token_file: fields.file("tokenFile", dir, found),
        username: (!username.is_empty()).then_some(username),
        password: fields.secret("password", found),
        impersonate: Impersonate {
            name: fields.string("as", found),
            uid: fields.string("as-uid", found),
            groups: fields.strings("as-groups", found),
            extra: fields.lists("as-user-extra", found),
        },
        exec: fields.part("exec", found).map(|part| exec(part, dir, found)),
        auth_provider: fields.part("auth-provider", found).map(|mut part| part.string("name", found)),
    };
    fields.end(found);
    user
}

fn exec(mut fields: Fields<'_>, dir: &Path, found: &mut Findings) -> Exec {
    let mut env = Vec::new();
    for mut item in fields.items("env", found) {
        let name = item.string("name", found);
        let value = item.string("value", found);
        if name.is_empty() || name.contains(['=', '\0']) {
            found.mistakes.push(format!("{}: must name a variable", item.at("name")));
        }
        env.push((name, Secret::new(value)));
        item.end(found);
    }
    let exec = Exec {
        command: fields.string("command", found),
        args: fields.strings("args", found),
        env,
        api_version: fields.string("apiVersion", found),
        install_hint: fields.string("installHint", found),
        provide_cluster_info: fields.boolean("provideClusterInfo", found),
        interactive_mode: fields.string("interactiveMode", found),
        dir: dir.to_owned(),
    };
    fields.end(found);
    exec
}

fn context(mut fields: Fields<'_>, found: &mut Findings) -> Context {
    fields.any("extensions");
    let context = Context {
        cluster: fields.string("cluster", found),
        user: fields.string("user", found),
        namespace: fields.string("namespace", found),
    };
    fields.end(found);
    context
}

#[cfg(test)]
mod tests;
