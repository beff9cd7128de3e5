//! The garbage collector: objects end with their owners (requirements D-DEL-11).
//!
//! # Contract
//!
//! An object whose owners are all gone is deleted; references to owners that are gone are removed from one that has
//! others. An owner that is deleted in the foreground stays until the dependents that block it are gone; one that is
//! deleted with `orphan` until its dependents have forgotten it. Every kind that is served takes part, events aside:
//! they are about objects, and belong to none. It writes through the verbs, as the account `generic-garbage-collector` of
//! the system namespace, or under the identity that all loops share.
//!
//! [`feed`] keeps an [`index`] of references from the store's changes, in their order; what has to be looked at goes into
//! a [`queue`], and workers decide it by the object as it is then: [`examine`] for dependents, [`endings`] for owners.
//!
//! # Invariants
//!
//! INVARIANT (no living owner): a dependent is deleted only if each of its owners was found absent from the store itself,
//! or waiting for its dependents, after the dependent was read; and only at the version that was read.
//! INVARIANT (nothing is missed): see [`feed`].
//! INVARIANT (nothing is remembered): all that is to be done follows from what is stored, so that a restart goes on.
//!
//! # Reference
//!
//! The reference's collector, whose rules are kept where they can be told from outside: a reference across namespaces
//! counts as absent, and one from a cluster-scoped object to a namespaced kind as never to be resolved, both with an
//! Event; owners of kinds that are not served keep what they own.

mod endings;
mod examine;
mod feed;
mod index;
mod owners;
mod queue;
mod report;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::{Reason, Status};
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::index::{Index, Work};
use self::queue::Queue;
use self::report::Reported;
use super::actor::{Actor, Target};
use crate::plane::{Collection, Item, Plane};

/// The account in whose name it writes.
const ACCOUNT: &str = "generic-garbage-collector";
/// Things done at a time.
const WORKERS: usize = 16;
/// Dependents of one owner that are looked at, at a time.
const AT_A_TIME: usize = 32;
/// Dependents of one owner that are taken from the index at a time.
const PART: usize = 256;

/// How often it is asked whether the process is ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// Collects until the process ends. Reading the whole store comes after what makes the process ready.
pub(super) async fn run(plane: Arc<Plane>, own_account: bool) {
    while plane.auth.health().is_err() {
        tokio::time::sleep(READY_POLL).await;
    }
    let collector = Arc::new(Collector::new(plane, own_account));
    let (loaded, mut is_loaded) = watch::channel(false);
    let follow = feed::follow(Arc::clone(&collector), move || {
        loaded.send_replace(true);
    });
    let work = async {
        // INVARIANT (nothing is missed): not before everything is in the index.
        if is_loaded.wait_for(|loaded| *loaded).await.is_ok() {
            let workers = (0..WORKERS).map(|_| collector.work());
            futures_util::future::join_all(workers).await;
        }
    };
    tokio::join!(follow, work);
}

/// See the module.
struct Collector {
    actor: Actor,
    index: Mutex<Index>,
    queue: Queue<Work>,
    /// The newest revision that the index holds.
    progress: watch::Sender<u64>,
    reported: Mutex<Reported>,
    /// Prefix of the keys of events.
    events: Option<String>,
}

/// Why something was not done, for the log; it is tried again.
#[derive(Debug)]
enum Failed {
    /// The object is another one by now.
    Moved,
    /// Something refused.
    For(String),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        match status.reason {
            Reason::Conflict => Failed::Moved,
            _ => Failed::For(status.to_string()),
        }
    }
}

impl From<storage::Error> for Failed {
    fn from(error: storage::Error) -> Self {
        Failed::For(error.to_string())
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Failed::For(why)
    }
}

/// An object that is looked at.
struct Subject<'a> {
    collection: &'a Collection,
    namespace: &'a str,
    name: &'a str,
    item: Arc<Item>,
}

impl Subject<'_> {
    fn target(&self) -> Target<'_> {
        Target { collection: self.collection, namespace: self.namespace, name: self.name, subresource: "" }
    }
}

impl Collector {
    fn new(plane: Arc<Plane>, own_account: bool) -> Self {
        let events = plane.registry.find("", "v1", "events").map(|events| events.key_prefix.clone());
        Collector {
            queue: Queue::new(Arc::clone(&plane.clock)),
            actor: Actor::controller(plane, ACCOUNT, own_account),
            index: Mutex::default(),
            progress: watch::Sender::new(0),
            reported: Mutex::default(),
            events,
        }
    }

    fn plane(&self) -> &Arc<Plane> {
        self.actor.plane()
    }

    fn is_ignored(&self, key: &str) -> bool {
        self.events.as_deref().is_some_and(|events| key.starts_with(events))
    }

    /// The namespace that a key lies in, or `""`.
    fn namespace(&self, key: &str) -> String {
        let resource = self.plane().registry.of_key(key);
        let place = resource.and_then(|resource| resource.parse_key(key));
        place.map_or_else(String::new, |(namespace, _)| namespace.to_owned())
    }

    /// The object at a key, if there is one of a kind that is served.
    async fn subject<'a>(&'a self, key: &'a str) -> Result<Option<Subject<'a>>, Failed> {
        let plane = self.plane();
        let collection = plane.registry.of_key(key).and_then(|resource| plane.collection(resource));
        let Some(collection) = collection else { return Ok(None) };
        let Some((namespace, name)) = collection.resource.parse_key(key) else { return Ok(None) };
        let (item, _) = collection.items.get(key).await?;
        Ok(item.map(|item| Subject { collection, namespace, name, item }))
    }

    /// One worker.
    async fn work(&self) {
        loop {
            let work = self.queue.take().await;
            self.perform(&work).await;
        }
    }

    async fn perform(&self, work: &Work) {
        let done = match work {
            Work::Examine(key) => self.examine(key).await,
            Work::Dependents(owner) => self.examine_dependents(*owner).await,
            Work::End(key) => self.end(key).await,
            Work::Finish(key) => self.finish(key).await,
        };
        match done {
            Ok(()) => self.queue.done(work),
            Err(why) => {
                if let Failed::For(reason) = why {
                    tracing::debug!(?work, reason, "the garbage collector tries again");
                }
                self.queue.failed(work);
            }
        }
    }

    /// Looks at every dependent of an owner, of one that waits only at those that block it. Those that fail come again by
    /// themselves.
    async fn examine_dependents(&self, owner: traces::Uid) -> Result<(), Failed> {
        let mut after = None;
        loop {
            let part: Vec<_> = {
                let index = self.index.lock();
                let waits = index.waits(owner);
                let part = index.dependents(owner, after.as_ref()).filter(|(_, blocks)| *blocks || !waits);
                part.take(PART).map(|(key, _)| Arc::clone(key)).collect()
            };
            let Some(last) = part.last() else { return Ok(()) };
            after = Some(Arc::clone(last));
            let look = |key: Arc<str>| async move {
                if self.examine(&key).await.is_err() {
                    self.queue.add(Work::Examine(key));
                }
            };
            stream::iter(part).for_each_concurrent(AT_A_TIME, look).await;
        }
    }
}
