//! The documents of a server behind an APIService: discovery, OpenAPI 2, and the index of OpenAPI 3.
//!
//! # Reference
//!
//! Without aggregated discovery, apid reads the resource list of the version. Without OpenAPI 3, apid converts the
//! OpenAPI 2 document of the server. A server without either has no OpenAPI document in those of apid.

use std::sync::Arc;

use apimachinery::codec::{Limits, json};
use apimachinery::names::Names;
use bytes::Bytes;
use discovery::openapi::RemoteSpec;
use discovery::{RemoteResources, resources_in_aggregated_list, resources_of_list};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::RemoteApi;
use crate::backend::{Fetched, MAX_DOCUMENT_BYTES, Reader, etag};

/// Versions of aggregated discovery, the preferred one first.
const AGGREGATED_VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// Limits of a document: values and memory of its tree.
const LIMITS: Limits =
    Limits { bytes: MAX_DOCUMENT_BYTES, depth: 100, elements: 2_000_000, tree_bytes: 256 << 20 };

/// The documents of the server of one APIService.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RemoteDocuments {
    pub(crate) resources: RemoteResources,
    /// The ETag of the aggregated discovery from which `resources` come.
    discovery_etag: Option<String>,
    pub(crate) spec: Option<Arc<RemoteSpec>>,
    /// The ETag of the OpenAPI 2 document from which `spec` comes.
    spec_etag: Option<String>,
    /// The URL of the OpenAPI 3 document of the version.
    pub(crate) v3_url: Option<String>,
    /// Whether the OpenAPI 3 document is converted from `spec`, because the server has no OpenAPI 3.
    pub(crate) is_converted: bool,
}

impl RemoteDocuments {
    /// Forgets the resources. The OpenAPI documents stay: an outage of the server does not change them.
    pub(crate) fn mark_stale(&mut self) {
        self.resources = RemoteResources::default();
        self.discovery_etag = None;
    }
}

/// Decodes a document within [`LIMITS`] and reads its content, on a thread for blocking tasks: a large document takes
/// longer than other tasks of an I/O thread may wait.
pub(crate) async fn decode<T: Send + 'static>(
    text: Bytes,
    read: impl FnOnce(&Value) -> T + Send + 'static,
) -> Result<T, String> {
    let decoded = move || json::decode(&text, LIMITS).map(|decoded| read(&decoded.value));
    let decoded = tokio::task::spawn_blocking(decoded).await.map_err(|error| error.to_string())?;
    decoded.map_err(|error| error.to_string())
}

/// Fetches the documents of a server. A document that cannot be fetched stays as it was; a version without a
/// discovery document becomes stale.
pub(crate) async fn fetch(remote: &RemoteApi, names: &Names, before: RemoteDocuments) -> RemoteDocuments {
    let mut documents = before;
    let report = |document: &str, reason: &str| {
        tracing::debug!(name = remote.name, document, reason, "fetching a document of an APIService failed");
    };
    match fetch_discovery(remote, names, &documents).await {
        Ok(Some((resources, etag))) => {
            documents.resources = RemoteResources { resources, is_current: true };
            documents.discovery_etag = etag;
        }
        Ok(None) => documents.resources.is_current = true,
        Err(reason) => {
            report("discovery", &reason);
            documents.mark_stale();
        }
    }
    match fetch_spec(remote, documents.spec_etag.as_deref()).await {
        Ok(Some((spec, etag))) => (documents.spec, documents.spec_etag) = (spec.map(Arc::new), etag),
        Ok(None) => {}
        Err(reason) => report("OpenAPI 2", &reason),
    }
    match fetch_v3_url(remote).await {
        Ok(V3::Url(url)) => (documents.v3_url, documents.is_converted) = (Some(url), false),
        Ok(V3::NoDocument) => (documents.v3_url, documents.is_converted) = (None, false),
        Ok(V3::NotServed) => (documents.v3_url, documents.is_converted) = (None, true),
        Err(reason) => report("OpenAPI 3", &reason),
    }
    documents
}

