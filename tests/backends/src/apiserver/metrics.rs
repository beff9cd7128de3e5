//! The metrics API of `kubectl top`, with fixed numbers, and without Tables.

use http::Response;
use http::request::Parts;
use serde_json::{Value, json};
use serving::body::Body;

use super::{accepts_json, document, failure};

pub(super) const GROUP: &str = "metrics.k8s.io";
pub(super) const VERSION: &str = "v1beta1";
const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// Responds to a request; `rest` are the segments after group and version.
pub(super) fn respond(head: &Parts, rest: &[&str]) -> Response<Body> {
    if !accepts_json(head) {
        return failure(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        );
    }
    match rest {
        ["nodes"] => document(200, &list("NodeMetricsList", &[node("node-1")])),
        ["nodes", name] => document(200, &node(name)),
        ["pods"] => document(200, &list("PodMetricsList", &[pod("default", "pod-1")])),
        ["namespaces", namespace, "pods"] => {
            document(200, &list("PodMetricsList", &[pod(namespace, "pod-1")]))
        }
        ["namespaces", namespace, "pods", name] => document(200, &pod(namespace, name)),
        _ => failure(404, "NotFound", "the server could not find the requested resource"),
    }
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({"kind": kind, "apiVersion": API_VERSION, "metadata": {}, "items": items})
}

fn node(name: &str) -> Value {
    json!({"kind": "NodeMetrics", "apiVersion": API_VERSION, "metadata": {"name": name},
        "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "usage": {"cpu": "250m", "memory": "512Mi"}})
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({"kind": "PodMetrics", "apiVersion": API_VERSION, "metadata": {"name": name, "namespace": namespace},
        "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
        "containers": [{"name": "c", "usage": {"cpu": "12m", "memory": "34Mi"}}]})
}
