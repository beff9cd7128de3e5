//! Bodies of a kind or version other than the expected one.

use apimachinery::names::Preset;
use serde_json::json;

use super::custom_kinds::{define, with_controller};
use super::{MAPS, Server};

const LEGACY: &str = "pkg/api/legacyscheme/scheme.go:30";
const EXTENSIONS: &str = "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55";
const AGGREGATOR: &str = "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28";

const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/a/ingresses";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/a/events";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/a/horizontalpodautoscalers";

/// Returns the message of a refused creation of an object with this kind and version.
async fn message(server: &Server, url: &str, kind: &str, api_version: &str) -> String {
    let object = json!({"kind": kind, "apiVersion": api_version, "metadata": {"name": "x"}});
    let reply = server.post(url, object).await;
    assert_eq!((reply.code, reply.json()["reason"].as_str()), (400, Some("BadRequest")), "{url} {kind}");
    reply.json()["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn unregistered_kind_returns_400_with_scheme_of_resource() {
    let server = Server::start_with_preset(Preset::Kubernetes).await;
    for (url, expected, kind, api_version, scheme) in [
        (MAPS, "ConfigMap", "Bogus", "v1", LEGACY),
        (MAPS, "ConfigMap", "ConfigMap", "v9", LEGACY),
        (INGRESSES, "Ingress", "Bogus", "networking.k8s.io/v1", LEGACY),
        (DEFINITIONS, "CustomResourceDefinition", "Bogus", "apiextensions.k8s.io/v1", EXTENSIONS),
        (DEFINITIONS, "CustomResourceDefinition", "CustomResourceDefinition", "v9", EXTENSIONS),
        (API_SERVICES, "APIService", "Bogus", "apiregistration.k8s.io/v1", AGGREGATOR),
        // The kinds of one scheme are unknown to the others.
        (MAPS, "ConfigMap", "CustomResourceDefinition", "apiextensions.k8s.io/v1", LEGACY),
        (DEFINITIONS, "CustomResourceDefinition", "ConfigMap", "v1", EXTENSIONS),
    ] {
        let version = api_version.rsplit('/').next().unwrap();
        let text = format!(
            "{kind} in version \"{version}\" cannot be handled as a {expected}: no kind \"{kind}\" is registered for \
             version \"{api_version}\" in scheme \"{scheme}\""
        );
        assert_eq!(message(&server, url, kind, api_version).await, text);
    }
}

#[tokio::test]
async fn message_about_unregistered_kind_has_no_scheme_under_svc_preset() {
    let server = with_controller(Server::start().await).await;
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition = json!({
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]},
    });
    define(&server, definition).await;
    for (kind, api_version) in [("Bogus", "v1"), ("ConfigMap", "v9"), ("Widget", "shop.example.com/v1")] {
        let version = api_version.rsplit('/').next().unwrap();
        let text = format!(
            "{kind} in version \"{version}\" cannot be handled as a ConfigMap: no kind \"{kind}\" is registered for \
             version \"{api_version}\""
        );
        assert_eq!(message(&server, MAPS, kind, api_version).await, text);
    }
}

#[tokio::test]
async fn registered_kind_in_body_returns_400_about_kind_or_version() {
    let server = Server::start_with_preset(Preset::Kubernetes).await;
    for (url, expected, internal, kind, api_version) in [
        (MAPS, "ConfigMap", "core.ConfigMap", "Secret", "v1"),
        (MAPS, "ConfigMap", "core.ConfigMap", "Deployment", "apps/v1"),
        (INGRESSES, "Ingress", "networking.Ingress", "IngressClass", "networking.k8s.io/v1"),
        (EVENTS, "Event", "core.Event", "Pod", "v1"),
        (
            AUTOSCALERS,
            "HorizontalPodAutoscaler",
            "autoscaling.HorizontalPodAutoscaler",
            "Lease",
            "coordination.k8s.io/v1",
        ),
    ] {
        let text = format!(
            "{kind} in version \"v1\" cannot be handled as a {expected}: converting (v1.{kind}) to ({internal}): unknown \
             conversion"
        );
        assert_eq!(message(&server, url, kind, api_version).await, text);
    }
    assert_eq!(
        message(&server, AUTOSCALERS, "HorizontalPodAutoscaler", "autoscaling/v1").await,
        "the API version in the data (autoscaling/v1) does not match the expected API version (autoscaling/v2)"
    );
}
