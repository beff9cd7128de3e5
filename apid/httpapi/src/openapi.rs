//! OpenAPI documents with hashes and caching headers.
//!
//! # Reference
//!
//! The index of OpenAPI v3 lists the URL of each document with a hash. With the current hash, clients may cache
//! the response forever; with another hash, apid redirects to the current URL.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::oneshot;

use crate::negotiate;
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::work_pool;
use discovery::openapi::{CompressedDocument, DocumentForm, OpenApi, OpenApiError, PLAIN_MAX, TEXT_MAX};

/// Beginning of the paths of all OpenAPI documents.
pub(super) const PATH_PREFIX: &str = "/openapi/";
/// Path of the OpenAPI v2 document.
pub(super) const V2_PATH: &str = "/openapi/v2";
/// Path of the index of OpenAPI v3 documents.
pub(super) const V3_PATH: &str = "/openapi/v3";

const JSON: &str = "application/json";

/// Media type of the OpenAPI v2 document in Protobuf.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The same media type as clients request it in `Accept`. The `@` makes it an invalid media type.
const PROTOBUF_REQUESTED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Cache lifetime of a document whose URL contains the hash of the document.
const IMMUTABLE_MAX_AGE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Media types of the OpenAPI v2 document: as requested, and as named in the response.
const V2_MEDIA_TYPES: [(&str, &str); 3] =
    [(JSON, JSON), (PROTOBUF_REQUESTED, PROTOBUF), (PROTOBUF, PROTOBUF)];

/// Builds the documents that a request reads, unless they are built. Requests call this function before they
/// take a seat. A build takes seconds, and the requests that wait for it occupy no seat.
///
/// # Errors
///
/// 500: no thread can be started.
pub(super) async fn prepare(context: &RequestContext) -> Result<(), Status> {
    let path = context.head.uri.path();
    let form = if path == V2_PATH {
        match accept(context, &V2_MEDIA_TYPES) {
            Ok(PROTOBUF) => DocumentForm::V2Protobuf,
            Ok(_) => DocumentForm::V2,
            Err(_) => return Ok(()),
        }
    } else if path.starts_with(V3_PATH) {
        DocumentForm::V3
    } else {
        return Ok(());
    };
    let api = Arc::clone(&context.documents().openapi);
    if api.has(form) {
        return Ok(());
    }
    // The request itself reports a failed build.
    let build_documents = move |api: &OpenApi| match form {
        DocumentForm::V2 => api.v2().map(drop),
        DocumentForm::V2Protobuf => api.v2_protobuf().map(drop),
        DocumentForm::V3 => api.v3_index().map(drop),
    };
    build(context, api, form, build_documents).await.map(drop)
}

/// Returns the OpenAPI v2 document.
pub(super) async fn version_2(context: &RequestContext) -> Result<ApiResponse, Status> {
    let media_type = accept(context, &V2_MEDIA_TYPES)?;
    let document = if media_type == PROTOBUF {
        read(context, DocumentForm::V2Protobuf, OpenApi::v2_protobuf).await?
    } else {
        read(context, DocumentForm::V2, OpenApi::v2).await?
    };
    deliver(context, &document, media_type).await
}

/// Returns the index of OpenAPI v3 documents, as JSON for each `Accept`.
pub(super) async fn version_3_index(context: &RequestContext) -> Result<ApiResponse, Status> {
    let index = read(context, DocumentForm::V3, OpenApi::v3_index).await?;
    deliver(context, &index, JSON).await
}

/// Returns an OpenAPI v3 document; the segments after `/openapi/v3` name it.
pub(super) async fn group_version(context: &RequestContext) -> Result<ApiResponse, Status> {
    let path = context.info.segments.get(2..).unwrap_or_default().join("/");
    let requested = path.clone();
    let Some(document) = read(context, DocumentForm::V3, move |api| api.v3_document(&requested)).await?
    else {
        // As in kube-apiserver, this 404 has no body.
        return Ok(ApiResponse::empty(StatusCode::NOT_FOUND.as_u16()));
    };
    let media_type = accept(context, &[(JSON, JSON)])?;
    match context.query.first("hash") {
        None | Some("") => deliver(context, &document, media_type).await,
        Some(hash) if hash == document.hash() => {
            let expires = context.api_state().clock.now() + IMMUTABLE_MAX_AGE;
            let expires = jiff::fmt::rfc2822::DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&expires)
                .map_err(Status::internal)?;
            Ok(deliver(context, &document, media_type)
                .await?
                .with_header(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"))
                .with_header(header::EXPIRES, HeaderValue::from_str(&expires).map_err(Status::internal)?))
        }
        Some(_) => {
            let location = OpenApi::v3_location(&path, document.hash());
            let location = HeaderValue::from_str(&location).map_err(Status::internal)?;
            Ok(ApiResponse::empty(StatusCode::MOVED_PERMANENTLY.as_u16())
                .with_header(header::LOCATION, location))
        }
    }
}

