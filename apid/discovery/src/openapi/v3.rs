//! The OpenAPI 3 document of one group version.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::operations::{self, Operation, Path};
use super::parameters;
use super::types::Types;
use super::{GroupVersionResources, OpenApi, OpenApiVersion, add_results, security_scheme};

/// Builds the document of a group version.
pub(super) fn document(api: &OpenApi, group_version: &GroupVersionResources) -> Value {
    let types = Types { openapi_version: OpenApiVersion::V3, names: &api.names, kinds: api.kinds() };
    let mut paths = Map::new();
    let mut roots: BTreeSet<String> = BTreeSet::new();
    for resource in &group_version.resources {
        let resource_paths = operations::paths(resource, &group_version.version, &api.names);
        roots.extend(operations::types(&resource_paths).map(str::to_owned));
        let tag = operations::tag(resource, &group_version.version);
        for path in resource_paths {
            let value = item(&path, &types, &tag);
            paths.insert(path.path, value);
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": api.info(),
        "paths": paths,
        "components": {
            "schemas": types.definitions(roots.iter().map(String::as_str)),
            "securitySchemes": {"BearerToken": security_scheme()},
        },
    })
}

fn item(path: &Path, types: &Types<'_>, tag: &str) -> Value {
    let mut item = Map::new();
    for operation in &path.operations {
        item.insert(operation.method.to_owned(), operation_value(operation, types, tag));
    }
    let parameters: Vec<Value> = path.parameters.iter().map(|p| p.to_value(OpenApiVersion::V3)).collect();
    item.insert("parameters".into(), Value::Array(parameters));
    Value::Object(item)
}

fn operation_value(operation: &Operation, types: &Types<'_>, tag: &str) -> Value {
    let mut value = Map::new();
    value.insert("tags".into(), json!([tag]));
    value.insert("description".into(), operation.description.as_str().into());
    value.insert("operationId".into(), operation.id.as_str().into());
    let general = operation.general.iter().filter_map(|name| parameters::general(name));
    let parameters: Vec<Value> =
        general.chain(operation.specific.iter().cloned()).map(|p| p.to_value(OpenApiVersion::V3)).collect();
    if !parameters.is_empty() {
        value.insert("parameters".into(), Value::Array(parameters));
    }
    if let Some((type_name, required)) = &operation.body {
        let media_types = if operation.consumes.is_empty() { &["*/*"] } else { operation.consumes };
        let mut body = Map::new();
        body.insert("content".into(), content(media_types, &types.reference(type_name)));
        if *required {
            body.insert("required".into(), true.into());
        }
        value.insert("requestBody".into(), Value::Object(body));
    }
    let content = content(&operation.produces, &types.response(operation));
    add_results(operation, types.names, ("content", &content), &mut value);
    Value::Object(value)
}

fn content<T: AsRef<str>>(media_types: &[T], schema: &Value) -> Value {
    let content = |media_type: &T| (media_type.as_ref().to_owned(), json!({"schema": schema}));
    media_types.iter().map(content).collect()
}
