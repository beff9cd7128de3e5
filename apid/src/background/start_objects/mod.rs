//! The objects that a server has from its start: priority classes, flow schemas and priority levels, an APIService for each
//! group version, and the API's own Service with what belongs to it.
//!
//! # Contract
//!
//! [`run`] makes what is missing, all at once, and then says so. What is there and as it should be is not written again,
//! so that a restart changes nothing. Some objects are *made once* for each start: who deletes one does without it until
//! the next. Others are *kept*: deleted, they come back at the next look, at the latest after [`LOOK`].
//!
//! | objects | deleted | changed |
//! |---|---|---|
//! | priority classes | until the next start | left alone |
//! | APIServices of built-in group versions | until the next start | restored at the start |
//! | APIServices of custom kinds | come back | restored; see [`definitions`] |
//! | mandatory flow schemas and priority levels | come back | restored |
//! | suggested ones | come back | restored unless somebody changed them: see [`flow_control`] |
//! | Service, ServiceCIDR, IPAddress | come back | left alone |
//! | Endpoints, EndpointSlice | come back | restored |
//!
//! # Invariants
//!
//! INVARIANT (ordinary writes): they are written through the verbs as `system:apiserver`, so that audit and admission see
//! them as any write.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Reason, Status};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::actor::{Actor, Target};
use crate::plane::{Collection, Plane};

mod api_services;
mod dangling;
mod definitions;
mod flow_control;
mod own_service;
mod priority_classes;

pub use own_service::Published;

/// How often kept objects are looked at. A look reads memory.
pub const LOOK: Duration = Duration::from_secs(10);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// What to do about an object that is there: what it should be instead, if anything.
type Mend = fn(current: &Object, wanted: &Object) -> Option<Object>;

/// An object that should be there.
struct Wanted {
    /// Stem of its group and kind.
    kind: (&'static str, &'static str),
    /// With name and namespace.
    object: Object,
    mend: Mend,
    /// What its status says of it.
    condition: Option<Condition>,
}

/// A condition that the server sets itself.
struct Condition {
    kind: &'static str,
    reason: &'static str,
    message: String,
}

impl Wanted {
    /// One that is left alone once it is there.
    fn new(group: &'static str, kind: &'static str, object: Value) -> Self {
        let object = Object::from_value(object).unwrap_or_default();
        Wanted { kind: (group, kind), object, mend: |_, _| None, condition: None }
    }

    fn mended(self, mend: Mend) -> Self {
        Wanted { mend, ..self }
    }

    fn with_condition(self, condition: Condition) -> Self {
        Wanted { condition: Some(condition), ..self }
    }
}

impl Condition {
    /// The object with the condition, unless it has it.
    fn on(&self, object: &Object, now: &str) -> Option<Object> {
        let wanted =
            [("type", self.kind), ("status", "True"), ("reason", self.reason), ("message", &self.message)];
        set_condition(object, &wanted, now)
    }
}

/// The object with a condition of these fields in the place of another one of its type. None when it has it already.
fn set_condition(object: &Object, wanted: &[(&str, &str)], now: &str) -> Option<Object> {
    let have = object.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    let of = |field: &str| wanted.iter().find(|(name, _)| *name == field).map_or("", |(_, value)| value);
    let (same_type, mut others): (Vec<Value>, Vec<Value>) =
        have.into_iter().partition(|condition| text(condition, "type") == of("type"));
    if same_type.iter().any(|c| wanted.iter().all(|(field, value)| text(c, field) == *value)) {
        return None;
    }
    // The time is that of the last change from yes to no or back.
    let since =
        same_type.iter().find(|c| text(c, "status") == of("status")).map(|c| text(c, "lastTransitionTime"));
    let since = since.filter(|time| !time.is_empty()).unwrap_or_else(|| now.to_owned());
    let time = ("lastTransitionTime", since.as_str());
    others.push(filled(wanted.iter().copied().chain([time]).map(|(field, value)| (field, value.into()))));
    let mut object = object.clone();
    let mut status = match object.remove("status") {
        Some(Value::Object(status)) => status,
        _ => Map::new(),
    };
    status.insert("conditions".to_owned(), Value::Array(others));
    object.set("status", status);
    Some(object)
}

/// An object of the fields that are not null.
fn filled<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    fields.map(|(field, value)| (field.to_owned(), value)).collect()
}

