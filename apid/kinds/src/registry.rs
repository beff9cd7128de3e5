//! Registry of all kinds under one names preset, and processing of objects from body to stored form.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Bound;
use std::sync::Arc;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::gvk::{GroupKind, GroupResource, GroupVersion};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use arc_swap::ArcSwap;
use schema::{ConformReport, TypeError};
use serde_json::Value;

use crate::built_in_kinds::{UNLISTED_KINDS, VIRTUAL_SUBRESOURCES, built_in_kinds};
use crate::lifecycle::{self, Release};
use crate::{
    Context, CustomKind, EnabledVersions, Generation, Kind, KindRef, NameRule, SchemaRef, Storage,
    Subresource, Translation, UnenforcedKind, metadata, status,
};

/// Prefix of the storage keys of all custom kinds. No group stem of a built-in kind is `custom`. So a custom
/// kind shares no key with a built-in kind, even if its group has the name of a stem.
pub(crate) const CUSTOM_KEYS: &str = "custom/";

/// A served kind under a names preset, with its full group name and its storage key.
pub struct Resource {
    /// Facts and rules.
    pub kind: KindRef,
    /// Full group name and plural.
    pub group_resource: GroupResource,
    /// Full group name and kind.
    pub group_kind: GroupKind,
    /// Prefix of the storage keys, with the trailing slash. The prefix of a built-in kind contains the group
    /// stem, so it does not depend on the names preset. The prefix of a custom kind contains the full group
    /// name.
    pub key_prefix: String,
    /// Hash of the full group name and the plural name. All versions of the resource have the same hash, also
    /// after a change of its definition.
    pub hash: u64,
    /// The resource of the storage version; None if this is the storage version, or if the kind is not
    /// stored.
    stored: Option<Arc<Resource>>,
    /// The reason why objects of the kind have no effect; None if they have an effect.
    unenforced: Option<&'static UnenforcedKind>,
    deprecation: Option<Deprecation>,
}

/// The deprecation of a served version of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// The warning for clients.
    pub warning: String,
    /// The release that removes the version, if it is known.
    pub removed_release: Option<Release>,
}

impl Deprecation {
    /// The deprecation of a version of a built-in kind, from the table of [`lifecycle`].
    fn of_built_in(kind: &Kind, names: &Names) -> Option<Self> {
        let row = lifecycle::of_kind(kind.group, kind.version, kind.kind)?;
        Some(Deprecation { warning: row.warning(names)?, removed_release: row.removed })
    }
}

impl Resource {
    fn new(kind: &'static Kind, names: &Names, versions: &EnabledVersions) -> Self {
        let group = names.group(kind.group);
        let stem = match kind.storage {
            Storage::Shared(stem) => stem,
            _ => kind.group,
        };
        let stem = if stem.is_empty() { "core" } else { stem };
        Resource {
            kind: KindRef::BuiltIn(kind),
            group_resource: GroupResource { group: group.clone(), resource: kind.resource.to_owned() },
            group_kind: GroupKind { group, kind: kind.kind.to_owned() },
            key_prefix: format!("{stem}/{}/", kind.resource),
            hash: hash(&names.group(kind.group), kind.resource),
            stored: None,
            unenforced: versions.unenforced(kind),
            deprecation: Deprecation::of_built_in(kind, names),
        }
    }

    /// A version of a custom kind. `stored` is the storage version, None for the storage version itself.
    pub fn custom(kind: Arc<CustomKind>, stored: Option<Arc<Resource>>) -> Self {
        let (group, plural) = (kind.group.clone(), kind.resource.clone());
        Resource {
            group_resource: GroupResource { group: group.clone(), resource: plural.clone() },
            group_kind: GroupKind { group: group.clone(), kind: kind.kind.clone() },
            hash: hash(&group, &plural),
            key_prefix: format!("{CUSTOM_KEYS}{group}/{plural}/"),
            deprecation: kind
                .deprecation_warning
                .clone()
                .map(|warning| Deprecation { warning, removed_release: None }),
            kind: KindRef::Custom(kind),
            stored,
            unenforced: None,
        }
    }

