//! The attributes of a write as webhooks and policies see them: the fields of an AdmissionRequest.

use apimachinery::object::{Map, Value};
use serde_json::json;

use crate::Attributes;
use crate::representation::Representation;

/// The fields of an AdmissionRequest without uid and objects.
///
/// `matched` is the representation in the version that a rule matched, `requested` the representation in the
/// version of the URL path.
pub(crate) fn request_fields(
    attributes: &Attributes<'_>,
    matched: &Representation<'_>,
    requested: &Representation<'_>,
    name: &str,
) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut add = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    add("kind", matched.kind().to_value());
    add("resource", resource(matched));
    add("requestKind", requested.kind().to_value());
    add("requestResource", resource(requested));
    let texts = [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", name),
        ("namespace", attributes.request_namespace()),
    ];
    for (field, text) in texts {
        if !text.is_empty() {
            add(field, text.into());
        }
    }
    add("operation", attributes.operation.as_str().into());
    add("userInfo", attributes.user.to_value());
    add("dryRun", attributes.dry_run.into());
    add("options", (attributes.options)());
    fields
}

/// Request fields for match conditions: `resource` is the resource of the URL path instead of the matched
/// resource, as in kube-apiserver.
pub(crate) fn condition_request(mut fields: Map<String, Value>) -> Map<String, Value> {
    if let Some(requested) = fields.get("requestResource").cloned() {
        fields.insert("resource".to_owned(), requested);
    }
    fields
}

fn resource(representation: &Representation<'_>) -> Value {
    let name = &representation.resource.group_resource;
    json!({"group": name.group, "version": representation.version, "resource": name.resource})
}
