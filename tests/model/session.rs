//! Clients and watchers of one server, from its start to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinHandle;

use crate::model::clients::{Client, ObservedState, SharedClientState};
use crate::model::collections::{COLLECTIONS, GROUPS, Scope};
use crate::model::connection::Protocol;
use crate::model::history::{At, History, Recorder, Time};
use crate::model::server::Servers;
use crate::model::watchers::{Progress, Watcher, WatcherState};

/// Number of clients that read and write.
const CLIENTS: usize = 6;

/// Time limit for all watches to deliver the last writes.
const DELIVERY_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Time limit for the end of the tasks after the end of their server.
const TASK_END_TIME_LIMIT: Duration = Duration::from_secs(30);

/// The tasks of clients and watchers that run against one server.
pub struct Session {
    shared: Arc<SharedClientState>,
    progress: Arc<Progress>,
    random: SmallRng,
    clients: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<WatcherState>>,
}

impl Session {
    /// Starts the clients and resumes the watchers.
    pub async fn start(
        servers: &Arc<Servers>,
        recorder: &Arc<Recorder>,
        history: &History,
        cursors: &[WatcherState],
        mut random: SmallRng,
    ) -> Session {
        let shared = SharedClientState::new(servers, recorder, ObservedState::new(history.revisions()));
        // Records the initial state of the server.
        Client::new(Arc::clone(&shared), fork(&mut random), Protocol::Http1).list_all().await;
        let progress = Arc::new(Progress::default());
        let clients = (0..CLIENTS).map(|index| {
            let protocol = if index % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
            tokio::spawn(Client::new(Arc::clone(&shared), fork(&mut random), protocol).run())
        });
        let clients = clients.collect();
        let watchers = cursors.iter().map(|cursor| {
            let (cursor, shared, progress) = (cursor.clone(), Arc::clone(&shared), Arc::clone(&progress));
            let random = fork(&mut random);
            tokio::spawn(Watcher { cursor, shared, progress, random, is_shortest: false }.run())
        });
        let watchers = watchers.collect();
        Session { shared, progress, random, clients, watchers }
    }

    /// Starts a client that overflows the event buffer of the server by large writes that no watcher watches.
    pub fn flood(&mut self) {
        let client = Client::new(Arc::clone(&self.shared), fork(&mut self.random), Protocol::Http1);
        self.clients.push(tokio::spawn(client.flood()));
    }

    /// Stops the clients, then waits until every watch has delivered the last writes.
    pub async fn quiesce(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            client.await.expect("a client");
        }
        let mut fences: Vec<Vec<u64>> = Vec::new();
        let mut client = Client::new(Arc::clone(&self.shared), fork(&mut self.random), Protocol::Http2);
        for collection in 0..COLLECTIONS.len() {
            let mut group_fences = Vec::new();
            for group in 0..GROUPS.len() {
                let Some(fence) = client.fence(collection, group).await else {
                    let description = format!("the last write of {} was rejected", Scope::whole(collection));
                    self.shared.recorder.record(|part| part.direct_violations.push(description));
                    return;
                };
                self.shared.recorder.record(|part| part.fences.push((collection, fence)));
                group_fences.push(fence);
            }
            fences.push(group_fences);
        }
        let wait = async {
            while !self.lagging_watchers(&fences).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(DELIVERY_TIME_LIMIT, wait).await.is_err() {
            for scope in self.lagging_watchers(&fences) {
                let description = format!(
                    "Reliable: a watch of {scope} did not deliver the last write in {DELIVERY_TIME_LIMIT:?}"
                );
                self.shared.recorder.record(|part| part.direct_violations.push(description));
            }
        }
        client.list_all().await;
    }

    /// Returns the scopes of the watchers that have not received the last fence (the final write) of their
    /// scope.
    fn lagging_watchers(&self, fences: &[Vec<u64>]) -> Vec<String> {
        let progress = self.progress.lock();
        let behind = progress.values().filter(|(scope, reported)| {
            let fences_in_scope = |collection: &usize| {
                let group_fences = fences[*collection].iter().enumerate();
                group_fences.filter(|(group, _)| scope.selects(*group)).map(|(_, fence)| *fence)
            };
            let last = scope.collections.iter().flat_map(fences_in_scope).max().unwrap_or_default();
            scope.name.is_none() && *reported < last
        });
        behind.map(|(scope, _)| scope.to_string()).collect()
    }

    /// Ends the session after the server has ended, and adds its observations to `history`.
    ///
    /// `cut` is the time of a power cut, if there was one. Returns the states of the watchers.
    pub async fn end(
        self,
        recorder: &Recorder,
        cut: Option<Time>,
        history: &mut History,
    ) -> Vec<WatcherState> {
        self.shared.server_ended.send_replace(true);
        let ends = async {
            for client in self.clients {
                client.await.expect("a client");
            }
            let mut cursors = Vec::new();
            for watcher in self.watchers {
                cursors.push(watcher.await.expect("a watcher"));
            }
            cursors
        };
        let mut cursors =
            tokio::time::timeout(TASK_END_TIME_LIMIT, ends).await.expect("clients end with their server");
        history.append(recorder.take(), cut, recorder.now());
        cursors.iter_mut().for_each(|cursor| cursor.reset_to(history));
        cursors
    }
}

/// Reads all current and past data of a server. Returns the observations.
///
/// Each collection is listed at the newest revision, at past revisions and by pages. It is watched from the
/// revision at which it was empty.
pub async fn inspect(
    servers: &Arc<Servers>,
    recorder: &Arc<Recorder>,
    history: &History,
    base: &[u64],
    mut random: SmallRng,
) -> History {
    let shared = SharedClientState::new(servers, recorder, ObservedState::new(history.revisions()));
    let mut client = Client::new(Arc::clone(&shared), fork(&mut random), Protocol::Http2);
    client.list_all().await;
    for (collection, base) in base.iter().enumerate() {
        for _ in 0..3 {
            let known = shared.observed_state.lock().random_revision(&mut random);
            let at = known.filter(|known| known >= base).map_or(At::Any, At::Exact);
            let limit = random.random_range(0..4);
            let list = client.read_list(Scope::whole(collection), at, limit).await;
            recorder.record(|part| part.lists.push(list));
        }
    }
    let mut watches = Vec::new();
    for (collection, base) in base.iter().enumerate() {
        let cursor = WatcherState::steady(collection, collection, Protocol::Http1, *base);
        let (shared, progress) = (Arc::clone(&shared), Arc::new(Progress::default()));
        let watcher = Watcher { cursor, shared, progress, random: fork(&mut random), is_shortest: true };
        watches.push(tokio::spawn(watcher.run_once(*base)));
    }
    for watch in watches {
        watch.await.expect("a watcher");
    }
    recorder.take()
}

/// Derives an independent random generator from `random`.
pub fn fork(random: &mut SmallRng) -> SmallRng {
    SmallRng::seed_from_u64(random.random())
}
