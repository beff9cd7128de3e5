//! HTTP responses: the only place that turns results and Statuses into responses.
//!
//! # Contract
//!
//! [`Answer`] is a status code, a document and headers. [`Answer::into_response`] encodes it with the
//! negotiated options: JSON or YAML, indented, compressed; with warnings, `Retry-After` and `Audit-Id`.
//!
//! [`Answer::prepare`] does the work that precedes the response head in steps. Costly steps may run on
//! another thread.

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;
use serving::body::Body;

use super::chunks::{self, Beginning, Chunks, Deferred, Gzip};
use super::encoding::Encoding;
use super::negotiate::{self, Format};
use super::protobuf;
use super::query::Query;
use super::represent::Encoded;

/// A response before it is encoded.
pub(super) struct Answer {
    code: u16,
    content: Content,
    warnings: Vec<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The Status of a failed request, for the audit log.
    pub(super) failure: Option<Box<Status>>,
}

enum Content {
    /// A JSON document and the format to encode it in, or a message that is already Protobuf.
    Document(Bytes, Format),
    /// A document that is encoded chunk by chunk while it is sent.
    Chunks(Beginning, Format),
    /// Text, with its media type.
    Text(Bytes, &'static str),
    /// A document in a buffer that many responses share, with its media type.
    Shared(Bytes, &'static str),
    /// A stream, with its encoding.
    Stream(Body, Format),
    /// Switching protocols: the connection stops speaking HTTP.
    Upgraded,
    Empty,
}

impl Answer {
    /// A document: JSON text, encoded later as negotiated, or an encoded Protobuf message.
    pub(super) fn document(code: u16, encoded: impl Into<Bytes>, format: Format) -> Self {
        Answer::new(code, Content::Document(encoded.into(), format))
    }

    /// A list.
    pub(super) fn list(list: Box<dyn Chunks>, format: Format) -> Self {
        Answer::new(200, Content::Chunks(Beginning::new(list), format))
    }

    /// An object.
    pub(super) fn object(code: u16, encoded: Encoded, format: Format) -> Self {
        match encoded {
            Encoded::Whole(encoded) => Answer::document(code, encoded, format),
            Encoded::Chunks(chunks) => Answer::new(code, Content::Chunks(Beginning::new(chunks), format)),
        }
    }

    /// An object that has its own `kind` and `apiVersion`.
    pub(super) fn value(code: u16, value: &Value, format: Format) -> Self {
        match format {
            Format::Json | Format::Yaml | Format::Cbor => Answer::document(code, value.to_string(), format),
            Format::Protobuf(_) => match protobuf::document(value) {
                Some(encoded) => Answer::document(code, encoded, format),
                None => Answer::document(code, value.to_string(), Format::Json),
            },
        }
    }

    /// Plain text.
    pub(super) fn text(code: u16, text: impl Into<Bytes>) -> Self {
        Answer::new(code, Content::Text(text.into(), "text/plain; charset=utf-8"))
    }

    /// Text with another media type.
    pub(super) fn text_as(code: u16, text: impl Into<Bytes>, media_type: &'static str) -> Self {
        Answer::new(code, Content::Text(text.into(), media_type))
    }

    /// A document in a buffer that many responses share.
    pub(super) fn shared(code: u16, document: Bytes, media_type: &'static str) -> Self {
        Answer::new(code, Content::Shared(document, media_type))
    }

    /// A stream of events.
    pub(super) fn stream(body: Body, format: Format) -> Self {
        Answer::new(200, Content::Stream(body, format))
    }

    /// 101 Switching Protocols with these headers.
    pub(super) fn upgraded(headers: Vec<(HeaderName, HeaderValue)>) -> Self {
        Answer { headers, ..Answer::new(101, Content::Upgraded) }
    }

    /// A status code without a body.
    pub(super) fn empty(code: u16) -> Self {
        Answer::new(code, Content::Empty)
    }

    /// A Status in the negotiated error encoding.
    pub(super) fn status(status: Status, format: Format) -> Self {
        let mut answer = Answer::value(status.code, &status.to_value(), format);
        let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        if retry > 0 {
            answer.headers.push((header::RETRY_AFTER, HeaderValue::from(retry)));
        }
        answer.failure = (!status.success).then(|| Box::new(status));
        answer
    }

    fn new(code: u16, content: Content) -> Self {
        Answer { code, content, warnings: Vec::new(), headers: Vec::new(), failure: None }
    }

    /// Adds warnings for the client.
    #[must_use]
    pub(super) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// Adds a header.
    #[must_use]
    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The HTTP status code.
    pub(super) fn code(&self) -> u16 {
        self.code
    }

    /// Whether the response body continues after the head as a stream or another protocol.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.content, Content::Stream(..) | Content::Upgraded)
    }

    /// Does one step of the work that precedes the response head. Returns true if another step remains.
    ///
    /// A step takes at most about one millisecond, or the encoding of one object. If encoding fails, the
    /// response becomes the Status of the error.
    pub(super) fn prepare(&mut self, wishes: Wishes) -> bool {
        let (prepared, format) = match &mut self.content {
            Content::Chunks(beginning, format) => {
                let limit = if wishes.gzip { COMPRESSED_FROM } else { AT_ONCE };
                (beginning.prepare_upto(limit), *format)
            }
            Content::Document(json, format) if json.len() > AT_ONCE && is_encoded(*format, wishes) => {
                let (json, format) = (std::mem::take(json), *format);
                let encoded = Deferred::new(move || Ok(encode(json, format, wishes.pretty).into()));
                self.content = Content::Chunks(Beginning::new(Box::new(encoded)), format);
                return true;
            }
            _ => return false,
        };
        prepared.unwrap_or_else(|status| {
            *self = Answer::status(status, format);
            false
        })
    }

    /// Whether the next call of [`Answer::prepare`] may take more than about 0.2 ms of CPU.
    pub(super) fn is_costly(&self) -> bool {
        match &self.content {
            Content::Chunks(beginning, _) => beginning.is_costly(),
            _ => false,
        }
    }

    /// Builds the response, after any preparation steps that remain.
    pub(super) fn into_response(mut self, delivery: &Delivery<'_>) -> Response<Body> {
        while self.prepare(delivery.wishes) {}
        let Wishes { pretty, gzip } = delivery.wishes;
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
        let (made, media_type) = match self.content {
            Content::Empty | Content::Upgraded => return response,
            Content::Chunks(beginning, format) => match beginning.whole_size() {
                Some(size) if size <= AT_ONCE => (Made::Small(beginning.into_made()), format.media_type()),
                size => (Made::Large(Box::new(beginning), size), format.media_type()),
            },
            Content::Stream(body, format) => {
                let media_type = HeaderValue::from_str(&format.stream_media_type());
                headers.extend(media_type.ok().map(|media_type| (header::CONTENT_TYPE, media_type)));
                if !delivery.head {
                    *response.body_mut() = body;
                }
                return response;
            }
            Content::Document(json, format) => {
                (Made::of(encode(json, format, pretty), false), format.media_type())
            }
            Content::Text(text, media_type) => (Made::of(text, false), media_type),
            Content::Shared(document, media_type) => (Made::of(document, true), media_type),
        };
        // `with_header` may have set a more specific type.
        if !headers.contains_key(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        }
        match made {
            Made::Small(bytes) => {
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
                if !delivery.head {
                    *response.body_mut() = Body::from(bytes);
                }
            }
            Made::Large(chunks, size) => {
                let encoded = headers.contains_key(header::CONTENT_ENCODING);
                let gzip = gzip && !encoded && size.is_none_or(|size| size > COMPRESSED_FROM);
                if gzip {
                    mark_compressed(headers);
                } else if let Some(size) = size {
                    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
                }
                if !delivery.head {
                    let chunks = if gzip { Box::new(Gzip::new(chunks)) } else { chunks };
                    *response.body_mut() = (delivery.send)(chunks);
                }
            }
        }
        response
    }
}

/// An encoded document, ready to send.
enum Made {
    /// In one buffer.
    Small(Bytes),
    /// In chunks, with the size if it is known.
    Large(Box<dyn Chunks>, Option<usize>),
}

impl Made {
    /// Wraps a document in one buffer. The chunks of a large document are copies unless the buffer is shared.
    fn of(document: Bytes, is_shared: bool) -> Self {
        match document.len() {
            size if size <= AT_ONCE => Made::Small(document),
            size if is_shared => Made::Large(chunks::shared(document), Some(size)),
            size => Made::Large(chunks::copied(document), Some(size)),
        }
    }
}

/// The header of the audit ID.
pub(super) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Maximum bytes of all warnings of a response: proxies reject larger response heads.
const WARNINGS_MAX: usize = 4096;

/// Maximum number of warnings of a response: common clients reject more than 100 header lines.
const WARNINGS_COUNT: usize = 20;

/// Bytes reserved for the warning that counts the suppressed warnings.
const LEFT_OUT_ROOM: usize = 64;

/// Minimum size of a compressed response, in bytes (requirements D-GZIP-9).
const COMPRESSED_FROM: usize = 128 * 1024;

/// Maximum size of a document that is sent in one buffer, in bytes.
const AT_ONCE: usize = 16 * 1024;

/// Response options from the headers and the query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wishes {
    /// Whether to indent JSON.
    pub(super) pretty: bool,
    /// Whether to compress a large response.
    pub(super) gzip: bool,
}

