//! Client for the server and the user of a client configuration.
//!
//! # Contract
//!
//! While the remote is in use it checks the files that the configuration names (CA bundle, certificate, key,
//! token), at most once per [`FILE_CHECK_INTERVAL`]. Invalid files are logged and the previous content stays
//! in use. A new certificate, key or CA bundle causes new connections; requests in flight end on the old
//! connections. The remote runs a credential plugin as [`crate::exec`] describes. After a 401 the remote drops the
//! credentials of the plugin, gets new credentials, and repeats the request once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{CallError, Client, ClientResponse, Limits, Proxy, Settings, SettingsError, request};
use crate::client_config::{Impersonate, Secret, Target};
use crate::exec::{ClusterInfo, Credentials, Plugin, terminal};
use crate::reload::Snapshot;
use crate::trust::{Identity, Trust};

/// Minimum interval between two checks of the files. Only a request causes a check.
pub const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a credential plugin without a terminal.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a credential plugin that may prompt on a terminal.
const INTERACTIVE_PLUGIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Client of one server with the credentials of one user. `Debug` shows no secret.
pub struct Remote {
    target: Target,
    base: String,
    impersonate: HeaderMap,
    user_agent: String,
    plugin: Option<Plugin>,
    clock: Arc<dyn Clock>,
    state: Mutex<RemoteState>,
}

/// Last valid content of the files, and the connections made with it.
struct RemoteState {
    snapshot: Snapshot,
    checked_at: Duration,
    contents: FileContents,
    /// Client certificate of the connections, from the plugin or from the configuration.
    presented_identity: Option<Identity>,
    client: Client,
}

/// Trust and credentials of a target, from its files and from data in the configuration.
#[derive(Clone, PartialEq, Eq)]
struct FileContents {
    trust: Trust,
    identity: Option<Identity>,
    authorization: Option<HeaderValue>,
}

/// A request with its connections, and the plugin that returned its credentials.
struct Call<'a> {
    client: Client,
    request: Request<Bytes>,
    plugin: Option<(&'a Plugin, Arc<Credentials>)>,
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

    /// Creates a remote like [`Remote::new`]. `input` is a terminal for the credential plugin, if any.
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
        let snapshot = Snapshot::new(credential_files(&target));
        let contents = FileContents::read(&target)?;
        let client = build_client(&target, user_agent, &contents.trust, contents.identity.as_ref())
            .map_err(|error| vec![error.to_string()])?;
        let plugin = match &target.user.exec {
            None => None,
            Some(exec) => {
                let extension = names.group_sub_key("client.authentication", "exec");
                let cluster = ClusterInfo::new(&target.cluster, &extension)
                    .map_err(|(file, e)| vec![format!("{}: {e}", file.display())])?;
                let timeout = if input.is_some() { INTERACTIVE_PLUGIN_TIMEOUT } else { PLUGIN_TIMEOUT };
                Some(Plugin::new(exec, names, cluster, input, timeout, Arc::clone(&clock))?)
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
            impersonate: impersonation_headers(&target.user.impersonate)
                .map_err(|error| vec![error.to_string()])?,
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
        let mut can_retry = true;
        loop {
            let call = self.prepare(method.clone(), path, body.clone()).await?;
            let response = call.client.send(call.request, limits).await?;
            match call.plugin {
                Some((plugin, credentials)) if response.status == StatusCode::UNAUTHORIZED => {
                    plugin.reject(&credentials).await;
                    if !can_retry {
                        return Ok(response);
                    }
                    can_retry = false;
                }
                _ => return Ok(response),
            }
        }
    }

    /// Sends a request without a body to a path, and returns the response before its body has arrived, for bodies of
    /// any size. `accept` is the header `Accept`.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; `within` limits the time to the head of the response.
    pub async fn send_for_stream(
        &self,
        method: Method,
        path: &str,
        accept: HeaderValue,
        within: Duration,
    ) -> Result<Response<Incoming>, CallError> {
        let mut call = self.prepare(method, path, Bytes::new()).await?;
        call.request.headers_mut().insert(header::ACCEPT, accept);
        call.client.send_for_stream(call.request, within).await
    }

    /// Builds a request with the current credentials.
    async fn prepare(&self, method: Method, path: &str, body: Bytes) -> Result<Call<'_>, CallError> {
        let plugin = match &self.plugin {
            Some(plugin) => {
                let credentials = plugin.credentials().await;
                Some((plugin, credentials.map_err(|e| CallError::Credentials(e.to_string()))?))
            }
            None => None,
        };
        let credentials = plugin.as_ref().map(|(_, credentials)| credentials);
        let (client, mut authorization) =
            self.current_connections(credentials.and_then(|credentials| credentials.identity.as_ref()))?;
        if let Some(token) = credentials.and_then(|credentials| credentials.token.as_ref()) {
            authorization = Some(bearer_header(token).map_err(|e| CallError::Credentials(e.to_string()))?);
        }
        let mut request = request(method, &format!("{}{path}", self.base), body)?;
        let headers = request.headers_mut();
        headers.extend(self.impersonate.clone());
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        Ok(Call { client, request, plugin })
    }

    /// Returns the current connections and the `Authorization` header of the configuration.
    ///
    /// The client certificate of a plugin replaces that of the configuration.
    fn current_connections(
        &self,
        plugin_identity: Option<&Identity>,
    ) -> Result<(Client, Option<HeaderValue>), CallError> {
        let mut state = self.state.lock();
        let mut is_stale = false;
        let now = self.clock.monotonic();
        if now.saturating_sub(state.checked_at) >= FILE_CHECK_INTERVAL {
            state.checked_at = now;
            if state.snapshot.changed() {
                match FileContents::read(&self.target) {
                    Ok(fresh) => {
                        is_stale = fresh.trust != state.contents.trust;
                        state.contents = fresh;
                        tracing::info!(server = self.base, "client configuration files reloaded");
                    }
                    Err(errors) => tracing::error!(
                        server = self.base,
                        error = errors.join("; "),
                        "client configuration files are invalid; using the previous files"
                    ),
                }
            }
        }
        let identity = plugin_identity.or(state.contents.identity.as_ref()).cloned();
        if is_stale || identity != state.presented_identity {
            state.client =
                build_client(&self.target, &self.user_agent, &state.contents.trust, identity.as_ref())
                    .map_err(|error| CallError::Credentials(error.to_string()))?;
            state.presented_identity = identity;
        }
        Ok((state.client.clone(), state.contents.authorization.clone()))
    }
}

