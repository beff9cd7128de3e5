//! Objects in memory, with one revision counter and their history.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The stored Flavors and their history.
#[derive(Debug)]
pub struct Storage {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    /// Objects by namespace and name.
    objects: BTreeMap<(String, String), Value>,
    history: Vec<Event>,
}

/// A change.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) revision: u64,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

/// The failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteError {
    Exists,
    Conflict,
    NotFound,
}

impl Default for Storage {
    fn default() -> Self {
        Storage { state: Mutex::default(), revision: watch::Sender::new(0) }
    }
}

impl Storage {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Returns the names of the objects of a namespace.
    pub fn names(&self, namespace: &str) -> Vec<String> {
        let state = self.state.lock();
        let keys = state.objects.keys().filter(|(known, _)| known == namespace);
        keys.map(|(_, name)| name.clone()).collect()
    }

    /// Returns the objects of a namespace, `""` for all, and the revision of the list.
    pub(super) fn list(&self, namespace: &str) -> (Vec<Value>, u64) {
        let state = self.state.lock();
        let objects =
            state.objects.iter().filter(|((known, _), _)| namespace.is_empty() || known == namespace);
        (objects.map(|(_, object)| object.clone()).collect(), state.revision)
    }

    /// Returns the changes after a revision.
    pub(super) fn changes(&self, after: u64) -> Vec<Event> {
        self.state.lock().history.iter().filter(|event| event.revision > after).cloned().collect()
    }

    /// Returns a receiver of the newest revision.
    pub(super) fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    pub(super) fn create(&self, namespace: &str, name: &str, mut object: Value) -> Result<Value, WriteError> {
        let mut state = self.state.lock();
        let key = (namespace.to_owned(), name.to_owned());
        if state.objects.contains_key(&key) {
            return Err(WriteError::Exists);
        }
        let revision = state.next_revision();
        set(&mut object, "uid", format!("00000000-0000-4000-8000-{revision:012}"));
        set(&mut object, "creationTimestamp", now());
        set(&mut object, "namespace", namespace.to_owned());
        set(&mut object, "name", name.to_owned());
        set(&mut object, "resourceVersion", revision.to_string());
        state.objects.insert(key, object.clone());
        self.publish(&mut state, "ADDED", object.clone());
        Ok(object)
    }

    /// Replaces an object by the result of `change`. A `resourceVersion` of the result must be the current one.
    pub(super) fn update(
        &self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&Value) -> Value,
    ) -> Result<Value, WriteError> {
        let mut state = self.state.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let current = state.objects.get(&key).ok_or(WriteError::NotFound)?;
        let mut object = change(current);
        let field = |object: &Value, name: &str| object.pointer(&format!("/metadata/{name}")).cloned();
        let expected = field(&object, "resourceVersion");
        if expected.is_some() && expected != field(current, "resourceVersion") {
            return Err(WriteError::Conflict);
        }
        for name in ["uid", "creationTimestamp", "namespace", "name"] {
            let value = field(current, name).and_then(|value| value.as_str().map(str::to_owned));
            set(&mut object, name, value.unwrap_or_default());
        }
        let revision = state.next_revision();
        set(&mut object, "resourceVersion", revision.to_string());
        let is_gone = field(&object, "deletionTimestamp").is_some() && !has_finalizers(&object);
        match is_gone {
            true => drop(state.objects.remove(&key)),
            false => drop(state.objects.insert(key, object.clone())),
        }
        self.publish(&mut state, if is_gone { "DELETED" } else { "MODIFIED" }, object.clone());
        Ok(object)
    }

    /// Deletes an object. An object with finalizers stays, with a deletion timestamp, until an update removes them.
    pub(super) fn delete(&self, namespace: &str, name: &str) -> Result<Value, WriteError> {
        let mut state = self.state.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let mut object = state.objects.remove(&key).ok_or(WriteError::NotFound)?;
        let revision = state.next_revision();
        set(&mut object, "resourceVersion", revision.to_string());
        let stays = has_finalizers(&object);
        if stays {
            set(&mut object, "deletionTimestamp", now());
            state.objects.insert(key, object.clone());
        }
        self.publish(&mut state, if stays { "MODIFIED" } else { "DELETED" }, object.clone());
        Ok(object)
    }

    fn publish(&self, state: &mut State, kind: &'static str, object: Value) {
        let revision = state.revision;
        state.history.push(Event { revision, kind, object });
        self.revision.send_replace(revision);
    }
}

impl State {
    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

/// Sets a field of the metadata.
fn set(object: &mut Value, field: &str, value: String) {
    let Value::Object(fields) = object else { return };
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if let Value::Object(metadata) = metadata {
        metadata.insert(field.to_owned(), value.into());
    }
}

#[expect(clippy::disallowed_methods, reason = "a server of tests runs on the machine's time")]
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
