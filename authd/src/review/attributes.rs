//! The attributes of an access review: validation and decoding.
//!
//! # Reference
//!
//! Requirements A-REV-16, A-REV-17; messages of Kubernetes. A selector is `rawSelector` or a list of
//! requirements. A requirement with an unknown operator is accepted and dropped. The reviewed request then
//! selects more objects, so the result can only become stricter.

use apimachinery::attributes::{Attributes, Operator, ParsedSelector, Requirement};
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::object::{Map, Value};
use apimachinery::selector::SelectorError;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::selector::syntax;

use super::{MAX_ERRORS, strings};

pub(super) type Fields = Map<String, Value>;

/// Checks that exactly one of resource and non-resource attributes is present, and checks selectors.
pub(super) fn check_attributes(spec: &Fields) -> Vec<FieldError> {
    let path = FieldPath::new("spec");
    let (resource, non_resource) = attribute_objects(spec);
    let mut errors = Vec::new();
    match (resource, non_resource) {
        (Some(_), Some(non_resource)) => errors.push(FieldError::invalid_json(
            &path.child("nonResourceAttributes"),
            &format_path_attributes(non_resource),
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => errors.push(FieldError::invalid(
            &path.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        (Some(_), None) | (None, Some(_)) => (),
    }
    if let Some(resource) = resource {
        let path = path.child("resourceAttributes");
        let check_field_requirement =
            |key: &str, _: &[String], path: &FieldPath, errors: &mut Vec<FieldError>| {
                if key.is_empty() {
                    errors.push(FieldError::required(&path.child("key"), "must be specified"));
                }
            };
        check_selector(resource, &path, "fieldSelector", &mut errors, check_field_requirement);
        let check_label_requirement =
            |key: &str, values: &[String], path: &FieldPath, errors: &mut Vec<FieldError>| {
                let problems = syntax::qualified_name(key).into_iter();
                errors.extend(problems.map(|problem| FieldError::invalid(&path.child("key"), key, &problem)));
                for (index, value) in values.iter().enumerate() {
                    if errors.len() >= MAX_ERRORS {
                        return;
                    }
                    let path = path.child("values").index(index);
                    let problems = syntax::label_value(value).into_iter();
                    errors
                        .extend(problems.map(|problem| FieldError::invalid(&path, value.as_str(), &problem)));
                }
            };
        check_selector(resource, &path, "labelSelector", &mut errors, check_label_requirement);
    }
    errors
}

fn check_selector(
    resource: &Fields,
    path: &FieldPath,
    field: &str,
    errors: &mut Vec<FieldError>,
    check_requirement: impl Fn(&str, &[String], &FieldPath, &mut Vec<FieldError>),
) {
    let Some(selector) = resource.get(field).and_then(Value::as_object) else { return };
    let path = path.child(field);
    let raw = text(selector, "rawSelector");
    let requirements =
        selector.get("requirements").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !raw.is_empty() && !requirements.is_empty() {
        let detail = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid(&path.child("rawSelector"), raw, detail));
    }
    if raw.is_empty() && requirements.is_empty() {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(&path.child("requirements"), &detail));
    }
    for (index, requirement) in requirements.iter().filter_map(Value::as_object).enumerate() {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        let path = path.child("requirements").index(index);
        let values = strings(requirement.get("values"));
        match Operator::parse(text(requirement, "operator")) {
            Some(Operator::In | Operator::NotIn) if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&path.child("values"), detail));
            }
            Some(Operator::Exists | Operator::DoesNotExist) if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&path.child("values"), detail));
            }
            Some(_) | None => (),
        }
        check_requirement(text(requirement, "key"), &values, &path, errors);
    }
}

/// Decodes the attributes of a validated review.
pub(super) fn read_attributes(spec: &Fields) -> Attributes {
    match attribute_objects(spec) {
        (Some(resource), _) => {
            let field = |name: &str| text(resource, name).to_owned();
            Attributes {
                verb: field("verb"),
                resource_request: true,
                group: field("group"),
                version: field("version"),
                resource: field("resource"),
                subresource: field("subresource"),
                namespace: field("namespace"),
                name: field("name"),
                path: String::new(),
                field_selector: selector(resource.get("fieldSelector"), |raw| {
                    FieldSelector::parse(raw).map(|selector| selector.requirements())
                }),
                label_selector: selector(resource.get("labelSelector"), |raw| {
                    LabelSelector::parse(raw).map(|selector| selector.requirements())
                }),
            }
        }
        (None, Some(path)) => Attributes {
            verb: text(path, "verb").to_owned(),
            path: text(path, "path").to_owned(),
            ..Attributes::default()
        },
        (None, None) => Attributes::default(),
    }
}

fn selector(
    selector: Option<&Value>,
    parse: impl Fn(&str) -> Result<ParsedSelector, SelectorError>,
) -> ParsedSelector {
    let Some(selector) = selector.and_then(Value::as_object) else { return ParsedSelector::default() };
    let raw = text(selector, "rawSelector");
    if !raw.is_empty() {
        return parse(raw).unwrap_or_else(|_| ParsedSelector::Unparsable(raw.to_owned()));
    }
    let requirements = selector.get("requirements").and_then(Value::as_array).into_iter().flatten();
    let known_requirements = requirements.filter_map(Value::as_object).filter_map(|requirement| {
        Some(Requirement {
            key: text(requirement, "key").to_owned(),
            operator: Operator::parse(text(requirement, "operator"))?,
            values: strings(requirement.get("values")),
        })
    });
    ParsedSelector::Requirements(known_requirements.collect())
}

/// Formats non-resource attributes as messages of Kubernetes do.
pub(super) fn format_path_attributes(attributes: &Fields) -> String {
    let format_field = |field: &str| Value::from(text(attributes, field)).to_string();
    format!("{{\"Path\":{},\"Verb\":{}}}", format_field("path"), format_field("verb"))
}

/// Returns the resource attributes and the non-resource attributes of a spec.
pub(super) fn attribute_objects(spec: &Fields) -> (Option<&Fields>, Option<&Fields>) {
    let object = |field: &str| spec.get(field).and_then(Value::as_object);
    (object("resourceAttributes"), object("nonResourceAttributes"))
}

/// Returns a text field; empty if it is absent.
pub(super) fn text<'a>(fields: &'a Fields, field: &str) -> &'a str {
    fields.get(field).and_then(Value::as_str).unwrap_or_default()
}
