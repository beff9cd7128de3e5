//! Resource quota controller: keeps the usage in the status of resource quotas up to date.
//!
//! # Contract
//!
//! The controller follows resource quotas and every kind whose objects a quota counts. It recounts the usage of
//! a namespace after a new quota, and after a change of `spec.hard` or of a counted object. It also recounts
//! after each write that the admission plugin charged to a quota. Every [`RESYNC`], the controller recounts all
//! namespaces with quotas. A change in a namespace without quotas costs one lookup.
//!
//! # Invariants
//!
//! INVARIANT (never exceeded), see `admission::quota`: while the controller counts the objects of a
//! namespace, the plugin of this process charges no write in that namespace. The controller reads the quotas, then the
//! reservations, then the objects, and writes by compare-and-swap. It counts the reservation of a write until the watch
//! cache contains the written object.
//! INVARIANT (incremental count): between two resyncs, an object that has not changed since the last count
//! is not decoded again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use admission::quantity::{self, Amounts};
use admission::quota::{self, MeasuredObject, Reservation, Reservations, Scopes};
use apimachinery::object::Object;
use apimachinery::status::Status;
use parking_lot::Mutex;
use serde_json::Value;
use storage::Revision;
use tokio::task::JoinSet;

use super::actor::{Actor, Target};
use super::queue::Queue;
use super::reflector::{ObjectEvent, follow_keys, reflect};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::{ApiState, Collection, Items, Snapshot};

use crate::ControllerState;

/// Debounce interval: changes within it cause one count.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Interval between two recounts of all namespaces with quotas.
const RESYNC: Duration = Duration::from_secs(300);

/// The known quotas by namespace and name, each with the keys of its `spec.hard`.
type Quotas = HashMap<String, HashMap<String, Vec<String>>>;

/// The controller; its keys are names of namespaces.
struct QuotaController {
    actor: Actor,
    queue: Arc<Queue<String>>,
    reservations: Arc<Reservations>,
    quotas: Mutex<Quotas>,
    /// The watch cache of each followed kind, by key prefix.
    followed: Mutex<HashMap<String, Arc<Items>>>,
    /// Measured objects by namespace. Only one worker counts objects, so the lock has no contention.
    measured: Mutex<HashMap<String, MeasuredObjects>>,
    /// The tasks that follow the counted kinds. They end with the controller, so they hold no reference to the controller.
    followers: Mutex<JoinSet<()>>,
}

/// The measured objects of a namespace by key, each with the revision that was measured.
type MeasuredObjects = HashMap<Arc<str>, (Revision, Arc<MeasuredObject>)>;

/// Updates the usage of resource quotas until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let Ok(quotas) = collection(&state.api_state) else { return };
    let runner = Runner::new(&state, "resourcequota_primary").debounce(DEBOUNCE);
    let controller = Arc::new(QuotaController {
        reservations: Arc::clone(&state.api_state.admission.environment().reservations),
        actor: state.controller("resourcequota-controller"),
        queue: runner.queue(),
        quotas: Mutex::default(),
        followed: Mutex::default(),
        measured: Mutex::default(),
        followers: Mutex::default(),
    });
    let [observer, requests, claims, resync, kinds] = std::array::from_fn(|_| Arc::clone(&controller));
    runner
        .watch(&quotas.items, move |event| observer.observe_quota(event))
        .source(async move { requests.queue_requested().await })
        .source(async move { claims.queue_ended_claims().await })
        .source(async move { resync.resync().await })
        .source(async move { kinds.follow_new_kinds().await })
        .run(controller)
        .await;
}

fn collection(api_state: &ApiState) -> Result<Arc<Collection>, Status> {
    stored::core(api_state, "resourcequotas")
}

impl Reconcile for QuotaController {
    type Key = String;

    async fn reconcile(&self, namespace: &String) -> Result<Requeue, Status> {
        let has_quotas = self.quotas.lock().contains_key(namespace);
        if has_quotas {
            self.count(namespace).await?;
        }
        Ok(Requeue::No)
    }
}

impl QuotaController {
    /// Records a quota. Returns its namespace if the namespace needs a count.
    fn observe_quota(self: &Arc<Self>, event: ObjectEvent<'_>) -> Option<String> {
        let entry = match event {
            ObjectEvent::Exists(entry) => entry,
            ObjectEvent::Deleted(entry) => {
                let mut quotas = self.quotas.lock();
                let namespace_quotas = quotas.get_mut(entry.namespace())?;
                namespace_quotas.remove(entry.name());
                if namespace_quotas.is_empty() {
                    quotas.remove(entry.namespace());
                    self.measured.lock().remove(entry.namespace());
                }
                return None;
            }
        };
        let quota = entry.object(Revision(0)).ok()?;
        let hard = quota.at(&["spec", "hard"]).and_then(Value::as_object);
        let names: Vec<String> = hard.into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let namespace = entry.namespace().to_owned();
        // First, because the kinds report only objects in namespaces with a quota.
        self.quotas
            .lock()
            .entry(namespace.clone())
            .or_default()
            .insert(entry.name().to_owned(), names.clone());
        self.follow_kinds(&names);
        // The charge of a write changes only the usage. The end of the write requests the recount.
        (quota.at(&["spec", "hard"]) != quota.at(&["status", "hard"])).then_some(namespace)
    }

