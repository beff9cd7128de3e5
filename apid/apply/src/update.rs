//! Owners after a write that is no apply: a create, a replace, a patch.
//!
//! # Contract
//!
//! [`Write::update`] compares what was with what is wanted and moves ownership by what actually changed: who changed a
//! field owns it and nobody else does. Such a write never conflicts.
//!
//! # Reference
//!
//! An object of which nothing is owned stays so until it is applied, unless the write creates it, or, with
//! [`Write::reset_then_track`], unless the same write made its owners be forgotten.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use jiff::Timestamp;
use schema::merge::Merge;

use crate::managers::{
    Entry, Managed, Operation, UPDATES_MAX, is_bookkeeping, is_reset, without_bookkeeping,
};
use crate::set::Set;
use crate::typed::{Comparison, compare, reconcile};

/// The manager of what was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The other versions in which owners of a kind's fields wrote.
pub trait Versions: Sync {
    /// How objects of a version merge; None when the version is not served any more.
    fn merge(&self, api_version: &str) -> Option<&Merge>;

    /// An object, given in the version that it says, in another one.
    ///
    /// # Errors
    ///
    /// Why it cannot be converted.
    fn convert(&self, object: &Object, api_version: &str) -> Result<Object, String>;
}

/// A kind with one version.
#[derive(Clone, Debug)]
pub struct OneVersion {
    /// The version.
    pub api_version: String,
    /// How its objects merge.
    pub merge: Merge,
}

impl Versions for OneVersion {
    fn merge(&self, api_version: &str) -> Option<&Merge> {
        (self.api_version == api_version).then_some(&self.merge)
    }

    fn convert(&self, object: &Object, _: &str) -> Result<Object, String> {
        Ok(object.clone())
    }
}

/// A write: who does it, when, and to what.
pub struct Write<'a> {
    /// The manager's name.
    pub manager: &'a str,
    /// The version in which the object is written.
    pub api_version: &'a str,
    /// The subresource through which it is written; `""` is the object itself.
    pub subresource: &'a str,
    /// Now; None: what is written this way bears no time.
    pub now: Option<Timestamp>,
    /// How objects of that version merge.
    pub merge: &'a Merge,
    /// The other versions.
    pub versions: &'a dyn Versions,
    /// Fields that this way of writing does not change, and so does not own: `status` for the object itself.
    pub ignored: &'a Set,
    /// An object of the kind that nobody filled, which creations are compared with.
    pub empty: &'a Object,
    /// Whether a write that makes all owners be forgotten owns what else it changes.
    pub reset_then_track: bool,
}

/// Why ownership could not be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipError {
    /// The object cannot be converted to the version of an owner.
    #[error("cannot convert to {to}: {why}")]
    Conversion {
        /// The version.
        to: String,
        /// Why.
        why: String,
    },
}

