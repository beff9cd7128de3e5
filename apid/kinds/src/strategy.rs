//! The rules of a kind: what its names look like, what is filled in, refused, kept and shown.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::user::UserInfo;

use crate::{Context, Conversion, Order, Table, Unenforced};

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

/// Which checks of metadata a kind makes itself, besides the general ones of every write (names are path segments,
/// labels, annotations, owners and qualified finalizers). An error of metadata is listed once for each check that finds
/// it, as the reference lists it; see [`crate::metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataChecks {
    /// None: core events.
    General,
    /// The whole at creation, with the kind's own [`NameRule`]; on update what may not change.
    Changes,
    /// The whole at creation; on update what may not change, and the whole.
    Whole,
}

/// Whether `metadata.generation` is kept, and what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// There is none.
    None,
    /// 1 at creation, for life.
    Fixed,
    /// 1 at creation, +1 when something outside metadata and status changes, or one of these fields of the metadata.
    Counted(&'static [&'static str]),
}

/// What a write to `status` may change beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrites {
    /// Metadata, as any write may.
    Metadata,
    /// Metadata without labels.
    MetadataWithoutLabels,
    /// Nothing.
    Alone,
}

/// What becomes of dependents when a delete does not say it, neither in its options nor by a finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPropagation {
    /// They end after their owner.
    Background,
    /// They stay, and their owner waits until they are told.
    Orphan,
    /// There are none, whatever a delete says.
    Never,
}

/// The rules of a kind. Called through the methods of [`crate::Resource`], which also apply the rules of metadata.
/// Objects have been conformed to the schema before any of these sees them; `null` never stands for a missing field
/// that the schema omits.
pub trait Strategy: Send + Sync {
    /// What its names may look like.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Which checks of metadata it makes itself.
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Whole
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

    /// Seconds that an object is given to end, of a kind that ends gracefully: those that were asked for, or its own. None
    /// for all other kinds: they end at once.
    fn grace(&self, _object: &Object, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// What becomes of dependents when a delete does not say it.
    fn default_propagation(&self) -> DefaultPropagation {
        DefaultPropagation::Background
    }

    /// Said to clients that leave dependents to the default.
    fn default_propagation_warning(&self) -> Option<&'static str> {
        None
    }

    /// Whether `metadata.generation` is kept.
    fn generation(&self) -> Generation {
        Generation::None
    }

    /// What a write to `status` may change beside it. That it leaves the rest alone, and the main resource the status,
    /// holds of all kinds with that subresource.
    fn status_writes(&self) -> StatusWrites {
        StatusWrites::Metadata
    }

    /// A created object keeps the status that it comes with: nodes report themselves.
    fn created_with_status(&self) -> bool {
        false
    }

    /// Subresources of the kind's own type that are listed and not built.
    fn unbuilt_subresources(&self) -> &'static [&'static str] {
        &[]
    }

    /// Field selectors beyond `metadata.name` and `metadata.namespace`. Dotted; a name is also the path that
    /// [`Strategy::field`] reads, unless [`Strategy::field_sources`] adds others.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Paths that [`Strategy::field`] reads beyond the names of its fields. The cache parses no more of a stored object
    /// than these.
    fn field_sources(&self) -> &'static [&'static str] {
        &[]
    }

    /// The value of one of [`Strategy::selectable_fields`]; `""` when unset.
    fn field(&self, object: &Object, field: &str) -> String {
        let path: Vec<&str> = field.split('.').collect();
        object.str_at(&path).unwrap_or("").to_owned()
    }

    /// Fills what the client left out. Also run on stored objects of older releases.
    fn default(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// Removes what a client may not set at creation; sets what the server sets.
    fn prepare_create(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// Writes down who creates the object, for kinds that keep it. Runs after [`Strategy::prepare_create`].
    fn record_creator(&self, _object: &mut Object, _creator: &UserInfo) {}

    /// The same for an update, main resource or subresource (`ctx.subresource`): takes from `old` what this write may not
    /// change.
    fn prepare_update(&self, _new: &mut Object, _old: &Object, _ctx: &Context<'_>) {}

    /// Brings equivalent forms into one after admission, when the name is known.
    fn canonicalize(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// What must hold of every object of the kind, metadata aside.
    fn validate(&self, _object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        FieldErrors::new()
    }

    /// What an update may not change. Whether [`Strategy::validate`] runs too is [`Strategy::revalidates`]'.
    fn validate_update(&self, _new: &Object, _old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        FieldErrors::new()
    }

    /// Whether an update through a subresource (`""` for the main resource) is validated by [`Strategy::validate`] too.
    fn revalidates(&self, _subresource: &str) -> bool {
        true
    }

    /// What keeps a terminating object in the store beside `metadata.finalizers`: the `spec.finalizers` of a namespace.
    fn is_held(&self, _object: &Object) -> bool {
        false
    }

    /// Called on an object that is not removed at once, when its deletion begins: metadata is already marked.
    fn begin_deletion(&self, _object: &mut Object) {}

    /// The way to the stored version and back, of a version that is stored as another one ([`crate::Storage::Shared`]).
    fn conversion(&self) -> Option<&'static dyn Conversion> {
        None
    }

    /// What an order does, of a kind that is one ([`crate::Storage::Order`]).
    fn order(&self) -> Option<&'static dyn Order> {
        None
    }

    /// Said with every answer about a kind that should not be used any more.
    fn deprecation(&self, _names: &Names) -> Option<String> {
        None
    }

    /// The warning for a kind that the server stores but does not enforce.
    fn unenforced(&self) -> Option<&'static Unenforced> {
        None
    }

    /// Warnings for the client that wrote this.
    fn warnings(&self, new: &Object, _old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        let unenforced = self.unenforced().filter(|unenforced| unenforced.applies_to(new));
        unenforced.map(|unenforced| unenforced.warning.to_owned()).into_iter().collect()
    }

    /// Columns of Table representations; None: Name and Created At.
    fn table(&self) -> Option<&'static Table> {
        None
    }
}

/// The strategy of kinds without rules of their own.
pub(crate) struct Plain;

impl Strategy for Plain {}
