//! A chapter: the history of one store over many consecutive servers, and the checks of this history.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::model::check::{self, Violation};
use crate::model::clients::{Client, ObservedState, SharedClientState};
use crate::model::collections::{COLLECTIONS, Scope};
use crate::model::connection::Protocol;
use crate::model::history::{At, History, Recorder, Time};
use crate::model::reconstructed_history::ReconstructedHistory;
use crate::model::server::{Server, ServerHome, Servers};
use crate::model::session::{Session, fork};
use crate::model::watchers::WatcherState;

/// Number of roaming watchers, which change to random scopes.
const ROAMING_WATCHERS: usize = 10;

/// Values of `--history-retention`: one is shorter than a chapter, so that the store compacts; one is longer.
const RETENTIONS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(600)];

/// Values of `--feature-gates`: lists of past revisions read the store, or snapshots of the watch cache.
pub const GATES: [&str; 2] = ["WatchList=true", "WatchList=true,ListFromCacheSnapshot=true"];

/// A store, the history of its clients, and the state that persists between its servers.
pub struct Chapter {
    /// Generator of the random choices.
    pub random: SmallRng,
    /// Time for which the store keeps its history at least.
    retention: Duration,
    /// Recorder of the current server.
    pub recorder: Arc<Recorder>,
    /// History before the current server.
    pub history: History,
    /// Interruptions of the store before the current server, such as power cuts, for the report.
    pub interruptions: String,
    /// States of the watchers between two servers.
    watcher_states: Vec<WatcherState>,
    /// For each collection, a revision at which it was empty.
    base: Vec<u64>,
}

impl Chapter {
    /// Creates a chapter on the empty store of one server below a directory.
    pub fn of_one_server(dir: &Path, seed: u64) -> (Chapter, ServerHome) {
        let mut random = SmallRng::seed_from_u64(seed);
        let retention = RETENTIONS[random.random_range(0..RETENTIONS.len())];
        let gates = GATES[random.random_range(0..GATES.len())];
        (Chapter::new(random, retention), ServerHome::new(dir, retention, gates))
    }

    /// Creates a chapter on an empty store that keeps its history at least for `retention`.
    pub fn new(random: SmallRng, retention: Duration) -> Chapter {
        Chapter {
            random,
            retention,
            recorder: Arc::new(Recorder::new()),
            history: History::default(),
            interruptions: String::new(),
            watcher_states: Vec::new(),
            base: Vec::new(),
        }
    }

    /// Starts a server on the current store.
    ///
    /// # Panics
    ///
    /// The server does not start.
    pub async fn start(&mut self, home: &mut ServerHome) -> Server {
        match home.start().await {
            Ok(server) => server,
            Err(refusal) => panic!(
                "Start: the server does not start on the existing store, {} ({:?}):\n{}",
                self.interruptions,
                refusal.status,
                tail(&refusal.log)
            ),
        }
    }

    /// Starts clients and watchers. The first call creates the namespaces and the watchers.
    pub async fn start_session(&mut self, servers: &Arc<Servers>) -> Session {
        if self.base.is_empty() {
            self.prepare(servers).await;
        }
        let random = fork(&mut self.random);
        Session::start(servers, &self.recorder, &self.history, &self.watcher_states, random).await
    }

    /// Creates the namespaces, records the revisions of the empty collections, and creates the watchers.
    async fn prepare(&mut self, servers: &Arc<Servers>) {
        let shared = SharedClientState::new(servers, &self.recorder, ObservedState::default());
        let mut client = Client::new(shared, fork(&mut self.random), Protocol::Http1);
        client.make_namespaces().await.expect("the server runs");
        for collection in 0..COLLECTIONS.len() {
            let list = client.read_list(Scope::whole(collection), At::MostRecent, 0).await;
            let page = list.pages.first().expect("a list of an empty collection");
            assert!(page.items.is_empty(), "the store is not new");
            self.base.push(page.revision);
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let id = self.watcher_states.len();
                self.watcher_states.push(WatcherState::steady(id, collection, protocol, page.revision));
            }
        }
        for index in 0..ROAMING_WATCHERS {
            let protocol = if index % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
            self.watcher_states.push(WatcherState::roaming(self.watcher_states.len(), protocol));
        }
    }

    /// Ends a session, whose server must have ended, and adds its observations to the history.
    ///
    /// `cut` is the time of the power cut that ended the server, if any.
    pub async fn end_session(&mut self, session: Session, cut: Option<Time>) {
        self.watcher_states = session.end(&self.recorder, cut, &mut self.history).await;
    }

    /// Runs all checks on the history of this chapter.
    ///
    /// # Errors
    ///
    /// The violations, with the relevant part of the history.
    pub fn check_history(&self) -> Result<(), String> {
        self.check_continued_history(&self.history)
    }

    /// Checks a history that continues the history of this chapter.
    ///
    /// # Errors
    ///
    /// The violations, with the relevant part of the history.
    pub fn check_continued_history(&self, history: &History) -> Result<(), String> {
        check::check_all(history, &self.base, self.retention).map_err(|violations| {
            // Report one violation of each check, because more of them say little.
            let mut checks = Vec::new();
            let is_first_of_check = |violation: &&Violation| {
                let is_new = !checks.contains(&violation.check);
                checks.push(violation.check);
                is_new
            };
            let lines: Vec<String> =
                violations.iter().filter(is_first_of_check).map(ToString::to_string).collect();
            format!("{} violations\n{}", violations.len(), lines.join("\n"))
        })
    }

    /// Returns for each collection a revision at which it was empty.
    pub fn base(&self) -> &[u64] {
        &self.base
    }

    /// Returns the numbers of operations, lists, watches and watch events, for the report.
    pub fn size(&self) -> String {
        let (reconstructed, _) = ReconstructedHistory::new(&self.history, &self.base);
        let unknown_changes = match reconstructed.uncovered().count() {
            0 => String::new(),
            count => format!("; {count} of {} collections not known to the end", COLLECTIONS.len()),
        };
        let History { operations, lists, streams, .. } = &self.history;
        let notices: usize = streams.iter().map(|stream| stream.notices.len()).sum();
        format!(
            "{} operations, {} lists, {} watches with {notices} notices{unknown_changes}",
            operations.len(),
            lists.len(),
            streams.len()
        )
    }
}

/// Returns the last 3,000 bytes of a log.
pub fn tail(log: &str) -> &str {
    let from = log.len().saturating_sub(3000);
    log.get(log.ceil_char_boundary(from)..).unwrap_or_default()
}
