//! Schemas of types, generated from the schema facts in the syntax of either OpenAPI version.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::names::{Names, SchemaExtension};
use schema::facts::{self, Field, Shape};
use serde_json::{Map, Value, json};

use super::kinds::{CUSTOM, Kinds};
use super::operations::Operation;
use super::type_names::{PATCH, WATCH_EVENT};
use super::{OpenApiVersion, custom, descriptions};

/// The type names of the metadata of objects and of lists.
const OBJECT_META: &str = "meta/v1.ObjectMeta";
const LIST_META: &str = "meta/v1.ListMeta";

/// Returns the type of the items of the list of a custom kind.
fn list_item(type_name: &str) -> &str {
    type_name.strip_suffix("List").unwrap_or(type_name)
}

/// Generator of schemas in one OpenAPI version.
pub(super) struct Types<'a> {
    pub(super) openapi_version: OpenApiVersion,
    pub(super) names: &'a Names,
    pub(super) kinds: &'a Kinds,
}

impl Types<'_> {
    /// Returns the names of types and of all types that they refer to, by the names of their definitions.
    pub(super) fn closure(&self, roots: impl IntoIterator<Item = String>) -> BTreeMap<String, String> {
        let mut pending: Vec<String> = roots.into_iter().collect();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        while let Some(type_name) = pending.pop() {
            if !seen.contains(&type_name) {
                self.refer(&type_name, &mut |referred| pending.push(referred.to_owned()));
                seen.insert(type_name);
            }
        }
        seen.into_iter().map(|type_name| (self.definition_name(&type_name), type_name)).collect()
    }

    /// Returns the definition of a type.
    pub(super) fn definition_of(&self, type_name: &str) -> Value {
        self.definition(type_name, &mut |_| {})
    }

    /// Calls `refer` for each type that the definition of a type refers to. Does not build the definition of a
    /// custom kind, which may be large.
    fn refer(&self, type_name: &str, refer: &mut dyn FnMut(&str)) {
        if !type_name.starts_with(CUSTOM) {
            drop(self.definition(type_name, refer));
        } else if self.kinds.custom(type_name).is_some() {
            refer(OBJECT_META);
        } else {
            refer(LIST_META);
            refer(list_item(type_name));
        }
    }

    /// Returns the definition name of a type: `io.k8s.api.core.v1.ConfigMap` for `core/v1.ConfigMap`.
    fn definition_name(&self, type_name: &str) -> String {
        if let Some((group, rest)) = type_name.strip_prefix(CUSTOM).and_then(|name| name.split_once('/')) {
            let domain: Vec<&str> = group.rsplit('.').collect();
            return format!("{}.{}", domain.join("."), rest.replace('/', "."));
        }
        match type_name.split_once('.') {
            Some((package, name)) => self.names.definition(package, name),
            None => {
                let package = match type_name {
                    "Quantity" => "resource",
                    "IntOrString" => "intstr",
                    "RawExtension" => "runtime",
                    _ => "meta/v1",
                };
                self.names.definition(package, type_name)
            }
        }
    }

    /// Returns the schema that refers to the definition of a type by `$ref`.
    pub(super) fn reference(&self, type_name: &str) -> Value {
        let prefix = self.openapi_version.definition_prefix();
        json!({"$ref": format!("{prefix}{}", self.definition_name(type_name))})
    }

    /// Returns the schema of the response of an operation.
    pub(super) fn response(&self, operation: &Operation) -> Value {
        match &operation.response {
            Some(type_name) => self.reference(type_name),
            None => json!({"type": "string"}),
        }
    }

    fn extension(&self, name: &str) -> String {
        format!("{}{name}", self.names.extension_prefix)
    }

    /// Returns the schema of a type. Calls `refer` for each type that the schema refers to.
    fn definition(&self, type_name: &str, refer: &mut dyn FnMut(&str)) -> Value {
        let schema = match type_name {
            "Time" | "MicroTime" => object(json!({"type": "string", "format": "date-time"})),
            "Quantity" if self.openapi_version == OpenApiVersion::V2 => object(json!({"type": "string"})),
            "Quantity" => object(json!({"oneOf": [{"type": "string"}, {"type": "number"}]})),
            "IntOrString" if self.openapi_version == OpenApiVersion::V2 => {
                object(json!({"type": "string", "format": "int-or-string"}))
            }
            "IntOrString" => {
                object(json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}))
            }
            "RawExtension" | "FieldsV1" | PATCH => object(json!({"type": "object"})),
            WATCH_EVENT => {
                refer("RawExtension");
                object(json!({
                    "type": "object",
                    "properties": {"type": {"type": "string"}, "object": self.reference("RawExtension")},
                    "required": ["type", "object"],
                }))
            }
            _ if type_name.starts_with(CUSTOM) => {
                let (schema, has_description) = self.custom_schema(type_name, refer);
                return self.with_kinds(type_name, schema, has_description);
            }
            // The schema of a value that can have several JSON types has no `type`. Such a value is any JSON,
            // or a JSON schema that may be a boolean or an array.
            _ if self.is_any(type_name) => Map::new(),
            _ => self.object_schema(type_name, refer),
        };
        self.with_kinds(type_name, schema, false)
    }

    fn with_kinds(&self, type_name: &str, mut schema: Map<String, Value>, has_description: bool) -> Value {
        if let Some(text) = self.kinds.describe(type_name).filter(|_| !has_description) {
            schema.insert("description".into(), text.into());
        }
        if let Some(kinds) = self.kinds.of_type(type_name) {
            schema.insert(
                self.extension("group-version-kind"),
                kinds.iter().map(|kind| kind.to_value()).collect(),
            );
        }
        Value::Object(schema)
    }

    /// Returns the schema of a custom kind or of its list, and whether it has its own description.
    fn custom_schema(&self, type_name: &str, refer: &mut dyn FnMut(&str)) -> (Map<String, Value>, bool) {
        let text = json!({"type": "string"});
        let custom = self.kinds.custom(type_name);
        if let Some((kind, schema)) = custom.and_then(|kind| Some((kind, kind.schema.definition()?))) {
            let mut schema = object(schema.to_document());
            let is_v2 = self.openapi_version == OpenApiVersion::V2;
            let selectable_fields = kind.fields.names.iter().map(|path| json!({"fieldPath": path}));
            let selectable_fields: Vec<Value> = selectable_fields.collect();
            if is_v2 && custom::preserves_unknown(&schema, self.names) {
                // kubectl takes the properties of an object for all its properties.
                schema = object(json!({"type": "object"}));
                self.add_selectable_fields(&mut schema, selectable_fields);
                return (schema, false);
            }
            if is_v2 {
                custom::simplify(&mut schema, self.names);
            }
            let metadata = self.reference_of_field(OBJECT_META);
            custom::add_embedded_fields(&mut schema, self.names, is_v2, &metadata);
            refer(OBJECT_META);
            let mut properties = match schema.remove("properties") {
                Some(Value::Object(properties)) => properties,
                _ => Map::new(),
            };
            properties.insert("apiVersion".into(), text.clone());
            properties.insert("kind".into(), text);
            properties.insert("metadata".into(), metadata);
            schema.insert("properties".into(), Value::Object(properties));
            schema.insert("type".into(), "object".into());
            self.add_selectable_fields(&mut schema, selectable_fields);
            let has_description = schema.contains_key("description");
            return (schema, has_description);
        }
        let item = list_item(type_name);
        refer(LIST_META);
        refer(item);
        let schema = json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": text,
                "kind": text,
                "metadata": self.reference_of_field(LIST_META),
                "items": {"type": "array", "items": self.reference(item)},
            },
        });
        (object(schema), false)
    }

    fn add_selectable_fields(&self, schema: &mut Map<String, Value>, fields: Vec<Value>) {
        if !fields.is_empty() {
            schema.insert(self.extension("selectable-fields"), fields.into());
        }
    }

    /// Returns the schema of a field that refers to a type. In OpenAPI 3.0 a `$ref` has no members beside it,
    /// so the reference is in `allOf`.
    fn reference_of_field(&self, type_name: &str) -> Value {
        match self.openapi_version {
            OpenApiVersion::V2 => self.reference(type_name),
            OpenApiVersion::V3 => json!({"allOf": [self.reference(type_name)]}),
        }
    }

    fn is_any(&self, type_name: &str) -> bool {
        let name = type_name.split_once('.').map_or(type_name, |(_, name)| name);
        name == "JSON" || name.starts_with("JSONSchemaPropsOr") || name == "interface{}"
    }

    fn object_schema(&self, type_name: &str, refer: &mut dyn FnMut(&str)) -> Map<String, Value> {
        let fields = facts::fields(type_name).unwrap_or_default();
        let mut properties = Map::new();
        let mut required: Vec<&str> = Vec::new();
        for field in &fields {
            let name = self.served_name(type_name, field.name);
            properties.insert(name.to_owned(), self.field(type_name, field, refer));
            if field.required {
                required.push(name);
            }
        }
        let mut schema = object(json!({"type": "object"}));
        if !properties.is_empty() {
            schema.insert("properties".into(), Value::Object(properties));
        }
        if !required.is_empty() {
            schema.insert("required".into(), json!(required));
        }
        if facts::is_atomic(type_name) {
            schema.insert(self.extension("map-type"), "atomic".into());
        }
        schema
    }

    /// Returns the name of a field in requests and responses, which depends on the names preset.
    fn served_name(&self, type_name: &str, field: &'static str) -> &'static str {
        let extension = SchemaExtension::ALL.into_iter().find(|extension| extension.stored_name() == field);
        match extension {
            Some(extension) if type_name.ends_with(".JSONSchemaProps") => {
                self.names.schema_extension(extension)
            }
            _ => field,
        }
    }

    fn field(&self, type_name: &str, field: &Field, refer: &mut dyn FnMut(&str)) -> Value {
        let mut facts = Map::new();
        if let Some(text) = describe(type_name, field) {
            facts.insert("description".into(), text.into());
        }
        if self.openapi_version == OpenApiVersion::V3 {
            let default = field.default.as_ref().and_then(|text| serde_json::from_str(text).ok());
            if let Some(default) = default.or_else(|| zero(&field.shape, field.omitted)) {
                facts.insert("default".into(), default);
            }
        }
        if !field.keys.is_empty() {
            facts.insert(self.extension("list-map-keys"), json!(field.keys));
        }
        for (name, value) in [
            ("list-type", field.list),
            ("map-type", field.map),
            ("patch-strategy", field.patch),
            ("patch-merge-key", field.merge_key),
        ] {
            if let Some(value) = value {
                facts.insert(self.extension(name), value.into());
            }
        }
        self.shape(&field.shape, facts, refer)
    }

    /// Returns the schema of a value. `facts` are further members of the schema, such as `description`.
    fn shape(&self, shape: &Shape, mut facts: Map<String, Value>, refer: &mut dyn FnMut(&str)) -> Value {
        let set_type = |facts: &mut Map<String, Value>, ty: &str, format: Option<&str>| {
            facts.insert("type".into(), ty.into());
            if let Some(format) = format {
                facts.insert("format".into(), format.into());
            }
        };
        match shape {
            Shape::String(name) => {
                set_type(&mut facts, "string", None);
                if let Some(values) = facts::values(name) {
                    let mut values: Vec<&str> = values.collect();
                    values.sort_unstable();
                    facts.insert("enum".into(), json!(values));
                }
            }
            Shape::Bool => set_type(&mut facts, "boolean", None),
            Shape::Int32 => set_type(&mut facts, "integer", Some("int32")),
            Shape::Int64 => set_type(&mut facts, "integer", Some("int64")),
            Shape::Float64 => set_type(&mut facts, "number", Some("double")),
            Shape::Bytes => set_type(&mut facts, "string", Some("byte")),
            Shape::Named(type_name) => {
                refer(type_name);
                let reference = self.reference(type_name);
                if facts.is_empty() {
                    return reference;
                }
                // OpenAPI 3.0 ignores members beside `$ref`.
                match (self.openapi_version, reference) {
                    (OpenApiVersion::V2, Value::Object(reference)) => facts.extend(reference),
                    (_, reference) => drop(facts.insert("allOf".into(), json!([reference]))),
                }
            }
            Shape::Pointer(inner) => return self.shape(inner, facts, refer),
            Shape::List(inner) => {
                set_type(&mut facts, "array", None);
                facts.insert("items".into(), self.element(inner, refer));
            }
            Shape::Map(inner) => {
                set_type(&mut facts, "object", None);
                facts.insert("additionalProperties".into(), self.element(inner, refer));
            }
        }
        Value::Object(facts)
    }

    /// Returns the schema of the entries of a list or map.
    fn element(&self, shape: &Shape, refer: &mut dyn FnMut(&str)) -> Value {
        let mut facts = Map::new();
        if self.openapi_version == OpenApiVersion::V3
            && let Some(zero) = zero(shape, false)
        {
            facts.insert("default".into(), zero);
        }
        self.shape(shape, facts, refer)
    }
}

