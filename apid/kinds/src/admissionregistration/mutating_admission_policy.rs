//! MutatingAdmissionPolicy: CEL expressions that change written objects.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{expression_rules, match_rules, policy_rules};
use crate::admission_expressions::{Compiler, ObjectTypes, Purpose};
use crate::defaults::{fill, part};
use crate::table::{AGE, NAME, Source};
use crate::unenforced::MUTATING_POLICIES;
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    unenforced: Some(&MUTATING_POLICIES),
    columns: &[
        NAME,
        Column::integer("Mutations", "Number of mutations.").with_source(Source::Length("spec.mutations")),
        policy_rules::PARAMETER_KIND_COLUMN,
        AGE,
    ],
    cells: policy_rules::cells,
    strategy: &MutatingAdmissionPolicy,
    ..BuiltInKind::cluster_scoped(
        "admissionregistration/v1alpha1.MutatingAdmissionPolicy",
        "mutatingadmissionpolicies",
    )
};

/// Field and patch type of each form of a mutation, with the purpose of its expression.
const FORMS: [(&str, &str, Purpose); 2] = [
    ("applyConfiguration", "ApplyConfiguration", Purpose::ApplyConfiguration),
    ("jsonPatch", "JSONPatch", Purpose::JsonPatch),
];

/// Lists of a policy and their fields with expressions.
const EXPRESSIONS: [(&str, &str); 4] = [
    ("matchConditions", "expression"),
    ("variables", "expression"),
    ("mutations", "applyConfiguration.expression"),
    ("mutations", "jsonPatch.expression"),
];

struct MutatingAdmissionPolicy;

impl Strategy for MutatingAdmissionPolicy {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill(spec, "failurePolicy", "Fail");
            match_rules::default_resources_at(spec, "matchConstraints");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(new, Some(old))
    }
}

/// Validates the spec. Expressions of the stored object `old` may use libraries of later releases.
fn validate(object: &Object, old: Option<&Object>) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let has_variables = !spec.child("variables").list().is_empty();
    let types = ObjectTypes::dynamic(spec.child("paramKind").is_present());
    let stored = policy_rules::stored_expressions(old, &EXPRESSIONS);
    let mut compiler = Compiler::of_new(types, has_variables, stored);
    let mut errors = FieldErrors::new();
    match_rules::validate_failure_policy(&spec.child("failurePolicy"), &mut errors);
    policy_rules::validate_parameter_kind(&spec.child("paramKind"), &mut errors);
    let constraints = spec.child("matchConstraints");
    policy_rules::validate_match_constraints(&constraints, &mut errors);
    match_rules::check_mutating_operations(&constraints, &mut errors);
    let conditions = spec.child("matchConditions");
    let is_unchanged = old.is_some_and(|old| old.at(&["spec", "matchConditions"]) == conditions.value());
    if !is_unchanged {
        expression_rules::validate_conditions(&conditions, &compiler, &mut errors);
    }
    expression_rules::validate_variables(&spec.child("variables"), &mut compiler, &mut errors);
    let mutations = spec.child("mutations");
    mutations.require_items("mutations must contain at least one item", &mut errors);
    mutations.items().for_each(|item| validate_mutation(&item, &compiler, &mut errors));
    text::require_supported(&spec.child("reinvocationPolicy"), &["IfNeeded", "Never"], &mut errors);
    errors
}

/// Validates a mutation: it has the form of its patch type, and no other form.
fn validate_mutation(mutation: &Field<'_, '_>, compiler: &Compiler<'_>, errors: &mut FieldErrors) {
    let patch_type = mutation.child("patchType");
    if !FORMS.iter().any(|(_, name, _)| *name == patch_type.text()) {
        text::require_supported(&patch_type, &FORMS.map(|(_, name, _)| name), errors);
        return;
    }
    for (name, form, purpose) in FORMS {
        let field = mutation.child(name);
        let expression = field.child("expression");
        match (form == patch_type.text(), field.is_present()) {
            (true, false) => {
                errors.push(field.required(&format!("must be specified when patchType is {form}")));
            }
            (true, true) if expression.text().trim().is_empty() => errors.push(expression.required("")),
            (true, true) => expression_rules::validate_expression(&expression, purpose, compiler, errors),
            (false, true) => {
                let detail = format!("must not be specified when patchType is {}", patch_type.text());
                errors.push(field.invalid_value(format!("{{{name}}}"), &detail));
            }
            (false, false) => {}
        }
    }
}
