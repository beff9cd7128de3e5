//! Validation of a CustomResourceDefinition (apiextensions v1).
//!
//! # Contract
//!
//! All functions work on a decoded definition that conforms to the schema of its type. A write calls:
//!
//! 1. [`set_defaults`];
//! 2. [`record_stored_version`] when the status has its final content, except for writes to `status`;
//! 3. [`validate_create`], [`validate_update`] or [`validate_status_update`];
//! 4. [`warnings`].
//!
//! [`conditions`] computes accepted names and conditions. [`keywords`] defines the names of schema extensions
//! in requests and in memory: a definition in memory has the same names under both presets.
//!
//! # Reference
//!
//! Order, paths and messages of the errors are those of kube-apiserver 1.33. It validates an internal form
//! with paths that differ from the request, for example `spec.validation.openAPIV3Schema` for a schema that
//! all versions share. Properties are visited in the order of their names, where the order of kube-apiserver
//! is random.
//!
//! # Invariants
//!
//! INVARIANT (bounded work): the work is proportional to the size of the definition and its depth. An error
//! is rendered only while [`FieldErrors`] keeps it.

mod approval;
mod certificates;
mod checks;
mod columns;
pub mod conditions;
mod conversion;
mod default_values;
mod defaults;
mod expressions;
mod field_path;
mod formats;
pub mod keywords;
mod list_types;
mod name_rules;
mod properties;
mod props;
mod schema_path;
mod schema_rules;
mod selectable_fields;
mod spec;
mod structure;
mod subresources;
mod update;
mod url;
mod validation_rules;
mod versions;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::{Object, Value};

pub use checks::Environment;
pub use defaults::{record_stored_version, set_defaults, storage_version};
pub use formats::warnings;

use columns::validate_columns;
use conversion::{Conversion, validate_conversion};
use expressions::OldSchemas;
use props::Props;
use schema_rules::{SchemaRules, validate_schema};
use selectable_fields::validate_selectable_fields;
use spec::{Spec, Version};
use subresources::validate_subresources;
use update::Tolerance;

const SCOPES: [&str; 2] = ["Cluster", "Namespaced"];

/// Validates a new definition, without the general rules of its metadata.
pub fn validate_create(definition: &Object, environment: Environment<'_>) -> FieldErrors {
    let spec = Spec::new(definition);
    let mut errors = name_rules::validate_object_name(definition, &spec);
    errors.extend(validate_spec(&spec, Tolerance::CREATE, &OldSchemas::default(), environment));
    errors.extend(validate_rest(definition, None, &spec, environment.names));
    errors
}

/// Validates an update of the main resource, without the general rules of its metadata.
pub fn validate_update(definition: &Object, old: &Object, environment: Environment<'_>) -> FieldErrors {
    let spec = Spec::new(definition);
    let tolerance = Tolerance::for_update(old, environment.names);
    let old_schemas = OldSchemas::from_spec(&Spec::new(old));
    let mut errors = validate_spec(&spec, tolerance, &old_schemas, environment);
    errors.extend(update::validate_immutable_fields(&spec, old));
    errors.extend(validate_rest(definition, Some(old), &spec, environment.names));
    errors
}

/// Validates an update of `status`, without the general rules of its metadata.
pub fn validate_status_update(definition: &Object) -> FieldErrors {
    let names = definition.at(&["status", "acceptedNames"]).and_then(Props::from_value);
    name_rules::validate_names(names, &FieldPath::new("status").child("acceptedNames"))
}

