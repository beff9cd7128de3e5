//! Structural schemas: the compiled `openAPIV3Schema` of one version, applied to objects.
//!
//! # Contract
//!
//! [`Schema::compile`] reads the JSON of a validated `openAPIV3Schema`. A compiled schema is immutable, and
//! clones share it. It keeps no descriptions. Regular expressions and CEL programs compile on first use.
//!
//! A request body passes these steps in order:
//! 1. [`Schema::conform`] checks metadata, drops unknown fields and drops nulls that no default replaces.
//! 2. [`Schema::default`] sets defaults.
//! 3. [`Schema::validate`] or [`Schema::validate_status`] returns the errors of the object, with ratcheting if
//!    there is an old object.
//!
//! The result of a server-side apply passes [`Schema::conform_applied`] as the first step.
//!
//! [`Schema::read`] converts a stored object, with numbers in normal form. The conversion drops malformed metadata, so
//! that it never fails.
//!
//! [`Schema::merge`] returns the merge type for server-side apply. [`Schema::check_rules`] validates the
//! CEL rules of a definition. [`Schema::part`] compiles one node, for example to validate a default value.
//! [`JsonPath`] selects values for printer columns, the scale subresource and selectable fields.
//!
//! # Invariants
//!
//! INVARIANT (idempotent): conforming an object twice changes nothing more, and neither does defaulting.
//! INVARIANT (ratcheting): an error in a changed value is never tolerated, except duplicates in set and map
//! lists if the old object has such duplicates.
//! INVARIANT (rules come last): rules run only on objects without blocking errors, within
//! [`limits::OBJECT`](expressions::limits::OBJECT) units for each object.
//! INVARIANT (bounded recursion): a schema deeper than [`DEPTH_MAX`] does not compile. No step descends
//! deeper than the schema, except to compare or drop values.
//!
//! # Reference
//!
//! Behaviour, causes and messages follow kube-apiserver 1.33, with CRDValidationRatcheting. Map iteration is
//! random in kube-apiserver; this module visits fields in the order of their names.

mod compile;
mod defaults;
mod json_path;
mod lists;
mod merge;
mod metadata;
mod node;
mod node_rules;
mod place;
mod prune;
mod rules;
mod values;
mod walk;

use std::sync::{Arc, OnceLock};

use apimachinery::codec::{Budget, DecodeError, Limits, json};
use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use schema::merge::Merge;
use schema::{ConformReport, TypeError};

pub use compile::{DEPTH_MAX, SchemaError};
pub use json_path::{JsonPath, JsonPathError};
pub use rules::StoredRules;
pub use values::is_supported_format;

use node::Node;
use place::Data;

/// Validates the metadata of an embedded object at a path, as the metadata of a built-in object.
pub type MetadataRules<'a> = &'a dyn Fn(&Map<String, Value>, &FieldPath) -> FieldErrors;

/// The compiled schema of one version of a custom kind. Clones share one instance.
#[derive(Clone, Debug)]
pub struct Schema(Arc<CompiledSchema>);

/// The content of a compiled schema.
#[derive(Debug)]
struct CompiledSchema {
    root: Node,
    /// Maximum memory in bytes of the defaults of one value.
    default_bytes: u32,
    /// The merge type, built on first use.
    merge: OnceLock<Merge>,
}

/// The result of [`Schema::validate`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// Errors; the caller rejects the object if there are any.
    pub errors: FieldErrors,
    /// Errors of rules on unchanged values, which an update tolerates, as texts of warnings. At most 100.
    pub warnings: Vec<String>,
}

impl Schema {
    /// Compiles the `openAPIV3Schema` of a version. Extensions have their stored names.
    ///
    /// # Errors
    ///
    /// The schema or one of its parts is not an object, or the schema is deeper than [`DEPTH_MAX`].
    pub fn compile(schema: &Value) -> Result<Schema, SchemaError> {
        Ok(Schema::new(compile::root(schema)?))
    }

