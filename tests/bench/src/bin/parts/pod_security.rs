//! PodSecurity on pod writes, by the policy of the namespace.

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

/// Number of timed batches. The result is the time of the fastest batch, because other processes may run.
const BATCHES: u32 = 200;
/// Number of writes in one batch.
const ROUNDS: u32 = 100;

/// A reader with one namespace and no other objects.
struct FixedObjects(Arc<Object>);

impl Reader for FixedObjects {
    fn get<'a>(&'a self, _: ObjectKind, _: &'a str, _: &'a str) -> MaybeFuture<'a, LookupResult> {
        MaybeFuture::Ready(Ok(Some(Arc::clone(&self.0))))
    }

    fn list<'a>(&'a self, _: ObjectKind, _: &'a str) -> MaybeFuture<'a, Result<Vec<Arc<Object>>, Status>> {
        MaybeFuture::Ready(Ok(Vec::new()))
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

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap_or_default()
}

/// A pod with three containers, with or without a hardened security context.
fn pod(hardened: bool) -> Object {
    let security_context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = |name: &str| {
        json!({
            "name": name, "image": "img.example.com/app:1",
            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}],
            "securityContext": if hardened { security_context.clone() } else { json!({}) },
        })
    };
    let pod_security_context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec = json!({
        "containers": [container("app"), container("side")],
        "initContainers": [container("setup")],
        "volumes": [{"name": "config", "configMap": {"name": "app"}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": if hardened { pod_security_context } else { json!({}) },
    });
    object(json!({"metadata": {"name": "p", "namespace": "team"}, "spec": spec}))
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let registry = Registry::new(&names);
    let pods = registry.find("", "v1", "pods").expect("pods");
    let clock = Arc::new(SystemClock::new());
    let disabled_plugins: Vec<String> = PLUGINS
        .iter()
        .filter(|plugin| plugin.name != "PodSecurity")
        .map(|plugin| plugin.name.to_owned())
        .collect();
    let user = Arc::new(UserInfo::anonymous());
    for (level, hardened) in
        [("privileged", false), ("baseline", false), ("restricted", true), ("restricted", false)]
    {
        let namespace = object(json!({
            "metadata": {"name": "team", "labels": {names.label_sub_key("pod-security", "enforce"): level}},
        }));
        let backend = Arc::new(FixedObjects(Arc::new(namespace)));
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(1));
        let dyn_clock: Arc<dyn Clock> = clock.clone();
        let map = webhooks::ServiceMap::default();
        let environment = Environment {
            webhooks: admission::webhook_clients(backend.clone(), map, &names, &dyn_clock, &rng),
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
        let chain =
            Chain::new(&[], &disabled_plugins, &Configuration::default(), &environment).expect("a chain");
        let pod = pod(hardened);
        let mut fastest = Duration::MAX;
        let mut is_rejected = false;
        for _ in 0..BATCHES {
            let start = clock.monotonic();
            for _ in 0..ROUNDS {
                let notes = PluginOutput::default();
                let attributes = Attributes {
                    operation: Operation::Create,
                    resource: pods,
                    served: pods,
                    version: "v1",
                    subresource: "",
                    namespace: "team",
                    name: "p",
                    old: None,
                    user: &user,
                    dry_run: false,
                    options: &|| Value::Null,
                    reinvoked: false,
                    has_generated_name: false,
                    notes: &notes,
                };
                is_rejected = std::hint::black_box(chain.validate(&attributes, Some(&pod)).await).is_err();
            }
            fastest = fastest.min((clock.monotonic() - start) / ROUNDS);
        }
        println!("enforce {level}: {fastest:?} a pod, {}", if is_rejected { "rejected" } else { "allowed" });
    }
}