    /// The reason why objects of the kind have no effect; None if they have an effect.
    pub fn unenforced(&self) -> Option<&'static UnenforcedKind> {
        self.unenforced
    }

    /// The deprecation of this version; None if it is not deprecated.
    pub fn deprecation(&self) -> Option<&Deprecation> {
        self.deprecation.as_ref()
    }

    /// Whether the kind is a custom kind.
    pub fn is_custom(&self) -> bool {
        matches!(self.kind, KindRef::Custom(_))
    }

    /// The resource of the storage version, or this resource if it is the storage version or is not stored.
    pub fn stored(&self) -> &Resource {
        self.stored.as_deref().unwrap_or(self)
    }

    /// Whether this is a version of a stored kind other than its storage version.
    pub fn is_other_version(&self) -> bool {
        self.stored.is_some()
    }

    /// Whether this is a non-storage version of a built-in kind: its stored objects are converted for each response.
    /// Objects of custom kinds are converted when they are read and written.
    pub fn is_converted(&self) -> bool {
        self.is_other_version() && !self.is_custom()
    }

    /// Converts an object of this version, in stored form, to the storage version.
    ///
    /// # Errors
    ///
    /// A converted field does not conform to the schema of the storage version.
    pub fn to_stored(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        let Some(stored) = self.stored.as_ref().filter(|_| self.is_converted()) else { return Ok(()) };
        if let Some(conversion) = self.kind.facts().conversion {
            conversion.to_stored(object, names);
        }
        object.set_type(&stored.api_version(), stored.kind.kind());
        stored.conform(object).map(drop)
    }

    /// Converts a stored object to this version.
    ///
    /// # Errors
    ///
    /// This version cannot represent the object: the store is corrupt.
    pub fn convert_from_storage(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        if !self.is_converted() {
            return Ok(());
        }
        if let Some(conversion) = self.kind.facts().conversion {
            conversion.convert_from_storage(object, names);
        }
        object.set_type(&self.api_version(), self.kind.kind());
        self.conform(object).map(drop)
    }

    /// Translation between the stored field names and those of the names preset; None if all names are equal.
    pub fn translation(&self, names: &Names) -> Option<&dyn Translation> {
        self.kind.strategy().translation(names)
    }

    /// Whether responses contain stored objects without conversion and translation.
    pub fn is_sent_as_stored(&self, names: &Names) -> bool {
        !self.is_converted() && self.translation(names).is_none()
    }

    /// Converts a stored object to this version, and translates field names to those of the names preset.
    ///
    /// # Errors
    ///
    /// See [`Resource::convert_from_storage`].
    pub fn represent(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        self.convert_from_storage(object, names)?;
        if let Some(translation) = self.translation(names) {
            translation.translate_response(object, names);
        }
        Ok(())
    }

    /// Translates a decoded body to the stored field names, and then does the same as [`Resource::conform`].
    /// The report and the error contain the field names of the body.
    ///
    /// # Errors
    ///
    /// See [`Resource::conform`].
    pub fn conform_body(&self, object: &mut Object, names: &Names) -> Result<ConformReport, TypeError> {
        let Some(translation) = self.translation(names) else { return self.conform(object) };
        translation.translate_request(object, names);
        let translate = |text: &String| translation.translate_message(text, names);
        match self.conform(object) {
            Ok(report) => Ok(ConformReport { unknown: report.unknown.iter().map(translate).collect() }),
            Err(error) => {
                Err(TypeError { path: translate(&error.path), message: translate(&error.message), ..error })
            }
        }
    }

    /// Brings an object from the store into the form of the current schema of a custom kind, which may be newer
    /// than the object. See [`CustomKind::refresh`].
    pub fn refresh(&self, object: &mut Object) {
        if let KindRef::Custom(kind) = &self.kind {
            kind.refresh(object);
        }
    }

    /// Brings an object of another version of a custom kind into the form of this version, without defaults.
    pub fn repair(&self, object: &mut Object) {
        if let KindRef::Custom(kind) = &self.kind {
            object.set_type(&kind.api_version(), &kind.kind);
            kind.schema.repair(object);
        }
    }

    /// Storage-version name of a selectable field of this version; None if the field is not selectable.
    /// `metadata.name` and `metadata.namespace` are the same in all versions.
    pub fn stored_field<'a>(&self, field: &'a str) -> Option<&'a str> {
        if matches!(field, "metadata.name" | "metadata.namespace") {
            return Some(field);
        }
        let facts = self.kind.facts();
        let alias =
            facts.field_aliases.iter().find(|(former, _)| *former == field).map(|(_, present)| *present);
        let renamed = facts.conversion.and_then(|conversion| conversion.stored_field(field)).or(alias);
        renamed.or_else(|| self.kind.selectable_fields().contains(&field).then_some(field))
    }

    /// Storage key of an object: `<prefix><namespace>/<name>` or `<prefix><name>`.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.kind.namespaced() {
            [self.key_prefix.as_str(), namespace, "/", name].concat()
        } else {
            [self.key_prefix.as_str(), name].concat()
        }
    }

    /// Namespace and name of a storage key; None for a key of another resource.
    /// The namespace of cluster-scoped kinds is `""`.
    pub fn parse_key<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(self.key_prefix.as_str())?;
        if self.kind.namespaced() { rest.split_once('/') } else { Some(("", rest)) }
    }

    /// The `apiVersion` of the objects in the preferred version of this resource.
    pub fn api_version(&self) -> String {
        let version = self.kind.version().to_owned();
        GroupVersion { group: self.group_resource.group.clone(), version }.to_string()
    }

    /// Returns the Status with code 422 for a custom object of another kind. As in kube-apiserver, the Status
    /// is about an object of the kind `found`.
    pub fn invalid_kind(&self, name: &str, found: &str) -> Status {
        let expected = format!("must be {}", self.kind.kind());
        let error = FieldError::invalid(&FieldPath::new("kind"), found, &expected);
        let kind = GroupKind { kind: found.to_owned(), ..self.group_kind.clone() };
        Status::invalid(&kind, name, &[error])
    }

    /// Kind of the lists.
    pub fn list_kind(&self) -> String {
        self.kind.list_kind()
    }

    /// Checks types, drops unknown fields and normalizes a decoded body to the stored form.
    ///
    /// # Errors
    ///
    /// A value has a wrong type, or an annotation is malformed that kube-apiserver converts to a field (400).
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        let report = match self.kind.schema() {
            Some(schema) => schema.conform(object)?,
            None => ConformReport::default(),
        };
        match self.kind.strategy().malformed_annotation(object) {
            Some(message) => Err(TypeError::new("metadata.annotations", message)),
            None => Ok(report),
        }
    }

    /// Sets the default values of the kind.
    pub fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        self.kind.strategy().default(object, ctx);
    }

    /// Sets server-owned fields of a new object and removes fields that clients may not set.
    /// Generates a missing name first, because labels of some kinds contain the name.
    pub fn prepare_create(&self, object: &mut Object, namespace: &str, ctx: &Context<'_>) {
        self.prepare_create_with_uid(object, namespace, &ctx.rng.uuid(), ctx);
    }

    /// As [`Resource::prepare_create`], for an object that has this uid already: labels of some kinds contain
    /// the uid.
    pub fn prepare_create_with_uid(
        &self,
        object: &mut Object,
        namespace: &str,
        uid: &str,
        ctx: &Context<'_>,
    ) {
        let namespace = if self.kind.namespaced() { namespace } else { "" };
        metadata::prepare_create(object, namespace, uid, ctx);
        if object.name().is_empty() {
            metadata::generate_name(object, ctx.rng);
        }
        match self.kind.facts().generation {
            Generation::None => {}
            Generation::Fixed | Generation::Counted(_) | Generation::CountedOutsideMetadata => {
                object.set_meta("generation", 1);
            }
        }
        status::prepare_create(&self.kind, object);
        self.kind.strategy().prepare_create(object, ctx);
    }

    /// Restores immutable fields from the stored object and maintains the generation.
    pub fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        metadata::prepare_update(new, old);
        status::prepare_update(&self.kind, new, old, ctx.subresource);
        self.kind.strategy().prepare_update(new, old, ctx);
        if self.kind.facts().generation == Generation::CountedOutsideMetadata
            && (!has_same_spec(new, old)
                || (!self.kind.has_status() && new.get("status") != old.get("status")))
        {
            new.set_meta("generation", old.generation() + 1);
        }
        // A status update does not change the generation.
        if let Generation::Counted(metadata) = self.kind.facts().generation
            && ctx.subresource != "status"
        {
            let differs = |field: &&str| metadata_field(new, field) != metadata_field(old, field);
            if !has_same_spec(new, old) || metadata.iter().any(differs) {
                new.set_meta("generation", old.generation() + 1);
            }
        }
    }

    /// Completes a new object after mutating admission; see [`crate::Strategy::complete_new`]. Returns warnings.
    pub fn complete_new(&self, object: &mut Object, ctx: &Context<'_>) -> Vec<String> {
        self.kind.strategy().complete_new(object, ctx)
    }

    /// Sets fields that follow from other fields, after admission; see [`crate::Strategy::canonicalize`].
    pub fn canonicalize(&self, object: &mut Object, ctx: &Context<'_>) {
        self.kind.strategy().canonicalize(object, ctx);
    }

    /// Validates a new object in the storage version. A non-storage version of a built-in kind may add rules;
    /// an object of a custom kind follows the schema of the written version.
    pub fn validate_create(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let errors = self.validate_new(object, ctx);
        let facts = self.stored().kind.facts();
        // The general rules require that the name is a path segment. A name that satisfies the name rule of
        // its kind is always a path segment.
        let includes_general_rules =
            facts.metadata_checks.on_creation && facts.name_rule != NameRule::ByStrategy;
        if errors.is_empty() && !includes_general_rules {
            return metadata::validate(object, self.general_rules());
        }
        errors
    }

    /// Validates a new object with the rules of its kind, without the general rules of metadata.
    fn validate_new(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let strategy = self.kind.strategy();
        if let Some(stored) = self.stored.as_ref().filter(|_| !self.is_custom()) {
            let mut errors = strategy.errors_of_version(stored.validate_new(object, ctx));
            errors.extend(strategy.validate(object, ctx));
            return errors;
        }
        let mut errors = match self.kind.facts().metadata_checks.on_creation {
            true => metadata::validate(object, self.kind_rules(ctx)),
            false => FieldErrors::new(),
        };
        errors.extend(strategy.validate(object, ctx));
        errors
    }

    /// Validates an update; both objects are in the storage version.
    pub fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let strategy = self.kind.strategy();
        if let Some(stored) = self.stored.as_ref().filter(|_| !self.is_custom()) {
            let mut errors = strategy.errors_of_version(stored.validate_update(new, old, ctx));
            errors.extend(strategy.validate_update(new, old, ctx));
            return errors;
        }
        let mut errors = metadata::validate(new, self.general_rules());
        errors.extend(metadata::validate_update(new, old));
        let checks = self.kind.facts().metadata_checks;
        if checks.changes.includes(ctx.subresource) {
            errors.extend(metadata::validate_update(new, old));
            if let Some(standard) = self.kind_rules(ctx).standard_finalizers {
                errors.extend(metadata::validate_standard_finalizers(new, standard));
            }
        }
        if checks.all.includes(ctx.subresource) {
            errors.extend(metadata::validate(new, self.kind_rules(ctx)));
        }
        errors.extend(strategy.validate_update(new, old, ctx));
        if self.kind.facts().revalidation.includes(ctx.subresource) {
            errors.extend(strategy.validate(new, ctx));
        }
        errors
    }

    /// Validates an object in the storage version against the validation tags of its type. None if only
    /// hand-written rules validate the kind, or writes to this subresource.
    pub fn validate_tags(&self, object: &Object, ctx: &Context<'_>) -> Option<FieldErrors> {
        let stored = self.stored();
        let is_tagged = stored.kind.facts().has_validation_tags && ctx.subresource.is_empty();
        match stored.kind.schema().filter(|_| is_tagged)? {
            SchemaRef::BuiltIn(schema) => Some(schema.validate_tags(object)),
            SchemaRef::Custom(_) => None,
        }
    }

    /// Warnings for the client that wrote the object.
    pub fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let unenforced = self.unenforced.map(|kind| kind.warning.to_owned());
        let mut warnings: Vec<String> = unenforced.into_iter().collect();
        warnings.extend(self.kind.strategy().warnings(new, old, ctx));
        warnings
    }

    fn general_rules(&self) -> metadata::Rules<'static> {
        metadata::Rules {
            name: NameRule::PathSegment,
            namespaced: self.kind.namespaced(),
            standard_finalizers: None,
        }
    }

    fn kind_rules(&self, ctx: &Context<'_>) -> metadata::Rules<'static> {
        let facts = self.kind.facts();
        let standard = metadata::standard_finalizers(ctx.names);
        metadata::Rules {
            name: facts.name_rule,
            namespaced: self.kind.namespaced(),
            standard_finalizers: facts.restricts_finalizers.then_some(standard),
        }
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {:?}", self.group_resource, self.kind.versions().collect::<Vec<_>>())
    }
}

