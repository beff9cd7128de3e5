//! Kinds: their facts, their rules and the stored form of their objects.
//! Each built-in kind is one file and one line in the table of its group.
//!
//! # Contract
//!
//! A [`Kind`] has the facts and rules of one version of a kind. [`Registry`] builds the built-in kinds of a names
//! preset from the rows of the built-in table, and [`custom`] builds the kinds of definitions. Routes, discovery and
//! storage keys derive from the kinds. A registry is immutable: after a change of a definition, apid builds another
//! registry that shares the unchanged kinds. A [`Strategy`] contains the rules of a kind that depend on an object;
//! [`metadata`] contains the metadata rules that all kinds share. The code of the API verbs applies both through the
//! methods of [`Kind`]; the module `object_steps` states their order.
//!
//! The watch cache keeps [`entry::Entry`] values.
//!
//! # Invariants
//!
//! INVARIANT (a kind is one file and one line): a new built-in kind needs a file in `src/<group>/` and a line
//! in the table of the group. Shared code reads the facts from the [`Kind`]. Outside these folders, code refers
//! to particular kinds only in modules about pods, scaling and eviction and in special cases of kube-apiserver.
//! INVARIANT (no HTTP): this crate uses no requests or headers, and uses status codes only through
//! `apimachinery::status`.

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;

pub mod admission_expressions;
mod api_priorities;
mod binding_action;
mod built_in_kind;
mod built_in_kinds;
mod conversion;
pub mod custom;
mod defaults;
mod enabled_versions;
pub mod entry;
pub mod eviction;
mod explain;
pub mod format;
mod kind;
mod kind_schema;
pub mod labels;
pub mod lifecycle;
pub mod metadata;
mod object_steps;
mod reference_key;
pub mod registry;
pub mod resource_name;
mod same_fields;
pub mod scale;
mod status;
mod stored_prefixes;
pub mod strategy;
pub mod table;
mod translation;
mod unenforced;
mod validation;
mod volume_sources;

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
mod internal_apiserver;
mod networking;
mod node;
mod pods;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;
mod storagemigration;

pub use api_priorities::ApiPriority;
pub use binding_action::{AssignmentError, BindingAction};
pub use built_in_kind::BuiltInKind;
pub use certificates::USAGES as CERTIFICATE_USAGES;
pub use conversion::Conversion;
pub use core::{complete_service_families, quality_of_service};
pub use enabled_versions::{EnabledVersions, RuntimeConfigErrors};
pub use kind::{Definition, Deprecation, Kind, KindNames, SelectableFields, internal_package};
pub use kind_schema::KindSchema;
pub use reference_key::{
    REFERENCE_ROOT, ReferencePrefixes, reference_key_of, resource_of_prefix, resource_prefix,
};
pub use registry::{CurrentRegistry, Registry};
pub use stored_prefixes::stored_prefixes;
pub use strategy::{
    DefaultPropagation, Generation, MetadataChecks, NameRule, Revalidation, StatusWrites, Strategy,
    WriteRules,
};
pub use table::{Column, Source};
pub use translation::Translation;
pub use unenforced::UnenforcedKind;
pub use validation::network::{parse_cidr, parse_ip};

/// Effect of the creation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// apid stores the object.
    Stored,
    /// A review: apid returns the object with its status filled and stores nothing.
    /// The only verb is `create`; objects have no names.
    Review,
    /// A binding-like object: its creation changes another object and returns a Status.
    /// apid does not store it.
    BindingLike,
    /// An eviction: its creation deletes the object that has the subresource. apid does not store it.
    Eviction,
    /// The body of a subresource of an object with another kind. The kind has no path of its own.
    VirtualSubresource,
    /// A further version of a stored kind: the kind with the same plural in the group of this stem.
    /// [`BuiltInKind::conversion`] converts between this version and the storage version. The rules of writes are
    /// those of the stored kind. The strategy of this version defines its representation. Its
    /// [`Strategy::validate`] adds rules for creations, and its [`Strategy::validate_update`] adds rules for
    /// updates; these two methods receive objects in the storage version.
    Shared(&'static str),
}

/// The API verbs that discovery lists.
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
    /// Name of the verb in discovery and RBAC rules.
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

/// All eight verbs, in discovery order.
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

/// Verbs of reviews.
pub const REVIEW_VERBS: &[Verb] = &[Verb::Create];

/// Verbs of a subresource that is a part of its object.
pub(crate) const PART_VERBS: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];

/// A subresource of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Name: `status`.
    pub name: &'static str,
    /// Verbs, in discovery order.
    pub verbs: &'static [Verb],
    /// Kind of the request and response bodies. `""` means the kind of the main resource, see
    /// [`Kind::body_kind`].
    pub kind: &'static str,
    /// Group stem and version of the body kind if they differ from those of the main resource.
    /// Example: a token request is in `authentication`, `v1`.
    pub group_version: Option<(&'static str, &'static str)>,
}

impl Subresource {
    /// A subresource whose body is a kind of the same group.
    pub(crate) const fn new(name: &'static str, verbs: &'static [Verb], kind: &'static str) -> Self {
        Subresource { name, verbs, kind, group_version: None }
    }

    /// The subresource `status` of a kind.
    pub const fn status(kind: &'static str) -> Self {
        Subresource::new("status", PART_VERBS, kind)
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

    /// Whether the subresource forwards requests.
    /// Further path segments belong to the forwarded request.
    pub fn has_paths(&self) -> bool {
        self.name == "proxy"
    }

    /// The subresource `proxy`, which forwards requests; `kind` is the kind of its options.
    pub(crate) const fn proxy(kind: &'static str) -> Self {
        let verbs = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
        Subresource::new("proxy", verbs, kind)
    }
}

/// Values of the server and of the request that the rules of a kind use.
pub struct Context<'a> {
    /// Names of the preset of this server.
    pub names: &'a Names,
    /// Clock for the times that the server sets.
    pub clock: &'a dyn Clock,
    /// Source of uids and of suffixes for generated names.
    pub rng: &'a dyn Rng,
    /// Name of the written subresource, `""` for the main resource.
    pub subresource: &'a str,
}
