//! ComponentStatus: health of a control-plane process. Deprecated; apid computes the objects.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::NAME;
use crate::table::cell::PathReader;
use crate::{BuiltInKind, Column, Verb};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["cs"],
    computed: true,
    verbs: &[Verb::Get, Verb::List],
    columns: &[
        NAME,
        Column::text("Status", "Whether the component is healthy."),
        Column::text("Message", "Message of the health check."),
        Column::text("Error", "Error of the health check."),
    ],
    cells,
    ..BuiltInKind::cluster_scoped("core/v1.ComponentStatus", "componentstatuses")
};

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let healthy = object.items("conditions").iter().find(|condition| condition.text("type") == "Healthy");
    let part = |field: &str| healthy.map_or("", |condition| condition.text(field));
    let status = match part("status") {
        "True" => "Healthy",
        "False" => "Unhealthy",
        _ => "Unknown",
    };
    vec![json!(status), json!(part("message")), json!(part("error"))]
}
