//! PriorityLevelConfiguration: concurrency limit and queuing of a priority level.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::defaults::{fill, map_at, part};
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME};
use crate::validation::internal;
use crate::validation::{Field, conditions, number};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: "flowcontrol.apiserver",
    subresources: &[Subresource::status("PriorityLevelConfiguration")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::MainResource,
        status_writes: StatusWrites::NoMetadata,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Type", "Whether requests of the level are limited.").text_at("spec.type"),
        Column::text("NominalConcurrencyShares", "Share of the concurrency of the server."),
        Column::text("Queues", "Number of queues."),
        Column::text("HandSize", "Number of queues that can receive requests of a flow."),
        Column::text("QueueLengthLimit", "Maximum number of requests in a queue."),
        AGE,
    ],
    cells: |object, _| {
        let paths = [
            "nominalConcurrencyShares",
            "limitResponse.queuing.queues",
            "limitResponse.queuing.handSize",
            "limitResponse.queuing.queueLengthLimit",
        ];
        let cell =
            |path| object.find(&format!("spec.limited.{path}")).cloned().unwrap_or_else(|| NONE.into());
        paths.map(cell).into()
    },
    strategy: &PriorityLevelConfiguration,
    ..BuiltInKind::cluster_scoped("flowcontrol/v1.PriorityLevelConfiguration", "prioritylevelconfigurations")
};

struct PriorityLevelConfiguration;

impl Strategy for PriorityLevelConfiguration {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        if let Some(limited) = map_at(spec, "limited") {
            fill(limited, "nominalConcurrencyShares", 30);
            fill(limited, "lendablePercent", 0);
            if let Some(queuing) =
                map_at(limited, "limitResponse").and_then(|response| map_at(response, "queuing"))
            {
                for (name, value) in QUEUING_DEFAULTS {
                    if queuing.get(name).and_then(Value::as_i64).unwrap_or(0) == 0 {
                        queuing.insert(name.to_owned(), json!(value));
                    }
                }
            }
        }
        if let Some(exempt) = map_at(spec, "exempt") {
            fill(exempt, "nominalConcurrencyShares", 0);
            fill(exempt, "lendablePercent", 0);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => conditions::validate_condition_types(new),
            _ => FieldErrors::new(),
        }
    }
}

/// Fields of the queuing configuration with the defaults for absent and zero values.
const QUEUING_DEFAULTS: [(&str, i64); 3] = [("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)];
/// Maximum number of queues of a priority level.
const QUEUES_MAX: i64 = 10_000_000;
/// Maximum number of hash bits that the choice of a hand of queues (shuffle sharding) may require.
const ENTROPY_MAX: f64 = 60.0;

fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let spec = Field::new(object.get("spec"), "spec");
    let kind = spec.child("type");
    let is_exempt = object.name() == "exempt";
    if is_exempt != (kind.text() == "Exempt") {
        errors.push(kind.invalid_value(kind.text(), "must be 'Exempt' if and only if `name` is 'exempt'"));
    }
    let (limited, exempt) = (spec.child("limited"), spec.child("exempt"));
    match kind.text() {
        "Exempt" => {
            limited.forbid("must be nil if the type is not Limited", &mut errors);
            validate_shares(&exempt, &mut errors);
            validate_lendable_percent(&exempt, &mut errors);
        }
        "Limited" => {
            exempt.forbid("must be nil if the type is Limited", &mut errors);
            if limited.is_present() {
                validate_limited(&limited, &mut errors);
            } else {
                errors.push(limited.required("must not be empty when type is Limited"));
            }
        }
        text => {
            errors.push(kind.with_value(Some(&text.into())).not_supported(&["Exempt", "Limited"]));
        }
    }
    check_fixed_spec(object.name(), &spec, &mut errors);
    errors
}

/// The type of the spec.
const SPEC: &str = "flowcontrol/v1.PriorityLevelConfigurationSpec";

/// Validates that the mandatory priority levels `exempt` and `catch-all` have their fixed specs.
fn check_fixed_spec(name: &str, spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    match name {
        "exempt" if spec.child("type").text() != "Exempt" || spec.child("limited").is_present() => {
            let detail = "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
            errors.push(internal::invalid_of_type(spec, SPEC, detail));
        }
        "catch-all" => {
            let fixed = json!({"type": "Limited", "limited": {
                "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
            }});
            if spec.value() != Some(&fixed) {
                let detail = "spec of 'catch-all' must equal the fixed value";
                errors.push(internal::invalid_of_type(spec, SPEC, detail));
            }
        }
        _ => {}
    }
}

fn validate_shares(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let shares = field.child("nominalConcurrencyShares");
    if shares.integer().is_some_and(|shares| shares < 0) {
        errors.push(shares.invalid("must be a non-negative integer"));
    }
}

fn validate_lendable_percent(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    number::check_range(&field.child("lendablePercent"), 0, 100, errors);
}

fn validate_limited(limited: &Field<'_, '_>, errors: &mut FieldErrors) {
    validate_shares(limited, errors);
    validate_limit_response(&limited.child("limitResponse"), errors);
    validate_lendable_percent(limited, errors);
    let borrowing = limited.child("borrowingLimitPercent");
    if borrowing.integer().is_some_and(|percent| percent < 0) {
        errors.push(borrowing.invalid("if specified, must be a non-negative integer"));
    }
}

fn validate_limit_response(response: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (kind, queuing) = (response.child("type"), response.child("queuing"));
    match kind.text() {
        // The messages of kube-apiserver name the type `Limited` instead of `Queue`.
        "Reject" => {
            queuing.forbid("must be nil if limited.limitResponse.type is not Limited", errors);
        }
        "Queue" if queuing.is_present() => validate_queuing(&queuing, errors),
        "Queue" => {
            errors.push(queuing.required("must not be empty if limited.limitResponse.type is Limited"));
        }
        text => errors.push(kind.with_value(Some(&text.into())).not_supported(&["Queue", "Reject"])),
    }
}

fn validate_queuing(queuing: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut require_positive = |name: &'static str| {
        let field = queuing.child(name);
        let number = field.integer().unwrap_or(0);
        if number <= 0 {
            errors.push(field.invalid_value(number, "must be positive"));
        }
        number
    };
    require_positive("queueLengthLimit");
    let (queues, hand) = (require_positive("queues"), require_positive("handSize"));
    let hand_size = queuing.child("handSize");
    if queues > QUEUES_MAX {
        errors.push(queuing.child("queues").invalid(&format!("must not be greater than {QUEUES_MAX}")));
    }
    if hand <= 0 {
        return;
    }
    if hand > queues {
        errors.push(hand_size.invalid(&format!("should not be greater than queues ({queues})")));
    } else if entropy_bits(queues, hand) > ENTROPY_MAX {
        errors.push(hand_size.invalid(&format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {ENTROPY_MAX}"
        )));
    }
}

/// Number of hash bits that shuffle sharding needs to choose `hand` of `queues`. Both arguments are positive
/// 32-bit numbers.
fn entropy_bits(queues: i64, hand: i64) -> f64 {
    let number = |number: i64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    (number(queues).log2() * number(hand)).ceil()
}
