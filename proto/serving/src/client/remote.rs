//! Client for the server and the user of a client configuration.
//!
//! # Contract
//!
//! While the remote is in use it checks the files that the configuration names (CA bundle, certificate, key,
//! token), at most once per [`FILE_CHECK_INTERVAL`]. Invalid files are logged and the previous content stays
//! in use. A new certificate, key or CA bundle causes new connections; requests in flight end on the old
//! ones. The remote runs a credential plugin as [`crate::exec`] describes. After a 401 the remote drops the
//! credentials of the plugin, gets new ones, and repeats the request once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{CallError, Client, ClientResponse, Identity, Limits, Proxy, Settings, Trust, request};
use crate::client_config::{Impersonate, Secret, Target};
use crate::exec::{ClusterInfo, Plugin, terminal};
use crate::reload::Snapshot;

/// Interval between checks of the files.
pub const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a credential plugin without a terminal.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a credential plugin that may prompt on a terminal.
const INTERACTIVE_PLUGIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Server with the credentials for it. `Debug` shows no secret.
pub struct Remote {
    target: Target,
    base: String,
    impersonate: HeaderMap,
    user_agent: String,
    plugin: Option<Plugin>,
    clock: Arc<dyn Clock>,
    state: Mutex<RemoteState>,
}

/// Last content of the files, and the connections made with it.
struct RemoteState {
    snapshot: Snapshot,
    checked_at: Duration,
    contents: FileContents,
    /// Client certificate of the connections: of the plugin, or of the configuration.
    presented_identity: Option<Identity>,
    client: Client,
}

/// Content of the files of a target.
#[derive(Clone, PartialEq, Eq)]
struct FileContents {
    trust: Trust,
    identity: Option<Identity>,
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("server", &self.base)
            .field("plugin", &self.plugin)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Reads the files; does not connect and does not run the plugin.
    ///
    /// # Errors
    ///
    /// Every invalid file, and every other setting that prevents a connection.
    pub fn new(
        target: Target,
        user_agent: &str,
        names: &Names,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Vec<String>> {
        Remote::with_input(target, user_agent, names, clock, terminal())
    }

    /// Like [`Remote::new`], with another standard input for a credential plugin; None: no terminal.
    ///
    /// # Errors
    ///
    /// See [`Remote::new`].
    pub fn with_input(
        target: Target,
        user_agent: &str,
        names: &Names,
        clock: Arc<dyn Clock>,
        input: Option<std::fs::File>,
    ) -> Result<Self, Vec<String>> {
        let snapshot = Snapshot::new(files(&target));
        let contents = FileContents::read(&target)?;
        let one = |mistake: String| vec![mistake];
        let client = client(&target, user_agent, &contents.trust, contents.identity.as_ref()).map_err(one)?;
        let plugin = match &target.user.exec {
            None => None,
            Some(exec) => {
                let extension = names.group_sub_key("client.authentication", "exec");
                let cluster = ClusterInfo::new(&target.cluster, &extension)
                    .map_err(|(file, e)| vec![format!("{}: {e}", file.display())])?;
                let within = if input.is_some() { INTERACTIVE_PLUGIN_TIMEOUT } else { PLUGIN_TIMEOUT };
                Some(Plugin::new(exec, names, cluster, input, within, Arc::clone(&clock))?)
            }
        };
        let state = RemoteState {
            snapshot,
            checked_at: clock.monotonic(),
            presented_identity: contents.identity.clone(),
            contents,
            client,
        };
        Ok(Remote {
            base: base_url(&target.cluster.server),
            impersonate: impersonation(&target.user.impersonate).map_err(one)?,
            user_agent: user_agent.to_owned(),
            plugin,
            clock,
            state: Mutex::new(state),
            target,
        })
    }

    /// Returns the URL of the server without query and without trailing slash.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends `POST` with a JSON body to the URL of the server.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn post(&self, body: Bytes, limits: Limits) -> Result<ClientResponse, CallError> {
        self.send(Method::POST, "", body, limits).await
    }

