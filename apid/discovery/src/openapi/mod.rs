//! OpenAPI documents: schemas of all kinds and operations of all paths.
//!
//! Clients use them to validate, explain and merge objects.
//!
//! # Contract
//!
//! [`OpenApi`] returns `/openapi/v3`, its document for each group version, and `/openapi/v2` as JSON and as
//! Protobuf. All content is derived from the registry and the schema facts. Documents are built on first use
//! and then kept compressed. Building takes up to seconds of CPU time, so callers must run it where blocking is
//! allowed; [`OpenApi::has`] says whether a document is built. A document that would exceed [`TEXT_MAX`] is not
//! built.
//!
//! # Invariants
//!
//! INVARIANT (own descriptions): descriptions come from facts and from `descriptions.txt`; none is copied from the
//! reference.
//!
//! # Reference
//!
//! Requirements D-EP-47 and D-META-38; OpenAPI 2.0 and 3.0.0. Extensions carry the prefix of the preset.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ::kinds::custom::document_bytes;
use ::kinds::{Kind, Registry};
use apimachinery::codec;
use apimachinery::names::Names;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::RELEASE;

mod compressed_document;
mod converted;
mod custom;
mod descriptions;
mod kinds;
mod operations;
mod parameters;
mod protobuf;
mod remote;
mod server_documents;
#[cfg(test)]
mod tests;
mod type_names;
mod types;
mod v2;
mod v3;

use compressed_document::DocumentCompressor;
pub use compressed_document::{CompressedDocument, PLAIN_MAX, TEXT_MAX};
pub use remote::{RemoteOpenApi, RemoteSpec};

/// The OpenAPI documents of a registry.
pub struct OpenApi {
    registry: Arc<Registry>,
    /// The documents of servers behind APIServices.
    remote: Arc<RemoteOpenApi>,
    names: Arc<Names>,
    /// Maximum size in bytes of the text of a document.
    text_max: usize,
    kinds: OnceLock<kinds::Kinds>,
    v2: OnceLock<Result<CompressedDocument, OpenApiError>>,
    v2_protobuf: OnceLock<Result<CompressedDocument, OpenApiError>>,
    v3: OnceLock<Result<V3, OpenApiError>>,
    /// The built documents of group versions, shared with the [`OpenApi`] of earlier and later registries.
    cached_documents: Arc<BuiltDocuments>,
}

/// A document could not be built. The error is cached: all later requests for the document get it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the OpenAPI document cannot be built: {}", .0.error)]
pub struct OpenApiError(Arc<FailedBuild>);

/// The reason why a document could not be built.
#[derive(Debug)]
struct FailedBuild {
    error: io::Error,
    is_reported: AtomicBool,
}

/// A form of the documents of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentForm {
    /// OpenAPI 2 as JSON.
    V2,
    /// OpenAPI 2 as Protobuf.
    V2Protobuf,
    /// OpenAPI 3: the index and the documents of all group versions.
    V3,
}

impl OpenApiError {
    /// Whether the text of the document exceeds [`TEXT_MAX`].
    pub fn is_too_large(&self) -> bool {
        self.0.error.kind() == io::ErrorKind::FileTooLarge
    }

    /// Whether this is the first call for the failed build: the caller then logs the failure.
    pub fn begin_report(&self) -> bool {
        !self.0.is_reported.swap(true, Ordering::Relaxed)
    }
}

impl From<io::Error> for OpenApiError {
    fn from(error: io::Error) -> Self {
        OpenApiError(Arc::new(FailedBuild { error, is_reported: AtomicBool::new(false) }))
    }
}

/// Documents of OpenAPI 3 by path, each with the resources from which it was built.
type BuiltDocuments = Mutex<BTreeMap<String, (Vec<Arc<Kind>>, CompressedDocument)>>;

/// OpenAPI 3: the index, and the documents by `api/v1` or `apis/<group>/<version>`.
struct V3 {
    index: CompressedDocument,
    /// A document above the maximum size is an error, so that it does not prevent the others.
    documents: BTreeMap<String, Result<CompressedDocument, OpenApiError>>,
}

/// A group version and its resources, in the order of the registry.
struct GroupVersionResources {
    version: String,
    resources: Vec<Arc<Kind>>,
}

