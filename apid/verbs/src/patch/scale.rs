//! Server-side apply for the subresource `scale`.
//!
//! # Contract
//!
//! [`apply`] merges a Scale into the Scale of the object. Each owner of the replicas of the Scale becomes an
//! owner of the replicas field of the object; an existing entry keeps its `apiVersion`. An entry of a write
//! through the subresource has `subresource: scale`.

use ::apply::managers::{Entry, ManagedFields};
use ::apply::server_side::Apply;
use ::apply::set::Set;
use ::apply::update::{ManagedWrite, OneVersion};
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::Kind;

use super::super::options::WriteOptions;
use super::super::replicas_paths::{REPLICAS, ReplicasPaths};
use super::super::scale::{scale_of, write};
use super::super::{Call, WriteResult};
use super::apply::{ApplyIntent, apply_error_status, check_result, type_mismatch_status};

/// Applies a Scale.
///
/// # Errors
///
/// 400 for a malformed body, 404, 409 for a conflict, 422 for invalid replicas.
pub(super) async fn apply(
    call: &Call<'_>,
    body: &Kind,
    intent: ApplyIntent,
    options: &WriteOptions,
) -> Result<WriteResult, Status> {
    let schema = &body.schema;
    let versions = OneVersion { api_version: body.api_version(), merge: schema.merge() };
    intent.check_type(body.name(), &versions.api_version)?;
    let limits = intent.limits;
    let (patch, warnings) = intent.validate(call, body, schema, options.field_validation)?;
    let (ignored, empty) = (Set::new(), schema.empty());
    let write_of_scale = ManagedWrite {
        manager: options.manager(),
        api_version: &versions.api_version,
        subresource: call.subresource,
        now: None,
        merge: &versions.merge,
        versions: &versions,
        ignored: &ignored,
        empty: &empty,
        reset_then_track: false,
    };
    let apply = Apply { write: write_of_scale, force: options.force, last_applied: None };
    let version = call.collection.kind.api_version();
    let paths = ReplicasPaths::new(call);
    let propose = |old: &Object| {
        let owners = ManagedFields::of(old);
        let mut scale = scale_of(call, old);
        scale_owners(&owners, paths, &versions.api_version).write(&mut scale);
        let mut new =
            apply.run(&scale, &patch).map_err(|error| apply_error_status(call, &patch, error))?.object;
        check_result(&new, limits)?;
        let owners_of_scale = ManagedFields::of(&new);
        body.conform(&mut new).map_err(|error| type_mismatch_status(call, &patch, &error.to_string()))?;
        call.check_name(&new)?;
        Ok((new, warnings.clone(), Some(object_owners(owners, owners_of_scale, paths, &version))))
    };
    write(call, body, options, propose).await
}

/// Returns the owners of the object's replicas as owners of its Scale.
fn scale_owners(owners: &ManagedFields, paths: ReplicasPaths<'_>, api_version: &str) -> ManagedFields {
    let owning = owners.entries.iter().filter(|entry| paths.owned_by(entry).is_some());
    let entries = owning.map(|entry| Entry {
        api_version: api_version.to_owned(),
        fields: Set::of(&*REPLICAS),
        ..entry.clone()
    });
    ManagedFields { entries: entries.collect() }
}

/// Returns the object's managed fields after the owners of its Scale changed. New owners own the replicas in
/// the version `api_version` of the object. Entries of versions that the definition no longer has are dropped.
fn object_owners(
    before: ManagedFields,
    mut owners_of_scale: ManagedFields,
    paths: ReplicasPaths<'_>,
    api_version: &str,
) -> ManagedFields {
    owners_of_scale.entries.retain(|entry| entry.fields.contains(&*REPLICAS));
    let is_same_owner = |a: &Entry, b: &Entry| {
        a.manager == b.manager && a.operation == b.operation && a.subresource == b.subresource
    };
    let mut entries = before.entries;
    entries.retain(|entry| paths.has_version(&entry.api_version));
    for entry in &mut entries {
        let Some(path) = paths.owned_by(entry) else { continue };
        match owners_of_scale.entries.iter().position(|owner| is_same_owner(owner, entry)) {
            Some(index) => drop(owners_of_scale.entries.swap_remove(index)),
            None => entry.fields.subtract(&Set::of(&path)),
        }
    }
    if let Some(path) = paths.in_version(api_version) {
        for owner in owners_of_scale.entries {
            let new = Entry { api_version: api_version.to_owned(), fields: Set::of(&path), ..owner };
            // An owner has one entry. Its earlier entry owns another path, from before a change of the definition.
            entries.retain(|entry| !entry.has_same_owner(&new));
            entries.push(new);
        }
    }
    ManagedFields { entries }
}
