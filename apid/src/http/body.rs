//! The body of a request: all of it, within bounds.

use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use hyper::body::Incoming;
use serving::body::ReadError;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a body nobody wanted that are read all the same.
const DRAINED: usize = 256 * 1024;
/// How long these may take.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A body that has not been read.
pub enum RequestBody {
    /// From a connection.
    Incoming(Unread),
    /// At hand: requests that the process makes of itself, and tests.
    Whole(Bytes),
}

impl RequestBody {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// 413 above 3 MiB (requirements D-ERR-35), 400 when it breaks off, 504 when it does not come.
    pub async fn read(self) -> Result<Bytes, Status> {
        let limit = Limits::BODY.bytes;
        let read = match self {
            RequestBody::Incoming(unread) => match unread.take() {
                Some(body) => serving::body::read(body, limit, PATIENCE).await,
                None => Ok(Bytes::new()),
            },
            RequestBody::Whole(bytes) if bytes.len() > limit => Err(ReadError::TooLarge(limit)),
            RequestBody::Whole(bytes) => Ok(bytes),
        };
        read.map_err(|error| match error {
            ReadError::TooLarge(limit) => {
                Status::too_large(format!("Request entity too large: limit is {limit}"))
            }
            ReadError::Timeout => {
                Status::failure(Reason::Timeout, "the body of the request did not arrive in time")
            }
            ReadError::Broken(why) => {
                Status::bad_request(format!("the body of the request broke off: {why}"))
            }
        })
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        RequestBody::Incoming(Unread(Some(body)))
    }
}

/// The body of a request that may be answered before anyone has read it (405, 404, 403). What nobody took is read to its
/// end behind the answer, within bounds: an HTTP/2 stream that ends with its body unread is reset, and some clients then
/// lose the answer.
pub struct Unread(Option<Incoming>);

impl Unread {
    fn take(mut self) -> Option<Incoming> {
        self.0.take()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(body) = self.0.take().filter(|body| !http_body::Body::is_end_stream(body)) {
            tokio::spawn(serving::body::drain(body, DRAINED, DRAIN_PATIENCE));
        }
    }
}
