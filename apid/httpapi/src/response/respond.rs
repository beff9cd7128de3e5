//! HTTP responses: the only place that turns results and Statuses into responses.
//!
//! # Contract
//!
//! [`ApiResponse`] is a status code, a document and headers. [`ApiResponse::into_response`] encodes it with the
//! negotiated options: JSON or YAML, indented, compressed; with warnings, `Retry-After` and `Audit-Id`.
//!
//! [`ApiResponse::prepare`] does the work that precedes the response head. It may run on another thread if it is costly.

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;
use serving::body::Body;

use crate::negotiate::{self, Format};
use crate::query::Query;
use crate::response::chunked_document::{self, BufferedChunks, ChunkSource, Gzip};
use crate::response::list_encoding::Encoding;
use crate::response::protobuf;
use crate::response::representation::EncodedObject;

/// A response before it is encoded.
pub(crate) struct ApiResponse {
    code: u16,
    content: Content,
    warnings: Vec<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The body, if it is a Status, for the audit log.
    pub(crate) status: Option<Box<Status>>,
}

enum Content {
    /// A JSON document and the format to encode it in, or a message that is already Protobuf.
    Document(Bytes, Format),
    /// A document that is encoded chunk by chunk while it is sent.
    Chunks(BufferedChunks, Format),
    /// Text, with its media type.
    Text(Bytes, &'static str),
    /// A document in a buffer that many responses share, with its media type.
    Shared(Bytes, &'static str),
    /// A stream of events, with its media type.
    Stream(Body, String),
    /// Bytes of unknown size that are no API document, with their media type.
    Octets(Body, String),
    /// The response of another server, with its headers.
    Forwarded(Body, HeaderMap),
    /// Switching protocols: the connection stops speaking HTTP.
    Upgraded,
    Empty,
}

impl ApiResponse {
    /// A document: JSON text, encoded later as negotiated, or an encoded Protobuf message.
    pub(crate) fn document(code: u16, encoded: impl Into<Bytes>, format: Format) -> Self {
        ApiResponse::new(code, Content::Document(encoded.into(), format))
    }

    /// Bytes of unknown size that are no API document.
    pub(crate) fn octets(body: Body) -> Self {
        ApiResponse::new(200, Content::Octets(body, "application/octet-stream".to_owned()))
    }

    /// A list with code 200, sent in chunks if it is large.
    pub(crate) fn list(list: Box<dyn ChunkSource>, format: Format) -> Self {
        ApiResponse::new(200, Content::Chunks(BufferedChunks::new(list), format))
    }

    /// An object that is encoded for the response.
    pub(crate) fn object(code: u16, encoded: EncodedObject, format: Format) -> Self {
        match encoded {
            EncodedObject::Whole(encoded) => ApiResponse::document(code, encoded, format),
            EncodedObject::Chunks(chunks) => {
                ApiResponse::new(code, Content::Chunks(BufferedChunks::new(chunks), format))
            }
        }
    }

    /// An object that has its own `kind` and `apiVersion`.
    pub(crate) fn value(code: u16, value: &Value, format: Format) -> Self {
        match format {
            Format::Json | Format::Yaml | Format::Cbor => {
                ApiResponse::document(code, Encoding::Compact.document(value), format)
            }
            Format::Protobuf(_) => match protobuf::document(value) {
                Some(encoded) => ApiResponse::document(code, encoded, format),
                None => ApiResponse::document(code, Encoding::Compact.document(value), Format::Json),
            },
        }
    }

    /// Plain text.
    pub(crate) fn text(code: u16, text: impl Into<Bytes>) -> Self {
        ApiResponse::new(code, Content::Text(text.into(), "text/plain; charset=utf-8"))
    }

    /// 404 in plain text, for an unknown non-resource path.
    pub(crate) fn not_found() -> Self {
        ApiResponse::text(404, "404 page not found\n")
    }

    /// Text with a media type, such as metrics.
    pub(crate) fn text_as(code: u16, text: impl Into<Bytes>, media_type: &'static str) -> Self {
        ApiResponse::new(code, Content::Text(text.into(), media_type))
    }

    /// A document in a buffer that many responses share.
    pub(crate) fn shared(code: u16, document: Bytes, media_type: &'static str) -> Self {
        ApiResponse::new(code, Content::Shared(document, media_type))
    }

    /// A stream of events with code 200.
    pub(crate) fn stream(body: Body, format: Format) -> Self {
        ApiResponse::new(200, Content::Stream(body, format.stream_media_type()))
    }

    /// The response of another server: its code, its headers beside those of this server, its body.
    pub(crate) fn forwarded(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        ApiResponse::new(head.status.as_u16(), Content::Forwarded(body, head.headers))
    }

    /// A stream of plain text with code 200, such as the log of a container.
    pub(crate) fn plain_stream(body: Body) -> Self {
        ApiResponse::new(200, Content::Stream(body, "text/plain".to_owned()))
    }

    /// 101 Switching Protocols with these headers.
    pub(crate) fn switching_protocols(headers: Vec<(HeaderName, HeaderValue)>) -> Self {
        ApiResponse { headers, ..ApiResponse::new(101, Content::Upgraded) }
    }

    /// A status code without a body.
    pub(crate) fn empty(code: u16) -> Self {
        ApiResponse::new(code, Content::Empty)
    }

    /// A Status in the negotiated error encoding.
    pub(crate) fn status(status: Status, format: Format) -> Self {
        let mut response = ApiResponse::value(status.code, &status.to_value(), format);
        let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        if retry > 0 {
            response.headers.push((header::RETRY_AFTER, HeaderValue::from(retry)));
        }
        response.status = Some(Box::new(status));
        response
    }

    fn new(code: u16, content: Content) -> Self {
        ApiResponse { code, content, warnings: Vec::new(), headers: Vec::new(), status: None }
    }

    /// Adds warnings for the client.
    #[must_use]
    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.add_header(name, value);
        self
    }

    /// Adds a header.
    pub(crate) fn add_header(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.push((name, value));
    }

    /// The HTTP status code.
    pub(crate) fn code(&self) -> u16 {
        self.code
    }

    /// Whether the response body continues after the head as a stream or another protocol.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.content, Content::Stream(..) | Content::Forwarded(..) | Content::Upgraded)
    }

