//! Objects and lists as JSON or Protobuf: as their own kind, where JSON is a copy of bytes, as a Table, or as their metadata
//! alone.

use std::sync::Arc;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupVersion;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Resource, Table};
use serde_json::{Map, Value, json};

use super::chunks::ListChunks;
use super::negotiate::{Format, Negotiated, Shape};
use super::protobuf;
use crate::plane::Plane;
use crate::verbs::{Listed, Shown};

/// How the objects of one answer are represented.
pub(super) struct Representation<'a> {
    plane: &'a Plane,
    resource: &'a Resource,
    version: &'a str,
    format: Format,
    shape: Shape,
    include: Include,
}

/// A list, encoded.
pub(super) enum Encoded {
    /// At once.
    Whole(Vec<u8>),
    /// JSON that is made as it is sent.
    Chunks(ListChunks),
}

/// What stands in the rows of a Table beside the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

impl<'a> Representation<'a> {
    /// For a kind. `include_object` is the query parameter of Tables.
    ///
    /// # Errors
    ///
    /// 400: the parameter has a value that does not exist.
    pub(super) fn new(
        plane: &'a Plane,
        resource: &'a Resource,
        version: &'a str,
        Negotiated { format, shape }: Negotiated,
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
        Ok(Representation { plane, resource, version, format, shape, include })
    }