/// Returns the zero value of a type as the default of a value that is always present; None for other values.
///
/// `omitted`: an empty value is not encoded, so the value is not always present. A struct counts as always
/// present. A type that can be any JSON has no default.
fn zero(shape: &Shape, omitted: bool) -> Option<Value> {
    match shape {
        Shape::Named(type_name) => {
            let name = type_name.split_once('.').map(|(_, name)| name)?;
            (name != "JSON" && !name.starts_with("JSONSchemaPropsOr")).then(|| json!({}))
        }
        _ if omitted => None,
        Shape::String(_) => Some(json!("")),
        Shape::Bool => Some(json!(false)),
        Shape::Int32 | Shape::Int64 | Shape::Float64 => Some(json!(0)),
        _ => None,
    }
}

/// Returns the description of a field: the text of `descriptions.txt` or a general text for the field name,
/// then sentences about list and map types.
fn describe(type_name: &str, field: &Field) -> Option<String> {
    let mut sentences: Vec<String> = Vec::new();
    let general = match (field.name, field.shape.target()) {
        ("apiVersion", Shape::String("string")) => "Group and version of the kind.",
        ("kind", Shape::String("string")) => "Name of the kind.",
        ("metadata", Shape::Named("meta/v1.ObjectMeta")) => "Standard object metadata.",
        ("metadata", Shape::Named("meta/v1.ListMeta")) => "Standard list metadata.",
        ("spec", Shape::Named(_)) => "Desired state.",
        ("status", Shape::Named(_)) => "Observed state.",
        _ => "",
    };
    let general = descriptions::of_field(type_name, field.name).unwrap_or(general);
    if !general.is_empty() {
        sentences.push(general.to_owned());
    }
    match field.list {
        Some("map") => {
            sentences.push(format!(
                "Map list with the key `{}`; fields of each entry have their own managers.",
                field.keys.join("`, `")
            ));
        }
        Some("set") => sentences.push("Set of unique values, each with its own managers.".to_owned()),
        Some(_) => sentences.push("Atomic: replaced as a whole.".to_owned()),
        None => {}
    }
    match field.map {
        Some("atomic") => sentences.push("Atomic: replaced as a whole.".to_owned()),
        Some(_) => sentences.push("Each key has its own managers.".to_owned()),
        None => {}
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Returns the members of a JSON object; empty for another value.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
