//! Schema of a version of a custom kind, compiled on first use.
//!
//! # Invariants
//!
//! INVARIANT (small when idle): until its first use, a schema is in memory only as JSON text.

use std::sync::{Arc, OnceLock};

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use extensions::definition::keywords;
use extensions::structural::{Schema, Validation};
use schema::merge::Merge;
use schema::{ConformReport, TypeError};

use crate::metadata;

/// The schema of a version of a custom kind.
pub struct CustomSchema {
    /// The `openAPIV3Schema` as JSON text, with the stored names of extensions.
    text: Box<str>,
    names: Arc<Names>,
    compiled: OnceLock<Result<Schema, String>>,
}

impl CustomSchema {
    /// Creates the schema of an `openAPIV3Schema`. Its schema extensions must have their stored names.
    pub fn new(schema: &Value, names: Arc<Names>) -> Self {
        CustomSchema { text: schema.to_string().into_boxed_str(), names, compiled: OnceLock::new() }
    }

    /// Size in bytes of the `openAPIV3Schema` as JSON.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// CEL type of the objects; None if the schema declares no type or cannot be compiled.
    pub fn object_type(&self) -> Option<expressions::Type> {
        self.compiled().ok()?.object_type()
    }

    /// The `openAPIV3Schema` for OpenAPI documents, with the names of schema extensions of the names preset.
    pub fn to_document(&self) -> Value {
        let mut schema = self.to_value();
        keywords::schema_to_served(&mut schema, &self.names);
        schema
    }

    fn to_value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    fn compiled(&self) -> Result<&Schema, &str> {
        let compile = || Schema::compile(&self.to_value()).map_err(|error| error.to_string());
        self.compiled.get_or_init(compile).as_ref().map_err(String::as_str)
    }

    /// Checks metadata, drops undeclared fields and sets defaults of an object from a client.
    ///
    /// # Errors
    ///
    /// Metadata has a wrong type, the schema cannot be compiled, or the defaults exceed the decode budget.
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        self.conform_with(object, Schema::conform)
    }

    /// Does the same as [`CustomSchema::conform`] with the result of a server-side apply, but keeps nulls without a
    /// default.
    ///
    /// # Errors
    ///
    /// See [`CustomSchema::conform`].
    pub fn conform_applied(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        self.conform_with(object, Schema::conform_applied)
    }

    fn conform_with(
        &self,
        object: &mut Object,
        conform: fn(&Schema, &mut Object) -> Result<ConformReport, TypeError>,
    ) -> Result<ConformReport, TypeError> {
        let schema = self.compiled().map_err(|reason| {
            TypeError::new("", format!("the schema of the definition cannot be compiled: {reason}"))
        })?;
        let report = conform(schema, object)?;
        schema.default(object)?;
        Ok(report)
    }

    /// Maximum memory in bytes of the defaults that [`CustomSchema::conform`] sets for each null and each object of its
    /// argument.
    pub fn default_bytes(&self) -> usize {
        self.compiled().map_or(0, Schema::default_bytes)
    }

    /// Brings an object from the store, which may follow an older schema, into the form of this schema.
    pub fn refresh(&self, object: &mut Object) {
        if let Ok(schema) = self.compiled() {
            schema.read(object);
        }
    }

    /// Brings an object of another version into the form of this schema. Sets no defaults.
    pub fn repair(&self, object: &mut Object) {
        if let Ok(schema) = self.compiled() {
            schema.repair(object);
        }
    }

    /// Sets the defaults of the schema in an object that [`CustomSchema::conform`] accepted.
    pub fn default(&self, object: &mut Object) {
        if let Ok(schema) = self.compiled() {
            // `conform` has set all defaults before, so the budget suffices.
            let _ = schema.default(object);
        }
    }

    /// Validates an object. `old` is the stored object of an update, whose invalid values are tolerated.
    /// `of_scale` are errors of the values for the subresource `scale`.
    pub fn validate(&self, new: &Object, old: Option<&Object>, of_scale: FieldErrors) -> Validation {
        match self.compiled() {
            Ok(schema) => schema.validate(new, old, of_scale, &metadata::validate_embedded),
            Err(reason) => without_schema(reason),
        }
    }

    /// Validates an object after a write to its status; see [`CustomSchema::validate`].
    pub fn validate_status(&self, new: &Object, old: &Object, of_scale: FieldErrors) -> Validation {
        match self.compiled() {
            Ok(schema) => schema.validate_status(new, old, of_scale),
            Err(reason) => without_schema(reason),
        }
    }

    /// Merge type of the objects.
    pub fn merge_type(&self) -> Merge {
        self.compiled().map_or(Merge::Untyped { atomic: false }, Schema::merge)
    }
}

/// The error of an object whose schema cannot be compiled.
fn without_schema(reason: &str) -> Validation {
    let detail = format!("the schema of the definition cannot be compiled: {reason}");
    let error = FieldError::invalid(&FieldPath::root(), Value::Null, &detail);
    Validation { errors: std::iter::once(error).collect(), warnings: Vec::new() }
}
