//! Server-side apply.
//!
//! # Contract
//!
//! [`Apply::run`] lays a partial object over the current one for a manager: what it says is set and owned, what the
//! manager owned and does not say any more is removed unless somebody else owns it, and a value that somebody else owns
//! and that would change is a conflict, unless the apply is forced. What comes out is to be conformed and defaulted by
//! the caller, so that removed fields get their defaults back, and then goes the way of an update.
//!
//! # Invariants
//!
//! INVARIANT (all or nothing): a conflict leaves object and owners as they were.
//! INVARIANT (idempotent): applied again, the same object changes nothing and keeps all times.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use apimachinery::status::{Cause, Details, Reason, Status};

use crate::managers::{Entry, Managed, Operation, bookkeeping_of, without_bookkeeping};
use crate::path::Element;
use crate::set::{Set, shown};
use crate::typed::{Fields, TypingError, check, field_set, merge, remove, with_named};
use crate::update::{OwnershipError, Write};

/// An apply.
pub struct Apply<'a> {
    /// Who applies, when, and to what.
    pub write: Write<'a>,
    /// Whether values that others own are taken from them.
    pub force: bool,
    /// The annotation in which the client tool keeps what it applied last, and the manager's name for which it is kept up
    /// to date; None: nothing of the kind.
    pub last_applied: Option<LastApplied<'a>>,
}

/// The client tool's own record.
#[derive(Clone, Copy, Debug)]
pub struct LastApplied<'a> {
    /// The annotation.
    pub annotation: &'a str,
    /// The manager that the tool applies as: `kubectl`.
    pub manager: &'a str,
}

/// What an apply makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object with its managed fields; neither conformed nor defaulted.
    pub object: Object,
    /// Whether anything but managed fields differs from the current object before defaults.
    pub changed: bool,
}

/// Why an apply failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The body says who owns its fields. 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The body does not fit its type. The reference answers 500.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Typing(Vec<TypingError>),
    /// Others own what would change. 409.
    #[error("{}", message(.0))]
    Conflicts(Conflicts),
    /// An owner's version cannot be reached.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
}

/// A field that somebody else owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who, as messages name it.
    pub owner: String,
    /// What.
    pub path: Vec<Element>,
}

/// Conflicts that messages list.
const CONFLICTS_MAX: usize = 100;

/// The conflicts of an apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The first 100, by owner.
    pub first: Vec<Conflict>,
    /// How many there are.
    pub count: usize,
}

