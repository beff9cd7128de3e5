//! A built-in kind as data.
//!
//! # Contract
//!
//! A [`Kind`] contains all facts of a kind that do not depend on an object. The file of a kind sets only the
//! facts that differ from [`Kind::namespaced`] or [`Kind::cluster_scoped`]. The [`Strategy`] of the kind
//! contains the rules that depend on an object.

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::lifecycle::Stage;
use crate::strategy::DefaultStrategy;
use crate::table::{Cells, Column, DEFAULT};
use crate::{
    BindingAction, Conversion, DefaultPropagation, Generation, MetadataChecks, NameRule, REVIEW_VERBS,
    Revalidation, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource, UnenforcedKind, Verb,
};

/// Static facts of a built-in kind.
pub struct Kind {
    /// Group stem: `""`, `apps`, `rbac.authorization` (see `Names::group`).
    pub group: &'static str,
    /// Version; the preferred version if there are older versions.
    pub version: &'static str,
    /// Older versions with the same schema. Only a body of a subresource has them.
    pub older_versions: &'static [&'static str],
    /// Kind name: `ConfigMap`.
    pub kind: &'static str,
    /// Lower-case plural, as in URLs.
    pub resource: &'static str,
    /// Short names: `cm`.
    pub short_names: &'static [&'static str],
    /// Categories: `all`.
    pub categories: &'static [&'static str],
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// How apid stores the objects, if at all.
    pub storage: Storage,
    /// Whether apid computes the objects at each read and stores none.
    pub computed: bool,
    /// Verbs of the main resource, in discovery order.
    pub verbs: &'static [Verb],
    /// Subresources, in discovery order.
    pub subresources: &'static [Subresource],
    /// Schema type of the storage version: `core/v1.ConfigMap`.
    pub schema: &'static str,
    /// Rule for object names.
    pub name_rule: NameRule,
    /// Checks of metadata at creation and on updates, in addition to the checks of every kind.
    pub metadata_checks: MetadataChecks,
    /// Whether finalizers without a domain must be standard finalizers.
    pub restricts_finalizers: bool,
    /// Rule for `metadata.generation`.
    pub generation: Generation,
    /// Whether PUT to a missing name creates the object (requirements D-NAME-16).
    pub create_on_update: bool,
    /// Whether PUT without resourceVersion is allowed (requirements D-EP-16).
    pub unconditional_update: bool,
    /// Whether the type has validation tags that repeat hand-written rules for writes to the main resource.
    pub has_validation_tags: bool,
    /// Updates for which [`Strategy::validate`] runs.
    pub revalidation: Revalidation,
    /// Metadata that a write to `status` may change.
    /// For all kinds with this subresource, `status` writes keep the spec and main resource writes keep the
    /// status.
    pub status_writes: StatusWrites,
    /// Whether a created object keeps its status: nodes report their own status.
    pub keeps_status_on_create: bool,
    /// Subresources that discovery lists with this kind as body and that apid does not implement.
    pub unimplemented_subresources: &'static [&'static str],
    /// Whether DELETE returns the object instead of a Status.
    pub delete_returns_object: bool,
    /// Treatment of dependents if a delete specifies no propagation policy.
    pub default_propagation: DefaultPropagation,
    /// Warning for clients that delete without a propagation policy.
    pub default_propagation_warning: Option<&'static str>,
    /// Selectable fields in addition to `metadata.name` and `metadata.namespace`, as dotted paths.
    /// [`Strategy::field`] reads these paths and those of [`Kind::field_sources`].
    pub selectable_fields: &'static [&'static str],
    /// Former names of selectable fields that clients may still send, each with the present name.
    pub field_aliases: &'static [(&'static str, &'static str)],
    /// Paths that [`Strategy::field`] reads in addition to the selectable fields.
    /// The watch cache parses only these paths of a stored object.
    pub field_sources: &'static [&'static str],
    /// Conversion to and from the storage version, for a non-storage version ([`Storage::Shared`]).
    pub conversion: Option<&'static dyn Conversion>,
    /// Rules of a binding-like kind ([`Storage::BindingLike`]).
    pub binding_action: Option<&'static dyn BindingAction>,
    /// Warning for a kind that apid stores but does not enforce.
    pub unenforced: Option<&'static UnenforcedKind>,
    /// Columns of the Table representation.
    pub columns: &'static [Column],
    /// Cells of the columns that have no other source, in the order of the columns.
    pub cells: Cells,
    /// Rules that depend on an object.
    pub strategy: &'static dyn Strategy,
}

