//! Reflector of a background task: reports the objects of a collection, then every change.

use std::sync::Arc;
use std::time::Duration;

use kinds::entry::Entry;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::stored;
use crate::server_state::Items;

/// Pause before the reflector lists and watches again.
const PAUSE: Duration = Duration::from_secs(1);

/// A notification about an object.
#[derive(Clone, Copy)]
pub(super) enum ObjectEvent<'a> {
    /// The object exists; its current state.
    Exists(&'a Entry),
    /// The object was deleted; its last state.
    Deleted(&'a Entry),
}

/// Calls `observe` for every existing object of a collection, then for every change in order.
///
/// After a failed watch, the reflector lists and watches again. `observe` may then get an unchanged object
/// again, and gets no deletion between the failure and the new watch. The reflector returns when the kind is
/// no longer served. Objects that cannot be decoded are skipped.
pub(super) async fn reflect(items: Arc<Items>, mut observe: impl FnMut(ObjectEvent<'_>) + Send) {
    loop {
        if let Err(reason) = reflect_once(&items, &mut observe).await {
            tracing::debug!(prefix = %items.prefix(), %reason, "watch of a background task failed; listing again");
        }
        // The kind is not served any more, or its definition changed.
        if items.is_retired() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends the names of all objects of a cluster-scoped kind, then the name of each created or changed object.
/// The caller must await the future, as that of [`reflect`].
pub(super) fn follow_names(items: &Arc<Items>) -> (impl Future<Output = ()>, UnboundedReceiver<String>) {
    let (sender, names) = unbounded_channel();
    let follow = reflect(Arc::clone(items), move |event| {
        if let ObjectEvent::Exists(entry) = event {
            let _ = sender.send(entry.name().to_owned());
        }
    });
    (follow, names)
}

async fn reflect_once(
    items: &Arc<Items>,
    observe: &mut (impl FnMut(ObjectEvent<'_>) + Send),
) -> Result<(), String> {
    let prefix = items.prefix().to_string();
    let (snapshot, mut watcher) = items.snapshot_and_watch(&prefix).await.map_err(|e| e.to_string())?;
    for item in snapshot.scope(&prefix, "") {
        if let Some(entry) = stored::entry(item) {
            observe(ObjectEvent::Exists(entry));
        }
    }
    drop(snapshot);
    loop {
        for event in watcher.next().await.map_err(|e| e.to_string())? {
            match (event.before(), event.after()) {
                (_, Some(after)) => {
                    if let Some(entry) = stored::entry(after) {
                        observe(ObjectEvent::Exists(entry));
                    }
                }
                (Some(before), None) => {
                    if let Some(entry) = stored::entry(before) {
                        observe(ObjectEvent::Deleted(entry));
                    }
                }
                (None, None) => {}
            }
        }
    }
}
