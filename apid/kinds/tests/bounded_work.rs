//! Large objects, whose rules take time in proportion to their size.
//!
//! Rules that compare all pairs of items would take minutes for each of these objects. A body within the limits can have
//! hundreds of thousands of elements.

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::field::FieldErrors;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::time;
use kinds::{Context, EnabledVersions, Kind, Registry};
use serde_json::json;

/// Number of items of a list.
const COUNT: usize = 100_000;

/// The rules of one kind.
struct Rules {
    names: Names,
    registry: Registry,
    clock: ManualClock,
    rng: SeededRng,
    key: (&'static str, &'static str, &'static str),
    subresource: &'static str,
}

impl Rules {
    fn new(group: &'static str, version: &'static str, resource: &'static str) -> Self {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
        let registry = Registry::with_versions(&names, &versions);
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        let key = (group, version, resource);
        Rules { names, registry, clock, rng: SeededRng::new(1), key, subresource: "" }
    }

    fn resource(&self) -> &Kind {
        self.registry.find(self.key.0, self.key.1, self.key.2).unwrap()
    }

    fn context(&self) -> Context<'_> {
        Context { names: &self.names, clock: &self.clock, rng: &self.rng, subresource: self.subresource }
    }

    /// Validates a new object.
    fn create(&self, object: Value) -> FieldErrors {
        self.resource().validate_create(&Object::from_value(object).unwrap(), &self.context())
    }

    /// Validates an update after its preparation.
    fn update(&self, new: Value, old: Value) -> FieldErrors {
        let (mut new, old) = (Object::from_value(new).unwrap(), Object::from_value(old).unwrap());
        self.resource().prepare_update(&mut new, &old, &self.context());
        self.resource().validate_update(&new, &old, &self.context())
    }
}

/// Asserts that the path and message of some error contain a text.
#[track_caller]
fn assert_error(errors: &FieldErrors, text: &str) {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(texts.iter().any(|error| error.contains(text)), "{text} not in {texts:#?}");
}

fn list(item: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..COUNT).map(item).collect()
}

fn pod(fields: Value) -> Value {
    let mut spec = json!({"restartPolicy": "Always", "dnsPolicy": "Default", "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "c", "image": "a:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]});
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

#[test]
fn topology_constraints_of_pod_are_compared() {
    let constraints = list(|i| {
        let key = format!("k{}", i % (COUNT - 1));
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"})
    });
    let errors =
        Rules::new("", "v1", "pods").create(pod(json!({ "topologySpreadConstraints": constraints })));
    assert_eq!(errors.len(), 1);
    assert_error(
        &errors,
        "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{k0, ",
    );
}

#[test]
fn label_keys_of_pod_are_compared() {
    let keys = |prefix: &str| list(|i| json!(format!("{prefix}{i}")));
    let expressions = list(|i| json!({"key": format!("b{i}"), "operator": "Exists"}));
    let mut matching = keys("a");
    matching.push(json!("b0"));
    let constraint = json!({"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule",
        "matchLabelKeys": matching, "labelSelector": {"matchExpressions": expressions}});
    let term = json!({"topologyKey": "k", "labelSelector": {}, "matchLabelKeys": matching, "mismatchLabelKeys": keys("b")});
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let pod = pod(json!({"topologySpreadConstraints": [constraint], "affinity": affinity}));
    let errors = Rules::new("", "v1", "pods").create(pod);
    assert_error(&errors, "exists in both matchLabelKeys and labelSelector");
    assert_error(&errors, "exists in both matchLabelKeys and mismatchLabelKeys");
}

