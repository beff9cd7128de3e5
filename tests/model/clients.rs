//! Clients that read and write objects at random and record the responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::model::collections::{
    COLLECTIONS, GROUPS, Key, NAMES, NAMESPACES, ObservedObject, Scope, WriteContent,
};
use crate::model::connection::{Connection, Error, JsonResponse, Protocol};
use crate::model::history::{
    Action, At, CollectionDelete, Expected, List, ListEnding, ListPage, Operation, Outcome, Recorder,
};
use crate::model::server::Servers;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// Time limit of every request except watches.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for a connection; a paused server accepts none.
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Number of attempts to write a fence: a connection of an earlier attempt may have lost its server.
const FENCE_ATTEMPTS: usize = 5;

/// Number of writes of a flood, and bytes of each write; the event buffer of a server holds less in total.
const FLOOD: (usize, usize) = (32, 1_390_000);

/// State shared by the clients of one server.
pub struct SharedClientState {
    /// Recorder of all observations.
    pub recorder: Arc<Recorder>,
    /// The servers.
    pub servers: Arc<Servers>,
    /// Last observed objects and revisions.
    pub observed_state: Mutex<ObservedState>,
    /// Set when clients must finish their current operation and stop.
    pub stop: AtomicBool,
    /// True when the server has ended or is about to end.
    pub server_ended: watch::Sender<bool>,
}

impl SharedClientState {
    /// Creates the state of clients that run.
    pub fn new(
        servers: &Arc<Servers>,
        recorder: &Arc<Recorder>,
        observed_state: ObservedState,
    ) -> Arc<SharedClientState> {
        Arc::new(SharedClientState {
            recorder: Arc::clone(recorder),
            servers: Arc::clone(servers),
            observed_state: Mutex::new(observed_state),
            stop: AtomicBool::new(false),
            server_ended: watch::Sender::new(false),
        })
    }
}

/// Observations of all clients, from which writes take their preconditions, so that some preconditions hold.
#[derive(Default)]
pub struct ObservedState {
    seen: std::collections::HashMap<Key, Expected>,
    /// Observed revisions.
    pub revisions: Vec<u64>,
}

impl ObservedState {
    /// Creates the state with the revisions of a history and without objects.
    pub fn new(revisions: Vec<u64>) -> ObservedState {
        ObservedState { revisions, ..ObservedState::default() }
    }

    fn observe(&mut self, seen: &ObservedObject) {
        self.seen.insert(seen.key.clone(), Expected { revision: seen.revision, write: seen.write });
        self.revisions.push(seen.revision);
    }

    /// Returns a random observed revision, often a recent one.
    pub fn random_revision(&self, random: &mut SmallRng) -> Option<u64> {
        let known = self.revisions.len();
        let back = match random.random_range(0..4) {
            0 => known,
            1 => 200,
            _ => 20,
        };
        let first = known.saturating_sub(back);
        self.revisions.get(first..).and_then(|recent| recent.choose(random)).copied()
    }
}

/// A client that runs random operations.
pub struct Client {
    shared: Arc<SharedClientState>,
    random: SmallRng,
    protocol: Protocol,
    connection: Option<Connection>,
}

impl Client {
    /// Creates a client without a connection.
    pub fn new(shared: Arc<SharedClientState>, random: SmallRng, protocol: Protocol) -> Client {
        Client { shared, random, protocol, connection: None }
    }

