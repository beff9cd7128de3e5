//! Rules of a kind: names, defaults, validation and immutable fields.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::user::UserInfo;
use serde_json::Value;

use crate::table::cell::PathReader as _;
use crate::{Context, Translation};

/// Rule for object names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// An RFC 1123 subdomain with up to 253 characters. Most kinds have this rule.
    Subdomain,
    /// An RFC 1123 label with up to 63 characters, for example the name of a Namespace.
    Label,
    /// An RFC 1035 label with up to 63 characters, for example the name of a Service.
    Label1035,
    /// A path segment: a text without `/` and `%` other than `.` and `..`. RBAC kinds have this rule.
    PathSegment,
    /// Letters, digits, dashes, underscores and dots, as in a key of a ConfigMap. LeaseCandidates have this
    /// rule.
    ConfigKey,
    /// A group name, a dot and a plural name. StorageVersions have this rule.
    GroupResource,
    /// A rule that depends on other fields, which [`Strategy::validate`] applies. ClusterTrustBundles and
    /// IPAddresses have this rule.
    ByStrategy,
}

/// Metadata checks of a kind, in addition to the general checks of every write. The general checks require
/// that the name is a path segment, validate labels, annotations, owner references and qualified finalizers,
/// and report changes of immutable fields. An error that several checks find is reported by each of them, as
/// in kube-apiserver; see [`crate::metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataChecks {
    /// Whether a creation runs all checks with the [`NameRule`] of the kind.
    pub on_creation: bool,
    /// Updates that run the check of immutable fields a second time, in addition to the general check.
    pub changes: Revalidation,
    /// Updates that run all other checks with the [`NameRule`] of the kind.
    pub all: Revalidation,
}

impl MetadataChecks {
    /// Only the general checks, for example for Events of the core group.
    pub const GENERAL: Self =
        MetadataChecks { on_creation: false, changes: Revalidation::Never, all: Revalidation::Never };
    /// A creation runs all checks of the kind, and an update only the check of immutable fields.
    pub const CHANGES: Self =
        MetadataChecks { on_creation: true, changes: Revalidation::Always, all: Revalidation::Never };
    /// Creations and updates run all checks of the kind except the check of immutable fields.
    pub const ALL: Self =
        MetadataChecks { on_creation: true, changes: Revalidation::Never, all: Revalidation::Always };

    /// A creation runs all checks of the kind, and an update the check of immutable fields. The updates of
    /// `all` also run all other checks.
    pub const fn full(all: Revalidation) -> Self {
        MetadataChecks { all, ..MetadataChecks::CHANGES }
    }
}

/// Rule for `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The object has no generation.
    None,
    /// The generation is always 1.
    Fixed,
    /// The generation is 1 at creation. An update increments it if a field outside metadata and status, or
    /// one of the listed metadata fields, changes. Writes to `status` never increment it.
    Counted(&'static [&'static str]),
    /// The generation is 1 at creation. An update increments it if a field outside metadata changes. A change
    /// of the status increments it only if the kind does not have the subresource `status`.
    CountedOutsideMetadata,
}

/// Metadata that a write to `status` may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrites {
    /// All metadata that other writes may change.
    Metadata,
    /// The same metadata as for [`StatusWrites::Metadata`], except labels.
    MetadataWithoutLabels,
    /// Metadata except labels, annotations, finalizers and owner references, which the author of an object
    /// sets.
    ServerMetadata,
    /// No metadata that a client sets after the creation.
    StatusOnly,
    /// No metadata except `managedFields`: the request's other metadata is ignored. FlowSchemas and
    /// PriorityLevelConfigurations have this rule.
    NoMetadata,
}

/// Treatment of dependents if neither the delete options nor a finalizer specify a propagation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultPropagation {
    /// The garbage collector deletes dependents after their owner.
    Background,
    /// The garbage collector orphans dependents before apid deletes the owner.
    Orphan,
    /// The kind has no dependents; apid ignores the propagation policy.
    Never,
}

/// Updates for which [`Strategy::validate`] runs in addition to [`Strategy::validate_update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidation {
    /// All updates.
    Always,
    /// Updates of the main resource.
    MainResource,
    /// All updates except those of `status`.
    AllButStatus,
    /// No updates: [`Strategy::validate_update`] applies all rules.
    Never,
}

impl Revalidation {
    /// Whether the rules run for an update through a subresource; `""` is the main resource.
    pub(crate) fn includes(self, subresource: &str) -> bool {
        match self {
            Revalidation::Always => true,
            Revalidation::MainResource => subresource.is_empty(),
            Revalidation::AllButStatus => subresource != "status",
            Revalidation::Never => false,
        }
    }
}

