//! Conversion of OpenAPI 2 JSON to Protobuf messages.
//!
//! # Invariants
//!
//! INVARIANT (equal documents): the message contains everything in the JSON; a test converts it back.

use serde_json::{Map, Value};

use super::gnostic::{
    AdditionalProperties, Any, AnyParameter, ApiKey, BodyParameter, Definitions, Info, ItemsItem,
    JsonReference, NamedAny, NamedParameter, NamedPathItem, NamedResponseValue, NamedSchema,
    NamedSecurityDefinition, NamedStringArray, NonBodyParameter, Operation, Parameter, ParameterDefinitions,
    ParameterOrReference, ParameterSubSchema, ParametersItem, PathItem, PathParameter, QueryParameter,
    Response, ResponseValue, Responses, Schema, SchemaItem, SecurityDefinition, SecurityDefinitions,
    SecurityRequirement, TypeItem,
};

pub(super) fn info(info: &Value) -> Info {
    Info { title: text(info, "title"), version: text(info, "version") }
}

pub(super) fn security(list: &Value) -> Vec<SecurityRequirement> {
    let entries = list.as_array().into_iter().flatten();
    entries
        .map(|entry| SecurityRequirement {
            additional_properties: members(entry)
                .map(|(name, scopes)| NamedStringArray {
                    name: name.clone(),
                    value: Some(TypeItem { value: strings(scopes) }),
                })
                .collect(),
        })
        .collect()
}

pub(super) fn security_definitions(name: &str, scheme: &Value) -> SecurityDefinitions {
    let api_key = ApiKey {
        ty: text(scheme, "type"),
        name: text(scheme, "name"),
        place: text(scheme, "in"),
        description: text(scheme, "description"),
    };
    SecurityDefinitions {
        additional_properties: vec![NamedSecurityDefinition {
            name: name.to_owned(),
            value: Some(SecurityDefinition { api_key: Some(api_key) }),
        }],
    }
}

pub(super) fn parameters(parameters: &Value) -> ParameterDefinitions {
    let named_parameter = |(name, value): (&String, &Value)| NamedParameter {
        name: name.clone(),
        value: Some(parameter(value)),
    };
    ParameterDefinitions { additional_properties: members(parameters).map(named_parameter).collect() }
}

pub(super) fn path_item(path: &str, item: &Value) -> NamedPathItem {
    let method_operation = |method: &str| item.get(method).map(operation);
    let value = PathItem {
        get: method_operation("get"),
        put: method_operation("put"),
        post: method_operation("post"),
        delete: method_operation("delete"),
        options: method_operation("options"),
        head: method_operation("head"),
        patch: method_operation("patch"),
        parameters: parameter_items(item),
    };
    NamedPathItem { name: path.to_owned(), value: Some(value) }
}

fn operation(value: &Value) -> Operation {
    let responses = value.get("responses").into_iter().flat_map(members).map(|(code, response)| {
        let schema = response.get("schema").map(|value| SchemaItem { schema: Some(schema(value)) });
        let response = Response { description: text(response, "description"), schema };
        NamedResponseValue { name: code.clone(), value: Some(ResponseValue { response: Some(response) }) }
    });
    let list = |name: &str| value.get(name).map(strings).unwrap_or_default();
    Operation {
        tags: list("tags"),
        description: text(value, "description"),
        operation_id: text(value, "operationId"),
        produces: list("produces"),
        consumes: list("consumes"),
        parameters: parameter_items(value),
        responses: Some(Responses { response_code: responses.collect() }),
        schemes: list("schemes"),
        deprecated: value.get("deprecated").is_some(),
        vendor_extension: extensions(value),
    }
}

fn parameter_items(parent: &Value) -> Vec<ParametersItem> {
    let list = parent.get("parameters").and_then(Value::as_array).into_iter().flatten();
    list.map(|value| {
        let item = if value.get("$ref").is_some() {
            ParameterOrReference::Reference(JsonReference { reference: text(value, "$ref") })
        } else {
            ParameterOrReference::Parameter(parameter(value))
        };
        ParametersItem { oneof: Some(item) }
    })
    .collect()
}

fn parameter(value: &Value) -> Parameter {
    let place = text(value, "in");
    let (name, description) = (text(value, "name"), text(value, "description"));
    let (ty, unique_items) = (text(value, "type"), value.get("uniqueItems").is_some());
    let required = value.get("required").is_some();
    let non_body = |parameter| AnyParameter::NonBody(NonBodyParameter { oneof: Some(parameter) });
    let parameter = match place.as_str() {
        "body" => AnyParameter::Body(BodyParameter {
            name,
            place,
            required,
            schema: value.get("schema").map(|value| Box::new(schema(value))),
        }),
        "path" => non_body(ParameterSubSchema::Path(PathParameter {
            required,
            place,
            description,
            name,
            ty,
            unique_items,
        })),
        _ => {
            non_body(ParameterSubSchema::Query(QueryParameter { place, description, name, ty, unique_items }))
        }
    };
    Parameter { oneof: Some(parameter) }
}

pub(super) fn named_schema(name: &str, value: &Value) -> NamedSchema {
    NamedSchema { name: name.to_owned(), value: Some(schema(value)) }
}

fn schema(value: &Value) -> Schema {
    let list = |name: &str| value.get(name).map(strings).unwrap_or_default();
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        description: text(value, "description"),
        required: list("required"),
        enumeration: value.get("enum").and_then(Value::as_array).into_iter().flatten().map(any).collect(),
        additional_properties: value
            .get("additionalProperties")
            .map(|value| Box::new(AdditionalProperties { schema: Some(Box::new(schema(value))) })),
        ty: value.get("type").map(|ty| TypeItem { value: vec![ty.as_str().unwrap_or_default().to_owned()] }),
        items: value.get("items").map(|value| ItemsItem { schema: vec![schema(value)] }),
        properties: value.get("properties").map(|properties| Definitions {
            additional_properties: members(properties)
                .map(|(name, value)| named_schema(name, value))
                .collect(),
        }),
        vendor_extension: extensions(value),
    }
}

/// Returns the members whose names start with `x-`.
fn extensions(value: &Value) -> Vec<NamedAny> {
    let members = members(value).filter(|(name, _)| name.starts_with("x-"));
    members.map(|(name, value)| NamedAny { name: name.clone(), value: Some(any(value)) }).collect()
}

/// Encodes a value as YAML; JSON is valid YAML.
fn any(value: &Value) -> Any {
    Any { yaml: format!("{value}\n") }
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
