//! Server-side apply.
//!
//! # Contract
//!
//! [`Apply::run`] merges a partial object over the current one for a manager:
//! - Values of the applied object are set and owned by the manager.
//! - Fields that the manager owned and no longer applies are removed, unless another manager owns them. A map that
//!   loses all its fields stays as the manager applies it, empty or null, or as another manager owns it.
//! - A change of a value that another manager owns is a conflict, unless the apply is forced.
//!
//! The caller must conform and default the result, so that removed fields get their defaults, and then
//! process it as an update.
//!
//! # Invariants
//!
//! INVARIANT (all or nothing): a conflict leaves object and owners unchanged.
//! INVARIANT (idempotent): applying the same object again changes nothing and keeps all times.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use apimachinery::status::{Cause, Details, Reason, Status};

use crate::last_applied;
use crate::managers::{Entry, EntryOperation, ManagedFields, bookkeeping_of, without_bookkeeping};
use crate::path::Element;
use crate::set::{Set, path_text};
use crate::typed::{
    Fields, TypingError, check, field_set, merge, remove, restore_nulls, with_declared_parents,
};
use crate::update::{ManagedWrite, OwnershipError};

pub use crate::last_applied::LastApplied;

/// A server-side apply operation.
pub struct Apply<'a> {
    /// The manager, the time and the target.
    pub write: ManagedWrite<'a>,
    /// Whether the apply takes over values that other managers own.
    pub force: bool,
    /// The client tool whose last-applied annotation is used; None disables the migration from client-side
    /// apply.
    pub last_applied: Option<LastApplied<'a>>,
}

/// The result of an apply.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplyOutcome {
    /// The object with its managed fields; neither conformed nor defaulted.
    pub object: Object,
    /// Whether the object differs from the current one in more than managed fields, before defaulting.
    pub changed: bool,
}

/// The reason why an apply failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The request body contains managed fields. 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The request body does not match its type. The reference responds with 500.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Typing(Vec<TypingError>),
    /// Other managers own changed fields. 409.
    #[error("{}", conflict_message(.0))]
    Conflicts(Conflicts),
    /// The object cannot be converted to the version of a field manager.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
}

/// A field that another manager owns and the apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The field manager that owns the field, as messages show it.
    pub owner: String,
    /// The field.
    pub path: Vec<Element>,
}

/// Maximum number of conflicts that an error lists; further conflicts are only counted.
const CONFLICTS_MAX: usize = 100;

/// The conflicts of an apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The first 100 conflicts, sorted by owner.
    pub first: Vec<Conflict>,
    /// The total number of conflicts.
    pub count: usize,
}