/// Reads a document. Builds the documents of its form first, if they are not built.
async fn read<T: Send + 'static>(
    context: &RequestContext,
    form: DocumentForm,
    read: impl FnOnce(&OpenApi) -> Result<T, OpenApiError> + Send + 'static,
) -> Result<T, Status> {
    let api = Arc::clone(&context.documents().openapi);
    let result = if api.has(form) { read(&api) } else { build(context, api, form, read).await? };
    result.map_err(|error| {
        if !error.is_too_large() {
            return Status::internal(error);
        }
        if error.begin_report() {
            tracing::warn!("an OpenAPI document exceeds its maximum size; returning 503");
        }
        let text =
            format!("the OpenAPI document exceeds {} MiB; its group has too many kinds", TEXT_MAX >> 20);
        Status::unavailable(text, 0)
    })
}

/// Builds documents on a thread of its own, which has the priority of worker threads. One thread builds at a time;
/// other requests wait without a thread.
async fn build<T: Send + 'static>(
    context: &RequestContext,
    api: Arc<OpenApi>,
    form: DocumentForm,
    read: impl FnOnce(&OpenApi) -> Result<T, OpenApiError> + Send + 'static,
) -> Result<Result<T, OpenApiError>, Status> {
    let lock = Arc::clone(&context.http_state.openapi_builds).lock_owned().await;
    if api.has(form) {
        return Ok(read(&api));
    }
    let (sender, result) = oneshot::channel();
    let build = move || {
        work_pool::lower_priority();
        let result = read(&api);
        drop(lock);
        // The client may have gone; the documents stay for other requests.
        let _ = sender.send(result);
    };
    std::thread::Builder::new().name("openapi".to_owned()).spawn(build).map_err(Status::internal)?;
    result.await.map_err(Status::internal)
}

/// Returns the media type of the response. `offered`: pairs of the requested name and the name in the response.
///
/// The first pair is the default.
fn accept(context: &RequestContext, offered: &[(&str, &'static str)]) -> Result<&'static str, Status> {
    let names: Vec<&str> = offered.iter().map(|(requested, _)| *requested).collect();
    let index = negotiate::preferred_media_type(&context.head.headers, &names);
    let response_name = index.and_then(|i| offered.get(i)).map(|(_, response_name)| *response_name);
    response_name.ok_or_else(|| Status::not_acceptable(&names))
}

/// Returns a document, or 304 if the client has its current version. All responses share one buffer.
async fn deliver(
    context: &RequestContext,
    document: &CompressedDocument,
    media_type: &'static str,
) -> Result<ApiResponse, Status> {
    let headers = &context.head.headers;
    let etag = format!("\"{}\"", document.hash());
    let response = if matches_etag(headers, &etag) {
        ApiResponse::empty(StatusCode::NOT_MODIFIED.as_u16())
    } else if negotiate::accepts_gzip(headers) {
        ApiResponse::shared(200, document.gzip(), media_type)
            .with_header(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))
    } else if !document.has_plain_form() {
        let text = format!(
            "the OpenAPI document exceeds {} MiB and is only sent compressed; send `Accept-Encoding: gzip`",
            PLAIN_MAX >> 20
        );
        return Err(Status::unavailable(text, 0));
    } else {
        let plain = match document.decompressed_now() {
            Some(plain) => plain,
            None => {
                let document = document.clone();
                let decompress = move || document.decompress();
                let plain = tokio::task::spawn_blocking(decompress).await.map_err(Status::internal)?;
                plain.map_err(Status::internal)?
            }
        };
        ApiResponse::shared(200, plain, media_type)
    };
    let etag = HeaderValue::from_str(&etag).map_err(Status::internal)?;
    let vary = HeaderValue::from_static("Accept, Accept-Encoding");
    Ok(response.with_header(header::ETAG, etag).with_header(header::VARY, vary))
}

/// Whether `If-None-Match` contains the ETag of the document.
fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    negotiate::list_elements(headers, header::IF_NONE_MATCH)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == etag)
}