fn hash(group: &str, resource: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (group, resource).hash(&mut hasher);
    hasher.finish()
}

/// A field of the metadata; None if absent or empty.
fn metadata_field<'a>(object: &'a Object, field: &str) -> Option<&'a Value> {
    let value = object.meta().and_then(|metadata| metadata.get(field));
    value.filter(|value| !matches!(value, Value::Object(map) if map.is_empty()))
}

/// Whether two objects are equal outside `kind`, `apiVersion`, `metadata` and `status`.
fn has_same_spec(a: &Object, b: &Object) -> bool {
    let count_fields = |object: &'_ Object| {
        object
            .0
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status" | "kind" | "apiVersion"))
            .count()
    };
    count_fields(a) == count_fields(b)
        && a.0.iter().all(|(key, value)| {
            matches!(key.as_str(), "metadata" | "status" | "kind" | "apiVersion") || b.get(key) == Some(value)
        })
}

/// Resources by a name and by their group. The resources of one name and group are the versions of one kind. So
/// the cost of a lookup does not depend on the number of groups with that name.
#[derive(Default)]
struct NameIndex(HashMap<String, HashMap<String, Vec<Arc<Resource>>>>);

impl NameIndex {
    fn insert(&mut self, name: &str, resource: &Arc<Resource>) {
        let groups = self.0.entry(name.to_owned()).or_default();
        groups.entry(resource.group_resource.group.clone()).or_default().push(Arc::clone(resource));
    }

