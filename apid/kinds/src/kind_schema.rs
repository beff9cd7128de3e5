//! The schema of a kind: a type of the type table, or the schema of a definition.

use std::sync::Arc;

use apimachinery::object::Object;
use schema::merge::Merge;
use schema::{ConformReport, Schema, TypeError};

use crate::custom::CustomSchema;

/// Schema of a kind. Both forms are compiled on first use.
#[derive(Clone)]
pub enum KindSchema {
    /// The name of a type in the type table: `core/v1.ConfigMap`. A test excludes types that the table lacks.
    Table(&'static str),
    /// The schema of a version of a definition.
    Definition(Arc<CustomSchema>),
}

impl KindSchema {
    /// The name of the type in the type table; None for a custom kind.
    pub fn type_name(&self) -> Option<&'static str> {
        match self {
            KindSchema::Table(name) => Some(name),
            KindSchema::Definition(_) => None,
        }
    }

    /// The type of the type table; None for a custom kind.
    pub fn table_type(&self) -> Option<&'static Schema> {
        self.type_name().and_then(Schema::of)
    }

    /// The schema of the definition of a custom kind.
    pub fn definition(&self) -> Option<&CustomSchema> {
        match self {
            KindSchema::Table(_) => None,
            KindSchema::Definition(schema) => Some(schema),
        }
    }

    /// Checks types, drops undeclared fields, and normalizes an object to the stored form.
    ///
    /// # Errors
    ///
    /// The first value of a wrong type. In an object of a custom kind, only the metadata is checked.
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        match self {
            KindSchema::Table(name) => {
                Schema::of(name).map_or_else(|| Ok(ConformReport::default()), |schema| schema.conform(object))
            }
            KindSchema::Definition(schema) => schema.conform(object),
        }
    }

    /// Conforms the result of a server-side apply. An object of a custom kind keeps its nulls, which validation rejects
    /// if they are not nullable.
    ///
    /// # Errors
    ///
    /// See [`KindSchema::conform`].
    pub fn conform_applied(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        match self {
            KindSchema::Table(_) => self.conform(object),
            KindSchema::Definition(schema) => schema.conform_applied(object),
        }
    }

    /// Merge type of the objects.
    pub fn merge(&self) -> Merge {
        match self {
            KindSchema::Table(name) => {
                Schema::of(name).map_or(Merge::Untyped { atomic: false }, Schema::merge)
            }
            KindSchema::Definition(schema) => schema.merge_type(),
        }
    }

    /// An object without fields, in stored form.
    pub fn empty(&self) -> Object {
        self.table_type().map(Schema::empty).unwrap_or_default()
    }
}
