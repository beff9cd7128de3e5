//! Reference model of garbage collection: simple rules for a state of all objects, and for each change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::graph::{FINALIZER, Graph, Kind, is_terminating};
use super::history::Change;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Kind, namespace and name of an object.
type Key = (String, String, String);

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

fn key(object: &Value) -> Key {
    let metadata = &object["metadata"];
    (
        text(object, "kind").to_owned(),
        text(metadata, "namespace").to_owned(),
        text(metadata, "name").to_owned(),
    )
}

fn uid(object: &Value) -> &str {
    text(&object["metadata"], "uid")
}

fn references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn has(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|f| f.contains(&json!(finalizer)))
}

/// All objects at one revision.
#[derive(Default)]
struct State(BTreeMap<Key, Value>);

impl State {
    fn from_objects(objects: &[Value]) -> Self {
        State(objects.iter().map(|object| (key(object), object.clone())).collect())
    }

    /// The owner to which a reference of an object points, if it exists.
    fn owner(&self, object: &Value, reference: &Value) -> Option<&Value> {
        let kind = text(reference, "kind");
        let home = if Kind::by_name(kind).namespaced { text(&object["metadata"], "namespace") } else { "" };
        let found = self.0.get(&(kind.to_owned(), home.to_owned(), text(reference, "name").to_owned()))?;
        (uid(found) == text(reference, "uid")).then_some(found)
    }

    /// The dependents of an object, each with its `blockOwnerDeletion`.
    fn dependents<'a>(&'a self, owner: &'a Value) -> impl Iterator<Item = (&'a Value, bool)> {
        self.0.values().flat_map(move |object| {
            let mine = references(object)
                .iter()
                .filter(move |r| self.owner(object, r).is_some_and(|found| uid(found) == uid(owner)));
            mine.map(move |reference| (object, reference["blockOwnerDeletion"] == json!(true)))
        })
    }
}

/// Whether the garbage collector has completed all work.
///
/// In a settled state, every owner reference points to an existing owner, and every terminating object waits
/// for a finalizer or for a blocking dependent.
pub fn is_settled(objects: &[Value]) -> bool {
    let state = State::from_objects(objects);
    objects.iter().all(|object| {
        if is_terminating(object) {
            let waits = state.dependents(object).any(|(_, blocks)| blocks);
            return !has(object, ORPHAN)
                && (has(object, FINALIZER) || (has(object, FOREGROUND) && waits))
                && (!has(object, FOREGROUND) || waits);
        }
        references(object).iter().all(|reference| match state.owner(object, reference) {
            None => false,
            Some(owner) if !is_terminating(owner) => true,
            Some(owner) if has(owner, ORPHAN) => false,
            Some(owner) => !has(owner, FOREGROUND) || reference["blockOwnerDeletion"] != json!(true),
        })
    })
}

/// Replays all changes, and panics at the first change that the rules forbid.
pub fn replay(graph: &Graph, changes: &[Change]) {
    let mut model = ReferenceModel {
        graph,
        state: State::default(),
        waited: BTreeSet::new(),
        reference_revisions: BTreeMap::new(),
        deletion_revisions: BTreeMap::new(),
    };
    for change in changes {
        if let Err(why) = model.check(change) {
            let last: Vec<_> = changes
                .iter()
                .filter(|c| c.revision <= change.revision)
                .map(|c| format!("{} {} {}", c.revision, c.event, c.object["metadata"]))
                .collect();
            panic!("{why}\nat {} of {:?}\n{}", change.revision, key(&change.object), last.join("\n"));
        }
        model.apply(change);
    }
}

struct ReferenceModel<'a> {
    graph: &'a Graph,
    state: State,
    /// Uids of objects that waited for their dependents (foreground deletion).
    waited: BTreeSet<String>,
    /// Revision of the first reference from a dependent to an owner, by their uids.
    reference_revisions: BTreeMap<(String, String), u64>,
    /// Revision at which the deletion of an object started, by uid.
    deletion_revisions: BTreeMap<String, u64>,
}