    /// Does the work that precedes the response head. Later calls have no effect.
    ///
    /// If encoding fails, the response becomes the Status of the error.
    pub(crate) fn prepare(&mut self, response_options: ResponseOptions) {
        let (result, format) = match &mut self.content {
            Content::Chunks(buffered, format) => {
                (buffered.prepare_up_to(response_options.buffer_limit()), *format)
            }
            Content::Document(json, format) if is_converted(json, *format, response_options) => {
                let encoded = encode(std::mem::take(json), *format, response_options.pretty);
                let encoded = BufferedChunks::new(chunked_document::copying_source(encoded));
                self.content = Content::Chunks(encoded, *format);
                return self.prepare(response_options);
            }
            _ => return,
        };
        if let Err(status) = result {
            *self = ApiResponse::status(status, format);
        }
    }

    /// Whether [`ApiResponse::prepare`] may take more than about 0.2 ms of CPU.
    pub(crate) fn is_costly(&self, response_options: ResponseOptions) -> bool {
        match &self.content {
            Content::Chunks(buffered, _) => buffered.is_costly(),
            Content::Document(json, format) => is_converted(json, *format, response_options),
            _ => false,
        }
    }

    /// Builds the response, and prepares it first if that has not happened.
    pub(crate) fn into_response(mut self, delivery: &Delivery<'_>) -> Response<Body> {
        self.prepare(delivery.response_options);
        let ResponseOptions { pretty, gzip } = delivery.response_options;
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = code;
        let headers = response.headers_mut();
        headers.insert(AUDIT_ID, delivery.audit_id.clone());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        for value in warning_headers(&self.warnings) {
            headers.append(header::WARNING, value);
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        let (encoded_body, media_type) = match self.content {
            Content::Empty | Content::Upgraded => return response,
            Content::Chunks(buffered, format) => match buffered.known_size() {
                Some(size) if size <= MAX_SINGLE_BUFFER => {
                    (EncodedBody::Small(buffered.into_buffer()), format.media_type())
                }
                size => (EncodedBody::Large(Box::new(buffered), size), format.media_type()),
            },
            Content::Stream(body, media_type) | Content::Octets(body, media_type) => {
                let media_type = HeaderValue::from_str(&media_type);
                headers.extend(media_type.ok().map(|media_type| (header::CONTENT_TYPE, media_type)));
                if !delivery.is_head {
                    *response.body_mut() = body;
                }
                return response;
            }
            Content::Forwarded(body, forwarded) => {
                for (name, value) in &forwarded {
                    if name != AUDIT_ID {
                        headers.append(name, value.clone());
                    }
                }
                if !delivery.is_head {
                    *response.body_mut() = body;
                }
                return response;
            }
            Content::Document(json, format) => {
                (EncodedBody::new(encode(json, format, pretty), false), format.media_type())
            }
            Content::Text(text, media_type) => (EncodedBody::new(text, false), media_type),
            Content::Shared(document, media_type) => (EncodedBody::new(document, true), media_type),
        };
        // `with_header` may have set a more specific type.
        if !headers.contains_key(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        match encoded_body {
            EncodedBody::Small(bytes) => {
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
                if !delivery.is_head {
                    *response.body_mut() = Body::from(bytes);
                }
            }
            EncodedBody::Large(chunks, size) => {
                let has_encoding = headers.contains_key(header::CONTENT_ENCODING);
                let gzip = gzip && !has_encoding && size.is_none_or(|size| size > MIN_COMPRESSED_BYTES);
                if gzip {
                    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
                    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                } else if let Some(size) = size {
                    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
                }
                if !delivery.is_head {
                    let chunks = if gzip { Box::new(Gzip::new(chunks)) } else { chunks };
                    *response.body_mut() = (delivery.send)(chunks);
                }
            }
        }
        response
    }
}

/// An encoded document, ready to send.
enum EncodedBody {
    /// A document in one buffer.
    Small(Bytes),
    /// A document in chunks, with its size if it is known.
    Large(Box<dyn ChunkSource>, Option<usize>),
}

impl EncodedBody {
    /// Wraps a document in one buffer. The chunks of a large document are copies unless the buffer is shared.
    fn new(document: Bytes, is_shared: bool) -> Self {
        match document.len() {
            size if size <= MAX_SINGLE_BUFFER => EncodedBody::Small(document),
            size if is_shared => EncodedBody::Large(chunked_document::shared_source(document), Some(size)),
            size => EncodedBody::Large(chunked_document::copying_source(document), Some(size)),
        }
    }
}

/// The header of the audit ID.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Maximum total size of the warnings of a response, in bytes: proxies reject larger response heads.
const MAX_WARNING_BYTES: usize = 4096;

/// Maximum number of warnings of a response: common clients reject more than 100 header lines.
const MAX_WARNINGS: usize = 20;

/// Bytes reserved for the warning that counts the suppressed warnings.
const SUPPRESSED_COUNT_BYTES: usize = 64;

/// Size in bytes above which a document is compressed (requirements D-GZIP-9).
const MIN_COMPRESSED_BYTES: usize = 128 * 1024;

/// Maximum size of a document that is sent in one buffer, in bytes.
const MAX_SINGLE_BUFFER: usize = 16 * 1024;

/// Response options from the headers and the query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseOptions {
    /// Whether to indent JSON.
    pub(crate) pretty: bool,
    /// Whether to compress a large response.
    pub(crate) gzip: bool,
}

impl ResponseOptions {
    /// Reads the options of a request. `compression`: whether the server compresses responses.
    pub(crate) fn new(headers: &HeaderMap, query: &Query, compression: bool) -> Self {
        ResponseOptions {
            pretty: is_pretty(headers, query),
            gzip: compression && negotiate::accepts_gzip(headers),
        }
    }

