//! Measures the quota usage and the quota scopes of an object.
//!
//! # Contract
//!
//! Every object counts as one under `count/<resource>[.<group>]`. Pods also use compute resources. Services
//! use node ports and load balancers. Claims use storage, in total and by class. A few core kinds also count
//! under their plural. A finished pod, or a terminating pod past its grace period, uses only its object
//! count.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::time;
use kinds::Kind;
use kinds::resource_name::is_extended;
use serde_json::{Value, json};

use crate::persistent_volume_claim_resize::{class_annotation, class_of};
use crate::pod_containers::{CONTAINERS, INIT_CONTAINERS, containers};
use crate::pod_resources::{ResourceList, container_amounts, pod_amounts};
use crate::quantity::{Amounts, Quantity, amounts, raise, to_list};
use crate::tree::{items, items_at, text};

/// Kinds that also count under their plural.
const PLURALS: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

/// Compute resources of pods, with quota names.
const COMPUTE: [&str; 9] = [
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Compute resources that every container must specify if a quota limits them.
const REQUIRED_IN_CONTAINERS: [&str; 6] =
    ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// Measurement rule of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeasurementRule {
    Pods,
    Services,
    Claims,
    /// Only the object count.
    Plain,
}

pub(super) fn rule(resource: &Kind) -> MeasurementRule {
    match (resource.stem(), resource.plural()) {
        (Some(""), "pods") => MeasurementRule::Pods,
        (Some(""), "services") => MeasurementRule::Services,
        (Some(""), "persistentvolumeclaims") => MeasurementRule::Claims,
        _ => MeasurementRule::Plain,
    }
}

/// Whether all objects of a resource have the same usage, so measurement does not need the object.
pub fn is_plain(resource: &Kind) -> bool {
    rule(resource) == MeasurementRule::Plain
}

/// Whether quotas can limit a kind: never Events, as in kube-apiserver.
pub(super) fn is_counted(resource: &Kind) -> bool {
    resource.storage == kinds::Storage::Stored
        && resource.namespaced
        && !(resource.plural() == "events" && matches!(resource.stem(), Some("" | "events")))
}

/// Whether a resource name in a quota applies to the objects of a resource.
pub fn counts_resource(resource: &Kind, name: &str, names: &Names) -> bool {
    if !is_counted(resource) {
        return false;
    }
    if name.strip_prefix("count/").is_some_and(|counted| counted == resource.group_resource.to_string()) {
        return true;
    }
    match rule(resource) {
        MeasurementRule::Pods => {
            let request_name = name.strip_prefix("requests.");
            name == "pods"
                || COMPUTE.contains(&name)
                || request_name.unwrap_or(name).starts_with("hugepages-")
                || request_name.is_some_and(|name| is_extended(name, names))
        }
        MeasurementRule::Services => {
            matches!(name, "services" | "services.loadbalancers" | "services.nodeports")
        }
        MeasurementRule::Claims => {
            let of_class = name.split_once(&class_part(names)).map(|(_, rest)| rest);
            matches!(of_class.unwrap_or(name), "persistentvolumeclaims" | "requests.storage")
        }
        MeasurementRule::Plain => {
            resource.stem() == Some("") && resource.plural() == name && PLURALS.contains(&name)
        }
    }
}

/// Infix between a storage class and a resource in a quota: `.storageclass.storage.k8s.io/`.
fn class_part(names: &Names) -> String {
    format!(".storageclass.{}/", names.group("storage"))
}

/// Measured quota usage of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredObject {
    /// Usage until the time in `ends`, or always if `ends` is None.
    amounts: Amounts,
    /// Usage after the time in `ends`: the object count.
    count: Amounts,
    /// Result of [`grace_period_end`] for a terminating pod; None for all other objects.
    ends: Option<jiff::Timestamp>,
    /// Facts for scopes; None for objects other than pods, which match no scope.
    pod: Option<PodFacts>,
}

/// Whether quotas with scopes may select one of two states of a pod and not the other.
pub(super) fn has_other_scopes(old: &Object, new: &Object) -> bool {
    old.get("spec") != new.get("spec") && PodFacts::from_pod(old) != PodFacts::from_pod(new)
}

/// Facts about a pod that scopes evaluate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodFacts {
    has_deadline: bool,
    best_effort: bool,
    priority_class: String,
    selects_other_namespaces: bool,
}

