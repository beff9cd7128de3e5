//! The OpenAPI 2 document, which describes all group versions.
//!
//! # Contract
//!
//! The document is written part by part, as JSON or Protobuf, so its uncompressed text is never in memory as
//! a whole. It omits defaults, because OpenAPI 2 clients do not support a default beside a reference.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ::kinds::Kind;
use serde_json::{Map, Value, json};

use super::compressed_document::{CompressedDocument, DocumentCompressor, ObjectWriter};
use super::operations::{Operation, Path, SortedPaths};
use super::remote::{self, Merged};
use super::types::Types;
use super::{
    GroupVersionResources, OpenApi, OpenApiVersion, add_results, parameters, protobuf, security_scheme,
};

/// The `swagger` version of the document.
const VERSION: &str = "2.0";

/// The served resources, each in one of its versions.
fn resources(
    group_versions: &BTreeMap<String, GroupVersionResources>,
) -> impl Iterator<Item = (&Kind, &str)> {
    group_versions.values().flat_map(|group_version| {
        let resources = group_version.resources.iter();
        resources.map(|resource| (&**resource, group_version.version.as_str()))
    })
}

fn types(api: &OpenApi) -> Types<'_> {
    Types { openapi_version: OpenApiVersion::V2, names: &api.names, kinds: api.kinds() }
}

/// Builds the document as JSON.
pub(super) fn json(api: &OpenApi) -> io::Result<CompressedDocument> {
    let group_versions = api.group_versions();
    api.check_size(resources(&group_versions).map(|(resource, _)| resource))?;
    let types = types(api);
    let paths = SortedPaths::new(resources(&group_versions), &api.names);
    let mut compressor = DocumentCompressor::new();
    write!(
        compressor,
        "{{\"swagger\":\"{VERSION}\",\"info\":{},\"parameters\":{},\"security\":{},\"securityDefinitions\":{}",
        api.info(),
        general_parameters(),
        security(),
        json!({"BearerToken": security_scheme()}),
    )?;
    compressor.write_all(b",\"paths\":")?;
    let mut items = ObjectWriter::new(&mut compressor)?;
    paths.try_for_each(|path, tag| items.write(&path.path, &item(path, &types, tag)))?;
    let definitions_of_kinds = types.closure(paths.types.clone());
    let merged = merged(api, &types, &definitions_of_kinds, &paths);
    for (path, item) in &merged.paths {
        items.write(path, item)?;
    }
    items.finish()?;
    compressor.write_all(b",\"definitions\":")?;
    let mut definitions = ObjectWriter::new(&mut compressor)?;
    for (name, type_name) in definitions_of_kinds {
        definitions.write(&name, &types.definition_of(&type_name))?;
    }
    for (name, definition) in &merged.definitions {
        definitions.write(name, definition)?;
    }
    definitions.finish()?;
    compressor.write_all(b"}")?;
    compressor.finish()
}

/// Builds the document as the Protobuf message `openapi.v2.Document` of gnostic.
pub(super) fn protobuf(api: &OpenApi) -> io::Result<CompressedDocument> {
    let group_versions = api.group_versions();
    api.check_size(resources(&group_versions).map(|(resource, _)| resource))?;
    let types = types(api);
    let paths = SortedPaths::new(resources(&group_versions), &api.names);
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
    paths.try_for_each(|path, tag| write_part(json!({"paths": {&path.path: item(path, &types, tag)}})))?;
    let definitions = types.closure(paths.types.clone());
    let merged = merged(api, &types, &definitions, &paths);
    for (path, item) in merged.paths {
        write_part(json!({"paths": {path: item}}))?;
    }
    for (name, type_name) in definitions {
        write_part(json!({"definitions": {name: types.definition_of(&type_name)}}))?;
    }
    for (name, definition) in merged.definitions {
        write_part(json!({"definitions": {name: definition}}))?;
    }
    compressor.finish()
}

/// Returns what the documents of servers behind APIServices add. `definitions`: the types of the own definitions by
/// name.
fn merged(
    api: &OpenApi,
    types: &Types<'_>,
    definitions: &BTreeMap<String, String>,
    paths: &SortedPaths<'_>,
) -> Merged {
    let own_definition = |name: &str| definitions.get(name).map(|type_name| types.definition_of(type_name));
    remote::merge(&api.remote.specs, own_definition, |path| paths.contains(path))
}

fn security() -> Value {
    json!([{"BearerToken": []}])
}

/// Returns the general parameters by name, to which operations refer.
fn general_parameters() -> Value {
    let parameters = parameters::all_general();
    parameters.map(|parameter| (parameter.name.to_owned(), parameter.to_value(OpenApiVersion::V2))).collect()
}

fn item(path: &Path, types: &Types<'_>, tag: &str) -> Value {
    let mut item = Map::new();
    for operation in &path.operations {
        item.insert(operation.method.to_owned(), operation_value(operation, types, tag));
    }
    let parameters = path.parameters.iter().map(|parameter| match parameters::general(parameter.name) {
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