/// The OpenAPI version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenApiVersion {
    V2,
    V3,
}

impl OpenApiVersion {
    /// Returns the prefix of a `$ref` to a definition.
    fn definition_prefix(self) -> &'static str {
        match self {
            OpenApiVersion::V2 => "#/definitions/",
            OpenApiVersion::V3 => "#/components/schemas/",
        }
    }
}

impl OpenApi {
    /// Creates the documents of a registry; each is built on first use.
    pub fn new(registry: Arc<Registry>, names: Arc<Names>) -> Self {
        OpenApi {
            registry,
            remote: Arc::default(),
            names,
            text_max: TEXT_MAX,
            kinds: OnceLock::new(),
            v2: OnceLock::new(),
            v2_protobuf: OnceLock::new(),
            v3: OnceLock::new(),
            cached_documents: Arc::default(),
        }
    }

    /// Creates the documents of another registry and other servers under the same names. Documents of group versions
    /// with the same resources are shared.
    #[must_use]
    pub fn with_state(&self, registry: Arc<Registry>, remote: Arc<RemoteOpenApi>) -> Self {
        OpenApi {
            remote,
            cached_documents: Arc::clone(&self.cached_documents),
            ..OpenApi::new(registry, Arc::clone(&self.names))
        }
    }

    /// Whether the documents of a form are built, or their build has failed.
    pub fn has(&self, form: DocumentForm) -> bool {
        match form {
            DocumentForm::V2 => self.v2.get().is_some(),
            DocumentForm::V2Protobuf => self.v2_protobuf.get().is_some(),
            DocumentForm::V3 => self.v3.get().is_some(),
        }
    }