#[test]
fn mounts_and_devices_of_container_are_compared() {
    let mounts = list(|i| json!({"name": format!("m{i}"), "mountPath": format!("/{i}")}));
    let devices = list(|i| json!({"name": format!("d{i}"), "devicePath": format!("/{}", i + COUNT - 1)}));
    let volumes = list(|i| json!({"name": format!("m{i}"), "emptyDir": {}}));
    let claims = list(|i| json!({"name": format!("d{i}"), "persistentVolumeClaim": {"claimName": "c"}}));
    let container = json!({"name": "c", "image": "a:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always",
        "volumeMounts": mounts, "volumeDevices": devices});
    let volumes = [volumes, claims].concat();
    let pod = pod(json!({"volumes": volumes, "containers": [container]}));
    let errors = Rules::new("", "v1", "pods").create(pod);
    assert_eq!(errors.len(), 2);
    assert_error(&errors, "must not already exist as a path in volumeDevices");
    assert_error(&errors, "must not already exist as a path in volumeMounts");
}

#[test]
fn profiles_of_containers_add_limited_annotations() {
    let file = "a".repeat(100_000);
    let containers = list(|i| json!({"name": format!("c{i}"), "image": "a:1"}));
    let security = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": file}});
    let pod = pod(json!({"containers": containers, "securityContext": security}));
    let rules = Rules::new("", "v1", "pods");
    let mut pod = Object::from_value(pod).unwrap();
    rules.resource().prepare_create(&mut pod, "n", &rules.context());
    rules.resource().complete_new(&mut pod, &rules.context());
    let bytes: usize = pod.annotations().map(|(_, value)| value.len()).sum();
    assert!((256 * 1024..1 << 20).contains(&bytes), "{bytes}");
    assert_error(&rules.resource().validate_create(&pod, &rules.context()), "metadata.annotations: Too long");
}

#[test]
fn container_statuses_are_compared() {
    let statuses = |state: &str| {
        list(
            |i| json!({"name": format!("c{i}"), "image": "a", "imageID": "a", "ready": false, "restartCount": 0, "state": {state: {}}}),
        )
    };
    let pod = |statuses: Vec<Value>| {
        let mut pod = pod(json!({"restartPolicy": "Never"}));
        pod["metadata"]["resourceVersion"] = json!("1");
        pod["status"] = json!({ "containerStatuses": statuses });
        pod
    };
    let rules = Rules { subresource: "status", ..Rules::new("", "v1", "pods") };
    let mut new = statuses("terminated");
    new[COUNT - 1]["state"] = json!({"running": {}});
    let errors = rules.update(pod(new), pod(statuses("terminated")));
    assert_error(&errors, &format!("containerStatuses[{}].state: Forbidden", COUNT - 1));
}

#[test]
fn resources_of_resized_pod_are_compared() {
    let pod = |count: usize| {
        let limits: serde_json::Map<String, Value> =
            (0..count).map(|i| (format!("example.com/r{i}"), json!("1"))).collect();
        pod(json!({"containers": [{"name": "c", "image": "a:1", "resources": {"limits": limits}}]}))
    };
    let rules = Rules { subresource: "resize", ..Rules::new("", "v1", "pods") };
    assert_error(&rules.update(pod(COUNT - 1), pod(COUNT)), "resource limits cannot be removed");
}

