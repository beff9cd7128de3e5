//! Service: a name and an address for a set of pods.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::cell::{NONE, Read, UNKNOWN, joined, labels, load_balancer, or_none};
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, NameRule, STANDARD_VERBS, Storage, Strategy, Subresource, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "Service",
    resource: "services",
    singular: "service",
    short_names: &["svc"],
    categories: &["all"],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::proxy("ServiceProxyOptions"), Subresource::status("Service")],
    schema: "core/v1.Service",
    strategy: &Service,
};

struct Service;

impl Strategy for Service {
    fn name_rule(&self) -> NameRule {
        NameRule::Label1035
    }

    fn delete_returns_object(&self) -> bool {
        true
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Type", "Who can reach it."),
        Column::text("Cluster-IP", "Its address in the cluster."),
        Column::text("External-IP", "Its addresses outside."),
        Column::text("Port(s)", "Its ports, and those on nodes."),
        AGE,
        Column::wide("Selector", "Labels of its pods."),
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let cluster_ip = object.items("spec.clusterIPs").first().and_then(Value::as_str);
    let cluster_ip = cluster_ip.unwrap_or_else(|| object.text_or("spec.clusterIP", NONE));
    let ports: Vec<String> = object.items("spec.ports").iter().map(port).collect();
    vec![
        json!(object.name()),
        json!(object.text_or("spec.type", "ClusterIP")),
        json!(cluster_ip),
        json!(external_ip(object)),
        json!(or_none(ports.join(","))),
        age(object, clock),
        json!(labels(object, "spec.selector")),
    ]
}

/// `80/TCP`, with a port on the nodes `80:30080/TCP`.
fn port(port: &Value) -> String {
    let number = port.integer("port");
    let protocol = port.text_or("protocol", "TCP");
    match port.integer("nodePort") {
        0 => format!("{number}/{protocol}"),
        node_port => format!("{number}:{node_port}/{protocol}"),
    }
}

fn external_ip(object: &Object) -> String {
    let own = joined(object.items("spec.externalIPs"));
    match object.text_or("spec.type", "ClusterIP") {
        "ClusterIP" | "NodePort" => or_none(own),
        "LoadBalancer" => {
            let parts: Vec<String> =
                [load_balancer(object), own].into_iter().filter(|p| !p.is_empty()).collect();
            if parts.is_empty() { "<pending>".to_owned() } else { parts.join(",") }
        }
        "ExternalName" => object.text("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}
