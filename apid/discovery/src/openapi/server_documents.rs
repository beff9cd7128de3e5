//! The OpenAPI 3 documents of paths that are no resources: discovery, version, and the issuer of tokens.
//!
//! # Reference
//!
//! The paths, operation ids and media types are those of kube-apiserver. Groups of custom kinds have no document
//! of their own there.

use std::collections::BTreeMap;
use std::io;

use ::kinds::Kind;
use apimachinery::names::Names;
use serde_json::{Value, json};

use super::compressed_document::CompressedDocument;
use super::operations::{camel, tag_group};
use super::types::Types;
use super::{OpenApi, OpenApiVersion, compress_document, reason_phrase, security_scheme};

/// The body of a response.
enum Body {
    /// A type of the schema facts.
    Type(&'static str),
    /// Text.
    Text,
    /// The information about the version of the server.
    Version,
}

/// The only operation of a document.
struct Operation {
    /// The path of the document, without the first and the last slash.
    path: String,
    tag: String,
    id: String,
    description: &'static str,
    media_types: Vec<&'static str>,
    body: Body,
}

/// Builds the documents, by path.
pub(super) fn documents(api: &OpenApi) -> io::Result<Vec<(String, CompressedDocument)>> {
    let types = Types { openapi_version: OpenApiVersion::V3, names: &api.names, kinds: api.kinds() };
    operations(api)
        .into_iter()
        .map(|operation| {
            let document = compress_document(&document(api, &types, &operation))?;
            Ok((operation.path, document))
        })
        .collect()
}

fn operations(api: &OpenApi) -> Vec<Operation> {
    let encodings = vec!["application/json", "application/yaml", api.names.protobuf_media_type];
    let discovery = |path: &str, tag: &str, id: String, description, type_name| Operation {
        path: path.to_owned(),
        tag: tag.to_owned(),
        id,
        description,
        media_types: encodings.clone(),
        body: Body::Type(type_name),
    };
    let text = |path: &str, tag: &str, id: &str, description, media_type| Operation {
        path: path.to_owned(),
        tag: tag.to_owned(),
        id: id.to_owned(),
        description,
        media_types: vec![media_type],
        body: Body::Text,
    };
    let mut operations = vec![
        discovery(
            "api",
            "core",
            "getCoreAPIVersions".to_owned(),
            "versions of the core group",
            "meta/v1.APIVersions",
        ),
        discovery("apis", "apis", "getAPIVersions".to_owned(), "served API groups", "meta/v1.APIGroupList"),
        text(
            ".well-known/openid-configuration",
            "WellKnown",
            "getServiceAccountIssuerOpenIDConfiguration",
            "OpenID Connect discovery document of the issuer of service-account tokens",
            "application/json",
        ),
        text(
            "openid/v1/jwks",
            "openid",
            "getServiceAccountIssuerOpenIDKeyset",
            "public keys of the issuer of service-account tokens",
            "application/jwk-set+json",
        ),
        Operation {
            path: "version".to_owned(),
            tag: "version".to_owned(),
            id: "getCodeVersion".to_owned(),
            description: "version of the server",
            media_types: vec!["application/json"],
            body: Body::Version,
        },
    ];
    let built_in = api.registry.resources().iter().filter(|resource| !resource.is_custom());
    let mut groups: BTreeMap<&str, &Kind> = BTreeMap::new();
    for resource in built_in {
        groups.entry(&resource.group_resource.group).or_insert(resource);
    }
    groups.remove("");
    operations.extend(groups.into_iter().map(|(group, resource)| {
        let tag = tag_group(resource);
        let id = format!("get{}APIGroup", camel(&tag));
        discovery(&format!("apis/{group}"), &tag, id, "versions of the group", "meta/v1.APIGroup")
    }));
    operations
}

fn document(api: &OpenApi, types: &Types<'_>, operation: &Operation) -> Value {
    let (schema, schemas) = match operation.body {
        Body::Type(type_name) => {
            let closure = types.closure([type_name.to_owned()]);
            let schemas =
                closure.into_iter().map(|(name, type_name)| (name, types.definition_of(&type_name)));
            (types.reference(type_name), schemas.collect())
        }
        Body::Text => (json!({"type": "string"}), json!({})),
        Body::Version => {
            let name = version_type(&api.names);
            let reference = json!({"$ref": format!("{}{name}", OpenApiVersion::V3.definition_prefix())});
            (reference, json!({name: version_schema()}))
        }
    };
    let content: Value = operation
        .media_types
        .iter()
        .map(|media_type| ((*media_type).to_owned(), json!({"schema": schema})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let get = json!({
        "tags": [operation.tag],
        "description": operation.description,
        "operationId": operation.id,
        "responses": {
            "200": {"description": reason_phrase(200), "content": content},
            "401": {"description": reason_phrase(401)},
        },
    });
    json!({
        "openapi": "3.0.0",
        "info": api.info(),
        "paths": {format!("/{}/", operation.path): {"get": get}},
        "components": {"schemas": schemas, "securitySchemes": {"BearerToken": security_scheme()}},
    })
}

/// Returns the name of the schema of `/version`.
fn version_type(names: &Names) -> String {
    names.definition("version", "Info")
}

fn version_schema() -> Value {
    const REQUIRED: [&str; 9] = [
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    const OPTIONAL: [&str; 4] =
        ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
    let text = |name: &&str| {
        let schema = if REQUIRED.contains(name) {
            json!({"type": "string", "default": ""})
        } else {
            json!({"type": "string"})
        };
        ((*name).to_owned(), schema)
    };
    let properties: serde_json::Map<String, Value> = REQUIRED.iter().chain(&OPTIONAL).map(text).collect();
    json!({
        "type": "object",
        "description": "Version of the server.",
        "required": REQUIRED,
        "properties": properties,
    })
}
