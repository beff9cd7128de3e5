//! Loop detection: each forwarded request carries the servers that it has passed through.
//!
//! # Contract
//!
//! Each forwarded request names this process in the header [`FORWARDED_BY`]. A request that names this process has come
//! back: this server may answer the request, but does not forward it again. A request that has passed through
//! [`MAX_HOPS`] servers is not forwarded either. A chain of different servers is no loop.
//!
//! # Reference
//!
//! kube-aggregator has no such mark: an APIService whose Service leads to the server itself costs connections until the
//! request times out. The status code is that of RFC 5842, and a header for the purpose is described in RFC 8586.

use apimachinery::clock::Rng;
use apimachinery::status::{Reason, Status};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::headers::elements;

/// The header that names the processes that have forwarded a request, the first one first.
pub const FORWARDED_BY: HeaderName = HeaderName::from_static("apid-forwarded-by");
/// Maximum number of servers that a request may pass through.
const MAX_HOPS: usize = 16;

/// The loop detector of this process, with the name of the process in forwarded requests.
#[derive(Clone, Debug)]
pub struct Hops {
    id: String,
}

/// The reason why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopDetected {
    /// This process has forwarded the request before.
    #[error(
        "loop detected: this server has forwarded the request before; the Service or address that the request was \
         forwarded to leads back to this server"
    )]
    CameBack,
    /// The request has passed through the maximum number of servers.
    #[error("loop detected: the request has passed through {MAX_HOPS} servers")]
    TooManyHops,
}

impl From<LoopDetected> for Status {
    fn from(error: LoopDetected) -> Status {
        let status = Status::failure(Reason::Unknown, error.to_string());
        Status { code: StatusCode::LOOP_DETECTED.as_u16(), ..status }
    }
}

impl Hops {
    /// Creates a new name.
    pub fn new(rng: &dyn Rng) -> Self {
        Hops { id: rng.uuid() }
    }

    /// Returns the header value for a request of this process itself.
    pub fn first(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.id).ok()
    }

    /// Checks that a request with these headers may be forwarded.
    ///
    /// # Errors
    ///
    /// The request must not be forwarded.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), LoopDetected> {
        self.next(headers).map(drop)
    }

    /// Returns the header value for the backend of a request. `headers` are those of the request.
    ///
    /// # Errors
    ///
    /// The request must not be forwarded.
    pub(crate) fn next(&self, headers: &HeaderMap) -> Result<HeaderValue, LoopDetected> {
        let mut passed: Vec<&str> = elements(headers, FORWARDED_BY).collect();
        if passed.contains(&self.id.as_str()) {
            return Err(LoopDetected::CameBack);
        }
        if passed.len() >= MAX_HOPS {
            return Err(LoopDetected::TooManyHops);
        }
        passed.push(&self.id);
        // Elements of a valid header are valid.
        HeaderValue::from_str(&passed.join(", ")).map_err(|_| LoopDetected::TooManyHops)
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SeededRng;

    use super::*;

    fn passed(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FORWARDED_BY, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn loop_and_long_chain_are_rejected() {
        let (a, b) = (Hops::new(&SeededRng::new(1)), Hops::new(&SeededRng::new(2)));
        let first = a.next(&HeaderMap::new()).unwrap();
        assert_eq!(Some(&first), a.first().as_ref());
        let second = b.next(&passed(&[first.to_str().unwrap()])).unwrap();
        assert_eq!(second, format!("{}, {}", a.id, b.id));
        for values in [vec![second.to_str().unwrap()], vec!["x, y", &a.id], vec![&a.id, "x"]] {
            assert_eq!(a.next(&passed(&values)), Err(LoopDetected::CameBack), "{values:?}");
        }
        let long = vec!["x"; MAX_HOPS];
        assert_eq!(a.next(&passed(&long)), Err(LoopDetected::TooManyHops));
        assert!(a.next(&passed(&long[1..])).is_ok());
        let status = Status::from(LoopDetected::CameBack);
        assert!(status.code == 508 && status.message.contains("leads back to this server"), "{status:?}");
    }
}
