//! The kind of a resource: a built-in kind or a custom kind.
//!
//! # Contract
//!
//! A [`KindRef`] is a cheap handle with the same methods for built-in and custom kinds, so that most callers
//! need not distinguish them. A built-in kind is a constant. A custom kind follows from one version of a
//! stored definition and is freed with its last handle. A custom kind has exactly one version; its group is a
//! full group name instead of a stem.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::object::Object;
use schema::merge::Merge;
use schema::{ConformReport, Schema, TypeError};
use serde_json::Value;

use crate::custom::{ConversionWebhook, CustomColumn, CustomSchema, CustomStrategy, CustomTable, ScalePaths};
use crate::{Column, Kind, Storage, Strategy, Subresource, Verb};

/// Go package of the internal type of a kind in kube-apiserver, for messages.
///
/// `type_name` is the schema type of a built-in kind; a custom kind has the package `group`.
pub fn internal_package<'a>(type_name: Option<&'a str>, group: &'a str) -> &'a str {
    match type_name.and_then(|name| name.split_once('/')) {
        // An Event of the group `events` has the internal type of the core group.
        Some(("events", _)) => "core",
        Some((package, _)) => package,
        None => group,
    }
}

/// Facts and rules of a custom kind in one version.
pub struct CustomKind {
    /// Full group name.
    pub group: String,
    /// Version name: `v1`.
    pub version: String,
    /// Kind name.
    pub kind: String,
    /// Kind name of lists.
    pub list_kind: String,
    /// Lower-case plural.
    pub resource: String,
    /// Lower-case singular.
    pub singular: String,
    /// Short names.
    pub short_names: Arc<[String]>,
    /// Categories.
    pub categories: Arc<[String]>,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Whether this is the storage version.
    pub is_storage_version: bool,
    /// Whether apid serves this version. An unserved version exists only as the storage version.
    pub is_served: bool,
    /// The uid of the definition.
    pub definition_uid: Arc<str>,
    /// Whether the definition is being deleted: objects can no longer be created. Shared by all versions.
    pub is_terminating: Arc<AtomicBool>,
    /// The webhook that converts objects between versions; None if a conversion changes only `apiVersion`.
    pub conversion_webhook: Option<Arc<ConversionWebhook>>,
    /// Verbs of the main resource, in discovery order.
    pub verbs: &'static [Verb],
    /// Subresources, in discovery order.
    pub subresources: Vec<Subresource>,
    /// Paths of the subresource `scale`, if the kind has it.
    pub scale: Option<ScalePaths>,
    /// The path to the replicas in each version of the definition, also in versions that are not served, by
    /// `apiVersion`; None for a version without the subresource `scale`. Shared by all versions.
    pub replicas_paths: Arc<BTreeMap<String, Option<Vec<String>>>>,
    /// Selectable fields of this version, in addition to the name and the namespace, as dotted paths.
    pub selectable_fields: Vec<String>,
    /// Fields that the watch cache keeps: the selectable fields of all versions.
    pub indexed_fields: Arc<[String]>,
    /// Columns of the Table representation.
    pub table: CustomTable,
    /// Schema of the objects.
    pub schema: Arc<CustomSchema>,
    /// Rules of the kind.
    pub strategy: CustomStrategy,
    /// Warning for clients of a deprecated version.
    pub deprecation_warning: Option<String>,
}

impl CustomKind {
    /// The `apiVersion` of the objects.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Brings an object from the store into the form of the schema. An object in another version stays
    /// unchanged if the kind has a conversion webhook, and otherwise gets no defaults, as in kube-apiserver.
    pub fn refresh(&self, object: &mut Object) {
        let api_version = self.api_version();
        if object.api_version() == api_version {
            self.schema.refresh(object);
        } else if self.conversion_webhook.is_none() {
            object.set_type(&api_version, &self.kind);
            self.schema.repair(object);
        }
    }
}

/// The short names or categories of a kind.
#[derive(Clone, Copy, Debug)]
pub enum NameList<'a> {
    /// Names of a built-in kind.
    BuiltIn(&'static [&'static str]),
    /// Names of a custom kind, which all its versions share.
    Custom(&'a [String]),
}

impl<'a> NameList<'a> {
    /// Whether there are no names.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// The names in order.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let (built_in, custom) = match self {
            NameList::BuiltIn(names) => (names, &[][..]),
            NameList::Custom(names) => (&[][..], names),
        };
        built_in.iter().copied().chain(custom.iter().map(String::as_str))
    }
}

