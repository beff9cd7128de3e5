//! The built-in flow schemas and priority levels of API priority and fairness.
//!
//! # Reference
//!
//! Four objects are mandatory: changes to their specs are reverted. The others are suggested: the annotation
//! `autoupdate-spec` of each object says whether apid may change its spec. To an object without the
//! annotation, apid adds the value `true` if the spec has never changed (generation 1), else `false`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::{StartObject, with_desired_spec, without_nulls};

const GROUP: &str = "flowcontrol.apiserver";

/// Prefix and name of the annotation, without its domain.
const AUTO_UPDATE: (&str, &str) = ("apf", "autoupdate-spec");

/// Returns the built-in priority levels and then the built-in flow schemas.
pub(super) fn all(names: &Names) -> Vec<StartObject> {
    let mut all = levels(names);
    all.extend(schemas(names));
    all
}

/// Whether an object is mandatory or suggested, which decides how its spec is restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Mandatory,
    Suggested,
}
use Origin::{Mandatory, Suggested};

fn start_object(kind: &'static str, name: &str, origin: Origin, spec: Value, names: &Names) -> StartObject {
    let annotation = names.label_sub_key(AUTO_UPDATE.0, AUTO_UPDATE.1);
    let object = json!({"metadata": {"name": name, "annotations": {annotation: "true"}}, "spec": spec});
    StartObject::new(GROUP, kind, object).restored_by(match origin {
        Mandatory => with_desired_spec,
        Suggested => restore_suggested,
    })
}

/// Returns the state to which a suggested object is restored; None if the object stays. See the module
/// documentation.
fn restore_suggested(current: &Object, desired: &Object) -> Option<Object> {
    // `autoupdate-spec` is the only annotation of the desired object.
    let (key, _) = desired.annotations().next()?;
    let is_owned = match current.annotation(key) {
        Some("true") => true,
        Some("false") => false,
        _ => current.generation() == 1,
    };
    let mut next = if is_owned { with_desired_spec(current, desired) } else { None };
    let annotation_value = if is_owned { "true" } else { "false" };
    if current.annotation(key) != Some(annotation_value) {
        let object = next.get_or_insert_with(|| current.clone());
        let annotations = object.meta_mut().entry("annotations").or_insert_with(|| json!({}));
        if let Value::Object(annotations) = annotations {
            annotations.insert(key.to_owned(), annotation_value.into());
        }
    }
    next
}

fn levels(names: &Names) -> Vec<StartObject> {
    let level = |name: &str, origin: Origin, spec: Value| {
        start_object("PriorityLevelConfiguration", name, origin, spec, names)
    };
    let limited_spec = |shares: u32, lendable: u32, response: Value| {
        json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response,
        }})
    };
    let queued_level = |name: &str, shares: u32, lendable: u32, queues: u32, hand: u32| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        level(name, Suggested, limited_spec(shares, lendable, json!({"type": "Queue", "queuing": queuing})))
    };
    vec![
        level(
            "exempt",
            Mandatory,
            json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        ),
        level("catch-all", Mandatory, limited_spec(5, 0, json!({"type": "Reject"}))),
        queued_level("system", 30, 33, 64, 6),
        queued_level("node-high", 40, 25, 64, 6),
        queued_level("leader-election", 10, 0, 16, 4),
        queued_level("workload-high", 40, 50, 128, 6),
        queued_level("workload-low", 100, 90, 128, 6),
        queued_level("global-default", 20, 50, 128, 6),
    ]
}

const BY_USER: &str = "ByUser";
const BY_NAMESPACE: &str = "ByNamespace";

