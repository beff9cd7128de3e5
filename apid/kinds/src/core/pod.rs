//! Pod: containers that run together on a node.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Map, Value, json};

use super::{pod_parts, pod_status};
use crate::defaults::part;
use crate::pods;
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, since};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, PART_VERBS, Revalidation, Strategy,
    Subresource, Verb, WriteRules, metadata,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["po"],
    categories: &["all"],
    subresources: &[
        Subresource::new("attach", &[Verb::Create, Verb::Get], "PodAttachOptions"),
        Subresource::new("binding", &[Verb::Create], "Binding"),
        Subresource::new("ephemeralcontainers", PART_VERBS, "Pod"),
        Subresource {
            group_version: Some(("policy", "v1")),
            ..Subresource::new("eviction", &[Verb::Create], "Eviction")
        },
        Subresource::new("exec", &[Verb::Create, Verb::Get], "PodExecOptions"),
        Subresource::new("log", &[Verb::Get], "Pod"),
        Subresource::new("portforward", &[Verb::Create, Verb::Get], "PodPortForwardOptions"),
        Subresource::proxy("PodProxyOptions"),
        Subresource::new("resize", PART_VERBS, "Pod"),
        Subresource::status("Pod"),
    ],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::MainResource),
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        delete_returns_object: true,
        // The strategy replaces the status except for the QoS class.
        keeps_status_on_create: true,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    field_aliases: &[("spec.host", "spec.nodeName")],
    field_sources: &["status.podIPs"],
    columns: &[
        NAME,
        Column::text("Ready", "Ready containers and all containers."),
        Column::text("Status", "Phase of the pod, or the reason of a failure."),
        Column::text("Restarts", "Restarts of the containers, and the time since the last restart."),
        AGE,
        Column::wide("IP", "Address of the pod."),
        Column::wide("Node", "Node of the pod.").text_or("spec.nodeName", NONE),
        Column::wide("Nominated Node", "Node on which preemption makes room for the pod.")
            .text_or("status.nominatedNodeName", NONE),
        Column::wide("Readiness Gates", "True conditions of the readiness gates, and all gates."),
    ],
    cells,
    strategy: &Pod,
    ..BuiltInKind::namespaced("core/v1.Pod", "pods")
};

/// Default grace period in seconds.
const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

struct Pod;

