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
use async_trait::async_trait;
use kinds::{CurrentRegistry, Kind, Registry, labels};
use parking_lot::Mutex;
use serving::metrics::Metrics;

use crate::plugins::AnyPlugin;
use crate::reinvocation::Reinvocation;
use crate::{
    AdmissionMetrics, Attributes, Authorizer, Environment, Interest, ListResult, ListedObject, LookupResult,
    ObjectKind, Operation, Plugin, Reader, Recorder, Writer, webhook_clients,
};

/// Fake environment of one plugin call.
pub(crate) struct Fake {
    pub(crate) names: Arc<Names>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) backend: Arc<FakeBackend>,
    /// The environment of plugins and writes.
    pub(crate) environment: Environment,
}

/// A plugin that is not in the table, behind dynamic dispatch.
#[async_trait]
pub(crate) trait TestPlugin: Send + Sync {
    fn interest(&self) -> Interest;
    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status>;
    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status>;
}

#[async_trait]
impl<P: Plugin> TestPlugin for P {
    fn interest(&self) -> Interest {
        Plugin::interest(self)
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        Plugin::mutate(self, attributes, object).await
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        Plugin::validate(self, attributes, object).await
    }
}

impl AnyPlugin {
    pub(crate) fn of_test(plugin: impl Plugin) -> Self {
        AnyPlugin::Test(Box::new(plugin))
    }
}

/// Group stem, kind, namespace and name.
type Key = (&'static str, &'static str, String, String);

/// Objects and permissions behind the reader, the writer and the authorizer.
#[derive(Default)]
pub(crate) struct FakeBackend {
    /// The objects, each with the number of its last change.
    objects: Mutex<BTreeMap<Key, (u64, Arc<Object>)>>,
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
        let names = Arc::new(Names::new(preset, "example.test").unwrap());
        let clock = Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap()));
        let backend = Arc::<FakeBackend>::default();
        let (dyn_clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) = (clock.clone(), Arc::new(SeededRng::new(1)));
        let addresses = Default::default();
        let environment = Environment {
            webhooks: webhook_clients(backend.clone(), &addresses, &names, &dyn_clock, &rng),
            metrics: Arc::new(AdmissionMetrics::new(&Metrics::default())),
            gates: serving::gates::FeatureGates::default(),
            limits: apimachinery::codec::Limits::BODY,
            names: names.clone(),
            clock: dyn_clock,
            rng,
            reader: backend.clone(),
            writer: backend.clone(),
            authorizer: backend.clone(),
            registry: Arc::new(CurrentRegistry::new(Registry::new(&names))),
            reservations: Arc::default(),
        };
        Fake { names, clock, backend, environment }
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

    /// Runs both phases of a plugin for a write of `object` (null: a deletion, which has no object).
    pub(crate) async fn run_plugin(
        &self,
        plugin: &impl Plugin,
        write: TestedWrite<'_>,
        object: Value,
    ) -> PluginResult {
        self.run_plugin_recording(plugin, write, object, &Recorder::default()).await
    }

    /// As [`Fake::run_plugin`], with the recorder of the request.
    pub(crate) async fn run_plugin_recording(
        &self,
        plugin: &impl Plugin,
        write: TestedWrite<'_>,
        object: Value,
        recorder: &Recorder,
    ) -> PluginResult {
        let registry = Registry::new(&self.names);
        let group = self.names.group(write.kind.0);
        let resource = registry.find_kind(&group, write.kind.1).unwrap();
        let old = write.old.map(|old| Object::from_value(old).unwrap());
        let mut object = Object::from_value(object).ok();
        let name = object.as_ref().or(old.as_ref()).map(|o| o.name().to_owned()).unwrap_or_default();
        let (options, user) = (|| Value::Null, Arc::new(write.user));
        let attributes = Attributes {
            operation: write.operation,
            resource,
            served: resource,
            version: resource.version(),
            subresource: write.subresource,
            namespace: if resource.namespaced { write.namespace } else { "" },
            name: &name,
            old: old.as_ref(),
            user: &user,
            dry_run: write.dry_run,
            options: &options,
            has_generated_name: false,
            is_in_collection: false,
            deadline: write.deadline,
            recorder,
            environment: &self.environment,
        };
        assert!(
            plugin.interest().operations.contains(&write.operation),
            "the plugin does not handle {}",
            write.operation.as_str()
        );
        let mut reinvocation = Reinvocation::default();
        let mut result = plugin.mutate_in_round(&attributes, object.as_mut(), &mut reinvocation).await;
        if result.is_ok() {
            result = plugin.validate(&attributes, object.as_ref()).await;
        }
        PluginResult {
            result,
            object: object.map_or(Value::Null, Object::into_value),
            warnings: recorder.take_warnings(),
            annotations: recorder.take_annotations(),
        }
    }
}

