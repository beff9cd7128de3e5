//! Selects a cluster and a user of a client configuration, and checks that they can be used together.

use apimachinery::names::Names;
use http::Uri;

use super::{ClientConfig, Cluster, User};

/// Server with the user for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// Name of the cluster in the file.
    pub cluster_name: String,
    /// Cluster settings.
    pub cluster: Cluster,
    /// Name of the user in the file; empty without a user.
    pub user_name: String,
    /// User settings.
    pub user: User,
}

/// Selects the cluster and the user of a context, and checks their settings.
pub(super) fn select_target(
    config: &ClientConfig,
    context: Option<&str>,
    names: &Names,
) -> Result<Target, Vec<String>> {
    let (cluster_name, user_name) = select_names(config, context).map_err(|error| vec![error.to_string()])?;
    let mut errors = Vec::new();
    let cluster = config.clusters.get(&cluster_name).cloned().unwrap_or_else(|| {
        errors.push(format!(
            "the cluster `{cluster_name}` is not in clusters{}",
            format_names(config.clusters.keys())
        ));
        Cluster::default()
    });
    let user =
        if user_name.is_empty() { Some(User::default()) } else { config.users.get(&user_name).cloned() };
    let user = user.unwrap_or_else(|| {
        errors.push(format!("the user `{user_name}` is not in users{}", format_names(config.users.keys())));
        User::default()
    });
    if errors.is_empty() {
        let cluster_error = |error: String| format!("cluster `{cluster_name}`: {error}");
        errors.extend(check_cluster(&cluster).into_iter().map(cluster_error));
        let user_error = |error: String| format!("user `{user_name}`: {error}");
        errors.extend(check_user(&user, names).into_iter().map(user_error));
    }
    if errors.is_empty() { Ok(Target { cluster_name, cluster, user_name, user }) } else { Err(errors) }
}

/// Reason why no cluster and user are selected.
#[derive(Debug, thiserror::Error)]
enum SelectionError {
    #[error("{field} `{name}` is not in contexts{listed}")]
    UnknownContext { field: &'static str, name: String, listed: String },
    #[error("the context `{0}` names no cluster")]
    NoCluster(String),
    #[error("current-context is missing and there are several contexts{0}")]
    SeveralContexts(String),
    #[error("clusters is empty: it must contain the server")]
    Empty,
    #[error("current-context is missing and there are several clusters or users")]
    SeveralClusters,
}

/// Returns the names of the selected cluster and user; the user is `""` without credentials.
fn select_names(config: &ClientConfig, context: Option<&str>) -> Result<(String, String), SelectionError> {
    let name = context.unwrap_or(&config.current_context);
    if !name.is_empty() {
        let field = if context.is_some() { "the context" } else { "current-context:" };
        let Some(selected) = config.contexts.get(name) else {
            let listed = format_names(config.contexts.keys());
            return Err(SelectionError::UnknownContext { field, name: name.to_owned(), listed });
        };
        if selected.cluster.is_empty() {
            return Err(SelectionError::NoCluster(name.to_owned()));
        }
        return Ok((selected.cluster.clone(), selected.user.clone()));
    }
    let mut contexts = config.contexts.values();
    match (contexts.next(), contexts.next()) {
        (Some(single), None) => return Ok((single.cluster.clone(), single.user.clone())),
        (Some(_), Some(_)) => {
            return Err(SelectionError::SeveralContexts(format_names(config.contexts.keys())));
        }
        (None, _) => {}
    }
    let mut clusters = config.clusters.keys();
    let user = || config.users.keys().next().cloned().unwrap_or_default();
    match (clusters.next(), clusters.next(), config.users.len()) {
        (None, ..) => Err(SelectionError::Empty),
        (Some(single), None, 0 | 1) => Ok((single.clone(), user())),
        _ => Err(SelectionError::SeveralClusters),
    }
}

/// Formats the first eight names of a section for a message.
fn format_names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.take(8).map(|name| format!("`{name}`")).collect();
    if names.is_empty() { ", which is empty".to_owned() } else { format!(" ({})", names.join(", ")) }
}

