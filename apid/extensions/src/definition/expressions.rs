//! Rules for the expressions of validation rules.
//!
//! # Contract
//!
//! Expressions are validated only in a structural schema with valid defaults. The rules of a part are
//! validated only if the part and its descendants have no other error. An update does not report excessive
//! cost estimates of single expressions in a schema that did not change.

use std::cell::OnceCell;
use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldErrorKind, FieldErrors, FieldPath};
use apimachinery::names::SchemaExtension;
use apimachinery::object::{Map, Value};

use super::checks::{Environment, compile};
use super::props::Props;
use super::spec::Spec;
use crate::structural::StoredRules;

/// The distinct schemas of an old definition, with the expressions of all.
#[derive(Clone, Debug, Default)]
pub(super) struct OldSchemas<'a> {
    schemas: HashSet<&'a Map<String, Value>>,
    /// The expressions, collected on first use.
    rules: OnceCell<StoredRules>,
}

impl<'a> OldSchemas<'a> {
    /// The schemas of a definition.
    pub(super) fn from_spec(spec: &Spec<'a>) -> Self {
        OldSchemas { schemas: spec.schemas().map(|schema| schema.0).collect(), rules: OnceCell::new() }
    }

    /// Whether the old definition has a schema.
    fn contain(&self, schema: Props<'_>) -> bool {
        self.schemas.contains(schema.0)
    }

    fn rules(&self) -> &StoredRules {
        self.rules.get_or_init(|| {
            let mut rules = StoredRules::default();
            let compiled = self.schemas.iter().filter_map(|schema| compile(Props(schema), true));
            compiled.for_each(|schema| rules.extend(schema.stored_rules()));
            rules
        })
    }
}

/// Validates the expressions of a schema, whose other errors are `errors`.
pub(super) fn validate_expressions(
    schema: Props<'_>,
    old: &OldSchemas<'_>,
    errors: &FieldErrors,
    environment: Environment<'_>,
    path: &FieldPath,
) -> FieldErrors {
    let has_rules = schema.any(&mut |part| part.extension(SchemaExtension::Validations).is_some());
    if !has_rules {
        return FieldErrors::new();
    }
    let is_skipped = |part: &FieldPath| has_error_at(part.as_str(), errors);
    let Some(compiled) = compile(schema, true) else { return FieldErrors::new() };
    let found = compiled.check_rules(path, old.rules(), environment.names, &is_skipped);
    if !old.contain(schema) {
        return found;
    }
    let is_estimate = |error: &FieldError| {
        error.kind == FieldErrorKind::Forbidden && error.body().starts_with("Forbidden: estimated")
    };
    found.iter().filter(|error| !is_estimate(error)).cloned().collect()
}

/// Whether a part of a schema or one of its descendants has an error.
fn has_error_at(part: &str, errors: &FieldErrors) -> bool {
    errors.iter().any(|error| {
        let rest = error.path.as_str().strip_prefix(part);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_below_a_part_hide_its_expressions() {
        let errors = FieldErrors::from(FieldError::required(&FieldPath::new("s.properties[a].type"), ""));
        assert!(has_error_at("s", &errors) && has_error_at("s.properties[a]", &errors));
        assert!(has_error_at("s.properties[a].type", &errors));
        assert!(!has_error_at("s.properties[ab]", &errors) && !has_error_at("s.properties[a].t", &errors));
    }
}
