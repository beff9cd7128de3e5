//! CSIDriver: a volume driver and its requirements.

use std::collections::BTreeSet;

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{fill, map_or_insert};
use crate::table::cell::{PathReader, UNSET, join, or_none};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        unconditional_update: false,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::boolean("AttachRequired", "Whether volumes must be attached to nodes."),
        Column::boolean("PodInfoOnMount", "Whether the driver receives information about the mounting pod.")
            .with_source(Source::Flag("spec.podInfoOnMount")),
        Column::boolean("StorageCapacity", "Whether the driver reports available capacity.")
            .with_source(Source::Flag("spec.storageCapacity")),
        Column::text("TokenRequests", "Audiences of the tokens for the driver."),
        Column::boolean("RequiresRepublish", "Whether volumes are published periodically.")
            .with_source(Source::Flag("spec.requiresRepublish")),
        Column::text("Modes", "Lifecycle modes of the volumes."),
        AGE,
    ],
    cells,
    strategy: &CsiDriver,
    ..BuiltInKind::cluster_scoped("storage/v1.CSIDriver", "csidrivers")
};

struct CsiDriver;

impl Strategy for CsiDriver {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = map_or_insert(&mut object.0, "spec") else { return };
        fill(spec, "attachRequired", true);
        fill(spec, "podInfoOnMount", false);
        fill(spec, "storageCapacity", false);
        fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        fill(spec, "requiresRepublish", false);
        fill(spec, "seLinuxMount", false);
        let modes = spec.get("volumeLifecycleModes").and_then(Value::as_array);
        if modes.is_none_or(Vec::is_empty) {
            spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
        }
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, _ctx: &Context<'_>) {
        // A new driver has no generation. A change of one of these fields increments the generation.
        let counted_fields = ["fsGroupPolicy", "requiresRepublish", "seLinuxMount", "tokenRequests"];
        let spec = |object: &Object, name: &str| object.get("spec").and_then(|spec| spec.get(name)).cloned();
        if counted_fields.iter().any(|name| spec(new, name) != spec(old, name)) {
            new.set_meta("generation", old.generation() + 1);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let spec = Field::new(object.get("spec"), "spec");
        for name in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
            spec.child(name).require_present("", &mut errors);
        }
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        text::require_present_and_supported(&spec.child("fsGroupPolicy"), &policies, &mut errors);
        validate_token_requests(&spec.child("tokenRequests"), &mut errors);
        let modes = spec.child("volumeLifecycleModes");
        for mode in modes.items() {
            // kube-apiserver reports these errors without the index and does not sort the values.
            if !LIFECYCLE_MODES.contains(&mode.text()) {
                errors.push(FieldError::not_supported(&modes.path(), mode.text(), &LIFECYCLE_MODES));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
        // kube-apiserver misspells the first field.
        for (name, reported) in
            [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
        {
            let value = new.child(name).value();
            if value != old.child(name).value() {
                errors.push(new.child(reported).with_value(value).invalid("field is immutable"));
            }
        }
        errors
    }
}

/// Modes of the lifecycle of a volume, in the order of the message.
const LIFECYCLE_MODES: [&str; 2] = ["Persistent", "Ephemeral"];

/// Minimum lifetime of a token in seconds.
const TOKEN_SECONDS_MIN: i64 = 10 * 60;

fn validate_token_requests(requests: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut audiences = BTreeSet::new();
    for request in requests.items() {
        let (audience, seconds) = (request.child("audience"), request.child("expirationSeconds"));
        if !audiences.insert(audience.text()) {
            errors.push(audience.duplicate_value(audience.text()));
        }
        let Some(number) = seconds.integer() else { continue };
        if number < TOKEN_SECONDS_MIN {
            errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
        }
        if number > 1 << 32 {
            errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
        }
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let audiences = object.find("spec.tokenRequests").map_or_else(
        || UNSET.to_owned(),
        |_| {
            let requests = object.items("spec.tokenRequests");
            requests.iter().map(|request| request.text("audience")).collect::<Vec<_>>().join(",")
        },
    );
    vec![
        // An absent `attachRequired` means true.
        json!(object.find("spec.attachRequired").is_none() || object.flag("spec.attachRequired")),
        json!(audiences),
        json!(or_none(join(object.items("spec.volumeLifecycleModes")))),
    ]
}
