//! The admission chain on a write that no plugin changes or rejects.
//!
//! The plugins are those of a server without flags; namespaces and quotas are in the watch cache. A test of
//! `verbs::admit` checks that nothing is read from the store.

use std::sync::Arc;
use std::time::Instant;

use admission::{AdmissionMetrics, Attributes, Chain, Configuration, Environment, Operation, Recorder};
use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::user::UserInfo;
use controllers::AdmissionWrites;
use kinds::{CurrentRegistry, Registry};
use serde_json::json;
use serving::metrics::Metrics;
use storage::cache::Limits;
use storage::engine::memory::MemoryStore;
use storage::{Op, Store};
use verbs::AdmissionBackend;
use verbs::Cache;

/// Number of measured writes.
const ROUNDS: u32 = 200_000;
/// Number of namespaces, and of resource quotas of other namespaces, in the watch cache.
const NAMESPACES: usize = 1_000;
/// Number of webhook configurations, none of which matches the measured writes.
const CONFIGURATIONS: usize = 500;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() {
    let names = Arc::new(Names::new(Preset::Svc, "example.test").unwrap());
    let registry = Registry::new(&names);
    let cache = Arc::new(Cache::new(Limits::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cache.clone()));
    cache.attach(&store);
    for i in 0..NAMESPACES {
        let name = format!("team-{i}");
        put(&*store, &format!("core/namespaces/{name}"), "Namespace", json!({"name": name})).await;
        let meta = json!({"name": "q", "namespace": format!("other-{i}")});
        put(&*store, &format!("core/resourcequotas/other-{i}/q"), "ResourceQuota", meta).await;
    }
    for i in 0..CONFIGURATIONS {
        let key = format!("admissionregistration/validatingwebhookconfigurations/c-{i}");
        put_object(&*store, &key, configuration(i)).await;
    }
    let backend = Arc::new(AdmissionBackend::new(&registry, &cache));
    let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) =
        (Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)));
    let addresses = Default::default();
    let webhooks = admission::webhook_clients(backend.clone(), &addresses, &names, &clock, &rng);
    let environment = Environment {
        webhooks,
        metrics: Arc::new(AdmissionMetrics::new(&Metrics::default())),
        gates: serving::gates::FeatureGates::default(),
        limits: apimachinery::codec::Limits::BODY,
        registry: Arc::new(CurrentRegistry::new(Registry::new(&names))),
        names,
        clock,
        rng,
        reader: backend.clone(),
        writer: Arc::new(AdmissionWrites::default()),
        authorizer: backend,
        reservations: Arc::default(),
    };
    let chain = Chain::new(&[], &[], &Configuration::default(), &environment).unwrap();
    let (user, options, recorder) = (Arc::new(UserInfo::anonymous()), || Value::Null, Recorder::default());
    let mut object = Object::from_value(json!({"metadata": {"name": "m"}, "data": {"a": "b"}})).unwrap();
    let mut start = Instant::now();
    for round in 0..=ROUNDS {
        if round == 1 {
            // The first write is not measured, because it loads the kinds that plugins read.
            start = Instant::now();
        }
        let attributes = Attributes {
            operation: Operation::Create,
            resource: registry.find("", "v1", "configmaps").unwrap(),
            served: registry.find("", "v1", "configmaps").unwrap(),
            version: "v1",
            subresource: "",
            namespace: "team-500",
            name: "m",
            old: None,
            user: &user,
            dry_run: false,
            options: &options,
            has_generated_name: false,
            is_in_collection: false,
            deadline: None,
            recorder: &recorder,
            environment: chain.environment(),
        };
        chain.mutate(&attributes, Some(&mut object)).await.unwrap();
        chain.validate(&attributes, Some(&object)).await.unwrap();
    }
    println!("{} plugins: {:?} per write", chain.names().count(), start.elapsed() / ROUNDS);
}

/// Returns a webhook configuration with one webhook, which matches only Pods.
fn configuration(index: usize) -> Value {
    json!({
        "kind": "ValidatingWebhookConfiguration", "apiVersion": "admissionregistration.example.test/v1",
        "metadata": {"name": format!("c-{index}"), "uid": index.to_string()},
        "webhooks": [{
            "name": "w.test", "clientConfig": {"url": "https://127.0.0.1:9"}, "failurePolicy": "Fail",
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }],
    })
}

async fn put(store: &dyn Store, key: &str, kind: &str, meta: Value) {
    put_object(store, key, json!({"kind": kind, "apiVersion": "v1", "metadata": meta})).await;
}

async fn put_object(store: &dyn Store, key: &str, object: Value) {
    let object = Object::from_value(object).unwrap();
    store.commit(key, Op::Create(kinds::entry::encode(&object))).await.unwrap();
}
