//! Custom kinds: the versions of a CustomResourceDefinition.
//!
//! # Contract
//!
//! [`resources`] reads a stored definition, which the strategy of CustomResourceDefinition has validated, and
//! returns one [`Kind`] for each served version and for the storage version. Versions with equal schemas
//! share a [`CustomSchema`]. The kinds have the names in `status.acceptedNames`. [`compare_versions`] is
//! the order of versions in discovery.
//!
//! # Invariants
//!
//! INVARIANT (no panic): a definition that lacks a field yields an error or is skipped; nothing panics.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use apimachinery::gvk::{GroupKind, GroupResource};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use extensions::structural::JsonPathError;

use crate::kind::{self, CUSTOM_KEYS, KindSource};
use crate::table::cell::PathReader;
use crate::{
    Definition, Deprecation, Kind, KindNames, KindSchema, SelectableFields, Storage, Subresource, Verb,
    WriteRules,
};

/// Verbs of custom kinds, in discovery order: kube-apiserver lists them in a different order than for built-in kinds.
const VERBS: &[Verb] = &[
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Create,
    Verb::Update,
    Verb::Watch,
];

pub mod conversion;
mod document_sizes;
mod scale_paths;
mod schema;
mod strategy;
mod table;
#[cfg(test)]
mod tests;

pub use self::conversion::ConversionWebhook;
pub use self::document_sizes::{MAX_DOCUMENT_BYTES, OversizedDocuments, document_bytes};
pub use self::scale_paths::ScalePaths;
pub use self::schema::CustomSchema;
pub use self::strategy::CustomStrategy;
pub use self::table::{CustomColumn, CustomTable};

/// The reason why a definition has no resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// No version is the storage version.
    #[error("the definition has no storage version")]
    NoStorageVersion,
    /// The path of a printer column is malformed.
    #[error(transparent)]
    Column(#[from] JsonPathError),
}

