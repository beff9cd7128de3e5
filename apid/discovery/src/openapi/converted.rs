//! OpenAPI 3 documents from the OpenAPI 2 documents of servers without OpenAPI 3.
//!
//! # Contract
//!
//! [`document`] converts the paths of one API version, and the definitions that they refer to. The names of definitions
//! stay. Each version has its own document, so that models of several servers do not collide.
//!
//! # Reference
//!
//! `ConvertV2ToV3` of kube-openapi, which kube-aggregator uses for such servers. The body is the parameter with the
//! name `body` and a schema. An operation without a list of media types has none.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::remote::{DEFINITIONS, RemoteSpec, referenced_definitions, visit_references};

const SCHEMAS: &str = "#/components/schemas/";
/// The fields of a parameter in OpenAPI 3, besides its schema and extensions.
const PARAMETER_FIELDS: [&str; 5] = ["name", "in", "description", "required", "allowEmptyValue"];
/// The fields of an operation that both versions have.
const OPERATION_FIELDS: [&str; 5] = ["tags", "summary", "description", "operationId", "deprecated"];
/// The methods of a path item.
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

/// Returns the OpenAPI 3 document of an API version; None if the OpenAPI 2 document has no path of the version. `path`:
/// `apis/<group>/<version>`.
pub(super) fn document(spec: &RemoteSpec, path: &str) -> Option<Value> {
    let prefix = format!("/{path}/");
    let is_of_version =
        |known: &String| known.starts_with(&prefix) || known.trim_end_matches('/') == format!("/{path}");
    let paths: BTreeMap<&String, &Value> =
        spec.paths.iter().filter(|(known, _)| is_of_version(known)).collect();
    if paths.is_empty() {
        return None;
    }
    let definitions = referenced_definitions(paths.values().copied(), |name| spec.definitions.get(name));
    let schemas: Map<String, Value> =
        definitions.into_iter().map(|(name, definition)| (name, schema(definition))).collect();
    let paths: Map<String, Value> =
        paths.into_iter().map(|(path, item)| (path.clone(), path_item(item))).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": spec.info,
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// Returns a schema with references to the components of the document.
fn schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    visit_references(&mut schema, &mut |reference| {
        if let Some(name) = reference.strip_prefix(DEFINITIONS) {
            *reference = format!("{SCHEMAS}{name}");
        }
    });
    schema
}

fn extensions(value: &Value) -> impl Iterator<Item = (String, Value)> {
    let fields = value.as_object().into_iter().flatten();
    fields.filter(|(name, _)| name.starts_with("x-")).map(|(name, value)| (name.clone(), value.clone()))
}

