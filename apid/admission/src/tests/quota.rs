//! Tests of usage measurement, quota checks and concurrent writers.

use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::names::Preset;
use kinds::Registry;
use serde_json::json;
use storage::engine::memory::MemoryStore;
use storage::{Change, Observer, Op, Revision, Store};

use super::*;
use crate::Configuration;
use crate::quantity::{amounts, text};
use crate::testing::{Fake, FakeBackend, PluginResult, TestedWrite};

fn quota(name: &str, spec: Value, used: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"},
        "spec": spec.clone(),
        "status": {"hard": spec["hard"], "used": used},
    })
}

fn fake(quotas: &[Value]) -> Fake {
    Fake::new(Preset::Kubernetes).with_objects("", "ResourceQuota", quotas)
}

fn plugin(fake: &Fake, limited: &str) -> Result<ResourceQuota, String> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ResourceQuota\n  \
         configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    kind: ResourceQuotaConfiguration\n    limitedResources: {limited}\n"
    );
    let read_file = |_: &str| Err(std::io::Error::other("no other file"));
    let configuration = Configuration::parse("f.yaml", text.as_bytes(), &fake.names, &read_file).unwrap();
    ResourceQuota::new(&fake.environment, configuration.for_plugin("ResourceQuota"))
        .map_err(|error| error.to_string())
}

async fn create(fake: &Fake, kind: (&str, &str), object: Value) -> PluginResult {
    let plugin = plugin(fake, "[]").unwrap();
    fake.run_plugin(&plugin, TestedWrite { kind, ..TestedWrite::default() }, object).await
}