#[test]
fn node_ports_of_service_are_kept() {
    let ports = |node_port: bool| {
        list(|i| {
            let mut port = json!({"name": format!("p{i}"), "port": i + 1, "protocol": "TCP"});
            if node_port {
                port["nodePort"] = json!(i + 1);
            }
            port
        })
    };
    let service = |ports: Vec<Value>| {
        Object::from_value(json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": ports}}))
            .unwrap()
    };
    let rules = Rules::new("", "v1", "services");
    let (mut new, old) = (service(ports(false)), service(ports(true)));
    rules.resource().prepare_update(&mut new, &old, &rules.context());
    assert_eq!(new.at(&["spec", "ports"]).unwrap()[COUNT - 1]["nodePort"], json!(COUNT));
}

#[test]
fn conditions_of_signing_request_are_compared() {
    let request = |status: &str| {
        let conditions = list(
            |i| json!({"type": format!("T{i}"), "status": status, "lastTransitionTime": "2020-01-01T00:00:00Z"}),
        );
        json!({"metadata": {"name": "r"}, "spec": {"signerName": "a.b/c"}, "status": {"conditions": conditions}})
    };
    let mut new = request("True");
    new["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "T0", "status": "True"}));
    let rules = Rules {
        subresource: "status",
        ..Rules::new("certificates.k8s.io", "v1", "certificatesigningrequests")
    };
    assert_error(&rules.update(new, request("True")), &format!("conditions[{COUNT}].type: Duplicate value"));
}

#[test]
fn tolerations_of_runtime_class_are_compared() {
    let tolerations = list(|i| json!({"key": format!("k{}", i % (COUNT - 1)), "operator": "Exists"}));
    let class =
        json!({"metadata": {"name": "c"}, "handler": "h", "scheduling": {"tolerations": tolerations}});
    let errors = Rules::new("node.k8s.io", "v1", "runtimeclasses").create(class);
    assert_eq!(errors.len(), 1);
    assert_error(&errors, &format!("scheduling.tolerations[{}]: Duplicate value", COUNT - 1));
}

#[test]
fn drivers_of_storage_node_are_compared() {
    let node = |id: &str| {
        let drivers =
            list(|i| json!({"name": format!("d{i}"), "nodeID": if i == COUNT - 1 { id } else { "n" }}));
        json!({"metadata": {"name": "c"}, "spec": {"drivers": drivers}})
    };
    let errors = Rules::new("storage.k8s.io", "v1", "csinodes").update(node("new"), node("old"));
    assert_eq!(errors.len(), 1);
    assert_error(&errors, "field is immutable");
}

#[test]
fn topologies_of_storage_class_are_compared() {
    let topology =
        |key: usize| json!({"matchLabelExpressions": [{"key": format!("k{key}"), "values": ["v"]}]});
    let class = |topologies: Vec<Value>| {
        json!({"metadata": {"name": "c"}, "provisioner": "p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowedTopologies": topologies})
    };
    let rules = Rules::new("storage.k8s.io", "v1", "storageclasses");
    let errors = rules.create(class(list(|i| topology(i % (COUNT - 1)))));
    assert_eq!(errors.len(), 1);
    assert_error(
        &errors,
        &format!("allowedTopologies[{}].matchLabelExpressions: Duplicate value", COUNT - 1),
    );
    assert_error(&rules.create(class(list(|_| json!({})))), "Duplicate value");
}

#[test]
fn versions_of_server_are_compared() {
    let versions = |first: usize| -> Vec<Value> { list(|i| json!(format!("v{}", i + first))) };
    let server = json!({"apiServerID": "a", "encodingVersion": "v0", "decodableVersions": versions(0), "servedVersions": versions(1)});
    let status = json!({"storageVersions": [server], "commonEncodingVersion": "v0"});
    let object = json!({"metadata": {"name": "a.b", "resourceVersion": "1"}, "spec": {}, "status": status});
    let rules = Rules {
        subresource: "status",
        ..Rules::new("internal.apiserver.k8s.io", "v1alpha1", "storageversions")
    };
    let errors = rules.update(object.clone(), object);
    let error =
        errors.iter().map(ToString::to_string).find(|error| error.contains("must be included")).unwrap();
    assert!(error.contains(&format!("v{COUNT}")) && error.len() < 1000, "{error}");
}

#[test]
fn conflicts_of_ports_return_limited_warnings() {
    let ports = list(|i| json!({"containerPort": 80, "protocol": "TCP", "hostPort": i % 2}));
    let container = json!({"name": "c", "image": "a:1", "ports": ports});
    let rules = Rules::new("", "v1", "pods");
    let pod = Object::from_value(pod(json!({ "containers": [container] }))).unwrap();
    assert_eq!(rules.resource().warnings(&pod, None, &rules.context()).len(), 100);
}
