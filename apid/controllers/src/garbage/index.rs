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

/// A unit of work of the garbage collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WorkItem {
    /// Examine the owners of the object at this key.
    Examine(Arc<str>),
    /// Examine each dependent of an owner.
    Dependents(Uid),
    /// Check whether the deletion of the object at this key still waits for dependents.
    OwnerDeletion(Arc<str>),
    /// Remove the object at this key if nothing blocks that: its deletion may have stopped between two
    /// writes.
    Finish(Arc<str>),
}

impl WorkItem {
    /// The key of the object to process; None for `Dependents`, which has no single object.
    pub(super) fn key(&self) -> Option<&Arc<str>> {
        match self {
            WorkItem::Examine(key) | WorkItem::OwnerDeletion(key) | WorkItem::Finish(key) => Some(key),
            WorkItem::Dependents(_) => None,
        }
    }

    /// Every unit of work that can exist for the object at a key.
    pub(super) fn all_for_object(key: &str) -> [WorkItem; 3] {
        let key: Arc<str> = key.into();
        [
            WorkItem::Examine(Arc::clone(&key)),
            WorkItem::OwnerDeletion(Arc::clone(&key)),
            WorkItem::Finish(key),
        ]
    }
}

/// Dependents by owner, and owners whose deletion waits for dependents.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Whether a dependent blocks the deletion of an owner, by uid of the owner and key of the dependent.
    references: BTreeMap<(Uid, Arc<str>), bool>,
    /// Storage keys of the owners whose deletion waits for dependents, by uid of the owner.
    waiting_owners: HashMap<Uid, Arc<str>>,
    /// Uids of the same owners, by storage key.
    waiting_owner_uids: HashMap<Arc<str>, Uid>,
    /// Uids of recently deleted owners, oldest first. These owners exist in no namespace.
    recently_deleted: VecDeque<Uid>,
}

/// Maximum number of uids in `recently_deleted`.
const RECENTLY_DELETED_MAX: usize = 256;

impl Index {
    /// Applies a change of the object at `key`, from `before` to `after`. Appends the resulting work to
    /// `work`.
    ///
    /// None means no object, or an object without owners and deletion
    /// ([`super::ownership_data::may_have_owners_or_deletion`]). If `is_deleted`, `before` always contains
    /// the uid.
    pub(super) fn apply(
        &mut self,
        key: &Arc<str>,
        before: Option<&OwnershipData>,
        after: Option<&OwnershipData>,
        is_deleted: bool,
        work: &mut Vec<WorkItem>,
    ) {
        let owners = |ownership: Option<&OwnershipData>| -> Vec<(Uid, bool)> {
            ownership
                .into_iter()
                .flat_map(|t| &t.owners)
                .map(|o| (Uid::from_text(&o.uid), o.blocks))
                .collect()
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
        // The deletion of a waiting owner may continue when a dependent loses the reference, is deleted, or
        // begins to wait for its own dependents.
        if !same_owners || before.and_then(|t| t.deletion_state) != after.and_then(|t| t.deletion_state) {
            let waiting = old.iter().chain(&new).filter_map(|(owner, _)| self.waiting_owners.get(owner));
            work.extend(waiting.map(|owner| WorkItem::OwnerDeletion(Arc::clone(owner))));
        }
        self.update_waiting_owner(key, before, after, is_deleted, work);
    }

    fn update_waiting_owner(
        &mut self,
        key: &Arc<str>,
        before: Option<&OwnershipData>,
        after: Option<&OwnershipData>,
        is_deleted: bool,
        work: &mut Vec<WorkItem>,
    ) {
        if let Some(after) = after.filter(|ownership| ownership.waits_for_dependents()) {
            let uid = Uid::from_text(&after.uid);
            self.waiting_owners.insert(uid, Arc::clone(key));
            self.waiting_owner_uids.insert(Arc::clone(key), uid);
            if before.and_then(|ownership| ownership.deletion_state) != after.deletion_state {
                if after.deletion_state == Some(DeletionState::WaitingForDependents) {
                    work.push(WorkItem::Dependents(uid));
                }
                work.push(WorkItem::OwnerDeletion(Arc::clone(key)));
            }
        } else if let Some(before) = before.filter(|ownership| ownership.waits_for_dependents()) {
            self.waiting_owners.remove(&Uid::from_text(&before.uid));
            self.waiting_owner_uids.remove(key);
        }
        if let (true, Some(before)) = (is_deleted, before) {
            let uid = Uid::from_text(&before.uid);
            if self.dependents(uid, None).next().is_some() {
                work.push(WorkItem::Dependents(uid));
                if self.recently_deleted.len() == RECENTLY_DELETED_MAX {
                    self.recently_deleted.pop_front();
                }
                self.recently_deleted.push_back(uid);
            }
        }
    }

    /// Returns the dependents of an owner whose keys follow `after`, in key order, and whether each blocks
    /// the deletion of the owner.
    pub(super) fn dependents(
        &self,
        owner: Uid,
        after: Option<&Arc<str>>,
    ) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let start = match after {
            Some(key) => Bound::Excluded((owner, Arc::clone(key))),
            None => Bound::Included((owner, Arc::from(""))),
        };
        let following = self.references.range((start, Bound::Unbounded));
        following
            .take_while(move |((reference_owner, _), _)| *reference_owner == owner)
            .map(|((_, key), blocks)| (key, *blocks))
    }

