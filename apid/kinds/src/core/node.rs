//! Node: a machine that runs pods.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::node_rules as rules;
use crate::defaults::part;
use crate::table::cell::{NONE, PathReader, UNKNOWN};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, address_form};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["no"],
    subresources: &[Subresource::proxy("NodeProxyOptions"), Subresource::status("Node")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::MainResource),
        revalidation: Revalidation::Never,
        keeps_status_on_create: true,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.unschedulable"],
    columns: &[
        NAME,
        Column::text("Status", "Whether the node is ready and schedulable."),
        Column::text("Roles", "Roles of the node, from its labels.").with_source(Source::NodeRoles),
        AGE,
        Column::text("Version", "Version of the node agent.").text_at("status.nodeInfo.kubeletVersion"),
        Column::wide("Internal-IP", "Address inside the cluster."),
        Column::wide("External-IP", "Address outside the cluster."),
        Column::wide("OS-Image", "Operating system.").text_or("status.nodeInfo.osImage", UNKNOWN),
        Column::wide("Kernel-Version", "Kernel version.").text_or("status.nodeInfo.kernelVersion", UNKNOWN),
        Column::wide("Container-Runtime", "Container runtime and its version.")
            .text_or("status.nodeInfo.containerRuntimeVersion", UNKNOWN),
    ],
    cells,
    strategy: &Node,
    ..BuiltInKind::cluster_scoped("core/v1.Node", "nodes")
};

struct Node;

impl Strategy for Node {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            rules::normalize_ranges(spec);
        }
        if let Some(status) = part(object, "status")
            && !status.contains_key("allocatable")
            && let Some(capacity) = status.get("capacity").cloned()
        {
            status.insert("allocatable".to_owned(), capacity);
        }
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        rules::remove_config(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, _ctx: &Context<'_>) {
        rules::remove_config(new);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate_update(new, old, ctx.names)
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if !ctx.subresource.is_empty() {
            return warnings;
        }
        let spec = Field::new(new.get("spec"), "spec");
        if !spec.child("externalID").text().is_empty() {
            let warning = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
            warnings.push(warning.to_owned());
        }
        for range in spec.child("podCIDRs").items() {
            address_form::cidr(&range, &mut warnings);
        }
        warnings
    }

    fn field(&self, object: &Object, _field: &str) -> String {
        object.flag("spec.unschedulable").to_string()
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let addresses = object.items("status.addresses");
    let address = |kind: &str| {
        let found = addresses.iter().find(|address| address.text("type") == kind);
        json!(found.map_or(NONE, |address| address.text("address")))
    };
    vec![json!(state(object)), address("InternalIP"), address("ExternalIP")]
}

fn state(object: &Object) -> String {
    // kube-apiserver shows the last of several conditions of this type.
    let conditions = object.items("status.conditions");
    let ready = match conditions.iter().rfind(|condition| condition.text("type") == "Ready") {
        Some(condition) if condition.text("status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if object.flag("spec.unschedulable") { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}
