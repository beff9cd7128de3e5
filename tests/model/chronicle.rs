//! The one history of the store, put together from everything that clients were told: which revision changed which object to
//! what; and what was known when.
//!
//! # Contract
//!
//! A change is in the chronicle if anybody was told of it: the writer, a reader, a watch. So a watch that misses a change is
//! found as soon as somebody else saw it. Deletes have no revision in their answers: they are known from watches of
//! whole collections, and up to [`Chronicle::covered`] these were told without a gap.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::collections::{COLLECTIONS, Key, Scope, Seen};
use crate::history::{Action, At, History, Notice, Operation, Outcome, Start, StreamEnding, Time, WriteId};

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub key: Key,
    /// What it is afterwards; None when it is gone.
    pub after: Option<Content>,
}

/// An object without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Who wrote it.
    pub write: WriteId,
    /// Its group.
    pub group: usize,
    /// Its uid.
    pub uid: Arc<str>,
}

impl Content {
    fn of(seen: &Seen) -> Content {
        Content { write: seen.write, group: seen.group, uid: Arc::clone(&seen.uid) }
    }
}

/// An object's state at a revision: when it came to be so, and what it is.
pub type State<'a> = Option<(u64, &'a Content)>;

/// See the module.
pub struct Chronicle<'a> {
    /// What it is made of.
    pub history: &'a History,
    changes: BTreeMap<u64, Change>,
    by_key: BTreeMap<Key, Vec<u64>>,
    operations: HashMap<WriteId, &'a Operation>,
    /// Revisions that were told, by when; each the largest so far.
    told: Vec<(Time, u64)>,
    /// Revisions that the store had not passed at a time; by revision, each the latest time so far.
    standing: Vec<(u64, Time)>,
    /// For each collection, the revision up to which all changes are known.
    pub covered: Vec<u64>,
}

/// Two tell different things of one revision.
pub struct Contradiction {
    /// The revision.
    pub revision: u64,
    /// What was told first and what then.
    pub told: [Change; 2],
}

impl<'a> Chronicle<'a> {
    /// Puts a history together. `base`: for each collection a revision at which it was empty.
    pub fn new(history: &'a History, base: &[u64]) -> (Chronicle<'a>, Vec<Contradiction>) {
        let operations = history.operations.iter().map(|operation| (operation.id, operation)).collect();
        let mut chronicle = Chronicle {
            history,
            changes: BTreeMap::new(),
            by_key: BTreeMap::new(),
            operations,
            told: Vec::new(),
            standing: Vec::new(),
            covered: base.to_vec(),
        };
        let mut contradictions = Vec::new();
        for (revision, change) in told_changes(history) {
            match chronicle.changes.get(&revision) {
                None => drop(chronicle.changes.insert(revision, change)),
                Some(known) if *known == change => {}
                Some(known) => {
                    contradictions.push(Contradiction { revision, told: [known.clone(), change] });
                }
            }
        }
        for (revision, change) in &chronicle.changes {
            chronicle.by_key.entry(change.key.clone()).or_default().push(*revision);
        }
        chronicle.know_when();
        for collection in 0..COLLECTIONS.len() {
            chronicle.cover(collection);
        }
        (chronicle, contradictions)
    }

    fn know_when(&mut self) {
        let history = self.history;
        for operation in &history.operations {
            if let Outcome::Done(seen) = &operation.outcome {
                self.told.push((operation.end, seen.revision));
                if operation.writes() {
                    self.standing.push((seen.revision, operation.begin));
                }
            }
        }
        for list in &history.lists {
            for (index, page) in list.pages.iter().enumerate() {
                self.told.push((page.end, page.revision));
                if index == 0 && list.at == At::MostRecent {
                    self.standing.push((page.revision, page.begin));
                }
            }
        }
        for stream in &history.streams {
            self.told.extend(stream.notices.iter().map(|(at, notice)| (*at, notice.revision())));
        }
        self.told.sort_unstable();
        let mut newest = 0;
        for (_, revision) in &mut self.told {
            newest = newest.max(*revision);
            *revision = newest;
        }
        self.standing.sort_unstable();
        let mut latest = Time::ZERO;
        for (_, at) in &mut self.standing {
            latest = latest.max(*at);
            *at = latest;
        }
    }

