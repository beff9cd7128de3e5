//! Index of dependents by owner, and of owners whose deletion waits for dependents.
//!
//! # Contract
//!
//! [`Index::apply`] applies one change of one object and returns the resulting work. The index is a hint: it
//! finds objects, and workers decide by the current state of the objects. The index identifies owners by uid
//! and objects by storage key.
//!
//! Each owner reference has an entry of about 50 bytes plus the text of the key. An object with neither
//! owners nor dependents has no entry, and costs one lookup when it is deleted.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::ownership_data::{DeletionState, OwnershipData, Uid};

/// A unit of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WorkItem {
    /// Examine the owners of the object at this key.
    Examine(Arc<str>),
    /// Examine each dependent of an owner.
    Dependents(Uid),
    /// Check whether the deletion of the object at this key still waits for dependents.
    OwnerDeletion(Arc<str>),
    /// Remove the object at this key if nothing blocks it: its deletion stopped between two writes.
    Finish(Arc<str>),
}

impl WorkItem {
    /// The key of the object; None for all dependents of an owner.
    pub(super) fn key(&self) -> Option<&Arc<str>> {
        match self {
            WorkItem::Examine(key) | WorkItem::OwnerDeletion(key) | WorkItem::Finish(key) => Some(key),
            WorkItem::Dependents(_) => None,
        }
    }

    /// All work on the object at a key.
    pub(super) fn of_object(key: &str) -> [WorkItem; 3] {
        let key: Arc<str> = key.into();
        [
            WorkItem::Examine(Arc::clone(&key)),
            WorkItem::OwnerDeletion(Arc::clone(&key)),
            WorkItem::Finish(key),
        ]
    }
}

/// Dependents by owner, and owners whose deletion waits.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Owner and dependent; whether the dependent blocks the owner's deletion.
    references: BTreeMap<(Uid, Arc<str>), bool>,
    /// Owners whose deletion waits for dependents.
    ending: HashMap<Uid, Arc<str>>,
    ending_keys: HashMap<Arc<str>, Uid>,
    /// Recently deleted owners, which exist in no namespace.
    gone: VecDeque<Uid>,
}

/// Maximum number of recently deleted owners.
const RECENTLY_DELETED_MAX: usize = 256;

impl Index {
    /// Applies a change with the states before and after it.
    ///
    /// None means no object, or an object without owners and deletion ([`super::ownership_data::may_have_owners_or_deletion`]). For a
    /// deleted object `before` always contains its uid.
    pub(super) fn apply(
        &mut self,
        key: &Arc<str>,
        before: Option<&OwnershipData>,
        after: Option<&OwnershipData>,
        gone: bool,
        work: &mut Vec<WorkItem>,
    ) {
        let owners = |traces: Option<&OwnershipData>| -> Vec<(Uid, bool)> {
            traces.into_iter().flat_map(|t| &t.owners).map(|o| (Uid::of(&o.uid), o.blocks)).collect()
        };
        let (old, new) = (owners(before), owners(after));
        for (owner, _) in old.iter().filter(|(owner, _)| !new.iter().any(|(o, _)| o == owner)) {
            self.references.remove(&(*owner, Arc::clone(key)));
        }
        for (owner, _) in &new {
            let blocks = new.iter().any(|(o, blocks)| o == owner && *blocks);
            self.references.insert((*owner, Arc::clone(key)), blocks);
        }
        let same_owners = before.map(|t| &t.owners) == after.map(|t| &t.owners);
        if !new.is_empty() && !same_owners {
            work.push(WorkItem::Examine(Arc::clone(key)));
        }
        // A waiting owner may be released when a dependent loses the reference, is deleted, or waits itself.
        if !same_owners || before.and_then(|t| t.ending) != after.and_then(|t| t.ending) {
            let waiting = old.iter().chain(&new).filter_map(|(owner, _)| self.ending.get(owner));
            work.extend(waiting.map(|owner| WorkItem::OwnerDeletion(Arc::clone(owner))));
        }
        self.note_end(key, before, after, gone, work);
    }

    fn note_end(
        &mut self,
        key: &Arc<str>,
        before: Option<&OwnershipData>,
        after: Option<&OwnershipData>,
        gone: bool,
        work: &mut Vec<WorkItem>,
    ) {
        let holds = |traces: Option<&OwnershipData>| traces.is_some_and(OwnershipData::waits_for_dependents);
        if let Some(after) = after.filter(|traces| traces.waits_for_dependents()) {
            let uid = Uid::of(&after.uid);
            self.ending.insert(uid, Arc::clone(key));
            self.ending_keys.insert(Arc::clone(key), uid);
            if before.and_then(|traces| traces.ending) != after.ending {
                if after.ending == Some(DeletionState::WaitingForDependents) {
                    work.push(WorkItem::Dependents(uid));
                }
                work.push(WorkItem::OwnerDeletion(Arc::clone(key)));
            }
        } else if let Some(before) = before.filter(|_| holds(before)) {
            self.ending.remove(&Uid::of(&before.uid));
            self.ending_keys.remove(key);
        }
        if let (true, Some(before)) = (gone, before) {
            let uid = Uid::of(&before.uid);
            if self.dependents(uid, None).next().is_some() {
                work.push(WorkItem::Dependents(uid));
                if self.gone.len() == RECENTLY_DELETED_MAX {
                    self.gone.pop_front();
                }
                self.gone.push_back(uid);
            }
        }
    }

