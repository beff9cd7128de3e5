//! Limits of the request head: its path and its header fields.
//!
//! # Contract
//!
//! The server's connections accept more fields than these limits, so that a rejection has a Status and an
//! audit event in both versions of HTTP. HTTP/1.1 has a lower limit, because its parser allocates memory for
//! the maximum number of fields before it reads a head. A request with more than
//! [`serving::server::MAX_HEADER_FIELDS`] fields gets a 431 without a Status.
//!
//! # Reference
//!
//! RFC 9110, section 15.5.15: 414. RFC 6585, section 5: 431. Kubernetes limits only the bytes of all headers;
//! its Status has no reason for these codes.

use apimachinery::status::{Reason, Status};
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode, Uri, Version};

use authclient::HeaderCredentials;

/// Maximum number of impersonation fields, and maximum number of fields of an authenticating proxy.
///
/// Users of large directories are members of hundreds of groups.
const MAX_IDENTITY_FIELDS: usize = 1_000;
/// Maximum number of header fields of an HTTP/2 request: the groups of an identity and 100 others, a common
/// server limit.
const MAX_FIELDS: usize = MAX_IDENTITY_FIELDS + 100;
/// Maximum number of header fields of an HTTP/1.1 request. The parser of the server accepts a few more.
const MAX_HTTP1_FIELDS: usize = 250;
const _: () = assert!(MAX_HTTP1_FIELDS < serving::server::MAX_HEADER_FIELDS);
/// Maximum total size of the identity field values, in bytes: 1,000 groups with names of 64 bytes.
///
/// The identity is part of every request to authd.
const MAX_IDENTITY_BYTES: usize = 64 * 1024;

/// Maximum length of a path in bytes: many times that of a path with the longest names, percent-encoded.
const MAX_PATH_BYTES: usize = 8 * 1024;

/// Maximum length of a query that an I/O thread parses, in bytes: about 0.2 ms of work.
const MAX_INLINE_QUERY_BYTES: usize = 8 * 1024;

/// Whether the parsing of the query belongs on the work pool.
pub(super) fn has_long_query(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.len() > MAX_INLINE_QUERY_BYTES)
}

/// Returns the path of a request; `/` for a path that [`check_path`] rejects.
///
/// A path that is too long is therefore never split into segments.
pub(super) fn path_within_limit(uri: &Uri) -> &str {
    if uri.path().len() > MAX_PATH_BYTES { "/" } else { uri.path() }
}

/// Returns the path and query of a request for the audit log; a path that [`check_path`] rejects is truncated.
pub(super) fn audited_uri(uri: &Uri) -> String {
    match uri.path_and_query().map_or("", PathAndQuery::as_str) {
        text if uri.path().len() > MAX_PATH_BYTES => {
            let end = text.floor_char_boundary(MAX_PATH_BYTES);
            format!("{}...", text.get(..end).unwrap_or_default())
        }
        text => text.to_owned(),
    }
}

/// Rejects a request with a path that is too long.
///
/// # Errors
///
/// 414 with the limit in the message.
pub(super) fn check_path(uri: &Uri) -> Result<(), Status> {
    let bytes = uri.path().len();
    if bytes <= MAX_PATH_BYTES {
        return Ok(());
    }
    let text = format!("the path of the request has {bytes} bytes; at most {MAX_PATH_BYTES} are accepted");
    Err(failure(StatusCode::URI_TOO_LONG, text))
}

/// Rejects a request with too many header fields.
///
/// # Errors
///
/// 431 with the limit in the message.
pub(super) fn check(
    version: Version,
    headers: &HeaderMap,
    header_credentials: &HeaderCredentials,
) -> Result<(), Status> {
    let impersonating = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    let impersonation = Size::sum(impersonating.map(|(_, value)| value.as_bytes()));
    let proxy = Size::sum(header_credentials.proxy_headers().map(|(_, value)| value));
    let total = headers.len() + proxy.fields;
    let max = if version < Version::HTTP_2 { MAX_HTTP1_FIELDS } else { MAX_FIELDS };
    if total > max {
        let text =
            format!("the request has {total} header fields; at most {max} are accepted in {version:?}");
        return Err(too_large(text));
    }
    impersonation.check("impersonation")?;
    proxy.check("authenticating proxy")
}