    /// The versions of a kind, in the order in which they were inserted.
    fn versions(&self, group: &str, name: &str) -> &[Arc<Resource>] {
        self.0.get(name).and_then(|groups| groups.get(group)).map_or(&[], Vec::as_slice)
    }
}

/// Resources in order, and by their names.
struct IndexedResources {
    all: Vec<Arc<Resource>>,
    by_plural: NameIndex,
    by_kind: NameIndex,
}

impl IndexedResources {
    fn new(all: Vec<Arc<Resource>>) -> Self {
        let (mut by_plural, mut by_kind) = (NameIndex::default(), NameIndex::default());
        for resource in &all {
            by_plural.insert(&resource.group_resource.resource, resource);
            by_kind.insert(&resource.group_kind.kind, resource);
        }
        IndexedResources { all, by_plural, by_kind }
    }
}

/// All served resources.
///
/// The cost of a lookup depends on the number of versions of the kind, and not on the number of kinds.
pub struct Registry {
    /// The built-in resources that discovery does not list, then all other built-in resources, and then the
    /// custom resources. Every request looks up its resource here.
    served: IndexedResources,
    /// Resources of storage versions that apid does not serve: of built-in kinds that `--runtime-config`
    /// disables or serves only in another version, and of custom kinds.
    unserved: IndexedResources,
    /// Resources of stored kinds by key prefix. No key prefix is the beginning of another key prefix.
    by_key: BTreeMap<String, Arc<Resource>>,
    /// The versions of each kind by key prefix, the served ones first.
    versions: HashMap<String, Vec<Arc<Resource>>>,
    virtual_subresources: Vec<Arc<Resource>>,
    /// Number of built-in resources that discovery does not list, which precede all others.
    unlisted: usize,
    /// Number of built-in resources, which precede the custom ones.
    built_in: usize,
}

