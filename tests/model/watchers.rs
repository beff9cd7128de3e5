//! Watchers: clients that watch a scope with one stream after the other. Steady watchers follow a whole
//! collection without a gap. Roaming watchers at random continue a stream or change to a random scope.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use serde_json::Value;

use crate::model::clients::{SharedClientState, random_groups, with_query};
use crate::model::collections::{COLLECTIONS, NAMES, ObservedObject, Scope};
use crate::model::connection::{Connection, Lines, Protocol};
use crate::model::history::{At, History, Notice, Start, Stream, StreamEnding};

/// State of a watcher that persists over streams and servers.
#[derive(Clone)]
pub struct WatcherState {
    /// Number of the watcher.
    pub id: usize,
    /// Whether the watcher is steady: it follows a whole collection without a gap.
    pub steady: bool,
    scope: Scope,
    protocol: Protocol,
    /// Numbers of the previous streams.
    streams: Vec<u64>,
    /// Revision at which a steady watcher starts.
    base: u64,
    position: Option<u64>,
}

/// Scope of each watcher and the last revision that it received, by number of the watcher.
pub type Progress = Mutex<BTreeMap<usize, (Scope, u64)>>;

impl WatcherState {
    /// Creates a steady watcher of a collection. `base` is a revision at which the collection was empty.
    pub fn steady(id: usize, collection: usize, protocol: Protocol, base: u64) -> WatcherState {
        let scope = Scope::whole(collection);
        WatcherState { id, steady: true, scope, protocol, streams: Vec::new(), base, position: Some(base) }
    }

    /// Creates a roaming watcher.
    pub fn roaming(id: usize, protocol: Protocol) -> WatcherState {
        let scope = Scope::whole(0);
        WatcherState { id, steady: false, scope, protocol, streams: Vec::new(), base: 0, position: None }
    }

    /// Resets the position to the last observation in the history, because a power cut removes later ones.
    pub fn reset_to(&mut self, history: &History) {
        self.streams.retain(|id| history.streams.iter().any(|stream| stream.id == *id));
        let stream_by_id = |id: &u64| history.streams.iter().find(|stream| stream.id == *id);
        let last = self.streams.last().and_then(stream_by_id);
        self.position = match last {
            Some(stream) if matches!(stream.ending, StreamEnding::Expired(_)) => None,
            Some(stream) if self.steady || stream.ending == StreamEnding::Closed => stream.position(),
            Some(_) => None,
            None => self.steady.then_some(self.base),
        };
    }

    /// Sets the position after the end of a watch that was too slow for the event buffer.
    ///
    /// A steady watcher keeps its position, because the store still has the history.
    fn continue_after_overflow(&mut self) {
        if !self.steady {
            self.position = None;
        }
    }
}

/// Watcher of one server.
pub struct Watcher {
    /// The state of the watcher, which persists over servers.
    pub cursor: WatcherState,
    /// State shared with the clients.
    pub shared: Arc<SharedClientState>,
    /// Progress of all watchers.
    pub progress: Arc<Progress>,
    /// Generator of the random choices.
    pub random: SmallRng,
    /// Whether each stream requests bookmarks and a timeout of one second, the shortest possible.
    pub is_shortest: bool,
}

impl Watcher {
    /// Runs streams one after the other until the server ends. Returns the state for the next server.
    pub async fn run(mut self) -> WatcherState {
        let mut server_ended = self.shared.server_ended.subscribe();
        let mut connection = None;
        while !*server_ended.borrow_and_update() {
            let (start, resumes) = self.next_start();
            tokio::select! {
                biased;
                _ = server_ended.wait_for(|ended| *ended) => {}
                () = self.run_stream(&mut connection, start, resumes) => {}
            }
        }
        self.cursor
    }

    /// Runs one stream from a revision to the bookmark that the server sends before the timeout.
    pub async fn run_once(mut self, after: u64) {
        self.is_shortest = true;
        self.run_stream(&mut None, Start::After(after), None).await;
    }

