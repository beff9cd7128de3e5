//! Test environment of plugins: JSON objects, a recording writer and a rule-based authorizer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::clock::{Clock, ManualClock, Rng, SeededRng};
use apimachinery::decision::{Decision, Verdict};
use apimachinery::gvk::GroupResource;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::{CurrentRegistry, Registry};
use parking_lot::Mutex;
use serving::metrics::Metrics;

use crate::quota::Reservations;
use crate::{
    AdmissionMetrics, Attributes, Authorizer, Environment, LookupResult, MaybeFuture, ObjectKind, Operation,
    Plugin, PluginOutput, Reader, Writer, webhook_clients,
};

/// Fake environment of one plugin call.
pub(crate) struct Fake {
    pub(crate) names: Arc<Names>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) reservations: Arc<Reservations>,
}

/// Group stem, kind, namespace and name.
type Key = (&'static str, &'static str, String, String);

/// Objects and permissions behind the reader, the writer and the authorizer.
#[derive(Default)]
pub(crate) struct FakeBackend {
    objects: Mutex<BTreeMap<Key, Arc<Object>>>,
    /// Permissions of users and groups: `subject verb resource name`; `*` matches any word.
    rights: Mutex<Vec<String>>,
    /// Number of changes of objects.
    changes: AtomicU64,
    /// Objects created through the writer.
    pub(crate) created: Mutex<Vec<Object>>,
}

/// Attributes of a tested write.
pub(crate) struct TestedWrite<'a> {
    pub(crate) operation: Operation,
    /// Group stem and kind.
    pub(crate) kind: (&'a str, &'a str),
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) user: UserInfo,
    pub(crate) old: Option<Value>,
    pub(crate) dry_run: bool,
    /// Monotonic time at which the request ends.
    pub(crate) deadline: Option<std::time::Duration>,
}

impl Default for TestedWrite<'_> {
    fn default() -> Self {
        let user = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
        TestedWrite {
            operation: Operation::Create,
            kind: ("", "Pod"),
            subresource: "",
            namespace: "team",
            user,
            old: None,
            dry_run: false,
            deadline: None,
        }
    }
}

/// Result of a tested write.
#[derive(Debug)]
pub(crate) struct PluginResult {
    /// The rejection, if any.
    pub(crate) result: Result<(), Status>,
    /// Object after both phases.
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
    pub(crate) annotations: Vec<(String, String)>,
}

impl PluginResult {
    /// Message of the rejection, `""` if allowed.
    pub(crate) fn message(&self) -> &str {
        self.result.as_ref().err().map_or("", |status| &status.message)
    }
}

impl Fake {
    pub(crate) fn new(preset: Preset) -> Self {
        Fake {
            names: Arc::new(Names::new(preset, "example.test").unwrap()),
            clock: Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap())),
            backend: Arc::default(),
            reservations: Arc::default(),
        }
    }

    /// Adds objects of a group stem and kind.
    pub(crate) fn with_objects(self, group: &'static str, kind: &'static str, objects: &[Value]) -> Self {
        for object in objects {
            self.backend.put(group, kind, object.clone());
        }
        self
    }

    /// Adds a permission: `subject verb resource name`, with `*` for any word.
    pub(crate) fn with_right(self, right: &str) -> Self {
        self.backend.rights.lock().push(right.to_owned());
        self
    }

    pub(crate) fn environment(&self) -> Environment {
        let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) = (self.clock.clone(), Arc::new(SeededRng::new(1)));
        let map = webhooks::ServiceMap::default();
        let webhooks = webhook_clients(self.backend.clone(), map, &self.names, &clock, &rng);
        Environment {
            webhooks,
            metrics: Arc::new(AdmissionMetrics::new(&Metrics::default())),
            gates: serving::gates::FeatureGates::default(),
            limits: apimachinery::codec::Limits::BODY,
            names: Arc::clone(&self.names),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(1)),
            reader: self.backend.clone(),
            writer: self.backend.clone(),
            authorizer: self.backend.clone(),
            registry: Arc::new(CurrentRegistry::new(Registry::new(&self.names))),
            reservations: self.reservations.clone(),
        }
    }

    /// Runs both phases of a plugin for a write of `object` (null: a deletion, which has no object).
    pub(crate) async fn run_plugin(
        &self,
        plugin: &dyn Plugin,
        write: TestedWrite<'_>,
        object: Value,
    ) -> PluginResult {
        let registry = Registry::new(&self.names);
        let group = self.names.group(write.kind.0);
        let resource = registry.find_kind(&group, write.kind.1).unwrap();
        let old = write.old.map(|old| Object::from_value(old).unwrap());
        let mut object = Object::from_value(object).ok();
        let name = object.as_ref().or(old.as_ref()).map(|o| o.name().to_owned()).unwrap_or_default();
        let (notes, options, user) = (PluginOutput::default(), || Value::Null, Arc::new(write.user));
        let attributes = Attributes {
            operation: write.operation,
            resource,
            served: resource,
            version: resource.kind.version(),
            subresource: write.subresource,
            namespace: if resource.kind.namespaced() { write.namespace } else { "" },
            name: &name,
            old: old.as_ref(),
            user: &user,
            dry_run: write.dry_run,
            options: &options,
            reinvoked: false,
            has_generated_name: false,
            is_in_collection: false,
            deadline: write.deadline,
            notes: &notes,
        };
        assert!(
            plugin.interest().operations.contains(&write.operation),
            "the plugin does not handle {}",
            write.operation.as_str()
        );
        let mut result = plugin.mutate(&attributes, object.as_mut()).get().await;
        if result.is_ok() {
            result = plugin.validate(&attributes, object.as_ref()).get().await;
        }
        PluginResult {
            result,
            object: object.map_or(Value::Null, Object::into_value),
            warnings: notes.take_warnings(),
            annotations: notes.take_annotations(),
        }
    }
}

