//! Declarative validation beside the hand-written validation of a kind.
//!
//! # Contract
//!
//! With the gate `DeclarativeValidation`, both validations run for kinds whose types have validation tags.
//! The declarative errors are compared with the hand-written errors that carry a tag, by type of error, field
//! and tag. Each difference is logged and counted. The hand-written errors decide whether the write fails.
//!
//! With the gate `DeclarativeValidationTakeover` too, the declarative errors replace the hand-written errors
//! that carry a tag. The second gate has no effect without the first one.
//!
//! A panic of the declarative validation is counted. The write then fails only if both gates are enabled.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use kinds::{Context, Kind};
use serving::gates::{FeatureGates, Gate};
use serving::metrics::{Counter, Definition, Metrics, Stability};

/// Declarative validation of an object; None for kinds without validation tags.
pub type Validator = Arc<dyn Fn(&Kind, &Object, &Context<'_>) -> Option<FieldErrors> + Send + Sync>;

/// Returns the validator of the type table.
pub fn type_table_validator() -> Validator {
    Arc::new(Kind::validate_tags)
}

/// Declarative validation of a server, compared with the hand-written validation.
pub struct DeclarativeValidation {
    validator: Validator,
    is_enabled: bool,
    takes_over: bool,
    /// The same count under the full name of kube-apiserver and under its short name.
    mismatches: [Counter; 2],
    panics: Counter,
}

impl DeclarativeValidation {
    /// Reads the gates and registers the metrics.
    pub fn new(gates: &FeatureGates, validator: Validator, metrics: &Metrics) -> Self {
        let is_enabled = gates.enabled(Gate::DeclarativeValidation);
        let definition = |name, help| Definition::new(name, Stability::Beta, help);
        DeclarativeValidation {
            validator,
            is_enabled,
            takes_over: is_enabled && gates.enabled(Gate::DeclarativeValidationTakeover),
            mismatches: [
                "apiserver_validation_declarative_validation_mismatch_total",
                "declarative_validation_mismatch_total",
            ]
            .map(|name| {
                let help =
                    "Number of differences between the results of declarative and hand-written validation";
                metrics.single_counter(&definition(name, help))
            }),
            panics: metrics.single_counter(&definition(
                "apiserver_validation_declarative_validation_panic_total",
                "Number of panics of declarative validation",
            )),
        }
    }

    /// Compares the hand-written errors of a written object with the declarative errors. Returns the errors
    /// that reject the write.
    pub(super) fn decide(
        &self,
        resource: &Kind,
        object: &Object,
        context: &Context<'_>,
        hand_written: FieldErrors,
    ) -> FieldErrors {
        if !self.is_enabled {
            return hand_written;
        }
        let result = panic::catch_unwind(AssertUnwindSafe(|| (self.validator)(resource, object, context)));
        let declarative = match result {
            Ok(None) => return hand_written,
            Ok(Some(errors)) => errors,
            Err(_) => self.panic_errors(resource, object),
        };
        for (error, found_by) in mismatches(&hand_written, &declarative) {
            for counter in &self.mismatches {
                counter.inc();
            }
            tracing::error!(
                resource = %resource.group_resource,
                namespace = object.namespace(),
                name = object.name(),
                field = error.path.as_str(),
                error = error.body(),
                found_by,
                decisive = if self.takes_over { "declarative" } else { "hand-written" },
                "declarative and hand-written validation differ"
            );
        }
        if !self.takes_over {
            return hand_written;
        }
        let mut errors = hand_written.without_tagged();
        errors.extend(declarative);
        errors
    }

    /// Counts and logs a panic of declarative validation. Returns an error only if declarative errors reject
    /// writes.
    fn panic_errors(&self, resource: &Kind, object: &Object) -> FieldErrors {
        self.panics.inc();
        tracing::error!(
            resource = %resource.group_resource,
            namespace = object.namespace(),
            name = object.name(),
            "declarative validation panicked"
        );
        if !self.takes_over {
            return FieldErrors::new();
        }
        FieldError::internal(&FieldPath::root(), "panic during declarative validation").into()
    }
}

/// Returns the tagged errors that only one validation finds, each with the name of that validation.
///
/// Several hand-written errors can match one declarative error, and vice versa.
fn mismatches<'a>(
    hand_written: &'a FieldErrors,
    declarative: &'a FieldErrors,
) -> Vec<(&'a FieldError, &'static str)> {
    let is_same = |a: &FieldError, b: &FieldError| a.kind == b.kind && a.path == b.path && a.tag() == b.tag();
    let is_in = |errors: &FieldErrors, error: &FieldError| errors.iter().any(|other| is_same(error, other));
    let tagged = hand_written.iter().filter(|error| error.tag().is_some());
    let only_hand_written = tagged.filter(|error| !is_in(declarative, error));
    let only_declarative = declarative.iter().filter(|error| !is_in(hand_written, error));
    only_hand_written
        .map(|error| (error, "hand-written"))
        .chain(only_declarative.map(|error| (error, "declarative")))
        .collect()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{SeededRng, SystemClock};
    use apimachinery::names::{Names, Preset};
    use kinds::Registry;
    use parking_lot::Mutex;
    use serde_json::json;
    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;

    /// A subscriber that keeps the fields of all events.
    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<String>>>);

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.push_str(&format!("{}={value:?} ", field.name()));
        }
    }

    impl tracing::Subscriber for Events {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let mut fields = Fields(String::new());
            event.record(&mut fields);
            self.0.lock().push(fields.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn mismatch_is_logged_with_object_and_field() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let registry = Registry::new(&names);
        let resource = registry.find("", "v1", "replicationcontrollers").unwrap();
        let (clock, rng) = (SystemClock::new(), SeededRng::new(1));
        let context = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
        let object = json!({"metadata": {"namespace": "team", "name": "web"}, "spec": {"replicas": -1}});
        let object = Object::from_value(object).unwrap();
        let hand_written: FieldErrors =
            FieldError::invalid(&FieldPath::new("spec.replicas"), -1, "must be greater than or equal to 0")
                .with_tag("minimum")
                .into();
        let events = Events::default();
        let _guard = tracing::subscriber::set_default(events.clone());
        for (validator, lines) in [
            (type_table_validator(), 0),
            (Arc::new(|_: &Kind, _: &Object, _: &Context<'_>| Some(FieldErrors::new())) as Validator, 1),
        ] {
            let validation =
                DeclarativeValidation::new(&FeatureGates::default(), validator, &Metrics::default());
            let errors = validation.decide(resource, &object, &context, hand_written.clone());
            assert_eq!(errors, hand_written, "the hand-written errors decide");
            let logged = events.0.lock().clone();
            assert_eq!(logged.len(), lines, "{logged:?}");
            if let Some(line) = logged.first() {
                for part in [
                    "validation differ",
                    "resource=replicationcontrollers",
                    "namespace=\"team\"",
                    "name=\"web\"",
                    "field=\"spec.replicas\"",
                    "found_by=\"hand-written\"",
                ] {
                    assert!(line.contains(part), "{part} in {line}");
                }
            }
        }
    }
}
