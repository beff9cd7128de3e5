//! Default values of a definition, and the fields that the server sets.

use apimachinery::object::{Map, Object, Value};

/// Port of the Service of a webhook.
const PORT: i64 = 443;

/// Sets the default values: names, conversion, webhook port and stored versions.
pub fn set_defaults(definition: &mut Object) {
    let storage_name = storage_version(definition).map(str::to_owned);
    if let Some(Value::Object(spec)) = definition.get_mut("spec") {
        if let Some(Value::Object(names)) = spec.get_mut("names") {
            set_default_names(names);
        }
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec.insert("conversion".to_owned(), serde_json::json!({"strategy": "None"}));
        }
        let service = spec
            .get_mut("conversion")
            .and_then(|conversion| conversion.get_mut("webhook"))
            .and_then(|webhook| webhook.get_mut("clientConfig"))
            .and_then(|config| config.get_mut("service"));
        if let Some(Value::Object(service)) = service {
            service.entry("port").or_insert_with(|| PORT.into());
        }
    }
    if let Some(name) = storage_name
        && let Some(Value::Object(status)) = definition.get_mut("status")
        && status.get("storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        status.insert("storedVersions".to_owned(), vec![name].into());
    }
}

fn set_default_names(names: &mut Map<String, Value>) {
    let text = |names: &Map<String, Value>, field: &str| {
        names.get(field).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    let kind = text(names, "kind");
    if kind.is_empty() {
        return;
    }
    if text(names, "singular").is_empty() {
        names.insert("singular".to_owned(), kind.to_lowercase().into());
    }
    if text(names, "listKind").is_empty() {
        names.insert("listKind".to_owned(), format!("{kind}List").into());
    }
}

/// Adds the storage version to `status.storedVersions`.
/// A create and an update of the main resource call this function after they have set the rest of the status.
pub fn record_stored_version(definition: &mut Object) {
    let Some(name) = storage_version(definition).map(str::to_owned) else { return };
    let Some(Value::Object(status)) = definition.get_mut("status") else { return };
    let stored = status.entry("storedVersions").or_insert(Value::Null);
    if !stored.is_array() {
        *stored = Value::Array(Vec::new());
    }
    if let Value::Array(stored) = stored
        && !stored.iter().any(|version| version.as_str() == Some(&name))
    {
        stored.push(name.into());
    }
}

/// Name of the first version that is the storage version.
pub fn storage_version(definition: &Object) -> Option<&str> {
    let versions = definition.at(&["spec", "versions"])?.as_array()?;
    let is_storage = |version: &&Value| version.get("storage").and_then(Value::as_bool).unwrap_or(false);
    versions.iter().find(is_storage)?.get("name")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn absent_names_follow_kind() {
        let webhook = json!({"clientConfig": {"service": {"name": "s"}}});
        let mut definition = object(json!({"spec": {
            "names": {"plural": "widgets", "kind": "Widget", "listKind": ""},
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        }}));
        set_defaults(&mut definition);
        let names =
            json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"});
        assert_eq!(definition.at(&["spec", "names"]), Some(&names));
        let port = definition.at(&["spec", "conversion", "webhook", "clientConfig", "service", "port"]);
        assert_eq!(port, Some(&json!(443)));
        let mut other = object(json!({"spec": {"names": {"plural": "", "kind": ""}}}));
        set_defaults(&mut other);
        assert_eq!(
            other.at(&["spec"]),
            Some(&json!({"names": {"plural": "", "kind": ""}, "conversion": {"strategy": "None"}}))
        );
    }

    #[test]
    fn storage_version_is_recorded_once() {
        let versions = json!([{"name": "v1"}, {"name": "v2", "storage": true}]);
        let mut definition =
            object(json!({"spec": {"versions": versions}, "status": {"storedVersions": ["v1"]}}));
        record_stored_version(&mut definition);
        record_stored_version(&mut definition);
        set_defaults(&mut definition);
        assert_eq!(definition.at(&["status", "storedVersions"]), Some(&json!(["v1", "v2"])));
        let mut empty =
            object(json!({"spec": {"versions": [{"name": "v2", "storage": true}]}, "status": {}}));
        set_defaults(&mut empty);
        assert_eq!(empty.at(&["status", "storedVersions"]), Some(&json!(["v2"])));
    }
}