impl FakeBackend {
    pub(crate) fn put(&self, group: &'static str, kind: &'static str, object: Value) {
        let object = Object::from_value(object).unwrap();
        let key = (group, kind, object.namespace().to_owned(), object.name().to_owned());
        let change = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.objects.lock().insert(key, (change, Arc::new(object)));
    }

    fn find(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let key = (kind.group, kind.kind, namespace.to_owned(), name.to_owned());
        self.objects.lock().get(&key).map(|(_, object)| Arc::clone(object))
    }
}

#[async_trait]
impl Reader for FakeBackend {
    fn cached(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<LookupResult> {
        Some(Ok(self.find(kind, namespace, name)))
    }

    fn cached_list(&self, kind: ObjectKind, namespace: &str) -> Option<ListResult> {
        let objects = self.objects.lock();
        let of_kind = objects.iter().filter(|((group, name, object_namespace, _), _)| {
            (*group, *name) == (kind.group, kind.kind)
                && (namespace.is_empty() || object_namespace == namespace)
        });
        Some(Ok(of_kind.map(|(_, (_, object))| Arc::clone(object)).collect()))
    }

    fn cached_items(&self, kind: ObjectKind) -> Option<Result<Vec<ListedObject>, Status>> {
        let objects = self.objects.lock();
        let of_kind =
            objects.iter().filter(|((group, name, ..), _)| (*group, *name) == (kind.group, kind.kind));
        let listed = of_kind.map(|((_, _, namespace, name), (change, object))| {
            let object = Arc::clone(object);
            ListedObject::new(namespace, name, *change, move || Ok(Arc::clone(&object)))
        });
        Some(Ok(listed.collect()))
    }

    async fn load(&self, _: ObjectKind) -> Result<(), Status> {
        Ok(())
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(self.changes.load(Ordering::SeqCst))
    }

    async fn get_fresh(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult {
        Ok(self.find(kind, namespace, name))
    }

    async fn get_custom(&self, _: &Kind, _: &str, _: &str) -> LookupResult {
        Ok(None)
    }

    async fn select(
        &self,
        resource: &Kind,
        namespace: &str,
        selector: &Value,
    ) -> Result<Vec<ListedObject>, Status> {
        let kind = ObjectKind::of(resource).unwrap();
        let mut objects = self.cached_list(kind, namespace).unwrap()?;
        let labels = |object: &Object| object.at(&["metadata", "labels"]).cloned().unwrap_or(Value::Null);
        objects.retain(|object| labels::matches(selector, &labels(object)));
        Ok(objects.into_iter().map(ListedObject::from).collect())
    }
}

#[async_trait]
impl Writer for FakeBackend {
    async fn create(&self, kind: ObjectKind, object: Object) -> Result<(), Status> {
        self.created.lock().push(object.clone());
        self.put(kind.group, kind.kind, object.into_value());
        Ok(())
    }

    async fn update_status(&self, kind: ObjectKind, mut object: Object) -> Result<Arc<Object>, Status> {
        let group_resource =
            GroupResource { group: kind.group.to_owned(), resource: kind.kind.to_lowercase() };
        let key = (kind.group, kind.kind, object.namespace().to_owned(), object.name().to_owned());
        let mut objects = self.objects.lock();
        let current = objects.get(&key).map(|(_, current)| Arc::clone(current));
        match current {
            None => Err(Status::not_found(&group_resource, object.name())),
            Some(current) if current.resource_version() != object.resource_version() => {
                Err(Status::stale_version(&group_resource, object.name()))
            }
            Some(current) => {
                let next = current.resource_version().parse::<u64>().unwrap_or(0) + 1;
                object.set_meta("resourceVersion", next.to_string());
                let object = Arc::new(object);
                let change = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
                objects.insert(key, (change, Arc::clone(&object)));
                Ok(object)
            }
        }
    }
}

#[async_trait]
impl Authorizer for FakeBackend {
    async fn decide(&self, user: &Arc<UserInfo>, request: RequestAttributes) -> Result<Decision, Status> {
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
        Ok(Decision { verdict, ..Decision::default() })
    }
}
