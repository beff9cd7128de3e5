//! Field ownership after a write other than apply: a create, a replace, a patch.
//!
//! # Contract
//!
//! [`ManagedWrite::update`] compares the old and the new object. Only the manager of the write then owns the
//! added and modified fields, and no manager owns a removed field. Such a write never conflicts.
//!
//! # Reference
//!
//! An object without owners stays untracked until its first apply. Two exceptions exist: the write creates
//! the object, or, with [`ManagedWrite::reset_then_track`], the same write resets the owners.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use jiff::Timestamp;
use schema::merge::Merge;

use crate::managers::{
    Entry, EntryOperation, ManagedFields, UPDATES_MAX, is_bookkeeping, is_reset, without_bookkeeping,
};
use crate::set::Set;
use crate::typed::{Comparison, compare, reconcile};

/// The manager of fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The reason why an object cannot be converted to another version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The version is not served.
    #[error("{0} is not served")]
    NotServed(String),
    /// The conversion needs a webhook, whose result is not known yet.
    #[error("the conversion has not run")]
    Pending,
    /// The conversion failed, with its message.
    #[error("{0}")]
    Failed(String),
}

/// The API versions of a kind, for entries of `managedFields` in another version than that of the write.
pub trait Versions: Sync {
    /// The merge type of a version; None when the version is no longer served.
    fn merge(&self, api_version: &str) -> Option<&Merge>;

    /// Converts an object from its version to another one.
    ///
    /// # Errors
    ///
    /// See [`ConversionError`].
    fn convert(&self, object: &Object, api_version: &str) -> Result<Object, ConversionError>;
}

/// The [`Versions`] of a kind that has only one version.
#[derive(Clone, Debug)]
pub struct OneVersion {
    /// The version.
    pub api_version: String,
    /// The merge type of its objects.
    pub merge: Merge,
}

impl Versions for OneVersion {
    fn merge(&self, api_version: &str) -> Option<&Merge> {
        (self.api_version == api_version).then_some(&self.merge)
    }

    fn convert(&self, object: &Object, _: &str) -> Result<Object, ConversionError> {
        Ok(object.clone())
    }
}

/// A write by a field manager: its name, time and target.
pub struct ManagedWrite<'a> {
    /// The name of the manager.
    pub manager: &'a str,
    /// The API version of the written object.
    pub api_version: &'a str,
    /// The subresource of the write; `""` is the object itself.
    pub subresource: &'a str,
    /// The current time; None for writes without a time.
    pub now: Option<Timestamp>,
    /// The merge type of the version.
    pub merge: &'a Merge,
    /// The other versions of the kind.
    pub versions: &'a dyn Versions,
    /// Fields that this write never changes and so never owns: `status` for a write of the object itself.
    pub ignored: &'a Set,
    /// An empty object of the kind: a create is compared with it.
    pub empty: &'a Object,
    /// Whether a write that resets all owners makes its manager the owner of the other changes of that write.
    pub reset_then_track: bool,
}

/// The reason why the owners of fields cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipError {
    /// The object cannot be converted to the version of an owner.
    #[error("cannot convert to {to}: {why}")]
    Conversion {
        /// The target version.
        to: String,
        /// The reason of the failure.
        why: ConversionError,
    },
}