/// Returns the kinds of a definition: its versions in the order of discovery. Versions that are neither
/// served nor stored have no kind.
///
/// # Errors
///
/// See [`DefinitionError`].
pub fn resources(definition: &Object, names: &Arc<Names>) -> Result<Vec<Arc<Kind>>, DefinitionError> {
    let versions = definition.items("spec.versions");
    let storage = versions.iter().find(|version| version.flag("storage"));
    let storage = storage.ok_or(DefinitionError::NoStorageVersion)?;
    let mut indexed_fields: Vec<String> = versions.iter().flat_map(selectable_fields).collect();
    indexed_fields.sort_unstable();
    indexed_fields.dedup();
    let texts = |path: &str| -> Arc<[String]> {
        definition.items(path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut builder = Builder {
        definition,
        names,
        indexed_fields: indexed_fields.into(),
        short_names: texts("status.acceptedNames.shortNames"),
        categories: texts("status.acceptedNames.categories"),
        newest: newest_version(definition),
        definition_uid: definition.uid().into(),
        is_terminating: Arc::new(AtomicBool::new(definition.is_terminating())),
        replicas_paths: Arc::new(replicas_paths(definition)),
        conversion_webhook: ConversionWebhook::of(definition).map(Arc::new),
        schemas: HashMap::new(),
    };
    let stored = builder.kind(storage, None)?;
    let mut all = vec![Arc::clone(&stored)];
    for version in versions.iter().filter(|version| version.flag("served") && !version.flag("storage")) {
        all.push(builder.kind(version, Some(&stored))?);
    }
    all.sort_by(|a, b| compare_versions(b.version(), a.version()));
    Ok(all)
}

/// Builder of the kinds of a definition.
struct Builder<'a> {
    definition: &'a Object,
    names: &'a Arc<Names>,
    indexed_fields: Arc<[String]>,
    short_names: Arc<[String]>,
    categories: Arc<[String]>,
    /// The newest served version that is not deprecated. Warnings about deprecated versions recommend this
    /// version.
    newest: Option<&'a str>,
    definition_uid: Arc<str>,
    is_terminating: Arc<AtomicBool>,
    conversion_webhook: Option<Arc<ConversionWebhook>>,
    /// See [`Definition::replicas_paths`].
    replicas_paths: Arc<BTreeMap<String, Option<Vec<String>>>>,
    /// The distinct schemas of the versions that have been read so far, by their `openAPIV3Schema`.
    schemas: HashMap<&'a Value, Arc<CustomSchema>>,
}

impl<'a> Builder<'a> {
    fn schema(&mut self, version: &'a Value) -> Arc<CustomSchema> {
        static ANY: Value = Value::Null;
        let source = version.find("schema.openAPIV3Schema").unwrap_or(&ANY);
        let schema = self.schemas.entry(source);
        Arc::clone(schema.or_insert_with(|| Arc::new(CustomSchema::new(source, Arc::clone(self.names)))))
    }

    /// Builds the kind of a version. `stored` is the storage version, None for the storage version itself.
    fn kind(&mut self, version: &'a Value, stored: Option<&Arc<Kind>>) -> Result<Arc<Kind>, DefinitionError> {
        let definition = self.definition;
        let text = |path: &str| definition.text(path).to_owned();
        let (group, plural) = (text("spec.group"), text("status.acceptedNames.plural"));
        let schema = self.schema(version);
        let scale = ScalePaths::of_version(version);
        let has_status = version.find("subresources.status").is_some_and(Value::is_object);
        let subresources = has_status.then(|| Subresource::status(""));
        Ok(Arc::new(Kind {
            hash: kind::hash(&group, &plural),
            key_prefix: format!("{CUSTOM_KEYS}{group}/{plural}/"),
            group_kind: GroupKind { group: group.clone(), kind: text("status.acceptedNames.kind") },
            group_resource: GroupResource { group, resource: plural },
            names: KindNames {
                version: version.text("name").to_owned(),
                older_versions: &[],
                list: text("status.acceptedNames.listKind"),
                singular: text("status.acceptedNames.singular"),
                short_names: Arc::clone(&self.short_names),
                categories: Arc::clone(&self.categories),
            },
            namespaced: definition.text("spec.scope") == "Namespaced",
            storage: if stored.is_none() { Storage::Stored } else { Storage::Shared("") },
            verbs: VERBS,
            subresources: subresources.into_iter().chain(scale.is_some().then(Subresource::scale)).collect(),
            fields: SelectableFields {
                names: selectable_fields(version).into(),
                aliases: &[],
                indexed: Arc::clone(&self.indexed_fields),
                sources: &[],
            },
            rules: WriteRules::CUSTOM,
            deprecation: deprecation_warning(definition, version, self.newest)
                .map(|warning| Deprecation { warning, removed_release: None }),
            unenforced: None,
            source: KindSource::Definition(Box::new(Definition {
                uid: Arc::clone(&self.definition_uid),
                is_served: version.flag("served"),
                conversion_webhook: self.conversion_webhook.clone(),
                replicas_paths: Arc::clone(&self.replicas_paths),
                is_terminating: Arc::clone(&self.is_terminating),
                table: CustomTable::new(version.items("additionalPrinterColumns"))?,
                strategy: CustomStrategy::new(Arc::clone(&schema), scale.clone()),
                scale,
            })),
            schema: KindSchema::Definition(schema),
            storage_version: stored.cloned(),
        }))
    }
}

/// Selectable fields without the leading dot.
fn selectable_fields(version: &Value) -> Vec<String> {
    let paths = version.items("selectableFields").iter().map(|field| field.text("jsonPath"));
    paths.map(|path| path.strip_prefix('.').unwrap_or(path).to_owned()).collect()
}

fn replicas_paths(definition: &Object) -> BTreeMap<String, Option<Vec<String>>> {
    let group = definition.text("spec.group");
    let path = |version: &Value| ScalePaths::of_version(version).map(|paths| paths.spec_replicas);
    let versions = definition.items("spec.versions").iter();
    versions.map(|version| (format!("{group}/{}", version.text("name")), path(version))).collect()
}

/// The newest served version that is not deprecated.
fn newest_version(definition: &Object) -> Option<&str> {
    let usable = definition.items("spec.versions").iter();
    let usable = usable.filter(|version| version.flag("served") && !version.flag("deprecated"));
    usable.map(|version| version.text("name")).max_by(|a, b| compare_versions(a, b))
}

/// Warning of a deprecated version: the text in `deprecationWarning`, or a text with a newer version, if any.
fn deprecation_warning(definition: &Object, version: &Value, newest: Option<&str>) -> Option<String> {
    if !version.flag("deprecated") {
        return None;
    }
    if let Some(text) = version.find("deprecationWarning").and_then(Value::as_str) {
        return Some(text.to_owned());
    }
    let (group, kind, name) =
        (definition.text("spec.group"), definition.text("spec.names.kind"), version.text("name"));
    let newer = newest.filter(|newest| compare_versions(newest, name) == Ordering::Greater);
    let instead = newer.map_or_else(String::new, |newest| format!("; use {group}/{newest} {kind}"));
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

/// Compares versions by their priority. A stable version is greater than a beta version, and a beta version is
/// greater than an alpha version. Versions of one stage are compared by number. A name of another form is
/// smaller than all these versions. Of two such names, the name that is first in alphabetical order is greater.
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
