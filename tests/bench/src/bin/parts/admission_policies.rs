//! Admission policies on two writes.
//!
//! The first write matches none of 500 policies; the second write matches one policy with three simple
//! expressions.

use std::sync::Arc;
use std::time::Duration;

use admission::plugins::PLUGINS;
use admission::{
    AdmissionMetrics, Attributes, Authorizer, Chain, Configuration, Environment, LookupResult, MaybeFuture,
    ObjectKind, Operation, PluginOutput, Reader, Writer,
};
use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::decision::Decision;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::{CurrentRegistry, Registry};
use serde_json::json;
use serving::metrics::Metrics;
use webhooks::ServiceMap;

/// Number of timed batches. The result is the time of the fastest batch, because other processes may run.
const BATCHES: u32 = 200;
/// Number of writes in one batch.
const ROUNDS: u32 = 100;
/// Number of stored policies.
const POLICIES: usize = 500;

/// A reader with policies and bindings, and no other objects.
struct FixedObjects {
    policies: Vec<Arc<Object>>,
    bindings: Vec<Arc<Object>>,
}

impl FixedObjects {
    /// Creates one policy that matches config maps; all other policies match secrets.
    fn new() -> Self {
        let mut backend = FixedObjects { policies: Vec::new(), bindings: Vec::new() };
        for i in 0..POLICIES {
            let resource = if i == 0 { "configmaps" } else { "secrets" };
            let rule = json!({
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource],
            });
            let validations = json!([
                {"expression": "object.metadata.name.startsWith('a')"},
                {"expression": "!has(object.metadata.labels) || object.metadata.labels.size() < 10"},
                {"expression": "object.data.all(key, key.size() < 20)"},
            ]);
            let metadata = json!({"name": format!("p{i}"), "uid": format!("u{i}"), "resourceVersion": "1"});
            let match_constraints = json!({"resourceRules": [rule]});
            let spec = json!({"matchConstraints": match_constraints, "validations": validations});
            backend.policies.push(object(json!({"metadata": metadata, "spec": spec})));
            let spec = json!({"policyName": format!("p{i}"), "validationActions": ["Deny"]});
            backend.bindings.push(object(json!({"metadata": {"name": format!("b{i}")}, "spec": spec})));
        }
        backend
    }
}

impl Reader for FixedObjects {
    fn get<'a>(&'a self, _: ObjectKind, _: &'a str, _: &'a str) -> MaybeFuture<'a, LookupResult> {
        MaybeFuture::Ready(Ok(None))
    }

    fn list<'a>(&'a self, kind: ObjectKind, _: &'a str) -> MaybeFuture<'a, Result<Vec<Arc<Object>>, Status>> {
        MaybeFuture::Ready(Ok(match kind.kind {
            "ValidatingAdmissionPolicy" => self.policies.clone(),
            "ValidatingAdmissionPolicyBinding" => self.bindings.clone(),
            _ => Vec::new(),
        }))
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(0)
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

impl Writer for FixedObjects {
    fn create<'a>(&'a self, _: ObjectKind, _: Object) -> MaybeFuture<'a, Result<(), Status>> {
        MaybeFuture::Ready(Ok(()))
    }

    fn update_status<'a>(
        &'a self,
        _: ObjectKind,
        object: Object,
    ) -> MaybeFuture<'a, Result<Arc<Object>, Status>> {
        MaybeFuture::Ready(Ok(Arc::new(object)))
    }
}

impl Authorizer for FixedObjects {
    fn decide<'a>(
        &'a self,
        _: &'a Arc<UserInfo>,
        _: RequestAttributes,
    ) -> MaybeFuture<'a, Result<Decision, Status>> {
        MaybeFuture::Ready(Ok(Decision::default()))
    }
}

fn object(value: Value) -> Arc<Object> {
    Arc::new(Object::from_value(value).unwrap_or_default())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let registry = Registry::new(&names);
    let clock = Arc::new(SystemClock::new());
    let disabled_plugins: Vec<String> = PLUGINS
        .iter()
        .filter(|plugin| plugin.name != "ValidatingAdmissionPolicy")
        .map(|plugin| plugin.name.to_owned())
        .collect();
    let backend = Arc::new(FixedObjects::new());
    let (clock_of_clients, rng): (Arc<dyn Clock>, Arc<dyn Rng>) =
        (clock.clone(), Arc::new(SeededRng::new(1)));
    let environment = Environment {
        webhooks: admission::webhook_clients(
            backend.clone(),
            ServiceMap::default(),
            &names,
            &clock_of_clients,
            &rng,
        ),
        metrics: Arc::new(AdmissionMetrics::new(&Metrics::default())),
        gates: serving::gates::FeatureGates::default(),
        names: Arc::clone(&names),
        registry: Arc::new(CurrentRegistry::new(Registry::new(&names))),
        clock: clock.clone(),
        rng,
        reader: backend.clone(),
        writer: backend.clone(),
        authorizer: backend,
        reservations: Arc::default(),
    };
    let chain = Chain::new(&[], &disabled_plugins, &Configuration::default(), &environment).expect("a chain");
    let (user, options) = (Arc::new(UserInfo::anonymous()), || Value::Null);
    let config_map = object(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "team", "labels": {"app": "a"}},
        "data": {"a": "1", "b": "2", "c": "3"},
    }));
    for (name, matches) in [("serviceaccounts", "no policy"), ("configmaps", "three expressions")] {
        let resource = registry.find("", "v1", name).expect("a resource");
        let mut fastest = Duration::MAX;
        for _ in 0..BATCHES {
            let start = clock.monotonic();
            for _ in 0..ROUNDS {
                let notes = PluginOutput::default();
                let attributes = Attributes {
                    operation: Operation::Create,
                    resource,
                    served: resource,
                    version: "v1",
                    subresource: "",
                    namespace: "team",
                    name: "app",
                    old: None,
                    user: &user,
                    dry_run: false,
                    options: &options,
                    reinvoked: false,
                    has_generated_name: false,
                    notes: &notes,
                };
                std::hint::black_box(chain.validate(&attributes, Some(&config_map)).await).expect("allowed");
            }
            fastest = fastest.min((clock.monotonic() - start) / ROUNDS);
        }
        println!("{matches}: {fastest:?} a write");
    }
}