impl ManagedWrite<'_> {
    /// Sets the managed fields of the new object. `old` is None for a create.
    ///
    /// # Errors
    ///
    /// The object cannot be converted to the version of an owner.
    pub fn update(&self, old: Option<&Object>, new: &mut Object) -> Result<(), OwnershipError> {
        let request_list = new.remove_meta("managedFields");
        let is_subresource = !self.subresource.is_empty();
        let reset = !is_subresource && is_reset(request_list.as_ref());
        let stored_owners = || old.map(ManagedFields::of).unwrap_or_default();
        let own_changes = self.compare(old.unwrap_or(self.empty), new);
        if let Some(old) = old
            && !reset
            && (is_subresource || has_stored_owners(request_list.as_ref(), old))
            && own_changes.is_bookkeeping()
        {
            // No manager gains or loses a field: keep the stored list without decoding.
            if let Some(list) = old.at(&["metadata", "managedFields"]) {
                new.set_meta("managedFields", list.clone());
            }
            return Ok(());
        }
        let managed = if is_subresource {
            stored_owners()
        } else if reset {
            ManagedFields::default()
        } else {
            // Clients that do not know managedFields send none; the stored owners stay.
            ManagedFields::decode(request_list.as_ref())
                .filter(|request_list| !request_list.entries.is_empty())
                .unwrap_or_else(stored_owners)
        };
        let untracked = managed.entries.is_empty() && old.is_some();
        if untracked && !(reset && self.reset_then_track) {
            return Ok(());
        }
        let managed = self.assign(self.manager, old.unwrap_or(self.empty), new, own_changes, managed)?;
        managed.write(new);
        if let Some(old) = old {
            crate::managers::keep_times(old, new);
        }
        Ok(())
    }

    /// The changes in the version of this write, without ignored fields.
    pub(crate) fn compare(&self, old: &Object, new: &Object) -> ChangedFields {
        ChangedFields::new(compare(self.merge, &old.0, &new.0).without(self.ignored))
    }

    /// The owners of an untracked object before its first apply: one manager owns all fields.
    pub(crate) fn before_first_apply(&self, live: &Object) -> Result<ManagedFields, OwnershipError> {
        let all = self.compare(self.empty, live);
        self.assign(BEFORE_FIRST_APPLY, self.empty, live, all, ManagedFields::default())
    }

    /// Creates an entry for this write.
    pub(crate) fn entry(&self, manager: &str, operation: EntryOperation, fields: Set) -> Entry {
        Entry {
            manager: manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: self.now,
            fields,
        }
    }

    /// Assigns the changed fields to a manager, and removes them from all others.
    fn assign(
        &self,
        manager: &str,
        old: &Object,
        new: &Object,
        own_changes: ChangedFields,
        managed: ManagedFields,
    ) -> Result<ManagedFields, OwnershipError> {
        let (mut managed, _) = self.reconcile(managed);
        let compared = self.compare_all(old, new, own_changes, &managed)?;
        compared.remove_lost_fields(&mut managed);
        managed.entries.retain(|entry| !entry.fields.is_empty());
        let fields = without_bookkeeping(compared.into_own().written);
        if !fields.is_empty() {
            let mut entry = self.entry(manager, EntryOperation::Update, fields);
            if let Some(before) = managed.take(&entry) {
                entry.fields = entry.fields.union(&before.fields);
            }
            managed.entries.push(entry);
        }
        managed.cap_updates(UPDATES_MAX);
        Ok(managed)
    }

    /// Adapts the owners to the current types: parts that became atomic are owned as a whole. The boolean is
    /// true if an entry changed.
    pub(crate) fn reconcile(&self, mut managed: ManagedFields) -> (ManagedFields, bool) {
        let mut changed = false;
        for entry in &mut managed.entries {
            let merge = self.merge_of(&entry.api_version);
            if let Some(set) = merge.and_then(|merge| reconcile(merge, &entry.fields)) {
                entry.fields = set;
                changed = true;
            }
        }
        (managed, changed)
    }

    /// The merge type of a version; None when the version is no longer served.
    pub(crate) fn merge_of(&self, api_version: &str) -> Option<&Merge> {
        if api_version == self.api_version { Some(self.merge) } else { self.versions.merge(api_version) }
    }

    pub(crate) fn convert(&self, object: &Object, to: &str) -> Result<Object, OwnershipError> {
        self.versions.convert(object, to).map_err(|why| OwnershipError::Conversion { to: to.to_owned(), why })
    }

    /// Compares the objects in the versions of all owners. `own_changes` are the changes in the version of
    /// this write.
    ///
    /// All conversions are attempted before the first failure returns, so that a caller learns of all pending
    /// conversions at once.
    pub(crate) fn compare_all(
        &self,
        old: &Object,
        new: &Object,
        own_changes: ChangedFields,
        managed: &ManagedFields,
    ) -> Result<ComparedVersions, OwnershipError> {
        let mut versions: BTreeMap<&str, usize> = BTreeMap::from([(self.api_version, 0)]);
        let mut compared =
            ComparedVersions { all: vec![own_changes], by_entry: Vec::with_capacity(managed.entries.len()) };
        let mut failure = None;
        for entry in &managed.entries {
            let to = &entry.api_version;
            let at = *versions.entry(to).or_insert(compared.all.len());
            compared.by_entry.push(at);
            if at < compared.all.len() {
                continue;
            }
            compared.all.push(match self.merge_of(to) {
                // An owner in a removed version loses all its fields.
                None => ChangedFields::removed_version(),
                Some(merge) => match (self.convert(old, to), self.convert(new, to)) {
                    (Ok(old), Ok(new)) => {
                        ChangedFields::new(compare(merge, &old.0, &new.0).without(self.ignored))
                    }
                    (Err(error), _) | (_, Err(error)) => {
                        failure.get_or_insert(error);
                        ChangedFields::none()
                    }
                },
            });
        }
        failure.map_or(Ok(compared), Err)
    }
}

