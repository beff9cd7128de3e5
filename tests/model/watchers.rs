//! Watchers: clients that follow a scope, stream after stream. Steady ones follow a whole collection without a gap; the
//! others come, go and begin anew as they please.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use serde_json::Value;

use crate::clients::{World, some_groups, with_query};
use crate::collections::{COLLECTIONS, NAMES, Scope, Seen};
use crate::connection::{Connection, Lines, Protocol};
use crate::history::{At, History, Notice, Start, Stream, StreamEnding};

/// What a watcher remembers from one stream to the next, and from one server to the next.
#[derive(Clone)]
pub struct Cursor {
    /// Its number.
    pub id: usize,
    /// Whether it follows a whole collection without a gap.
    pub steady: bool,
    scope: Scope,
    protocol: Protocol,
    /// Its streams so far.
    streams: Vec<u64>,
    /// Where a steady one begins.
    base: u64,
    position: Option<u64>,
}

/// How far each watcher is, for those who wait for them.
pub type Progress = Mutex<BTreeMap<usize, (Scope, u64)>>;

impl Cursor {
    /// Follows a whole collection from a version at which it was empty.
    pub fn steady(id: usize, collection: usize, protocol: Protocol, base: u64) -> Cursor {
        let scope = Scope::whole(collection);
        Cursor { id, steady: true, scope, protocol, streams: Vec::new(), base, position: Some(base) }
    }

    /// Comes and goes.
    pub fn roaming(id: usize, protocol: Protocol) -> Cursor {
        let scope = Scope::whole(0);
        Cursor { id, steady: false, scope, protocol, streams: Vec::new(), base: 0, position: None }
    }

    /// Goes back to what the history has: a power cut takes what was told after it.
    pub fn recall(&mut self, history: &History) {
        self.streams.retain(|id| history.streams.iter().any(|stream| stream.id == *id));
        let of = |id: &u64| history.streams.iter().find(|stream| stream.id == *id);
        let last = self.streams.last().and_then(of);
        self.position = match last {
            Some(stream) if matches!(stream.ending, StreamEnding::Expired(_)) => None,
            Some(stream) if self.steady || stream.ending == StreamEnding::Closed => stream.position(),
            Some(_) => None,
            None => self.steady.then_some(self.base),
        };
    }

    /// It was too slow for the server's memory. A steady one goes on where it was all the same: the store still knows.
    fn lag(&mut self) {
        if !self.steady {
            self.position = None;
        }
    }
}

/// A watcher of one server.
pub struct Watcher {
    /// What it remembers.
    pub cursor: Cursor,
    /// The others.
    pub world: Arc<World>,
    /// Where it says how far it is.
    pub progress: Arc<Progress>,
    /// Its choices.
    pub random: SmallRng,
    /// Its streams last a second, and say at their end how far they are.
    pub shortest: bool,
}

impl Watcher {
    /// Follows its scope until the server is gone.
    pub async fn run(mut self) -> Cursor {
        let mut over = self.world.over.subscribe();
        let mut connection = None;
        while !*over.borrow_and_update() {
            let (start, resumes) = self.next_start();
            tokio::select! {
                biased;
                _ = over.wait_for(|over| *over) => {}
                () = self.follow(&mut connection, start, resumes) => {}
            }
        }
        self.cursor
    }

    /// One watch from a revision to the bookmark before its end.
    pub async fn once(mut self, after: u64) {
        self.shortest = true;
        self.follow(&mut None, Start::After(after), None).await;
    }

    /// Goes on where it is, or somewhere else.
    fn next_start(&mut self) -> (Start, Option<u64>) {
        let cursor = &mut self.cursor;
        let resumes = cursor.streams.last().copied();
        if let Some(position) = cursor.position
            && (cursor.steady || self.random.random_bool(0.5))
        {
            return (Start::After(position), resumes);
        }
        if !cursor.steady {
            cursor.scope = some_scope(&mut self.random);
        }
        let known = self.world.knowledge.lock().some_revision(&mut self.random);
        let start = match (self.random.random_range(0..8), known) {
            (0, _) => Start::State(At::MostRecent),
            (1, _) => Start::State(At::Any),
            (2 | 3, _) => Start::Streamed,
            (_, Some(revision)) => Start::After(revision),
            (_, None) => Start::Streamed,
        };
        (start, None)
    }