impl MeasuredObject {
    /// Measures an object. For a plain resource the object is irrelevant.
    pub fn of(resource: &Kind, object: &Object, names: &Names) -> Self {
        let counted = format!("count/{}", resource.group_resource);
        let count = Amounts::from([(counted, Quantity::from_integer(1))]);
        let mut amounts = count.clone();
        let mut add_usage = |name: String, amount: Quantity| {
            let sum = amounts.entry(name).or_default();
            *sum = sum.plus(amount);
        };
        let mut measured = MeasuredObject::default();
        match rule(resource) {
            MeasurementRule::Pods => {
                measured.pod = Some(PodFacts::from_pod(object));
                measured.ends = grace_period_end(object);
                if !matches!(object.str_at(&["status", "phase"]), Some("Succeeded" | "Failed")) {
                    add_usage("pods".to_owned(), Quantity::from_integer(1));
                    let used = compute(|list| pod_amounts(object, list), names);
                    used.into_iter().for_each(|(name, amount)| add_usage(name, amount));
                }
            }
            MeasurementRule::Services => {
                add_usage("services".to_owned(), Quantity::from_integer(1));
                let (balancers, ports) = ports(object);
                add_usage("services.loadbalancers".to_owned(), Quantity::from_integer(balancers));
                add_usage("services.nodeports".to_owned(), Quantity::from_integer(ports));
            }
            MeasurementRule::Claims => {
                let class = class_of(object, &class_annotation(names));
                let storage =
                    object.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::from_value);
                let allocated =
                    object.at(&["status", "allocatedResources", "storage"]).and_then(Quantity::from_value);
                for prefix in [String::new(), format!("{class}{}", class_part(names))] {
                    if class.is_empty() && !prefix.is_empty() {
                        continue;
                    }
                    add_usage(format!("{prefix}persistentvolumeclaims"), Quantity::from_integer(1));
                    if let Some(storage) = storage.max(allocated) {
                        add_usage(format!("{prefix}requests.storage"), storage);
                    }
                }
            }
            MeasurementRule::Plain => {
                let plural = resource.plural();
                if resource.stem() == Some("") && PLURALS.contains(&plural) {
                    add_usage(plural.to_owned(), Quantity::from_integer(1));
                }
            }
        }
        MeasuredObject { amounts, count, ..measured }
    }

    /// The form in a claim.
    pub(super) fn to_json(&self) -> Value {
        let pod = self.pod.as_ref().map(|pod| {
            json!({
                "hasDeadline": pod.has_deadline, "bestEffort": pod.best_effort,
                "priorityClass": pod.priority_class, "selectsOtherNamespaces": pod.selects_other_namespaces,
            })
        });
        json!({
            "amounts": to_list(&self.amounts), "count": to_list(&self.count),
            "ends": self.ends.map(|end| end.to_string()), "pod": pod,
        })
    }

    /// Reads the form in a claim; None for another form.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let ends = match value.get("ends")? {
            Value::Null => None,
            end => Some(end.as_str()?.parse().ok()?),
        };
        let pod = value.get("pod").filter(|pod| !pod.is_null());
        let pod = pod.map(|pod| {
            let is_set = |field: &str| pod.get(field).and_then(Value::as_bool);
            Some(PodFacts {
                has_deadline: is_set("hasDeadline")?,
                best_effort: is_set("bestEffort")?,
                priority_class: pod.get("priorityClass")?.as_str()?.to_owned(),
                selects_other_namespaces: is_set("selectsOtherNamespaces")?,
            })
        });
        let pod = match pod {
            Some(facts) => Some(facts?),
            None => None,
        };
        Some(MeasuredObject {
            amounts: amounts(value.get("amounts")),
            count: amounts(value.get("count")),
            ends,
            pod,
        })
    }

    /// Usage at a point in time.
    pub fn amounts(&self, now: jiff::Timestamp) -> &Amounts {
        if self.ends.is_some_and(|end| end < now) { &self.count } else { &self.amounts }
    }

    /// Raises the usage to at least that of another state of the object.
    /// While a write is in flight, either state may be stored.
    #[must_use]
    pub fn at_least(&self, other: &MeasuredObject) -> MeasuredObject {
        let mut maximum = self.clone();
        raise(&mut maximum.amounts, &other.amounts);
        maximum
    }

    /// Whether the object matches a scope.
    pub(super) fn matches_scope(&self, scope: &QuotaScope) -> bool {
        let Some(pod) = &self.pod else { return false };
        match scope.name.as_str() {
            "Terminating" => pod.has_deadline,
            "NotTerminating" => !pod.has_deadline,
            "BestEffort" => pod.best_effort,
            "NotBestEffort" => !pod.best_effort,
            "CrossNamespacePodAffinity" => pod.selects_other_namespaces,
            "PriorityClass" => {
                let class = pod.priority_class.as_str();
                match scope.operator.as_str() {
                    "In" => !class.is_empty() && scope.values.iter().any(|value| value == class),
                    "NotIn" => !scope.values.iter().any(|value| value == class),
                    "DoesNotExist" => class.is_empty(),
                    _ => !class.is_empty(),
                }
            }
            _ => false,
        }
    }
}

/// Time after which a terminating pod uses only its object count: its deletion timestamp plus its grace
/// period, as in kube-apiserver.
fn grace_period_end(pod: &Object) -> Option<jiff::Timestamp> {
    let begun = time::parse(pod.meta_str("deletionTimestamp"))?;
    let grace = pod.meta()?.get("deletionGracePeriodSeconds")?.as_i64()?;
    begun.checked_add(jiff::SignedDuration::from_secs(grace)).ok()
}