impl Wishes {
    /// Reads the options of a request. `compression`: whether the server compresses responses.
    pub(super) fn new(headers: &HeaderMap, query: &Query, compression: bool) -> Self {
        Wishes { pretty: pretty(headers, query), gzip: compression && negotiate::accepts_gzip(headers) }
    }
}

/// Parameters of [`Answer::into_response`].
pub(super) struct Delivery<'a> {
    /// The audit ID of the request.
    pub(super) audit_id: &'a HeaderValue,
    /// Whether to omit the body (HEAD request).
    pub(super) head: bool,
    /// Encoding options of the response.
    pub(super) wishes: Wishes,
    /// Makes a body that sends a document chunk by chunk.
    pub(super) send: &'a dyn Fn(Box<dyn Chunks>) -> Body,
}

/// Whether to indent JSON: the `pretty` parameter, or else an interactive client by its User-Agent.
fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    match query.first("pretty") {
        Some(value) => matches!(value, "" | "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => {
            let agent = headers.get(header::USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
            [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
        }
    }
}

/// Whether a JSON document needs another encoding than compact JSON.
fn is_encoded(format: Format, wishes: Wishes) -> bool {
    !matches!(Encoding::of(format, wishes.pretty), None | Some(Encoding::Compact))
}

fn encode(json: Bytes, format: Format, pretty: bool) -> Bytes {
    let Some(encoding) = Encoding::of(format, pretty).filter(|encoding| *encoding != Encoding::Compact)
    else {
        return json;
    };
    match serde_json::from_slice(&json) {
        Ok(value) => Bytes::from(encoding.document(&value)),
        Err(error) => {
            tracing::error!(%error, "response document is not valid JSON; sending it unencoded");
            json
        }
    }
}

fn mark_compressed(headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
}

/// Returns the warning headers within the limits of number and bytes.
///
/// The last header counts the suppressed warnings.
fn warning_headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut headers = Vec::with_capacity(warnings.len().min(WARNINGS_COUNT));
    let mut room = WARNINGS_MAX - LEFT_OUT_ROOM;
    let most = if warnings.len() > WARNINGS_COUNT { WARNINGS_COUNT - 1 } else { WARNINGS_COUNT };
    let mut left_out = 0_usize;
    for warning in warnings {
        let fits = headers.len() < most && warning.len() <= room;
        let value = if fits { warning_header(warning) } else { None };
        match value.filter(|value| value.len() <= room) {
            Some(value) => {
                room -= value.len();
                headers.push(value);
            }
            None => left_out += 1,
        }
    }
    if left_out > 0 {
        // Removes one warning to make room for the count.
        if headers.len() >= WARNINGS_COUNT {
            headers.pop();
            left_out += 1;
        }
        headers.extend(warning_header(&format!("{left_out} more warnings were suppressed")));
    }
    headers
}

