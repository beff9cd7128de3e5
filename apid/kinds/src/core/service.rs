//! Service: a name and an address for a set of pods.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::{service_rules, service_update, service_warnings};
use crate::defaults::{Fields, fill, fill_text, map_or_insert, maps_in_list, part};
use crate::table::cell::{NONE, PathReader, UNKNOWN, join, labels, load_balancer, or_none};
use crate::table::{AGE, NAME};
use crate::validation::address_form;
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, NameRule, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["svc"],
    categories: &["all"],
    subresources: &[Subresource::proxy("ServiceProxyOptions"), Subresource::status("Service")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        name_rule: NameRule::Label1035,
        create_on_update: true,
        revalidation: Revalidation::AllButStatus,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.clusterIP", "spec.type"],
    columns: &[
        NAME,
        Column::text("Type", "Type of the service.").text_or("spec.type", "ClusterIP"),
        Column::text("Cluster-IP", "Address in the cluster."),
        Column::text("External-IP", "Addresses outside the cluster."),
        Column::text("Port(s)", "Ports, and ports on nodes."),
        AGE,
        Column::wide("Selector", "Labels of the selected pods."),
    ],
    cells,
    strategy: &Service,
    ..BuiltInKind::namespaced("core/v1.Service", "services")
};

struct Service;

impl Strategy for Service {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        fill_text(spec, "type", "ClusterIP");
        fill_text(spec, "sessionAffinity", "None");
        if spec.get("sessionAffinity").is_some_and(|affinity| affinity == "ClientIP") {
            let config = map_or_insert(spec, "sessionAffinityConfig")
                .and_then(|config| map_or_insert(config, "clientIP"));
            if let Some(config) = config {
                fill(config, "timeoutSeconds", 10_800);
            }
        } else {
            spec.remove("sessionAffinityConfig");
        }
        for port in maps_in_list(spec, "ports") {
            fill_text(port, "protocol", "TCP");
            let is_unset =
                port.get("targetPort").is_none_or(|target| *target == json!(0) || *target == json!(""));
            if let (true, Some(number)) = (is_unset, port.get("port").cloned()) {
                port.insert("targetPort".to_owned(), number);
            }
        }
        let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let has_external_ips =
            spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
        if matches!(&*kind, "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && has_external_ips) {
            fill_text(spec, "externalTrafficPolicy", "Cluster");
        }
        if matches!(&*kind, "NodePort" | "LoadBalancer" | "ClusterIP") {
            fill(spec, "internalTrafficPolicy", "Cluster");
        }
        if kind != "LoadBalancer" {
            return;
        }
        fill(spec, "allocateLoadBalancerNodePorts", true);
        let balancer = part(object, "status.loadBalancer");
        for ingress in balancer.into_iter().flat_map(|balancer| maps_in_list(balancer, "ingress")) {
            if ingress.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
                fill(ingress, "ipMode", "VIP");
            }
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        service_rules::validate(object, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => service_rules::validate_status(new),
            _ => service_rules::validate_update(new, old),
        }
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        match ctx.subresource {
            "status" => address_form::balancer_status(new),
            _ => service_warnings::spec_warnings(new, ctx.names),
        }
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            normalize(spec);
        }
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        if ctx.subresource.is_empty()
            && new.text("spec.type") != "LoadBalancer"
            && let Some(status) = part(new, "status")
        {
            status.insert("loadBalancer".to_owned(), json!({}));
        }
        if let Some(spec) = part(new, "spec") {
            if let Some(old) = old.get("spec") {
                service_update::prepare(spec, old);
            }
            normalize(spec);
        }
    }
}

/// Sets an absent `clusterIPs` from `clusterIP`.
/// Removes the internal traffic policy of a service with an external name.
fn normalize(spec: &mut Fields) {
    if spec.get("type").is_some_and(|kind| kind == "ExternalName") {
        // kube-apiserver removes the policy after its validation, so an invalid policy stays.
        if spec.get("internalTrafficPolicy").is_some_and(|policy| policy == "Cluster" || policy == "Local") {
            spec.remove("internalTrafficPolicy");
        }
    }
    if let Some(address) = spec.get("clusterIP").filter(|address| address.as_str() != Some("")).cloned() {
        fill(spec, "clusterIPs", vec![address]);
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let cluster_ip = object.items("spec.clusterIPs").first().and_then(Value::as_str);
    let cluster_ip = cluster_ip.unwrap_or_else(|| object.text_or("spec.clusterIP", NONE));
    let ports: Vec<String> = object.items("spec.ports").iter().map(port_text).collect();
    vec![
        json!(cluster_ip),
        json!(external_ip(object)),
        json!(or_none(ports.join(","))),
        json!(labels(object, "spec.selector")),
    ]
}

/// A port as `80/TCP`, or with a node port as `80:30080/TCP`.
fn port_text(port: &Value) -> String {
    let number = port.integer("port");
    let protocol = port.text_or("protocol", "TCP");
    match port.integer("nodePort") {
        0 => format!("{number}/{protocol}"),
        node_port => format!("{number}:{node_port}/{protocol}"),
    }
}

fn external_ip(object: &Object) -> String {
    let external_ips = join(object.items("spec.externalIPs"));
    match object.text_or("spec.type", "ClusterIP") {
        "ClusterIP" | "NodePort" => or_none(external_ips),
        "LoadBalancer" => {
            let parts: Vec<String> =
                [load_balancer(object), external_ips].into_iter().filter(|p| !p.is_empty()).collect();
            if parts.is_empty() { "<pending>".to_owned() } else { parts.join(",") }
        }
        "ExternalName" => object.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{ManualClock, SeededRng};
    use apimachinery::names::{Names, Preset};
    use apimachinery::time;

    use super::*;

    #[test]
    fn change_to_another_type_clears_the_status_of_the_load_balancer() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        let rng = SeededRng::new(1);
        let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}]}});
        let service = |kind: &str| {
            let spec = json!({"type": kind, "ports": [{"port": 80, "nodePort": 30_080}]});
            Object::from_value(json!({"spec": spec, "status": status})).unwrap()
        };
        for (kind, subresource, is_cleared) in [
            ("LoadBalancer", "", false),
            ("NodePort", "", true),
            ("ClusterIP", "", true),
            ("ClusterIP", "status", false),
        ] {
            let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource };
            let mut new = service(kind);
            Service.prepare_update(&mut new, &service("LoadBalancer"), &ctx);
            let cleared = new.get("status") == Some(&json!({"loadBalancer": {}}));
            assert_eq!(cleared, is_cleared, "{kind} {subresource}");
        }
        // The type without node ports drops them, also when the update removes a port.
        let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
        let mut old = service("NodePort");
        old.set("spec", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080}, {"port": 81, "nodePort": 30_081}]}));
        let mut new = service("ClusterIP");
        Service.prepare_update(&mut new, &old, &ctx);
        assert_eq!(new.find("spec.ports"), Some(&json!([{"port": 80}])));
    }
}