    /// Fails if a document with these resources would exceed the maximum size, before it is built.
    fn check_size<'a>(&self, resources: impl IntoIterator<Item = &'a Kind>) -> io::Result<()> {
        match document_bytes(resources) > self.text_max {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        }
    }

    /// Returns the OpenAPI 2 document as JSON.
    ///
    /// # Errors
    ///
    /// The document could not be built.
    pub fn v2(&self) -> Result<CompressedDocument, OpenApiError> {
        self.v2.get_or_init(|| v2::json(self).map_err(OpenApiError::from)).clone()
    }

    /// Returns the OpenAPI 2 document as Protobuf.
    ///
    /// # Errors
    ///
    /// The document could not be built.
    pub fn v2_protobuf(&self) -> Result<CompressedDocument, OpenApiError> {
        self.v2_protobuf.get_or_init(|| v2::protobuf(self).map_err(OpenApiError::from)).clone()
    }

    /// Returns the index of OpenAPI 3: the paths of the documents with their hashes.
    ///
    /// # Errors
    ///
    /// The document could not be built.
    pub fn v3_index(&self) -> Result<CompressedDocument, OpenApiError> {
        Ok(self.v3()?.index.clone())
    }

    /// Returns the document of a group version, such as `api/v1` or `apis/<group>/<version>`. None if it is
    /// not served.
    ///
    /// # Errors
    ///
    /// The document could not be built.
    pub fn v3_document(&self, path: &str) -> Result<Option<CompressedDocument>, OpenApiError> {
        self.v3()?.documents.get(path).cloned().transpose()
    }

    /// Returns the URL of the document of a group version with this hash.
    pub fn v3_location(path: &str, hash: &str) -> String {
        format!("/openapi/v3/{path}?hash={hash}")
    }

    fn v3(&self) -> Result<&V3, OpenApiError> {
        self.v3.get_or_init(|| self.build_v3().map_err(OpenApiError::from)).as_ref().map_err(Clone::clone)
    }

    fn build_v3(&self) -> io::Result<V3> {
        let mut documents = BTreeMap::new();
        let mut paths = Map::new();
        for (path, group_version) in self.group_versions() {
            let document = self.find_or_build(&path, &group_version).map_err(OpenApiError::from);
            let location = match &document {
                Ok(document) => OpenApi::v3_location(&path, document.hash()),
                Err(_) => format!("/openapi/v3/{path}"),
            };
            paths.insert(path.clone(), json!({"serverRelativeURL": location}));
            documents.insert(path, document);
        }
        for (path, document) in server_documents::documents(self)? {
            let location = OpenApi::v3_location(&path, document.hash());
            paths.insert(path.clone(), json!({"serverRelativeURL": location}));
            documents.insert(path, Ok(document));
        }
        for (path, spec) in &self.remote.converted {
            let Some(document) = converted::document(spec, path) else { continue };
            let document = compress_document(&document)?;
            let location = OpenApi::v3_location(path, document.hash());
            paths.insert(path.clone(), json!({"serverRelativeURL": location}));
            documents.insert(path.clone(), Ok(document));
        }
        for (path, url) in &self.remote.v3_urls {
            paths.insert(path.clone(), json!({"serverRelativeURL": url}));
        }
        self.cached_documents.lock().retain(|path, _| documents.contains_key(path));
        Ok(V3 { index: compress_document(&json!({"paths": paths}))?, documents })
    }

    /// Returns the document of a group version. Builds the document unless one is cached for the same
    /// resources.
    fn find_or_build(
        &self,
        path: &str,
        group_version: &GroupVersionResources,
    ) -> io::Result<CompressedDocument> {
        let is_same = |resources: &[Arc<Kind>]| {
            resources.iter().map(Arc::as_ptr).eq(group_version.resources.iter().map(Arc::as_ptr))
        };
        if let Some((resources, document)) = self.cached_documents.lock().get(path)
            && is_same(resources)
        {
            return Ok(document.clone());
        }
        let document = v3::document(self, group_version)?;
        let resources = group_version.resources.clone();
        self.cached_documents.lock().insert(path.to_owned(), (resources, document.clone()));
        Ok(document)
    }

    fn kinds(&self) -> &kinds::Kinds {
        self.kinds.get_or_init(|| kinds::Kinds::new(&self.registry, &self.names))
    }

    /// The served resources by path of the OpenAPI 3 document: `api/v1` or `apis/<group>/<version>`.
    fn group_versions(&self) -> BTreeMap<String, GroupVersionResources> {
        let mut group_versions: BTreeMap<String, GroupVersionResources> = BTreeMap::new();
        for resource in self.registry.resources() {
            let group = &resource.group_resource.group;
            for version in resource.versions() {
                let path = if group.is_empty() {
                    format!("api/{version}")
                } else {
                    format!("apis/{group}/{version}")
                };
                if self.remote.versions.contains(&path) {
                    continue;
                }
                let new = || GroupVersionResources { version: version.to_owned(), resources: Vec::new() };
                group_versions.entry(path).or_insert_with(new).resources.push(Arc::clone(resource));
            }
        }
        group_versions
    }

    fn info(&self) -> Value {
        json!({"title": self.names.api_title(), "version": RELEASE})
    }
}

fn compress_document(document: &Value) -> io::Result<CompressedDocument> {
    let mut compressor = DocumentCompressor::new();
    compressor.write_all(&codec::json::encode(document))?;
    compressor.finish()
}

/// Returns the security scheme of all operations: a bearer token.
fn security_scheme() -> Value {
    json!({"type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer token"})
}

/// Adds responses, `deprecated` and vendor extensions to the JSON of an operation. `body` is the member that
/// describes the body of each successful response.
fn add_results(
    operation: &operations::Operation,
    names: &Names,
    body: (&str, &Value),
    value: &mut Map<String, Value>,
) {
    let success = |&code: &u16| {
        let (name, body) = body;
        (code.to_string(), json!({"description": reason_phrase(code), name: body}))
    };
    let mut responses: Map<String, Value> = operation.codes.iter().map(success).collect();
    responses.insert("401".into(), json!({"description": reason_phrase(401)}));
    value.insert("responses".into(), Value::Object(responses));
    if operation.deprecated {
        value.insert("deprecated".into(), true.into());
    }
    let prefix = names.extension_prefix;
    value.insert(format!("{prefix}action"), operation.action.into());
    value.insert(format!("{prefix}group-version-kind"), operation.kind.to_value());
}

/// Returns the reason phrase of a status code of an operation: 200, 201, 202 or 401.
fn reason_phrase(code: u16) -> &'static str {
    match code {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        _ => "Unauthorized",
    }
}
