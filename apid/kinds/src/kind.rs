//! A kind: a type of object in one API version, with its facts and its rules.
//!
//! # Contract
//!
//! A [`Kind`] is built from a row of the built-in table or from one version of a CustomResourceDefinition, and shared
//! as `Arc<Kind>`. Code that reads a kind does not ask which of the two it is, except where kube-apiserver treats custom
//! kinds differently ([`Kind::is_custom`]). A kind has these parts:
//!
//! - names: [`Kind::group_resource`], [`Kind::group_kind`] and [`KindNames`]; [`Kind::key`] makes storage keys;
//! - schema: [`KindSchema`] checks and completes objects;
//! - columns: [`Kind::columns`] and [`Kind::cells`] make the Table representation;
//! - subresources: [`Kind::subresources`];
//! - rules: [`WriteRules`] do not depend on an object, a [`Strategy`] does. The methods in `object_steps` apply both.
//!
//! The versions of a kind are separate values that share names, scope and storage keys. [`Kind::stored`] is the
//! storage version. The verbs work in [`Kind::internal`]: the storage version of a built-in kind, as kube-apiserver
//! works in an internal version, and the served version of a custom kind.
//!
//! # Invariants
//!
//! INVARIANT (immutable): a kind does not change, except that its definition can become terminating. A change of a
//! definition makes other values, so that equal pointers mean equal kinds.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::clock::Clock;
use apimachinery::gvk::{GroupKind, GroupResource, GroupVersion};
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::custom::{ConversionWebhook, CustomColumn, CustomStrategy, CustomTable, ScalePaths};
use crate::lifecycle::{self, Release};
use crate::{
    BindingAction, BuiltInKind, Conversion, EnabledVersions, KindSchema, Storage, Strategy, Subresource,
    Translation, UnenforcedKind, Verb, WriteRules,
};

/// Prefix of the storage keys of all custom kinds. No group stem of a built-in kind is `custom`. So a custom
/// kind shares no key with a built-in kind, even if its group has the name of a stem.
pub(crate) const CUSTOM_KEYS: &str = "custom/";

/// A kind in one version under a names preset.
pub struct Kind {
    /// Full group name and lower-case plural, as in URLs.
    pub group_resource: GroupResource,
    /// Full group name and kind name.
    pub group_kind: GroupKind,
    /// The version and the other names.
    pub names: KindNames,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Whether and in which form apid stores the objects.
    pub storage: Storage,
    /// Prefix of the storage keys, with the trailing slash. The prefix of a built-in kind contains the group
    /// stem, so it does not depend on the names preset. The prefix of a custom kind contains the full group
    /// name.
    pub key_prefix: String,
    /// Hash of the full group name and the plural name. All versions of the kind have the same hash, also
    /// after a change of its definition.
    pub hash: u64,
    /// Schema of the objects.
    pub schema: KindSchema,
    /// Verbs of the main resource, in discovery order.
    pub verbs: &'static [Verb],
    /// Subresources, in discovery order.
    pub subresources: Box<[Subresource]>,
    /// Fields for field selectors.
    pub fields: SelectableFields,
    /// Rules of writes and deletes that do not depend on an object.
    pub rules: WriteRules,
    /// The deprecation of this version; None if it is not deprecated.
    pub deprecation: Option<Deprecation>,
    /// The reason why objects of the kind have no effect; None if they have an effect.
    pub unenforced: Option<&'static UnenforcedKind>,
    /// The source of the kind, with the facts that only one of the sources has.
    pub(crate) source: KindSource,
    /// The storage version; None if this is the storage version, or if the kind is not stored.
    pub(crate) storage_version: Option<Arc<Kind>>,
}