    /// One stream, to its end; what was told before it was cut off is taken down, too.
    async fn follow(&mut self, connection: &mut Option<Connection>, start: Start, resumes: Option<u64>) {
        let recorder = Arc::clone(&self.world.recorder);
        let bookmarks = self.shortest || start == Start::Streamed || self.random.random_bool(0.6);
        let stream = Stream {
            id: recorder.id(),
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
        let mut open = Open { world: Arc::clone(&self.world), stream: Some(stream) };
        let query = self.query(start, bookmarks);
        // HTTP/1.1 carries nothing beside a watch.
        let usable = connection.take().filter(|_| self.cursor.protocol == Protocol::Http2);
        let opened = match usable {
            Some(connection) => Ok(connection),
            None => Connection::open(self.world.address, self.cursor.protocol).await,
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
            } else {
                open.complain(&format!("{query} is answered {code}"));
            }
            self.cursor.position = None;
            return;
        }
        let leave = match !self.shortest && self.random.random_bool(0.4) {
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
            match self.read(&line) {
                Ok(Some(notice)) => {
                    self.progress
                        .lock()
                        .insert(self.cursor.id, (self.cursor.scope.clone(), notice.revision()));
                    self.world.knowledge.lock().revisions.push(notice.revision());
                    open.tell(notice);
                }
                Ok(None) => {}
                Err(410) => {
                    if open.expire() {
                        self.cursor.position = None;
                    } else {
                        self.cursor.lag();
                    }
                    break;
                }
                Err(code) => {
                    open.complain(&format!("{query} tells of an error {code}: {line}"));
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

    fn query(&mut self, start: Start, bookmarks: bool) -> String {
        let mut parameters = self.cursor.scope.parameters();
        parameters.push("watch=1".to_owned());
        let seconds = if self.shortest { 1 } else { self.random.random_range(2..7) };
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

    /// What a line says; None when it is of no object of the model; the code of an error.
    fn read(&self, line: &Value) -> Result<Option<Notice>, u64> {
        let object = &line["object"];
        let seen = || -> Result<Option<Seen>, u64> {
            match Seen::read(object, &self.cursor.scope.collections) {
                Ok(seen) => Ok(seen),
                Err(what) => {
                    self.world.recorder.note(|part| part.complaints.push(what));
                    Ok(None)
                }
            }
        };
        Ok(match line["type"].as_str().unwrap_or_default() {
            "ADDED" => seen()?.map(Notice::Added),
            "MODIFIED" => seen()?.map(Notice::Modified),
            "DELETED" => seen()?.map(Notice::Deleted),
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

/// A stream that is taken down when it ends, however it does.
struct Open {
    world: Arc<World>,
    stream: Option<Stream>,
}

impl Open {
    fn tell(&mut self, notice: Notice) {
        let now = self.world.recorder.now();
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

    /// 410 in the stream: in its course, or in the place of its beginning. Answers whether it did not begin.
    fn expire(&mut self) -> bool {
        let now = self.world.recorder.now();
        let begun = self.stream.as_ref().is_some_and(|stream| !stream.notices.is_empty());
        self.end(if begun { StreamEnding::Lagged(now) } else { StreamEnding::Expired(now) });
        !begun
    }

    fn complain(&self, what: &str) {
        if !*self.world.over.borrow() {
            self.world.recorder.note(|part| part.complaints.push(what.to_owned()));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let stream = self.stream.take();
        self.world.recorder.note(|part| part.streams.extend(stream));
    }
}

fn some_scope(random: &mut SmallRng) -> Scope {
    let mut scope = if random.random_bool(0.25) {
        Scope::all_namespaces()
    } else {
        Scope::whole(random.random_range(0..COLLECTIONS.len()))
    };
    match random.random_range(0..10) {
        0..4 => scope.groups = Some(some_groups(random)),
        4 if scope.collections.len() == 1 => scope.name = NAMES.choose(random).copied(),
        _ => {}
    }
    scope
}