fn pod(name: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn used(fake: &Fake, name: &str) -> String {
    let quota = fake.environment.reader.cached(QUOTA, "team", name).unwrap().unwrap().unwrap();
    text(&amounts(quota.at(&["status", "used"])))
}

#[test]
fn quota_usage_is_measured_by_kind() {
    let names = Fake::new(Preset::Kubernetes).names;
    let registry = Registry::new(&names);
    let now = "2026-01-01T00:01:00Z".parse().unwrap();
    let claim = |class: Value| json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
    let ports = json!([{"port": 1, "nodePort": 30001}, {"port": 2}]);
    for (group, kind, object, expected) in [
        ("apps", "Deployment", json!({}), "count/deployments.apps=1"),
        ("", "ConfigMap", json!({}), "configmaps=1,count/configmaps=1"),
        ("", "Endpoints", json!({}), "count/endpoints=1"),
        (
            "",
            "Pod",
            pod("p", json!({"cpu": "100m", "memory": "1Gi", "nvidia.com/gpu": "2", "hugepages-2Mi": "4Mi"})),
            "count/pods=1,cpu=100m,hugepages-2Mi=4Mi,memory=1Gi,pods=1,requests.cpu=100m,requests.hugepages-2Mi=4Mi,requests.memory=1Gi,requests.nvidia.com/gpu=2",
        ),
        ("", "Pod", json!({"status": {"phase": "Succeeded"}}), "count/pods=1"),
        (
            "",
            "Pod",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}),
            "count/pods=1",
        ),
        (
            "",
            "Pod",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:50Z", "deletionGracePeriodSeconds": 30}}),
            "count/pods=1,pods=1",
        ),
        (
            "",
            "Service",
            json!({"spec": {"ports": ports}}),
            "count/services=1,services=1,services.loadbalancers=0,services.nodeports=0",
        ),
        (
            "",
            "Service",
            json!({"spec": {"type": "NodePort", "ports": ports}}),
            "count/services=1,services=1,services.loadbalancers=0,services.nodeports=2",
        ),
        (
            "",
            "Service",
            json!({"spec": {"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}}),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=1",
        ),
        (
            "",
            "PersistentVolumeClaim",
            claim(json!(null)),
            "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=1Gi",
        ),
        (
            "",
            "PersistentVolumeClaim",
            claim(json!("gold")),
            "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,requests.storage=1Gi",
        ),
    ] {
        let resource = registry.find_kind(&names.group(group), kind).unwrap();
        let object = Object::from_value(object).unwrap();
        let measured = MeasuredObject::of(resource, &object, &names);
        assert_eq!(text(measured.amounts(now)), expected, "{kind}");
        for name in measured.amounts(now).keys() {
            assert!(counts_resource(resource, name, &names), "{name} is about {kind}");
        }
    }
    let events = registry.find_kind("", "Event").unwrap();
    assert!(
        !counts_resource(events, "count/events", &names),
        "quotas do not count Events, as in kube-apiserver"
    );
}

#[tokio::test]
async fn write_over_quota_is_rejected_with_reason() {
    let pods_and_cpu = || {
        quota(
            "q",
            json!({"hard": {"pods": "2", "requests.cpu": "1"}}),
            json!({"pods": "1", "requests.cpu": "600m"}),
        )
    };
    let forbidden = |reason: &str| format!("pods \"p\" is forbidden: {reason}");
    for (quotas, object, message, after) in [
        (vec![pods_and_cpu()], pod("p", json!({"cpu": "400m"})), String::new(), "pods=2,requests.cpu=1"),
        (
            vec![pods_and_cpu()],
            pod("p", json!({"cpu": "401m"})),
            forbidden(
                "exceeded quota: q, requested: requests.cpu=401m, used: requests.cpu=600m, limited: requests.cpu=1",
            ),
            "pods=1,requests.cpu=600m",
        ),
        (
            vec![pods_and_cpu()],
            pod("p", json!({})),
            forbidden("failed quota: q: must specify requests.cpu for: c"),
            "pods=1,requests.cpu=600m",
        ),
        (
            vec![quota(
                "q",
                json!({"hard": {"limits.memory": "1", "limits.cpu": "1"}}),
                json!({"limits.cpu": "0", "limits.memory": "0"}),
            )],
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            forbidden("failed quota: q: must specify limits.cpu for: a,b; limits.memory for: a,b"),
            "limits.cpu=0,limits.memory=0",
        ),
        (
            vec![quota("q", json!({"hard": {"pods": "1", "count/pods": "1"}}), json!({"pods": "0"}))],
            pod("p", json!({})),
            forbidden("status unknown for quota: q, resources: count/pods,pods"),
            "pods=0",
        ),
        (
            vec![quota(
                "q",
                json!({"hard": {"pods": "1", "count/pods": "1"}}),
                json!({"pods": "1", "count/pods": "1"}),
            )],
            pod("p", json!({})),
            forbidden(
                "exceeded quota: q, requested: count/pods=1,pods=1, used: count/pods=1,pods=1, limited: count/pods=1,pods=1",
            ),
            "count/pods=1,pods=1",
        ),
        (
            vec![quota("q", json!({"hard": {"pods": "5"}, "scopes": ["BestEffort"]}), json!({"pods": "0"}))],
            pod("p", json!({"cpu": "1"})),
            String::new(),
            "pods=0",
        ),
        (
            vec![quota(
                "q",
                json!({"hard": {"pods": "5"}, "scopes": ["BestEffort", "NotTerminating"]}),
                json!({"pods": "0"}),
            )],
            pod("p", json!({})),
            String::new(),
            "pods=1",
        ),
        (
            vec![quota(
                "q",
                json!({"hard": {"count/configmaps": "0", "services": "0"}}),
                json!({"count/configmaps": "0", "services": "0"}),
            )],
            pod("p", json!({})),
            String::new(),
            "count/configmaps=0,services=0",
        ),
    ] {
        let fake = fake(&quotas);
        let answer = create(&fake, ("", "Pod"), object.clone()).await;
        assert_eq!(answer.message(), message, "{object}");
        assert_eq!(used(&fake, "q"), after, "{object}");
    }
}

#[tokio::test]
async fn quota_scopes_match_priority_class_and_affinity() {
    let spec_of_scope = |name: &str, operator: &str, values: &[&str]| json!({"hard": {"pods": "9"}, "scopeSelector": {"matchExpressions": [{"scopeName": name, "operator": operator, "values": values}]}});
    let of_class = |class: &str| {
        let mut pod = pod("p", json!({}));
        pod["spec"]["priorityClassName"] = json!(class);
        pod
    };
    let cross_namespace = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "affinity": {"podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaceSelector": {}}}]}}}});
    let with_deadline =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [], "activeDeadlineSeconds": 5}});
    for (spec, pod, counted) in [
        (spec_of_scope("PriorityClass", "In", &["high"]), of_class("high"), true),
        (spec_of_scope("PriorityClass", "In", &["high"]), of_class("low"), false),
        (spec_of_scope("PriorityClass", "NotIn", &["high"]), of_class("low"), true),
        (spec_of_scope("PriorityClass", "NotIn", &["high"]), pod("p", json!({})), true),
        (spec_of_scope("PriorityClass", "Exists", &[]), of_class("x"), true),
        (spec_of_scope("PriorityClass", "Exists", &[]), pod("p", json!({})), false),
        (spec_of_scope("PriorityClass", "DoesNotExist", &[]), pod("p", json!({})), true),
        (spec_of_scope("CrossNamespacePodAffinity", "Exists", &[]), cross_namespace.clone(), true),
        (spec_of_scope("CrossNamespacePodAffinity", "Exists", &[]), pod("p", json!({})), false),
        (json!({"hard": {"pods": "9"}, "scopes": ["Terminating"]}), with_deadline.clone(), true),
        (json!({"hard": {"pods": "9"}, "scopes": ["NotTerminating"]}), with_deadline, false),
        (json!({"hard": {"pods": "9"}, "scopes": ["NotBestEffort"]}), pod("p", json!({"cpu": "1"})), true),
    ] {
        let fake = fake(&[quota("q", spec.clone(), json!({"pods": "0"}))]);
        let answer = create(&fake, ("", "Pod"), pod.clone()).await;
        assert_eq!(answer.message(), "");
        assert_eq!(used(&fake, "q") == "pods=1", counted, "{spec} {pod}");
    }
}

