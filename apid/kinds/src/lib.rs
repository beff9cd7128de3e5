//! The kinds that are served: facts, rules and stored form of each; one file a kind, one line in its group's table.
//!
//! # Contract
//!
//! A [`Kind`] is the static facts of a built-in kind; [`Registry`] resolves all of them under a names preset into
//! [`Resource`]s, from which routes, discovery and storage keys are derived. What an object of a kind must be is its
//! [`Strategy`], called by the verbs in the order of the trait's methods. [`entry::Entry`] is what the watch cache keeps.
//!
//! # Invariants
//!
//! INVARIANT (a kind is one file and one line): nothing outside `src/<group>/` names a single kind.
//! INVARIANT (no HTTP): nothing here knows a request, a header or a status code but through `apimachinery::status`.

use apimachinery::clock::{Chance, Clock};
use apimachinery::field::FieldError;
use apimachinery::names::Names;
use apimachinery::object::Object;

pub mod entry;
pub mod registry;

pub use registry::{Registry, Resource};

/// The static facts of a built-in kind.
pub struct Kind {
    /// Group stem: `""`, `apps`, `rbac.authorization` (see `Names::group`).
    pub group: &'static str,
    /// Served versions, preferred first. The first is also the stored one unless `storage_version` says otherwise.
    pub versions: &'static [&'static str],
    /// `ConfigMap`.
    pub kind: &'static str,
    /// Lower-case plural, as in URLs.
    pub resource: &'static str,
    /// Lower-case singular.
    pub singular: &'static str,
    /// `cm`.
    pub short_names: &'static [&'static str],
    /// `all`.
    pub categories: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs of the main resource, in the order discovery lists them.
    pub verbs: &'static [Verb],
    /// Subresources, in the order discovery lists them.
    pub subresources: &'static [Subresource],
    /// Type of the stored version in the schema table: `core/v1.ConfigMap`.
    pub schema: &'static str,
    /// The rules.
    pub strategy: &'static dyn Strategy,
}

/// The API verbs of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// POST
    Create,
    /// DELETE on an item
    Delete,
    /// DELETE on a collection
    DeleteCollection,
    /// GET on an item
    Get,
    /// GET on a collection
    List,
    /// PATCH
    Patch,
    /// PUT
    Update,
    /// GET with `watch`
    Watch,
}

/// All eight, in discovery's order.
pub const STANDARD_VERBS: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];

/// A subresource of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// `status`.
    pub name: &'static str,
    /// Its verbs, in discovery's order.
    pub verbs: &'static [Verb],
    /// The kind of its bodies; the main kind's for `status`.
    pub kind: &'static str,
}

/// What the rules of a kind may look at besides the objects.
pub struct Context<'a> {
    /// Names of the preset.
    pub names: &'a Names,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Chance.
    pub chance: &'a dyn Chance,
    /// The subresource written, `""` for the main resource.
    pub subresource: &'a str,
}

/// What names of a kind may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, up to 253 characters. Most kinds.
    Subdomain,
    /// RFC 1123 label, up to 63 characters. Namespaces.
    Label,
    /// RFC 1035 label, up to 63 characters. Services.
    Label1035,
    /// A path segment: not `.`, `..`, without `/` and `%`. RBAC kinds.
    PathSegment,
}

/// The rules of a kind. The verbs call the methods in this order: `default`, `prepare_create` (or `prepare_update`),
/// admission, `canonicalize`, `validate` (and `validate_update`). General metadata rules are not here: they are
/// [`metadata`]'s and the same for all kinds.
pub trait Strategy: Send + Sync {
    /// What its names may look like.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// PUT to a missing name creates (requirements D-NAME-16).
    fn create_on_update(&self) -> bool {
        false
    }

    /// PUT without resourceVersion replaces whatever is there (requirements D-EP-16).
    fn unconditional_update(&self) -> bool {
        true
    }

    /// DELETE answers the object instead of a Status.
    fn delete_returns_object(&self) -> bool {
        false
    }

    /// `metadata.generation` is kept: 1 at creation, +1 when something outside metadata and status changes.
    fn counts_generations(&self) -> bool {
        false
    }

    /// Field selectors beyond `metadata.name` and `metadata.namespace`.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// The value of one of [`Strategy::selectable_fields`]; `""` when unset.
    fn field(&self, _object: &Object, _field: &str) -> String {
        String::new()
    }

    /// Fills what the client left out. Also run on stored objects of older releases.
    fn default(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// Removes what a client may not set at creation; sets what the server sets.
    fn prepare_create(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// The same for an update, main resource or subresource (`ctx.subresource`): takes from `old` what this write may not
    /// change.
    fn prepare_update(&self, _new: &mut Object, _old: &Object, _ctx: &Context<'_>) {}

    /// Brings equivalent forms into one after admission.
    fn canonicalize(&self, _object: &mut Object) {}

    /// What must hold of every object of the kind.
    fn validate(&self, _object: &Object, _ctx: &Context<'_>) -> Vec<FieldError> {
        Vec::new()
    }

    /// What an update may not change. `validate` runs too.
    fn validate_update(&self, _new: &Object, _old: &Object, _ctx: &Context<'_>) -> Vec<FieldError> {
        Vec::new()
    }

    /// Warnings for the client that wrote this.
    fn warnings(&self, _new: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// Columns of Table representations; None: Name and Created At.
    fn table(&self) -> Option<&'static Table> {
        None
    }
}

/// Columns of a kind's Table representation.
pub struct Table {
    /// The columns.
    pub columns: &'static [Column],
    /// The cells of an object, as many as columns.
    pub cells: fn(&Object, &dyn Clock) -> Vec<serde_json::Value>,
}

/// One column definition (requirements D-TBL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// `Name`
    pub name: &'static str,
    /// `string`, `integer`, `date`, `boolean`
    pub kind: &'static str,
    /// `name` for the first column, else `""`
    pub format: &'static str,
    /// A sentence of our own.
    pub description: &'static str,
    /// 0, or 1 for `-o wide`.
    pub priority: u8,
}
