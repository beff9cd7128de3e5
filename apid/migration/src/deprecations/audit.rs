//! Events of an audit log that concern a resource.

use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::user::APISERVER;
use serde_json::Value;

use super::ResourceRequest;

/// A line of an audit log is not a JSON object.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {error}; an audit log has one JSON event in each line")]
pub struct AuditError {
    line: usize,
    error: serde_json::Error,
}

/// The events about resources, without those of the server itself. Empty lines are skipped.
///
/// The annotations of an event can have their keys of any preset in `names`.
pub(super) fn requests(text: &str, names: &[&Names]) -> Result<Vec<ResourceRequest>, AuditError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut events = Vec::new();
    for (index, line) in lines {
        let value: serde_json::Map<String, Value> =
            serde_json::from_str(line).map_err(|error| AuditError { line: index + 1, error })?;
        events.extend(parse_event(&Value::Object(value), names));
    }
    Ok(events)
}

fn parse_event(value: &Value, names: &[&Names]) -> Option<ResourceRequest> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let annotation = |name: &str| {
        let annotations = value.get("annotations")?;
        names.iter().find_map(|names| annotations.get(names.group_key(name)))?.as_str()
    };
    let resource = text("/objectRef/resource");
    // Requests of the server itself need no migration.
    if resource.is_empty() || text("/user/username") == APISERVER {
        return None;
    }
    Some(ResourceRequest {
        group_version: GroupVersion {
            group: text("/objectRef/apiGroup").to_owned(),
            version: text("/objectRef/apiVersion").to_owned(),
        },
        resource: resource.to_owned(),
        place: format!("{} by `{}` with {}", text("/verb"), text("/user/username"), text("/userAgent")),
        is_marked: annotation("deprecated") == Some("true"),
        removed: annotation("removed-release").map(str::to_owned),
    })
}