fn fields<'a>(value: &'a Value, names: &'a [&str]) -> impl Iterator<Item = (String, Value)> + 'a {
    names.iter().filter_map(|name| Some(((*name).to_owned(), value.get(name)?.clone())))
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn path_item(item: &Value) -> Value {
    let mut converted: Map<String, Value> = extensions(item).collect();
    for method in METHODS {
        if let Some(found) = item.get(method) {
            converted.insert(method.to_owned(), operation(found));
        }
    }
    let parameters: Vec<Value> = list(item, "parameters").map(parameter).collect();
    if !parameters.is_empty() {
        converted.insert("parameters".to_owned(), parameters.into());
    }
    Value::Object(converted)
}

fn operation(operation: &Value) -> Value {
    let mut converted: Map<String, Value> =
        fields(operation, &OPERATION_FIELDS).chain(extensions(operation)).collect();
    let mut parameters = Vec::new();
    for found in list(operation, "parameters") {
        match found.get("schema").filter(|_| found.get("name").and_then(Value::as_str) == Some("body")) {
            Some(body) => {
                let mut request: Map<String, Value> = fields(found, &["description", "required"]).collect();
                request.insert("content".to_owned(), content(operation, "consumes", body));
                converted.insert("requestBody".to_owned(), Value::Object(request));
            }
            None => parameters.push(parameter(found)),
        }
    }
    if !parameters.is_empty() {
        converted.insert("parameters".to_owned(), parameters.into());
    }
    let responses = operation.get("responses").and_then(Value::as_object).into_iter().flatten();
    let responses: Map<String, Value> =
        responses.map(|(code, found)| (code.clone(), response(found, operation))).collect();
    converted.insert("responses".to_owned(), Value::Object(responses));
    Value::Object(converted)
}

/// Returns a schema by each media type of a list of the operation.
fn content(operation: &Value, media_types: &str, found: &Value) -> Value {
    let media_types = list(operation, media_types).filter_map(Value::as_str);
    media_types.map(|media_type| (media_type.to_owned(), json!({"schema": schema(found)}))).collect()
}

fn response(response: &Value, operation: &Value) -> Value {
    let mut converted: Map<String, Value> =
        fields(response, &["description"]).chain(extensions(response)).collect();
    if let Some(found) = response.get("schema") {
        converted.insert("content".to_owned(), content(operation, "produces", found));
    }
    Value::Object(converted)
}

/// Converts a parameter: the fields of its value become a schema.
fn parameter(parameter: &Value) -> Value {
    let mut converted: Map<String, Value> =
        fields(parameter, &PARAMETER_FIELDS).chain(extensions(parameter)).collect();
    let found = match parameter.get("schema") {
        Some(found) => schema(found),
        None => {
            let is_of_value = |name: &str| {
                !PARAMETER_FIELDS.contains(&name) && name != "collectionFormat" && !name.starts_with("x-")
            };
            let fields = parameter.as_object().into_iter().flatten();
            let of_value = fields.filter(|(name, _)| is_of_value(name));
            of_value.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
    };
    converted.insert("schema".to_owned(), found);
    Value::Object(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_2_becomes_openapi_3_with_its_models() {
        let gvk = json!([{"group": "e.com", "version": "v1", "kind": "Flavor"}]);
        let document_2 = json!({
            "swagger": "2.0",
            "info": {"title": "flavors", "version": "v0"},
            "paths": {
                "/apis/e.com/v1/flavors/{name}": {
                    "parameters": [{"name": "name", "in": "path", "required": true, "type": "string", "uniqueItems": true}],
                    "put": {
                        "operationId": "replaceFlavor", "description": "replace", "schemes": ["https"],
                        "consumes": ["*/*"], "produces": ["application/json", "application/yaml"],
                        "parameters": [
                            {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/Flavor"}},
                            {"name": "dryRun", "in": "query", "description": "no write", "type": "string"},
                        ],
                        "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Flavor"}},
                            "401": {"description": "Unauthorized"}},
                        "x-kubernetes-action": "put",
                    },
                },
                "/apis/e.com/v2/flavors": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Other"}}}}},
            },
            "definitions": {
                "Flavor": {"type": "object", "x-kubernetes-group-version-kind": gvk,
                    "properties": {"colors": {"type": "array", "items": {"$ref": "#/definitions/Color"}}}},
                "Color": {"type": "string"},
                "Other": {"type": "object"},
            },
        });
        let spec = RemoteSpec::read(&document_2, "e.com").unwrap();
        let flavor = json!({"schema": {"$ref": "#/components/schemas/Flavor"}});
        let expected = json!({
            "openapi": "3.0.0",
            "info": {"title": "flavors", "version": "v0"},
            "paths": {
                "/apis/e.com/v1/flavors/{name}": {
                    "parameters": [{"name": "name", "in": "path", "required": true,
                        "schema": {"type": "string", "uniqueItems": true}}],
                    "put": {
                        "operationId": "replaceFlavor", "description": "replace",
                        "parameters": [{"name": "dryRun", "in": "query", "description": "no write",
                            "schema": {"type": "string"}}],
                        "requestBody": {"required": true, "content": {"*/*": flavor}},
                        "responses": {
                            "200": {"description": "OK",
                                "content": {"application/json": flavor, "application/yaml": flavor}},
                            "401": {"description": "Unauthorized"},
                        },
                        "x-kubernetes-action": "put",
                    },
                },
            },
            "components": {"schemas": {
                "Flavor": {"type": "object", "x-kubernetes-group-version-kind": gvk,
                    "properties": {"colors": {"type": "array", "items": {"$ref": "#/components/schemas/Color"}}}},
                "Color": {"type": "string"},
            }},
        });
        assert_eq!(document(&spec, "apis/e.com/v1"), Some(expected));
        assert_eq!(document(&spec, "apis/e.com/v3"), None);
    }
}
