//! Event of the group `events`: the same events as those of the core group, in other words.

use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::conversion::rename;
use crate::core::EVENTS;
use crate::{Conversion, Kind, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "events",
    versions: &["v1"],
    kind: "Event",
    resource: "events",
    singular: "event",
    short_names: &["ev"],
    categories: &[],
    namespaced: true,
    storage: Storage::Shared(""),
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "events/v1.Event",
    strategy: &Event,
};

/// Fields by their names here and in the core group.
const FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Fields that events are selected by, by their names here and in the core group.
const SELECTABLE: [(&str, &str); 10] = [
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reason", "reason"),
    ("reportingController", "reportingComponent"),
    ("type", "type"),
];

struct Event;

impl Strategy for Event {
    fn conversion(&self) -> Option<&'static dyn Conversion> {
        Some(&Event)
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&EVENTS)
    }
}

impl Conversion for Event {
    fn to_stored(&self, object: &mut Object, _names: &Names) {
        for (here, stored) in FIELDS {
            rename(object, here, stored);
        }
    }

    fn show(&self, object: &mut Object, _names: &Names) {
        for (here, stored) in FIELDS {
            rename(object, stored, here);
        }
    }

    fn stored_field(&self, field: &str) -> Option<&'static str> {
        SELECTABLE.iter().find(|(here, _)| *here == field).map(|(_, stored)| *stored)
    }
}
