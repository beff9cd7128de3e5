//! Custom kinds: resources of the versions of a CustomResourceDefinition.
//!
//! # Contract
//!
//! [`resources`] reads a stored definition, which its own strategy has validated, and returns one [`Resource`] for
//! each served version and for the storage version. A [`Compiler`] provides the schema and the paths of columns.
//! The names of the resources are the accepted names of the status. [`compare_versions`] is the order of versions
//! in discovery.
//!
//! # Invariants
//!
//! INVARIANT (no panic): a definition that lacks a field gives no resource or an error, never a panic.

use std::cmp::Ordering;
use std::sync::Arc;

use apimachinery::field::FieldErrors;
use apimachinery::object::{Object, Value};
use schema::merge::Merge;
use schema::{ConformReport, Schema, TypeError};

use crate::table::cell::PathReader;
use crate::{CustomKind, Resource, STANDARD_VERBS, Subresource, scale};

mod strategy;
mod table;
#[cfg(test)]
mod tests;

pub use strategy::CustomStrategy;
pub use table::{CustomColumn, CustomTable};

/// Schema of the objects of a custom kind.
pub trait ObjectSchema: Send + Sync {
    /// Drops undeclared fields and sets defaults of an object from a client. Metadata conforms to its type
    /// already.
    ///
    /// # Errors
    ///
    /// The metadata of an embedded object has a wrong type.
    fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError>;

    /// Brings an object from the store, which may follow an older schema, into the form of this schema.
    fn refresh(&self, object: &mut Object);

    /// Sets defaults.
    fn default(&self, object: &mut Object);

    /// Validates an object. `old` is the stored object of an update.
    fn validate(&self, new: &Object, old: Option<&Object>) -> FieldErrors;

    /// Merge type of the objects.
    fn merge(&self) -> Merge;
}

/// A path of a printer column or selectable field.
pub trait ValuePath: Send + Sync {
    /// The first value at the path.
    fn find<'o>(&self, object: &'o Object) -> Option<&'o Value>;
}

/// Compiler of the parts of a definition.
pub trait Compiler {
    /// Compiles the schema of a version, an element of `spec.versions` of the definition.
    ///
    /// # Errors
    ///
    /// The schema cannot be compiled.
    fn schema(&self, definition: &Object, version: &Value) -> Result<Arc<dyn ObjectSchema>, String>;

    /// Compiles a JSONPath.
    ///
    /// # Errors
    ///
    /// The path is malformed.
    fn path(&self, path: &str) -> Result<Box<dyn ValuePath>, String>;
}

/// Checks the type of the metadata and applies the schema.
pub(crate) fn conform(schema: &dyn ObjectSchema, object: &mut Object) -> Result<ConformReport, TypeError> {
    conform_metadata(object)?;
    schema.conform(object)
}

/// Brings kind, apiVersion and metadata into stored form, and nothing else.
fn conform_metadata(object: &mut Object) -> Result<(), TypeError> {
    const META: &str = "metadata";
    let Some(metadata_type) = Schema::of("meta/v1.PartialObjectMetadata") else { return Ok(()) };
    let mut head = Object::default();
    for field in ["kind", "apiVersion", META] {
        if let Some(value) = object.remove(field) {
            head.set(field, value);
        }
    }
    metadata_type.conform(&mut head)?;
    for (field, value) in head.0 {
        object.set(&field, value);
    }
    Ok(())
}

/// Returns the resources of a definition: its versions in the order of discovery. Versions that are neither
/// served nor stored have no resource.
///
/// # Errors
///
/// The definition has no storage version, or a schema or path cannot be compiled.
pub fn resources(definition: &Object, compiler: &dyn Compiler) -> Result<Vec<Arc<Resource>>, String> {
    let versions = definition.items("spec.versions");
    let stored = versions.iter().find(|version| version.flag("storage"));
    let stored = stored.ok_or("the definition has no storage version")?;
    let mut indexed: Vec<String> = versions.iter().flat_map(selectable_fields).collect();
    indexed.sort_unstable();
    indexed.dedup();
    let compiled = |version: &Value| version_of(definition, version, compiler, &indexed);
    let storage = Arc::new(Resource::custom(Arc::new(compiled(stored)?), None));
    let mut all = vec![Arc::clone(&storage)];
    for version in versions.iter().filter(|version| version.flag("served") && !version.flag("storage")) {
        all.push(Arc::new(Resource::custom(Arc::new(compiled(version)?), Some(Arc::clone(&storage)))));
    }
    all.sort_by(|a, b| compare_versions(b.kind.version(), a.kind.version()));
    Ok(all)
}