fn build_client(
    target: &Target,
    user_agent: &str,
    trust: &Trust,
    identity: Option<&Identity>,
) -> Result<Client, SettingsError> {
    let proxy = target.cluster.proxy_url.as_ref().and_then(Secret::text);
    let settings = Settings {
        trust: trust.clone(),
        server_name: target.cluster.tls_server_name.clone(),
        identity: identity.cloned(),
        proxy: proxy.map_or(Proxy::Environment, |url| Proxy::Url(url.to_owned())),
        user_agent: user_agent.to_owned(),
        accepts_missing_close: true,
    };
    Client::new(&settings)
}

/// Returns the URL to which paths are appended: scheme, authority and path without trailing slashes.
fn base_url(server: &str) -> String {
    let uri: Uri = server.parse().unwrap_or_default();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = uri.path().trim_end_matches('/');
    format!("{}://{authority}{path}", uri.scheme_str().unwrap_or("https"))
}

/// Returns the files of a target that the remote reads again after a change.
fn credential_files(target: &Target) -> Vec<PathBuf> {
    let user = &target.user;
    [&target.cluster.certificate_authority, &user.client_certificate, &user.client_key, &user.token_file]
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

impl FileContents {
    fn read(target: &Target) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let (cluster, user) = (&target.cluster, &target.user);
        let trust = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            _ if cluster.insecure_skip_tls_verify => Trust::Insecure,
            (Some(pem), _) => record_error(Trust::from_pem(pem), "certificate-authority-data", &mut errors)
                .unwrap_or_default(),
            (None, Some(file)) => read_file(file, &mut errors)
                .and_then(|pem| record_error(Trust::from_pem(&pem), &file.display().to_string(), &mut errors))
                .unwrap_or_default(),
            (None, None) => Trust::System,
        };
        let mut pem = |data: &Option<Secret>, file: &Option<PathBuf>| match (data, file) {
            (Some(data), _) => Some(data.bytes().to_vec()),
            (None, Some(file)) => read_file(file, &mut errors),
            (None, None) => None,
        };
        let certificate = pem(&user.client_certificate_data, &user.client_certificate);
        let key = pem(&user.client_key_data, &user.client_key);
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let names = [&user.client_certificate, &user.client_key].into_iter().flatten();
                let source = names.map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
                let source = if source.is_empty() { "client-certificate-data".to_owned() } else { source };
                record_error(Identity::from_pem(&certificate, &key), &source, &mut errors)
            }
            _ => None,
        };
        let authorization = read_authorization(target).unwrap_or_else(|error| {
            errors.push(error.to_string());
            None
        });
        if errors.is_empty() { Ok(FileContents { trust, identity, authorization }) } else { Err(errors) }
    }
}

