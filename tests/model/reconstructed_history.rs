//! Single history of the store, reconstructed from all client observations.
//!
//! The history contains the changes by revision, and the times at which they were known.
//!
//! # Contract
//!
//! A change is known if any client observed it: the writer, a reader, a watch. A watch that misses a change
//! is therefore detected as soon as a second client saw the change. Responses of deletes have no revision:
//! deletes are known from watches of whole collections, which have no gap up to [`ReconstructedHistory::covered`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::collections::{COLLECTIONS, Key, ObservedObject, Scope, WriteId};
use crate::model::history::{Action, At, History, Notice, Operation, Outcome, Start, StreamEnding, Time};

/// A change of one object at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Key of the object.
    pub key: Key,
    /// Content after the change; None if the object was deleted.
    pub after: Option<Content>,
}

/// Content of an object without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Number of the write that wrote the content.
    pub write: WriteId,
    /// Index in [`crate::model::collections::GROUPS`].
    pub group: usize,
    /// Uid of the object.
    pub uid: Arc<str>,
}

impl Content {
    fn from_observed(seen: &ObservedObject) -> Content {
        Content { write: seen.write, group: seen.group, uid: Arc::clone(&seen.uid) }
    }
}

/// State of an object at a revision: the revision of its last change, and its content.
pub type State<'a> = Option<(u64, &'a Content)>;

/// The history of the store, reconstructed from the observations of clients.
pub struct ReconstructedHistory<'a> {
    /// The observations of clients.
    pub history: &'a History,
    changes: BTreeMap<u64, Change>,
    by_key: BTreeMap<Key, Vec<u64>>,
    operations: HashMap<WriteId, &'a Operation>,
    /// Times of observations, sorted, each with the largest revision that clients had observed by this time.
    observed: Vec<(Time, u64)>,
    /// Revisions, sorted, each with the latest known time at which the store had no revision above it.
    newest_times: Vec<(u64, Time)>,
    /// For each collection, the revision up to which all changes are known.
    pub covered: Vec<u64>,
}

/// Two different changes at one revision.
pub struct Contradiction {
    /// The revision of both changes.
    pub revision: u64,
    /// First and second observed change.
    pub observed: [Change; 2],
}

impl<'a> ReconstructedHistory<'a> {
    /// Reconstructs a history. `base`: for each collection a revision at which it was empty.
    pub fn new(history: &'a History, base: &[u64]) -> (ReconstructedHistory<'a>, Vec<Contradiction>) {
        let operations = history.operations.iter().map(|operation| (operation.id, operation)).collect();
        let mut reconstructed = ReconstructedHistory {
            history,
            changes: BTreeMap::new(),
            by_key: BTreeMap::new(),
            operations,
            observed: Vec::new(),
            newest_times: Vec::new(),
            covered: base.to_vec(),
        };
        let mut contradictions = Vec::new();
        for (revision, change) in observed_changes(history) {
            match reconstructed.changes.get(&revision) {
                None => drop(reconstructed.changes.insert(revision, change)),
                Some(known) if *known == change => {}
                Some(known) => {
                    contradictions.push(Contradiction { revision, observed: [known.clone(), change] });
                }
            }
        }
        for (revision, change) in &reconstructed.changes {
            reconstructed.by_key.entry(change.key.clone()).or_default().push(*revision);
        }
        reconstructed.index_times();
        for collection in 0..COLLECTIONS.len() {
            reconstructed.extend_covered_revision(collection);
        }
        (reconstructed, contradictions)
    }

    /// Fills `observed` and `newest_times` from the history.
    fn index_times(&mut self) {
        let history = self.history;
        for operation in &history.operations {
            if let Outcome::Done(seen) = &operation.outcome {
                self.observed.push((operation.end, seen.revision));
                if operation.writes() {
                    self.newest_times.push((seen.revision, operation.begin));
                }
            }
        }
        for list in &history.lists {
            for (index, page) in list.pages.iter().enumerate() {
                self.observed.push((page.end, page.revision));
                if index == 0 && list.at == At::MostRecent {
                    self.newest_times.push((page.revision, page.begin));
                }
            }
        }
        for stream in &history.streams {
            self.observed.extend(stream.notices.iter().map(|(at, notice)| (*at, notice.revision())));
        }
        self.observed.sort_unstable();
        let mut newest = 0;
        for (_, revision) in &mut self.observed {
            newest = newest.max(*revision);
            *revision = newest;
        }
        self.newest_times.sort_unstable();
        let mut latest = Time::ZERO;
        for (_, at) in &mut self.newest_times {
            latest = latest.max(*at);
            *at = latest;
        }
    }