fn schemas(names: &Names) -> Vec<StartObject> {
    // The number is the matching precedence.
    let schema = |origin, name: &str, level: &str, precedence: u32, distinguisher: &str, rule: Value| {
        let distinguisher = Some(distinguisher).filter(|kind| !kind.is_empty());
        let spec = without_nulls([
            ("priorityLevelConfiguration", json!({"name": level})),
            ("matchingPrecedence", precedence.into()),
            ("distinguisherMethod", distinguisher.map(|kind| json!({ "type": kind })).into()),
            ("rules", json!([rule])),
        ]);
        start_object("FlowSchema", name, origin, spec, names)
    };
    let all_requests = |subjects: &[Value]| {
        json!({
            "subjects": subjects,
            "resourceRules": [{
                "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
            }],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        })
    };
    let resource_requests =
        |subjects: &[Value], rules: &[Value]| json!({"subjects": subjects, "resourceRules": rules});
    let everybody = [group("system:unauthenticated"), group("system:authenticated")];
    let system_account = |name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": names.system_namespace}});
    let election_rule = |api_group: &str, resources: &[&str]| {
        json!({
            "verbs": ["get", "create", "update"], "apiGroups": [api_group], "resources": resources, "namespaces": ["*"],
        })
    };
    let coordination = names.group("coordination");
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let system_accounts = format!("{}-service-accounts", names.system_namespace);
    let probes = json!({
        "subjects": everybody,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    });
    let node_requests = resource_requests(
        &[group("system:nodes")],
        &[
            json!({
                "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"], "clusterScope": true, "namespaces": ["*"],
            }),
            json!({
                "verbs": ["*"], "apiGroups": [&coordination], "resources": ["leases"], "namespaces": ["*"],
            }),
        ],
    );
    let system_elections = resource_requests(
        &[manager.clone(), scheduler.clone(), system_account("*")],
        &[election_rule(&coordination, &["leases"])],
    );
    let endpoint_writes = resource_requests(
        &[
            manager.clone(),
            system_account("endpoint-controller"),
            system_account("endpointslicemirroring-controller"),
        ],
        &[election_rule("", &["endpoints"])],
    );
    let workload_elections = resource_requests(
        &[system_account("*")],
        &[election_rule("", &["endpoints", "configmaps"]), election_rule(&coordination, &["leases"])],
    );
    let manager_requests = all_requests(&[manager]);
    let scheduler_requests = all_requests(&[scheduler]);
    let of_system_accounts = all_requests(&[system_account("*")]);
    let account_requests = all_requests(&[group("system:serviceaccounts")]);
    vec![
        schema(Mandatory, "exempt", "exempt", 1, "", all_requests(&[group("system:masters")])),
        schema(Mandatory, "catch-all", "catch-all", 10_000, BY_USER, all_requests(&everybody)),
        schema(Suggested, "system-nodes", "system", 500, BY_USER, all_requests(&[group("system:nodes")])),
        schema(Suggested, "system-node-high", "node-high", 400, BY_USER, node_requests),
        schema(Suggested, "probes", "exempt", 2, "", probes),
        schema(Suggested, "system-leader-election", "leader-election", 100, BY_USER, system_elections),
        // `workload-leader-election` also matches these writes; this schema has the lower precedence value
        // and wins.
        schema(Suggested, "endpoint-controller", "workload-high", 150, BY_USER, endpoint_writes),
        schema(Suggested, "workload-leader-election", "leader-election", 200, BY_USER, workload_elections),
        schema(Suggested, "kube-controller-manager", "workload-high", 800, BY_NAMESPACE, manager_requests),
        schema(Suggested, "kube-scheduler", "workload-high", 800, BY_NAMESPACE, scheduler_requests),
        schema(Suggested, &system_accounts, "workload-high", 900, BY_NAMESPACE, of_system_accounts),
        schema(Suggested, "service-accounts", "workload-low", 9_000, BY_USER, account_requests),
        schema(Suggested, "global-default", "global-default", 9_900, BY_USER, all_requests(&everybody)),
    ]
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn flow_schemas_reference_existing_priority_levels() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let all = all(&names);
        let levels: Vec<&str> =
            all.iter().filter(|w| w.kind.1 != "FlowSchema").map(|w| w.object.name()).collect();
        let schemas: Vec<&Object> =
            all.iter().filter(|w| w.kind.1 == "FlowSchema").map(|w| &w.object).collect();
        assert_eq!((levels.len(), schemas.len()), (8, 13));
        for schema in schemas {
            let level = schema.str_at(&["spec", "priorityLevelConfiguration", "name"]).unwrap();
            assert!(levels.contains(&level), "{} of {}", level, schema.name());
            assert_eq!(schema.annotation("apf.kubernetes.io/autoupdate-spec"), Some("true"));
        }
    }

    #[test]
    fn suggested_flow_control_objects_follow_autoupdate_annotation() {
        let key = "apf.kubernetes.io/autoupdate-spec";
        let flow_schema = |annotation: Option<&str>, generation: u64, level: &str| {
            let mut object =
                json!({"metadata": {"name": "s", "generation": generation}, "spec": {"level": level}});
            if let Some(value) = annotation {
                object["metadata"]["annotations"] = json!({ key: value });
            }
            Object::from_value(object).unwrap()
        };
        let desired = flow_schema(Some("true"), 0, "new");
        for (annotation, generation, level, expected_annotation, expected_level) in [
            (Some("true"), 1, "new", "true", "new"),
            (Some("true"), 5, "old", "true", "new"),
            (Some("false"), 1, "old", "false", "old"),
            (Some("false"), 1, "new", "false", "new"),
            (None, 1, "old", "true", "new"),
            (None, 2, "old", "false", "old"),
            (Some("odd"), 2, "old", "false", "old"),
        ] {
            let current = flow_schema(annotation, generation, level);
            let next = restore_suggested(&current, &desired);
            assert_eq!(
                next.is_none(),
                annotation == Some(expected_annotation) && level == expected_level,
                "{annotation:?} {generation}"
            );
            let next = next.unwrap_or(current);
            assert_eq!(
                (next.annotation(key), next.str_at(&["spec", "level"])),
                (Some(expected_annotation), Some(expected_level))
            );
        }
    }
}
