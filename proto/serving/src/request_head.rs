//! Rules of HTTP for request heads that hyper does not check.
//!
//! # Contract
//!
//! [`check`] rejects a request whose framing or target is ambiguous, before the handler sees the request. The
//! connection ends after the rejection, because a body may follow whose length is unknown.
//!
//! # Reference
//!
//! RFC 9112, section 3.2 (Host) and 6.1 (Transfer-Encoding); RFC 9110, section 10.1.1 (Expect). Codes and texts
//! are those of the HTTP server of Go.

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};

use crate::body::Body;

/// The reason why a request head is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    /// An HTTP/1.1 request has no `Host`.
    #[error("400 Bad Request: missing required Host header")]
    MissingHost,
    /// A request has more than one `Host`.
    #[error("400 Bad Request: too many Host headers")]
    TooManyHosts,
    /// `Host` has a byte that no host and port have.
    #[error("400 Bad Request: malformed Host header")]
    MalformedHost,
    /// `Transfer-Encoding` is not one `chunked`.
    #[error("501 Not Implemented: Unsupported transfer encoding")]
    TransferEncoding,
    /// `Expect` is not `100-continue`.
    #[error("417 Expectation Failed")]
    Expectation,
}

impl HeadError {
    fn code(self) -> StatusCode {
        match self {
            HeadError::MissingHost | HeadError::TooManyHosts | HeadError::MalformedHost => {
                StatusCode::BAD_REQUEST
            }
            HeadError::TransferEncoding => StatusCode::NOT_IMPLEMENTED,
            HeadError::Expectation => StatusCode::EXPECTATION_FAILED,
        }
    }

    /// Returns the response, after which an HTTP/1.1 connection ends.
    pub(crate) fn response(self, version: Version) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_string()));
        *response.status_mut() = self.code();
        let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
        if version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Checks `Host`, `Transfer-Encoding` and `Expect` of a request before HTTP/2. The HTTP/2 library checks the first
/// two for its version. As the server of Go does, HTTP/2 ignores an unknown `Expect`.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), HeadError> {
    let headers = request.headers();
    if request.version() < Version::HTTP_2 {
        check_host(request.version(), headers)?;
        check_transfer_encoding(headers)?;
        check_expectation(headers)?;
    }
    Ok(())
}

fn check_host(version: Version, headers: &HeaderMap) -> Result<(), HeadError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) if version < Version::HTTP_11 => return Ok(()),
        (None, _) => return Err(HeadError::MissingHost),
        (Some(_), Some(_)) => return Err(HeadError::TooManyHosts),
        (Some(host), None) => host,
    };
    let is_host_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte);
    if host.as_bytes().iter().all(is_host_byte) { Ok(()) } else { Err(HeadError::MalformedHost) }
}

fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), HeadError> {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(encoding), None) if encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(HeadError::TransferEncoding),
    }
}

fn check_expectation(headers: &HeaderMap) -> Result<(), HeadError> {
    let is_known = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"100-continue");
    if headers.get_all(header::EXPECT).iter().all(is_known) { Ok(()) } else { Err(HeadError::Expectation) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_head_with_ambiguous_framing_or_target_is_rejected() {
        let host = ("host", "example.com:6443");
        for (version, fields, expected) in [
            (Version::HTTP_11, vec![host], Ok(())),
            (Version::HTTP_11, vec![("host", "[::1]:6443")], Ok(())),
            (Version::HTTP_11, vec![("host", "")], Ok(())),
            (Version::HTTP_11, vec![], Err(HeadError::MissingHost)),
            (Version::HTTP_10, vec![], Ok(())),
            (Version::HTTP_2, vec![], Ok(())),
            (Version::HTTP_11, vec![host, host], Err(HeadError::TooManyHosts)),
            (Version::HTTP_10, vec![host, host], Err(HeadError::TooManyHosts)),
            (Version::HTTP_11, vec![("host", "a/b")], Err(HeadError::MalformedHost)),
            (Version::HTTP_11, vec![("host", "a b")], Err(HeadError::MalformedHost)),
            (Version::HTTP_11, vec![host, ("transfer-encoding", "Chunked")], Ok(())),
            (
                Version::HTTP_11,
                vec![host, ("transfer-encoding", "gzip, chunked")],
                Err(HeadError::TransferEncoding),
            ),
            (
                Version::HTTP_11,
                vec![host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                Err(HeadError::TransferEncoding),
            ),
            (
                Version::HTTP_11,
                vec![host, ("transfer-encoding", "identity")],
                Err(HeadError::TransferEncoding),
            ),
            (Version::HTTP_11, vec![host, ("expect", "100-Continue")], Ok(())),
            (Version::HTTP_11, vec![host, ("expect", "200-ok")], Err(HeadError::Expectation)),
            (Version::HTTP_2, vec![("expect", "x")], Ok(())),
        ] {
            let mut request = Request::builder().version(version);
            for (name, value) in &fields {
                request = request.header(*name, *value);
            }
            assert_eq!(check(&request.body(()).unwrap()), expected, "{version:?} {fields:?}");
        }
    }
}