    /// One object.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub(super) fn object(&self, shown: &Shown) -> Result<Vec<u8>, Status> {
        match (self.shape, self.format) {
            (Shape::Own | Shape::AggregatedDiscovery(_), Format::Protobuf(_)) => {
                let mut out = Vec::new();
                protobuf::object(&self.converted(shown.object()?)?, &mut out)?;
                Ok(out)
            }
            (Shape::Own | Shape::AggregatedDiscovery(_), _) if self.resource.is_converted() => {
                self.document(&self.converted(shown.object()?)?.into_value())
            }
            (Shape::Own | Shape::AggregatedDiscovery(_), _) => {
                let mut out = Vec::new();
                shown.write_json(&mut out, true)?;
                Ok(out)
            }
            (Shape::Metadata(version), _) => {
                self.document(&self.partial(self.converted(shown.object()?)?, version))
            }
            (Shape::Table(version), _) => self.table_of_one(shown, version, true),
        }
    }

    /// A Table with one row.
    fn table_of_one(&self, shown: &Shown, version: &str, with_columns: bool) -> Result<Vec<u8>, Status> {
        let object = shown.object()?;
        let metadata = json!({"resourceVersion": object.resource_version()});
        let rows = vec![self.row(object, version)?];
        self.document(&self.table(version, metadata, with_columns, rows))
    }

    /// A document that has been made as a tree.
    fn document(&self, value: &Value) -> Result<Vec<u8>, Status> {
        match self.format {
            Format::Json | Format::Yaml | Format::Cbor => Ok(value.to_string().into_bytes()),
            Format::Protobuf(_) => {
                protobuf::document(value).ok_or_else(|| Status::internal("the answer has no Protobuf form"))
            }
        }
    }

    /// A list.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes of an item are no object.
    pub(super) fn list(&self, listed: Listed) -> Result<Encoded, Status> {
        let own = matches!(self.shape, Shape::Own | Shape::AggregatedDiscovery(_));
        if own && !self.resource.is_converted() && !matches!(self.format, Format::Protobuf(_)) {
            // So that what cannot be read is a Status, not half of a list.
            listed.items.iter().try_for_each(|item| Shown::check(item))?;
            return Ok(Encoded::Chunks(ListChunks::new(self.opening(&listed), listed.items)));
        }
        self.whole_list(&listed).map(Encoded::Whole)
    }

    fn whole_list(&self, listed: &Listed) -> Result<Vec<u8>, Status> {
        let metadata = list_metadata(listed);
        match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => match self.format {
                Format::Json | Format::Yaml | Format::Cbor => self.converted_list(listed),
                Format::Protobuf(_) => self.own_messages(listed, metadata),
            },
            Shape::Metadata(version) => {
                let items = objects(listed)
                    .map(|object| Ok(self.partial(self.converted(object?)?, version)))
                    .collect::<Result<Vec<_>, Status>>()?;
                self.document(&json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": self.meta_version(version),
                    "metadata": metadata,
                    "items": items,
                }))
            }
            Shape::Table(version) => {
                let rows = objects(listed).map(|object| self.row(object?, version));
                let rows = rows.collect::<Result<Vec<_>, Status>>()?;
                self.document(&self.table(version, metadata, true, rows))
            }
        }
    }

    /// Messages of items are copied once they have been made.
    fn own_messages(&self, listed: &Listed, metadata: Value) -> Result<Vec<u8>, Status> {
        let api_version = self.api_version();
        let schema = protobuf::schema_of(&api_version, self.resource.kind.kind)
            .ok_or_else(|| Status::internal("the kind has no Protobuf form"))?;
        let messages = listed.items.iter().map(|item| {
            let object = || self.converted(Shown::item(Arc::clone(item)).object()?);
            self.plane.messages.item(item, schema, object)
        });
        let messages = messages.collect::<Result<Vec<_>, Status>>()?;
        let metadata = Object::from_value(metadata).unwrap_or_default();
        Ok(protobuf::list(&api_version, &self.resource.list_kind(), metadata, &messages))
    }

    /// Items of another version are made from their trees.
    fn converted_list(&self, listed: &Listed) -> Result<Vec<u8>, Status> {
        let mut out = self.opening(listed);
        for (i, object) in objects(listed).enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let mut object = self.converted(object?)?;
            object.remove("kind");
            object.remove("apiVersion");
            write(&mut out, &object.into_value());
        }
        out.extend_from_slice(b"]}");
        Ok(out)
    }

    /// What stands before the items of a list in JSON.
    fn opening(&self, listed: &Listed) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"kind\":");
        write(&mut out, &Value::from(self.resource.list_kind()));
        out.extend_from_slice(b",\"apiVersion\":");
        write(&mut out, &Value::from(self.api_version()));
        out.extend_from_slice(b",\"metadata\":");
        write(&mut out, &list_metadata(listed));
        out.extend_from_slice(b",\"items\":[");
        out
    }

    /// The object of a watch event. `first`: of this watch; only the first Table has columns.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub(super) fn event_object(&self, shown: &Shown, first: bool) -> Result<Vec<u8>, Status> {
        match self.shape {
            Shape::Table(version) => self.table_of_one(shown, version, first),
            _ => self.object(shown),
        }
    }

    /// The object of a bookmark.
    ///
    /// # Errors
    ///
    /// 500: it has no such form, which negotiation excludes.
    pub(super) fn bookmark(&self, revision: storage::Revision, initial: bool) -> Result<Vec<u8>, Status> {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial && let Value::Object(fields) = &mut metadata {
            let key = self.plane.names.group_key("initial-events-end");
            fields.insert("annotations".into(), json!({key: "true"}));
        }
        let value = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => {
                json!({"kind": self.resource.kind.kind, "apiVersion": self.api_version(), "metadata": metadata})
            }
            Shape::Metadata(version) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": self.meta_version(version), "metadata": metadata})
            }
            Shape::Table(version) => self.table(version, metadata, false, Vec::new()),
        };
        self.document(&value)
    }

    fn api_version(&self) -> String {
        let group = self.resource.group_resource.group.clone();
        GroupVersion { group, version: self.version.to_owned() }.to_string()
    }

    fn meta_version(&self, version: &str) -> String {
        format!("{}/{version}", self.plane.names.meta_group())
    }

    fn partial(&self, mut object: Object, version: &str) -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": self.meta_version(version),
            "metadata": object.remove("metadata").unwrap_or_else(|| json!({})),
        })
    }

    fn columns(&self) -> &'static Table {
        self.resource.kind.strategy.table().unwrap_or(&kinds::table::DEFAULT)
    }

    /// Cells are read from the stored version, whichever is shown beside them.
    fn row(&self, object: Object, version: &str) -> Result<Value, Status> {
        let cells = (self.columns().cells)(&object, &*self.plane.clock);
        let shown = match self.include {
            Include::None => Value::Null,
            Include::Metadata => self.partial(self.converted(object)?, version),
            Include::Object => self.converted(object)?.into_value(),
        };
        Ok(json!({"cells": cells, "object": shown}))
    }

    /// A stored object in the version that is represented.
    fn converted(&self, mut object: Object) -> Result<Object, Status> {
        self.resource.show(&mut object, &self.plane.names).map_err(|error| {
            tracing::error!(%error, kind = self.resource.kind.kind, name = object.name(), "a stored object cannot be converted");
            Status::internal("a stored object cannot be shown in this version")
        })?;
        Ok(object)
    }

    fn table(&self, version: &str, metadata: Value, with_columns: bool, rows: Vec<Value>) -> Value {
        let columns = with_columns.then(|| {
            let columns = self.columns().columns.iter().map(|column| {
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

/// The trees of a list, one after another: only what is shown of them is kept.
fn objects(listed: &Listed) -> impl Iterator<Item = Result<Object, Status>> {
    listed.items.iter().map(|item| Shown::item(Arc::clone(item)).object())
}

fn list_metadata(listed: &Listed) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), listed.revision.to_string().into());
    if !listed.continue_token.is_empty() {
        metadata.insert("continue".into(), listed.continue_token.as_str().into());
    }
    if let Some(remaining) = listed.remaining {
        metadata.insert("remainingItemCount".into(), remaining.into());
    }
    Value::Object(metadata)
}

fn write(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(value.to_string().as_bytes());
}
