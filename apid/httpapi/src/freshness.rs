//! Fresh decisions and reads of several servers on one store.
//!
//! # Contract
//!
//! At the arrival of a request, before authentication, [`Freshness::await_arrival`] waits until this process has published
//! every write that was acknowledged before, by any server. Everything that the request then uses is at least as new:
//! identities, policy, webhooks, admission policies, served kinds and objects. With [`PolicyConsistency::Bounded`] a
//! request waits only if its verb needs the newest objects; the policy is at most [`MAX_AGE`] old.
//!
//! A request for objects in a separate store waits for the newest revision of that store, too, and only such a request: while
//! the separate store does not answer, all others go on. The policy is read after these objects, so the decision is at
//! least as new as they are. A write of such an object also needs the main store, which has its namespace.
//!
//! A request that waited in a queue is authorized again, after [`Freshness::await_policy`]. Health checks do not wait. A
//! store without other writers has no [`Freshness`].
//!
//! # Invariants
//!
//! INVARIANT (fail closed): a request gets 503 if the newest state is not known in time, or with
//! [`PolicyConsistency::Bounded`] if the age is above [`MAX_AGE`].

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use kinds::{Kind, Storage};
use storage::{NewestReads, Revision};
use verbs::{ApiState, Cache, SeparateStore};

use crate::query::Query;
use crate::request_info::RequestInfo;

/// Maximum age of the policy with [`PolicyConsistency::Bounded`]; above it, the server is not ready.
pub const MAX_AGE: Duration = Duration::from_secs(10);
/// Maximum time until the kinds of an observed definition are served.
const DEFINITIONS_TIMEOUT: Duration = Duration::from_secs(6);

/// The policy on which requests are decided while other servers write policy (`--policy-consistency`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyConsistency {
    /// The newest policy at the arrival of the request.
    Fresh,
    /// Policy that is at most [`MAX_AGE`] old.
    Bounded,
}

/// The freshness of the requests of this server.
#[derive(Debug)]
pub struct Freshness {
    reads: Arc<NewestReads>,
    consistency: PolicyConsistency,
    max_age: Duration,
}

impl Freshness {
    /// The freshness of a store to which other servers write. [`NewestReads::run`] must run.
    pub fn new(reads: Arc<NewestReads>, consistency: PolicyConsistency) -> Self {
        Freshness { reads, consistency, max_age: MAX_AGE }
    }

    /// As [`Freshness::new`], with another maximum age.
    #[cfg(test)]
    pub(crate) fn with_max_age(
        reads: Arc<NewestReads>,
        consistency: PolicyConsistency,
        max_age: Duration,
    ) -> Self {
        Freshness { reads, consistency, max_age }
    }

    /// Whether the age of the policy and of the objects is within the bound, for readiness.
    ///
    /// # Errors
    ///
    /// The reason why it is not.
    pub fn check_age(&self) -> Result<(), String> {
        let bound = self.max_age.as_secs_f32();
        match self.reads.age() {
            Some(age) if age <= self.max_age => Ok(()),
            Some(age) => Err(format!(
                "policy and objects may be {} s old, more than {bound} s: etcd does not answer, or its watch is behind",
                age.as_secs()
            )),
            None => Err("etcd has not told its newest revision since the start".to_owned()),
        }
    }

    /// Waits at the arrival of a request until its decision and its verb use a state that is new enough.
    ///
    /// # Errors
    ///
    /// 503: the state is not new enough in time.
    pub(crate) async fn await_arrival(
        &self,
        api_state: &ApiState,
        info: &RequestInfo,
        query: &Query,
    ) -> Result<(), Status> {
        // A kind in a separate store is built in, so no newer definition is needed to find the kind.
        let separate = api_state.separate_store.as_ref();
        let separate = separate
            .filter(|separate| requested_kind(api_state, info).is_some_and(|kind| separate.has(&kind)));
        if let Some(separate) = separate
            && self.needs_newest_objects(&separate.cache, info, query)
        {
            catch_up_with_separate(separate).await?;
        }
        self.await_policy().await?;
        let kind = requested_kind(api_state, info);
        let kind = kind.as_deref();
        let needs_main_store = match separate {
            Some(_) => !is_read(info),
            None => {
                kind.is_none_or(|kind| matches!(kind.storage, Storage::Stored | Storage::Shared(_)))
                    && self.needs_newest_objects(&api_state.cache, info, query)
            }
        };
        if self.consistency == PolicyConsistency::Bounded && needs_main_store {
            self.catch_up().await?;
        }
        if concerns_definitions(info, kind) {
            let wait = api_state.kinds.wait_for_definitions(&api_state.names);
            tokio::time::timeout(DEFINITIONS_TIMEOUT, wait).await.map_err(|_elapsed| {
                let text = "the definitions of custom kinds that another server accepted are not served yet: try again";
                Status::unavailable(text, 1)
            })?;
        }
        Ok(())
    }

