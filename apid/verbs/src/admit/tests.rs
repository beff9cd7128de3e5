//! Tests of admission: reads from the watch cache and the store, and the metrics of plugins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admission::quota::QUOTA;
use admission::{
    AdmissionMetrics, Attributes, Chain, Configuration, Environment, ObjectKind, Operation, Reader, Recorder,
    Writer,
};
use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use kinds::{CurrentRegistry, Registry};
use serde_json::json;
use serving::metrics::Metrics;
use storage::cache::Limits;
use storage::engine::memory::MemoryStore;
use storage::{Op, Page, Result, Revision, Row, Store};

use super::AdmissionBackend;
use crate::Cache;

/// A store that counts its reads.
struct CountingStore {
    store: MemoryStore,
    reads: AtomicUsize,
}

#[async_trait]
impl storage::conformance::StoreDouble for CountingStore {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.get(key, at).await
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.range(prefix, start, limit, at).await
    }
}

/// A writer for requests without writes by plugins.
struct NoWrites;

#[async_trait]
impl Writer for NoWrites {
    async fn create(&self, _: ObjectKind, _: Object) -> std::result::Result<(), Status> {
        panic!("no plugin writes")
    }

    async fn update_status(&self, _: ObjectKind, _: Object) -> std::result::Result<Arc<Object>, Status> {
        panic!("no plugin writes")
    }
}

struct TestSetup {
    store: Arc<CountingStore>,
    backend: Arc<AdmissionBackend>,
    registry: Registry,
    chain: Chain,
    metrics: Metrics,
}

async fn setup() -> TestSetup {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let registry = Registry::new(&names);
    let cache = Arc::new(Cache::new(Limits::default()));
    let store =
        Arc::new(CountingStore { store: MemoryStore::new(cache.clone()), reads: AtomicUsize::new(0) });
    cache.attach(&(store.clone() as Arc<dyn Store>));
    let backend = Arc::new(AdmissionBackend::new(&registry, &cache));
    let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) =
        (Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)));
    let addresses = Default::default();
    let metrics = Metrics::default();
    let webhooks = admission::webhook_clients(backend.clone(), &addresses, &names, &clock, &rng);
    let environment = Environment {
        webhooks,
        metrics: Arc::new(AdmissionMetrics::new(&metrics)),
        gates: serving::gates::FeatureGates::default(),
        limits: apimachinery::codec::Limits::BODY,
        registry: Arc::new(CurrentRegistry::new(Registry::new(&names))),
        names,
        clock,
        rng,
        reader: backend.clone(),
        writer: Arc::new(NoWrites),
        authorizer: backend.clone(),
        reservations: Arc::default(),
    };
    let chain = Chain::new(&[], &[], &Configuration::default(), &environment).unwrap();
    for (key, kind, meta) in [
        ("core/namespaces/team", "Namespace", json!({"name": "team"})),
        ("core/resourcequotas/other/q", "ResourceQuota", json!({"name": "q", "namespace": "other"})),
    ] {
        let object = json!({"kind": kind, "apiVersion": "v1", "metadata": meta});
        let row = kinds::entry::encode(&Object::from_value(object).unwrap());
        store.commit(key, Op::Create(row)).await.unwrap();
    }
    TestSetup { store, backend, registry, chain, metrics }
}

impl TestSetup {
    async fn create_config_map(&self) {
        self.create_config_map_in("team").await.unwrap();
    }

    async fn create_config_map_in(&self, namespace: &str) -> std::result::Result<(), Status> {
        let (user, options, recorder) =
            (Arc::new(UserInfo::anonymous()), || Value::Null, Recorder::default());
        let attributes = Attributes {
            operation: Operation::Create,
            resource: self.registry.find("", "v1", "configmaps").unwrap(),
            served: self.registry.find("", "v1", "configmaps").unwrap(),
            version: "v1",
            subresource: "",
            namespace,
            name: "m",
            old: None,
            user: &user,
            dry_run: false,
            options: &options,
            has_generated_name: false,
            is_in_collection: false,
            deadline: None,
            recorder: &recorder,
            environment: self.chain.environment(),
        };
        let mut object =
            Object::from_value(json!({"metadata": {"name": "m", "namespace": namespace}})).unwrap();
        self.chain.mutate(&attributes, Some(&mut object)).await?;
        self.chain.validate(&attributes, Some(&object)).await
    }
}