#[tokio::test]
async fn update_charges_increase_and_dry_run_charges_nothing() {
    let service = |kind: &str, ports: usize| {
        let ports: Vec<Value> = (0..ports).map(|port| json!({"port": port})).collect();
        json!({"metadata": {"name": "s", "resourceVersion": "7"}, "spec": {"type": kind, "ports": ports}})
    };
    let config_map = json!({"metadata": {"name": "m", "resourceVersion": "7"}});
    for (kind, old, new, dry_run, after) in [
        (
            "Service",
            service("NodePort", 1),
            service("NodePort", 3),
            false,
            "configmaps=0,services=1,services.nodeports=3",
        ),
        (
            "Service",
            service("NodePort", 3),
            service("ClusterIP", 3),
            false,
            "configmaps=0,services=1,services.nodeports=1",
        ),
        (
            "Service",
            service("ClusterIP", 1),
            service("NodePort", 1),
            true,
            "configmaps=0,services=1,services.nodeports=1",
        ),
        (
            "ConfigMap",
            config_map.clone(),
            config_map.clone(),
            false,
            "configmaps=0,services=1,services.nodeports=1",
        ),
    ] {
        let hard = json!({"hard": {"configmaps": "9", "services": "1", "services.nodeports": "3"}});
        let fake =
            fake(&[quota("q", hard, json!({"configmaps": "0", "services": "1", "services.nodeports": "1"}))]);
        let plugin = plugin(&fake, "[]").unwrap();
        let write = TestedWrite {
            operation: Operation::Update,
            kind: ("", kind),
            old: Some(old),
            dry_run,
            ..TestedWrite::default()
        };
        let answer = fake.run_plugin(&plugin, write, new.clone()).await;
        assert_eq!(answer.message(), "");
        assert_eq!(used(&fake, "q"), after, "{new}");
    }
}