impl Strategy for Pod {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        pods::defaults::pod(object, ctx.names);
        pod_status::complete_addresses(object);
    }

    /// Grace period of a deletion, in seconds. The period is 0 for a pod that has no node or that has failed
    /// or succeeded. A negative period becomes 1.
    fn grace_period_seconds(&self, pod: &Object, requested: Option<i64>) -> Option<i64> {
        let has_ended = matches!(pod.text("status.phase"), "Failed" | "Succeeded");
        if pod.text("spec.nodeName").is_empty() || has_ended {
            return Some(0);
        }
        let pod_default = || pod.find("spec.terminationGracePeriodSeconds").and_then(Value::as_i64);
        let seconds = requested.or_else(pod_default).unwrap_or(DEFAULT_GRACE_PERIOD_SECONDS);
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn field(&self, object: &Object, field: &str) -> String {
        match field {
            "spec.hostNetwork" => object.flag(field).to_string(),
            "status.podIP" => pod_status::address(object).to_owned(),
            // kube-apiserver accepts this label, and no pod has a value for it.
            "status.podIPs" => String::new(),
            _ => object.text(field).to_owned(),
        }
    }

    fn complete_new(&self, pod: &mut Object, ctx: &Context<'_>) -> Vec<String> {
        let warnings = pods::app_armor::warnings(pod, ctx.names);
        pods::app_armor::complete_profiles(pod, ctx.names);
        pods::label_keys::complete_selectors(pod);
        warnings
    }

    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        let mut status = Map::from_iter([("phase".to_owned(), json!("Pending"))]);
        // kube-apiserver keeps the QoS class of the request, even one that the resources contradict.
        if let Some(class) = object.find("status.qosClass") {
            status.insert("qosClass".to_owned(), class.clone());
        }
        if !object.items("spec.schedulingGates").is_empty() {
            status.insert("conditions".to_owned(), json!([pod_status::gated_condition(ctx.clock)]));
        }
        object.set("status", status);
    }

    /// Computes the QoS class of a pod without one from the requests and limits, which admission plugins may
    /// have changed. Later writes do not change the QoS class.
    fn canonicalize(&self, object: &mut Object, ctx: &Context<'_>) {
        if ctx.subresource.is_empty() && object.text("status.qosClass").is_empty() {
            let qos_class = pod_status::qos_class(object);
            if let Some(Value::Object(status)) = object.get_mut("status") {
                status.insert("qosClass".to_owned(), json!(qos_class));
            }
        }
    }

    /// On writes to `status`, restores the owner references, because old node agents corrupt them, and the
    /// deletion timestamp. Restores the QoS class if the request omits it. Validation rejects a changed QoS class.
    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        match ctx.subresource {
            "status" => {}
            pod_parts::EPHEMERAL => return pod_parts::keep_ephemeral(new, old),
            pod_parts::RESIZE => return pod_parts::keep_resources(new, old),
            _ => return,
        }
        for field in ["ownerReferences", "deletionTimestamp"] {
            metadata::restore_field(new, old, field);
        }
        if let Some(status) = part(new, "status") {
            pods::disabled::remove_from_status(status);
        }
        if new.text("status.qosClass").is_empty()
            && let (Some(Value::Object(status)), Some(qos_class)) =
                (new.get_mut("status"), old.find("status.qosClass"))
        {
            status.insert("qosClass".to_owned(), qos_class.clone());
        }
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            pod_parts::EPHEMERAL => pod_parts::validate_ephemeral(new, old, ctx.names),
            pod_parts::RESIZE => pod_parts::validate_resize(new, old, ctx.names),
            "" => {
                let mut errors = pods::validation::pod(new, ctx.names);
                errors.extend(pods::validation::update(new, old, ctx.names));
                errors
            }
            "status" => pods::validation::status(new, old, ctx.names),
            _ => FieldErrors::new(),
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        pods::validation::new_pod(object, ctx.names)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        match ctx.subresource {
            "" if old.is_none() => pods::warnings::pod(new, ctx.names),
            "status" => pods::warnings::pod_status(new),
            _ => Vec::new(),
        }
    }

    fn row_conditions(&self, object: &Object) -> Vec<Value> {
        let phase = object.text("status.phase");
        let message = match phase {
            "Succeeded" => "The pod has completed successfully.",
            "Failed" => "The pod failed.",
            _ => return Vec::new(),
        };
        vec![json!({"type": "Completed", "status": "True", "reason": phase, "message": message})]
    }
}

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let summary = pod_status::summary(object);
    let restarts = match (summary.restarts, summary.last_restart) {
        (0, _) | (_, "") => summary.restarts.to_string(),
        (restarts, last) => format!("{restarts} ({} ago)", since(last, clock)),
    };
    let gates = object.items("spec.readinessGates");
    let open = gates.iter().filter(|gate| object.is_condition_true(gate.text("conditionType"))).count();
    let gates = if gates.is_empty() { NONE.to_owned() } else { format!("{open}/{}", gates.len()) };
    let address = Some(pod_status::address(object)).filter(|address| !address.is_empty());
    vec![
        format!("{}/{}", summary.ready, summary.containers).into(),
        summary.reason.into(),
        restarts.into(),
        address.unwrap_or(NONE).into(),
        gates.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_finished_pod_has_condition_completed() {
        for (phase, reason) in
            [("Running", None), ("Succeeded", Some("Succeeded")), ("Failed", Some("Failed")), ("", None)]
        {
            let pod = Object::from_value(json!({"status": {"phase": phase}})).unwrap();
            let conditions = Pod.row_conditions(&pod);
            let found = conditions.first().map(|condition| (&condition["type"], &condition["reason"]));
            let found = found.map(|(kind, reason)| (kind.as_str(), reason.as_str()));
            assert_eq!(found, reason.map(|reason| (Some("Completed"), Some(reason))), "{phase}");
        }
    }
}