/// A handle of a kind.
#[derive(Clone)]
pub enum KindRef {
    /// A built-in kind.
    BuiltIn(&'static Kind),
    /// A custom kind.
    Custom(Arc<CustomKind>),
}

/// Schema of a kind.
#[derive(Clone, Copy)]
pub enum SchemaRef<'a> {
    /// A schema of the type table.
    BuiltIn(&'static Schema),
    /// Schema of a custom kind.
    Custom(&'a CustomSchema),
}

/// Columns of a kind.
#[derive(Clone, Copy)]
pub enum TableRef<'a> {
    /// Columns of a built-in kind.
    BuiltIn(&'static Kind),
    /// Columns of a custom kind.
    Custom(&'a CustomTable),
}

impl KindRef {
    /// Group stem of a built-in kind, full group name of a custom kind.
    pub fn group(&self) -> &str {
        match self {
            KindRef::BuiltIn(kind) => kind.group,
            KindRef::Custom(kind) => &kind.group,
        }
    }

    /// Kind name.
    pub fn kind(&self) -> &str {
        match self {
            KindRef::BuiltIn(kind) => kind.kind,
            KindRef::Custom(kind) => &kind.kind,
        }
    }

    /// Kind name of the lists.
    pub fn list_kind(&self) -> String {
        match self {
            KindRef::BuiltIn(kind) => format!("{}List", kind.kind),
            KindRef::Custom(kind) => kind.list_kind.clone(),
        }
    }

    /// Lower-case plural.
    pub fn resource(&self) -> &str {
        match self {
            KindRef::BuiltIn(kind) => kind.resource,
            KindRef::Custom(kind) => &kind.resource,
        }
    }

    /// Lower-case singular.
    pub fn singular(&self) -> String {
        match self {
            KindRef::BuiltIn(kind) => kind.kind.to_lowercase(),
            KindRef::Custom(kind) => kind.singular.clone(),
        }
    }

    /// Short names.
    pub fn short_names(&self) -> NameList<'_> {
        match self {
            KindRef::BuiltIn(kind) => NameList::BuiltIn(kind.short_names),
            KindRef::Custom(kind) => NameList::Custom(&kind.short_names),
        }
    }

    /// Categories.
    pub fn categories(&self) -> NameList<'_> {
        match self {
            KindRef::BuiltIn(kind) => NameList::BuiltIn(kind.categories),
            KindRef::Custom(kind) => NameList::Custom(&kind.categories),
        }
    }

    /// Preferred version.
    pub fn version(&self) -> &str {
        match self {
            KindRef::BuiltIn(kind) => kind.version,
            KindRef::Custom(kind) => &kind.version,
        }
    }

    /// Versions of this kind, which share its schema; the preferred version is first.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.version()).chain(self.facts().older_versions.iter().copied())
    }

    /// Whether the kind has a version.
    pub fn has_version(&self, version: &str) -> bool {
        self.versions().any(|known| known == version)
    }

    /// Whether objects are namespaced.
    pub fn namespaced(&self) -> bool {
        match self {
            KindRef::BuiltIn(kind) => kind.namespaced,
            KindRef::Custom(kind) => kind.namespaced,
        }
    }

    /// Effect of the creation of an object: whether and how apid stores the object.
    pub fn storage(&self) -> Storage {
        match self {
            KindRef::BuiltIn(kind) => kind.storage,
            KindRef::Custom(kind) if kind.is_storage_version => Storage::Stored,
            KindRef::Custom(_) => Storage::Shared(""),
        }
    }