#[tokio::test]
async fn update_that_moves_a_pod_into_a_scope_is_charged_at_once() {
    let scoped = |name: &str, scope: &str, used: &str| {
        quota(name, json!({"hard": {"pods": "1"}, "scopes": [scope]}), json!({"pods": used}))
    };
    let fake = fake(&[scoped("lasting", "NotTerminating", "1"), scoped("ending", "Terminating", "0")]);
    let plugin = plugin(&fake, "[]").unwrap();
    let update = async |name: &str, before: Value, after: Value| {
        let state = |deadline: Value| {
            let spec = json!({"containers": [{"name": "c"}], "activeDeadlineSeconds": deadline});
            json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": spec})
        };
        let write =
            TestedWrite { operation: Operation::Update, old: Some(state(before)), ..TestedWrite::default() };
        fake.run_plugin(&plugin, write, state(after)).await.message().to_owned()
    };
    assert_eq!(update("a", Value::Null, json!(60)).await, "");
    assert_eq!((used(&fake, "ending"), used(&fake, "lasting")), ("pods=1".to_owned(), "pods=1".to_owned()));
    assert_eq!(update("a", json!(60), json!(30)).await, "", "the pod stays in its scope");
    assert_eq!(
        update("b", Value::Null, json!(60)).await,
        "pods \"b\" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=1, limited: pods=1"
    );
    assert_eq!(used(&fake, "ending"), "pods=1");
}

#[tokio::test]
async fn limited_resource_without_covering_quota_is_rejected() {
    let limited_gold = "[{resource: persistentvolumeclaims, matchContains: [gold.storageclass.storage.k8s.io/requests.storage]}]";
    let limited_class =
        "[{resource: pods, matchScopes: [{scopeName: PriorityClass, operator: In, values: [high, top]}]}]";
    let mut important = pod("x", json!({}));
    important["spec"]["priorityClassName"] = json!("high");
    let claim = json!({"metadata": {"name": "x"}, "spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1"}}}});
    let covering = quota(
        "q",
        json!({"hard": {"gold.storageclass.storage.k8s.io/requests.storage": "5"}}),
        json!({"gold.storageclass.storage.k8s.io/requests.storage": "0"}),
    );
    let class_quota = quota(
        "q",
        json!({"hard": {"pods": "5"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}),
        json!({"pods": "0"}),
    );
    for (limited, quotas, kind, object, reason) in [
        (
            limited_gold,
            vec![],
            "PersistentVolumeClaim",
            claim.clone(),
            "insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage",
        ),
        (limited_gold, vec![covering], "PersistentVolumeClaim", claim.clone(), ""),
        (limited_gold, vec![], "Pod", important.clone(), ""),
        (
            limited_class,
            vec![],
            "Pod",
            important.clone(),
            "insufficient quota to match these scopes: [{PriorityClass In [high top]}]",
        ),
        (limited_class, vec![class_quota], "Pod", important.clone(), ""),
        (limited_class, vec![], "Pod", pod("x", json!({})), ""),
    ] {
        let fake = fake(&quotas);
        let plugin = plugin(&fake, limited).unwrap();
        let answer = fake
            .run_plugin(&plugin, TestedWrite { kind: ("", kind), ..TestedWrite::default() }, object)
            .await;
        assert_eq!(answer.result.is_err(), !reason.is_empty(), "{limited} {kind}: {}", answer.message());
        assert!(answer.message().ends_with(reason));
    }
    for (limited, error) in [
        ("[{matchContains: [x]}]", "limitedResources[0].resource: must be set"),
        (
            "[{resource: pods, matchScopes: [{scopeName: PriorityClass, operator: Has}]}]",
            "limitedResources[0].matchScopes[0].operator: must be one of In, NotIn, Exists, DoesNotExist",
        ),
        (
            "[{resource: pods, matchcontains: []}]",
            "limitedResources[0].matchcontains\" (a similar field is \"matchContains\")",
        ),
    ] {
        let have = plugin(&fake(&[]), limited).err().unwrap();
        assert!(have.starts_with("file `f.yaml`: line 8: "), "{have}");
        assert!(have.ends_with(&format!("plugins[0].configuration.{error}")), "{have}");
    }
}