/// The changes of a write in the version of each owner.
pub(crate) struct ComparedVersions {
    /// The changes; the first is in the version of the write.
    all: Vec<ChangedFields>,
    /// For each entry, the index of the changes in its version.
    by_entry: Vec<usize>,
}

impl ComparedVersions {
    /// For each entry, the changes in its version.
    pub(crate) fn by_entry(&self) -> impl Iterator<Item = &ChangedFields> {
        self.by_entry.iter().filter_map(|at| self.all.get(*at))
    }

    /// Removes the fields that each entry loses.
    pub(crate) fn remove_lost_fields(&self, managed: &mut ManagedFields) {
        for (entry, changed) in managed.entries.iter_mut().zip(self.by_entry()) {
            changed.remove_lost_fields(&mut entry.fields);
        }
    }

    /// The changes in the version of the write.
    fn into_own(self) -> ChangedFields {
        self.all.into_iter().next().unwrap_or_else(ChangedFields::none)
    }
}

/// The changes in one version.
pub(crate) struct ChangedFields {
    /// Added or modified fields. In an update their other owners lose them; in an apply they are conflicts.
    pub(crate) written: Set,
    /// Removed fields.
    removed: Set,
    /// Whether the version is no longer served.
    removed_version: bool,
}

impl ChangedFields {
    fn new(comparison: Comparison) -> Self {
        ChangedFields {
            written: comparison.modified.into_union(comparison.added),
            removed: comparison.removed,
            removed_version: false,
        }
    }

    fn removed_version() -> Self {
        ChangedFields { removed_version: true, ..ChangedFields::none() }
    }

    const fn none() -> Self {
        ChangedFields { written: Set::new(), removed: Set::new(), removed_version: false }
    }

    /// Whether all changed fields are fields that cannot have an owner.
    fn is_bookkeeping(&self) -> bool {
        is_bookkeeping(&self.written) && is_bookkeeping(&self.removed)
    }

    /// Removes the changed fields from the fields of another owner. Removes all its fields if their version
    /// is no longer served.
    fn remove_lost_fields(&self, fields: &mut Set) {
        if self.removed_version {
            *fields = Set::default();
        } else {
            fields.subtract(&self.written);
            fields.subtract(&self.removed);
        }
    }
}

/// Whether the client sent no managed fields, or the stored ones.
fn has_stored_owners(request_list: Option<&Value>, old: &Object) -> bool {
    match request_list {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) if list.is_empty() => true,
        request_list => request_list == old.at(&["metadata", "managedFields"]),
    }
}

#[cfg(test)]
mod tests;