impl Apply<'_> {
    /// Applies the patch to the current object.
    ///
    /// # Errors
    ///
    /// See [`ApplyError`].
    pub fn run(&self, live: &Object, patch: &Object) -> Result<ApplyOutcome, ApplyError> {
        if patch.at(&["metadata", "managedFields"]).is_some_and(|list| !list.is_null()) {
            return Err(ApplyError::ManagedFields);
        }
        check(self.write.merge, &patch.0).map_err(ApplyError::Typing)?;
        let managed = ManagedFields::of(live);
        let is_untracked = managed.entries.is_empty();
        let managed = if is_untracked { self.write.before_first_apply(live)? } else { managed };
        let (managed, is_reconciled) = self.write.reconcile(managed);
        let owners = Owners { managed, unmodified: !is_untracked && !is_reconciled };
        let tool = self.last_applied.filter(|tool| tool.manager == self.write.manager);
        let mut applied = match (self.try_apply(live, patch, &owners, &Set::new()), tool) {
            (Err(ApplyError::Conflicts(_)), Some(tool)) => {
                // The tool owns the fields of its last client-side apply whose values have not changed since.
                let own_paths = last_applied::unchanged_fields(self.write.merge, live, tool);
                self.try_apply(live, patch, &owners, &own_paths)?
            }
            (result, _) => result?,
        };
        if let Some(tool) = tool {
            last_applied::record(&mut applied.object, patch, tool);
        }
        Ok(applied)
    }

    /// Applies the patch. Paths in `own_paths` never conflict.
    fn try_apply(
        &self,
        live: &Object,
        patch: &Object,
        owners: &Owners,
        own_paths: &Set,
    ) -> Result<ApplyOutcome, ApplyError> {
        let write = &self.write;
        let mut set = field_set(write.merge, &patch.0);
        set.subtract_recursive(write.ignored);
        let mut own = write.entry(write.manager, EntryOperation::Apply, set);

        let mut merged = Object(merge(write.merge, &live.0, &patch.0));
        // Go clients send a null creationTimestamp in every object; the stored time stays.
        if let (Some(at), Some(Value::Null)) =
            (live.at(&["metadata", "creationTimestamp"]), merged.at(&["metadata", "creationTimestamp"]))
        {
            merged.set_meta("creationTimestamp", at.clone());
        }
        let bookkeeping = bookkeeping_of(&own.fields);
        own.fields = without_bookkeeping(own.fields);
        if self.is_unchanged(live, &merged, &own, owners) {
            return Ok(ApplyOutcome { object: merged, changed: false });
        }
        let mut others = owners.managed.clone();
        let before = others.take(&own);
        let mut new = match &before {
            Some(before) => {
                // Bookkeeping fields count as applied. Otherwise an apply that drops the last label would
                // also remove `metadata.name`.
                let applied = Entry { fields: own.fields.union(&bookkeeping), ..own.clone() };
                let mut pruned = self.prune(merged, &applied, before, &others)?;
                restore_nulls(write.merge, &mut pruned.0, &patch.0);
                pruned
            }
            None => merged,
        };

        let compared = write.compare_all(live, &new, write.compare(live, &new), &others)?;
        if !self.force {
            let conflicts = conflicts(&others, &compared, own_paths);
            if conflicts.count > 0 {
                return Err(ApplyError::Conflicts(conflicts));
            }
        }
        compared.remove_lost_fields(&mut others);
        let changed = live.0 != new.0;
        if !changed {
            own.time = before.as_ref().and_then(|before| before.time);
        }
        others.entries.push(own);
        others.write(&mut new);
        crate::managers::keep_times(live, &mut new);
        Ok(ApplyOutcome { object: new, changed })
    }

    /// Whether neither values nor owners change. Then the apply needs no comparison and writes no owners.
    fn is_unchanged(&self, live: &Object, merged: &Object, own: &Entry, owners: &Owners) -> bool {
        let is_served = |entry: &Entry| self.write.merge_of(&entry.api_version).is_some();
        owners.unmodified
            && owners
                .managed
                .find(own)
                .is_some_and(|before| before.api_version == own.api_version && before.fields == own.fields)
            && owners.managed.entries.iter().all(is_served)
            && live.0 == merged.0
    }

    /// Removes fields that the manager no longer applies and no other owner has.
    fn prune(
        &self,
        merged: Object,
        own: &Entry,
        before: &Entry,
        others: &ManagedFields,
    ) -> Result<Object, ApplyError> {
        let write = &self.write;
        // The manager still applies every field that it owned: nothing is removed.
        if before.api_version == own.api_version && before.fields.is_subset(&own.fields) {
            return Ok(merged);
        }
        let Some(ty) = write.merge_of(&before.api_version) else { return Ok(merged) };
        let same_version = before.api_version == own.api_version;
        let merged = if same_version { merged } else { write.convert(&merged, &before.api_version)? };
        let previous = with_declared_parents(ty, &before.fields);
        let mut pruned = Object(remove(ty, &merged.0, &previous));
        pruned = self.add_back_owned(&merged, pruned, own, before, others)?;

        // Only fields that the manager owned may be removed.
        let (remaining, mut all) = (declared_fields(ty, &pruned.0), declared_fields(ty, &merged.0));
        all.subtract(&remaining);
        let pruned = Object(remove(ty, &merged.0, &all.intersection(&previous)));
        if same_version { Ok(pruned) } else { Ok(write.convert(&pruned, write.api_version)?) }
    }

    /// Restores removed fields that another entry or this apply owns, in the version of each owner.
    ///
    /// The version of the previous apply comes first, so that conversions to other versions start from
    /// restored fields.
    fn add_back_owned(
        &self,
        merged: &Object,
        mut pruned: Object,
        own: &Entry,
        before: &Entry,
        others: &ManagedFields,
    ) -> Result<Object, ApplyError> {
        let write = &self.write;
        let mut owned: Vec<(&str, Vec<Set>)> = vec![(&before.api_version, Vec::new())];
        let mut index_by_version: BTreeMap<&str, usize> = BTreeMap::from([(before.api_version.as_str(), 0)]);
        for entry in others.entries.iter().chain([own]) {
            let index = *index_by_version.entry(&entry.api_version).or_insert(owned.len());
            match owned.get_mut(index) {
                Some((_, sets)) => sets.push(entry.fields.clone()),
                None => owned.push((&entry.api_version, vec![entry.fields.clone()])),
            }
        }
        let owned: Vec<(&str, Set)> =
            owned.into_iter().map(|(version, sets)| (version, Set::union_all(sets))).collect();
        let mut pruned_version = before.api_version.as_str();
        for (version, set) in owned.iter().filter(|(_, set)| !set.is_empty()) {
            let Some(ty) = write.merge_of(version) else { continue };
            let converted;
            let merged = if *version == before.api_version {
                merged
            } else {
                converted = write.convert(merged, version)?;
                &converted
            };
            if pruned_version != *version {
                pruned = write.convert(&pruned, version)?;
                pruned_version = version;
            }
            let keep = declared_fields(ty, &pruned.0).union(&with_declared_parents(ty, set));
            let mut removed = declared_fields(ty, &merged.0);
            removed.subtract(&keep);
            pruned = Object(remove(ty, &merged.0, &removed));
        }
        if pruned_version == before.api_version {
            Ok(pruned)
        } else {
            Ok(write.convert(&pruned, &before.api_version)?)
        }
    }
}