    /// Returns the start position of the next stream, and the number of the stream that it continues, if any.
    fn next_start(&mut self) -> (Start, Option<u64>) {
        let cursor = &mut self.cursor;
        let resumes = cursor.streams.last().copied();
        if let Some(position) = cursor.position
            && (cursor.steady || self.random.random_bool(0.5))
        {
            return (Start::After(position), resumes);
        }
        if !cursor.steady {
            cursor.scope = random_scope(&mut self.random);
        }
        let known = self.shared.observed_state.lock().random_revision(&mut self.random);
        let start = match (self.random.random_range(0..8), known) {
            (0, _) => Start::State(At::MostRecent),
            (1, _) => Start::State(At::Any),
            (2 | 3, _) => Start::Streamed,
            (_, Some(revision)) => Start::After(revision),
            (_, None) => Start::Streamed,
        };
        (start, None)
    }

    /// Runs one stream to its end and records it. A stream whose future is dropped is also recorded.
    async fn run_stream(&mut self, connection: &mut Option<Connection>, start: Start, resumes: Option<u64>) {
        let recorder = Arc::clone(&self.shared.recorder);
        let bookmarks = self.is_shortest || start == Start::Streamed || self.random.random_bool(0.6);
        let stream = Stream {
            id: recorder.next_id(),
            scope: self.cursor.scope.clone(),
            start,
            resumes,
            bookmarks,
            begin: recorder.now(),
            notices: Vec::new(),
            ending: StreamEnding::Closed,
        };
        let from = if let Start::After(revision) = start { revision } else { 0 };
        self.progress.lock().insert(self.cursor.id, (stream.scope.clone(), from));
        self.cursor.streams.push(stream.id);
        let mut open = OpenStream { shared: Arc::clone(&self.shared), stream: Some(stream) };
        let query = self.watch_path(start, bookmarks);
        // An HTTP/1.1 connection serves only one watch, so only HTTP/2 connections are used again.
        let is_reused =
            self.cursor.protocol == Protocol::Http2 && !self.shared.servers.leaves(&mut self.random);
        let opened = match connection.take().filter(|_| is_reused) {
            Some(connection) => Ok(connection),
            None => {
                let address = self.shared.servers.random(&mut self.random);
                Connection::open(address, self.cursor.protocol).await
            }
        };
        let Ok(mut opened) = opened else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            return;
        };
        let Ok(response) = opened.send("GET", &query, "application/json", Bytes::new()).await else { return };
        let code = response.status().as_u16();
        let mut lines = Lines::new(response.into_body());
        if code != 200 {
            if code == 410 {
                open.end(StreamEnding::Expired(recorder.now()));
            } else if self.shared.servers.is_undecided(code) {
                return;
            } else {
                open.record_violation(&format!("{query} returns {code}"));
            }
            self.cursor.position = None;
            return;
        }
        let leave = match !self.is_shortest && self.random.random_bool(0.4) {
            true => Duration::from_millis(self.random.random_range(20..1000)),
            false => Duration::from_secs(600),
        };
        let leave = tokio::time::sleep(leave);
        tokio::pin!(leave);
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = &mut leave => None,
            };
            let Some(line) = line else { break };
            match self.parse_line(&line) {
                Ok(Some(notice)) => {
                    self.progress
                        .lock()
                        .insert(self.cursor.id, (self.cursor.scope.clone(), notice.revision()));
                    self.shared.observed_state.lock().revisions.push(notice.revision());
                    open.record_notice(notice);
                }
                Ok(None) => {}
                Err(410) => {
                    if open.expire() {
                        self.cursor.position = None;
                    } else {
                        self.cursor.continue_after_overflow();
                    }
                    break;
                }
                Err(code) if self.shared.servers.is_undecided(code.try_into().unwrap_or_default()) => break,
                Err(code) => {
                    open.record_violation(&format!("{query} delivers an error {code}: {line}"));
                    self.cursor.position = None;
                    return;
                }
            }
            self.cursor.position = open.position();
        }
        if self.cursor.protocol == Protocol::Http2 {
            *connection = Some(opened);
        }
    }

    fn watch_path(&mut self, start: Start, bookmarks: bool) -> String {
        let mut parameters = self.cursor.scope.parameters();
        parameters.push("watch=1".to_owned());
        let seconds = if self.is_shortest { 1 } else { self.random.random_range(2..7) };
        parameters.push(format!("timeoutSeconds={seconds}"));
        if bookmarks {
            parameters.push("allowWatchBookmarks=true".to_owned());
        }
        match start {
            Start::After(revision) => parameters.push(format!("resourceVersion={revision}")),
            Start::State(At::Any) => parameters.push("resourceVersion=0".to_owned()),
            Start::State(_) => {}
            Start::Streamed => {
                parameters.push("sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned());
            }
        }
        with_query(self.cursor.scope.path(), &parameters)
    }

    /// Parses a line of a watch. Returns None if the object does not belong to the model. Err: the code of an ERROR
    /// event.
    fn parse_line(&self, line: &Value) -> Result<Option<Notice>, u64> {
        let object = &line["object"];
        let parse_object = || -> Result<Option<ObservedObject>, u64> {
            match ObservedObject::read(object, &self.cursor.scope.collections) {
                Ok(seen) => Ok(seen),
                Err(description) => {
                    self.shared.recorder.record(|part| part.direct_violations.push(description));
                    Ok(None)
                }
            }
        };
        Ok(match line["type"].as_str().unwrap_or_default() {
            "ADDED" => parse_object()?.map(Notice::Added),
            "MODIFIED" => parse_object()?.map(Notice::Modified),
            "DELETED" => parse_object()?.map(Notice::Deleted),
            "BOOKMARK" => {
                let metadata = &object["metadata"];
                let revision = metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok());
                let annotations = metadata["annotations"].as_object();
                let initial = annotations
                    .is_some_and(|map| map.keys().any(|name| name.ends_with("initial-events-end")));
                Some(Notice::Bookmark { revision: revision.unwrap_or_default(), initial })
            }
            _ => return Err(object["code"].as_u64().unwrap_or_default()),
        })
    }
}

