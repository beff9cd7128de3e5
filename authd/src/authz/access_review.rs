//! Converts a request to the `spec` of a SubjectAccessReview, for webhooks and match conditions.
//!
//! # Reference
//!
//! The fields are those of `authorization.<d>/v1`. In v1beta1 the field `groups` has the name `group` (access
//! control, "Webhook mode").

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::object::{Map, Value};
use apimachinery::user::UserInfo;
use serde_json::json;

use crate::webhook::Version;

/// Returns the `spec` for a webhook: empty fields are left out.
pub fn spec(user: &UserInfo, attributes: &Attributes, version: Version) -> Map<String, Value> {
    let mut spec = condition_fields(user, attributes);
    if version == Version::V1Beta1
        && let Some(groups) = spec.remove("groups")
    {
        spec.insert("group".to_owned(), groups);
    }
    for field in ["resourceAttributes", "nonResourceAttributes"] {
        if let Some(Value::Object(attributes)) = spec.get_mut(field) {
            attributes.retain(|_, value| !is_empty(value));
        }
    }
    spec.retain(|_, value| !is_empty(value));
    spec
}

/// Returns the `spec` that match conditions read as `request`.
/// Empty strings, lists and maps are present.
/// Exactly one of `resourceAttributes` and `nonResourceAttributes` is present.
pub fn condition_fields(user: &UserInfo, attributes: &Attributes) -> Map<String, Value> {
    let (field, attributes) = if attributes.resource_request {
        ("resourceAttributes", resource(attributes))
    } else {
        ("nonResourceAttributes", non_resource(attributes))
    };
    let fields = [
        ("user", user.name.as_str().into()),
        ("groups", json!(user.groups)),
        ("extra", json!(user.extra)),
        ("uid", user.uid.as_str().into()),
        (field, attributes.into()),
    ];
    fields.map(|(field, value)| (field.to_owned(), value)).into_iter().collect()
}

fn resource(attributes: &Attributes) -> Map<String, Value> {
    let texts = [
        ("namespace", &attributes.namespace),
        ("verb", &attributes.verb),
        ("group", &attributes.group),
        ("version", &attributes.version),
        ("resource", &attributes.resource),
        ("subresource", &attributes.subresource),
        ("name", &attributes.name),
    ];
    let mut fields: Map<String, Value> =
        texts.into_iter().map(|(field, text)| (field.to_owned(), text.as_str().into())).collect();
    let selectors =
        [("fieldSelector", &attributes.field_selector), ("labelSelector", &attributes.label_selector)];
    for (field, selector) in selectors {
        if let Some(requirements) = requirements(selector) {
            fields.insert(field.to_owned(), json!({"requirements": requirements}));
        }
    }
    fields
}

fn non_resource(attributes: &Attributes) -> Map<String, Value> {
    let texts = [("path", &attributes.path), ("verb", &attributes.verb)];
    texts.into_iter().map(|(field, text)| (field.to_owned(), text.as_str().into())).collect()
}

/// Returns the requirements of a selector as JSON.
/// Returns None if the selector has no requirements, or cannot be parsed.
fn requirements(selector: &ParsedSelector) -> Option<Vec<Value>> {
    let ParsedSelector::Requirements(requirements) = selector else { return None };
    let objects = requirements.iter().map(|requirement| {
        let mut object = Map::new();
        object.insert("key".to_owned(), requirement.key.as_str().into());
        object.insert("operator".to_owned(), requirement.operator.as_str().into());
        if !requirement.values.is_empty() {
            object.insert("values".to_owned(), json!(requirement.values));
        }
        Value::Object(object)
    });
    (!requirements.is_empty()).then(|| objects.collect())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => *value == json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::attributes::{Operator, Requirement};

    #[test]
    fn request_is_encoded_as_review_of_both_versions() {
        let user = UserInfo {
            name: "jane".into(),
            groups: vec!["team".into()],
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
            ..UserInfo::default()
        };
        let requirement =
            Requirement { key: "spec.nodeName".into(), operator: Operator::In, values: vec!["n1".into()] };
        let pods = Attributes {
            verb: "list".into(),
            resource_request: true,
            version: "v1".into(),
            resource: "pods".into(),
            field_selector: ParsedSelector::Requirements(vec![requirement]),
            label_selector: ParsedSelector::Unparsable("a in (".into()),
            ..Attributes::default()
        };
        let path = Attributes { verb: "get".into(), path: "/healthz".into(), ..Attributes::default() };
        for (attributes, version, expected) in [
            (
                &pods,
                Version::V1,
                json!({"user": "jane", "groups": ["team"], "extra": {"k": ["v"]}, "resourceAttributes": {
                    "verb": "list", "version": "v1", "resource": "pods",
                    "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}}}),
            ),
            (
                &path,
                Version::V1Beta1,
                json!({"user": "jane", "group": ["team"], "extra": {"k": ["v"]},
                    "nonResourceAttributes": {"verb": "get", "path": "/healthz"}}),
            ),
        ] {
            assert_eq!(Value::Object(spec(&user, attributes, version)), expected);
        }
        let read = Value::Object(condition_fields(&UserInfo::default(), &path));
        let expected = json!({"user": "", "groups": [], "extra": {}, "uid": "",
            "nonResourceAttributes": {"verb": "get", "path": "/healthz"}});
        assert_eq!(read, expected);
        let read = condition_fields(&user, &pods);
        assert_eq!(read["resourceAttributes"]["namespace"], "", "unset fields are present and empty");
        assert!(!read.contains_key("nonResourceAttributes"));
    }
}