    /// Follows the kinds whose objects the keys `names` of `spec.hard` limit.
    fn follow_kinds(self: &Arc<Self>, names: &[String]) {
        let api_state = self.actor.api_state();
        let collections = api_state.kinds.collections().into_iter();
        for collection in collections.filter(|collection| collection.kind.namespaced) {
            let resource = collection.kind.internal();
            let is_counted =
                names.iter().any(|name| quota::counts_resource(resource, name, &api_state.names));
            if !is_counted {
                continue;
            }
            let items = Arc::clone(&collection.items);
            let previous = self.followed.lock().insert(resource.key_prefix.clone(), Arc::clone(&items));
            if previous.is_none_or(|previous| !Arc::ptr_eq(&previous, &items)) {
                let controller = Arc::downgrade(self);
                let mut followers = self.followers.lock();
                while followers.try_join_next().is_some() {}
                followers.spawn(reflect(items, move |event| {
                    if let Some(controller) = controller.upgrade() {
                        controller.request_count(event.entry().namespace());
                    }
                }));
            }
        }
    }

    /// Requests a count of the objects of a namespace, if the namespace has quotas.
    fn request_count(&self, namespace: &str) {
        if self.quotas.lock().contains_key(namespace) {
            self.queue.add_after(namespace.to_owned(), DEBOUNCE);
        }
    }

    /// Requests a count of each namespace with quotas.
    fn request_counts(&self) {
        let namespaces: Vec<String> = self.quotas.lock().keys().cloned().collect();
        namespaces.iter().for_each(|namespace| self.request_count(namespace));
    }

    /// Requests a count of each namespace in which the admission plugin ends a write.
    async fn queue_requested(&self) {
        loop {
            let namespaces = self.reservations.next_recount().await;
            namespaces.into_iter().for_each(|namespace| self.queue.add_after(namespace, DEBOUNCE));
        }
    }

    /// Requests a count of each namespace in which a reservation of any server ends, if several servers use the store.
    async fn queue_ended_claims(&self) {
        let Some((store, prefix)) = self.reservations.shared() else { return };
        follow_keys(&**store, &prefix, |change| match change {
            None => self.request_counts(),
            Some(change) if change.new.is_none() => {
                let key = change.key.strip_prefix(&*prefix).and_then(|key| key.split_once('/'));
                key.into_iter().for_each(|(namespace, _)| self.request_count(namespace));
            }
            Some(_) => {}
        })
        .await;
    }

    /// Follows kinds that become served after the creation of the quotas that count their objects.
    async fn follow_new_kinds(self: &Arc<Self>) {
        let mut changes = self.actor.api_state().kinds.changes();
        while changes.changed().await.is_ok() {
            if self.quotas.lock().is_empty() && self.followed.lock().is_empty() {
                continue;
            }
            let served: HashSet<String> = {
                let collections = self.actor.api_state().kinds.collections().into_iter();
                collections.map(|collection| collection.kind.key_prefix.clone()).collect()
            };
            self.followed.lock().retain(|prefix, _| served.contains(prefix));
            let names: BTreeSet<String> = {
                let quotas = self.quotas.lock();
                quotas
                    .values()
                    .flat_map(|namespace_quotas| namespace_quotas.values().flatten().cloned())
                    .collect()
            };
            self.follow_kinds(&names.into_iter().collect::<Vec<_>>());
        }
    }

    /// Requests a recount of all namespaces with quotas in each resync interval.
    async fn resync(&self) {
        loop {
            tokio::time::sleep(RESYNC).await;
            self.measured.lock().clear();
            self.request_counts();
        }
    }

    /// Counts the objects of a namespace and updates the quotas whose status changes.
    async fn count(&self, namespace: &str) -> Result<(), Status> {
        let api_state = self.actor.api_state();
        let quotas = collection(api_state)?;
        let _lock = self.reservations.lock_namespace(namespace).await;
        // The quotas first: a charge that is in their status belongs to a reservation or to an object.
        let stored_quotas = stored::objects(&quotas, &quotas.kind.key(namespace, "")).await?;
        let at = quotas.items.snapshot().await.map_err(stored::unavailable)?.revision();
        let reservations =
            self.reservations.in_namespace(namespace, at).await.map_err(stored::unavailable)?;
        let counted: Vec<Arc<Collection>> = api_state
            .kinds
            .collections()
            .into_iter()
            .filter(|collection| {
                let counts_kind =
                    |name: &str| quota::counts_resource(collection.kind.internal(), name, &api_state.names);
                collection.kind.namespaced
                    && stored_quotas.iter().any(|quota| hard_names(quota).any(counts_kind))
            })
            .collect();
        let objects = self.measure(namespace, &counted, &reservations).await?;
        for quota in stored_quotas {
            let updated = self.with_counted_usage(&quota, &objects);
            if updated.at(&["status"]) != quota.at(&["status"]) {
                let name = quota.name().to_owned();
                let target = Target { collection: &quotas, namespace, name: &name, subresource: "status" };
                self.actor.update(target, updated).await?;
            }
        }
        Ok(())
    }