/// Validates the parts outside `spec`, and the fields whose rules need the whole definition.
fn validate_rest(definition: &Object, old: Option<&Object>, spec: &Spec<'_>, names: &Names) -> FieldErrors {
    let mut errors = validate_status_update(definition);
    let stored = definition.at(&["status", "storedVersions"]).and_then(Value::as_array);
    let stored = stored.map_or(&[][..], Vec::as_slice);
    let path = FieldPath::new("status").child("storedVersions");
    errors.extend(versions::validate_stored_versions(stored, spec, &path));
    errors.extend(approval::validate_approval(definition, old, spec.text("group"), names));
    let was_preserving = old.is_some_and(|old| Spec::new(old).preserves_unknown_fields());
    if spec.preserves_unknown_fields() && !was_preserving {
        let extension = names.schema_extension(SchemaExtension::PreserveUnknownFields);
        let detail =
            format!("cannot set to true, set {extension} to true in spec.versions[*].schema instead");
        let path = FieldPath::new("spec").child("preserveUnknownFields");
        errors.push(FieldError::invalid(&path, true, &detail));
    }
    errors
}

fn validate_spec(
    spec: &Spec<'_>,
    mut tolerance: Tolerance,
    old: &OldSchemas<'_>,
    environment: Environment<'_>,
) -> FieldErrors {
    let path = FieldPath::new("spec");
    let versions_path = path.child("versions");
    let mut errors = name_rules::validate_group(spec.text("group"), &path.child("group"));
    errors.extend(name_rules::validate_choice(spec.text("scope"), &path.child("scope"), &SCOPES));
    errors.extend(versions::validate_presence_of_schemas(spec, tolerance.requires_schema, &versions_path));
    let preserves = spec.preserves_unknown_fields();
    let has_defaults = spec.schemas().any(|schema| schema.any(&mut |part| part.get("default").is_some()));
    if has_defaults && preserves {
        let detail = "must be false in order to use defaults in the schema";
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), true, detail));
    }
    if !preserves || has_defaults || spec.schemas().any(has_extension) {
        tolerance.requires_structure = true;
    }
    let rules = SchemaRules { environment, tolerance: &tolerance, old };
    for (index, version) in spec.versions.iter().enumerate() {
        let path = versions_path.index(index);
        errors.extend(name_rules::validate_label(version.name(), &path.child("name")));
        errors.extend(versions::validate_deprecation(version, &path.child("deprecationWarning")));
        errors.extend(validate_version(version, spec.has_status(version), rules, &path, "schema"));
    }
    errors.extend(versions::validate_version_list(spec, &versions_path));
    errors.extend(versions::validate_first_version(spec, &path.child("version")));
    errors.extend(name_rules::validate_required_names(spec, &path.child("names")));
    errors.extend(name_rules::validate_names(spec.names(), &path.child("names")));
    errors.extend(validate_version(&spec.common, spec.has_any_status(), rules, &path, "validation"));
    if let Some(conversion) = Conversion::from_spec(spec.fields) {
        let path = path.child("conversion");
        if preserves && conversion.strategy != "None" {
            let detail = "must be None if spec.preserveUnknownFields is true";
            errors.push(FieldError::invalid(&path.child("strategy"), conversion.strategy, detail));
        }
        errors.extend(validate_conversion(conversion, tolerance.conversion, &path));
    }
    errors
}

/// Validates the fields of one version, or those that all versions share.
fn validate_version(
    version: &Version<'_>,
    has_status: bool,
    rules: SchemaRules<'_>,
    path: &FieldPath,
    schema_field: &str,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if let Some(schema) = version.schema() {
        errors.extend(validate_schema(schema, has_status, rules, &path.child(schema_field)));
    }
    errors.extend(validate_subresources(version.subresources, &path.child("subresources")));
    errors.extend(validate_columns(version.columns, &path.child("additionalPrinterColumns")));
    if !version.selectable_fields.is_empty() {
        let path = path.child("selectableFields");
        match version.schema() {
            Some(schema) => {
                errors.extend(validate_selectable_fields(version.selectable_fields, schema, &path));
            }
            None => {
                let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.push(FieldError::invalid(&path, "", detail));
            }
        }
    }
    errors
}

/// Whether a schema or one of its parts has an extension that needs a structural schema.
fn has_extension(schema: Props<'_>) -> bool {
    schema.any(&mut |part| {
        SchemaExtension::ALL
            .into_iter()
            .filter(|extension| *extension != SchemaExtension::MapType)
            .any(|extension| part.extension(extension).is_some())
    })
}