    /// Returns the dependents of an owner after a key, in key order, and whether each blocks the owner.
    pub(super) fn dependents(
        &self,
        owner: Uid,
        after: Option<&Arc<str>>,
    ) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let start = match after {
            Some(key) => Bound::Excluded((owner, Arc::clone(key))),
            None => Bound::Included((owner, Arc::from(""))),
        };
        let rest = self.references.range((start, Bound::Unbounded));
        rest.take_while(move |((of, _), _)| *of == owner).map(|((_, key), blocks)| (key, *blocks))
    }

    /// Whether the object with this uid was deleted recently, and so exists in no other namespace.
    pub(super) fn is_gone(&self, owner: Uid) -> bool {
        self.gone.contains(&owner)
    }

    /// Whether the deletion of an owner waits for dependents.
    pub(super) fn waits(&self, owner: Uid) -> bool {
        self.ending.contains_key(&owner)
    }

    /// Whether the deletion of the object at a key waits for dependents.
    pub(super) fn is_ending(&self, key: &str) -> bool {
        self.ending_keys.contains_key(key)
    }

    /// Whether an owner and a dependent block each other, maybe through other objects.
    pub(super) fn is_cycle(&self, owner: Uid, dependent: &Arc<str>) -> bool {
        let mut seen = HashSet::new();
        let mut next = vec![dependent];
        while let Some(key) = next.pop() {
            let Some(uid) = self.ending_keys.get(key).filter(|_| seen.insert(key)) else { continue };
            if *uid == owner {
                return true;
            }
            next.extend(self.dependents(*uid, None).filter(|(_, blocks)| *blocks).map(|(key, _)| key));
        }
        false
    }

    /// Returns the number of references.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.references.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ownership_data::Owner;
    use super::*;

    fn traces(uid: &str, owners: &[(&str, bool)], ending: Option<DeletionState>) -> OwnershipData {
        let owner = |(uid, blocks): &(&str, bool)| Owner {
            api_version: "v1".into(),
            kind: "K".into(),
            name: "n".into(),
            uid: (*uid).to_owned(),
            blocks: *blocks,
        };
        OwnershipData { uid: uid.to_owned(), owners: owners.iter().map(owner).collect(), ending }
    }

    struct Kept(Index);

    impl Kept {
        fn apply(
            &mut self,
            key: &str,
            before: Option<&OwnershipData>,
            after: Option<&OwnershipData>,
        ) -> Vec<String> {
            let mut work = Vec::new();
            self.0.apply(&Arc::from(key), before, after, after.is_none(), &mut work);
            let name = |work: WorkItem| match work {
                WorkItem::Examine(key) => format!("examine {key}"),
                WorkItem::Dependents(uid) if uid == Uid::of("a") => "dependents of a".to_owned(),
                WorkItem::Dependents(uid) => format!("dependents of {uid:?}"),
                WorkItem::OwnerDeletion(key) => format!("end {key}"),
                WorkItem::Finish(key) => format!("finish {key}"),
            };
            work.into_iter().map(name).collect()
        }

        fn of(&self, uid: &str) -> Vec<(String, bool)> {
            self.0.dependents(Uid::of(uid), None).map(|(key, blocks)| (key.to_string(), blocks)).collect()
        }
    }

    #[test]
    fn index_tracks_owner_references_and_deletions() {
        let mut kept = Kept(Index::default());
        let owner = traces("a", &[], None);
        assert!(kept.apply("owner", None, Some(&owner)).is_empty());
        assert_eq!(kept.0.len(), 0);
        let one = traces("x", &[("a", true), ("b", false)], None);
        assert_eq!(kept.apply("k1", None, Some(&one)), ["examine k1"]);
        assert_eq!(kept.apply("k1", Some(&one), Some(&one)), [""; 0], "an unchanged object causes no work");
        let other = traces("y", &[("a", false)], None);
        kept.apply("k2", None, Some(&other));
        assert_eq!(kept.of("a"), [("k1".to_owned(), true), ("k2".to_owned(), false)]);
        assert_eq!(kept.of("b"), [("k1".to_owned(), false)]);

        let less = traces("x", &[("a", false)], None);
        assert_eq!(kept.apply("k1", Some(&one), Some(&less)), ["examine k1"]);
        assert_eq!(kept.of("b"), []);
        assert_eq!(kept.of("a"), [("k1".to_owned(), false), ("k2".to_owned(), false)]);

        let ends = traces("a", &[], Some(DeletionState::WaitingForDependents));
        assert_eq!(kept.apply("owner", Some(&owner), Some(&ends)), ["dependents of a", "end owner"]);
        assert!(kept.0.is_ending("owner"));
        assert_eq!(kept.apply("owner", Some(&ends), Some(&ends)), [""; 0]);
        assert_eq!(kept.apply("k1", Some(&less), None), ["end owner"]);
        assert_eq!(kept.apply("owner", Some(&ends), None), ["dependents of a"]);
        assert!(!kept.0.is_ending("owner"));
        assert_eq!(kept.apply("k2", Some(&other), None), [""; 0]);
        assert_eq!(kept.0.len(), 0);
        assert_eq!(
            kept.apply("owner", Some(&owner), None),
            [""; 0],
            "an object without dependents causes no work"
        );
    }

    #[test]
    fn dependents_are_read_after_a_key() {
        let mut kept = Kept(Index::default());
        for i in 0..10 {
            kept.apply(&format!("k{i}"), None, Some(&traces("x", &[("a", i % 2 == 0)], None)));
        }
        let after: Arc<str> = Arc::from("k7");
        let rest: Vec<_> =
            kept.0.dependents(Uid::of("a"), Some(&after)).map(|(k, _)| k.to_string()).collect();
        assert_eq!(rest, ["k8", "k9"]);
    }
}