    /// Measures the objects of the counted kinds in a namespace, and the reserved objects that are not stored
    /// yet.
    async fn measure(
        &self,
        namespace: &str,
        counted: &[Arc<Collection>],
        reservations: &[Reservation],
    ) -> Result<Vec<(Arc<Collection>, Vec<Arc<MeasuredObject>>)>, Status> {
        let api_state = self.actor.api_state();
        let mut old_measured = self.measured.lock().remove(namespace).unwrap_or_default();
        let mut new_measured = MeasuredObjects::with_capacity(old_measured.len());
        let mut objects_by_kind = Vec::with_capacity(counted.len());
        for collection in counted {
            let resource = collection.kind.internal();
            let items: &Arc<Items> = &collection.items;
            let snapshot: Snapshot = items.snapshot().await.map_err(stored::unavailable)?;
            let scope = resource.key(namespace, "");
            // All objects of a plain kind (see `quota::is_plain`) have the same usage, so none is decoded.
            let plain = quota::is_plain(resource)
                .then(|| Arc::new(MeasuredObject::of(resource, &Object::default(), &api_state.names)));
            let mut kind_objects = Vec::new();
            for item in snapshot.scope(&scope, "") {
                let mut may_be_kept = plain.is_none();
                let measured = match (&plain, old_measured.remove(item.key())) {
                    (Some(plain), _) => Arc::clone(plain),
                    (None, Some((revision, measured))) if revision == item.revision() => measured,
                    (None, _) => {
                        // An object that cannot be decoded counts as an object without any fields, until it can be
                        // decoded at the same revision.
                        let object = stored::object(item);
                        may_be_kept = object.is_some();
                        Arc::new(MeasuredObject::of(resource, &object.unwrap_or_default(), &api_state.names))
                    }
                };
                if may_be_kept {
                    new_measured.insert(Arc::clone(item.key()), (item.revision(), Arc::clone(&measured)));
                }
                let reservation = reservations.iter().find(|reservation| {
                    *reservation.key == **item.key() && reservation.replaces == item.revision().to_string()
                });
                kind_objects.push(match reservation {
                    Some(reservation) => Arc::new(reservation.measured.at_least(&measured)),
                    None => measured,
                });
            }
            let new = reservations.iter().filter(|reservation| {
                reservation.replaces.is_empty()
                    && reservation.key.starts_with(&scope)
                    && snapshot.item(&reservation.key).is_none()
            });
            kind_objects.extend(new.map(|reservation| Arc::new(reservation.measured.clone())));
            objects_by_kind.push((Arc::clone(collection), kind_objects));
        }
        self.measured.lock().insert(namespace.to_owned(), new_measured);
        Ok(objects_by_kind)
    }

    /// Returns a quota with `spec.hard` and the counted usage in its status.
    fn with_counted_usage(
        &self,
        quota: &Object,
        objects: &[(Arc<Collection>, Vec<Arc<MeasuredObject>>)],
    ) -> Object {
        let api_state = self.actor.api_state();
        let now = api_state.clock.now();
        let scopes = Scopes::of(quota);
        let counts_kind = |collection: &Collection, name: &str| {
            quota::counts_resource(collection.kind.internal(), name, &api_state.names)
        };
        let counted = objects.iter().filter(|(c, _)| hard_names(quota).any(|name| counts_kind(c, name)));
        let in_scope =
            counted.flat_map(|(_, measured)| measured.iter().filter(|object| scopes.contain(object)));
        let used: Amounts = quota::sum(quota, in_scope.map(|measured| measured.amounts(now)), |name| {
            objects.iter().any(|(collection, _)| counts_kind(collection, name))
        });
        let mut new = quota::with_used(quota, &used);
        if let (Some(hard), Some(status)) =
            (quota.at(&["spec", "hard"]), new.get_mut("status").and_then(Value::as_object_mut))
        {
            status.insert("hard".to_owned(), hard.clone());
            // Keep the text of equal amounts: `1` and `1000m` are equal, and a new text would cause a write.
            let old_used = quota.at(&["status", "used"]);
            if old_used.is_some() && quantity::amounts(old_used) == used {
                status.insert("used".to_owned(), old_used.cloned().unwrap_or_default());
            }
        }
        new
    }
}

/// Returns the keys of `spec.hard` of a quota.
fn hard_names(quota: &Object) -> impl Iterator<Item = &str> {
    let hard = quota.at(&["spec", "hard"]).and_then(Value::as_object);
    hard.into_iter().flatten().map(|(name, _)| name.as_str())
}