impl Apply<'_> {
    /// Lays the patch over the current object.
    ///
    /// # Errors
    ///
    /// See [`ApplyError`].
    pub fn run(&self, live: &Object, patch: &Object) -> Result<Applied, ApplyError> {
        if patch.at(&["metadata", "managedFields"]).is_some_and(|list| !list.is_null()) {
            return Err(ApplyError::ManagedFields);
        }
        check(self.write.merge, &patch.0).map_err(ApplyError::Typing)?;
        let managed = Managed::of(live);
        let untracked = managed.entries.is_empty();
        let managed = if untracked { self.write.before_first_apply(live)? } else { managed };
        let (managed, reconciled) = self.write.reconcile(managed);
        let owners = Owners { managed, as_stored: !untracked && !reconciled };
        let tool = self.last_applied.filter(|tool| tool.manager == self.write.manager);
        let mut applied = match (self.lay(live, patch, &owners, &Set::new()), tool) {
            (Err(ApplyError::Conflicts(_)), Some(tool)) => {
                // What the tool itself wrote before it applied on the server, and nobody changed since.
                let own = crate::last_applied::unchanged(self.write.merge, live, tool.annotation);
                self.lay(live, patch, &owners, &own)?
            }
            (result, _) => result?,
        };
        if let Some(tool) = tool {
            crate::last_applied::record(&mut applied.object, patch, tool.annotation);
        }
        Ok(applied)
    }

    /// Paths in `own` are no conflicts, whoever owns them.
    fn lay(
        &self,
        live: &Object,
        patch: &Object,
        owners: &Owners,
        own_paths: &Set,
    ) -> Result<Applied, ApplyError> {
        let write = &self.write;
        let mut set = field_set(write.merge, &patch.0);
        if !write.ignored.is_empty() {
            set = set.recursive_difference(write.ignored);
        }
        let mut own = write.entry(write.manager, Operation::Apply, set);

        let mut merged = Object(merge(write.merge, &live.0, &patch.0));
        // Clients in Go send a null of it with everything.
        if let (Some(at), Some(Value::Null)) =
            (live.at(&["metadata", "creationTimestamp"]), merged.at(&["metadata", "creationTimestamp"]))
        {
            merged.set_meta("creationTimestamp", at.clone());
        }
        let kept_back = bookkeeping_of(&own.fields);
        own.fields = without_bookkeeping(own.fields);
        if self.is_unchanged(live, &merged, &own, owners) {
            return Ok(Applied { object: merged, changed: false });
        }
        let mut others = owners.managed.clone();
        let before = others.take(&own);
        let mut new = match &before {
            Some(before) => {
                // What nobody owns still counts as wanted: the name is not given up with the last label.
                let wanted = Entry { fields: own.fields.union(&kept_back), ..own.clone() };
                self.prune(merged, &wanted, before, &others)?
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
        for (entry, changed) in others.entries.iter_mut().zip(&compared.by_entry) {
            if let Some(changed) = compared.all.get(*changed) {
                changed.take_from(&mut entry.fields);
            }
        }
        let changed = live.0 != new.0;
        if !changed {
            own.time = before.as_ref().and_then(|before| before.time);
        }
        others.entries.push(own);
        others.write(&mut new);
        crate::managers::keep_times(live, &mut new);
        Ok(Applied { object: new, changed })
    }

    /// Whether neither values nor owners change, which spares comparing and writing them.
    fn is_unchanged(&self, live: &Object, merged: &Object, own: &Entry, owners: &Owners) -> bool {
        let is_served = |entry: &Entry| self.write.merge_of(&entry.api_version).is_some();
        owners.as_stored
            && owners
                .managed
                .find(own)
                .is_some_and(|before| before.api_version == own.api_version && before.fields == own.fields)
            && owners.managed.entries.iter().all(is_served)
            && live.0 == merged.0
    }

    /// Removes what the manager applied before and does not any more, unless another owner has it.
    fn prune(
        &self,
        merged: Object,
        own: &Entry,
        before: &Entry,
        others: &Managed,
    ) -> Result<Object, ApplyError> {
        let write = &self.write;
        // Nothing was given up.
        if before.api_version == own.api_version && before.fields.is_subset(&own.fields) {
            return Ok(merged);
        }
        let Some(ty) = write.merge_of(&before.api_version) else { return Ok(merged) };
        let same_version = before.api_version == own.api_version;
        let merged = if same_version { merged } else { write.convert(&merged, &before.api_version)? };
        let last = with_named(ty, &before.fields);
        let mut pruned = Object(remove(ty, &merged.0, &last));
        pruned = self.add_back_owned(&merged, pruned, own, before, others)?;

        // Of what is missing now only what was the manager's may go.
        let (left, all) = (named(ty, &pruned.0), named(ty, &merged.0));
        let gone = all.difference(&left).intersection(&last);
        let pruned = Object(remove(ty, &merged.0, &gone));
        if same_version { Ok(pruned) } else { Ok(write.convert(&pruned, write.api_version)?) }
    }

    /// Puts back what was removed although an owner has it, in the versions of all owners: first in the one that was
    /// pruned, so that what a conversion needs is there again.
    fn add_back_owned(
        &self,
        merged: &Object,
        mut pruned: Object,
        own: &Entry,
        before: &Entry,
        others: &Managed,
    ) -> Result<Object, ApplyError> {
        let write = &self.write;
        let mut owned: Vec<(&str, Vec<Set>)> = vec![(&before.api_version, Vec::new())];
        let mut places: BTreeMap<&str, usize> = BTreeMap::from([(before.api_version.as_str(), 0)]);
        for entry in others.entries.iter().chain([own]) {
            let place = *places.entry(&entry.api_version).or_insert(owned.len());
            match owned.get_mut(place) {
                Some((_, sets)) => sets.push(entry.fields.clone()),
                None => owned.push((&entry.api_version, vec![entry.fields.clone()])),
            }
        }
        let owned: Vec<(&str, Set)> =
            owned.into_iter().map(|(version, sets)| (version, Set::union_all(sets))).collect();
        let mut at = before.api_version.as_str();
        for (version, set) in owned.iter().filter(|(_, set)| !set.is_empty()) {
            let Some(ty) = write.merge_of(version) else { continue };
            let whole;
            let merged = if *version == before.api_version {
                merged
            } else {
                whole = write.convert(merged, version)?;
                &whole
            };
            if at != *version {
                pruned = write.convert(&pruned, version)?;
                at = version;
            }
            let keep = named(ty, &pruned.0).union(&with_named(ty, set));
            pruned = Object(remove(ty, &merged.0, &named(ty, &merged.0).difference(&keep)));
        }
        if at == before.api_version { Ok(pruned) } else { Ok(write.convert(&pruned, &before.api_version)?) }
    }
}

/// The owners before an apply.
struct Owners {
    managed: Managed,
    /// Whether they are what the object says.
    as_stored: bool,
}

fn named(ty: &schema::merge::Merge, object: &Fields) -> Set {
    with_named(ty, &field_set(ty, object))
}

fn conflicts(others: &Managed, compared: &crate::update::Compared, own: &Set) -> Conflicts {
    let mut sets: Vec<(String, Set)> = Vec::new();
    for (entry, changed) in others.entries.iter().zip(&compared.by_entry) {
        let Some(changed) = compared.all.get(*changed) else { continue };
        let mut contested = entry.fields.intersection(&changed.written);
        contested.subtract(own);
        if !contested.is_empty() {
            sets.push((entry.shown(), contested));
        }
    }
    sets.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut all = Conflicts::default();
    for (owner, set) in sets {
        all.count += set.len();
        if all.first.len() >= CONFLICTS_MAX {
            continue;
        }
        set.each(&mut |path| {
            if all.first.len() < CONFLICTS_MAX {
                all.first.push(Conflict { owner: owner.clone(), path: path.to_vec() });
            }
        });
    }
    all
}

fn message(all: &Conflicts) -> String {
    let conflicts = all.first.as_slice();
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.owner, shown(&only.path));
    }
    let owners = conflicts.chunk_by(|a, b| a.owner == b.owner).map(|of_owner| {
        let owner = of_owner.first().map_or("", |conflict| conflict.owner.as_str());
        let paths: String =
            of_owner.iter().map(|conflict| format!("\n- {}", shown(&conflict.path))).collect();
        format!("conflicts with {owner}:{paths}")
    });
    let mut owners: Vec<String> = owners.collect();
    if all.count > conflicts.len() {
        owners.push(format!("and {} more", all.count - conflicts.len()));
    }
    format!("Apply failed with {} conflicts: {}", all.count, owners.join("\n"))
}

/// 409 with a cause for each of the first 100 fields.
pub fn conflict_status(conflicts: &Conflicts) -> Status {
    let causes = conflicts.first.iter().map(|conflict| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with {}", conflict.owner),
        field: shown(&conflict.path),
    });
    Status::failure(Reason::Conflict, message(conflicts))
        .with_details(Details { causes: causes.collect(), ..Details::default() })
}

#[cfg(test)]
mod tests;