/// The owners before an apply.
struct Owners {
    managed: ManagedFields,
    /// Whether the owners are exactly the owners in the stored object.
    unmodified: bool,
}

fn declared_fields(ty: &schema::merge::Merge, object: &Fields) -> Set {
    with_declared_parents(ty, &field_set(ty, object))
}

/// The fields that other entries own and the apply writes, without the paths in `own_paths`.
fn conflicts(
    others: &ManagedFields,
    compared: &crate::update::ComparedVersions,
    own_paths: &Set,
) -> Conflicts {
    let mut sets: Vec<(String, Set)> = Vec::new();
    for (entry, changed) in others.entries.iter().zip(compared.by_entry()) {
        let mut contested = entry.fields.intersection(&changed.written);
        contested.subtract(own_paths);
        if !contested.is_empty() {
            sets.push((entry.owner_text(), contested));
        }
    }
    sets.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut all = Conflicts::default();
    for (owner, set) in sets {
        all.count += set.len();
        if all.first.len() >= CONFLICTS_MAX {
            continue;
        }
        set.for_each(&mut |path| {
            if all.first.len() < CONFLICTS_MAX {
                all.first.push(Conflict { owner: owner.clone(), path: path.to_vec() });
            }
        });
    }
    all
}

fn conflict_message(all: &Conflicts) -> String {
    let conflicts = all.first.as_slice();
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            only.owner,
            path_text(&only.path)
        );
    }
    let owners = conflicts.chunk_by(|a, b| a.owner == b.owner).map(|owner_conflicts| {
        let owner = owner_conflicts.first().map_or("", |conflict| conflict.owner.as_str());
        let paths: String =
            owner_conflicts.iter().map(|conflict| format!("\n- {}", path_text(&conflict.path))).collect();
        format!("conflicts with {owner}:{paths}")
    });
    let mut owners: Vec<String> = owners.collect();
    if all.count > conflicts.len() {
        owners.push(format!("and {} more", all.count - conflicts.len()));
    }
    format!("Apply failed with {} conflicts: {}", all.count, owners.join("\n"))
}

/// A 409 status with one cause for each of the first 100 conflicts.
pub fn conflict_status(conflicts: &Conflicts) -> Status {
    let causes = conflicts.first.iter().map(|conflict| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with {}", conflict.owner),
        field: path_text(&conflict.path),
    });
    Status::failure(Reason::Conflict, conflict_message(conflicts))
        .with_details(Details { causes: causes.collect(), ..Details::default() })
}

#[cfg(test)]
mod tests;