/// Number and total size of the identity header fields of one source.
#[derive(Default)]
struct Size {
    fields: usize,
    bytes: usize,
}

impl Size {
    fn sum<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        values.fold(Size::default(), |size, value| Size {
            fields: size.fields + 1,
            bytes: size.bytes + value.len(),
        })
    }

    fn check(&self, source: &str) -> Result<(), Status> {
        let Size { fields, bytes } = self;
        if *fields <= MAX_IDENTITY_FIELDS && *bytes <= MAX_IDENTITY_BYTES {
            return Ok(());
        }
        Err(too_large(format!(
            "the request has {fields} {source} header fields with {bytes} bytes; at most {MAX_IDENTITY_FIELDS} fields \
             with {MAX_IDENTITY_BYTES} bytes are accepted"
        )))
    }
}

fn too_large(message: String) -> Status {
    failure(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message)
}

fn failure(code: StatusCode, message: String) -> Status {
    Status { code: code.as_u16(), ..Status::failure(Reason::Unknown, message) }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use http::{HeaderName, HeaderValue};

    use super::*;
    use authclient::ProxyHeaders;

    /// As [`check_fields_in`], over HTTP/2.
    fn check_fields(name: &'static str, fields: usize, bytes: usize) -> Result<(), Status> {
        check_fields_in(Version::HTTP_2, name, fields, bytes)
    }

    /// Checks a request with `fields` header fields of one name, whose values have `bytes` bytes each.
    fn check_fields_in(
        version: Version,
        name: &'static str,
        fields: usize,
        bytes: usize,
    ) -> Result<(), Status> {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(&vec![b'g'; bytes]).unwrap();
        for _ in 0..fields {
            headers.append(HeaderName::from_static(name), value.clone());
        }
        let proxies = ProxyHeaders { names: vec!["x-remote-group".to_owned()], prefixes: Vec::new() };
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let header_credentials = HeaderCredentials::take(&mut headers, &proxies, &names);
        check(version, &headers, &header_credentials)
    }

    #[test]
    fn path_above_limit_returns_414_and_is_not_split() {
        let uri = |bytes: usize| Uri::try_from(format!("/{}", "a".repeat(bytes - 1))).unwrap();
        assert_eq!(check_path(&uri(MAX_PATH_BYTES)), Ok(()));
        assert_eq!(path_within_limit(&uri(MAX_PATH_BYTES)).len(), MAX_PATH_BYTES);
        let long = uri(MAX_PATH_BYTES + 1);
        assert_eq!(check_path(&long).unwrap_err().code, 414);
        assert_eq!(path_within_limit(&long), "/");
    }

    #[test]
    fn audited_uri_of_path_above_limit_is_cut() {
        let short = Uri::from_static("/api/v1/pods?limit=5");
        assert_eq!(audited_uri(&short), "/api/v1/pods?limit=5");
        let long = Uri::try_from(format!("/{}?limit=5", "a".repeat(MAX_PATH_BYTES))).unwrap();
        let audited = audited_uri(&long);
        assert_eq!(audited.len(), MAX_PATH_BYTES + "...".len());
        assert!(audited.starts_with("/aaa") && audited.ends_with("a..."));
    }

    #[test]
    fn header_fields_above_each_limit_return_431() {
        for name in ["impersonate-group", "x-remote-group"] {
            assert_eq!(check_fields(name, 1_000, 10), Ok(()), "{name}");
            assert_eq!(check_fields(name, 1, 64 * 1024), Ok(()), "{name}");
            for (fields, bytes) in [(1_001, 1), (1, 64 * 1024 + 1), (128, 513)] {
                let status = check_fields(name, fields, bytes).unwrap_err();
                assert_eq!(status.code, 431, "{name}: {fields} of {bytes}");
                assert!(status.message.contains("at most 1000 fields"), "{}", status.message);
            }
        }
        assert_eq!(check_fields("x-other", 1_100, 10), Ok(()));
        assert_eq!(check_fields("x-other", 1, 100_000), Ok(()));
        assert_eq!(check_fields("x-other", 1_101, 1).unwrap_err().code, 431);
        assert_eq!(check_fields_in(Version::HTTP_11, "x-other", 250, 1), Ok(()));
        assert_eq!(check_fields_in(Version::HTTP_11, "x-other", 251, 1).unwrap_err().code, 431);
    }
}