    /// Returns how many bytes of a document are encoded before the response head is made.
    ///
    /// A document with more bytes is compressed, or is sent in chunks.
    fn buffer_limit(self) -> usize {
        if self.gzip { MIN_COMPRESSED_BYTES } else { MAX_SINGLE_BUFFER }
    }
}

/// Parameters of [`ApiResponse::into_response`].
pub(crate) struct Delivery<'a> {
    /// The audit ID of the request.
    pub(crate) audit_id: &'a HeaderValue,
    /// Whether to omit the body (HEAD request).
    pub(crate) is_head: bool,
    /// Encoding options of the response.
    pub(crate) response_options: ResponseOptions,
    /// Returns a body that sends a document chunk by chunk.
    pub(crate) send: &'a dyn Fn(Box<dyn ChunkSource>) -> Body,
}

/// Whether to indent JSON: the `pretty` parameter, or else an interactive client by its User-Agent.
fn is_pretty(headers: &HeaderMap, query: &Query) -> bool {
    match query.first("pretty") {
        Some(value) => matches!(value, "" | "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => {
            let agent = headers.get(header::USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
            [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
        }
    }
}

/// Returns the encoding to which a document in compact JSON is converted: indented JSON, YAML or CBOR.
fn final_encoding(format: Format, pretty: bool) -> Option<Encoding> {
    Encoding::for_format(format, pretty).filter(|encoding| *encoding != Encoding::Compact)
}

/// Whether the document is large and must be converted.
fn is_converted(json: &Bytes, format: Format, options: ResponseOptions) -> bool {
    json.len() > MAX_SINGLE_BUFFER && final_encoding(format, options.pretty).is_some()
}

fn encode(json: Bytes, format: Format, pretty: bool) -> Bytes {
    let Some(encoding) = final_encoding(format, pretty) else { return json };
    match serde_json::from_slice(&json) {
        Ok(value) => Bytes::from(encoding.document(&value)),
        Err(error) => {
            tracing::error!(%error, "response document is not valid JSON; sending it without conversion");
            json
        }
    }
}

/// Returns the warning headers within the limits of number and bytes.
///
/// If warnings are suppressed, the last header contains their number.
fn warning_headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut headers = Vec::with_capacity(warnings.len().min(MAX_WARNINGS));
    let mut room = MAX_WARNING_BYTES - SUPPRESSED_COUNT_BYTES;
    let max_headers = if warnings.len() > MAX_WARNINGS { MAX_WARNINGS - 1 } else { MAX_WARNINGS };
    let mut suppressed = 0_usize;
    for warning in warnings {
        let fits = headers.len() < max_headers && warning.len() <= room;
        let value = if fits { warning_header(warning) } else { None };
        match value.filter(|value| value.len() <= room) {
            Some(value) => {
                room -= value.len();
                headers.push(value);
            }
            None => suppressed += 1,
        }
    }
    if suppressed > 0 {
        // Removes one warning to make room for the count.
        if headers.len() >= MAX_WARNINGS {
            headers.pop();
            suppressed += 1;
        }
        headers.extend(warning_header(&format!("{suppressed} more warnings were suppressed")));
    }
    headers
}

/// Formats a `Warning` header as `299 - "text"`, with quotes and backslashes escaped.
fn warning_header(text: &str) -> Option<HeaderValue> {
    let mut value = String::from("299 - \"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                value.push('\\');
                value.push(c);
            }
            c if c.is_control() => value.push(' '),
            c => value.push(c),
        }
    }
    value.push('"');
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_above_limit_are_suppressed_and_counted() {
        for (warnings, count, suppressed) in [
            (vec!["w".to_owned(); 20], 20, None),
            (vec!["w".to_owned(); 21], 20, Some(2)),
            (vec!["w".to_owned(); 128], 20, Some(109)),
            (vec!["w".repeat(1_000); 5], 5, Some(1)),
            (vec!["w".repeat(1_001); 5], 4, Some(2)),
            (vec!["w".repeat(1_000_000), "w".to_owned()], 2, Some(1)),
        ] {
            let headers = warning_headers(&warnings);
            let bytes: usize = headers.iter().map(HeaderValue::len).sum();
            assert_eq!(headers.len(), count, "{} warnings", warnings.len());
            assert!(bytes <= MAX_WARNING_BYTES, "{bytes}");
            if let Some(suppressed) = suppressed {
                let last = format!("299 - \"{suppressed} more warnings were suppressed\"");
                assert_eq!(headers.last().unwrap(), last.as_str());
            }
        }
    }

    fn delivery(audit_id: &HeaderValue) -> Delivery<'_> {
        let send = &|chunks| Body::from(chunked_document::collect_document(chunks).unwrap());
        Delivery {
            audit_id,
            is_head: false,
            response_options: ResponseOptions { pretty: false, gzip: true },
            send,
        }
    }

    #[test]
    fn status_response_has_retry_after_and_warning_headers() {
        let id = HeaderValue::from_static("the-id");
        let response = ApiResponse::status(Status::unavailable("not now", 7), Format::Json)
            .with_warnings(vec!["unknown field \"a\"".to_owned(), "line\nbreak".to_owned()]);
        assert!(response.status.is_some());
        let response = response.into_response(&delivery(&id));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["audit-id"], "the-id");
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["content-type"], "application/json");
        let warnings: Vec<_> = response.headers().get_all("warning").iter().collect();
        assert_eq!(warnings, [r#"299 - "unknown field \"a\"""#, r#"299 - "line break""#]);
    }

    #[test]
    fn only_large_responses_are_compressed() {
        let id = HeaderValue::from_static("the-id");
        for (bytes, compressed) in [(10, false), (MIN_COMPRESSED_BYTES + 1, true)] {
            let json = format!("\"{}\"", "a".repeat(bytes));
            let response = ApiResponse::document(200, json, Format::Json).into_response(&delivery(&id));
            assert_eq!(response.headers().contains_key("content-encoding"), compressed, "{bytes}");
        }
    }

    #[test]
    fn interactive_clients_get_indented_json() {
        let mut headers = HeaderMap::new();
        for (query, agent, want) in [
            ("", "", false),
            ("", "curl/8", true),
            ("pretty=false", "curl/8", false),
            ("pretty", "tool", true),
            ("pretty=true", "tool", true),
            ("pretty=maybe", "tool", false),
        ] {
            headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
            assert_eq!(is_pretty(&headers, &Query::parse(Some(query))), want, "{query} {agent}");
        }
    }
}