/// The version of a kind, and its names for lists and for clients that complete or abbreviate names.
pub struct KindNames {
    /// Version; the preferred version if there are older versions.
    pub version: String,
    /// Older versions with the same schema. Only a body of a subresource has them.
    pub older_versions: &'static [&'static str],
    /// Kind name of the lists.
    pub list: String,
    /// Lower-case singular.
    pub singular: String,
    /// Short names. The versions of a definition share one allocation.
    pub short_names: Arc<[String]>,
    /// Categories. The versions of a definition share one allocation.
    pub categories: Arc<[String]>,
}

/// The fields of a kind for field selectors, as dotted paths.
pub struct SelectableFields {
    /// Selectable fields in addition to the name and the namespace.
    pub names: Box<[String]>,
    /// Former names of selectable fields that clients may still send, each with the present name.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Fields that the watch cache keeps: the selectable fields of all versions.
    pub(crate) indexed: Arc<[String]>,
    /// Paths that [`Strategy::field`] reads in addition to the indexed fields.
    pub(crate) sources: &'static [&'static str],
}

/// The source of a kind.
pub(crate) enum KindSource {
    /// A row of the built-in table.
    BuiltIn(&'static BuiltInKind),
    /// A version of a definition.
    Definition(Box<Definition>),
}

/// Facts that only a custom kind has.
pub struct Definition {
    /// The uid of the definition.
    pub uid: Arc<str>,
    /// Whether apid serves this version. An unserved version exists only as the storage version.
    pub is_served: bool,
    /// The webhook that converts objects between versions; None if a conversion changes only `apiVersion`.
    pub conversion_webhook: Option<Arc<ConversionWebhook>>,
    /// Paths of the subresource `scale`, if the kind has it.
    pub scale: Option<ScalePaths>,
    /// The path to the replicas in each version of the definition, also in versions that are not served, by
    /// `apiVersion`; None for a version without the subresource `scale`. Shared by all versions.
    pub replicas_paths: Arc<BTreeMap<String, Option<Vec<String>>>>,
    /// Whether the definition is being deleted: objects can no longer be created. Shared by all versions.
    pub(crate) is_terminating: Arc<AtomicBool>,
    pub(crate) table: CustomTable,
    pub(crate) strategy: CustomStrategy,
}

/// The deprecation of a served version of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The warning for clients.
    pub warning: String,
    /// The release that removes the version, if it is known.
    pub removed_release: Option<Release>,
}

impl Kind {
    /// Builds the kind of a row, without its storage version.
    pub(crate) fn built_in(row: &'static BuiltInKind, names: &Names, versions: &EnabledVersions) -> Self {
        let group = names.group(row.group);
        let stem = match row.storage {
            Storage::Shared(stem) => stem,
            _ => row.group,
        };
        let stem = if stem.is_empty() { "core" } else { stem };
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let deprecation = lifecycle::of_kind(row.group, row.version, row.kind).and_then(|version| {
            Some(Deprecation { warning: version.warning(names)?, removed_release: version.removed })
        });
        Kind {
            group_resource: GroupResource { group: group.clone(), resource: row.resource.to_owned() },
            names: KindNames {
                version: row.version.to_owned(),
                older_versions: row.older_versions,
                list: format!("{}List", row.kind),
                singular: row.kind.to_lowercase(),
                short_names: owned(row.short_names).into(),
                categories: owned(row.categories).into(),
            },
            namespaced: row.namespaced,
            storage: row.storage,
            key_prefix: format!("{stem}/{}/", row.resource),
            hash: hash(&group, row.resource),
            group_kind: GroupKind { group, kind: row.kind.to_owned() },
            schema: KindSchema::Table(row.schema),
            verbs: row.verbs,
            subresources: row.subresources.into(),
            fields: SelectableFields {
                names: owned(row.selectable_fields).into(),
                aliases: row.field_aliases,
                indexed: owned(row.selectable_fields).into(),
                sources: row.field_sources,
            },
            rules: row.rules,
            deprecation,
            unenforced: versions.unenforced(row),
            source: KindSource::BuiltIn(row),
            storage_version: None,
        }
    }

    /// Whether the kind is a custom kind.
    pub fn is_custom(&self) -> bool {
        self.definition().is_some()
    }

