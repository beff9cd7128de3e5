//! Rules for the list of versions, and for the stored versions of the status.

use std::collections::{BTreeMap, HashSet};
use std::sync::OnceLock;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Value;
use regex::Regex;
use schema::InternalForm;

use super::name_rules::validate_label;
use super::spec::{Spec, Version};

/// Maximum length of a deprecation warning in bytes; a longer warning is an error.
const WARNING_MAX: usize = 256;

/// Validates that each version has a schema.
///
/// Without `requires_schema`, in an update of a definition that lacks a schema, only served versions that
/// prune unknown fields need one.
pub(super) fn validate_presence_of_schemas(
    spec: &Spec<'_>,
    requires_schema: bool,
    path: &FieldPath,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if spec.common.schema().is_some() {
        return errors;
    }
    for (index, version) in spec.versions.iter().enumerate().filter(|(_, version)| version.schema().is_none())
    {
        let path = path.index(index).child("schema").child("openAPIV3Schema");
        if requires_schema {
            errors.push(FieldError::required(&path, ""));
        } else if version.is_served() && !spec.preserves_unknown_fields() {
            errors.push(FieldError::required(&path, "because otherwise all fields are pruned"));
        }
    }
    errors
}

/// Validates that version names are unique and that one version is the storage version.
pub(super) fn validate_version_list(spec: &Spec<'_>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let error = |detail: &str| {
        let versions = spec.fields.and_then(|fields| fields.get("versions")).map(|_| own_fields(spec));
        let list = InternalForm::of_field(
            versions.as_ref(),
            "apiextensions/v1.CustomResourceDefinitionSpec",
            "versions",
        );
        FieldError::invalid_collection(path, &list, detail)
    };
    let mut seen_names = HashSet::new();
    if !spec.versions.iter().all(|version| seen_names.insert(version.name())) {
        errors.push(error("must contain unique version names"));
    }
    if spec.versions.iter().filter(|version| version.is_storage()).count() != 1 {
        errors.push(error("must have exactly one version marked as storage version"));
    }
    errors
}

/// The versions without the fields that all versions share, as in the internal form.
fn own_fields(spec: &Spec<'_>) -> Value {
    let own = |version: &Version<'_>| {
        let mut fields = version.fields.map(|fields| fields.0.clone()).unwrap_or_default();
        for (name, is_own) in [
            ("schema", version.validation.is_some()),
            ("subresources", version.subresources.is_some()),
            ("additionalPrinterColumns", !version.columns.is_empty()),
            ("selectableFields", !version.selectable_fields.is_empty()),
        ] {
            if !is_own {
                fields.remove(name);
            }
        }
        Value::Object(fields)
    };
    Value::Array(spec.versions.iter().map(own).collect())
}

/// Validates the name of the first version, which the internal form repeats in `spec.version`.
pub(super) fn validate_first_version(spec: &Spec<'_>, path: &FieldPath) -> Option<FieldError> {
    let name = spec.versions.first()?.name();
    if name.is_empty() { None } else { validate_label(name, path) }
}

/// Validates the deprecation warning of a version.
pub(super) fn validate_deprecation(version: &Version<'_>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let Some(fields) = version.fields else { return errors };
    let Some(warning) = fields.get("deprecationWarning").and_then(Value::as_str) else { return errors };
    if !fields.flag("deprecated") {
        return FieldError::invalid(path, warning, "can only be set for deprecated versions").into();
    }
    if warning.len() > WARNING_MAX {
        errors.push(FieldError::invalid(path, warning, "must be <= 256 characters long"));
    }
    if warning.is_empty() {
        errors.push(FieldError::invalid(path, warning, "must not be an empty string"));
    }
    if let Some(index) = first_unprintable(warning) {
        let detail = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        );
        errors.push(FieldError::invalid(path, warning, &detail));
    }
    errors
}