    /// Runs random operations until the session stops the clients or the server ends.
    pub async fn run(mut self) {
        let mut server_ended = self.shared.server_ended.subscribe();
        while !*server_ended.borrow_and_update() && !self.shared.stop.load(Ordering::SeqCst) {
            match self.random.random_range(0..100) {
                0..20 => self.get().await,
                20..36 => self.create().await,
                36..66 => self.write().await,
                66..77 => self.delete().await,
                77..79 => self.delete_collection().await,
                79..97 => self.list().await,
                _ => {
                    let pause = self.random.random_range(0..20);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    fn random_key(&mut self) -> Key {
        let collection = self.random.random_range(0..COLLECTIONS.len());
        Key::new(collection, NAMES.choose(&mut self.random).expect("names"))
    }

    fn random_precondition(&mut self, key: &Key) -> Option<Expected> {
        let conditional = self.random.random_bool(0.6);
        self.shared.observed_state.lock().seen.get(key).copied().filter(|_| conditional)
    }

    /// Writes the fence object of a group: a last write, for whose delivery by all watches of the group a
    /// session waits. Returns its revision.
    pub async fn fence(&mut self, collection: usize, group: usize) -> Option<u64> {
        let key = Key::new(collection, &format!("m-fence-{}", GROUPS[group]));
        for _ in 0..FENCE_ATTEMPTS {
            // Create the object; if it exists already, change it.
            if let Some(seen) = self.put_content(&key, Action::Create, Some(group)).await {
                return Some(seen);
            }
            if let Some(seen) = self.patch_content(&key, Action::Write(None), Some(group)).await {
                return Some(seen);
            }
        }
        None
    }

    async fn create(&mut self) {
        let key = self.random_key();
        let by_put = key.put_creates() && self.random.random_bool(0.5);
        let action = if by_put { Action::CreateByPut } else { Action::Create };
        self.put_content(&key, action, None).await;
    }

    async fn write(&mut self) {
        let key = self.random_key();
        let expected = self.random_precondition(&key);
        // A PUT without a resourceVersion is rejected as an update of kinds that PUT can create.
        let put = self.random.random_bool(0.4) && (expected.is_some() || !key.put_creates());
        if put {
            let put_action = expected.filter(|_| key.put_creates()).map(Action::Put);
            self.put_content(&key, put_action.unwrap_or(Action::Write(expected)), None).await;
        } else {
            self.patch_content(&key, Action::Write(expected), None).await;
        }
    }

    fn next_content(&mut self, group: Option<usize>) -> WriteContent {
        let group = group.unwrap_or_else(|| self.random.random_range(0..GROUPS.len()));
        let weight = if self.random.random_bool(0.1) { 3000 } else { self.random.random_range(0..200) };
        WriteContent { write: self.shared.recorder.next_id(), group, weight }
    }

    /// Sends a complete object by POST or PUT. Returns the new revision if the write succeeded.
    async fn put_content(&mut self, key: &Key, action: Action, group: Option<usize>) -> Option<u64> {
        let mark = self.next_content(group);
        let collection = COLLECTIONS[key.collection].path;
        let item = format!("{collection}/{}", key.name);
        let (method, path, version) = match action {
            Action::Create => ("POST", collection.to_owned(), None),
            Action::Write(Some(expected)) | Action::Put(expected) => ("PUT", item, Some(expected.revision)),
            _ => ("PUT", item, None),
        };
        let body = key.body(&mark, version);
        self.operate(key, action, mark, method, &path, JSON, &body).await
    }

    /// Sends a patch of a random type. Returns the new revision if the write succeeded.
    async fn patch_content(&mut self, key: &Key, action: Action, group: Option<usize>) -> Option<u64> {
        let mark = self.next_content(group);
        let path = format!("{}/{}", COLLECTIONS[key.collection].path, key.name);
        let expected = if let Action::Write(expected) = action { expected } else { None };
        let mut metadata = mark.metadata();
        let (media_type, body) = match self.random.random_range(0..3) {
            0 => {
                let test = expected.map(|expected| {
                    json!({"op": "test", "path": "/metadata/annotations/write", "value": expected.write.to_string()})
                });
                let replace = |field: &str, value: &Value| json!({"op": "replace", "path": format!("/metadata/{field}"), "value": value});
                let rest = [
                    replace("labels", &metadata["labels"]),
                    replace("annotations", &metadata["annotations"]),
                ];
                (JSON_PATCH, Value::from_iter(test.into_iter().chain(rest)))
            }
            which => {
                if let Some(expected) = expected {
                    metadata["resourceVersion"] = json!(expected.revision.to_string());
                }
                let media_type = if which == 1 { MERGE_PATCH } else { STRATEGIC_PATCH };
                (media_type, json!({"metadata": metadata}))
            }
        };
        self.operate(key, action, mark, "PATCH", &path, media_type, &body).await
    }

    async fn delete(&mut self) {
        let key = self.random_key();
        let expected = self.random_precondition(&key);
        let path = format!("{}/{}", COLLECTIONS[key.collection].path, key.name);
        let body = expected.map_or(Value::Null, |expected| {
            let version = expected.revision.to_string();
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": version}})
        });
        let mark = WriteContent { write: self.shared.recorder.next_id(), group: 0, weight: 0 };
        self.operate(&key, Action::Delete(expected), mark, "DELETE", &path, JSON, &body).await;
    }

    async fn get(&mut self) {
        let key = self.random_key();
        let known = self.shared.observed_state.lock().random_revision(&mut self.random);
        let (at, query) = match (self.random.random_range(0..4), known) {
            (0, _) => (At::Any, "?resourceVersion=0".to_owned()),
            (1, Some(revision)) => (At::NotOlderThan(revision), format!("?resourceVersion={revision}")),
            _ => (At::MostRecent, String::new()),
        };
        let path = format!("{}/{}{query}", COLLECTIONS[key.collection].path, key.name);
        let mark = WriteContent { write: self.shared.recorder.next_id(), group: 0, weight: 0 };
        self.operate(&key, Action::Get(at), mark, "GET", &path, JSON, &Value::Null).await;
    }

    /// Sends an operation on one object and records its outcome. Returns the revision in the response, if
    /// any.
    async fn operate(
        &mut self,
        key: &Key,
        action: Action,
        mark: WriteContent,
        method: &str,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Option<u64> {
        // An operation that was not sent is not a part of the history.
        self.connect().await.ok()?;
        let begin = self.shared.recorder.now();
        let answer = self.ask(method, path, media_type, body).await;
        let end = self.shared.recorder.now();
        let (code, outcome) = match answer {
            Ok(answer) => (answer.code, self.outcome(key, action, &answer)),
            Err(_) => (0, Outcome::Unknown),
        };
        let revision = if let Outcome::Done(seen) = &outcome { Some(seen.revision) } else { None };
        if let Outcome::Done(seen) = &outcome {
            self.shared.observed_state.lock().observe(seen);
        }
        let WriteContent { write, group, .. } = mark;
        // The status code shows whether the PUT created or replaced the object.
        let action = match (action, code) {
            (Action::Put(_), 201) => Action::CreateByPut,
            (Action::Put(expected), 200 | 409) => Action::Write(Some(expected)),
            (action, _) => action,
        };
        let operation = Operation { id: write, begin, end, key: key.clone(), action, group, outcome };
        self.shared.recorder.record(|part| part.operations.push(operation));
        revision
    }

    /// Returns the outcome of a response.
    fn outcome(&self, key: &Key, action: Action, answer: &JsonResponse) -> Outcome {
        let refusal = || Outcome::Refused(answer.code, answer.body["message"].to_string());
        match (action, answer.code) {
            (Action::Delete(_), 200) => Outcome::Deleted,
            (_, 200 | 201) => match ObservedObject::read(&answer.body, &[key.collection]) {
                Ok(Some(seen)) => Outcome::Done(seen),
                Ok(None) => refusal(),
                Err(description) => {
                    self.record_violation(description);
                    Outcome::Unknown
                }
            },
            (Action::Create, 409) | (Action::CreateByPut, 409 | 422) => Outcome::Exists,
            // A failed `test` of a JSON patch returns 422.
            (Action::Write(Some(_)), 409 | 422) | (Action::Put(_) | Action::Delete(Some(_)), 409) => {
                Outcome::Conflict
            }
            (_, 404) => Outcome::Missing,
            (_, code) if self.shared.servers.is_undecided(code) => Outcome::Unknown,
            (Action::Get(_), _) | (_, 400..500) => {
                self.record_violation(format!("{action:?} {key} returns {}: {}", answer.code, answer.body));
                refusal()
            }
            // After a 5xx response, it is unknown whether the write took effect.
            _ => {
                self.record_violation(format!("{action:?} {key} returns {}: {}", answer.code, answer.body));
                Outcome::Unknown
            }
        }
    }

    fn record_violation(&self, description: String) {
        if !*self.shared.server_ended.borrow() {
            self.shared.recorder.record(|part| part.direct_violations.push(description));
        }
    }

    async fn delete_collection(&mut self) {
        let scope = self.random_scope(false);
        let begin = self.shared.recorder.now();
        let path = with_query(scope.path(), &scope.parameters());
        let answer = self.ask("DELETE", &path, JSON, &Value::Null).await;
        let end = self.shared.recorder.now();
        let removed = match answer {
            Ok(answer) if answer.code == 200 => Some(self.items(&answer, &scope).0),
            Ok(answer) if self.shared.servers.is_undecided(answer.code) => None,
            Ok(answer) => {
                self.record_violation(format!(
                    "deletecollection {scope} returns {}: {}",
                    answer.code, answer.body
                ));
                None
            }
            Err(_) => None,
        };
        self.shared
            .recorder
            .record(|part| part.removals.push(CollectionDelete { begin, end, scope, removed }));
    }

    fn random_scope(&mut self, wide: bool) -> Scope {
        let mut scope = if wide && self.random.random_bool(0.2) {
            Scope::all_namespaces()
        } else {
            Scope::whole(self.random.random_range(0..COLLECTIONS.len()))
        };
        if self.random.random_bool(0.4) {
            scope.groups = Some(random_groups(&mut self.random));
        }
        scope
    }

    /// Returns the objects of the model in a list response, and whether it contains other objects.
    fn items(&self, answer: &JsonResponse, scope: &Scope) -> (Vec<ObservedObject>, bool) {
        let (mut items, mut foreign) = (Vec::new(), false);
        for object in answer.body["items"].as_array().into_iter().flatten() {
            match ObservedObject::read(object, &scope.collections) {
                Ok(Some(seen)) => items.push(seen),
                Ok(None) => foreign = true,
                Err(description) => self.record_violation(description),
            }
        }
        (items, foreign)
    }

    async fn list(&mut self) {
        let scope = self.random_scope(true);
        let known = self.shared.observed_state.lock().random_revision(&mut self.random);
        let at = match (self.random.random_range(0..6), known) {
            (0, _) => At::Any,
            (1, Some(revision)) => At::NotOlderThan(revision),
            (2 | 3, Some(revision)) => At::Exact(revision),
            _ => At::MostRecent,
        };
        let limit = if self.random.random_bool(0.5) { self.random.random_range(1..5) } else { 0 };
        let list = self.read_list(scope, at, limit).await;
        self.shared.recorder.record(|part| part.lists.push(list));
    }

    /// Reads all pages of a list. `at` is the requested revision, `limit` the page size (0: one page).
    pub async fn read_list(&mut self, scope: Scope, at: At, limit: usize) -> List {
        let mut parameters = scope.parameters();
        if limit > 0 {
            parameters.push(format!("limit={limit}"));
        }
        let selectors = parameters.clone();
        match at {
            At::MostRecent => {}
            At::Any => parameters.push("resourceVersion=0".to_owned()),
            At::NotOlderThan(revision) => {
                parameters.push(format!("resourceVersion={revision}&resourceVersionMatch=NotOlderThan"));
            }
            // With a limit and without `resourceVersionMatch`, a resourceVersion is exact, too.
            At::Exact(revision) if limit > 0 && self.random.random_bool(0.5) => {
                parameters.push(format!("resourceVersion={revision}"));
            }
            At::Exact(revision) => {
                parameters.push(format!("resourceVersion={revision}&resourceVersionMatch=Exact"));
            }
        }
        let mut list =
            List { scope: scope.clone(), at, limit, pages: Vec::new(), ending: ListEnding::Complete };
        loop {
            if self.connect().await.is_err() {
                list.ending = ListEnding::Cut;
                return list;
            }
            let begin = self.shared.recorder.now();
            let answer = self.ask("GET", &with_query(scope.path(), &parameters), JSON, &Value::Null).await;
            let end = self.shared.recorder.now();
            let Ok(answer) = answer else {
                list.ending = ListEnding::Cut;
                return list;
            };
            match (answer.code, at) {
                (200, _) => {}
                (410, At::Exact(revision)) if list.pages.is_empty() => {
                    list.ending = ListEnding::Expired(end, revision);
                    return list;
                }
                // A page of a compacted version would begin a list that its client cannot compare (D-ERR-13).
                (410, At::NotOlderThan(revision)) if list.pages.is_empty() && limit > 0 => {
                    list.ending = ListEnding::Expired(end, revision);
                    return list;
                }
                (410, _) if !list.pages.is_empty() => {
                    list.ending = ListEnding::Expired(end, list.pages[0].revision);
                    return list;
                }
                (code, _) if self.shared.servers.is_undecided(code) => {
                    list.ending = ListEnding::Cut;
                    return list;
                }
                (code, at) => {
                    self.record_violation(format!("list {scope} {at:?} returns {code}: {}", answer.body));
                    list.ending = ListEnding::Cut;
                    return list;
                }
            }
            let metadata = &answer.body["metadata"];
            let text = metadata["resourceVersion"].as_str().unwrap_or_default();
            let Ok(revision) = text.parse() else {
                self.record_violation(format!("list {scope} has the version `{text}`"));
                return list;
            };
            let (items, foreign) = self.items(&answer, &scope);
            {
                let mut observed_state = self.shared.observed_state.lock();
                if at == At::MostRecent {
                    items.iter().for_each(|seen| observed_state.observe(seen));
                }
                observed_state.revisions.push(revision);
            }
            let remaining = metadata["remainingItemCount"].as_u64().map(|count| count as usize);
            list.pages.push(ListPage { begin, end, revision, items, foreign, remaining });
            let Some(token) = metadata["continue"].as_str().filter(|token| !token.is_empty()) else {
                return list;
            };
            parameters.clone_from(&selectors);
            parameters.push(format!("continue={token}"));
            if self.random.random_bool(0.3) {
                let pause = self.random.random_range(0..40);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
    }

    /// Lists every collection without a resourceVersion and records the lists.
    pub async fn list_all(&mut self) {
        for collection in 0..COLLECTIONS.len() {
            let list = self.read_list(Scope::whole(collection), At::MostRecent, 0).await;
            self.shared.recorder.record(|part| part.lists.push(list));
        }
    }

    /// Creates the namespaces.
    ///
    /// # Errors
    ///
    /// The server is down.
    pub async fn make_namespaces(&mut self) -> Result<(), Error> {
        for name in NAMESPACES {
            let body = json!({"metadata": {"name": name}});
            let answer = self.ask("POST", "/api/v1/namespaces", JSON, &body).await?;
            assert!([201, 409].contains(&answer.code), "namespace {name}: {}", answer.body);
        }
        Ok(())
    }

    /// Overflows the event buffer of the server by large writes to a Secret, which no watcher watches.
    pub async fn flood(mut self) {
        let begin = self.shared.recorder.now();
        let path = "/api/v1/namespaces/m-a/secrets";
        let create = json!({"metadata": {"name": "flood"}});
        for turn in 0..FLOOD.0 {
            let letter = char::from(b'A' + (turn % 26) as u8);
            let data = letter.to_string().repeat(FLOOD.1);
            let body = json!({"metadata": {"name": "flood"}, "data": {"much": data}});
            let put = self.ask("PUT", &format!("{path}/flood"), JSON, &body).await;
            let missing = matches!(&put, Ok(answer) if answer.code == 404);
            if put.is_err() || missing && self.ask("POST", path, JSON, &create).await.is_err() {
                break;
            }
        }
        let end = self.shared.recorder.now();
        self.shared.recorder.record(|part| part.floods.push((begin, end)));
    }

    /// Opens a connection if there is none. With several servers, a client changes its server at random.
    async fn connect(&mut self) -> Result<(), Error> {
        if self.connection.is_some() && !self.shared.servers.leaves(&mut self.random) {
            return Ok(());
        }
        let address = self.shared.servers.random(&mut self.random);
        let opening = Connection::open(address, self.protocol);
        let opened = match tokio::time::timeout(CONNECT_TIME_LIMIT, opening).await {
            Ok(opened) => opened,
            Err(late) => Err(late.into()),
        };
        if opened.is_err() {
            // The server may have ended; a pause avoids a busy loop until the session notices that.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.connection = Some(opened?);
        Ok(())
    }

    /// Sends a request over the existing or a new connection.
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<JsonResponse, Error> {
        if self.connection.is_none() {
            self.connect().await?;
        }
        let mut connection = self.connection.take().ok_or("no connection")?;
        let timed_response =
            tokio::time::timeout(REQUEST_TIME_LIMIT, connection.ask(method, path, media_type, body)).await;
        match timed_response {
            Ok(Ok(answer)) => {
                self.connection = Some(connection);
                Ok(answer)
            }
            Ok(Err(error)) => Err(error),
            Err(late) => {
                self.record_violation(format!("{method} {path} hangs for {REQUEST_TIME_LIMIT:?}"));
                Err(late.into())
            }
        }
    }
}

/// Returns one or two random groups.
pub fn random_groups(random: &mut SmallRng) -> Vec<usize> {
    let first = random.random_range(0..GROUPS.len());
    let second = random.random_range(0..GROUPS.len());
    if first == second { vec![first] } else { vec![first, second] }
}

/// Builds a path with its query.
pub fn with_query(path: &str, parameters: &[String]) -> String {
    if parameters.is_empty() { path.to_owned() } else { format!("{path}?{}", parameters.join("&")) }
}