/// Rules of the writes and deletes of a kind that do not depend on an object.
#[derive(Clone, Copy, Debug)]
pub struct WriteRules {
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
    /// Whether DELETE returns the object instead of a Status.
    pub delete_returns_object: bool,
    /// Treatment of dependents if a delete specifies no propagation policy.
    pub default_propagation: DefaultPropagation,
    /// Warning for clients that delete without a propagation policy.
    pub default_propagation_warning: Option<&'static str>,
}

impl WriteRules {
    /// Rules of most built-in kinds.
    pub const BUILT_IN: Self = WriteRules {
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
        delete_returns_object: false,
        default_propagation: DefaultPropagation::Background,
        default_propagation_warning: None,
    };

    /// Rules of all custom kinds.
    pub(crate) const CUSTOM: Self = WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        unconditional_update: false,
        generation: Generation::CountedOutsideMetadata,
        status_writes: StatusWrites::StatusOnly,
        // `validate_update` of a custom kind already validates the whole new object.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    };
}

/// Rules of a kind that depend on an object; [`crate::Kind`] contains its other facts. The methods of
/// [`crate::Kind`] call the methods of this trait and also apply the metadata rules. Objects conform to
/// the schema before each call. A missing field that the schema omits is absent and never `null`.
pub trait Strategy: Send + Sync {
    // Preparation of writes.

    /// Sets default values. apid also calls this on stored objects of older releases.
    fn default(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// Removes fields that a client may not set at creation and sets server-owned fields.
    fn prepare_create(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    /// Completes a new object from fields that mutating admission may have set. Runs once, after mutating
    /// admission and before [`Strategy::canonicalize`]. Returns warnings.
    fn complete_new(&self, _object: &mut Object, _ctx: &Context<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Records the user who creates the object, for kinds that contain this user. Runs after
    /// [`Strategy::prepare_create`].
    fn record_creator(&self, _object: &mut Object, _creator: &UserInfo) {}

    /// Restores from `old` the fields that this write may not change.
    /// The write is to the main resource or to a subresource (`ctx.subresource`).
    fn prepare_update(&self, _new: &mut Object, _old: &Object, _ctx: &Context<'_>) {}

    /// Sets fields that follow from other fields, such as the name label of a Namespace, and drops fields of disabled
    /// features. Runs after mutating admission, when the name is known, and before validation.
    fn canonicalize(&self, _object: &mut Object, _ctx: &Context<'_>) {}

    // Validation.

    /// The message about an annotation that kube-apiserver converts to a field, and whose value is not of the type of
    /// the field.
    fn malformed_annotation(&self, _object: &Object) -> Option<String> {
        None
    }

    /// Validates an object, without its metadata.
    fn validate(&self, _object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        FieldErrors::new()
    }

    /// Validates the changes of an update.
    /// [`WriteRules::revalidation`] decides whether [`Strategy::validate`] also runs.
    fn validate_update(&self, _new: &Object, _old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        FieldErrors::new()
    }

    /// Converts the errors of the storage version to those of this version, for a non-storage version.
    fn errors_of_version(&self, errors: FieldErrors) -> FieldErrors {
        errors
    }

    /// Warnings for the client that wrote the object.
    fn warnings(&self, _new: &Object, _old: Option<&Object>, _ctx: &Context<'_>) -> Vec<String> {
        Vec::new()
    }

    // Deletion.

    /// Grace period in seconds: the requested period or the default of the object.
    /// None for kinds without graceful deletion.
    fn grace_period_seconds(&self, _object: &Object, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a terminating object stays in the store for a reason other than `metadata.finalizers`.
    /// Example: the `spec.finalizers` of a namespace.
    fn has_pending_finalizers(&self, _object: &Object) -> bool {
        false
    }

    /// Updates an object when its deletion begins but does not complete at once.
    /// The metadata of the object already has the deletion timestamp.
    fn begin_deletion(&self, _object: &mut Object) {}

    /// The reason why clients may not delete the object with this name; None if they may delete it. As in
    /// kube-apiserver, a deletecollection deletes the object nevertheless.
    fn deletion_refusal(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Finalizer of apid that an object gets when its deletion begins.
    fn deletion_finalizer(&self, _names: &Names) -> Option<String> {
        None
    }

    // Representation and selection.

    /// Value of one of [`crate::SelectableFields::names`]: a string, boolean or number as text; `""` if unset.
    fn field(&self, object: &Object, field: &str) -> String {
        match object.find(field) {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
            _ => String::new(),
        }
    }

    /// Conditions of the Table row of an object: clients can hide completed objects.
    fn row_conditions(&self, _object: &Object) -> Vec<Value> {
        Vec::new()
    }

    /// Translation between the stored field names and those of the names preset; None if all names are equal.
    fn translation(&self, _names: &Names) -> Option<&dyn Translation> {
        None
    }
}

/// Strategy of kinds without their own rules.
pub(crate) struct DefaultStrategy;

impl Strategy for DefaultStrategy {}
