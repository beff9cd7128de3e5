//! A row of the table of built-in kinds.
//!
//! # Contract
//!
//! A [`BuiltInKind`] contains all facts of a built-in kind in one version that do not depend on an object. The file of
//! a kind sets only the facts that differ from [`BuiltInKind::namespaced`] or [`BuiltInKind::cluster_scoped`]. The
//! [`Strategy`] of the row contains the rules that depend on an object. The registry builds a [`crate::Kind`] from
//! each row; no other code uses rows.

use crate::lifecycle::Stage;
use crate::strategy::DefaultStrategy;
use crate::table::{Cells, Column, DEFAULT};
use crate::{
    BindingAction, Conversion, REVIEW_VERBS, STANDARD_VERBS, Storage, Strategy, Subresource, UnenforcedKind,
    Verb, WriteRules,
};

/// Facts of a built-in kind in one version.
pub struct BuiltInKind {
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
    /// Whether and in which form apid stores the objects.
    pub storage: Storage,
    /// Whether apid computes the objects at each read and stores none.
    pub computed: bool,
    /// Verbs of the main resource, in discovery order.
    pub verbs: &'static [Verb],
    /// Subresources, in discovery order.
    pub subresources: &'static [Subresource],
    /// Schema type of the storage version: `core/v1.ConfigMap`.
    pub schema: &'static str,
    /// Rules of writes and deletes that do not depend on an object.
    pub rules: WriteRules,
    /// Selectable fields in addition to `metadata.name` and `metadata.namespace`, as dotted paths.
    /// [`Strategy::field`] reads these paths and those of [`BuiltInKind::field_sources`].
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

impl BuiltInKind {
    /// Whether apid serves the kind without `--runtime-config`, which it does only for stable versions.
    pub fn is_on_by_default(&self) -> bool {
        Stage::of_version(self.version) == Stage::Stable
    }

    /// Facts of most namespaced kinds. The schema type, such as `apps/v1.Deployment`, names the group, the version
    /// and the kind.
    pub const fn namespaced(schema: &'static str, resource: &'static str) -> BuiltInKind {
        let (stem, versioned_kind) = split_once(schema, b'/');
        let (version, kind) = split_once(versioned_kind, b'.');
        let group = match stem.as_bytes() {
            b"core" => "",
            _ => stem,
        };
        BuiltInKind {
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
            rules: WriteRules::BUILT_IN,
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

    /// Facts of most cluster-scoped kinds; see [`BuiltInKind::namespaced`].
    pub const fn cluster_scoped(schema: &'static str, resource: &'static str) -> BuiltInKind {
        BuiltInKind { namespaced: false, ..BuiltInKind::namespaced(schema, resource) }
    }

    /// Facts of most kinds of reviews; see [`BuiltInKind::namespaced`].
    pub(crate) const fn review(schema: &'static str, resource: &'static str) -> BuiltInKind {
        let storage = Storage::Review;
        BuiltInKind { storage, verbs: REVIEW_VERBS, ..BuiltInKind::cluster_scoped(schema, resource) }
    }
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
