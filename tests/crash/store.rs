//! The store under test: how it is opened here, and reading all that it holds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::SystemClock;
use storage::engine::fjall::{FjallStore, Identity, OpenError, Options};
use storage::{Change, Error, Observer, Page, Result, Revision, Row, Store};

struct Unobserved;

impl Observer for Unobserved {
    fn observe(&self, _: &[Change]) {}
}

/// Opens the store: with memtables so small that they are flushed and compacted all the time, and with a history that
/// is trimmed as it grows, or kept.
pub fn open(dir: &Path, trimmed: bool) -> Result<FjallStore, OpenError> {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let mut options = Options::new(dir, identity, Arc::new(SystemClock::new()));
    options.memtable_bytes = 256 << 10;
    options.reserve_bytes = 0;
    if trimmed {
        options.history_retention = Duration::from_millis(50);
    }
    FjallStore::open(options, Arc::new(Unobserved))
}

/// Trims again and again: the store itself does it once a second, longer than most runs here.
pub async fn trim(store: Arc<FjallStore>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        // An error says that the store is closing.
        let _ = store.maintain().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a store holds.
pub struct Held {
    pub rows: Vec<Row>,
    pub revision: Revision,
    /// All changes after a revision; None if some are compacted.
    pub history: Option<Vec<Change>>,
}

/// Reads all rows, in pages, and the history after a revision.
pub async fn held(store: &FjallStore, after: Revision) -> Result<Held> {
    let mut rows = Vec::new();
    let mut page = store.range("", "", 100, None).await?;
    let revision = page.revision;
    loop {
        let Page { rows: more_rows, more, .. } = page;
        rows.extend(more_rows);
        match rows.last() {
            Some(last) if more => {
                let start = format!("{}\0", last.key);
                page = store.range("", &start, 100, Some(revision)).await?;
            }
            _ => break,
        }
    }
    let history = match changes(store, after, revision).await {
        Ok(changes) => Some(changes),
        Err(Error::Compacted { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(Held { rows, revision, history })
}

async fn changes(store: &FjallStore, after: Revision, upto: Revision) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut newest = after;
    let mut watch = store.watch("", after).await?;
    while newest < upto {
        changes.extend(watch.next().await?);
        newest = changes.last().map_or(newest, |change| change.revision);
    }
    Ok(changes)
}