impl Write<'_> {
    /// Sets the managed fields of what is written. `old` is None for a creation.
    ///
    /// # Errors
    ///
    /// An owner's version to which the object cannot be converted.
    pub fn update(&self, old: Option<&Object>, new: &mut Object) -> Result<(), OwnershipError> {
        let sent = new.remove_meta("managedFields");
        let part = !self.subresource.is_empty();
        let reset = !part && is_reset(sent.as_ref());
        let kept = || old.map(Managed::of).unwrap_or_default();
        let own = self.compare(old.unwrap_or(self.empty), new);
        if let Some(old) = old
            && !reset
            && (part || says_nothing_new(sent.as_ref(), old))
            && own.is_bookkeeping()
        {
            // Nobody gets or loses anything, so that the owners need not be looked at.
            if let Some(list) = old.at(&["metadata", "managedFields"]) {
                new.set_meta("managedFields", list.clone());
            }
            return Ok(());
        }
        let managed = if part {
            kept()
        } else if reset {
            Managed::default()
        } else {
            // Clients that do not know managed fields drop them.
            Managed::decode(sent.as_ref()).filter(|sent| !sent.entries.is_empty()).unwrap_or_else(kept)
        };
        let untracked = managed.entries.is_empty() && old.is_some();
        if untracked && !(reset && self.reset_then_track) {
            return Ok(());
        }
        let managed = self.move_to(self.manager, old.unwrap_or(self.empty), new, own, managed)?;
        managed.write(new);
        if let Some(old) = old {
            crate::managers::keep_times(old, new);
        }
        Ok(())
    }

    /// What changes in the version of this write.
    pub(crate) fn compare(&self, old: &Object, new: &Object) -> Changed {
        Changed::new(compare(self.merge, &old.0, &new.0).without(self.ignored))
    }

    /// The owners of an object of which nothing was owned before it is applied.
    pub(crate) fn before_first_apply(&self, live: &Object) -> Result<Managed, OwnershipError> {
        let all = self.compare(self.empty, live);
        self.move_to(BEFORE_FIRST_APPLY, self.empty, live, all, Managed::default())
    }

    /// An entry of this write.
    pub(crate) fn entry(&self, manager: &str, operation: Operation, fields: Set) -> Entry {
        Entry {
            manager: manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: self.now,
            fields,
        }
    }

    /// Gives a manager what changed, and takes it from all others.
    fn move_to(
        &self,
        manager: &str,
        old: &Object,
        new: &Object,
        own: Changed,
        managed: Managed,
    ) -> Result<Managed, OwnershipError> {
        let (mut managed, _) = self.reconcile(managed);
        let compared = self.compare_all(old, new, own, &managed)?;
        for (entry, changed) in managed.entries.iter_mut().zip(&compared.by_entry) {
            if let Some(changed) = compared.all.get(*changed) {
                changed.take_from(&mut entry.fields);
            }
        }
        managed.entries.retain(|entry| !entry.fields.is_empty());
        let fields = without_bookkeeping(compared.into_own().written);
        if !fields.is_empty() {
            let mut entry = self.entry(manager, Operation::Update, fields);
            if let Some(before) = managed.take(&entry) {
                entry.fields = entry.fields.union(&before.fields);
            }
            managed.entries.push(entry);
        }
        managed.cap_updates(UPDATES_MAX);
        Ok(managed)
    }

    /// Owners as the types are now: parts that became atomic are owned as a whole. And whether any did.
    pub(crate) fn reconcile(&self, mut managed: Managed) -> (Managed, bool) {
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

    pub(crate) fn merge_of(&self, api_version: &str) -> Option<&Merge> {
        if api_version == self.api_version { Some(self.merge) } else { self.versions.merge(api_version) }
    }

    pub(crate) fn convert(&self, object: &Object, to: &str) -> Result<Object, OwnershipError> {
        self.versions.convert(object, to).map_err(|why| OwnershipError::Conversion { to: to.to_owned(), why })
    }

    /// Compares in the versions of all owners; `own` is what changes in that of this write.
    pub(crate) fn compare_all(
        &self,
        old: &Object,
        new: &Object,
        own: Changed,
        managed: &Managed,
    ) -> Result<Compared, OwnershipError> {
        let mut versions: BTreeMap<&str, usize> = BTreeMap::from([(self.api_version, 0)]);
        let mut compared = Compared { all: vec![own], by_entry: Vec::with_capacity(managed.entries.len()) };
        for entry in &managed.entries {
            let known = versions.get(entry.api_version.as_str()).copied();
            let at = match (known, self.merge_of(&entry.api_version)) {
                (Some(at), _) => at,
                // What was owned in a version that is gone is owned no more.
                (None, None) => {
                    compared.all.push(Changed::gone());
                    compared.all.len() - 1
                }
                (None, Some(merge)) => {
                    let to = &entry.api_version;
                    let (old, new) = (self.convert(old, to)?, self.convert(new, to)?);
                    compared.all.push(Changed::new(compare(merge, &old.0, &new.0).without(self.ignored)));
                    compared.all.len() - 1
                }
            };
            versions.insert(&entry.api_version, at);
            compared.by_entry.push(at);
        }
        Ok(compared)
    }
}

/// What changed, in all versions that count.
pub(crate) struct Compared {
    /// The first is that of the write.
    pub(crate) all: Vec<Changed>,
    /// For each entry which of them is in its version.
    pub(crate) by_entry: Vec<usize>,
}

impl Compared {
    /// That of the write.
    fn into_own(self) -> Changed {
        self.all.into_iter().next().unwrap_or_else(Changed::nothing)
    }
}

/// What changed in one version.
pub(crate) struct Changed {
    /// What came or has another value: an owner loses it, or conflicts about it.
    pub(crate) written: Set,
    /// What went.
    removed: Set,
    /// The version is gone.
    gone: bool,
}

impl Changed {
    fn new(comparison: Comparison) -> Self {
        Changed {
            written: comparison.modified.joined(comparison.added),
            removed: comparison.removed,
            gone: false,
        }
    }

    fn gone() -> Self {
        Changed { gone: true, ..Changed::nothing() }
    }

    const fn nothing() -> Self {
        Changed { written: Set::new(), removed: Set::new(), gone: false }
    }

    /// Whether nothing changes but what has no owner.
    fn is_bookkeeping(&self) -> bool {
        is_bookkeeping(&self.written) && is_bookkeeping(&self.removed)
    }

    /// Takes from another owner what it loses.
    pub(crate) fn take_from(&self, fields: &mut Set) {
        if self.gone {
            *fields = Set::default();
        } else {
            fields.subtract(&self.written);
            fields.subtract(&self.removed);
        }
    }
}

/// Whether the owners that a client sent are none, or those that are there.
fn says_nothing_new(sent: Option<&Value>, old: &Object) -> bool {
    match sent {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) if list.is_empty() => true,
        sent => sent == old.at(&["metadata", "managedFields"]),
    }
}

#[cfg(test)]
mod tests;
