//! The kinds that are served: facts, rules and stored form of each; one file a kind, one line in its group's table.
//!
//! # Contract
//!
//! A [`Kind`] is the static facts of a built-in kind; [`Registry`] resolves all of them under a names preset into
//! [`Resource`]s, from which routes, discovery and storage keys are derived. What an object of a kind must be is its
//! [`Strategy`], and the rules of metadata that all kinds share are [`metadata`]'s; the verbs reach both through the
//! methods of [`Resource`], in this order:
//!
//! 1. [`Resource::conform`]: types, unknown fields, stored form (400), then [`Resource::to_stored`] from another version;
//! 2. [`Resource::default`];
//! 3. [`Resource::prepare_create`] or [`Resource::prepare_update`];
//! 4. admission, then [`Resource::canonicalize`];
//! 5. [`Resource::validate_create`] or [`Resource::validate_update`] (422).
//!
//! [`entry::Entry`] is what the watch cache keeps.
//!
//! # Invariants
//!
//! INVARIANT (a kind is one file and one line): nothing outside `src/<group>/` names a single kind.
//! INVARIANT (no HTTP): nothing here knows a request, a header or a status code but through `apimachinery::status`.

use apimachinery::clock::{Chance, Clock};
use apimachinery::names::Names;

mod conversion;
mod defaults;
pub mod entry;
pub mod eviction;
pub mod format;
pub mod labels;
pub mod metadata;
mod order;
pub mod registry;
pub mod scale;
mod status;
pub mod strategy;
pub mod table;
mod unenforced;

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
mod core;
mod discovery;
mod events;
mod flowcontrol;
mod networking;
mod node;
mod pods;
mod policy;
mod rbac;
mod scheduling;
mod storage;

pub use conversion::Conversion;
pub use order::Order;
pub use registry::{Registry, Resource};
pub use strategy::{DefaultPropagation, Generation, MetadataChecks, NameRule, StatusWrites, Strategy};
pub use table::{Column, Table};
pub use unenforced::Unenforced;

/// The static facts of a built-in kind.
pub struct Kind {
    /// Group stem: `""`, `apps`, `rbac.authorization` (see `Names::group`).
    pub group: &'static str,
    /// Served versions, preferred first. The first is also the stored one.
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
    /// Whether there are objects, or only requests that are answered.
    pub storage: Storage,
    /// Verbs of the main resource, in the order discovery lists them.
    pub verbs: &'static [Verb],
    /// Subresources, in the order discovery lists them.
    pub subresources: &'static [Subresource],
    /// Type of the stored version in the schema table: `core/v1.ConfigMap`.
    pub schema: &'static str,
    /// The rules.
    pub strategy: &'static dyn Strategy,
}

/// What becomes of a created object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It is stored.
    Stored,
    /// It is a question: its creation is answered with the same kind, its status filled, and nothing is kept. Such a
    /// kind has the one verb `create`, and objects without names.
    Review,
    /// It is an order: its creation changes another object and is answered with a Status, and nothing is kept.
    Order,
    /// It is an order to delete the object whose subresource takes it, and nothing is kept.
    Removal,
    /// It is how a subresource shows an object that is stored as another kind, and has no path of its own.
    View,
    /// It is another version of the kind with the same plural in the group of this stem, and stored as that one: its
    /// [`Strategy::conversion`] leads there and back. The rules of writes are those of the stored kind; its own strategy
    /// says what is shown, and what [`Strategy::validate`] demands beyond them of creations, and
    /// [`Strategy::validate_update`] of updates, both of objects as they are stored.
    Shared(&'static str),
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

impl Verb {
    /// The word of discovery and of rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
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

/// The verb of reviews.
pub const REVIEW_VERBS: &[Verb] = &[Verb::Create];

/// A subresource of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// `status`.
    pub name: &'static str,
    /// Its verbs, in discovery's order.
    pub verbs: &'static [Verb],
    /// The kind of its bodies; the main kind's for `status`.
    pub kind: &'static str,
    /// Group stem and version of that kind when they are not the main resource's: a token request is of
    /// `authentication`, `v1`.
    pub group_version: Option<(&'static str, &'static str)>,
}

impl Subresource {
    /// The subresource `status` of a kind.
    pub const fn status(kind: &'static str) -> Self {
        Subresource {
            name: "status",
            verbs: &[Verb::Get, Verb::Patch, Verb::Update],
            kind,
            group_version: None,
        }
    }

    /// The subresource `scale`, the same for all kinds that have it.
    pub const fn scale() -> Self {
        Subresource {
            name: "scale",
            kind: "Scale",
            group_version: Some(("autoscaling", "v1")),
            ..Subresource::status("")
        }
    }

    /// Whether it goes on below its path: what comes after belongs to a request that is forwarded.
    pub fn has_paths(&self) -> bool {
        self.name == "proxy"
    }

    /// The subresource `proxy`, which forwards requests; `kind` is that of its options.
    pub(crate) const fn proxy(kind: &'static str) -> Self {
        let verbs = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
        Subresource { name: "proxy", verbs, kind, group_version: None }
    }
}

impl Kind {
    /// Whether a subresource is a part of the object that the ordinary verbs read and write, with the kind's
    /// [`Strategy`] deciding what a write may change. The others have bodies of another kind, or code that is not there:
    /// verbs that do not know them answer 501.
    pub fn is_part(&self, subresource: &Subresource) -> bool {
        subresource.kind == self.kind
            && subresource.group_version.is_none()
            && !self.strategy.unbuilt_subresources().contains(&subresource.name)
    }

    /// Whether it has a status that is written apart from the rest.
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|subresource| subresource.name == "status")
    }
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
