//! Objects that exist from the start: priority classes, flow control, APIServices, the API's Service.
//!
//! # Contract
//!
//! [`run`] creates all missing objects concurrently and then reports completion. Correct objects are not
//! written again, so a restart changes nothing. Some objects are *created once* per start: after a deletion,
//! they are absent until the next start. Other objects are *kept*: after a deletion, they are restored at the
//! next check, at the latest after [`CHECK_INTERVAL`]. Each apid creates missing objects at its start; later only the
//! leader of several apids restores the kept objects.
//!
//! | objects | after a deletion | after a change |
//! |---|---|---|
//! | priority classes | absent until the next start | left unchanged |
//! | APIServices of built-in group versions | absent until the next start | restored at the next start |
//! | APIServices of custom resource definitions | restored | restored; see [`definitions`] |
//! | mandatory flow schemas and priority levels | restored | restored |
//! | suggested flow schemas and priority levels | restored | depends on an annotation, see [`flow_control`] |
//! | Service, ServiceCIDR | restored | left unchanged |
//! | Endpoints, EndpointSlice | restored | restored; several servers: see [`endpoints`] |
//!
//! # Invariants
//!
//! INVARIANT (ordinary writes): the objects are written through the verbs as `system:apiserver`, so
//! audit and admission handle them like other writes.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::actor::{Actor, Target, is_normal};
use super::condition::{Condition, with_conditions};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::Collection;

use crate::ControllerState;

mod api_services;
mod dangling;
mod definitions;
pub mod endpoints;
mod flow_control;
mod own_service;
mod priority_classes;

pub use endpoints::EndpointReconciler;
pub use own_service::AdvertisedServer;

/// Interval of the checks of kept objects. A check reads only the watch cache.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Pause after which the object of another apid exists that starts at the same moment.
const CONCURRENT_CREATION_TIME: Duration = Duration::from_millis(500);

/// Function that returns the state to which an existing object is restored, or None if the object stays.
type RestoreFn = fn(current: &Object, desired: &Object) -> Option<Object>;

/// An object that must exist.
struct StartObject {
    /// Group of the object without its domain, and kind.
    kind: (&'static str, &'static str),
    /// The object, with name and namespace.
    object: Object,
    restore: RestoreFn,
    /// Condition that the status of the object must have.
    condition: Option<Condition>,
}

impl StartObject {
    /// Creates an object that is left unchanged once it exists.
    fn new(group: &'static str, kind: &'static str, object: Value) -> Self {
        let object = Object::from_value(object).unwrap_or_default();
        StartObject { kind: (group, kind), object, restore: |_, _| None, condition: None }
    }

    fn restored_by(self, restore: RestoreFn) -> Self {
        StartObject { restore, ..self }
    }

    fn with_condition(self, condition: Condition) -> Self {
        StartObject { condition: Some(condition), ..self }
    }

    /// Whether an existing object needs no write. `now` is the current time as RFC 3339 text.
    fn is_met_by(&self, current: &Object, now: &str) -> bool {
        let needs_write = || {
            (self.restore)(current, &self.object).is_some()
                || with_conditions(current, self.condition.as_slice(), now).is_some()
        };
        current.is_terminating() || !needs_write()
    }
}

/// Returns a JSON object with those of the fields that are not null.
fn without_nulls<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    fields.map(|(field, value)| (field.to_owned(), value)).collect()
}

/// The objects that a key of the controller stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum StartObjects {
    CreatedOnce,
    Kept,
}

/// The controller of the start objects.
struct StartObjectController {
    actor: Actor,
    /// The actor that restores the kept objects.
    leader: Actor,
    /// The objects of [`StartObjects::CreatedOnce`] whose creation failed so far.
    failed: Mutex<Vec<StartObject>>,
    kept: Vec<StartObject>,
}

/// Creates the objects, calls `on_created`, and restores the kept objects until the process ends.
///
/// `on_created` is called after one attempt for each object. An object that an admission plugin rejects is retried
/// and does not delay the start.
pub async fn run(
    state: Arc<ControllerState>,
    published: AdvertisedServer,
    reconciler: EndpointReconciler,
    on_created: impl FnOnce() + Send,
) {
    let actor = state.apiserver();
    let api_state = &state.api_state;
    let names = &api_state.names;
    let mut created_once = priority_classes::all();
    created_once.extend(api_services::all(&api_state.kinds.registry(), names));
    let mut kept = flow_control::all(names);
    kept.extend(own_service::objects(&published, names));
    let is_only_server = reconciler != EndpointReconciler::None && !api_state.store.is_shared();
    if let Some(address) = published.address.filter(|_| is_only_server && !published.ranges.is_empty()) {
        let servers = [(address, published.port)].into_iter().collect();
        kept.extend(endpoints::objects(names.api_service, &servers, names));
    }
    let (failed, _) = tokio::join!(ensure_all(&actor, created_once), ensure_all(&actor, &kept));
    on_created();
    let [schemas, levels] =
        [dangling::FLOW_SCHEMA, dangling::PRIORITY_LEVEL].map(|kind| stored::of_kind(api_state, kind));
    let mut runner = Runner::new(&state, "start_objects")
        .start_with(StartObjects::CreatedOnce)
        .watch_terms(&state, || Some(StartObjects::Kept));
    for collection in [schemas, levels].into_iter().flatten() {
        runner = runner.watch(&collection.items, |_| Some(StartObjects::Kept));
    }
    let leader = actor.clone().of_leader();
    tokio::join!(
        dangling::run(&state, leader.clone()),
        definitions::run(&state, leader.clone()),
        runner.run(Arc::new(StartObjectController { actor, leader, failed: Mutex::new(failed), kept })),
    );
}