impl FakeBackend {
    pub(crate) fn put(&self, group: &'static str, kind: &'static str, object: Value) {
        let object = Object::from_value(object).unwrap();
        let key = (group, kind, object.namespace().to_owned(), object.name().to_owned());
        self.objects.lock().insert(key, Arc::new(object));
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn find(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let key = (kind.group, kind.kind, namespace.to_owned(), name.to_owned());
        self.objects.lock().get(&key).cloned()
    }
}

impl Reader for FakeBackend {
    fn get<'a>(
        &'a self,
        kind: ObjectKind,
        namespace: &'a str,
        name: &'a str,
    ) -> MaybeFuture<'a, LookupResult> {
        MaybeFuture::Ready(Ok(self.find(kind, namespace, name)))
    }

    fn list<'a>(
        &'a self,
        kind: ObjectKind,
        namespace: &'a str,
    ) -> MaybeFuture<'a, Result<Vec<Arc<Object>>, Status>> {
        let objects = self.objects.lock();
        let of_kind = objects.iter().filter(|((group, name, object_namespace, _), _)| {
            (*group, *name) == (kind.group, kind.kind)
                && (namespace.is_empty() || object_namespace == namespace)
        });
        MaybeFuture::Ready(Ok(of_kind.map(|(_, object)| Arc::clone(object)).collect()))
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(self.changes.load(Ordering::SeqCst))
    }

    fn get_fresh<'a>(
        &'a self,
        kind: ObjectKind,
        namespace: &'a str,
        name: &'a str,
    ) -> MaybeFuture<'a, LookupResult> {
        self.get(kind, namespace, name)
    }
}

impl Writer for FakeBackend {
    fn create<'a>(&'a self, kind: ObjectKind, object: Object) -> MaybeFuture<'a, Result<(), Status>> {
        self.created.lock().push(object.clone());
        self.put(kind.group, kind.kind, object.into_value());
        MaybeFuture::Ready(Ok(()))
    }

    fn update_status<'a>(
        &'a self,
        kind: ObjectKind,
        mut object: Object,
    ) -> MaybeFuture<'a, Result<Arc<Object>, Status>> {
        let group_resource =
            GroupResource { group: kind.group.to_owned(), resource: kind.kind.to_lowercase() };
        let current = self.find(kind, object.namespace(), object.name());
        MaybeFuture::Ready(match current {
            None => Err(Status::not_found(&group_resource, object.name())),
            Some(current) if current.resource_version() != object.resource_version() => {
                Err(Status::stale_version(&group_resource, object.name()))
            }
            Some(current) => {
                let next = current.resource_version().parse::<u64>().unwrap_or(0) + 1;
                object.set_meta("resourceVersion", next.to_string());
                self.put(kind.group, kind.kind, object.clone().into_value());
                Ok(Arc::new(object))
            }
        })
    }
}

impl Authorizer for FakeBackend {
    fn decide<'a>(
        &'a self,
        user: &'a Arc<UserInfo>,
        request: RequestAttributes,
    ) -> MaybeFuture<'a, Result<Decision, Status>> {
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            subresource => format!("{}/{subresource}", request.resource),
        };
        let requested = [&request.verb, &resource, &request.name];
        let allowed = self.rights.lock().iter().any(|right| {
            let words: Vec<&str> = right.split(' ').collect();
            let [subject, words @ ..] = words.as_slice() else { return false };
            (*subject == "*" || *subject == user.name || user.in_group(subject))
                && words.len() == requested.len()
                && words.iter().zip(requested).all(|(word, requested)| *word == "*" || *word == requested)
        });
        let verdict = if allowed { Verdict::Allow } else { Verdict::NoOpinion };
        MaybeFuture::Ready(Ok(Decision { verdict, ..Decision::default() }))
    }
}
