//! Conversion of the Protobuf messages of an OpenAPI 2 document to JSON, for tests.

use serde_json::{Map, Value, json};

use crate::discovery::openapi::gnostic::{
    Any, AnyParameter, Definitions, Document, NamedAny, Operation, Parameter, ParameterOrReference,
    ParameterSubSchema, ParametersItem, Schema,
};

/// Returns an object without its empty members.
fn without_empty_members(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    Value::Object(map.into_iter().filter(|(_, value)| !is_empty(value)).collect())
}

fn any(any: &Any) -> Value {
    serde_json::from_str(&any.yaml).unwrap()
}

fn extend(value: &mut Value, extensions: &[NamedAny]) {
    for extension in extensions {
        value[&extension.name] = any(extension.value.as_ref().unwrap());
    }
}

pub(super) fn document(document: &Document) -> Value {
    let info = document.info.as_ref().unwrap();
    let paths = &document.paths.as_ref().unwrap().path;
    let security = document.security.iter().map(|requirement| {
        let named = requirement.additional_properties.iter();
        named.map(|named| (named.name.clone(), json!(named.value.as_ref().unwrap().value))).collect::<Value>()
    });
    let schemes = document.security_definitions.as_ref().unwrap().additional_properties.iter().map(|named| {
        let key = named.value.as_ref().unwrap().api_key.as_ref().unwrap();
        let value =
            json!({"type": key.ty, "name": key.name, "in": key.place, "description": key.description});
        (named.name.clone(), value)
    });
    let parameters = document.parameters.as_ref().unwrap().additional_properties.iter();
    json!({
        "swagger": document.swagger,
        "info": {"title": info.title, "version": info.version},
        "security": security.collect::<Value>(),
        "securityDefinitions": schemes.collect::<Value>(),
        "parameters":
            parameters.map(|named| (named.name.clone(), parameter(named.value.as_ref().unwrap()))).collect::<Value>(),
        "paths": paths.iter().map(|named| {
            let item = named.value.as_ref().unwrap();
            let mut map = Map::new();
            for (method, it) in [
                ("get", &item.get), ("put", &item.put), ("post", &item.post), ("delete", &item.delete),
                ("options", &item.options), ("head", &item.head), ("patch", &item.patch),
            ] {
                map.extend(it.as_ref().map(|it| (method.to_owned(), operation(it))));
            }
            map.insert("parameters".to_owned(), parameters_of(&item.parameters));
            (named.name.clone(), Value::Object(map))
        }).collect::<Value>(),
        "definitions": definitions(document.definitions.as_ref().unwrap()),
    })
}

fn operation(operation: &Operation) -> Value {
    let responses = operation.responses.as_ref().unwrap().response_code.iter().map(|named| {
        let response = named.value.as_ref().unwrap().response.as_ref().unwrap();
        let schema = response.schema.as_ref().map(|item| schema(item.schema.as_ref().unwrap()));
        (
            named.name.clone(),
            without_empty_members(json!({"description": response.description, "schema": schema})),
        )
    });
    let mut value = without_empty_members(json!({
        "tags": operation.tags, "description": operation.description, "operationId": operation.operation_id,
        "produces": operation.produces, "consumes": operation.consumes, "schemes": operation.schemes,
        "deprecated": operation.deprecated, "parameters": parameters_of(&operation.parameters),
        "responses": responses.collect::<Value>(),
    }));
    extend(&mut value, &operation.vendor_extension);
    value
}

fn parameters_of(items: &[ParametersItem]) -> Value {
    let value = |item: &ParametersItem| match item.oneof.as_ref().unwrap() {
        ParameterOrReference::Reference(reference) => json!({"$ref": reference.reference}),
        ParameterOrReference::Parameter(it) => parameter(it),
    };
    items.iter().map(value).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    without_empty_members(match parameter.oneof.as_ref().unwrap() {
        AnyParameter::Body(body) => json!({
            "name": body.name, "in": body.place, "required": body.required, "schema": schema(body.schema.as_ref().unwrap()),
        }),
        AnyParameter::NonBody(other) => match other.oneof.as_ref().unwrap() {
            ParameterSubSchema::Path(path) => json!({
                "name": path.name, "in": path.place, "required": path.required, "description": path.description,
                "type": path.ty, "uniqueItems": path.unique_items,
            }),
            ParameterSubSchema::Query(query) => json!({
                "name": query.name, "in": query.place, "description": query.description,
                "type": query.ty, "uniqueItems": query.unique_items,
            }),
        },
    })
}

fn definitions(definitions: &Definitions) -> Value {
    let all = definitions.additional_properties.iter();
    all.map(|named| (named.name.clone(), schema(named.value.as_ref().unwrap()))).collect()
}

fn schema(of: &Schema) -> Value {
    let mut value = without_empty_members(json!({
        "$ref": of.reference, "format": of.format, "description": of.description, "required": of.required,
        "enum": of.enumeration.iter().map(any).collect::<Vec<_>>(),
        "additionalProperties": of.additional_properties.as_ref().map(|it| schema(it.schema.as_ref().unwrap())),
        "type": of.ty.as_ref().map(|ty| ty.value[0].clone()),
        "items": of.items.as_ref().map(|items| schema(&items.schema[0])),
        "properties": of.properties.as_ref().map(definitions),
    }));
    extend(&mut value, &of.vendor_extension);
    value
}