    /// Verbs of the main resource, in discovery order.
    pub fn verbs(&self) -> &'static [Verb] {
        match self {
            KindRef::BuiltIn(kind) => kind.verbs,
            KindRef::Custom(kind) => kind.verbs,
        }
    }

    /// Verbs that discovery lists. If the definition of the kind is being deleted, these are only the verbs
    /// that read or delete objects, although clients can still update the objects.
    pub fn discovery_verbs(&self) -> &'static [Verb] {
        match self {
            KindRef::Custom(_) if self.is_terminating() => {
                &[Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List, Verb::Watch]
            }
            _ => self.verbs(),
        }
    }

    /// Whether the definition is being deleted: objects can no longer be created.
    pub fn is_terminating(&self) -> bool {
        matches!(self, KindRef::Custom(kind) if kind.is_terminating.load(Ordering::Acquire))
    }

    /// The webhook that converts objects between versions, if the kind has one.
    pub fn conversion_webhook(&self) -> Option<&Arc<ConversionWebhook>> {
        match self {
            KindRef::BuiltIn(_) => None,
            KindRef::Custom(kind) => kind.conversion_webhook.as_ref(),
        }
    }

    /// Subresources, in discovery order.
    pub fn subresources(&self) -> &[Subresource] {
        match self {
            KindRef::BuiltIn(kind) => kind.subresources,
            KindRef::Custom(kind) => &kind.subresources,
        }
    }

    /// The subresource with a name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources().iter().find(|subresource| subresource.name == name)
    }

    /// Kind of the bodies of a subresource.
    pub fn body_kind(&self, subresource: &Subresource) -> &str {
        if subresource.kind.is_empty() { self.kind() } else { subresource.kind }
    }

    /// Schema of the kind; None only for a built-in kind that the type table lacks. A test excludes such
    /// kinds.
    pub fn schema(&self) -> Option<SchemaRef<'_>> {
        match self {
            KindRef::BuiltIn(kind) => Schema::of(kind.schema).map(SchemaRef::BuiltIn),
            KindRef::Custom(kind) => Some(SchemaRef::Custom(&kind.schema)),
        }
    }

    /// Schema type of the storage version; None for a custom kind.
    pub fn type_name(&self) -> Option<&'static str> {
        match self {
            KindRef::BuiltIn(kind) => Some(kind.schema),
            KindRef::Custom(_) => None,
        }
    }

    /// Go package of the internal type in kube-apiserver, for messages about other kinds.
    pub fn internal_package(&self) -> &str {
        internal_package(self.type_name(), self.group())
    }

    /// Fields of stored objects that the watch cache keeps for field selectors, as dotted paths.
    pub(crate) fn indexed_fields(&self) -> Vec<&str> {
        match self {
            KindRef::BuiltIn(kind) => kind.selectable_fields.to_vec(),
            KindRef::Custom(kind) => kind.indexed_fields.iter().map(String::as_str).collect(),
        }
    }

    /// Selectable fields in addition to the name and the namespace, as dotted paths.
    pub fn selectable_fields(&self) -> Vec<&str> {
        match self {
            KindRef::BuiltIn(kind) => kind.selectable_fields.to_vec(),
            KindRef::Custom(kind) => kind.selectable_fields.iter().map(String::as_str).collect(),
        }
    }

    /// Facts about writes, deletes and metadata. All custom kinds have the same [`Kind`] here, which does not
    /// contain their names, scope, versions, subresources, fields and columns.
    pub fn facts(&self) -> &'static Kind {
        static CUSTOM: Kind = Kind::CUSTOM;
        match self {
            KindRef::BuiltIn(kind) => kind,
            KindRef::Custom(_) => &CUSTOM,
        }
    }

    /// Rules of the kind.
    pub fn strategy(&self) -> &dyn Strategy {
        match self {
            KindRef::BuiltIn(kind) => kind.strategy,
            KindRef::Custom(kind) => &kind.strategy,
        }
    }

    /// Columns of the Table representation.
    pub fn table(&self) -> TableRef<'_> {
        match self {
            KindRef::BuiltIn(kind) => TableRef::BuiltIn(kind),
            KindRef::Custom(kind) => TableRef::Custom(&kind.table),
        }
    }

    /// Whether the ordinary verbs read and write a subresource as a part of the object.
    /// The [`Strategy`] of the kind decides which fields a write may change. Other subresources have bodies
    /// of another kind or are not implemented; verbs without support return 501.
    pub fn is_part(&self, subresource: &Subresource) -> bool {
        self.body_kind(subresource) == self.kind()
            && subresource.group_version.is_none()
            && !self.facts().unimplemented_subresources.contains(&subresource.name)
    }

    /// Whether the kind has the subresource `status`.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

impl fmt::Debug for KindRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl SchemaRef<'_> {
    /// Checks types, drops undeclared fields, and normalizes an object to the stored form.
    ///
    /// # Errors
    ///
    /// The first value of a wrong type. In an object of a custom kind, only the metadata is checked.
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        match self {
            SchemaRef::BuiltIn(schema) => schema.conform(object),
            SchemaRef::Custom(schema) => schema.conform(object),
        }
    }

    /// Conforms the result of a server-side apply. An object of a custom kind keeps its nulls, which validation rejects
    /// if they are not nullable.
    ///
    /// # Errors
    ///
    /// See [`SchemaRef::conform`].
    pub fn conform_applied(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        match self {
            SchemaRef::BuiltIn(schema) => schema.conform(object),
            SchemaRef::Custom(schema) => schema.conform_applied(object),
        }
    }

    /// Merge type of the objects.
    pub fn merge(&self) -> Merge {
        match self {
            SchemaRef::BuiltIn(schema) => schema.merge(),
            SchemaRef::Custom(schema) => schema.merge_type(),
        }
    }

    /// An object without fields, in stored form.
    pub fn empty(&self) -> Object {
        match self {
            SchemaRef::BuiltIn(schema) => schema.empty(),
            SchemaRef::Custom(_) => Object::default(),
        }
    }

    /// The schema of the type table; None for a custom kind.
    pub fn built_in(&self) -> Option<&'static Schema> {
        match self {
            SchemaRef::BuiltIn(schema) => Some(schema),
            SchemaRef::Custom(_) => None,
        }
    }
}

impl TableRef<'_> {
    /// The columns of the Table representation.
    pub fn columns(&self) -> Vec<CustomColumn> {
        match self {
            TableRef::BuiltIn(kind) => kind.columns.iter().map(convert_column).collect(),
            TableRef::Custom(table) => table.columns(),
        }
    }

    /// Cells of an object, one per column.
    pub fn cells(&self, object: &Object, clock: &dyn Clock, names: &Names) -> Vec<Value> {
        match self {
            TableRef::BuiltIn(kind) => kind.row(object, clock, names),
            TableRef::Custom(table) => table.cells(object, clock),
        }
    }
}

fn convert_column(column: &Column) -> CustomColumn {
    CustomColumn {
        name: column.name.to_owned(),
        kind: column.kind.to_owned(),
        format: column.format.to_owned(),
        description: column.description.to_owned(),
        priority: column.priority.into(),
    }
}
