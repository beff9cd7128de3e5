//! Rules for updates: immutable fields, and violations of old definitions that stay tolerated.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::Object;

use super::conditions::is_established;
use super::conversion::{Conversion, ConversionRules};
use super::default_values::has_unpruned_default;
use super::list_types::{has_invalid_map_list, has_set_of_granular_items};
use super::props::{Props, TYPES};
use super::spec::Spec;
use super::structure::{find_unsupported, validate_structure};

/// Rules that an update enforces only if the old definition already obeys them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    /// Whether each version must have a schema.
    pub(super) requires_schema: bool,
    /// Whether each type must be known.
    pub(super) requires_known_types: bool,
    /// Whether each schema must be structural.
    pub(super) requires_structure: bool,
    /// Whether defaults must have no fields that pruning drops.
    pub(super) requires_pruned_defaults: bool,
    /// Whether the items of sets must be scalar or atomic.
    pub(super) requires_atomic_set_items: bool,
    /// Whether the keys of map lists must be required or have a default.
    pub(super) requires_map_keys: bool,
    /// Rules for the conversion.
    pub(super) conversion: ConversionRules,
}

impl Tolerance {
    /// The rules for a creation.
    pub(super) const CREATE: Tolerance = Tolerance {
        requires_schema: true,
        requires_known_types: true,
        requires_structure: true,
        requires_pruned_defaults: true,
        requires_atomic_set_items: true,
        requires_map_keys: true,
        conversion: ConversionRules { requires_known_review_version: true, allows_invalid_bundle: true },
    };

    /// The rules for an update of an old definition.
    pub(super) fn for_update(old: &Object, names: &Names) -> Tolerance {
        let spec = Spec::new(old);
        let conversion = Conversion::from_spec(spec.fields);
        let lacks_schema =
            spec.common.schema().is_none() && spec.versions.iter().any(|version| version.schema().is_none());
        let is_structural = |schema: Props<'_>| {
            find_unsupported(schema, names).is_none()
                && validate_structure(schema, names, &FieldPath::root()).is_empty()
        };
        Tolerance {
            requires_schema: !lacks_schema,
            requires_known_types: !spec
                .schemas()
                .any(|schema| schema.any(&mut |part| !part.ty().is_empty() && !TYPES.contains(&part.ty()))),
            requires_structure: spec.schemas().all(is_structural),
            requires_pruned_defaults: !spec
                .schemas()
                .any(|schema| is_structural(schema) && has_unpruned_default(schema)),
            requires_atomic_set_items: !spec.schemas().any(has_set_of_granular_items),
            requires_map_keys: !spec.schemas().any(|schema| has_invalid_map_list(schema, names)),
            conversion: ConversionRules {
                requires_known_review_version: conversion.is_none_or(|conversion| {
                    conversion.review_versions.is_empty() || conversion.has_known_review_version()
                }),
                allows_invalid_bundle: !is_established(old)
                    || conversion.is_some_and(|conversion| conversion.has_invalid_bundle()),
            },
        }
    }
}

/// Validates that an update changes no immutable field.
pub(super) fn validate_immutable_fields(spec: &Spec<'_>, old: &Object) -> FieldErrors {
    let (path, old_spec) = (FieldPath::new("spec"), Spec::new(old));
    let names_path = path.child("names");
    let mut errors = FieldErrors::new();
    let mut compare = |new: &str, old: &str, path: &FieldPath| {
        if new != old {
            errors.push(FieldError::invalid(path, new, "field is immutable"));
        }
    };
    if is_established(old) {
        compare(spec.text("scope"), old_spec.text("scope"), &path.child("scope"));
        let kind = old_spec.requested_name("kind");
        compare(spec.requested_name("kind"), kind, &names_path.child("kind"));
    }
    compare(spec.text("group"), old_spec.text("group"), &path.child("group"));
    let plural = old_spec.requested_name("plural");
    compare(spec.requested_name("plural"), plural, &names_path.child("plural"));
    errors
}