    /// Compiles a node of a schema, to prune and validate single values such as defaults.
    ///
    /// # Errors
    ///
    /// The node or one of its parts is not an object, or the node is deeper than [`DEPTH_MAX`].
    pub fn part(schema: &Value) -> Result<Schema, SchemaError> {
        Ok(Schema::new(compile::compile_node(schema, 0)?))
    }

    fn new(root: Node) -> Schema {
        let default_bytes = defaults::largest_bytes(&root);
        Schema(Arc::new(CompiledSchema { root, default_bytes, merge: OnceLock::new() }))
    }

    fn root(&self) -> &Node {
        &self.0.root
    }

    /// The CEL type of the objects; None if the schema has no type. In that type `metadata` has only the
    /// fields `name` and `generateName`.
    pub fn object_type(&self) -> Option<expressions::Type> {
        expressions::Type::of_schema(self.root(), "object")
    }

    /// Converts a decoded body: conforms all metadata, drops unknown fields and nulls that are not nullable
    /// and have no default.
    ///
    /// # Errors
    ///
    /// The first metadata field of a wrong type; the response is 400.
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        self.conform_with(object, |fields| defaults::drop_nulls(self.root(), fields))
    }

    /// Converts the result of a server-side apply: as [`conform`](Self::conform), but keeps all nulls. Validation
    /// rejects a null that is not nullable and has no default.
    ///
    /// # Errors
    ///
    /// See [`conform`](Self::conform).
    pub fn conform_applied(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        self.conform_with(object, |_| {})
    }

    fn conform_with(
        &self,
        object: &mut Object,
        convert_nulls: impl FnOnce(&mut Map<String, Value>),
    ) -> Result<ConformReport, TypeError> {
        let mut unknown = metadata::conform(&mut object.0, &FieldPath::root())?;
        unknown.extend(self.prune(object));
        convert_nulls(&mut object.0);
        unknown.extend(metadata::conform_embedded(self.root(), &mut object.0)?);
        unknown.truncate(prune::UNKNOWN_MAX);
        Ok(ConformReport { unknown })
    }

    /// Converts a stored object: as [`conform`](Self::conform), but drops malformed metadata. Then sets
    /// defaults, at most 1 MiB: the others stay absent.
    pub fn read(&self, object: &mut Object) {
        self.repair(object);
        // Defaults above the limit are not set, because the watch cache keeps the objects.
        let _ = defaults::set(self.root(), &mut object.0, &mut Budget::new(defaults::STORED_LIMITS));
    }

    /// Converts an object of another version: as [`read`](Self::read), without defaults.
    pub fn repair(&self, object: &mut Object) {
        object.0.values_mut().for_each(json::normalize_numbers);
        metadata::repair(&mut object.0);
        self.prune(object);
        defaults::drop_nulls(self.root(), &mut object.0);
        metadata::repair_embedded(self.root(), &mut object.0);
    }

    /// Drops unknown fields, and returns their paths, sorted, at most 100.
    /// Keeps `apiVersion`, `kind` and `metadata` of the object and of embedded objects.
    pub fn prune(&self, object: &mut Object) -> Vec<String> {
        prune::object(self.root(), &mut object.0)
    }

    /// Drops unknown fields of a single value, as [`prune`](Self::prune).
    pub fn prune_value(&self, value: &mut Value) -> Vec<String> {
        prune::value(self.root(), value)
    }

    /// Sets the defaults of absent fields, and of nulls that are not nullable.
    ///
    /// # Errors
    ///
    /// The defaults exceed the limits of a request body, [`Limits::BODY`]. The object then has a part of them.
    pub fn default(&self, object: &mut Object) -> Result<(), DecodeError> {
        defaults::set(self.root(), &mut object.0, &mut Budget::new(Limits::BODY))
    }

    /// Maximum memory in bytes of the defaults that [`Schema::default`] sets for each null and each object of its argument.
    pub fn default_bytes(&self) -> usize {
        self.0.default_bytes as usize
    }

    /// Validates an object. With `old` the errors of unchanged values are tolerated, and transition rules
    /// run. `metadata` validates the metadata of embedded objects. `of_scale` are errors of the values for the
    /// subresource `scale`.
    ///
    /// The metadata of the object itself is not validated. If `old` has duplicates in set or map lists,
    /// duplicates are tolerated everywhere. The order of causes is: values, `of_scale`, metadata of embedded
    /// objects, duplicates, rules.
    pub fn validate(
        &self,
        new: &Object,
        old: Option<&Object>,
        of_scale: FieldErrors,
        metadata: MetadataRules<'_>,
    ) -> Validation {
        let (data, old_data) = (Data::Object(&new.0), old.map(|old| Data::Object(&old.0)));
        let mut errors = values::validate(self.root(), data, old_data, &FieldPath::root());
        errors.extend(of_scale);
        errors.extend(metadata::validate_embedded(self.root(), &new.0, metadata));
        self.validate_lists_and_rules(new, old, errors)
    }

    /// Validates an object after a write to its status: like [`validate`](Self::validate), but of the values
    /// only those of the status. The texts of errors name paths below the status.
    pub fn validate_status(&self, new: &Object, old: &Object, of_scale: FieldErrors) -> Validation {
        let mut errors = match self.root().property("status").zip(new.get("status")) {
            Some((node, status)) => {
                let old = old.get("status").map(Data::from_value);
                values::validate(node, Data::from_value(status), old, &FieldPath::new("status"))
            }
            None => FieldErrors::new(),
        };
        errors.extend(of_scale);
        self.validate_lists_and_rules(new, Some(old), errors)
    }

    /// Adds the errors of duplicates and of the rules to the other errors of an object.
    fn validate_lists_and_rules(
        &self,
        new: &Object,
        old: Option<&Object>,
        mut errors: FieldErrors,
    ) -> Validation {
        let (root, path) = (self.root(), FieldPath::root());
        let (data, old) = (Data::Object(&new.0), old.map(|old| Data::Object(&old.0)));
        let tolerated = old.is_some_and(|old| !lists::duplicates(root, old, &path).is_empty());
        if !tolerated {
            errors.extend(lists::duplicates(root, data, &path));
        }
        rules::validate(root, data, old, &path, errors)
    }

    /// Validates a single value such as a default. Paths of errors begin with `path`; texts name paths
    /// below the value. Also validates the metadata of embedded objects, and runs the rules.
    pub fn validate_value(&self, value: &Value, path: &FieldPath, metadata: MetadataRules<'_>) -> Validation {
        let (root, data) = (self.root(), Data::from_value(value));
        let mut errors = metadata::validate_embedded_value(root, value, path, metadata);
        if errors.is_empty() {
            errors = values::validate(root, data, None, path);
            errors.extend(lists::duplicates(root, data, path));
        }
        rules::validate(root, data, None, path, errors)
    }

    /// Validates the expressions of the schema for a definition; `path` is the path of the schema.
    /// Expressions in `stored` may use functions of newer releases. The rules of skipped parts are not
    /// validated.
    pub fn check_rules(
        &self,
        path: &FieldPath,
        stored: &StoredRules,
        names: &Names,
        is_skipped: &dyn Fn(&FieldPath) -> bool,
    ) -> FieldErrors {
        rules::check(self.root(), path, stored, names, is_skipped)
    }

    /// The expressions of all rules, to recognise them after an update of the definition.
    pub fn stored_rules(&self) -> StoredRules {
        rules::stored_rules(self.root())
    }

    /// The merge type of the objects, for server-side apply and patches.
    pub fn merge(&self) -> Merge {
        self.0.merge.get_or_init(|| merge::merge(self.root())).clone()
    }
}

#[cfg(test)]
mod tests;