    /// Sends a request to a path, with its query, below the URL of the server.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limits: Limits,
    ) -> Result<ClientResponse, CallError> {
        let url = format!("{}{path}", self.base);
        let mut may_try_again = true;
        loop {
            let given = match &self.plugin {
                Some(plugin) => {
                    let given = plugin.credentials().await;
                    Some((plugin, given.map_err(|e| CallError::Credentials(e.to_string()))?))
                }
                None => None,
            };
            let identity = given.as_ref().and_then(|(_, credentials)| credentials.identity.as_ref());
            let (client, mut authorization) = self.current(identity)?;
            if let Some(token) = given.as_ref().and_then(|(_, credentials)| credentials.token.as_ref()) {
                authorization = Some(bearer(token).map_err(CallError::Credentials)?);
            }
            let mut request = request(method.clone(), &url, body.clone())?;
            let headers = request.headers_mut();
            headers.extend(self.impersonate.clone());
            if let Some(authorization) = authorization {
                headers.insert(header::AUTHORIZATION, authorization);
            }
            let answer = client.send(request, limits).await?;
            match given {
                Some((plugin, credentials)) if answer.status == StatusCode::UNAUTHORIZED => {
                    plugin.reject(&credentials).await;
                    if !may_try_again {
                        return Ok(answer);
                    }
                    may_try_again = false;
                }
                _ => return Ok(answer),
            }
        }
    }

    /// Returns the current connections and the `Authorization` header of the configuration.
    fn current(&self, given: Option<&Identity>) -> Result<(Client, Option<HeaderValue>), CallError> {
        let mut state = self.state.lock();
        let mut stale = false;
        let now = self.clock.monotonic();
        if now.saturating_sub(state.checked_at) >= FILE_CHECK_INTERVAL {
            state.checked_at = now;
            if state.snapshot.changed() {
                match FileContents::read(&self.target) {
                    Ok(fresh) => {
                        stale = fresh.trust != state.contents.trust;
                        state.contents = fresh;
                        tracing::info!(server = self.base, "client configuration files reloaded");
                    }
                    Err(mistakes) => tracing::error!(
                        server = self.base,
                        error = mistakes.join("; "),
                        "client configuration files are invalid; using the previous files"
                    ),
                }
            }
        }
        let wanted = given.or(state.contents.identity.as_ref()).cloned();
        if stale || wanted != state.presented_identity {
            state.client = client(&self.target, &self.user_agent, &state.contents.trust, wanted.as_ref())
                .map_err(CallError::Credentials)?;
            state.presented_identity = wanted;
        }
        Ok((state.client.clone(), state.contents.authorization.clone()))
    }
}

fn client(
    target: &Target,
    user_agent: &str,
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<Client, String> {
    let proxy = target.cluster.proxy_url.as_ref().and_then(Secret::text);
    let settings = Settings {
        trust: trust.clone(),
        server_name: target.cluster.tls_server_name.clone(),
        identity: identity.cloned(),
        proxy: proxy.map_or(Proxy::Environment, |url| Proxy::Url(url.to_owned())),
        user_agent: user_agent.to_owned(),
    };
    Client::new(&settings).map_err(|e| e.to_string())
}

/// URL prefix of all paths.
fn base_url(server: &str) -> String {
    let uri: Uri = server.parse().unwrap_or_default();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = uri.path().trim_end_matches('/');
    format!("{}://{authority}{path}", uri.scheme_str().unwrap_or("https"))
}

/// Files to check for changes.
fn files(target: &Target) -> Vec<PathBuf> {
    let user = &target.user;
    [&target.cluster.certificate_authority, &user.client_certificate, &user.client_key, &user.token_file]
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

impl FileContents {
    fn read(target: &Target) -> Result<Self, Vec<String>> {
        let mut mistakes = Vec::new();
        let (cluster, user) = (&target.cluster, &target.user);
        let trust = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            _ if cluster.insecure_skip_tls_verify => Trust::Insecure,
            (Some(pem), _) => {
                record_mistake(Trust::from_pem(pem), "certificate-authority-data", &mut mistakes)
                    .unwrap_or_default()
            }
            (None, Some(file)) => read_file(file, &mut mistakes)
                .and_then(|pem| {
                    record_mistake(Trust::from_pem(&pem), &file.display().to_string(), &mut mistakes)
                })
                .unwrap_or_default(),
            (None, None) => Trust::System,
        };
        let mut pem = |data: &Option<Secret>, file: &Option<PathBuf>| match (data, file) {
            (Some(data), _) => Some(data.bytes().to_vec()),
            (None, Some(file)) => read_file(file, &mut mistakes),
            (None, None) => None,
        };
        let certificate = pem(&user.client_certificate_data, &user.client_certificate);
        let key = pem(&user.client_key_data, &user.client_key);
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let names = [&user.client_certificate, &user.client_key].into_iter().flatten();
                let place = names.map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
                let place = if place.is_empty() { "client-certificate-data".to_owned() } else { place };
                record_mistake(Identity::from_pem(&certificate, &key), &place, &mut mistakes)
            }
            _ => None,
        };
        let authorization = match authorization(target) {
            Ok(header) => header,
            Err(mistake) => {
                mistakes.push(mistake);
                None
            }
        };
        if mistakes.is_empty() { Ok(FileContents { trust, identity, authorization }) } else { Err(mistakes) }
    }
}