/// Formats `299 - "text"`, with quotes and backslashes escaped.
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
    fn warnings_are_bounded_in_number_and_bytes_and_the_last_counts_the_rest() {
        for (warnings, count, left_out) in [
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
            assert!(bytes <= WARNINGS_MAX, "{bytes}");
            if let Some(left_out) = left_out {
                let last = format!("299 - \"{left_out} more warnings were suppressed\"");
                assert_eq!(headers.last().unwrap(), last.as_str());
            }
        }
    }

    fn delivery(audit_id: &HeaderValue) -> Delivery<'_> {
        let send = &|chunks| Body::from(chunks::whole(chunks).unwrap());
        Delivery { audit_id, head: false, wishes: Wishes { pretty: false, gzip: true }, send }
    }

    #[test]
    fn a_status_brings_its_headers() {
        let id = HeaderValue::from_static("the-id");
        let answer = Answer::status(Status::unavailable("not now", 7), Format::Json)
            .with_warnings(vec!["unknown field \"a\"".to_owned(), "line\nbreak".to_owned()]);
        assert!(answer.failure.is_some());
        let response = answer.into_response(&delivery(&id));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["audit-id"], "the-id");
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(response.headers()["content-type"], "application/json");
        let warnings: Vec<_> = response.headers().get_all("warning").iter().collect();
        assert_eq!(warnings, [r#"299 - "unknown field \"a\"""#, r#"299 - "line break""#]);
    }

    #[test]
    fn only_large_answers_are_compressed() {
        let id = HeaderValue::from_static("the-id");
        for (bytes, compressed) in [(10, false), (COMPRESSED_FROM + 1, true)] {
            let json = format!("\"{}\"", "a".repeat(bytes));
            let response = Answer::document(200, json, Format::Json).into_response(&delivery(&id));
            assert_eq!(response.headers().contains_key("content-encoding"), compressed, "{bytes}");
        }
    }

    #[test]
    fn people_get_indented_json() {
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
            assert_eq!(pretty(&headers, &Query::parse(Some(query))), want, "{query} {agent}");
        }
    }
}