impl Kind {
    /// Whether apid serves the kind without `--runtime-config`, which it does only for stable versions.
    pub fn is_on_by_default(&self) -> bool {
        Stage::of_version(self.version) == Stage::Stable
    }

    /// Cells of an object, one per column.
    pub fn row(&self, object: &Object, clock: &dyn Clock, names: &Names) -> Vec<Value> {
        let mut cells = (self.cells)(object, clock).into_iter();
        let cell = |column: &Column| column.source.cell(object, clock, names).or_else(|| cells.next());
        self.columns.iter().map(cell).map(Option::unwrap_or_default).collect()
    }

    /// Facts of most namespaced kinds. The schema type, such as `apps/v1.Deployment`, names the group, the version
    /// and the kind.
    pub const fn namespaced(schema: &'static str, resource: &'static str) -> Kind {
        let (stem, versioned_kind) = split_once(schema, b'/');
        let (version, kind) = split_once(versioned_kind, b'.');
        let group = match stem.as_bytes() {
            b"core" => "",
            _ => stem,
        };
        Kind {
            group,
            version,
            older_versions: &[],
            kind,
            resource,
            short_names: &[],
            categories: &[],
            namespaced: true,
            storage: Storage::Stored,
            computed: false,
            verbs: STANDARD_VERBS,
            subresources: &[],
            schema,
            name_rule: NameRule::Subdomain,
            metadata_checks: MetadataChecks::full(Revalidation::Always),
            restricts_finalizers: true,
            generation: Generation::None,
            create_on_update: false,
            unconditional_update: true,
            has_validation_tags: false,
            revalidation: Revalidation::Always,
            status_writes: StatusWrites::Metadata,
            keeps_status_on_create: false,
            unimplemented_subresources: &[],
            delete_returns_object: false,
            default_propagation: DefaultPropagation::Background,
            default_propagation_warning: None,
            selectable_fields: &[],
            field_aliases: &[],
            field_sources: &[],
            conversion: None,
            binding_action: None,
            unenforced: None,
            columns: DEFAULT,
            cells: |_, _| Vec::new(),
            strategy: &DefaultStrategy,
        }
    }

    /// Facts of most cluster-scoped kinds; see [`Kind::namespaced`].
    pub const fn cluster_scoped(schema: &'static str, resource: &'static str) -> Kind {
        Kind { namespaced: false, ..Kind::namespaced(schema, resource) }
    }

    /// Facts of most kinds of reviews; see [`Kind::namespaced`].
    pub(crate) const fn review(schema: &'static str, resource: &'static str) -> Kind {
        let storage = Storage::Review;
        Kind { storage, verbs: REVIEW_VERBS, ..Kind::cluster_scoped(schema, resource) }
    }

    /// Facts that all custom kinds share. Their [`CustomKind`](crate::CustomKind) holds the other facts.
    pub(crate) const CUSTOM: Kind = Kind {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        unconditional_update: false,
        generation: Generation::CountedOutsideMetadata,
        status_writes: StatusWrites::StatusOnly,
        // `validate_update` of a custom kind already validates the whole new object.
        revalidation: Revalidation::Never,
        ..Kind::namespaced("", "")
    };
}

/// Splits a text at the first separator. Without a separator, the second part is empty.
const fn split_once(text: &str, separator: u8) -> (&str, &str) {
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == separator {
            let (head, _) = text.split_at(text.len() - rest.len());
            let (_, tail) = text.split_at(text.len() - after.len());
            return (head, tail);
        }
        rest = after;
    }
    (text, "")
}
