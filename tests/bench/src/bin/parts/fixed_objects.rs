//! An admission chain with one plugin over fixed objects, and the time of its validations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use admission::plugins::PLUGINS;
use admission::{
    AdmissionMetrics, Attributes, Authorizer, Chain, Configuration, Environment, ListResult, ListedObject,
    LookupResult, ObjectKind, Operation, Reader, Recorder, Writer,
};
use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::decision::Decision;
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use kinds::{CurrentRegistry, Kind, Registry};
use serving::metrics::Metrics;

/// Number of timed batches. The result is the time of the fastest batch, because other processes may run.
const BATCHES: u32 = 200;
/// Number of writes in one batch.
const ROUNDS: u32 = 100;

/// The objects of each kind. A lookup by name returns the first object of its kind.
#[derive(Default)]
pub(crate) struct FixedObjects(pub(crate) BTreeMap<&'static str, Vec<Arc<Object>>>);

impl FixedObjects {
    /// Returns a chain that runs only the plugin `name`, and reads these objects.
    pub(crate) fn into_chain(self, name: &str, names: &Arc<Names>) -> Chain {
        let others = PLUGINS.iter().filter(|plugin| plugin.name != name);
        let disabled: Vec<String> = others.map(|plugin| plugin.name.to_owned()).collect();
        let objects = Arc::new(self);
        let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) =
            (Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)));
        let addresses = Default::default();
        let environment = Environment {
            webhooks: admission::webhook_clients(objects.clone(), &addresses, names, &clock, &rng),
            metrics: Arc::new(AdmissionMetrics::new(&Metrics::default())),
            gates: serving::gates::FeatureGates::default(),
            limits: apimachinery::codec::Limits::BODY,
            names: Arc::clone(names),
            registry: Arc::new(CurrentRegistry::new(Registry::new(names))),
            clock,
            rng,
            reader: objects.clone(),
            writer: objects.clone(),
            authorizer: objects,
            reservations: Arc::default(),
        };
        Chain::new(&[], &disabled, &Configuration::default(), &environment).expect("a chain")
    }
}

/// Validates the creation of an object in the namespace `team` many times. Returns the time of one validation in the
/// fastest batch, and whether the object is allowed.
pub(crate) async fn time_of_validation(chain: &Chain, resource: &Kind, object: &Object) -> (Duration, bool) {
    let (clock, user) = (SystemClock::new(), Arc::new(UserInfo::anonymous()));
    let (mut fastest, mut is_allowed) = (Duration::MAX, false);
    for _ in 0..BATCHES {
        let start = clock.monotonic();
        for _ in 0..ROUNDS {
            let recorder = Recorder::default();
            let attributes = Attributes {
                operation: Operation::Create,
                resource,
                served: resource,
                version: "v1",
                subresource: "",
                namespace: "team",
                name: object.name(),
                old: None,
                user: &user,
                dry_run: false,
                options: &|| Value::Null,
                has_generated_name: false,
                is_in_collection: false,
                deadline: None,
                recorder: &recorder,
                environment: chain.environment(),
            };
            is_allowed = std::hint::black_box(chain.validate(&attributes, Some(object)).await).is_ok();
        }
        fastest = fastest.min((clock.monotonic() - start) / ROUNDS);
    }
    (fastest, is_allowed)
}

#[async_trait]
impl Reader for FixedObjects {
    fn cached(&self, kind: ObjectKind, _: &str, _: &str) -> Option<LookupResult> {
        Some(Ok(self.0.get(kind.kind).and_then(|objects| objects.first()).cloned()))
    }

    fn cached_list(&self, kind: ObjectKind, _: &str) -> Option<ListResult> {
        Some(Ok(self.0.get(kind.kind).cloned().unwrap_or_default()))
    }

    fn cached_items(&self, kind: ObjectKind) -> Option<Result<Vec<ListedObject>, Status>> {
        let listed = self.cached_list(kind, "")?;
        Some(listed.map(|objects| objects.into_iter().map(ListedObject::from).collect()))
    }

    async fn load(&self, _: ObjectKind) -> Result<(), Status> {
        Ok(())
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(0)
    }

    async fn get_fresh(&self, kind: ObjectKind, namespace: &str, name: &str) -> LookupResult {
        self.cached(kind, namespace, name).unwrap_or(Ok(None))
    }

    async fn get_custom(&self, _: &Kind, _: &str, _: &str) -> LookupResult {
        Ok(None)
    }

    async fn select(&self, _: &Kind, _: &str, _: &Value) -> Result<Vec<ListedObject>, Status> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Writer for FixedObjects {
    async fn create(&self, _: ObjectKind, _: Object) -> Result<(), Status> {
        Ok(())
    }

    async fn update_status(&self, _: ObjectKind, object: Object) -> Result<Arc<Object>, Status> {
        Ok(Arc::new(object))
    }
}

#[async_trait]
impl Authorizer for FixedObjects {
    async fn decide(&self, _: &Arc<UserInfo>, _: RequestAttributes) -> Result<Decision, Status> {
        Ok(Decision::default())
    }
}