impl Registry {
    /// The built-in kinds that are on by default.
    pub fn new(names: &Names) -> Self {
        Registry::with_versions(names, &EnabledVersions::default())
    }

    /// The built-in kinds in the enabled versions.
    pub fn with_versions(names: &Names, versions: &EnabledVersions) -> Self {
        Registry::build(names, versions, &[])
    }

    /// The built-in kinds that are on by default and additional kinds, which follow them in discovery.
    pub fn with(names: &Names, others: &[&'static [Kind]]) -> Self {
        Registry::build(names, &EnabledVersions::default(), others)
    }

    fn build(names: &Names, versions: &EnabledVersions, others: &[&'static [Kind]]) -> Self {
        let kinds = || built_in_kinds().chain(others.iter().flat_map(|kinds| kinds.iter()));
        let stored = kinds().filter(|kind| kind.storage == Storage::Stored);
        let stored: Vec<_> = stored.map(|kind| Arc::new(Resource::new(kind, names, versions))).collect();
        let resource = |kind: &'static Kind| {
            let new = Resource::new(kind, names, versions);
            let stored_resource = stored.iter().find(|resource| resource.key_prefix == new.key_prefix);
            match (kind.storage, stored_resource) {
                (Storage::Stored, Some(resource)) => Arc::clone(resource),
                (Storage::Shared(_), stored_resource) => {
                    Arc::new(Resource { stored: stored_resource.cloned(), ..new })
                }
                _ => Arc::new(new),
            }
        };
        let enabled_kinds = kinds().chain(UNLISTED_KINDS).filter(|kind| versions.contains(kind));
        let is_unlisted = |kind: &&Kind| {
            !versions.contains(kind)
                && versions.key_value(kind.group, kind.version, kind.resource) != Some(false)
        };
        let unlisted_kinds = UNLISTED_KINDS.iter().filter(is_unlisted);
        let unlisted = unlisted_kinds.clone().count();
        let served: Vec<_> = unlisted_kinds.chain(enabled_kinds).map(resource).collect();
        let is_needed = |kind: &KindRef, key_prefix: &str| {
            let has_served_version = served.iter().any(|resource| resource.key_prefix == key_prefix);
            has_served_version || matches!(kind, KindRef::BuiltIn(kind) if kind.is_on_by_default())
        };
        let is_served = |stored: &Arc<Resource>| served.iter().any(|served| Arc::ptr_eq(served, stored));
        let unserved = stored.iter().filter(|stored| !is_served(stored));
        let unserved =
            unserved.filter(|stored| is_needed(&stored.kind, &stored.key_prefix)).cloned().collect();
        let virtual_subresources =
            VIRTUAL_SUBRESOURCES.iter().map(|kind| Arc::new(Resource::new(kind, names, versions))).collect();
        Registry::index(unlisted, served, unserved, virtual_subresources)
    }

    fn index(
        unlisted: usize,
        resources: Vec<Arc<Resource>>,
        unserved: Vec<Arc<Resource>>,
        virtual_subresources: Vec<Arc<Resource>>,
    ) -> Self {
        let mut by_key = BTreeMap::new();
        let mut versions = HashMap::<String, Vec<Arc<Resource>>>::with_capacity(resources.len());
        for resource in resources.iter().chain(&unserved) {
            versions.entry(resource.key_prefix.clone()).or_default().push(Arc::clone(resource));
        }
        let stored = resources.iter().filter(|resource| resource.kind.storage() == Storage::Stored);
        for resource in stored.chain(&unserved) {
            by_key.insert(resource.key_prefix.clone(), Arc::clone(resource));
        }
        let built_in = resources.iter().take_while(|resource| !resource.is_custom()).count();
        let (served, unserved) = (IndexedResources::new(resources), IndexedResources::new(unserved));
        Registry { served, unserved, by_key, versions, virtual_subresources, unlisted, built_in }
    }

    /// The built-in kinds of this registry, followed by the given custom kinds. A storage version that is not
    /// served has no path; callers find it only by storage key or as a version of its kind.
    #[must_use]
    pub fn with_custom(&self, custom: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let is_served =
            |resource: &Arc<Resource>| !matches!(&resource.kind, KindRef::Custom(kind) if !kind.is_served);
        let (served, mut unserved): (Vec<_>, Vec<_>) = custom.into_iter().partition(is_served);
        unserved.extend(self.unserved.all.iter().filter(|resource| !resource.is_custom()).cloned());
        let built_in = self.served.all.iter().take(self.built_in).cloned();
        let resources = built_in.chain(served).collect();
        Registry::index(self.unlisted, resources, unserved, self.virtual_subresources.clone())
    }

    /// The resource of the body kind of a subresource, for example Scale. None if the body kind is not
    /// served.
    pub fn body(
        &self,
        resource: &Resource,
        subresource: &Subresource,
        names: &Names,
    ) -> Option<&Arc<Resource>> {
        let group = match subresource.group_version {
            Some((stem, _)) => names.group(stem),
            None => resource.group_resource.group.clone(),
        };
        let body = resource.kind.body_kind(subresource);
        let is_body = |r: &&Arc<Resource>| r.group_kind.group == group && r.kind.kind() == body;
        let virtual_subresource = self.virtual_subresources.iter().find(is_body);
        virtual_subresource.or_else(|| self.served.by_kind.versions(&group, body).first())
    }

    /// The resource that a binding-like kind changes, and its subresource whose bodies have the binding-like
    /// kind.
    pub fn binding_target<'a>(
        &'a self,
        binding_kind: &Resource,
    ) -> Option<(&'a Arc<Resource>, &'a Subresource)> {
        self.stored().filter(|r| r.group_kind.group == binding_kind.group_kind.group).find_map(|resource| {
            let has_body = |s: &&Subresource| s.kind == binding_kind.kind.kind() && s.group_version.is_none();
            Some((resource, resource.kind.subresources().iter().find(has_body)?))
        })
    }

