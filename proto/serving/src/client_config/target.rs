//! Selects a cluster and a user from a file, and checks that they can be used together.

use apimachinery::names::Names;
use http::Uri;

use super::{ClientConfig, Cluster, User};
use crate::client::check_proxy;
use crate::exec;

/// Server with the user for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// Name of the cluster in the file.
    pub cluster_name: String,
    /// Cluster settings.
    pub cluster: Cluster,
    /// Name of the user in the file; empty without user.
    pub user_name: String,
    /// User settings.
    pub user: User,
}

pub(super) fn choose(
    config: &ClientConfig,
    context: Option<&str>,
    names: &Names,
) -> Result<Target, Vec<String>> {
    let (cluster_name, user_name) = pair(config, context).map_err(|mistake| vec![mistake])?;
    let mut mistakes = Vec::new();
    let cluster = config.clusters.get(&cluster_name).cloned().unwrap_or_else(|| {
        mistakes.push(format!(
            "the cluster `{cluster_name}` is not in clusters{}",
            listed(config.clusters.keys())
        ));
        Cluster::default()
    });
    let user =
        if user_name.is_empty() { Some(User::default()) } else { config.users.get(&user_name).cloned() };
    let user = user.unwrap_or_else(|| {
        mistakes.push(format!("the user `{user_name}` is not in users{}", listed(config.users.keys())));
        User::default()
    });
    if mistakes.is_empty() {
        let at_cluster = |mistake: String| format!("cluster `{cluster_name}`: {mistake}");
        mistakes.extend(check_cluster(&cluster).into_iter().map(at_cluster));
        let at_user = |mistake: String| format!("user `{user_name}`: {mistake}");
        mistakes.extend(check_user(&user, names).into_iter().map(at_user));
    }
    if mistakes.is_empty() { Ok(Target { cluster_name, cluster, user_name, user }) } else { Err(mistakes) }
}

/// Names of cluster and user.
fn pair(config: &ClientConfig, context: Option<&str>) -> Result<(String, String), String> {
    let wanted = context.unwrap_or(&config.current_context);
    if !wanted.is_empty() {
        let field = if context.is_some() { "the context" } else { "current-context:" };
        let Some(found) = config.contexts.get(wanted) else {
            return Err(format!("{field} `{wanted}` is not in contexts{}", listed(config.contexts.keys())));
        };
        if found.cluster.is_empty() {
            return Err(format!("the context `{wanted}` names no cluster"));
        }
        return Ok((found.cluster.clone(), found.user.clone()));
    }
    let mut contexts = config.contexts.values();
    match (contexts.next(), contexts.next()) {
        (Some(only), None) => return Ok((only.cluster.clone(), only.user.clone())),
        (Some(_), Some(_)) => {
            let listed = listed(config.contexts.keys());
            return Err(format!("current-context is missing and there are several contexts{listed}"));
        }
        (None, _) => {}
    }
    let mut clusters = config.clusters.keys();
    match (clusters.next(), clusters.next(), config.users.len()) {
        (None, ..) => Err("clusters is empty: it must hold the server".to_owned()),
        (Some(only), None, 0) => Ok((only.clone(), String::new())),
        (Some(only), None, 1) => Ok((only.clone(), config.users.keys().next().cloned().unwrap_or_default())),
        _ => Err("current-context is missing and there are several clusters or users".to_owned()),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.take(8).map(|name| format!("`{name}`")).collect();
    if names.is_empty() { ", which is empty".to_owned() } else { format!(" ({})", names.join(", ")) }
}

fn check_cluster(cluster: &Cluster) -> Vec<String> {
    let mut mistakes = Vec::new();
    if cluster.server.is_empty() {
        mistakes.push("server is missing".to_owned());
    } else if let Err(mistake) = check_server(&cluster.server) {
        mistakes.push(format!("server: {mistake}"));
    }
    let authority = cluster.certificate_authority.is_some();
    let data = cluster.certificate_authority_data.is_some();
    if authority && data {
        mistakes.push(
            "certificate-authority and certificate-authority-data are both given; the second would win"
                .to_owned(),
        );
    }
    if cluster.insecure_skip_tls_verify && (authority || data) {
        mistakes.push(
            "insecure-skip-tls-verify cannot be combined with a certificate authority: it would not be used"
                .to_owned(),
        );
    }
    if let Some(proxy) = &cluster.proxy_url
        && let Err(mistake) = check_proxy(proxy.text().unwrap_or_default())
    {
        mistakes.push(format!("proxy-url: {mistake}"));
    }
    mistakes
}

fn check_server(server: &str) -> Result<(), String> {
    let uri: Uri = server.parse().map_err(|e| format!("is not a URL: {e}"))?;
    match uri.scheme_str() {
        Some("https" | "http") => {}
        _ => return Err("must begin with https://".to_owned()),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err("has no host".to_owned());
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("must not hold credentials: those belong to a user".to_owned());
    }
    let port = uri.authority().and_then(|authority| authority.as_str().strip_prefix(uri.host()?));
    if port.is_some_and(|port| !port.is_empty() && uri.port_u16().is_none_or(|port| port == 0)) {
        return Err("has an invalid port: use 1 to 65535".to_owned());
    }
    Ok(())
}

fn check_user(user: &User, names: &Names) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut say = |mistake: &str| mistakes.push(mistake.to_owned());
    let token = user.token.is_some() || user.token_file.is_some();
    let basic = user.username.is_some() || user.password.is_some();
    if token && basic {
        say("a token and a username are both given: only one of them can be sent");
    }
    if user.exec.is_some() && (token || basic) {
        say(
            "exec cannot be combined with a token, a tokenFile or a username: the plugin gives the credentials",
        );
    }
    if user.client_certificate.is_some() && user.client_certificate_data.is_some() {
        say("client-certificate and client-certificate-data are both given; the second would win");
    }
    if user.client_key.is_some() && user.client_key_data.is_some() {
        say("client-key and client-key-data are both given; the second would win");
    }
    let certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    let key = user.client_key.is_some() || user.client_key_data.is_some();
    if certificate && !key {
        say("a client certificate needs client-key or client-key-data");
    }
    if key && !certificate {
        say("a client key needs client-certificate or client-certificate-data");
    }
    if let Some(token) = &user.token
        && !is_header(token.bytes())
    {
        say("token: holds characters that cannot stand in a header");
    }
    let act = &user.impersonate;
    if act.name.is_empty() && !(act.uid.is_empty() && act.groups.is_empty() && act.extra.is_empty()) {
        say("as-uid, as-groups and as-user-extra need `as`");
    }
    let impersonated =
        [&act.name, &act.uid].into_iter().chain(&act.groups).chain(act.extra.values().flatten());
    if impersonated.into_iter().any(|value| !is_header(value.as_bytes())) {
        say("as: holds characters that cannot stand in a header");
    }
    if let Some(provider) = &user.auth_provider {
        say(&format!("auth-provider `{provider}` is not supported: use exec"));
    }
    if let Some(plugin) = &user.exec {
        mistakes.extend(exec::check(plugin, names).into_iter().map(|mistake| format!("exec: {mistake}")));
    }
    mistakes
}

/// Whether bytes are a valid header value.
pub(crate) fn is_header(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0x20..=0x7e | 0x80..=0xff | b'\t'))
}
