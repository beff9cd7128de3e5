//! The body of a request: all of it, within bounds.

use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use hyper::body::Incoming;
use serving::body::ReadError;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// A body that has not been read.
pub enum RequestBody {
    /// From a connection.
    Incoming(Incoming),
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
            RequestBody::Incoming(body) => serving::body::read(body, limit, PATIENCE).await,
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