fn version_of(
    definition: &Object,
    version: &Value,
    compiler: &dyn Compiler,
    indexed_fields: &[String],
) -> Result<CustomKind, String> {
    let text = |path: &str| definition.text(path).to_owned();
    let texts = |path: &str| -> Vec<String> {
        definition.items(path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let schema = compiler.schema(definition, version)?;
    let name = version.text("name");
    let mut subresources = Vec::new();
    let scale = version.find("subresources.scale").filter(|scale| scale.is_object()).map(scale_paths);
    if scale.is_some() {
        subresources.push(Subresource::scale());
    }
    if version.find("subresources.status").is_some_and(Value::is_object) {
        subresources.push(Subresource::status(""));
    }
    let terminating = definition.is_terminating();
    Ok(CustomKind {
        group: text("spec.group"),
        version: name.to_owned(),
        kind: text("status.acceptedNames.kind"),
        list_kind: text("status.acceptedNames.listKind"),
        resource: text("status.acceptedNames.plural"),
        singular: text("status.acceptedNames.singular"),
        short_names: texts("status.acceptedNames.shortNames"),
        categories: texts("status.acceptedNames.categories"),
        namespaced: definition.text("spec.scope") == "Namespaced",
        is_storage_version: version.flag("storage"),
        is_served: version.flag("served"),
        is_terminating: terminating,
        verbs: STANDARD_VERBS,
        subresources,
        scale,
        selectable_fields: selectable_fields(version),
        indexed_fields: indexed_fields.to_vec(),
        table: CustomTable::new(version.items("additionalPrinterColumns"), compiler)?,
        strategy: CustomStrategy::new(Arc::clone(&schema), deprecation(definition, version)),
        schema,
    })
}

/// Selectable fields without the leading dot.
fn selectable_fields(version: &Value) -> Vec<String> {
    let paths = version.items("selectableFields").iter().map(|field| field.text("jsonPath"));
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).to_owned()).collect()
}

/// Paths of the subresource `scale`: simple JSONPaths like `.spec.replicas`.
fn scale_paths(scale: &Value) -> scale::Paths {
    let path = |field: &str| {
        let path = scale.text(field);
        path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let label_selector = Some(path("labelSelectorPath")).filter(|path| !path.is_empty());
    scale::Paths {
        spec_replicas: path("specReplicasPath"),
        status_replicas: path("statusReplicasPath"),
        label_selector,
    }
}

/// Warning of a deprecated version: its own text, or the version to use instead.
fn deprecation(definition: &Object, version: &Value) -> Option<String> {
    if !version.flag("deprecated") {
        return None;
    }
    if let Some(text) = version.find("deprecationWarning").and_then(Value::as_str) {
        return Some(text.to_owned());
    }
    let (group, kind, name) =
        (definition.text("spec.group"), definition.text("spec.names.kind"), version.text("name"));
    let newer = definition.items("spec.versions").iter().filter(|other| {
        other.flag("served")
            && !other.flag("deprecated")
            && compare_versions(other.text("name"), name) == Ordering::Greater
    });
    let newest = newer.map(|other| other.text("name")).max_by(|a, b| compare_versions(a, b));
    let instead = newest.map_or_else(String::new, |newest| format!("; use {group}/{newest} {kind}"));
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

/// Compares versions by their priority: a stable version is greater than a beta and a beta than an alpha, then by
/// number. Other names follow, in reverse alphabetical order.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (2 is stable), major and minor number of `v1`, `v2beta1`.
fn parse_version(version: &str) -> Option<(u8, u64, u64)> {
    let number = |text: &str| -> Option<u64> {
        let is_canonical = text.starts_with(|c: char| ('1'..='9').contains(&c));
        if is_canonical && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
    };
    let rest = version.strip_prefix('v')?;
    for (stability, word) in [(1, "beta"), (0, "alpha")] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}
