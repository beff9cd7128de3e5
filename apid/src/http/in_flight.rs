//! How many requests are worked on at the same time (requirements D-ERR-36).
//!
//! # Contract
//!
//! Requests that read and requests that write are counted apart, each up to a limit of its own; beyond it they are
//! answered 429 with `Retry-After`. What lasts (watches and streams) is not counted, and members of the group
//! `system:masters` are always served. A request counts from when its user is known: nobody else's body is read, so that
//! the limit on writes bounds the memory of bodies, too.

use apimachinery::attributes::Attributes;
use apimachinery::status::{Details, Reason, Status};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Members are served whatever the load.
const PRIVILEGED: &str = "system:masters";

/// Seconds after which a refused client may come back.
const RETRY_AFTER: u32 = 1;

/// The limits, and who is within them.
pub(super) struct InFlight {
    reading: Option<Semaphore>,
    writing: Option<Semaphore>,
}

/// A place within the limits, held while a request is worked on; None for one that is not counted.
pub(super) type Place<'a> = Option<SemaphorePermit<'a>>;

impl InFlight {
    /// With room for so many; 0: no limit.
    pub(super) fn new((reading, writing): (usize, usize)) -> Self {
        let places = |count: usize| (count > 0).then(|| Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        InFlight { reading: places(reading), writing: places(writing) }
    }

    /// A place for a request.
    ///
    /// # Errors
    ///
    /// 429: there is none.
    pub(super) fn enter(&self, attributes: &Attributes, groups: &[String]) -> Result<Place<'_>, Status> {
        let places = if matches!(attributes.verb.as_str(), "get" | "head" | "list" | "watch") {
            &self.reading
        } else {
            &self.writing
        };
        let Some(places) = places.as_ref().filter(|_| !lasts(attributes)) else { return Ok(None) };
        match places.try_acquire() {
            Ok(place) => Ok(Some(place)),
            Err(_) if groups.iter().any(|group| group == PRIVILEGED) => Ok(None),
            Err(_) => {
                let details = Details { retry_after_seconds: RETRY_AFTER, ..Details::default() };
                let text = "Too many requests, please try again later.";
                Err(Status::failure(Reason::TooManyRequests, text).with_details(details))
            }
        }
    }
}

/// Whether a request is a stream that lasts as long as the client wants.
fn lasts(attributes: &Attributes) -> bool {
    matches!(attributes.verb.as_str(), "watch" | "proxy")
        || matches!(attributes.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(verb: &str, subresource: &str) -> Attributes {
        Attributes { verb: verb.to_owned(), subresource: subresource.to_owned(), ..Attributes::default() }
    }

    #[test]
    fn reads_and_writes_are_counted_apart() {
        let limits = InFlight::new((2, 1));
        let enter = |verb: &str, subresource: &str| limits.enter(&attributes(verb, subresource), &[]);
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
        let masters = limits.enter(&attributes("create", ""), &["system:masters".to_owned()]);
        assert!(masters.unwrap().is_none());
        drop((one, write));
        assert!(enter("get", "").is_ok() && enter("patch", "").is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let limits = InFlight::new((0, 0));
        for verb in ["get", "create"] {
            assert!(limits.enter(&attributes(verb, ""), &[]).unwrap().is_none());
        }
    }
}
