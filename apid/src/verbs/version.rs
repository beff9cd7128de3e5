//! Resource versions as clients send them.

use std::time::Duration;

use apimachinery::status::{Reason, Status};
use storage::Revision;

use super::Call;

/// How long a read waits for a version that this process has not reached.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a read's `resourceVersion` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Absent: the newest.
    MostRecent,
    /// `0`: whatever is at hand.
    Any,
    /// A version.
    At(Revision),
}

/// Reads the parameter; the error is the sentence of a 400 (lists) or 500 (get and watch), as the reference answers.
pub(super) fn parse(text: &str) -> Result<Wanted, String> {
    match text {
        "" => Ok(Wanted::MostRecent),
        "0" => Ok(Wanted::Any),
        _ => match text.parse::<u64>() {
            Ok(0) => Ok(Wanted::Any),
            Ok(version) => Ok(Wanted::At(Revision(version))),
            Err(_) => Err(format!(
                "Invalid value: {}: must be an unsigned integer",
                apimachinery::field::quote(text)
            )),
        },
    }
}

/// The same, with the error of get and watch.
pub(super) fn parse_or_500(text: &str) -> Result<Wanted, Status> {
    parse(text).map_err(|why| Status::failure(Reason::Unknown, format!("resourceVersion: {why}")))
}

impl Call<'_> {
    /// Waits until the cache holds a version.
    ///
    /// # Errors
    ///
    /// 504: it did not come in time (requirements D-RV-58 to -61).
    pub(super) async fn reach(&self, version: Revision) -> Result<(), Status> {
        let items = &self.collection.items;
        let reached = tokio::time::timeout(PATIENCE, items.wait_for(version)).await;
        reached.map_err(|_| Status::version_too_large(version.0, self.plane.cache.revision().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_unsigned_numbers() {
        assert_eq!(parse(""), Ok(Wanted::MostRecent));
        assert_eq!(parse("0"), Ok(Wanted::Any));
        assert_eq!(parse("7"), Ok(Wanted::At(Revision(7))));
        for bad in ["abc", "-1", "1.5", " 1", "99999999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_or_500("x").unwrap_err().code, 500);
    }
}
