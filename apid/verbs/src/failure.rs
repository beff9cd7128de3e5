//! Conversion of storage errors to a Status.

use apimachinery::status::Status;
use storage::Error;

use super::Call;

impl Call<'_> {
    /// Returns the Status of a failed read or commit.
    pub(super) fn failure(&self, error: Error) -> Status {
        let resource = &self.collection.kind.group_resource;
        match error {
            Error::NotFound(_) => Status::not_found(resource, self.name),
            Error::Exists(_) => Status::already_exists(resource, self.name),
            Error::Conflict(_) => Status::stale_version(resource, self.name),
            Error::Compacted { .. } => expired_status(),
            Error::Future { requested: requested_revision, current } => {
                Status::version_too_large(requested_revision.0, current.0)
            }
            Error::TooLarge(bytes) => {
                Status::too_large(format!("Request entity too large: the object would take {bytes} bytes"))
            }
            // Without `Retry-After`: a retry does not help until an administrator makes space, and clients wait for
            // ten retries without a message.
            Error::Full(reason) => Status::unavailable(format!("storage is full: {reason}"), 0),
            Error::Lost(_) => {
                Status::unavailable("the server paused during the write, which was not stored; try again", 1)
            }
            Error::Unavailable(reason) => Status::unavailable(format!("storage is unavailable: {reason}"), 1),
            Error::Corrupt(detail) => {
                tracing::error!(
                    resource = %resource,
                    name = self.name,
                    error = %detail,
                    "storage is corrupt; returning 500"
                );
                Status::internal("a stored object cannot be read")
            }
        }
    }
}

/// 410 for a compacted revision, with the message of kube-apiserver for lists.
pub(super) fn expired_status() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}
