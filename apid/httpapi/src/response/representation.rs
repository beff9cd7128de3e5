//! Representations of objects and lists: their own kind, Table or PartialObjectMetadata.
//!
//! JSON of the stored version is copied without parsing.

use std::sync::Arc;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupVersion;
use apimachinery::object::Object;
use apimachinery::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kinds::Kind;
use kinds::entry::Entry;
use schema::Schema;
use serde_json::{Value, json};

use crate::negotiate::{Format, Negotiation, Shape};
use crate::response::chunked_document::{ChunkSource, LazyDocument};
use crate::response::list_encoding::{Encoding, Frame};
use crate::response::object_source::LargeObject;
use crate::response::protobuf::{self, ListMessage};
use crate::state::HttpState;
use verbs::{Item, ResponseObject};

/// The kind, version and encoding in which the objects of one response are represented.
#[derive(Clone)]
pub(crate) struct Representation {
    pub(crate) http_state: Arc<HttpState>,
    pub(crate) resource: Arc<Kind>,
    version: String,
    pub(crate) format: Format,
    pub(crate) shape: Shape,
    pub(crate) include: Include,
    pub(crate) pretty: bool,
}

/// An encoded object.
pub(crate) enum EncodedObject {
    /// Compact JSON, which the response encodes as negotiated, or a Protobuf message in its envelope.
    Whole(Vec<u8>),
    /// A chunk source in the encoding of the response.
    Chunks(Box<dyn ChunkSource>),
}

/// Stored size in bytes above which an object in its stored form is sent in chunks.
pub(crate) const MIN_CHUNKED_BYTES: usize = 32 * 1024;

/// Fixed work of handling one object, as the equivalent of stored bytes to decode.
pub(crate) const OBJECT_WORK: usize = 512;