    /// The facts of the definition of a custom kind; None for a built-in kind.
    pub fn definition(&self) -> Option<&Definition> {
        match &self.source {
            KindSource::BuiltIn(_) => None,
            KindSource::Definition(definition) => Some(definition),
        }
    }

    /// The row of a built-in kind; None for a custom kind.
    pub fn row(&self) -> Option<&'static BuiltInKind> {
        match self.source {
            KindSource::BuiltIn(row) => Some(row),
            KindSource::Definition(_) => None,
        }
    }

    /// Kind name: `ConfigMap`.
    pub fn name(&self) -> &str {
        &self.group_kind.kind
    }

    /// Lower-case plural: `configmaps`.
    pub fn plural(&self) -> &str {
        &self.group_resource.resource
    }

    /// Group stem of a built-in kind; None for a custom kind, even if its group has the name of a stem.
    pub fn stem(&self) -> Option<&'static str> {
        self.row().map(|row| row.group)
    }

    /// Preferred version.
    pub fn version(&self) -> &str {
        &self.names.version
    }

    /// Versions that share the schema of this kind; the preferred version is first.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.version()).chain(self.names.older_versions.iter().copied())
    }

    /// Whether the kind has a version.
    pub fn has_version(&self, version: &str) -> bool {
        self.versions().any(|known| known == version)
    }

    /// The `apiVersion` of the objects in the preferred version.
    pub fn api_version(&self) -> String {
        let version = self.version().to_owned();
        GroupVersion { group: self.group_resource.group.clone(), version }.to_string()
    }

    /// The storage version, or this version if it is the storage version or is not stored.
    pub fn stored(&self) -> &Kind {
        self.storage_version.as_deref().unwrap_or(self)
    }

    /// The version in which the verbs work: the storage version of a built-in kind, this version of a custom kind.
    pub fn internal(self: &Arc<Self>) -> &Arc<Kind> {
        self.storage_version.as_ref().filter(|_| !self.is_custom()).unwrap_or(self)
    }

    /// The storage version of a built-in kind, if this is another version. Objects of custom kinds are converted when
    /// they are read and written.
    pub(crate) fn converted_from(&self) -> Option<&Kind> {
        self.storage_version.as_deref().filter(|_| !self.is_custom())
    }

    /// Whether this is a version of a stored kind other than its storage version.
    pub fn is_other_version(&self) -> bool {
        self.storage_version.is_some()
    }

    /// Whether this is a non-storage version of a built-in kind: its stored objects are converted for each response.
    pub fn is_converted(&self) -> bool {
        self.converted_from().is_some()
    }

    /// Storage key of an object: `<prefix><namespace>/<name>` or `<prefix><name>`.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            [self.key_prefix.as_str(), namespace, "/", name].concat()
        } else {
            [self.key_prefix.as_str(), name].concat()
        }
    }

    /// Namespace and name of a storage key; None for a key of another kind.
    /// The namespace of cluster-scoped kinds is `""`.
    pub fn parse_key<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(self.key_prefix.as_str())?;
        if self.namespaced { rest.split_once('/') } else { Some(("", rest)) }
    }

    /// Whether the definition is being deleted: objects can no longer be created.
    pub fn is_terminating(&self) -> bool {
        self.definition().is_some_and(|definition| definition.is_terminating.load(Ordering::Acquire))
    }

    /// Verbs that discovery lists. If the definition of the kind is being deleted, these are only the verbs that read
    /// or delete objects. Clients can still update the objects.
    pub fn discovery_verbs(&self) -> &'static [Verb] {
        if self.is_terminating() {
            return &[Verb::Delete, Verb::DeleteCollection, Verb::Get, Verb::List, Verb::Watch];
        }
        self.verbs
    }

    /// The subresource with a name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Kind name of the bodies of a subresource.
    pub fn body_kind(&self, subresource: &Subresource) -> &str {
        if subresource.kind.is_empty() { self.name() } else { subresource.kind }
    }

    /// Whether the ordinary verbs read and write a subresource as a part of the object.
    /// The [`Strategy`] of the kind decides which fields a write may change. Other subresources have bodies
    /// of another kind, or forward requests.
    pub fn is_part(&self, subresource: &Subresource) -> bool {
        self.body_kind(subresource) == self.name()
            && subresource.group_version.is_none()
            && subresource.verbs.contains(&Verb::Update)
    }

    /// Whether the kind has the subresource `status`.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// Go package of the internal type in kube-apiserver, for messages about other kinds.
    pub fn internal_package(&self) -> &str {
        internal_package(self.schema.type_name(), &self.group_kind.group)
    }

    /// Storage-version name of a selectable field of this version; None if the field is not selectable.
    /// `metadata.name` and `metadata.namespace` are the same in all versions.
    pub fn stored_field<'a>(&self, field: &'a str) -> Option<&'a str> {
        if matches!(field, "metadata.name" | "metadata.namespace") {
            return Some(field);
        }
        let alias =
            self.fields.aliases.iter().find(|(former, _)| *former == field).map(|(_, present)| *present);
        let renamed = self.conversion().and_then(|conversion| conversion.stored_field(field)).or(alias);
        renamed.or_else(|| self.fields.names.iter().any(|name| name == field).then_some(field))
    }

    /// Columns of the Table representation.
    pub fn columns(&self) -> Vec<CustomColumn> {
        match &self.source {
            KindSource::BuiltIn(row) => row.columns.iter().map(CustomColumn::from).collect(),
            KindSource::Definition(definition) => definition.table.columns(),
        }
    }

    /// Cells of an object in the Table representation, one per column.
    pub fn cells(&self, object: &Object, clock: &dyn Clock, names: &Names) -> Vec<Value> {
        match &self.source {
            KindSource::BuiltIn(row) => {
                let mut computed = (row.cells)(object, clock).into_iter();
                let cells = row.columns.iter().map(|column| {
                    column.source.cell(object, clock, names).or_else(|| computed.next()).unwrap_or_default()
                });
                cells.collect()
            }
            KindSource::Definition(definition) => definition.table.cells(object, clock),
        }
    }

    /// Rules of the kind that depend on an object.
    pub fn strategy(&self) -> &dyn Strategy {
        match &self.source {
            KindSource::BuiltIn(row) => row.strategy,
            KindSource::Definition(definition) => &definition.strategy,
        }
    }

    /// Whether apid computes the objects at each read and stores none.
    pub fn is_computed(&self) -> bool {
        self.row().is_some_and(|row| row.computed)
    }

    /// Rules of a binding-like kind ([`Storage::BindingLike`]).
    pub fn binding_action(&self) -> Option<&'static dyn BindingAction> {
        self.row()?.binding_action
    }

    /// Conversion to and from the storage version, for a non-storage version of a built-in kind.
    pub(crate) fn conversion(&self) -> Option<&'static dyn Conversion> {
        self.row()?.conversion
    }

    /// The webhook that converts objects between versions, if the kind has one.
    pub fn conversion_webhook(&self) -> Option<&Arc<ConversionWebhook>> {
        self.definition()?.conversion_webhook.as_ref()
    }

    /// Translation between the stored field names and those of the names preset; None if all names are equal.
    pub fn translation(&self, names: &Names) -> Option<&dyn Translation> {
        self.strategy().translation(names)
    }
}

impl Definition {
    /// Records whether the definition is being deleted, for all versions. Returns whether the record changed.
    pub fn set_terminating(&self, is_terminating: bool) -> bool {
        self.is_terminating.swap(is_terminating, Ordering::AcqRel) != is_terminating
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.group_resource, self.versions().collect::<Vec<_>>())
    }
}

/// Hash of the full group name and the plural name of a kind.
pub(crate) fn hash(group: &str, resource: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (group, resource).hash(&mut hasher);
    hasher.finish()
}

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