/// Makes the objects, calls `made`, and keeps those that are kept, until the process ends. `made` is called after one try
/// of each: an object that cannot be made, since an admission plugin refuses it, is tried again and holds nothing up.
pub async fn run(plane: Arc<Plane>, published: Published, made: impl FnOnce() + Send) {
    let actor = Actor::apiserver(plane.clone());
    let names = &plane.names;
    let mut once = priority_classes::all();
    once.extend(api_services::all(&plane.registry, names));
    let mut kept = flow_control::all(names);
    kept.extend(own_service::all(&published, names));
    let (mut failed, _) = tokio::join!(ensure_all(&actor, &once), ensure_all(&actor, &kept));
    made();
    let wake = Arc::new(Notify::new());
    tokio::spawn(dangling::run(actor.clone(), wake.clone()));
    tokio::spawn(definitions::run(actor.clone()));
    loop {
        let pause = if failed.is_empty() { LOOK } else { RETRY };
        let _ = tokio::time::timeout(pause, wake.notified()).await;
        failed = ensure_all(&actor, failed).await;
        ensure_all(&actor, &kept).await;
    }
}

/// Sees to each object; gives those back that could not be made.
async fn ensure_all<'a>(actor: &Actor, wanted: impl IntoIterator<Item = &'a Wanted>) -> Vec<&'a Wanted> {
    let each = wanted.into_iter().map(async |wanted| (wanted, ensure(actor, wanted).await));
    let mut failed = Vec::new();
    for (wanted, result) in join_all(each).await {
        if let Err(status) = result {
            let (kind, name) = (wanted.kind.1, wanted.object.name());
            tracing::warn!(kind, name, reason = %status, "an object of the start could not be made");
            failed.push(wanted);
        }
    }
    failed
}

async fn ensure(actor: &Actor, wanted: &Wanted) -> Result<(), Status> {
    let plane = actor.plane();
    let collection = collection(plane, wanted.kind)?;
    let (namespace, name) = (wanted.object.namespace(), wanted.object.name());
    let target = Target { collection, namespace, name, subresource: "" };
    let current = match current(collection, namespace, name).await? {
        Some(current) if current.is_terminating() => return Ok(()),
        Some(current) => match (wanted.mend)(&current, &wanted.object) {
            Some(next) => actor.update(target, next).await?.object.object()?,
            None => current,
        },
        None => match actor.create(Target { name: "", ..target }, wanted.object.clone()).await {
            Ok(written) => written.object.object()?,
            // By somebody else meanwhile: as it is at the next look.
            Err(status) if status.reason == Reason::AlreadyExists => return Ok(()),
            Err(status) => return Err(status),
        },
    };
    let now = apimachinery::time::time(plane.clock.now());
    if let Some(next) = wanted.condition.as_ref().and_then(|condition| condition.on(&current, &now)) {
        actor.update(Target { subresource: "status", ..target }, next).await?;
    }
    Ok(())
}

fn collection<'a>(plane: &'a Plane, (group, kind): (&str, &str)) -> Result<&'a Collection, Status> {
    let resource = plane.registry.find_kind(&plane.names.group(group), kind);
    resource
        .and_then(|resource| plane.collection(resource))
        .ok_or_else(|| Status::internal(format!("objects of kind {kind} are not served")))
}

fn unavailable(error: storage::Error) -> Status {
    Status::unavailable(error.to_string(), 1)
}

/// All objects of a kind, as the cache has them.
async fn objects(collection: &Collection) -> Result<Vec<Object>, Status> {
    let snapshot = collection.items.snapshot().await.map_err(unavailable)?;
    let items = snapshot.scope(&collection.resource.key_prefix, "");
    items
        .map(|item| item.entry().map_err(unavailable)?.object(item.revision()).map_err(Status::internal))
        .collect()
}

/// An object as the cache has it.
async fn current(collection: &Collection, namespace: &str, name: &str) -> Result<Option<Object>, Status> {
    let (item, _) =
        collection.items.get(&collection.resource.key(namespace, name)).await.map_err(unavailable)?;
    let Some(item) = item else { return Ok(None) };
    let entry = item.entry().map_err(unavailable)?;
    entry.object(item.revision()).map(Some).map_err(Status::internal)
}

/// The current object with the specification that is wanted, unless it has it.
fn same_spec(current: &Object, wanted: &Object) -> Option<Object> {
    same_fields(current, wanted, &["spec"])
}

/// The current object with these fields of the one that is wanted, unless it has them.
fn same_fields(current: &Object, wanted: &Object, fields: &[&str]) -> Option<Object> {
    if fields.iter().all(|field| current.get(field) == wanted.get(field)) {
        return None;
    }
    let mut next = current.clone();
    for field in fields {
        match wanted.get(field) {
            Some(value) => next.set(field, value.clone()),
            None => drop(next.remove(field)),
        }
    }
    Some(next)
}