    /// The resource with `api_version` that has the same storage keys as the given resource.
    pub fn version_of(&self, resource: &Resource, api_version: &str) -> Option<&Arc<Resource>> {
        self.versions_of(resource).find(|version| version.api_version() == api_version)
    }

    /// All versions of a kind: the resources that share its storage.
    pub fn versions_of<'a>(
        &'a self,
        resource: &Resource,
    ) -> impl Iterator<Item = &'a Arc<Resource>> + use<'a> {
        self.versions.get(&resource.key_prefix).into_iter().flatten()
    }

    /// All resources that discovery lists, in discovery order: the built-in resources group by group, and
    /// then the custom resources.
    pub fn resources(&self) -> &[Arc<Resource>] {
        self.served.all.get(self.unlisted..).unwrap_or_default()
    }

    /// The built-in resources, also those that discovery does not list.
    pub fn built_in(&self) -> &[Arc<Resource>] {
        self.served.all.get(..self.built_in).unwrap_or_default()
    }

    /// The custom resources, including storage versions that are not served.
    pub fn all_custom(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.custom().iter().chain(self.unserved.all.iter().filter(|resource| resource.is_custom()))
    }

    /// The served custom resources.
    pub fn custom(&self) -> &[Arc<Resource>] {
        self.served.all.get(self.built_in..).unwrap_or_default()
    }

    /// The resources with stored objects.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let served = self.served.all.iter().filter(|r| r.kind.storage() == Storage::Stored);
        served.chain(&self.unserved.all)
    }

    /// The resource of a URL path.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.served.by_plural.versions(group, resource).iter().find(|r| r.kind.has_version(version))
    }

    /// The resource of a group version and plural name. A stored resource that is not served is found too.
    pub fn find_stored(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        let mut unserved = self.unserved.by_plural.versions(group, resource).iter();
        self.find(group, version, resource).or_else(|| unserved.find(|r| r.kind.has_version(version)))
    }

    /// The resource of a kind, in its storage version if this group contains the storage version. Also finds
    /// stored built-in kinds that are not served: the server itself reads and writes their objects.
    pub fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        let served = self.served.by_kind.versions(group, kind);
        let disabled = self.unserved.by_kind.versions(group, kind).iter().filter(|r| !r.is_custom());
        let candidates = || served.iter().chain(disabled.clone());
        candidates().find(|resource| !resource.is_other_version()).or_else(|| candidates().next())
    }

    /// The resource of a kind in a version.
    pub fn find_kind_version(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.served.by_kind.versions(group, kind).iter().find(|r| r.kind.has_version(version))
    }

    /// The resource of a storage key.
    pub fn of_key(&self, key: &str) -> Option<&Arc<Resource>> {
        let range = (Bound::Unbounded, Bound::Included(key));
        let (prefix, resource) = self.by_key.range::<str, _>(range).next_back()?;
        key.starts_with(prefix.as_str()).then_some(resource)
    }
}

