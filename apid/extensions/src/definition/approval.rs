//! Approval of custom kinds in protected groups.
//!
//! # Contract
//!
//! A definition in a domain of the names preset needs an approval annotation. Its value is the URL of the
//! approval, or a reason that begins with `unapproved`.

use apimachinery::field::{FieldError, FieldPath, quote};
use apimachinery::names::Names;
use apimachinery::object::Object;

use super::url;

/// Approval state of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Approval {
    /// The annotation has neither a URL nor a reason.
    Invalid,
    /// The annotation is a URL.
    Approved,
    /// The author opted out: `unapproved, REASON`.
    Bypassed,
    /// The annotation is absent or empty.
    Missing,
}

/// Approval of a definition, with a message.
pub(super) fn approval(definition: &Object, names: &Names) -> (Approval, String) {
    let key = names.approval_annotation();
    let value = definition.annotation(&key).unwrap_or("");
    let key = quote(&key);
    let reference = "see https://github.com/kubernetes/enhancements/pull/1111";
    match value {
        "" => {
            (Approval::Missing, format!("protected groups must have approval annotation {key}, {reference}"))
        }
        _ if value.starts_with("unapproved") => {
            (Approval::Bypassed, format!("not approved: {}", quote(value)))
        }
        _ if url::is_absolute(value) => (Approval::Approved, format!("approved in {value}")),
        _ => (
            Approval::Invalid,
            format!(
                "protected groups must have approval annotation {key} with either a URL or a reason starting with \"unapproved\", {reference}"
            ),
        ),
    }
}

/// Validates the approval of a definition in a protected group. An unchanged state is always valid.
pub(super) fn validate_approval(
    definition: &Object,
    old: Option<&Object>,
    group: &str,
    names: &Names,
) -> Option<FieldError> {
    if !names.is_protected_group(group) {
        return None;
    }
    let (state, message) = approval(definition, names);
    if old.is_some_and(|old| approval(old, names).0 == state) {
        return None;
    }
    let key = names.approval_annotation();
    let path = FieldPath::new("metadata").child("annotations").key(&key);
    match state {
        Approval::Invalid => {
            let value = definition.annotation(&key).unwrap_or("");
            Some(FieldError::invalid(&path, value, &message))
        }
        Approval::Missing => Some(FieldError::required(&path, &message)),
        Approval::Approved | Approval::Bypassed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::json;

    #[test]
    fn protected_group_needs_approval() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let annotated = |value: &str| {
            let annotations = json!({"api-approved.example.test": value});
            Object::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
        };
        let check = |new: &Object, old: Option<&Object>| {
            validate_approval(new, old, "a.example.test", &names).map(|error| error.kind.reason())
        };
        assert_eq!(check(&annotated("https://a.example/1"), None), None);
        assert_eq!(check(&annotated("unapproved, private"), None), None);
        assert_eq!(check(&annotated("x"), None), Some("FieldValueInvalid"));
        assert_eq!(check(&annotated(""), None), Some("FieldValueRequired"));
        assert_eq!(check(&annotated("x"), Some(&annotated("y"))), None);
        assert_eq!(validate_approval(&annotated(""), None, "example.com", &names), None);
    }
}