/// 32 concurrent writers of one namespace: the quota admits as many as fit and charges each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_never_exceed_quota() {
    let fake = Arc::new(fake(&[quota(
        "q",
        json!({"hard": {"pods": "100", "requests.cpu": "30"}}),
        json!({"pods": "0", "requests.cpu": "0"}),
    )]));
    let writers = (0..32).map(|writer| {
        let fake = Arc::clone(&fake);
        tokio::spawn(async move {
            let mut allowed = 0;
            for i in 0..10 {
                let answer =
                    create(&fake, ("", "Pod"), pod(&format!("p-{writer}-{i}"), json!({"cpu": "500m"}))).await;
                match answer.message() {
                    "" => allowed += 1,
                    refused => assert!(
                        refused.contains("exceeded quota: q, requested: requests.cpu=500m"),
                        "{refused}"
                    ),
                }
            }
            allowed
        })
    });
    let mut allowed = 0;
    for writer in writers.collect::<Vec<_>>() {
        allowed += writer.await.unwrap();
    }
    assert_eq!(allowed, 60);
    assert_eq!(used(&fake, "q"), "pods=60,requests.cpu=30");
}

fn reservation(measured: MeasuredObject) -> Reservation {
    Reservation {
        namespace: "team".to_owned(),
        key: "core/pods/team/p".to_owned(),
        replaces: String::new(),
        measured,
    }
}

fn pods_quota(used: &str) -> Value {
    quota("q", json!({"hard": {"pods": "2"}}), json!({"pods": used}))
}

/// The controller of another server. Some counts contain a new reservation before its charge; a later count takes the
/// charge back.
struct EarlyCounts {
    backend: Arc<FakeBackend>,
    number: AtomicUsize,
}

impl Observer for EarlyCounts {
    fn observe(&self, changes: &[Change]) {
        for change in changes {
            let number = self.number.load(Ordering::SeqCst);
            if number > 0 {
                let used = if change.new.is_some() { "2" } else { "1" };
                self.backend.put("", "ResourceQuota", pods_quota(used));
                self.number.store(number - usize::from(change.new.is_none()), Ordering::SeqCst);
            }
        }
    }
}

#[tokio::test]
async fn reservation_counted_before_its_charge_is_charged_once() {
    for (number, message) in [(1, ""), (2, ""), (1000, "exceeded quota: q")] {
        let fake = fake(&[pods_quota("1")]);
        let counts = EarlyCounts { backend: Arc::clone(&fake.backend), number: number.into() };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::of_several_servers(Arc::new(counts)));
        fake.environment.reservations.share(&store);
        let answer = create(&fake, ("", "Pod"), pod("p", json!({}))).await;
        assert!(answer.message().contains(message), "{}", answer.message());
        assert_eq!(answer.message().is_empty(), message.is_empty(), "{}", answer.message());
        if message.is_empty() {
            assert_eq!(used(&fake, "q"), "pods=2");
        }
    }
}

#[tokio::test]
async fn room_after_the_count_of_another_server_is_used() {
    let (servers, _) = two_servers();
    let mut fake = fake(&[pods_quota("2")]);
    fake.environment.reservations = Arc::clone(&servers[0]);
    let timed_create = async |name: &str| {
        let begin = tokio::time::Instant::now();
        let answer = create(&fake, ("", "Pod"), pod(name, json!({}))).await;
        (answer.message().to_owned(), begin.elapsed())
    };
    // The write of another server is counted twice until the next count.
    let (backend, counted) = (Arc::clone(&fake.backend), pods_quota("1"));
    let count = tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        backend.put("", "ResourceQuota", counted);
    });
    assert_eq!(timed_create("one").await.0, "");
    count.await.unwrap();
    let (rejection, waited) = timed_create("two").await;
    assert!(rejection.contains("exceeded quota: q") && waited >= RECOUNT_WAIT, "{rejection} {waited:?}");
    let (rejection, waited) = timed_create("three").await;
    assert!(rejection.contains("exceeded quota: q"), "{rejection}");
    assert!(waited < RECOUNT_WAIT / 2, "the quota has not changed for long: {waited:?}");
}

