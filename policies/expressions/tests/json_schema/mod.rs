//! JSON schemas for test tables.

use expressions::{ListKind, Schema, SchemaType};
use serde_json::Value as Json;

/// A schema with extensions that have a prefix such as `x-svc`.
#[derive(Debug)]
pub(crate) struct JsonSchema {
    own: Json,
    prefix: String,
    embedded: bool,
    properties: Vec<(String, JsonSchema)>,
    additional: Option<Box<JsonSchema>>,
    items: Option<Box<JsonSchema>>,
}

impl JsonSchema {
    /// Wraps a schema. `root` is true for the schema of a whole object of a kind, which counts as an embedded
    /// object.
    pub(crate) fn new(own: &Json, prefix: &str, root: bool) -> JsonSchema {
        let object = |name: &str| own.get(name).filter(|part| part.is_object());
        let part = |name: &str| object(name).map(|part| Box::new(Self::new(part, prefix, false)));
        let flag = |name: &str| own.get(format!("{prefix}-{name}")).and_then(Json::as_bool).unwrap_or(false);
        let properties = object("properties").and_then(Json::as_object).into_iter().flatten();
        JsonSchema {
            prefix: prefix.to_owned(),
            embedded: root || flag("embedded-resource") || flag("embedded-type"),
            properties: properties
                .map(|(name, own)| (name.clone(), JsonSchema::new(own, prefix, false)))
                .collect(),
            additional: part("additionalProperties"),
            items: part("items"),
            own: own.clone(),
        }
    }

    fn extension(&self, name: &str) -> Option<&Json> {
        self.own.get(format!("{}-{name}", self.prefix))
    }
}

impl Schema for JsonSchema {
    fn schema_type(&self) -> SchemaType {
        if self.extension("int-or-string").and_then(Json::as_bool).unwrap_or(false) {
            return SchemaType::IntOrString;
        }
        match self.own.get("type").and_then(Json::as_str) {
            Some("object") => SchemaType::Object,
            Some("array") => SchemaType::Array,
            Some("string") => SchemaType::String,
            Some("integer") => SchemaType::Integer,
            Some("number") => SchemaType::Number,
            Some("boolean") => SchemaType::Boolean,
            _ => SchemaType::Unspecified,
        }
    }

    fn format(&self) -> Option<&str> {
        self.own.get("format").and_then(Json::as_str)
    }

    fn properties(&self) -> Vec<(&str, &dyn Schema)> {
        self.properties.iter().map(|(name, schema)| (name.as_str(), schema as &dyn Schema)).collect()
    }

    fn additional_properties(&self) -> Option<&dyn Schema> {
        self.additional.as_deref().map(|schema| schema as &dyn Schema)
    }

    fn items(&self) -> Option<&dyn Schema> {
        self.items.as_deref().map(|schema| schema as &dyn Schema)
    }

    fn list_kind(&self) -> ListKind {
        match self.extension("list-type").and_then(Json::as_str) {
            Some("set") => ListKind::Set,
            Some("map") => {
                let keys = self.extension("list-map-keys").and_then(Json::as_array);
                ListKind::Map(
                    keys.into_iter().flatten().filter_map(Json::as_str).map(str::to_owned).collect(),
                )
            }
            _ => ListKind::Atomic,
        }
    }

    fn embedded(&self) -> bool {
        self.embedded
    }

    fn max_length(&self) -> Option<u64> {
        self.own.get("maxLength").and_then(Json::as_u64)
    }

    fn max_items(&self) -> Option<u64> {
        self.own.get("maxItems").and_then(Json::as_u64)
    }

    fn max_properties(&self) -> Option<u64> {
        self.own.get("maxProperties").and_then(Json::as_u64)
    }

    fn longest_enum(&self) -> Option<u64> {
        let values = self.own.get("enum").and_then(Json::as_array)?;
        values.iter().filter_map(Json::as_str).map(|text| text.len() as u64).max()
    }

    fn requires(&self, property: &str) -> bool {
        let required = self.own.get("required").and_then(Json::as_array);
        required.into_iter().flatten().any(|name| name.as_str() == Some(property))
    }

    fn has_default(&self) -> bool {
        self.own.get("default").is_some()
    }
}
