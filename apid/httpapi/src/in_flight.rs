//! Limits of requests in flight (requirements D-ERR-36).
//!
//! # Contract
//!
//! Reads and writes have a limit each. Above the limit, apid responds 429 with `Retry-After`. One user takes
//! at most half of a limit. Watches and streams are not counted, and members of the group `system:masters`
//! are always served; above the half of the user their requests are not counted, so they take no permits of
//! other users. A request counts from the time at which it is authorized, its body is complete and, for
//! a large request, a worker is free.

use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::attributes::Attributes;
use apimachinery::status::{Details, Reason, Status};
use apimachinery::user::MASTERS;

use crate::request_info::is_long_running;
use crate::shares::UserShare;

/// Seconds after which a rejected client may retry.
const RETRY_AFTER: u32 = 1;

/// Returns 429 with `Retry-After`.
pub(super) fn too_many_requests(reason: &str) -> Status {
    let details = Details { retry_after_seconds: RETRY_AFTER, ..Details::default() };
    let text = match reason {
        "" => "Too many requests, please try again later.".to_owned(),
        reason => format!("Too many requests, please try again later: {reason}"),
    };
    Status::failure(Reason::TooManyRequests, text).with_details(details)
}

/// The limits of reads and writes.
pub(super) struct InFlightLimits {
    reads: Option<Limit>,
    writes: Option<Limit>,
}

struct Limit {
    requests: AtomicUsize,
    max: usize,
    max_of_user: usize,
}

/// A request that counts against a limit and the share of its user until the permit is dropped.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    requests: &'a AtomicUsize,
    requests_of_user: &'a AtomicUsize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.requests_of_user.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InFlightLimits {
    /// Creates the limits for reads and writes; 0 means no limit.
    pub(super) fn new((max_reads, max_writes): (usize, usize)) -> Self {
        let limit = |max: usize| {
            (max > 0).then(|| Limit { requests: AtomicUsize::new(0), max, max_of_user: max.div_ceil(2) })
        };
        InFlightLimits { reads: limit(max_reads), writes: limit(max_writes) }
    }

    /// Takes a permit for a request of a user. None for a request that is not counted.
    ///
    /// The request holds the permit until it is handled.
    ///
    /// # Errors
    ///
    /// 429: the limit of the server or of the user is reached.
    pub(super) fn enter<'a>(
        &'a self,
        attributes: &Attributes,
        groups: &[String],
        share: &'a UserShare,
    ) -> Result<Option<Permit<'a>>, Status> {
        let (limit, requests_of_user) = match is_read(attributes) {
            true => (&self.reads, &share.reads),
            false => (&self.writes, &share.writes),
        };
        let Some(limit) = limit.as_ref().filter(|_| !is_long_running(attributes)) else { return Ok(None) };
        let rejection = if !add_below(requests_of_user, limit.max_of_user) {
            "the requests of this user in flight reach half of the limit"
        } else if !add_below(&limit.requests, limit.max) {
            requests_of_user.fetch_sub(1, Ordering::Relaxed);
            ""
        } else {
            return Ok(Some(Permit { requests: &limit.requests, requests_of_user }));
        };
        let is_privileged = groups.iter().any(|group| group == MASTERS);
        if is_privileged { Ok(None) } else { Err(too_many_requests(rejection)) }
    }
}

/// Adds one to a number of requests that is below the limit. Returns whether it was.
fn add_below(requests: &AtomicUsize, max: usize) -> bool {
    let add_one = |requests| (requests < max).then_some(requests + 1);
    requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one).is_ok()
}

/// Whether a request counts as a read.
pub(super) fn is_read(attributes: &Attributes) -> bool {
    matches!(attributes.verb.as_str(), "get" | "head" | "list" | "watch")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Shares;

    fn attributes(verb: &str, subresource: &str) -> Attributes {
        let (verb, subresource) = (verb.to_owned(), subresource.to_owned());
        Attributes { verb, subresource, resource_request: true, ..Attributes::default() }
    }

    #[test]
    fn reads_and_writes_have_separate_limits() {
        let limits = InFlightLimits::new((4, 2));
        let share = Shares::new().share_of("a");
        let enter = |verb: &str, subresource: &str| limits.enter(&attributes(verb, subresource), &[], &share);
        let (one, two) = (enter("get", "").unwrap(), enter("list", "status").unwrap());
        assert!(one.is_some() && two.is_some());
        let refused = enter("get", "").unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
        assert_eq!(refused.details.unwrap().retry_after_seconds, RETRY_AFTER);
        let write = enter("create", "").unwrap();
        for verb in ["create", "update", "patch", "delete", "deletecollection", "post"] {
            assert_eq!(enter(verb, "").unwrap_err().code, 429, "{verb}");
        }
        for (verb, subresource) in [("watch", ""), ("get", "log"), ("create", "exec"), ("create", "proxy")] {
            assert!(enter(verb, subresource).unwrap().is_none(), "{verb} {subresource}");
        }
        let method = Attributes { resource_request: false, ..attributes("watch", "") };
        assert_eq!(limits.enter(&method, &[], &share).unwrap_err().code, 429, "WATCH is a method");
        let masters = limits.enter(&attributes("create", ""), &["system:masters".to_owned()], &share);
        assert!(masters.unwrap().is_none());
        drop((one, write));
        assert!(enter("get", "").is_ok() && enter("patch", "").is_ok());
    }

    #[test]
    fn limit_of_zero_is_unlimited() {
        let limits = InFlightLimits::new((0, 0));
        let share = Shares::new().share_of("a");
        for verb in ["get", "create"] {
            assert!(limits.enter(&attributes(verb, ""), &[], &share).unwrap().is_none());
        }
    }

    #[test]
    fn user_above_half_of_in_flight_limit_gets_429() {
        let limits = InFlightLimits::new((400, 200));
        let shares = Shares::new();
        let (a, b) = (shares.share_of("a"), shares.share_of("b"));
        let create = attributes("create", "");
        let mut permits: Vec<_> = (0..100).map(|_| limits.enter(&create, &[], &a).unwrap()).collect();
        assert_eq!(limits.enter(&create, &[], &a).err().map(|status| status.code), Some(429));
        assert!(limits.enter(&create, &[], &b).is_ok());
        permits.pop();
        assert!(limits.enter(&create, &[], &a).is_ok());
    }

    #[test]
    fn privileged_request_is_served_beyond_the_limit() {
        let limits = InFlightLimits::new((1, 1));
        let share = Shares::new().share_of("a");
        let create = attributes("create", "");
        let _held = limits.enter(&create, &[], &share).unwrap();
        assert_eq!(limits.enter(&create, &[], &share).err().map(|status| status.code), Some(429));
        let masters = limits.enter(&create, &["system:masters".to_owned()], &share);
        assert!(masters.unwrap().is_none());
    }

    #[test]
    fn privileged_user_takes_at_most_half_of_the_limit() {
        let limits = InFlightLimits::new((2, 2));
        let shares = Shares::new();
        let (a, b) = (shares.share_of("a"), shares.share_of("b"));
        let (create, groups) = (attributes("create", ""), ["system:masters".to_owned()]);
        let permits: Vec<_> = (0..3).map(|_| limits.enter(&create, &groups, &a).unwrap()).collect();
        assert_eq!(permits.iter().flatten().count(), 1);
        assert!(limits.enter(&create, &[], &b).unwrap().is_some());
    }
}