impl ReferenceModel<'_> {
    fn check(&self, change: &Change) -> Result<(), String> {
        let new = &change.object;
        let Some(old) = self.state.0.get(&key(new)) else {
            return if change.event == "ADDED" {
                Ok(())
            } else {
                Err("a change other than ADDED for an absent object".to_owned())
            };
        };
        let gone = change.event == "DELETED";
        if (gone || is_terminating(new)) && !is_terminating(old) {
            self.check_deletion(old)?;
        }
        if gone && has(old, FINALIZER) && !self.graph.released.contains(uid(old)) {
            return Err("the object was deleted despite its finalizer".to_owned());
        }
        let lost = |finalizer: &str| has(old, finalizer) && (gone || !has(new, finalizer));
        let policies = self.graph.requested_policies(uid(old));
        if lost(FOREGROUND) && policies.iter().all(|policy| policy.is_empty() || policy == "Foreground") {
            self.check_foreground_deletion(old)?;
        }
        if lost(ORPHAN) && policies.iter().all(|policy| policy.is_empty() || policy == "Orphan") {
            self.check_orphaning(old)?;
        }
        if !gone { self.check_reference_removal(old, new) } else { Ok(()) }
    }

    /// An object with a live owner is deleted only by the test, or in foreground deletion of the owner.
    fn check_deletion(&self, object: &Value) -> Result<(), String> {
        if self.graph.deleted.contains(uid(object)) {
            return Ok(());
        }
        if references(object).is_empty() {
            return Err("the object was deleted without a request and without an owner".to_owned());
        }
        for reference in references(object) {
            if let Some(owner) = self.state.owner(object, reference)
                && !(is_terminating(owner) && self.waited.contains(uid(owner)))
            {
                return Err(format!(
                    "the object was deleted although its owner is live: {}",
                    owner["metadata"]
                ));
            }
        }
        Ok(())
    }

    /// Whether a dependent got its reference before the deletion of the owner started. The collector may miss
    /// later references.
    fn precedes_deletion(&self, dependent: &Value, owner: &Value) -> bool {
        let since = self.reference_revisions.get(&(uid(dependent).to_owned(), uid(owner).to_owned()));
        since.is_some_and(|since| {
            self.deletion_revisions
                .get(uid(owner))
                .is_none_or(|deletion_revisions| since < deletion_revisions)
        })
    }

    fn check_foreground_deletion(&self, owner: &Value) -> Result<(), String> {
        let mut dependents = self.state.dependents(owner);
        // Foreground deletions in a cycle do not block each other.
        let blocking = dependents.find(|(dependent, blocks)| {
            *blocks
                && self.precedes_deletion(dependent, owner)
                && !(is_terminating(dependent) && has(dependent, FOREGROUND))
        });
        match blocking {
            None => Ok(()),
            Some((dependent, _)) => {
                Err(format!("foreground deletion did not wait for {}", dependent["metadata"]))
            }
        }
    }

    fn check_orphaning(&self, owner: &Value) -> Result<(), String> {
        match self.state.dependents(owner).find(|(dependent, _)| self.precedes_deletion(dependent, owner)) {
            None => Ok(()),
            Some((dependent, _)) => {
                Err(format!("orphaning left the owner reference of {}", dependent["metadata"]))
            }
        }
    }

    /// Checks that each removed owner reference had a valid reason.
    ///
    /// The owner is absent, orphans its dependents, or is in foreground deletion.
    fn check_reference_removal(&self, old: &Value, new: &Value) -> Result<(), String> {
        let kept = |reference: &Value| references(new).iter().any(|r| r["uid"] == reference["uid"]);
        for reference in references(old).iter().filter(|reference| !kept(reference)) {
            if let Some(owner) = self.state.owner(old, reference)
                && !(is_terminating(owner) && (has(owner, ORPHAN) || self.waited.contains(uid(owner))))
            {
                return Err(format!(
                    "the owner reference of a live owner was removed: {}",
                    owner["metadata"]
                ));
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: &Change) {
        let object = &change.object;
        if change.event == "DELETED" {
            self.state.0.remove(&key(object));
            return;
        }
        if has(object, FOREGROUND) {
            self.waited.insert(uid(object).to_owned());
        }
        if is_terminating(object) {
            self.deletion_revisions.entry(uid(object).to_owned()).or_insert(change.revision);
        }
        for reference in references(object) {
            let pair = (uid(object).to_owned(), text(reference, "uid").to_owned());
            self.reference_revisions.entry(pair).or_insert(change.revision);
        }
        self.state.0.insert(key(object), object.clone());
    }
}

#[test]
fn reference_model_rejects_invalid_histories() {
    let object = |name: &str, id: &str, metadata: Value| {
        let mut object = json!({"kind": "ConfigMap", "metadata": metadata});
        for (field, value) in [("namespace", "one"), ("name", name), ("uid", id)] {
            object["metadata"][field] = value.into();
        }
        object
    };
    let owner = |block: bool| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "ua", "blockOwnerDeletion": block}]);
    let now = "2026-01-01T00:00:00Z";
    for (objects, settled) in [
        (
            vec![object("a", "ua", json!({})), object("b", "ub", json!({"ownerReferences": owner(true)}))],
            true,
        ),
        (vec![object("b", "ub", json!({"ownerReferences": owner(true)}))], false),
        (
            vec![object("a", "other", json!({})), object("b", "ub", json!({"ownerReferences": owner(true)}))],
            false,
        ),
        (vec![object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FINALIZER]}))], true),
        (vec![object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FOREGROUND]}))], false),
        (
            vec![object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FINALIZER, ORPHAN]}))],
            false,
        ),
        (
            vec![
                object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FOREGROUND]})),
                object(
                    "b",
                    "ub",
                    json!({"ownerReferences": owner(true), "deletionTimestamp": now, "finalizers": [FINALIZER]}),
                ),
            ],
            true,
        ),
        (
            vec![
                object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FOREGROUND]})),
                object("b", "ub", json!({"ownerReferences": owner(true)})),
            ],
            false,
        ),
    ] {
        assert_eq!(is_settled(&objects), settled, "{objects:?}");
    }

    let graph = Graph::new(0);
    let change = |revision, event: &str, object: Value| Change { revision, event: event.to_owned(), object };
    let a = object("a", "ua", json!({}));
    let b = object("b", "ub", json!({"ownerReferences": owner(true)}));
    let waiting = object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [FOREGROUND]}));
    let orphaning = object("a", "ua", json!({"deletionTimestamp": now, "finalizers": [ORPHAN]}));
    let mut graph_with_delete = Graph::new(0);
    graph_with_delete.deleted.insert("ua".to_owned());
    let start = || vec![change(1, "ADDED", a.clone()), change(2, "ADDED", b.clone())];
    let verdict = |graph: &Graph, more: Vec<Change>| {
        let mut model = ReferenceModel {
            graph,
            state: State::default(),
            waited: BTreeSet::new(),
            reference_revisions: BTreeMap::new(),
            deletion_revisions: BTreeMap::new(),
        };
        start().into_iter().chain(more).try_for_each(|change| {
            let allowed = model.check(&change);
            model.apply(&change);
            allowed
        })
    };
    let forgotten = object("b", "ub", json!({}));
    let deleted = |revision: u64, object: &Value| change(revision, "DELETED", object.clone());
    let modified = |revision: u64, object: &Value| change(revision, "MODIFIED", object.clone());
    for (case, graph, changes, is_allowed) in [
        ("the owner of b is live", &graph, vec![deleted(3, &b)], false),
        ("a has no delete request", &graph, vec![deleted(3, &a)], false),
        ("b is deleted after its owner", &graph_with_delete, vec![deleted(3, &a), deleted(4, &b)], true),
        (
            "foreground deletion does not wait for b",
            &graph_with_delete,
            vec![modified(3, &waiting), deleted(4, &waiting)],
            false,
        ),
        (
            "foreground deletion waits for b",
            &graph_with_delete,
            vec![modified(3, &waiting), deleted(4, &b), deleted(5, &waiting)],
            true,
        ),
        (
            "orphaning leaves the owner reference of b",
            &graph_with_delete,
            vec![modified(3, &orphaning), deleted(4, &orphaning)],
            false,
        ),
        (
            "orphaning removes the owner reference of b",
            &graph_with_delete,
            vec![modified(3, &orphaning), modified(4, &forgotten), deleted(5, &orphaning)],
            true,
        ),
        ("b loses the reference to a live owner", &graph, vec![modified(3, &forgotten)], false),
    ] {
        assert_eq!(verdict(graph, changes).is_ok(), is_allowed, "{case}");
    }
}