/// The registry of the served kinds, replaced when definitions change.
pub struct CurrentRegistry(ArcSwap<Registry>);

impl CurrentRegistry {
    /// Creates a `CurrentRegistry` with its first registry.
    pub fn new(registry: Registry) -> Self {
        CurrentRegistry(ArcSwap::from_pointee(registry))
    }

    /// The current registry.
    pub fn get(&self) -> Arc<Registry> {
        self.0.load_full()
    }

    /// Replaces the registry.
    pub fn set(&self, registry: Arc<Registry>) {
        self.0.store(registry);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::{REVIEW_VERBS, Verb};

    #[test]
    fn facts_of_all_kinds_are_consistent() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
        let registry = Registry::with_versions(&names, &versions);
        let resources = registry.resources();
        for (i, resource) in resources.iter().enumerate() {
            let kind = &resource.kind;
            assert!(kind.schema().is_some(), "{} has no schema", kind.kind());
            let is_object = matches!(kind.storage(), Storage::Stored | Storage::Shared(_));
            assert_eq!(kind.verbs() == REVIEW_VERBS, !is_object, "{}", kind.kind());
            assert_eq!(
                resource.is_converted(),
                matches!(kind.storage(), Storage::Shared(_)),
                "{}",
                kind.kind()
            );
            assert_eq!(resource.is_converted(), kind.facts().conversion.is_some(), "{}", kind.kind());
            assert!(
                kind.subresources().iter().all(|sub| sub.verbs.is_sorted_by_key(|verb| verb.as_str())),
                "{}",
                kind.kind()
            );
            assert!(kind.verbs().is_sorted_by_key(|verb| verb.as_str()), "{}", kind.kind());
            assert!(kind.subresources().is_sorted_by_key(|sub| sub.name), "{}", kind.kind());
            let found =
                registry.find(&resource.group_resource.group, kind.version(), kind.resource()).unwrap();
            assert!(Arc::ptr_eq(found, resource));
            for other in resources.iter().skip(i + 1) {
                if resource.key_prefix == other.key_prefix {
                    // Two versions of one kind: a lookup by kind returns the stored version.
                    let shares_objects = std::ptr::eq(other.stored(), resource.stored());
                    assert_eq!(shares_objects, is_object, "{}", kind.kind());
                    continue;
                }
                assert_ne!(resource.group_kind, other.group_kind);
                if other.kind.group() == kind.group() {
                    assert!(
                        kind.resource() < other.kind.resource(),
                        "{} before {}",
                        kind.resource(),
                        other.kind.resource()
                    );
                }
            }
        }
        assert!(registry.find("", "v1", "roles").is_none());
        assert!(registry.find("", "v2", "configmaps").is_none());
    }