    /// Whether this uid is that of a recently deleted owner. Such an owner exists in no namespace.
    pub(super) fn is_gone(&self, owner: Uid) -> bool {
        self.recently_deleted.contains(&owner)
    }

    /// Whether the deletion of the owner with this uid waits for dependents.
    pub(super) fn is_waiting(&self, owner: Uid) -> bool {
        self.waiting_owners.contains_key(&owner)
    }

    /// Whether the deletion of the object at this storage key waits for dependents.
    pub(super) fn is_waiting_at_key(&self, key: &str) -> bool {
        self.waiting_owner_uids.contains_key(key)
    }

    /// Whether an owner and a dependent block each other, directly or through other objects.
    pub(super) fn is_cycle(&self, owner: Uid, dependent: &Arc<str>) -> bool {
        let mut seen = HashSet::new();
        let mut next = vec![dependent];
        while let Some(key) = next.pop() {
            let Some(uid) = self.waiting_owner_uids.get(key).filter(|_| seen.insert(key)) else { continue };
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

    fn ownership(uid: &str, owners: &[(&str, bool)], deletion_state: Option<DeletionState>) -> OwnershipData {
        let owner = |(uid, blocks): &(&str, bool)| Owner {
            api_version: "v1".into(),
            kind: "K".into(),
            name: "n".into(),
            uid: (*uid).to_owned(),
            blocks: *blocks,
        };
        OwnershipData { uid: uid.to_owned(), owners: owners.iter().map(owner).collect(), deletion_state }
    }

    struct TestIndex(Index);

    impl TestIndex {
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
                WorkItem::Dependents(uid) if uid == Uid::from_text("a") => "dependents of a".to_owned(),
                WorkItem::Dependents(uid) => format!("dependents of {uid:?}"),
                WorkItem::OwnerDeletion(key) => format!("process deletion of {key}"),
                WorkItem::Finish(key) => format!("finish {key}"),
            };
            work.into_iter().map(name).collect()
        }

        fn dependents_of(&self, uid: &str) -> Vec<(String, bool)> {
            self.0
                .dependents(Uid::from_text(uid), None)
                .map(|(key, blocks)| (key.to_string(), blocks))
                .collect()
        }
    }

    #[test]
    fn index_tracks_owner_references_and_deletions() {
        let mut index = TestIndex(Index::default());
        let owner = ownership("a", &[], None);
        assert!(index.apply("owner", None, Some(&owner)).is_empty());
        assert_eq!(index.0.len(), 0);
        let first = ownership("x", &[("a", true), ("b", false)], None);
        assert_eq!(index.apply("k1", None, Some(&first)), ["examine k1"]);
        assert_eq!(
            index.apply("k1", Some(&first), Some(&first)),
            [""; 0],
            "an unchanged object causes no work"
        );
        let second = ownership("y", &[("a", false)], None);
        index.apply("k2", None, Some(&second));
        assert_eq!(index.dependents_of("a"), [("k1".to_owned(), true), ("k2".to_owned(), false)]);
        assert_eq!(index.dependents_of("b"), [("k1".to_owned(), false)]);

        let with_one_owner = ownership("x", &[("a", false)], None);
        assert_eq!(index.apply("k1", Some(&first), Some(&with_one_owner)), ["examine k1"]);
        assert_eq!(index.dependents_of("b"), []);
        assert_eq!(index.dependents_of("a"), [("k1".to_owned(), false), ("k2".to_owned(), false)]);

        let terminating_owner = ownership("a", &[], Some(DeletionState::WaitingForDependents));
        assert_eq!(
            index.apply("owner", Some(&owner), Some(&terminating_owner)),
            ["dependents of a", "process deletion of owner"]
        );
        assert!(index.0.is_waiting_at_key("owner"));
        assert_eq!(index.apply("owner", Some(&terminating_owner), Some(&terminating_owner)), [""; 0]);
        assert_eq!(index.apply("k1", Some(&with_one_owner), None), ["process deletion of owner"]);
        assert_eq!(index.apply("owner", Some(&terminating_owner), None), ["dependents of a"]);
        assert!(!index.0.is_waiting_at_key("owner"));
        assert_eq!(index.apply("k2", Some(&second), None), [""; 0]);
        assert_eq!(index.0.len(), 0);
        assert_eq!(
            index.apply("owner", Some(&owner), None),
            [""; 0],
            "an object without dependents causes no work"
        );
    }

    #[test]
    fn dependents_are_read_after_a_key() {
        let mut index = TestIndex(Index::default());
        for i in 0..10 {
            index.apply(&format!("k{i}"), None, Some(&ownership("x", &[("a", i % 2 == 0)], None)));
        }
        let after: Arc<str> = Arc::from("k7");
        let rest: Vec<_> =
            index.0.dependents(Uid::from_text("a"), Some(&after)).map(|(k, _)| k.to_string()).collect();
        assert_eq!(rest, ["k8", "k9"]);
    }
}
