//! What a pod's status comes to in a few words: how many containers are ready, what the pod is doing, how often it
//! failed; and its quality of service.

use std::collections::BTreeSet;

use apimachinery::object::Object;
use apimachinery::time;
use serde_json::Value;

use crate::table::cell::Read;

/// A pod's state as tables show it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary<'a> {
    /// Containers that are ready.
    pub(super) ready: usize,
    /// All containers, with init containers that go on running beside them.
    pub(super) containers: usize,
    /// What it is doing, or what keeps it.
    pub(super) reason: String,
    /// Restarts of the containers that count now: init containers while the pod starts, then the others.
    pub(super) restarts: i64,
    /// When the last of them ended, or `""`.
    pub(super) last_restart: &'a str,
}

/// The first address of a pod, `""` without one.
pub(super) fn address(pod: &Object) -> &str {
    pod.items("status.podIPs").first().map_or_else(|| pod.text("status.podIP"), |address| address.text("ip"))
}

/// Counts restarts and keeps the end of the last one.
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

/// Sums a pod's status up.
pub(super) fn summary(pod: &Object) -> Summary<'_> {
    let init_containers = pod.items("spec.initContainers");
    let restarted: BTreeSet<&str> = init_containers
        .iter()
        .filter(|container| container.text("restartPolicy") == "Always")
        .map(|container| container.text("name"))
        .collect();
    let is_sidecar = |name: &str| restarted.contains(name);
    let sidecars = init_containers.iter().filter(|c| is_sidecar(c.text("name"))).count();
    let mut ready = 0;
    let mut all = Restarts::default();
    let mut of_sidecars = Restarts::default();
    let mut starting = None;
    for (i, status) in pod.items("status.initContainerStatuses").iter().enumerate() {
        let sidecar = is_sidecar(status.text("name"));
        all.add(status);
        if sidecar {
            of_sidecars.add(status);
        }
        if status.find("state.terminated").is_some_and(|end| end.integer("exitCode") == 0) {
            continue;
        }
        if sidecar && status.flag("started") {
            ready += usize::from(status.flag("ready"));
            continue;
        }
        starting = Some(what_keeps(status).unwrap_or_else(|| format!("Init:{i}/{}", init_containers.len())));
        break;
    }

    let gated = pod.condition("PodScheduled").is_some_and(|c| c.text("reason") == "SchedulingGated");
    let own = if gated { "SchedulingGated" } else { pod.text_or("status.reason", pod.text("status.phase")) };
    let mut reason = starting.clone().unwrap_or_else(|| own.to_owned());
    if starting.is_none() || pod.holds("Initialized") {
        all = of_sidecars;
        let mut running = false;
        for status in pod.items("status.containerStatuses").iter().rev() {
            all.add(status);
            if let Some(why) = waiting(status).or_else(|| ended(status)) {
                reason = why;
            } else if status.flag("ready") && status.find("state.running").is_some() {
                running = true;
                ready += 1;
            }
        }
        // A pod one of whose containers is done and another runs, runs.
        if reason == "Completed" && running {
            reason = if pod.holds("Ready") { "Running" } else { "NotReady" }.to_owned();
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
    Summary { ready, containers, reason, restarts: all.count, last_restart: all.last }
}

/// Why an init container has not done its work, when it says so.
fn what_keeps(status: &Value) -> Option<String> {
    if status.find("state.terminated").is_some() {
        return ended(status).map(|why| format!("Init:{why}"));
    }
    let why = waiting(status).filter(|why| why != "PodInitializing")?;
    Some(format!("Init:{why}"))
}

fn waiting(status: &Value) -> Option<String> {
    Some(status.text("state.waiting.reason")).filter(|why| !why.is_empty()).map(str::to_owned)
}

/// How a container ended: by a reason, a signal, or its exit code.
fn ended(status: &Value) -> Option<String> {
    let end = status.find("state.terminated")?;
    Some(match (end.text("reason"), end.integer("signal")) {
        ("", 0) => format!("ExitCode:{}", end.integer("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    })
}

/// What a pod may count on when a node runs short: `Guaranteed` when every container is limited to what it requests of
/// both cpu and memory, `BestEffort` when none asks for any, else `Burstable`.
pub(super) fn quality(pod: &Object) -> &'static str {
    let containers = || pod.items("spec.initContainers").iter().chain(pod.items("spec.containers"));
    let amount = |container: &Value, sort: &str, resource: &str| {
        container
            .find("resources")
            .and_then(|resources| resources.get(sort))
            .and_then(|amounts| amounts.get(resource))
            .and_then(Value::as_str)
            .filter(|amount| *amount != "0")
            .map(str::to_owned)
    };
    let both = ["cpu", "memory"];
    let asks = |container: &Value| {
        both.iter().any(|resource| {
            amount(container, "requests", resource).is_some()
                || amount(container, "limits", resource).is_some()
        })
    };
    // A limit without a request is a request of as much.
    let guaranteed = |container: &Value| {
        both.iter().all(|resource| {
            let limit = amount(container, "limits", resource);
            limit.is_some()
                && amount(container, "requests", resource).is_none_or(|request| Some(request) == limit)
        })
    };
    if !containers().any(asks) {
        "BestEffort"
    } else if containers().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}