    /// The reads of the newest revision of the main store.
    pub fn reads(&self) -> Arc<NewestReads> {
        Arc::clone(&self.reads)
    }

    /// Whether each decision rests on the newest policy.
    pub fn is_fresh(&self) -> bool {
        self.consistency == PolicyConsistency::Fresh
    }

    /// Waits until a request can be decided on policy that is new enough.
    ///
    /// # Errors
    ///
    /// As [`Freshness::await_arrival`].
    pub(crate) async fn await_policy(&self) -> Result<(), Status> {
        match self.consistency {
            PolicyConsistency::Fresh => self.catch_up().await,
            PolicyConsistency::Bounded => self.check_age().map_err(|_| {
                // The client is not known yet: the reason is in `/readyz` and in the log.
                let bound = self.max_age.as_secs_f32();
                let text = format!(
                    "the policy of this server may be older than {bound} s, so that no request is decided: try again, or \
                     see the check policy-age of /readyz"
                );
                Status::unavailable(text, 1)
            }),
        }
    }

    /// Whether a request needs the newest objects of a cache: its verb reads them, or writes. A read that accepts the state of
    /// a revision or any state needs none that is newer than the cache, unless each decision rests on the newest policy.
    fn needs_newest_objects(&self, cache: &Cache, info: &RequestInfo, query: &Query) -> bool {
        if self.is_fresh() {
            return true;
        }
        // The revision of a continued list is in its token.
        let accepted =
            query.text("resourceVersion").parse().ok().filter(|_| query.text("continue").is_empty());
        let is_known = || accepted.is_some_and(|revision| Revision(revision) <= cache.revision());
        info.attributes.resource_request && !(is_read(info) && is_known())
    }

    async fn catch_up(&self) -> Result<(), Status> {
        self.reads.catch_up().await.map_err(|_| {
            // The client is not known yet: the reason is in the log.
            let text = "the newest policy and objects are not known to this server, so that no request is decided: try \
                        again, or see /readyz";
            Status::unavailable(text, 1)
        })
    }
}

async fn catch_up_with_separate(separate: &SeparateStore) -> Result<(), Status> {
    separate.reads.catch_up().await.map_err(|_| {
        // The client is not known yet: the reason is in the log.
        let text = "the newest objects of this resource, which has an etcd cluster of its own, are not known to this server: try \
                    again, or see /readyz";
        Status::unavailable(text, 1)
    })
}

/// The kind of a request; None for an unknown kind, and if the request is not for a resource.
fn requested_kind(api_state: &ApiState, info: &RequestInfo) -> Option<Arc<Kind>> {
    let attributes = &info.attributes;
    if !attributes.resource_request {
        return None;
    }
    let kinds = api_state.kinds.get();
    kinds.registry.find(&attributes.group, &attributes.version, &attributes.resource).cloned()
}

fn is_read(info: &RequestInfo) -> bool {
    matches!(info.attributes.verb.as_str(), "get" | "list" | "watch")
}

/// Whether the served kinds decide about a request: it is for a custom or an unknown kind, or for a document about kinds.
fn concerns_definitions(info: &RequestInfo, kind: Option<&Kind>) -> bool {
    if !info.attributes.resource_request {
        return info.segments.first().is_some_and(|root| matches!(root.as_str(), "apis" | "openapi"));
    }
    kind.is_none_or(Kind::is_custom)
}