fn check_cluster(cluster: &Cluster) -> Vec<String> {
    let mut errors = Vec::new();
    if cluster.server.is_empty() {
        errors.push("server is missing".to_owned());
    } else if let Err(error) = check_server(&cluster.server) {
        errors.push(format!("server: {error}"));
    }
    let authority = cluster.certificate_authority.is_some();
    let data = cluster.certificate_authority_data.is_some();
    if authority && data {
        errors.push(
            "certificate-authority and certificate-authority-data are both given; the second would win"
                .to_owned(),
        );
    }
    if cluster.insecure_skip_tls_verify && (authority || data) {
        errors.push(
            "insecure-skip-tls-verify cannot be combined with a certificate authority: it would not be used"
                .to_owned(),
        );
    }
    if let Some(proxy) = &cluster.proxy_url
        && let Err(error) = check_proxy(proxy.text().unwrap_or_default())
    {
        errors.push(format!("proxy-url: {error}"));
    }
    errors
}

/// Reason why a URL of a server or proxy is invalid, without the URL, which may contain a password.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("is not a URL: {0}")]
    Syntax(String),
    #[error("must begin with {0}")]
    NoScheme(&'static str),
    #[error("has the scheme `{0}`: use http, https, socks5 or socks5h")]
    Scheme(String),
    #[error("has no host")]
    NoHost,
    #[error("must not contain credentials: those belong to a user")]
    Credentials,
    #[error("has an invalid port: use 1 to 65535")]
    Port,
}

fn parse_url(url: &str) -> Result<Uri, UrlError> {
    url.parse().map_err(|error: http::uri::InvalidUri| UrlError::Syntax(error.to_string()))
}

/// Validates the URL of a proxy.
pub(crate) fn check_proxy(url: &str) -> Result<(), UrlError> {
    let uri = parse_url(url)?;
    match uri.scheme_str() {
        Some("http" | "https" | "socks5" | "socks5h") => {}
        Some(other) => return Err(UrlError::Scheme(other.to_owned())),
        None => return Err(UrlError::NoScheme("http://, https:// or socks5://")),
    }
    if uri.host().is_none_or(str::is_empty) { Err(UrlError::NoHost) } else { Ok(()) }
}

/// Validates the URL of a server.
fn check_server(url: &str) -> Result<(), UrlError> {
    let uri = parse_url(url)?;
    if !matches!(uri.scheme_str(), Some("https" | "http")) {
        return Err(UrlError::NoScheme("https://"));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(UrlError::NoHost);
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(UrlError::Credentials);
    }
    let port = uri.authority().and_then(|authority| authority.as_str().strip_prefix(uri.host()?));
    if port.is_some_and(|port| !port.is_empty() && uri.port_u16().is_none_or(|port| port == 0)) {
        return Err(UrlError::Port);
    }
    Ok(())
}

fn check_user(user: &User, names: &Names) -> Vec<String> {
    let mut errors = Vec::new();
    let mut report = |error: &str| errors.push(error.to_owned());
    let token = user.token.is_some() || user.token_file.is_some();
    let basic = user.username.is_some() || user.password.is_some();
    if token && basic {
        report("a token and a username are both given: only one of them can be sent");
    }
    if user.exec.is_some() && (token || basic) {
        report(
            "exec cannot be combined with a token, a tokenFile or a username: the plugin gives the credentials",
        );
    }
    if user.client_certificate.is_some() && user.client_certificate_data.is_some() {
        report("client-certificate and client-certificate-data are both given; the second would win");
    }
    if user.client_key.is_some() && user.client_key_data.is_some() {
        report("client-key and client-key-data are both given; the second would win");
    }
    let certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    let key = user.client_key.is_some() || user.client_key_data.is_some();
    if certificate && !key {
        report("a client certificate needs client-key or client-key-data");
    }
    if key && !certificate {
        report("a client key needs client-certificate or client-certificate-data");
    }
    if let Some(token) = &user.token
        && !is_header(token.bytes())
    {
        report("token: contains characters that a header cannot contain");
    }
    let target = &user.impersonate;
    let has_details = !(target.uid.is_empty() && target.groups.is_empty() && target.extra.is_empty());
    if target.name.is_empty() && has_details {
        report("as-uid, as-groups and as-user-extra need `as`");
    }
    let header_values =
        [&target.name, &target.uid].into_iter().chain(&target.groups).chain(target.extra.values().flatten());
    if header_values.into_iter().any(|value| !is_header(value.as_bytes())) {
        report("as: contains characters that a header cannot contain");
    }
    if let Some(provider) = &user.auth_provider {
        report(&format!("auth-provider `{provider}` is not supported: use exec"));
    }
    if let Some(plugin) = &user.exec {
        errors.extend(plugin.errors(names).into_iter().map(|error| format!("exec: {error}")));
    }
    errors
}

/// Whether bytes are a valid header value.
fn is_header(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0x20..=0x7e | 0x80..=0xff | b'\t'))
}
