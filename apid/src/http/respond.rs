//! The one place where results become HTTP responses.
//!
//! # Contract
//!
//! An [`Answer`] is a code, a document and what goes with it. [`Answer::into_response`] encodes it as the client wants it:
//! JSON or YAML, indented, compressed; with warnings, `Retry-After` and the `Audit-Id`. A Status becomes an answer here and
//! nowhere else.
//!
//! [`Answer::prepare`] does, step by step, the work that precedes the head. Costly steps may run on another thread.

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

/// What a request is answered with.
pub(super) struct Answer {
    code: u16,
    content: Content,
    warnings: Vec<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The Status that the answer is, when it is a failure: for the audit log.
    pub(super) failure: Option<Box<Status>>,
}

enum Content {
    /// A JSON document, and the encoding it is wanted in; Protobuf is encoded already.
    Document(Bytes, Format),
    /// A document that is made as it is sent, in its encoding.
    Chunks(Beginning, Format),
    /// Text, with its media type.
    Text(Bytes, &'static str),
    /// A document that many answers share, with its media type.
    Shared(Bytes, &'static str),
    /// A stream, with its encoding.
    Stream(Body, Format),
    /// Something else than HTTP from here on.
    Upgraded,
    Empty,
}

impl Answer {
    /// A document: JSON text, which is encoded as wanted, or Protobuf that is encoded already.
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

    /// An object that says of which type it is.
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

    /// Text of another media type.
    pub(super) fn text_as(code: u16, text: impl Into<Bytes>, media_type: &'static str) -> Self {
        Answer::new(code, Content::Text(text.into(), media_type))
    }

    /// A document in a buffer that many answers share.
    pub(super) fn shared(code: u16, document: Bytes, media_type: &'static str) -> Self {
        Answer::new(code, Content::Shared(document, media_type))
    }

    /// A stream of events.
    pub(super) fn stream(body: Body, format: Format) -> Self {
        Answer::new(200, Content::Stream(body, format))
    }

    /// The connection becomes another one, with these headers.
    pub(super) fn upgraded(headers: Vec<(HeaderName, HeaderValue)>) -> Self {
        Answer { headers, ..Answer::new(101, Content::Upgraded) }
    }

    /// Nothing but a code.
    pub(super) fn empty(code: u16) -> Self {
        Answer::new(code, Content::Empty)
    }

    /// A Status, in the encoding that the client can read best.
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

    /// With warnings for the client.
    #[must_use]
    pub(super) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// With a header.
    #[must_use]
    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The HTTP code.
    pub(super) fn code(&self) -> u16 {
        self.code
    }

    /// Whether it goes on after the head.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.content, Content::Stream(..) | Content::Upgraded)
    }

    /// Does a part of the work that precedes the head of the response: at most about a millisecond, or the encoding of one
    /// object. True: another part remains. An answer that cannot be made becomes the Status that says why.
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

    /// The response. The rest of the preparation is done here.
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
        // A more exact type was set with the headers.
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

/// A document that is ready to be sent.
enum Made {
    /// In one buffer.
    Small(Bytes),
    /// In pieces, and its size if it is known.
    Large(Box<dyn Chunks>, Option<usize>),
}

impl Made {
    /// A document in one buffer. The pieces of a large one are copies, unless others hold the buffer, too.
    fn of(document: Bytes, is_shared: bool) -> Self {
        match document.len() {
            size if size <= AT_ONCE => Made::Small(document),
            size if is_shared => Made::Large(chunks::shared(document), Some(size)),
            size => Made::Large(chunks::copied(document), Some(size)),
        }
    }
}

/// The header of the audit log's id.
pub(super) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Bytes of all warnings of an answer: proxies refuse larger heads.
const WARNINGS_MAX: usize = 4096;

/// Warnings of an answer: common clients refuse more than 100 header lines.
const WARNINGS_COUNT: usize = 20;

/// Bytes kept free for the warning that says how many were left out.
const LEFT_OUT_ROOM: usize = 64;

/// Bytes from which on an answer is worth compressing (requirements D-GZIP-9).
const COMPRESSED_FROM: usize = 128 * 1024;

/// Bytes up to which a document is given to its connection at once.
const AT_ONCE: usize = 16 * 1024;

/// The options of a response, from the headers and the query of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wishes {
    /// JSON is indented.
    pub(super) pretty: bool,
    /// A large answer is compressed.
    pub(super) gzip: bool,
}

impl Wishes {
    /// Of a request; `compression`: the server compresses.
    pub(super) fn new(headers: &HeaderMap, query: &Query, compression: bool) -> Self {
        Wishes { pretty: pretty(headers, query), gzip: compression && negotiate::accepts_gzip(headers) }
    }
}

/// How an answer is sent.
pub(super) struct Delivery<'a> {
    /// The id of the request in the audit log.
    pub(super) audit_id: &'a HeaderValue,
    /// Without a body.
    pub(super) head: bool,
    /// The form.
    pub(super) wishes: Wishes,
    /// Makes a body of what is sent part by part.
    pub(super) send: &'a dyn Fn(Box<dyn Chunks>) -> Body,
}

/// As asked; else for the programs that people read with.
fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    match query.first("pretty") {
        Some(value) => matches!(value, "" | "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => {
            let agent = headers.get(header::USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
            [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
        }
    }
}

/// Whether a document that is JSON is encoded further.
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
            tracing::error!(%error, "an answer is not JSON");
            json
        }
    }
}

fn mark_compressed(headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
}

/// The headers of warnings, within bounds of number and bytes. The last one says how many were left out.
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
        // One of those that fit makes place for it.
        if headers.len() >= WARNINGS_COUNT {
            headers.pop();
            left_out += 1;
        }
        headers.extend(warning_header(&format!("{left_out} more warnings were left out")));
    }
    headers
}

/// `299 - "text"`, with quotes and backslashes escaped.
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
                let last = format!("299 - \"{left_out} more warnings were left out\"");
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
