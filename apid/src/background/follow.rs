//! A collection as a loop sees it: what is there, and then every change, for ever.

use std::sync::Arc;
use std::time::Duration;

use kinds::entry::Entry;

use super::stored;
use crate::plane::Items;

/// After a watch that broke.
const PAUSE: Duration = Duration::from_secs(1);

/// What a loop is told.
#[derive(Clone, Copy)]
pub(super) enum Seen<'a> {
    /// The object is there, as it is now.
    There(&'a Entry),
    /// The object is gone; as it was.
    Gone(&'a Entry),
}

/// Tells of every object of a collection as it is, then of every change in order. When the watch breaks it begins anew:
/// an object may be told of twice, and one that went meanwhile is not told of as gone. An object that cannot be read is
/// passed over.
pub(super) async fn follow(items: Arc<Items>, mut see: impl FnMut(Seen<'_>) + Send) {
    loop {
        if let Err(reason) = follow_once(&items, &mut see).await {
            tracing::debug!(prefix = %items.prefix(), %reason, "a loop reads its objects anew");
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
