//! Health, metrics and statistics of the node, in the forms of a kubelet. The numbers are fixed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use serde_json::{Value, json};
use serving::body::Body;

use super::State;

/// Use of CPU by each container in nanocores.
const NANOCORES: u64 = 5_000_000;
/// Working set of each container in bytes.
const WORKING_SET_BYTES: u64 = 20 << 20;
/// Media type of metrics.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The names of the containers of each pod, by namespace and name.
type Pods = BTreeMap<(String, String), Vec<String>>;

fn pods(state: &State) -> Pods {
    let mut pods = Pods::new();
    for path in state.containers.lock().keys() {
        let mut parts = path.splitn(3, '/').map(str::to_owned);
        if let (Some(namespace), Some(pod), Some(container)) = (parts.next(), parts.next(), parts.next()) {
            pods.entry((namespace, pod)).or_default().push(container);
        }
    }
    pods
}

/// Responds to a path; None for a path of another handler.
pub(super) fn respond(state: &State, segments: &[&str]) -> Option<Response<Body>> {
    match segments {
        ["healthz"] => Some(response("text/plain; charset=utf-8", "ok".to_owned())),
        ["metrics"] => Some(response(METRICS, metrics(state))),
        ["metrics", "resource"] => Some(response(METRICS, resource_metrics(state))),
        ["stats", "summary"] => Some(response("application/json", summary(state).to_string())),
        ["pods"] => Some(response("application/json", pod_list(state).to_string())),
        _ => None,
    }
}

fn response(media_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn metrics(state: &State) -> String {
    let containers: usize = pods(state).values().map(Vec::len).sum();
    format!(
        "# HELP kubelet_running_containers Number of containers currently running\n\
         # TYPE kubelet_running_containers gauge\n\
         kubelet_running_containers{{container_state=\"running\"}} {containers}\n\
         # HELP kubelet_running_pods Number of pods that have a running pod sandbox\n\
         # TYPE kubelet_running_pods gauge\n\
         kubelet_running_pods {}\n",
        pods(state).len()
    )
}

fn resource_metrics(state: &State) -> String {
    let mut text =
        "# HELP container_memory_working_set_bytes Current working set of the container in bytes\n\
        # TYPE container_memory_working_set_bytes gauge\n"
            .to_owned();
    for ((namespace, pod), containers) in pods(state) {
        for container in containers {
            // A write to a String cannot fail.
            let _ = writeln!(
                text,
                "container_memory_working_set_bytes{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"}} \
                 {WORKING_SET_BYTES}"
            );
        }
    }
    text
}

/// Returns the use of a number of containers, together with other fields.
fn usage(containers: usize, fields: Value) -> Value {
    let containers = u64::try_from(containers).unwrap_or(u64::MAX);
    let mut usage = json!({
        "cpu": {"usageNanoCores": NANOCORES.saturating_mul(containers)},
        "memory": {"workingSetBytes": WORKING_SET_BYTES.saturating_mul(containers)},
    });
    if let (Value::Object(usage), Value::Object(fields)) = (&mut usage, fields) {
        usage.extend(fields);
    }
    usage
}

fn summary(state: &State) -> Value {
    let pods = pods(state);
    let node_name = state.node_name.lock().clone();
    let node = usage(pods.values().map(Vec::len).sum(), json!({"nodeName": node_name}));
    let pods = pods.into_iter().map(|((namespace, name), containers)| {
        let count = containers.len();
        let containers: Vec<Value> =
            containers.into_iter().map(|name| usage(1, json!({"name": name}))).collect();
        let pod = json!({"podRef": {"name": name, "namespace": namespace}, "containers": containers});
        usage(count, pod)
    });
    json!({"node": node, "pods": pods.collect::<Vec<_>>()})
}

fn pod_list(state: &State) -> Value {
    let pods = pods(state).into_iter().map(|((namespace, name), containers)| {
        let containers: Vec<Value> = containers.into_iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"containers": containers}})
    });
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods.collect::<Vec<_>>()})
}
