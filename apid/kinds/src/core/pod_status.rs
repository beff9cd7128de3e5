//! Summary of a pod's status for printer columns, and its QoS class.

use std::collections::BTreeSet;

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use apimachinery::time;
use serde_json::{Value, json};

use crate::defaults::part;
use crate::table::cell::PathReader;

/// Values of the printer columns about the state of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary<'a> {
    /// Number of ready containers.
    pub(super) ready: usize,
    /// Number of containers, including sidecar (restartable init) containers.
    pub(super) containers: usize,
    /// Text of the column Status: the phase, or the reason that a container, the status or the deletion
    /// gives.
    pub(super) reason: String,
    /// Number of restarts: of the init containers while the pod initializes, and then of the sidecar
    /// containers and the containers in `spec.containers`.
    pub(super) restarts: i64,
    /// Latest time at which a container ended before a restart; `""` without restarts.
    pub(super) last_restart: &'a str,
}

/// First IP address of a pod; `""` if none.
pub(super) fn address(pod: &Object) -> &str {
    pod.items("status.podIPs").first().map_or_else(|| pod.text("status.podIP"), |address| address.text("ip"))
}

/// Replaces `podIPs` by a list with only `podIP` if the first item of `podIPs` differs from `podIP`: older
/// clients write only `podIP`.
pub(super) fn complete_addresses(pod: &mut Object) {
    let Some(status) = part(pod, "status") else { return };
    let Some(address) = status.get("podIP").filter(|address| address.as_str() != Some("")).cloned() else {
        return;
    };
    let first = status.get("podIPs").and_then(Value::as_array).and_then(|addresses| addresses.first());
    if first.is_none_or(|first| first.get("ip") != Some(&address)) {
        status.insert("podIPs".to_owned(), json!([{ "ip": address }]));
    }
}

/// Accumulator of the restart count and the last restart time.
#[derive(Default)]
struct Restarts<'a> {
    count: i64,
    last: &'a str,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, container: &'a Value) {
        self.count += container.integer("restartCount");
        let ended = container.text("lastState.terminated.finishedAt");
        if time::parse(ended) > time::parse(self.last) {
            self.last = ended;
        }
    }
}

/// Summarizes the status of a pod.
pub(super) fn summary(pod: &Object) -> Summary<'_> {
    let init_containers = pod.items("spec.initContainers");
    let sidecar_names: BTreeSet<&str> = init_containers
        .iter()
        .filter(|container| container.text("restartPolicy") == "Always")
        .map(|container| container.text("name"))
        .collect();
    let is_sidecar = |name: &str| sidecar_names.contains(name);
    let sidecars = init_containers.iter().filter(|c| is_sidecar(c.text("name"))).count();
    let mut ready = 0;
    let mut restarts = Restarts::default();
    let mut sidecar_restarts = Restarts::default();
    let mut init_state = None;
    for (i, status) in pod.items("status.initContainerStatuses").iter().enumerate() {
        let sidecar = is_sidecar(status.text("name"));
        restarts.add(status);
        if sidecar {
            sidecar_restarts.add(status);
        }
        if status.find("state.terminated").is_some_and(|end| end.integer("exitCode") == 0) {
            continue;
        }
        if sidecar && status.flag("started") {
            ready += usize::from(status.flag("ready"));
            continue;
        }
        init_state = Some(
            init_failure_reason(status).unwrap_or_else(|| format!("Init:{i}/{}", init_containers.len())),
        );
        break;
    }

    let is_gated = pod.condition("PodScheduled").is_some_and(|c| c.text("reason") == "SchedulingGated");
    let pod_reason =
        if is_gated { "SchedulingGated" } else { pod.text_or("status.reason", pod.text("status.phase")) };
    let mut reason = init_state.clone().unwrap_or_else(|| pod_reason.to_owned());
    if init_state.is_none() || pod.is_condition_true("Initialized") {
        restarts = sidecar_restarts;
        let mut running = false;
        for status in pod.items("status.containerStatuses").iter().rev() {
            restarts.add(status);
            if let Some(container_reason) = waiting_reason(status).or_else(|| termination_reason(status)) {
                reason = container_reason;
            } else if status.flag("ready") && status.find("state.running").is_some() {
                running = true;
                ready += 1;
            }
        }
        // A pod with both a completed and a running container is running.
        if reason == "Completed" && running {
            reason = if pod.is_condition_true("Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if pod.is_terminating() {
        if pod.text("status.reason") == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(pod.text("status.phase"), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut reason);
        }
    }
    let containers = pod.items("spec.containers").len() + sidecars;
    Summary { ready, containers, reason, restarts: restarts.count, last_restart: restarts.last }
}

/// Reason why an init container has not completed, if reported.
fn init_failure_reason(status: &Value) -> Option<String> {
    if status.find("state.terminated").is_some() {
        return termination_reason(status).map(|reason| format!("Init:{reason}"));
    }
    let reason = waiting_reason(status).filter(|reason| reason != "PodInitializing")?;
    Some(format!("Init:{reason}"))
}

fn waiting_reason(status: &Value) -> Option<String> {
    Some(status.text("state.waiting.reason")).filter(|reason| !reason.is_empty()).map(str::to_owned)
}

/// Text about the termination of a container: the reason in its status, or else its signal or exit code.
fn termination_reason(status: &Value) -> Option<String> {
    let end = status.find("state.terminated")?;
    Some(match (end.text("reason"), end.integer("signal")) {
        ("", 0) => format!("ExitCode:{}", end.integer("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    })
}

/// The condition `PodScheduled` of a new pod with scheduling gates.
pub(super) fn gated_condition(clock: &dyn Clock) -> Value {
    json!({
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": null,
        "lastTransitionTime": time::time(clock.now()),
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    })
}

/// QoS class in the status of a pod, or the computed class of a pod without one.
pub fn quality_of_service(pod: &Object) -> &str {
    match pod.text("status.qosClass") {
        "" => qos_class(pod),
        class => class,
    }
}

/// Computed QoS class of a pod.
/// `Guaranteed`: every container has cpu and memory limits equal to its requests. `BestEffort`: no container
/// has cpu or memory requests or limits. `Burstable`: all other pods.
pub(super) fn qos_class(pod: &Object) -> &'static str {
    let containers = || pod.items("spec.initContainers").iter().chain(pod.items("spec.containers"));
    let resources = ["cpu", "memory"];
    let has_amounts = |container: &Value| {
        resources.iter().any(|resource| {
            amount(container, "requests", resource).is_some()
                || amount(container, "limits", resource).is_some()
        })
    };
    // A limit without a request implies an equal request.
    let is_guaranteed = |container: &Value| {
        resources.iter().all(|resource| {
            let limit = amount(container, "limits", resource);
            limit.is_some()
                && amount(container, "requests", resource).is_none_or(|request| Some(request) == limit)
        })
    };
    if !containers().any(has_amounts) {
        "BestEffort"
    } else if containers().all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// A request or limit of a container; None if absent or zero.
fn amount<'v>(container: &'v Value, list: &str, resource: &str) -> Option<&'v str> {
    container.get("resources")?.get(list)?.get(resource)?.as_str().filter(|amount| *amount != "0")
}