/// An open stream, which is recorded when it ends or is dropped.
struct OpenStream {
    shared: Arc<SharedClientState>,
    stream: Option<Stream>,
}

impl OpenStream {
    fn record_notice(&mut self, notice: Notice) {
        let now = self.shared.recorder.now();
        if let Some(stream) = &mut self.stream {
            stream.notices.push((now, notice));
        }
    }

    fn position(&self) -> Option<u64> {
        self.stream.as_ref().and_then(Stream::position)
    }

    fn end(&mut self, ending: StreamEnding) {
        if let Some(stream) = &mut self.stream {
            stream.ending = ending;
        }
    }

    /// Ends the stream after a 410. Returns whether no event came before the 410.
    fn expire(&mut self) -> bool {
        let now = self.shared.recorder.now();
        let begun = self.stream.as_ref().is_some_and(|stream| !stream.notices.is_empty());
        self.end(if begun { StreamEnding::Lagged(now) } else { StreamEnding::Expired(now) });
        !begun
    }

    fn record_violation(&self, description: &str) {
        if !*self.shared.server_ended.borrow() {
            self.shared.recorder.record(|part| part.direct_violations.push(description.to_owned()));
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let stream = self.stream.take();
        self.shared.recorder.record(|part| part.streams.extend(stream));
    }
}

fn random_scope(random: &mut SmallRng) -> Scope {
    let mut scope = if random.random_bool(0.25) {
        Scope::all_namespaces()
    } else {
        Scope::whole(random.random_range(0..COLLECTIONS.len()))
    };
    match random.random_range(0..10) {
        0..4 => scope.groups = Some(random_groups(random)),
        4 if scope.collections.len() == 1 => scope.name = NAMES.choose(random).copied(),
        _ => {}
    }
    scope
}