#[tokio::test]
async fn repeated_write_uses_the_room_of_its_earlier_attempt() {
    let fake = Arc::new(fake(&[pods_quota("1")]));
    let plugin = plugin(&fake, "[]").unwrap();
    let recorder = crate::Recorder::default();
    let attempt = async || {
        let write = TestedWrite::default();
        fake.run_plugin_recording(&plugin, write, pod("p", json!({})), &recorder).await.message().to_owned()
    };
    assert_eq!(attempt().await, "");
    assert_eq!(used(&fake, "q"), "pods=2");
    // The commit met a conflict. A count takes the charge back.
    recorder.reset();
    let controller = Arc::clone(&fake);
    let count = tokio::spawn(async move {
        controller.environment.reservations.next_recount().await;
        controller.backend.put("", "ResourceQuota", pods_quota("1"));
    });
    assert_eq!(attempt().await, "");
    count.await.unwrap();
    assert_eq!(used(&fake, "q"), "pods=2");
    // Another write has no charge to take back.
    assert!(create(&fake, ("", "Pod"), pod("other", json!({}))).await.message().contains("exceeded quota"));
}

/// Two servers that share a store.
fn two_servers() -> ([Arc<Reservations>; 2], Arc<dyn Store>) {
    let observers = Arc::new(storage::Observers(Vec::new()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::of_several_servers(observers));
    let servers = [Arc::<Reservations>::default(), Arc::default()];
    servers.iter().for_each(|server| server.share(&store));
    (servers, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_at_two_servers_never_exceed_quota() {
    let (servers, store) = two_servers();
    let first = fake(&[quota("q", json!({"hard": {"pods": "20"}}), json!({"pods": "0"}))]);
    let fakes = servers.map(|reservations| {
        let environment = Environment { reservations, ..first.environment.clone() };
        Arc::new(Fake { environment, backend: Arc::clone(&first.backend), ..Fake::new(Preset::Kubernetes) })
    });
    let writers = (0..40).map(|writer| {
        let fake = Arc::clone(&fakes[writer % 2]);
        tokio::spawn(async move {
            let answer = create(&fake, ("", "Pod"), pod(&format!("p-{writer}"), json!({}))).await;
            assert!(matches!(answer.message(), "") || answer.message().contains("exceeded quota: q"));
            usize::from(answer.message().is_empty())
        })
    });
    let mut allowed = 0;
    for writer in writers.collect::<Vec<_>>() {
        allowed += writer.await.unwrap();
    }
    assert_eq!((allowed, used(&first, "q").as_str()), (20, "pods=20"));
    // The reservations end with the writes.
    while !store.range(storage::CLAIMS, "", 0, None).await.unwrap().rows.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn reservation_is_known_to_other_servers_and_its_end_prevents_the_write() {
    let ([first, second], store) = two_servers();
    let fake = fake(&[]);
    let registry = Registry::new(&fake.names);
    let pod = json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30},
        "spec": {
            "priorityClassName": "high", "activeDeadlineSeconds": 9,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}],
        },
    });
    let pod = Object::from_value(pod).unwrap();
    let reservation =
        reservation(MeasuredObject::of(registry.find_kind("", "Pod").unwrap(), &pod, &fake.names));
    let guard = first.reserve(reservation.clone(), &*fake.environment.rng).await.unwrap();
    assert_eq!(second.in_namespace("team", store.revision()).await.unwrap(), [reservation]);
    assert!(second.in_namespace("tea", store.revision()).await.unwrap().is_empty());
    let held = [guard.held().unwrap()];
    drop(guard);
    while !second.in_namespace("team", store.revision()).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let late = store.commit_holding("core/pods/team/p", Op::Create("{}".into()), &held).await;
    assert!(matches!(&late, Err(storage::Error::Lost(_))), "{late:?}");
}

#[tokio::test]
async fn quota_reservation_ends_with_the_write() {
    let reservations: Arc<Reservations> = Arc::default();
    let rng = apimachinery::clock::SeededRng::new(1);
    let recorder = crate::Recorder::default();
    recorder.keep(reservations.reserve(reservation(MeasuredObject::default()), &rng).await.unwrap());
    assert_eq!(reservations.in_namespace("team", Revision(0)).await.unwrap().len(), 1);
    assert!(reservations.in_namespace("other", Revision(0)).await.unwrap().is_empty());
    drop(recorder);
    assert!(reservations.in_namespace("team", Revision(0)).await.unwrap().is_empty());
    assert_eq!(
        reservations.next_recount().await.into_iter().collect::<Vec<_>>(),
        ["team"],
        "the namespace is counted then"
    );
}
