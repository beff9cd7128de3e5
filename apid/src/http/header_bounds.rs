//! Bounds on the header fields of a request, beyond which it is refused before anybody looks at them.
//!
//! # Contract
//!
//! The server's connections take more fields than these bounds, so that the refusal is an answer like any other: with a
//! Status, with an audit event, in both versions of HTTP.
//!
//! # Reference
//!
//! RFC 6585, section 5: 431. Kubernetes bounds the bytes of all headers only; its Status has no reason for this code.

use apimachinery::status::{Reason, Status};
use http::HeaderMap;

use crate::auth::Presented;

/// Header fields of a request: the groups of an identity and as many others as servers commonly allow in all.
const MAX_FIELDS: usize = MAX_IDENTITY_FIELDS + 100;
/// Fields that impersonate, and fields of an authenticating proxy: users of large directories are in hundreds of groups.
const MAX_IDENTITY_FIELDS: usize = 1_000;
/// Bytes of the values of these fields: 1,000 groups with names of 64 bytes. The identity is part of every question to authd.
const MAX_IDENTITY_BYTES: usize = 64 * 1024;

/// Refuses a request with too many header fields.
///
/// # Errors
///
/// 431 that names the bound.
pub(super) fn check(headers: &HeaderMap, presented: &Presented) -> Result<(), Status> {
    let impersonating = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    let impersonation = Size::of(impersonating.map(|(_, value)| value.as_bytes()));
    let proxy = Size::of(presented.proxy_headers().map(|(_, value)| value));
    let total = headers.len() + proxy.fields;
    if total > MAX_FIELDS {
        let text = format!("the request has {total} header fields; at most {MAX_FIELDS} are accepted");
        return Err(too_large(text));
    }
    impersonation.check("impersonation")?;
    proxy.check("authenticating proxy")
}

/// How many fields say who the caller is, and how many bytes their values have.
#[derive(Default)]
struct Size {
    fields: usize,
    bytes: usize,
}

impl Size {
    fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        values.fold(Size::default(), |size, value| Size {
            fields: size.fields + 1,
            bytes: size.bytes + value.len(),
        })
    }

    fn check(&self, what: &str) -> Result<(), Status> {
        let Size { fields, bytes } = self;
        if *fields <= MAX_IDENTITY_FIELDS && *bytes <= MAX_IDENTITY_BYTES {
            return Ok(());
        }
        Err(too_large(format!(
            "the request has {fields} {what} header fields with {bytes} bytes; at most {MAX_IDENTITY_FIELDS} fields \
             with {MAX_IDENTITY_BYTES} bytes are accepted"
        )))
    }
}

fn too_large(message: String) -> Status {
    let code = http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16();
    Status { code, ..Status::failure(Reason::Unknown, message) }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::auth::ProxyHeaders;

    /// Checks a request with fields of one name.
    fn checked(name: &'static str, fields: usize, bytes: usize) -> Result<(), Status> {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(&vec![b'g'; bytes]).unwrap();
        for _ in 0..fields {
            headers.append(HeaderName::from_static(name), value.clone());
        }
        let proxies = ProxyHeaders { names: vec!["x-remote-group".to_owned()], prefixes: Vec::new() };
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let presented = Presented::take(&mut headers, &proxies, &names);
        check(&headers, &presented)
    }

    #[test]
    fn header_fields_beyond_each_bound_return_431() {
        for name in ["impersonate-group", "x-remote-group"] {
            assert_eq!(checked(name, 1_000, 10), Ok(()), "{name}");
            assert_eq!(checked(name, 1, 64 * 1024), Ok(()), "{name}");
            for (fields, bytes) in [(1_001, 1), (1, 64 * 1024 + 1), (128, 513)] {
                let status = checked(name, fields, bytes).unwrap_err();
                assert_eq!(status.code, 431, "{name}: {fields} of {bytes}");
                assert!(status.message.contains("at most 1000 fields"), "{}", status.message);
            }
        }
        assert_eq!(checked("x-other", 1_100, 10), Ok(()));
        assert_eq!(checked("x-other", 1, 100_000), Ok(()));
        assert_eq!(checked("x-other", 1_101, 1).unwrap_err().code, 431);
    }
}
