//! Reflector of a background task: the objects of a collection, then every change.

use std::sync::Arc;
use std::time::Duration;

use kinds::entry::Entry;

use super::stored;
use crate::plane::Items;

/// Pause after a failed watch.
const PAUSE: Duration = Duration::from_secs(1);

/// A notification about an object.
#[derive(Clone, Copy)]
pub(super) enum Seen<'a> {
    /// The object exists; its current state.
    There(&'a Entry),
    /// The object was deleted; its last state.
    Gone(&'a Entry),
}

/// Calls `see` for every existing object of a collection, then for every change in order.
///
/// After a failed watch, the reflector lists and watches again: an object may be reported twice, and a
/// deletion during the gap is not reported. Objects that cannot be decoded are skipped.
pub(super) async fn follow(items: Arc<Items>, mut see: impl FnMut(Seen<'_>) + Send) {
    loop {
        if let Err(reason) = follow_once(&items, &mut see).await {
            tracing::debug!(prefix = %items.prefix(), %reason, "watch of a background task failed; listing again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(items: &Arc<Items>, see: &mut (impl FnMut(Seen<'_>) + Send)) -> Result<(), String> {
    let prefix = items.prefix().to_string();
    let (snapshot, mut watcher) = items.snapshot_and_watch(&prefix).await.map_err(|e| e.to_string())?;
    for item in snapshot.scope(&prefix, "") {
        if let Some(entry) = stored::entry(item) {
            see(Seen::There(entry));
        }
    }
    drop(snapshot);
    loop {
        for event in watcher.next().await.map_err(|e| e.to_string())? {
            match (event.before(), event.after()) {
                (_, Some(after)) => {
                    if let Some(entry) = stored::entry(after) {
                        see(Seen::There(entry));
                    }
                }
                (Some(before), None) => {
                    if let Some(entry) = stored::entry(before) {
                        see(Seen::Gone(entry));
                    }
                }
                (None, None) => {}
            }
        }
    }
}
