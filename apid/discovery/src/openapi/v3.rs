//! The OpenAPI 3 document of one group version.
//!
//! The document is written part by part, so its uncompressed text is never in memory as a whole.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::compressed_document::{CompressedDocument, DocumentCompressor, ObjectWriter};
use super::operations::{Operation, Path, SortedPaths};
use super::parameters;
use super::types::Types;
use super::{GroupVersionResources, OpenApi, OpenApiVersion, add_results, security_scheme};

/// Builds the document of a group version.
pub(super) fn document(
    api: &OpenApi,
    group_version: &GroupVersionResources,
) -> io::Result<CompressedDocument> {
    api.check_size(group_version.resources.iter().map(|resource| &**resource))?;
    let types = Types { openapi_version: OpenApiVersion::V3, names: &api.names, kinds: api.kinds() };
    let version = group_version.version.as_str();
    let resources = group_version.resources.iter().map(|resource| (&**resource, version));
    let paths = SortedPaths::new(resources, &api.names);
    let mut compressor = DocumentCompressor::new();
    write!(compressor, "{{\"openapi\":\"3.0.0\",\"info\":{},\"paths\":", api.info())?;
    let mut items = ObjectWriter::new(&mut compressor)?;
    paths.try_for_each(|path, tag| items.write(&path.path, &item(path, &types, tag)))?;
    items.finish()?;
    compressor.write_all(b",\"components\":{\"schemas\":")?;
    let mut schemas = ObjectWriter::new(&mut compressor)?;
    for (name, type_name) in types.closure(paths.types) {
        schemas.write(&name, &types.definition_of(&type_name))?;
    }
    schemas.finish()?;
    write!(compressor, ",\"securitySchemes\":{}}}}}", json!({"BearerToken": security_scheme()}))?;
    compressor.finish()
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