    #[test]
    fn storage_keys_are_independent_of_preset() {
        for (preset, group) in [
            (Preset::Svc, "rbac.authorization.example.test"),
            (Preset::Kubernetes, "rbac.authorization.k8s.io"),
        ] {
            let registry = Registry::new(&Names::new(preset, "example.test").unwrap());
            let roles = registry.find_kind(group, "Role").unwrap();
            assert_eq!(roles.key("team", "a:b"), "rbac.authorization/roles/team/a:b");
            assert_eq!(roles.parse_key("rbac.authorization/roles/team/a:b"), Some(("team", "a:b")));
            assert_eq!(roles.parse_key("core/configmaps/team/x"), None);
            assert_eq!(roles.api_version(), format!("{group}/v1"));
            let namespaces = registry.find("", "v1", "namespaces").unwrap();
            assert_eq!(namespaces.key("ignored", "x"), "core/namespaces/x");
            assert_eq!(namespaces.parse_key("core/namespaces/x"), Some(("", "x")));
            assert!(Arc::ptr_eq(registry.of_key("core/namespaces/x").unwrap(), namespaces));
            assert!(!namespaces.kind.verbs().contains(&Verb::DeleteCollection));
            assert_eq!(namespaces.list_kind(), "NamespaceList");
        }
    }

    #[test]
    fn explanations_are_listed_only_when_enabled() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (group, resource) = ("explain.k8s.io", "accessexplanations");
        for (config, is_served, is_listed) in [
            ("", true, false),
            ("api/beta", true, false),
            ("explain.k8s.io/v1alpha1", true, true),
            ("explain.k8s.io/v1alpha1/accessexplanations", true, true),
            ("explain.k8s.io/v1alpha1/tokenexplanations", true, false),
            ("api/alpha", true, true),
            ("api/alpha,explain.k8s.io/v1alpha1=false", false, false),
        ] {
            let (enabled, warnings) = EnabledVersions::parse(config.split(','), &names).unwrap();
            assert_eq!(warnings, [""; 0], "{config}");
            let registry = Registry::with_versions(&names, &enabled).with_custom([]);
            assert_eq!(registry.find(group, "v1alpha1", resource).is_some(), is_served, "{config}");
            let is_explanation =
                |r: &&Arc<Resource>| r.group_resource.group == group && r.group_resource.resource == resource;
            assert_eq!(registry.resources().iter().any(|r| is_explanation(&r)), is_listed, "{config}");
            assert!(registry.custom().is_empty());
        }
    }

    #[test]
    fn generation_increments_on_changes_outside_metadata_and_status() {
        let object = |value| Object::from_value(value).unwrap();
        let base =
            object(serde_json::json!({"metadata": {"name": "a"}, "spec": {"x": 1}, "status": {"y": 1}}));
        for (other, same) in [
            (serde_json::json!({"metadata": {}, "spec": {"x": 1}}), true),
            (serde_json::json!({"spec": {"x": 2}, "status": {"y": 1}}), false),
            (serde_json::json!({"spec": {"x": 1}, "data": {}}), false),
            (serde_json::json!({"data": {}}), false),
        ] {
            assert_eq!(has_same_spec(&base, &object(other.clone())), same, "{other}");
        }
    }
}