#[tokio::test]
async fn write_without_affected_plugin_reads_nothing_from_store() {
    let setup = setup().await;
    setup.create_config_map().await;
    let first = setup.store.reads.swap(0, Ordering::SeqCst);
    assert!(first > 0, "the first write loads the kinds that plugins read");
    for _ in 0..100 {
        setup.create_config_map().await;
    }
    assert_eq!(setup.store.reads.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn loaded_kind_is_read_from_cache_and_decoded_once() {
    let setup = setup().await;
    let reader: &dyn Reader = &*setup.backend;
    let cached = |name| reader.cached(ObjectKind::NAMESPACE, "", name);
    assert!(cached("team").is_none(), "the kind is not loaded yet");
    let first = reader.get(ObjectKind::NAMESPACE, "", "team").await.unwrap().unwrap();
    assert_eq!((first.name(), first.resource_version()), ("team", "1"));
    let again = cached("team").expect("a loaded kind is read without waiting").unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &again), "the object is decoded once");
    assert_eq!(cached("gone"), Some(Ok(None)));

    assert_eq!(reader.list(QUOTA, "").await.unwrap().len(), 1);
    for (namespace, count) in [("other", 1), ("othe", 0), ("team", 0)] {
        let listed = reader.cached_list(QUOTA, namespace).expect("a loaded kind is listed without waiting");
        assert_eq!(listed.unwrap().len(), count, "{namespace}");
    }
    let fresh = reader.get_fresh(QUOTA, "other", "q").await.unwrap();
    assert_eq!(fresh.map(|quota| quota.name().to_owned()), Some("q".to_owned()));
    let nothing = ObjectKind::new("", "Nothing");
    assert!(matches!(reader.cached(nothing, "", "x"), Some(Err(_))));
}

#[tokio::test]
async fn object_of_a_long_list_is_decoded_for_each_use_alone() {
    let setup = setup().await;
    let commit = async |name: &str, label: &str| {
        let metadata = json!({"name": name, "namespace": "team", "labels": {"list": label}});
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata});
        let row = kinds::entry::encode(&Object::from_value(object).unwrap());
        setup.store.commit(&format!("core/configmaps/team/{name}"), Op::Create(row)).await.unwrap();
    };
    for number in 0..100 {
        commit(&format!("m{number:03}"), "long").await;
    }
    commit("s", "short").await;
    setup.store.commit("core/configmaps/team/z", Op::Create("not an object".into())).await.unwrap();

    let reader: &dyn Reader = &*setup.backend;
    let resource = setup.registry.find("", "v1", "configmaps").unwrap();
    let select =
        async |label: &str| reader.select(resource, "team", &json!({"matchLabels": {"list": label}})).await;
    let long = select("long").await.unwrap();
    assert_eq!(long.len(), 101);
    let first = &long[0];
    assert_eq!((first.namespace.as_str(), first.name.as_str()), ("team", "m000"));
    let (once, again) = (first.decode().unwrap(), first.decode().unwrap());
    assert!(once == again && !Arc::ptr_eq(&once, &again), "the list keeps no decoded object");
    assert!(long[100].decode().is_err(), "only the object that cannot be decoded fails");

    let short = select("short").await.unwrap();
    assert!(Arc::ptr_eq(&short[0].decode().unwrap(), &short[0].decode().unwrap()), "short lists are cached");
}

#[tokio::test]
async fn admission_duration_metrics_name_the_plugin() {
    let setup = setup().await;
    setup.create_config_map().await;
    setup.create_config_map().await;
    // NamespaceLifecycle rejects the write.
    assert_eq!(setup.create_config_map_in("gone").await.unwrap_err().code, 404);
    let text = setup.metrics.text();
    let count = |family: &str, labels: &str| {
        let series = format!("{family}_count{{{labels}}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("none").to_owned()
    };
    let labels = |name: &str, rejected: bool, phase: &str| {
        format!(r#"{name}operation="CREATE",rejected="{rejected}",type="{phase}""#)
    };
    for (plugin, rejected, phase, expected) in [
        ("NamespaceLifecycle", false, "admit", "2"),
        ("NamespaceLifecycle", true, "admit", "1"),
        ("MutatingAdmissionWebhook", false, "admit", "2"),
        ("ResourceQuota", false, "validate", "2"),
        ("ResourceQuota", true, "validate", "none"),
        // LimitRanger is not interested in ConfigMaps.
        ("LimitRanger", false, "validate", "none"),
    ] {
        let labels = labels(&format!(r#"name="{plugin}","#), rejected, phase);
        let family = "apiserver_admission_controller_admission_duration_seconds";
        assert_eq!(count(family, &labels), expected, "{labels} in {text}");
    }
    for (rejected, phase, expected) in
        [(false, "admit", "2"), (true, "admit", "1"), (false, "validate", "2"), (true, "validate", "none")]
    {
        let family = "apiserver_admission_step_admission_duration_seconds";
        assert_eq!(count(family, &labels("", rejected, phase)), expected, "{rejected} {phase}");
    }
}