/// Byte index of the first character that is not a letter, mark, number, punctuation, symbol or space.
fn first_unprintable(text: &str) -> Option<usize> {
    static UNPRINTABLE: OnceLock<Option<Regex>> = OnceLock::new();
    let pattern = UNPRINTABLE.get_or_init(|| Regex::new(r"[^\p{L}\p{M}\p{N}\p{P}\p{S} ]").ok()).as_ref()?;
    pattern.find(text).map(|found| found.start())
}

/// Validates `status.storedVersions` against the versions of the `spec`.
pub(super) fn validate_stored_versions(stored: &[Value], spec: &Spec<'_>, path: &FieldPath) -> FieldErrors {
    if stored.is_empty() {
        let detail = "must have at least one stored version";
        return FieldError::invalid(path, Value::Null, detail).into();
    }
    let mut errors = FieldErrors::new();
    let names = stored.iter().enumerate().map(|(index, name)| (name.as_str().unwrap_or(""), index));
    let mut missing: BTreeMap<&str, usize> = names.collect();
    for version in &spec.versions {
        if missing.remove(version.name()).is_none() && version.is_storage() {
            let detail = format!("must have the storage version {}", version.name());
            // A full collector drops the error, so the error needs no copy of the list.
            let value = if errors.is_full() { Vec::new() } else { stored.to_vec() };
            errors.push(FieldError::invalid(path, value, &detail));
        }
    }
    let mut missing: Vec<(&str, usize)> = missing.into_iter().collect();
    missing.sort_unstable_by_key(|(_, index)| *index);
    for (name, index) in missing {
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(FieldError::invalid(&path.index(index), name, &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::object::Object;
    use serde_json::json;

    #[test]
    fn deprecation_warning_must_be_printable_and_short() {
        for (warning, details) in [
            ("use v2, é 日 ✓", vec![]),
            ("", vec!["must not be an empty string"]),
            ("a\u{200b}", vec!["non-printable character found at index 1"]),
            ("é\t", vec!["non-printable character found at index 2"]),
        ] {
            let value = json!({"deprecated": true, "deprecationWarning": warning});
            let version =
                Version { fields: super::super::props::Props::from_value(&value), ..Version::default() };
            let errors = validate_deprecation(&version, &FieldPath::new("w"));
            assert_eq!(errors.len(), details.len(), "{warning}");
            assert!(
                errors.iter().zip(&details).all(|(e, detail)| e.to_string().ends_with(detail)),
                "{errors:?}"
            );
        }
    }

    #[test]
    fn version_list_error_shows_fields_of_single_versions() {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let columns = json!([{"name": "A", "type": "string", "jsonPath": ".a"}]);
        let spec = json!({"spec": {"versions": [
            {"name": "v1", "schema": schema, "additionalPrinterColumns": columns},
            {"name": "v2", "schema": schema},
        ]}});
        let object = Object::from_value(spec).unwrap();
        let errors = validate_version_list(&Spec::new(&object), &FieldPath::new("v"));
        let text = errors.iter().next().unwrap().to_string();
        let expected =
            r#"v: Invalid value: [{"Name":"v1","Served":false,"Storage":false,"Deprecated":false,"#;
        assert!(text.starts_with(expected), "{text}");
        let shared =
            r#""Schema":null,"Subresources":null,"AdditionalPrinterColumns":[{"Name":"A","Type":"string","#;
        assert!(text.contains(shared), "{text}");
        assert!(text.ends_with("]: must have exactly one version marked as storage version"), "{text}");
    }

    #[test]
    fn stored_versions_must_be_in_spec() {
        let spec = json!({"spec": {"versions": [{"name": "v1"}, {"name": "v2", "storage": true}]}});
        let object = Object::from_value(spec).unwrap();
        let check = |stored: Value| {
            let stored = stored.as_array().cloned().unwrap();
            let errors = validate_stored_versions(&stored, &Spec::new(&object), &FieldPath::new("s"));
            errors.iter().map(|error| error.path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(check(json!(["v1", "v2"])), [""; 0]);
        assert_eq!(check(json!(["v1"])), ["s"]);
        assert_eq!(check(json!(["v4", "v2", "v3"])), ["s[0]", "s[2]"]);
        assert_eq!(check(json!([])), ["s"]);
    }
}
