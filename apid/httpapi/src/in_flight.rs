//! Two limits of requests at once, for `--enable-priority-and-fairness=false` (requirements D-ERR-36).
//!
//! # Contract
//!
//! Reads and writes have a limit each; above it apid responds 429 with `Retry-After`. Members of the group
//! `system:masters` are always served, and above the limit their requests are not counted.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::status::{Details, Reason, Status};
use apimachinery::user::{MASTERS, UserInfo};
use flowcontrol::ServerLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Seconds after which a rejected client may retry.
const RETRY_AFTER: u32 = 1;

/// Returns 429 with `Retry-After`.
pub(super) fn too_many_requests(reason: &str) -> Status {
    let details = Details { retry_after_seconds: RETRY_AFTER, ..Details::default() };
    let text = format!("Too many requests, please try again later: {reason}");
    Status::failure(Reason::TooManyRequests, text).with_details(details)
}

/// The limits of reads and writes, as far as there are limits.
pub(super) struct InFlightLimits {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
}

/// A request that counts against a limit until the permit is dropped.
pub(super) type PlainPermit = OwnedSemaphorePermit;

/// The limit of a request is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitReached;

impl InFlightLimits {
    /// Creates the limits; 0 means no limit.
    pub(super) fn new(server: ServerLimits) -> Self {
        let limit = |max: usize| (max > 0).then(|| Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))));
        InFlightLimits { reads: limit(server.reads), writes: limit(server.writes) }
    }

    /// Takes a permit for a request of a user. None for a request that is not counted.
    ///
    /// # Errors
    ///
    /// The limit is reached.
    pub(super) fn enter(
        &self,
        attributes: &Attributes,
        user: &UserInfo,
    ) -> Result<Option<PlainPermit>, LimitReached> {
        let limit = if is_read(attributes) { &self.reads } else { &self.writes };
        let Some(limit) = limit else { return Ok(None) };
        match Arc::clone(limit).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_full) if user.in_group(MASTERS) => Ok(None),
            Err(_full) => Err(LimitReached),
        }
    }
}

/// Whether a request counts as a read.
pub(super) fn is_read(attributes: &Attributes) -> bool {
    matches!(attributes.verb.as_str(), "get" | "head" | "list" | "watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(verb: &str) -> Attributes {
        Attributes { verb: verb.to_owned(), resource_request: true, ..Attributes::default() }
    }

    #[test]
    fn reads_and_writes_have_separate_limits() {
        let limits = InFlightLimits::new(ServerLimits { reads: 2, writes: 1 });
        let user = UserInfo::default();
        let enter = |verb: &str| limits.enter(&attributes(verb), &user);
        let (one, two) = (enter("get").unwrap(), enter("list").unwrap());
        assert!(one.is_some() && two.is_some());
        assert_eq!(enter("get").err(), Some(LimitReached));
        let write = enter("create").unwrap();
        for verb in ["create", "update", "patch", "delete", "deletecollection", "post"] {
            assert_eq!(enter(verb).err(), Some(LimitReached), "{verb}");
        }
        drop((one, write));
        assert!(enter("get").is_ok() && enter("patch").is_ok());
    }

    #[test]
    fn masters_are_served_above_the_limit() {
        let limits = InFlightLimits::new(ServerLimits { reads: 1, writes: 1 });
        let masters = UserInfo { groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
        let first = limits.enter(&attributes("get"), &masters).unwrap();
        assert!(first.is_some());
        assert!(limits.enter(&attributes("get"), &masters).unwrap().is_none());
        assert_eq!(limits.enter(&attributes("get"), &UserInfo::default()).err(), Some(LimitReached));
    }

    #[test]
    fn limit_of_zero_is_unlimited() {
        let limits = InFlightLimits::new(ServerLimits { reads: 0, writes: 0 });
        for verb in ["get", "create"] {
            assert!(limits.enter(&attributes(verb), &UserInfo::default()).unwrap().is_none());
        }
    }
}