    /// Joins the stretches that watches of the whole collection told.
    fn cover(&mut self, collection: usize) {
        let whole = |scope: &Scope| scope.is_everything() && scope.collections.contains(&collection);
        let stretch = |stream: &'a crate::history::Stream| match stream.start {
            Start::After(from) if whole(&stream.scope) => Some((from, stream.position()?)),
            _ => None,
        };
        let mut stretches: Vec<(u64, u64)> = self.history.streams.iter().filter_map(stretch).collect();
        stretches.sort_unstable();
        for (from, to) in stretches {
            if from <= self.covered[collection] {
                self.covered[collection] = self.covered[collection].max(to);
            }
        }
    }

    /// Collections whose changes are not all known up to their last write, and the revision of that.
    pub fn uncovered(&self) -> impl Iterator<Item = (usize, u64)> {
        let last = |collection| {
            self.history.fences.iter().filter(move |(of, _)| *of == collection).map(|(_, at)| *at).max()
        };
        (0..COLLECTIONS.len())
            .filter_map(move |collection| Some((collection, last(collection)?)))
            .filter(|(collection, fence)| self.covered[*collection] < *fence)
    }

    /// Whether a watch that was to go on was answered 410 when the changes of a collection had ceased to be known: the
    /// server was away for longer than history is kept.
    pub fn is_trimmed(&self, collection: usize) -> bool {
        let covered = self.covered[collection];
        self.history.streams.iter().any(|stream| {
            matches!(stream.start, Start::After(from) if from <= covered)
                && stream.resumes.is_some()
                && stream.scope.is_everything()
                && stream.scope.collections == [collection]
                && matches!(stream.ending, StreamEnding::Expired(_))
                && self.told_before(stream.begin) >= covered
        })
    }

    /// The operation of a number.
    pub fn operation(&self, id: WriteId) -> Option<&'a Operation> {
        self.operations.get(&id).copied()
    }

    /// The objects that were ever there.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }

    /// All changes.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &Change)> {
        self.changes.iter().map(|(revision, change)| (*revision, change))
    }

    /// Changes after a revision up to another, in order.
    pub fn between(&self, after: u64, upto: u64) -> impl Iterator<Item = (u64, &Change)> {
        let range = (after < upto).then(|| self.changes.range(after + 1..=upto));
        range.into_iter().flatten().map(|(revision, change)| (*revision, change))
    }

    /// The revisions at which an object changed.
    pub fn revisions_of(&self, key: &Key) -> &[u64] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// An object at a revision.
    pub fn state(&self, key: &Key, revision: u64) -> State<'_> {
        let revisions = self.revisions_of(key);
        let passed = revisions.partition_point(|at| *at <= revision);
        let at = *revisions.get(passed.checked_sub(1)?)?;
        Some((at, self.changes.get(&at)?.after.as_ref()?))
    }

    /// The objects of a scope at a revision, in order.
    pub fn snapshot(&self, scope: &Scope, revision: u64) -> Vec<(&Key, u64, &Content)> {
        let keys = self.by_key.keys().filter(|key| scope.contains(key));
        let there = keys.filter_map(|key| self.state(key, revision).map(|(at, content)| (key, at, content)));
        there.filter(|(_, _, content)| scope.selects(content.group)).collect()
    }

    /// Up to where all is known of a scope.
    pub fn covered(&self, scope: &Scope) -> u64 {
        scope.collections.iter().map(|collection| self.covered[*collection]).min().unwrap_or_default()
    }

    /// The largest revision that anybody was told before a time: a read that begins then is not of an older state.
    pub fn told_before(&self, time: Time) -> u64 {
        let passed = self.told.partition_point(|(at, _)| *at < time);
        passed.checked_sub(1).map_or(0, |last| self.told[last].1)
    }

    /// The latest time at which the store is known to have had no revision after this one.
    pub fn stood_at(&self, revision: u64) -> Time {
        let passed = self.standing.partition_point(|(at, _)| *at <= revision);
        passed.checked_sub(1).map_or(Time::ZERO, |last| self.standing[last].1)
    }

    /// The time before which a change cannot have happened: its writer did not begin before.
    pub fn earliest(&self, revision: u64) -> Time {
        let write = self.changes.get(&revision).and_then(|change| change.after.as_ref());
        write.and_then(|content| self.operation(content.write)).map_or(Time::ZERO, |writer| writer.begin)
    }

    /// The states that an object may have had at some moment between two times.
    pub fn states_between(&self, key: &Key, begin: Time, end: Time) -> Vec<State<'_>> {
        let from = self.told_before(begin);
        let later = self.revisions_of(key).iter().filter(|at| **at > from);
        let possible = later.take_while(|at| self.earliest(**at) < end).map(|at| self.state(key, *at));
        std::iter::once(self.state(key, from)).chain(possible).collect()
    }
}

/// Every change that anybody was told.
fn told_changes(history: &History) -> Vec<(u64, Change)> {
    let put = |seen: &Seen| (seen.revision, Change { key: seen.key.clone(), after: Some(Content::of(seen)) });
    let mut changes = Vec::new();
    // Writers first: what they were told is what others are measured by.
    let (writes, reads): (Vec<&Operation>, Vec<&Operation>) =
        history.operations.iter().partition(|operation| operation.writes());
    for operation in writes.into_iter().chain(reads) {
        if let (Outcome::Done(seen), false) = (&operation.outcome, operation.action == Action::Delete(None)) {
            changes.push(put(seen));
        }
    }
    for stream in &history.streams {
        // A watch that selects is told of a delete when an object changes its group, too.
        let deletes = stream.scope.groups.is_none() && !matches!(stream.ending, StreamEnding::Expired(_));
        for (_, notice) in &stream.notices {
            match notice {
                Notice::Added(seen) | Notice::Modified(seen) => changes.push(put(seen)),
                Notice::Deleted(seen) if deletes => {
                    changes.push((seen.revision, Change { key: seen.key.clone(), after: None }));
                }
                Notice::Deleted(_) | Notice::Bookmark { .. } => {}
            }
        }
    }
    for list in &history.lists {
        // An exact list is judged by the others: it is not always of the newest state.
        for seen in list.pages.iter().flat_map(|page| &page.items) {
            changes.push(put(seen));
        }
    }
    changes
}
