//! resourceVersion parameters of reads.

use std::time::Duration;

use apimachinery::field::quote;
use apimachinery::status::{Reason, Status};
use storage::Revision;

use super::Call;

/// Maximum time that a read waits for a revision that the watch cache has not reached.
const VERSION_WAIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The `resourceVersion` of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedVersion {
    /// Absent: the most recent state.
    MostRecent,
    /// `0`: any cached state.
    Any,
    /// A specific revision; each verb defines whether a newer state is allowed.
    At(Revision),
}

/// The error of a parameter that is not a number: a 400 (list) or 500 (get and watch), as in kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resourceVersion: Invalid value: {}: must be an unsigned integer", quote(.0))]
pub(super) struct InvalidVersion(String);

/// Parses the parameter `resourceVersion`.
pub(super) fn parse(text: &str) -> Result<RequestedVersion, InvalidVersion> {
    match text.parse() {
        _ if text.is_empty() => Ok(RequestedVersion::MostRecent),
        Ok(0) => Ok(RequestedVersion::Any),
        Ok(version) => Ok(RequestedVersion::At(Revision(version))),
        Err(_) => Err(InvalidVersion(text.to_owned())),
    }
}

/// Same as [`parse`], with the error of get and watch.
pub(super) fn parse_or_500(text: &str) -> Result<RequestedVersion, Status> {
    parse(text).map_err(|error| Status::failure(Reason::Unknown, error.to_string()))
}

impl Call<'_> {
    /// Waits until the watch cache reaches a revision.
    ///
    /// # Errors
    ///
    /// 504: the watch cache did not reach the revision in time (requirements D-RV-58 to -61).
    pub(super) async fn wait_for_version(&self, version: Revision) -> Result<(), Status> {
        let items = &self.collection.items;
        let started_at = self.api_state.clock.monotonic();
        let result = tokio::time::timeout(VERSION_WAIT_TIMEOUT, items.wait_for(version)).await;
        let wait = self.api_state.clock.monotonic().saturating_sub(started_at);
        self.api_state.read_metrics.observe_read_wait(self.collection.kind.internal(), wait);
        result.map_err(|_| Status::version_too_large(version.0, items.revision().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_version_parameter_must_be_unsigned_number() {
        assert_eq!(parse(""), Ok(RequestedVersion::MostRecent));
        assert_eq!(parse("0"), Ok(RequestedVersion::Any));
        assert_eq!(parse("7"), Ok(RequestedVersion::At(Revision(7))));
        for bad in ["abc", "-1", "1.5", " 1", "99999999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_or_500("x").unwrap_err().code, 500);
    }
}