impl Reconcile for StartObjectController {
    type Key = StartObjects;

    async fn reconcile(&self, objects: &StartObjects) -> Result<Requeue, Status> {
        let has_failed = match objects {
            StartObjects::CreatedOnce => {
                let missing = std::mem::take(&mut *self.failed.lock());
                let failed = ensure_all(&self.actor, missing).await;
                let has_failed = !failed.is_empty();
                *self.failed.lock() = failed;
                has_failed
            }
            StartObjects::Kept if !self.leader.may_write() => return Ok(Requeue::No),
            StartObjects::Kept => !ensure_all(&self.leader, &self.kept).await.is_empty(),
        };
        Ok(match objects {
            _ if has_failed => Requeue::Poll,
            StartObjects::CreatedOnce => Requeue::No,
            StartObjects::Kept => Requeue::After(CHECK_INTERVAL),
        })
    }
}

/// Creates or restores each object. Returns the objects whose write or read failed.
async fn ensure_all<T: Borrow<StartObject>>(actor: &Actor, desired: impl IntoIterator<Item = T>) -> Vec<T> {
    let results = desired.into_iter().map(async |desired| {
        let result = ensure(actor, desired.borrow()).await;
        (desired, result)
    });
    let mut failed = Vec::new();
    for (desired, result) in join_all(results).await {
        if let Err(status) = result {
            let StartObject { kind: (_, kind), object, .. } = desired.borrow();
            // Another client or apid wrote the object meanwhile; the next attempt reads the new state.
            if !is_normal(&status) {
                tracing::warn!(kind, name = object.name(), reason = %status, "creating a start object failed; retrying");
            }
            failed.push(desired);
        }
    }
    failed
}

async fn ensure(actor: &Actor, desired: &StartObject) -> Result<(), Status> {
    let api_state = actor.api_state();
    let collection = stored::of_kind(api_state, desired.kind)?;
    let (namespace, name) = (desired.object.namespace(), desired.object.name());
    let target = Target { collection: &collection, namespace, name, subresource: "" };
    let current = match stored::get_decodable(&collection, namespace, name).await? {
        Some(current) if current.is_terminating() => return Ok(()),
        Some(current) => match (desired.restore)(&current, &desired.object) {
            Some(next) => actor.update(target, next).await?.object.object()?,
            None => current,
        },
        None => match actor.create(Target { name: "", ..target }, desired.object.clone()).await {
            Ok(written) => written.object.object()?,
            // Another client created the object meanwhile; the next check handles it.
            Err(status) if status.reason == Reason::AlreadyExists => return Ok(()),
            Err(status) => return wait_for_concurrent_creation(actor, &collection, desired, status).await,
        },
    };
    let now = apimachinery::time::time(api_state.clock.now());
    if let Some(next) = with_conditions(&current, desired.condition.as_slice(), &now) {
        actor.update(Target { subresource: "status", ..target }, next).await?;
    }
    Ok(())
}

/// Waits after a failed creation until another apid has created the same object. That apid may have claimed the address of
/// the Service before it stores the Service.
///
/// # Errors
///
/// The object does not exist: returns `failure`.
async fn wait_for_concurrent_creation(
    actor: &Actor,
    collection: &Collection,
    desired: &StartObject,
    failure: Status,
) -> Result<(), Status> {
    if actor.api_state().store.is_shared() {
        tokio::time::sleep(CONCURRENT_CREATION_TIME).await;
        let (namespace, name) = (desired.object.namespace(), desired.object.name());
        if stored::item(collection, namespace, name).await?.is_some() {
            return Ok(());
        }
    }
    Err(failure)
}

/// Returns the current object with the desired spec, or None if both specs are equal.
fn with_desired_spec(current: &Object, desired: &Object) -> Option<Object> {
    with_desired_fields(current, desired, &["spec"])
}

/// Returns the current object with these fields of the desired object, or None if the fields are equal.
fn with_desired_fields(current: &Object, desired: &Object, fields: &[&str]) -> Option<Object> {
    if fields.iter().all(|field| current.get(field) == desired.get(field)) {
        return None;
    }
    let mut next = current.clone();
    for field in fields {
        match desired.get(field) {
            Some(value) => next.set(field, value.clone()),
            None => drop(next.remove(field)),
        }
    }
    Some(next)
}