fn read_file(file: &PathBuf, errors: &mut Vec<String>) -> Option<Vec<u8>> {
    record_error(std::fs::read(file), &file.display().to_string(), errors)
}

fn record_error<T, E: std::fmt::Display>(
    read: Result<T, E>,
    source: &str,
    errors: &mut Vec<String>,
) -> Option<T> {
    read.map_err(|e| errors.push(format!("{source}: {e}"))).ok()
}

/// Reason why the headers for a configured user cannot be built.
#[derive(Debug, thiserror::Error)]
enum HeaderError {
    #[error("{file}: {problem}", file = file.display())]
    TokenFile { file: PathBuf, problem: std::io::Error },
    #[error("the credentials contain characters that a header cannot contain")]
    Credentials,
    #[error("as: `{0}` cannot be sent")]
    Impersonation(String),
}

/// Returns the `Authorization` header of the configured token or password; None without both.
fn read_authorization(target: &Target) -> Result<Option<HeaderValue>, HeaderError> {
    let user = &target.user;
    if let Some(file) = &user.token_file {
        match (read_token(file), &user.token) {
            (Ok(token), _) => return bearer_header(&token).map(Some),
            (Err(problem), None) => return Err(HeaderError::TokenFile { file: file.clone(), problem }),
            // The configured token is the fallback while the token file is unreadable or empty.
            (Err(_), Some(_)) => {}
        }
    }
    if let Some(token) = &user.token {
        return bearer_header(token).map(Some);
    }
    if user.username.is_none() && user.password.is_none() {
        return Ok(None);
    }
    let mut pair = user.username.clone().unwrap_or_default().into_bytes();
    pair.push(b':');
    pair.extend_from_slice(user.password.as_ref().map(Secret::bytes).unwrap_or_default());
    secret_header(&format!("Basic {}", STANDARD.encode(pair))).map(Some)
}

fn read_token(file: &PathBuf) -> std::io::Result<Secret> {
    let content = std::fs::read(file)?;
    let token = content.trim_ascii();
    if token.is_empty() { Err(std::io::Error::other("contains no token")) } else { Ok(Secret::new(token)) }
}

fn bearer_header(token: &Secret) -> Result<HeaderValue, HeaderError> {
    secret_header(&format!("Bearer {}", token.text().unwrap_or("\n")))
}

fn secret_header(value: &str) -> Result<HeaderValue, HeaderError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HeaderError::Credentials)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The characters that are percent-encoded in a header name: `%`, and all that are not token characters of
/// RFC 9110.
const PERCENT_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
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

/// Builds the impersonation headers; none without a name to impersonate.
fn impersonation_headers(user: &Impersonate) -> Result<HeaderMap, HeaderError> {
    let mut headers = HeaderMap::new();
    let mut add = |name: String, value: &str| {
        let error = || HeaderError::Impersonation(name.clone());
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| error())?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).map_err(|_| error())?, value);
        Ok::<(), HeaderError>(())
    };
    if user.name.is_empty() {
        return Ok(headers);
    }
    add("impersonate-user".to_owned(), &user.name)?;
    if !user.uid.is_empty() {
        add("impersonate-uid".to_owned(), &user.uid)?;
    }
    for group in &user.groups {
        add("impersonate-group".to_owned(), group)?;
    }
    for (key, values) in &user.extra {
        for value in values {
            add(format!("impersonate-extra-{}", utf8_percent_encode(key, PERCENT_ENCODED)), value)?;
        }
    }
    Ok(headers)
}