/// The content of the `object` field of Table rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Representation {
    /// Creates a representation for a kind. `include_object` is the query parameter of Tables.
    ///
    /// # Errors
    ///
    /// 400: the parameter has an unknown value.
    pub(crate) fn new(
        http_state: &Arc<HttpState>,
        resource: &Arc<Kind>,
        version: &str,
        Negotiation { format, shape }: Negotiation,
        include_object: &str,
    ) -> Result<Self, Status> {
        let include = match include_object {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::None,
            "Object" => Include::Object,
            other if matches!(shape, Shape::Table(_)) => {
                let path = FieldPath::new("includeObject");
                let error =
                    FieldError::invalid(&path, other, "must be 'Metadata', 'Object', 'None', or empty");
                return Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")));
            }
            _ => Include::Metadata,
        };
        let (http_state, resource, version) =
            (Arc::clone(http_state), Arc::clone(resource), version.to_owned());
        Ok(Representation { http_state, resource, version, format, shape, include, pretty: false })
    }

    /// Sets whether JSON is indented.
    #[must_use]
    pub(crate) fn with_pretty(self, pretty: bool) -> Self {
        Representation { pretty, ..self }
    }

    /// Encodes one object.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are not a valid object.
    pub(crate) fn object(&self, source: &ResponseObject) -> Result<EncodedObject, Status> {
        match source {
            ResponseObject::Cached(item, _) if item.value().len() > MIN_CHUNKED_BYTES => {
                Ok(EncodedObject::Chunks(self.large_object(source.clone(), Arc::clone(item))))
            }
            _ => self.whole_object(source).map(EncodedObject::Whole),
        }
    }

    /// Returns this representation in compact JSON, for the audit log.
    pub(crate) fn in_json(&self) -> Self {
        Representation { format: Format::Json, pretty: false, ..self.clone() }
    }

    /// Encodes one object as compact JSON, for the audit log.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are not a valid object.
    pub(crate) fn audited_object(&self, source: &ResponseObject) -> Result<Vec<u8>, Status> {
        self.in_json().whole_object(source)
    }

    fn large_object(&self, source: ResponseObject, item: Arc<Item>) -> Box<dyn ChunkSource> {
        let encoding = Encoding::for_format(self.format, self.pretty);
        if encoding == Some(Encoding::Compact) && self.is_stored_form() {
            return Box::new(LargeObject::new(source, item));
        }
        let representation = self.clone();
        Box::new(LazyDocument::new(move || match encoding {
            Some(encoding) => Ok(encoding.document(&representation.tree(&source, true)?)),
            None => representation.whole_object(&source),
        }))
    }

    /// Whether list items have kind and apiVersion: those of custom kinds (requirement D-LIST-11).
    pub(crate) fn items_have_type(&self) -> bool {
        self.resource.is_custom()
    }

    /// Whether objects are represented in their stored form.
    pub(crate) fn is_stored_form(&self) -> bool {
        matches!(self.shape, Shape::Own | Shape::AggregatedDiscovery(_)) && self.is_sent_as_stored()
    }

    fn is_sent_as_stored(&self) -> bool {
        self.resource.is_sent_as_stored(&self.http_state.api_state.names)
    }

    /// Encodes one object as JSON or Protobuf.
    fn whole_object(&self, source: &ResponseObject) -> Result<Vec<u8>, Status> {
        match (self.shape, self.format) {
            (Shape::Own | Shape::AggregatedDiscovery(_), Format::Protobuf(_)) => {
                let mut out = Vec::new();
                protobuf::write_object(&self.convert(source.object()?)?, &mut out)?;
                Ok(out)
            }
            (Shape::Own | Shape::AggregatedDiscovery(_), _) if self.is_sent_as_stored() => {
                let mut out = Vec::new();
                source.write_json(&mut out, true)?;
                Ok(out)
            }
            _ => self.encode_tree(&self.tree(source, true)?),
        }
    }

    /// Returns one object as a JSON tree. `with_columns`: a Table includes its column definitions.
    fn tree(&self, source: &ResponseObject, with_columns: bool) -> Result<Value, Status> {
        match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => Ok(self.convert(source.object()?)?.into_value()),
            Shape::Metadata(version) => self.partial_object_of_source(source, version),
            Shape::Table(version) => {
                let object = source.object()?;
                let metadata = json!({"resourceVersion": object.resource_version()});
                let rows = vec![self.row(object, version)?];
                Ok(self.table(version, metadata, with_columns, rows))
            }
        }
    }

    /// Encodes a JSON tree as compact JSON or, for Protobuf, as a message in its envelope.
    fn encode_tree(&self, value: &Value) -> Result<Vec<u8>, Status> {
        match self.format {
            Format::Json | Format::Yaml | Format::Cbor => Ok(Encoding::Compact.document(value)),
            Format::Protobuf(_) => {
                protobuf::document(value).ok_or_else(|| Status::internal("response has no Protobuf encoding"))
            }
        }
    }

    /// Returns the work of encoding a list item, in stored bytes to decode and encode.
    pub(crate) fn item_work(&self, item: &Item) -> usize {
        let expanded = item.entry().map_or(0, Entry::expanded_bytes);
        match self.shape {
            Shape::Metadata(_) if self.is_sent_as_stored() => OBJECT_WORK + expanded,
            _ => OBJECT_WORK + item.value().len() + expanded,
        }
    }

    /// Returns a list item as a JSON tree.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are not a valid object.
    pub(crate) fn item_tree(&self, item: Arc<Item>) -> Result<Value, Status> {
        let source = ResponseObject::from_item(item);
        match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => {
                let mut object = self.convert(source.object()?)?;
                if !self.items_have_type() {
                    object.remove("kind");
                    object.remove("apiVersion");
                }
                Ok(object.into_value())
            }
            Shape::Metadata(version) => self.partial_object_of_source(&source, version),
            Shape::Table(version) => self.row(source.object()?, version),
        }
    }

    /// Returns the Protobuf message of a list item.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are not a valid object.
    pub(crate) fn message(&self, item: &Arc<Item>, schema: &'static Schema) -> Result<Bytes, Status> {
        let object = || {
            let source = ResponseObject::from_item(Arc::clone(item));
            match self.shape {
                Shape::Metadata(version) => {
                    Ok(Object::from_value(self.partial_object_of_source(&source, version)?)
                        .unwrap_or_default())
                }
                _ => self.convert(source.object()?),
            }
        };
        self.http_state.messages.item(item, &self.resource, schema, object)
    }

    /// Encodes the object of a watch event. `first`: the first event of the watch; only the first Table has
    /// columns.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are not a valid object.
    pub(crate) fn event_object(&self, source: &ResponseObject, first: bool) -> Result<Vec<u8>, Status> {
        match self.shape {
            Shape::Table(_) => self.encode_tree(&self.tree(source, first)?),
            _ => self.whole_object(source),
        }
    }

    /// Encodes the object of a bookmark. `initial`: the bookmark ends the initial events. `first`: as for
    /// [`Representation::event_object`].
    ///
    /// A Table has the bookmark in a row, as for any other event. Its annotations are in the object of the row.
    ///
    /// # Errors
    ///
    /// 500: the kind has no such representation. Negotiation excludes this case.
    pub(crate) fn bookmark(
        &self,
        revision: storage::Revision,
        initial: bool,
        first: bool,
    ) -> Result<Vec<u8>, Status> {
        let version_only = json!({"resourceVersion": revision.to_string()});
        let mut metadata = version_only.clone();
        if initial && let Value::Object(fields) = &mut metadata {
            let names = &self.http_state.api_state.names;
            let (end, list) =
                (names.group_key("initial-events-end"), names.label_key("initial-events-list-blueprint"));
            let annotations = json!({end: "true", list: STANDARD.encode(self.empty_list())});
            fields.insert("annotations".into(), annotations);
        }
        let value = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => self.object_of_metadata(metadata),
            Shape::Metadata(version) => self.partial_object_of_metadata(metadata, version),
            Shape::Table(version) => {
                let api_state = &self.http_state.api_state;
                let object = Object::from_value(self.object_of_metadata(metadata)).unwrap_or_default();
                let cells = self.resource.cells(&object, &*api_state.clock, &api_state.names);
                let object = match self.include {
                    Include::None => Value::Null,
                    Include::Metadata => self.partial_object(object, version),
                    Include::Object => object.into_value(),
                };
                let row = json!({"cells": cells, "object": object});
                self.table(version, version_only, first, vec![row])
            }
        };
        self.encode_tree(&value)
    }

    /// An object of the kind that has only metadata.
    fn object_of_metadata(&self, metadata: Value) -> Value {
        json!({"kind": self.resource.name(), "apiVersion": self.api_version(), "metadata": metadata})
    }

    /// Encodes an empty list in the format of the response. A client adds the objects of the initial events.
    ///
    /// The list has no resourceVersion, and its items are null, except those of a custom kind.
    fn empty_list(&self) -> Vec<u8> {
        let (kind, api_version) = match self.shape {
            Shape::Metadata(version) => ("PartialObjectMetadataList", self.meta_version(version)),
            Shape::Own | Shape::AggregatedDiscovery(_) | Shape::Table(_) => {
                (&*self.resource.names.list, self.api_version())
            }
        };
        let Some(encoding) = Encoding::for_format(self.format, false) else {
            let message = match self.shape {
                Shape::Metadata(version) => ListMessage::for_partial_metadata(&Object::default(), version),
                _ => ListMessage::new(&Object::default()),
            };
            let Frame { opening, closing } = message.frame(&api_version, kind, &[]);
            return [opening, closing].concat();
        };
        let list = match self.shape {
            Shape::Own | Shape::Table(_) if self.resource.is_custom() => {
                json!({"kind": kind, "apiVersion": api_version, "items": []})
            }
            _ => json!({"kind": kind, "apiVersion": api_version, "metadata": {}, "items": null}),
        };
        encoding.document(&list)
    }

    pub(crate) fn api_version(&self) -> String {
        let group = self.resource.group_resource.group.clone();
        GroupVersion { group, version: self.version.to_owned() }.to_string()
    }

    pub(crate) fn meta_version(&self, version: &str) -> String {
        format!("{}/{version}", self.http_state.api_state.names.meta_group())
    }

    /// Returns an object as PartialObjectMetadata; a stored object is parsed only as far as its metadata.
    fn partial_object_of_source(&self, source: &ResponseObject, version: &str) -> Result<Value, Status> {
        if !self.is_sent_as_stored() {
            return Ok(self.partial_object(self.convert(source.object()?)?, version));
        }
        Ok(self.partial_object_of_metadata(source.metadata()?, version))
    }

    fn partial_object(&self, mut object: Object, version: &str) -> Value {
        self.partial_object_of_metadata(object.remove("metadata").unwrap_or_else(|| json!({})), version)
    }

    fn partial_object_of_metadata(&self, metadata: Value, version: &str) -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": self.meta_version(version),
            "metadata": metadata,
        })
    }

    /// Makes a Table row. The cells come from the stored version, whatever version the `object` field has.
    fn row(&self, object: Object, version: &str) -> Result<Value, Status> {
        let api_state = &self.http_state.api_state;
        let cells = self.resource.cells(&object, &*api_state.clock, &api_state.names);
        let conditions = self.resource.strategy().row_conditions(&object);
        let object_field = match self.include {
            Include::None => Value::Null,
            Include::Metadata => self.partial_object(self.convert(object)?, version),
            Include::Object => self.convert(object)?.into_value(),
        };
        let mut row = json!({"cells": cells, "object": object_field});
        if !conditions.is_empty()
            && let Value::Object(fields) = &mut row
        {
            fields.insert("conditions".to_owned(), Value::Array(conditions));
        }
        Ok(row)
    }

    /// Converts a stored object to the represented version. Protobuf has no field names that need translation.
    fn convert(&self, mut object: Object) -> Result<Object, Status> {
        let names = &self.http_state.api_state.names;
        let result = match self.format {
            Format::Protobuf(_) => self.resource.convert_from_storage(&mut object, names),
            Format::Json | Format::Yaml | Format::Cbor => self.resource.represent(&mut object, names),
        };
        result.map_err(|error| {
            tracing::error!(%error, kind = self.resource.name(), name = object.name(), "conversion of a stored object failed; responding 500");
            Status::internal("conversion of a stored object to the requested version failed")
        })?;
        Ok(object)
    }

    pub(crate) fn table(
        &self,
        version: &str,
        metadata: Value,
        with_columns: bool,
        rows: Vec<Value>,
    ) -> Value {
        let columns = with_columns.then(|| {
            let columns = self.resource.columns().into_iter().map(|column| {
                json!({
                    "name": column.name,
                    "type": column.kind,
                    "format": column.format,
                    "description": column.description,
                    "priority": column.priority,
                })
            });
            columns.collect::<Vec<_>>()
        });
        json!({
            "kind": "Table",
            "apiVersion": self.meta_version(version),
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": rows,
        })
    }
}

#[cfg(test)]
#[path = "tests/representation.rs"]
mod tests;