/// Converts requests and limits to amounts with quota names.
fn compute(amounts: impl Fn(ResourceList) -> Amounts, names: &Names) -> Amounts {
    let mut used = Amounts::new();
    for (name, amount) in amounts(ResourceList::Requests) {
        let is_native =
            matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if is_native {
            used.insert(name.clone(), amount);
        }
        if is_native || is_extended(&name, names) {
            used.insert(format!("requests.{name}"), amount);
        }
    }
    for (name, amount) in amounts(ResourceList::Limits) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
    used
}

/// Number of load balancers and of node ports of a service.
fn ports(service: &Object) -> (i64, i64) {
    let ports = items_at(service, &["spec", "ports"]);
    let port_count = i64::try_from(ports.len()).unwrap_or(i64::MAX);
    match service.str_at(&["spec", "type"]) {
        Some("NodePort") => (0, port_count),
        Some("LoadBalancer") => {
            let allocates = service.at(&["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool);
            let has_node_port =
                |port: &&Value| port.get("nodePort").and_then(Value::as_i64).is_some_and(|port| port != 0);
            match allocates {
                Some(false) => {
                    (1, i64::try_from(ports.iter().filter(has_node_port).count()).unwrap_or(i64::MAX))
                }
                _ => (1, port_count),
            }
        }
        _ => (0, 0),
    }
}

impl PodFacts {
    fn from_pod(pod: &Object) -> Self {
        let init_and_regular = || containers(pod, CONTAINERS).chain(containers(pod, INIT_CONTAINERS));
        let has_compute_amount = |container: &Value| {
            [ResourceList::Requests, ResourceList::Limits].iter().any(|resource_list| {
                let amounts = container_amounts(container, *resource_list);
                ["cpu", "memory"]
                    .iter()
                    .any(|name| amounts.get(*name).is_some_and(|amount| !amount.is_zero()))
            })
        };
        PodFacts {
            has_deadline: pod
                .at(&["spec", "activeDeadlineSeconds"])
                .and_then(Value::as_i64)
                .is_some_and(|s| s >= 0),
            best_effort: !init_and_regular().any(has_compute_amount),
            priority_class: pod.str_at(&["spec", "priorityClassName"]).unwrap_or("").to_owned(),
            selects_other_namespaces: selects_other_namespaces(pod),
        }
    }
}

/// Whether an affinity or anti-affinity term selects other namespaces.
fn selects_other_namespaces(pod: &Object) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|affinity| {
        let terms = |list: &str| items_at(pod, &["spec", "affinity", *affinity, list]).iter();
        let required = terms("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred =
            terms("preferredDuringSchedulingIgnoredDuringExecution").filter_map(|t| t.get("podAffinityTerm"));
        required.chain(preferred).any(|term| {
            !items(term, "namespaces").is_empty()
                || term.get("namespaceSelector").is_some_and(|selector| !selector.is_null())
        })
    })
}

/// A scope of a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QuotaScope {
    pub(super) name: String,
    pub(super) operator: String,
    pub(super) values: Vec<String>,
}

impl QuotaScope {
    /// Parses an entry of a scope selector.
    fn from_selector(entry: &Value) -> Self {
        QuotaScope {
            name: text(entry, "scopeName").to_owned(),
            operator: text(entry, "operator").to_owned(),
            values: items(entry, "values").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

/// Scopes of a quota: listed scopes and scope selector.
#[derive(Clone, Debug, Default)]
pub struct Scopes(pub(super) Vec<QuotaScope>);

impl Scopes {
    /// Parses the scopes of a quota.
    pub fn of(quota: &Object) -> Self {
        let listed = items_at(quota, &["spec", "scopes"]).iter().filter_map(Value::as_str).map(|name| {
            QuotaScope { name: name.to_owned(), operator: "Exists".to_owned(), values: Vec::new() }
        });
        let selected = items_at(quota, &["spec", "scopeSelector", "matchExpressions"]);
        Scopes(listed.chain(selected.iter().map(QuotaScope::from_selector)).collect())
    }

    /// Whether an object matches all scopes.
    pub fn contain(&self, measured: &MeasuredObject) -> bool {
        self.0.iter().all(|scope| measured.matches_scope(scope))
    }
}

/// Describes containers without a required request or limit; None if all containers have them.
/// Example: `must specify requests.cpu for: a,b; requests.memory for: a`.
pub(super) fn missing_resources<'a>(
    pod: &Object,
    required: impl Iterator<Item = &'a str>,
    names: &Names,
) -> Option<String> {
    let required: BTreeSet<&str> = required.filter(|name| REQUIRED_IN_CONTAINERS.contains(name)).collect();
    let init_and_regular: Vec<&Value> =
        containers(pod, CONTAINERS).chain(containers(pod, INIT_CONTAINERS)).collect();
    let missing = required.into_iter().filter_map(|resource| {
        let unspecified: BTreeSet<&str> = init_and_regular
            .iter()
            .filter(|container| {
                !compute(|list| container_amounts(container, list), names).contains_key(resource)
            })
            .map(|container| crate::pod_containers::name(container))
            .collect();
        let unspecified: Vec<&str> = unspecified.into_iter().collect();
        (!unspecified.is_empty()).then(|| format!("{resource} for: {}", unspecified.join(",")))
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| format!("must specify {}", missing.join("; ")))
}