fn read_file(file: &PathBuf, mistakes: &mut Vec<String>) -> Option<Vec<u8>> {
    record_mistake(std::fs::read(file), &file.display().to_string(), mistakes)
}

fn record_mistake<T, E: std::fmt::Display>(
    read: Result<T, E>,
    place: &str,
    mistakes: &mut Vec<String>,
) -> Option<T> {
    read.map_err(|e| mistakes.push(format!("{place}: {e}"))).ok()
}

/// `Authorization` header of a configured token or password.
fn authorization(target: &Target) -> Result<Option<HeaderValue>, String> {
    let user = &target.user;
    if let Some(file) = &user.token_file {
        match (read_token(file), &user.token) {
            (Ok(token), _) => return bearer(&token).map(Some),
            (Err(problem), None) => return Err(format!("{}: {problem}", file.display())),
            // The configured token is the fallback while the token file is missing.
            (Err(_), Some(_)) => {}
        }
    }
    if let Some(token) = &user.token {
        return bearer(token).map(Some);
    }
    if user.username.is_none() && user.password.is_none() {
        return Ok(None);
    }
    let mut pair = user.username.clone().unwrap_or_default().into_bytes();
    pair.push(b':');
    pair.extend_from_slice(user.password.as_ref().map(Secret::bytes).unwrap_or_default());
    secret_header(&format!("Basic {}", STANDARD.encode(pair))).map(Some)
}

fn read_token(file: &PathBuf) -> Result<Secret, String> {
    let content = std::fs::read(file).map_err(|e| e.to_string())?;
    let token = content.trim_ascii();
    if token.is_empty() { Err("holds no token".to_owned()) } else { Ok(Secret::new(token)) }
}

fn bearer(token: &Secret) -> Result<HeaderValue, String> {
    secret_header(&format!("Bearer {}", token.text().unwrap_or("\n")))
}

fn secret_header(value: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| "the credentials hold characters that cannot stand in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Header name characters (RFC 9110, token) except the percent sign.
const IN_NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// Impersonation headers.
fn impersonation(who: &Impersonate) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut add = |name: String, value: &str| {
        let wrong = || format!("as: `{name}` cannot be sent");
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value);
        Ok::<(), String>(())
    };
    if who.name.is_empty() {
        return Ok(headers);
    }
    add("impersonate-user".to_owned(), &who.name)?;
    if !who.uid.is_empty() {
        add("impersonate-uid".to_owned(), &who.uid)?;
    }
    for group in &who.groups {
        add("impersonate-group".to_owned(), group)?;
    }
    for (key, values) in &who.extra {
        for value in values {
            add(format!("impersonate-extra-{}", utf8_percent_encode(key, IN_NAME)), value)?;
        }
    }
    Ok(headers)
}