    /// Raises the covered revision of a collection up to the first gap between watches of the collection.
    fn extend_covered_revision(&mut self, collection: usize) {
        let is_whole_collection =
            |scope: &Scope| scope.is_everything() && scope.collections.contains(&collection);
        let covered_range = |stream: &'a crate::model::history::Stream| match stream.start {
            Start::After(from) if is_whole_collection(&stream.scope) => Some((from, stream.position()?)),
            _ => None,
        };
        let mut ranges: Vec<(u64, u64)> = self.history.streams.iter().filter_map(covered_range).collect();
        ranges.sort_unstable();
        for (from, to) in ranges {
            if from <= self.covered[collection] {
                self.covered[collection] = self.covered[collection].max(to);
            }
        }
    }

    /// Iterates over incompletely covered collections, with the revision of their last write.
    ///
    /// Not all changes of such a collection are known up to that revision.
    pub fn uncovered(&self) -> impl Iterator<Item = (usize, u64)> {
        let last_fence = |collection| {
            self.history.fences.iter().filter(move |(of, _)| *of == collection).map(|(_, at)| *at).max()
        };
        (0..COLLECTIONS.len())
            .filter_map(move |collection| Some((collection, last_fence(collection)?)))
            .filter(|(collection, fence)| self.covered[*collection] < *fence)
    }

    /// Whether all changes of a collection are known up to its last write.
    pub fn is_covered(&self, collection: usize) -> bool {
        self.history.fences.iter().any(|(of, _)| *of == collection)
            && self.uncovered().all(|(uncovered, _)| uncovered != collection)
    }

    /// Whether a watch that was to extend the covered revision of a collection got 410 instead.
    ///
    /// The cause is a server that was down for longer than the history retention.
    pub fn is_trimmed(&self, collection: usize) -> bool {
        let covered = self.covered[collection];
        self.history.streams.iter().any(|stream| {
            matches!(stream.start, Start::After(from) if from <= covered)
                && stream.resumes.is_some()
                && stream.scope.is_everything()
                && stream.scope.collections == [collection]
                && matches!(stream.ending, StreamEnding::Expired(_))
                && self.observed_before(stream.begin) >= covered
        })
    }

    /// Returns an operation by its number.
    pub fn operation(&self, id: WriteId) -> Option<&'a Operation> {
        self.operations.get(&id).copied()
    }

    /// Iterates over all objects that ever existed.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }

    /// Iterates over all changes.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &Change)> {
        self.changes.iter().map(|(revision, change)| (*revision, change))
    }

    /// Iterates over the changes between two revisions, in order.
    pub fn between(&self, after: u64, upto: u64) -> impl Iterator<Item = (u64, &Change)> {
        let range = (after < upto).then(|| self.changes.range(after + 1..=upto));
        range.into_iter().flatten().map(|(revision, change)| (*revision, change))
    }

    /// Returns the revisions at which an object changed.
    pub fn revisions_of(&self, key: &Key) -> &[u64] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the state of an object at a revision.
    pub fn state(&self, key: &Key, revision: u64) -> State<'_> {
        let revisions = self.revisions_of(key);
        let passed = revisions.partition_point(|at| *at <= revision);
        let at = *revisions.get(passed.checked_sub(1)?)?;
        Some((at, self.changes.get(&at)?.after.as_ref()?))
    }

    /// Returns the objects of a scope at a revision, in order.
    pub fn snapshot(&self, scope: &Scope, revision: u64) -> Vec<(&Key, u64, &Content)> {
        let keys = self.by_key.keys().filter(|key| scope.contains(key));
        let existing =
            keys.filter_map(|key| self.state(key, revision).map(|(at, content)| (key, at, content)));
        existing.filter(|(_, _, content)| scope.selects(content.group)).collect()
    }

    /// Returns the revision up to which all changes of a scope are known.
    pub fn covered(&self, scope: &Scope) -> u64 {
        scope.collections.iter().map(|collection| self.covered[*collection]).min().unwrap_or_default()
    }

    /// Returns the largest revision observed before a time: a read that begins then must not be older.
    pub fn observed_before(&self, time: Time) -> u64 {
        let passed = self.observed.partition_point(|(at, _)| *at < time);
        passed.checked_sub(1).map_or(0, |last| self.observed[last].1)
    }

    /// Returns the latest time at which the store is known to have had no revision above `revision`.
    pub fn latest_time_at(&self, revision: u64) -> Time {
        let passed = self.newest_times.partition_point(|(at, _)| *at <= revision);
        passed.checked_sub(1).map_or(Time::ZERO, |last| self.newest_times[last].1)
    }

    /// Returns the time before which a change cannot have happened: the request of its write.
    pub fn earliest_time(&self, revision: u64) -> Time {
        let write = self.changes.get(&revision).and_then(|change| change.after.as_ref());
        write.and_then(|content| self.operation(content.write)).map_or(Time::ZERO, |writer| writer.begin)
    }

    /// Returns the states that an object may have had between two times.
    pub fn states_between(&self, key: &Key, begin: Time, end: Time) -> Vec<State<'_>> {
        let from = self.observed_before(begin);
        let later = self.revisions_of(key).iter().filter(|at| **at > from);
        let possible = later.take_while(|at| self.earliest_time(**at) < end).map(|at| self.state(key, *at));
        std::iter::once(self.state(key, from)).chain(possible).collect()
    }
}

/// Returns every observed change.
fn observed_changes(history: &History) -> Vec<(u64, Change)> {
    let object_change = |seen: &ObservedObject| {
        (seen.revision, Change { key: seen.key.clone(), after: Some(Content::from_observed(seen)) })
    };
    let mut changes = Vec::new();
    // The changes of writers come first, so that other observations are compared with them.
    let (writes, reads): (Vec<&Operation>, Vec<&Operation>) =
        history.operations.iter().partition(|operation| operation.writes());
    for operation in writes.into_iter().chain(reads) {
        if let (Outcome::Done(seen), false) = (&operation.outcome, operation.action == Action::Delete(None)) {
            changes.push(object_change(seen));
        }
    }
    for stream in &history.streams {
        // With a selector, DELETED can also mean that an object no longer matches.
        let deletes = stream.scope.groups.is_none() && !matches!(stream.ending, StreamEnding::Expired(_));
        for (_, notice) in &stream.notices {
            match notice {
                Notice::Added(seen) | Notice::Modified(seen) => changes.push(object_change(seen)),
                Notice::Deleted(seen) if deletes => {
                    changes.push((seen.revision, Change { key: seen.key.clone(), after: None }));
                }
                Notice::Deleted(_) | Notice::Bookmark { .. } => {}
            }
        }
    }
    for list in &history.lists {
        // Each object in a list was written at its own revision, whatever the revision of the list.
        for seen in list.pages.iter().flat_map(|page| &page.items) {
            changes.push(object_change(seen));
        }
    }
    changes
}
