//! The OpenAPI 2 document, which describes all group versions.
//!
//! # Contract
//!
//! The document is written part by part, as JSON or Protobuf, so its uncompressed text is never in memory as
//! a whole. It omits defaults, because OpenAPI 2 clients do not support a default beside a reference.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::compressed_document::{CompressedDocument, DocumentCompressor};
use super::operations::{self, Operation, Path};
use super::types::Types;
use super::{
    GroupVersionResources, OpenApi, OpenApiVersion, add_results, parameters, protobuf, security_scheme,
};

/// The `swagger` version of the document.
const VERSION: &str = "2.0";

/// A path and the tag of its operations.
struct TaggedPath {
    path: Path,
    tag: String,
}

fn paths(api: &OpenApi) -> BTreeMap<String, TaggedPath> {
    let mut paths = BTreeMap::new();
    for GroupVersionResources { version, resources } in api.group_versions().values() {
        for resource in resources {
            let tag = operations::tag(resource, version);
            for path in operations::paths(resource, version, &api.names) {
                paths.insert(path.path.clone(), TaggedPath { path, tag: tag.clone() });
            }
        }
    }
    paths
}

fn definitions(paths: &BTreeMap<String, TaggedPath>, types: &Types<'_>) -> BTreeMap<String, Value> {
    types.definitions(paths.values().flat_map(|tagged| operations::types([&tagged.path])))
}

fn types(api: &OpenApi) -> Types<'_> {
    Types { openapi_version: OpenApiVersion::V2, names: &api.names, kinds: api.kinds() }
}

/// Builds the document as JSON.
pub(super) fn json(api: &OpenApi) -> io::Result<CompressedDocument> {
    let types = types(api);
    let paths = paths(api);
    let mut compressor = DocumentCompressor::new();
    write!(
        compressor,
        "{{\"swagger\":\"{VERSION}\",\"info\":{},\"parameters\":{},\"security\":{},\"securityDefinitions\":{}",
        api.info(),
        general_parameters(),
        security(),
        json!({"BearerToken": security_scheme()}),
    )?;
    let items = paths.iter().map(|(name, tagged)| (name, item(tagged, &types)));
    write_member(&mut compressor, "paths", items)?;
    write_member(&mut compressor, "definitions", definitions(&paths, &types).iter())?;
    compressor.write_all(b"}")?;
    compressor.finish()
}

/// Writes a member of the document that is an object, entry by entry.
fn write_member<'n>(
    out: &mut impl Write,
    name: &str,
    entries: impl Iterator<Item = (&'n String, impl serde::Serialize)>,
) -> io::Result<()> {
    write!(out, ",\"{name}\":{{")?;
    for (i, (name, value)) in entries.enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        serde_json::to_writer(&mut *out, name)?;
        out.write_all(b":")?;
        serde_json::to_writer(&mut *out, &value)?;
    }
    out.write_all(b"}")
}

/// Builds the document as the Protobuf message `openapi.v2.Document` of gnostic.
pub(super) fn protobuf(api: &OpenApi) -> io::Result<CompressedDocument> {
    let types = types(api);
    let paths = paths(api);
    let mut compressor = DocumentCompressor::new();
    // A Protobuf decoder merges concatenated parts: fields, and entries of repeated fields.
    let mut write_part = |part: Value| compressor.write_all(&protobuf::encode(&part));
    write_part(json!({
        "swagger": VERSION,
        "info": api.info(),
        "parameters": general_parameters(),
        "security": security(),
        "securityDefinitions": {"BearerToken": security_scheme()},
    }))?;
    for (name, tagged) in &paths {
        write_part(json!({"paths": {name: item(tagged, &types)}}))?;
    }
    for (name, definition) in definitions(&paths, &types) {
        write_part(json!({"definitions": {name: definition}}))?;
    }
    compressor.finish()
}

fn security() -> Value {
    json!([{"BearerToken": []}])
}

/// Returns the general parameters by name, to which operations refer.
fn general_parameters() -> Value {
    let parameters = parameters::all_general();
    parameters.map(|parameter| (parameter.name.to_owned(), parameter.to_value(OpenApiVersion::V2))).collect()
}

fn item(tagged: &TaggedPath, types: &Types<'_>) -> Value {
    let mut item = Map::new();
    for operation in &tagged.path.operations {
        item.insert(operation.method.to_owned(), operation_value(operation, types, &tagged.tag));
    }
    let parameters =
        tagged.path.parameters.iter().map(|parameter| match parameters::general(parameter.name) {
            Some(general) if general == *parameter => reference(parameter.name),
            _ => parameter.to_value(OpenApiVersion::V2),
        });
    item.insert("parameters".into(), parameters.collect());
    Value::Object(item)
}

fn reference(parameter: &str) -> Value {
    json!({"$ref": format!("#/parameters/{parameter}")})
}

fn operation_value(operation: &Operation, types: &Types<'_>, tag: &str) -> Value {
    let mut value = Map::new();
    value.insert("tags".into(), json!([tag]));
    value.insert("description".into(), operation.description.as_str().into());
    value.insert("operationId".into(), operation.id.as_str().into());
    value.insert("schemes".into(), json!(["https"]));
    value.insert("produces".into(), json!(operation.produces));
    let consumes = if operation.consumes.is_empty() { &["*/*"] } else { operation.consumes };
    value.insert("consumes".into(), json!(consumes));
    let body = operation.body.iter().map(|(type_name, required)| {
        let mut body = json!({"name": "body", "in": "body", "schema": types.reference(type_name)});
        if let (true, Value::Object(body)) = (*required, &mut body) {
            body.insert("required".into(), true.into());
        }
        body
    });
    let general = operation.general.iter().map(|name| reference(name));
    let specific = operation.specific.iter().map(|parameter| parameter.to_value(OpenApiVersion::V2));
    let parameters: Vec<Value> = body.chain(general).chain(specific).collect();
    if !parameters.is_empty() {
        value.insert("parameters".into(), Value::Array(parameters));
    }
    add_results(operation, types.names, ("schema", &types.response(operation)), &mut value);
    Value::Object(value)
}