/// Fetches the resources of the version with their ETag; None if they have not changed.
async fn fetch_discovery(
    remote: &RemoteApi,
    names: &Names,
    known: &RemoteDocuments,
) -> Result<Option<(Vec<Value>, Option<String>)>, String> {
    let RemoteApi { group, version, .. } = remote;
    let known_etag = known.discovery_etag.as_deref().filter(|_| known.resources.is_current);
    let fetched =
        remote.backend.fetch("/apis", Reader::Discovery, &accepted_discovery(names), known_etag).await?;
    match fetched {
        Fetched::NotModified => return Ok(None),
        Fetched::Document(headers, text) => {
            let media_type =
                headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let is_aggregated = media_type.contains("as=APIGroupDiscoveryList");
            if is_aggregated {
                let (group, version) = (group.clone(), version.clone());
                let read = move |list: &Value| resources_in_aggregated_list(list, &group, &version);
                if let Ok(Some(resources)) = decode(text, read).await {
                    return Ok(Some((resources, etag(&headers))));
                }
            }
        }
        Fetched::Rejected(_) => {}
    }
    let path = format!("/{}", remote.root());
    match remote.backend.fetch(&path, Reader::Discovery, "application/json", None).await? {
        Fetched::Document(_, text) => {
            let resources =
                decode(text, resources_of_list).await?.ok_or("the response is no APIResourceList")?;
            Ok(Some((resources, None)))
        }
        Fetched::Rejected(status) => Err(format!("{path} has status {}", status.as_u16())),
        Fetched::NotModified => Err(format!("{path} has status 304 without a condition")),
    }
}

fn accepted_discovery(names: &Names) -> String {
    let group = names.group("apidiscovery");
    let types = AGGREGATED_VERSIONS
        .map(|version| format!("application/json;g={group};v={version};as=APIGroupDiscoveryList"));
    types.join(",")
}

/// Fetches the part of the OpenAPI 2 document for the group, with its ETag; None if it has not changed. The part is
/// None if the server has no such document.
async fn fetch_spec(
    remote: &RemoteApi,
    known_etag: Option<&str>,
) -> Result<Option<(Option<RemoteSpec>, Option<String>)>, String> {
    let fetched =
        remote.backend.fetch("/openapi/v2", Reader::OpenApi, "application/json", known_etag).await?;
    match fetched {
        Fetched::NotModified => Ok(None),
        Fetched::Rejected(status) if status.is_client_error() => Ok(Some((None, None))),
        Fetched::Rejected(status) => Err(format!("/openapi/v2 has status {}", status.as_u16())),
        Fetched::Document(headers, text) => {
            let group = remote.group.clone();
            let spec = decode(text, move |document| RemoteSpec::read(document, &group)).await?;
            Ok(Some((spec, etag(&headers))))
        }
    }
}

/// The OpenAPI 3 document of a version at its server.
enum V3 {
    /// The URL of the document of the version.
    Url(String),
    /// OpenAPI 3 without a document of the version.
    NoDocument,
    /// No OpenAPI 3.
    NotServed,
}

/// Fetches the URL of the OpenAPI 3 document of the version.
async fn fetch_v3_url(remote: &RemoteApi) -> Result<V3, String> {
    match remote.backend.fetch("/openapi/v3", Reader::OpenApi, "application/json", None).await? {
        Fetched::Document(_, text) => {
            let path = remote.root();
            let own = format!("/openapi/v3/{path}");
            let read = move |index: &Value| {
                let url = index.get("paths")?.get(&path)?.get("serverRelativeURL")?.as_str()?;
                Some(url.to_owned())
            };
            let url = decode(text, read).await?;
            // A URL of another document would reach a handler of apid.
            let checked = |url: String| if url.split('?').next() == Some(&own) { url } else { own };
            Ok(url.map_or(V3::NoDocument, |url| V3::Url(checked(url))))
        }
        Fetched::Rejected(StatusCode::NOT_FOUND) => Ok(V3::NotServed),
        Fetched::Rejected(status) if status.is_client_error() => Ok(V3::NoDocument),
        Fetched::Rejected(status) => Err(format!("/openapi/v3 has status {}", status.as_u16())),
        Fetched::NotModified => Err("/openapi/v3 has status 304 without a condition".to_owned()),
    }
}
