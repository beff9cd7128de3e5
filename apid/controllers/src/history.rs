//! Expiry of history in an idle server.
//!
//! # Contract
//!
//! The newest revision of a store is always readable, so without writes a continue token would never expire.
//! When nothing was written for a quarter of the history retention, this task writes one internal row. The
//! revisions before that row expire after the retention, as with the periodic compaction record of the
//! reference. A continue token therefore expires at most one and a half retentions after its revision. An
//! idle store thus gets one revision and one fsync in each interval, as long as the process runs.
//!
//! The task also evicts compacted events from the watch cache, which frees their memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use storage::{Error, Op, Revision, Store};

use verbs::ApiState;

/// Key of the internal row; outside the key prefixes of all kinds.
const MARKER: &str = "/apid/history-marker";

/// Number of checks for an idle store in one history retention.
const INTERVALS: u32 = 4;

/// Minimum interval between two internal rows.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// Writes the internal row after each interval without other writes, until the process ends.
pub(super) async fn run(api_state: Arc<ApiState>, retention: Duration) {
    let interval = (retention / INTERVALS).max(MIN_INTERVAL);
    let mut last = api_state.store.revision();
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = advance_if_idle(&*api_state.store, &mut last).await {
            tracing::debug!(%error, "writing the history marker failed; old revisions stay readable");
        }
        api_state.cache.evict_compacted();
        if let Some(separate) = &api_state.separate_store {
            separate.cache.evict_compacted();
        }
    }
}

/// Writes the internal row if the store is still at the revision `last`. Sets `last` to the newest revision.
async fn advance_if_idle(store: &dyn Store, last: &mut Revision) -> Result<(), Error> {
    if store.revision() == *last {
        let op = match store.get(MARKER, None).await? {
            Some(row) => Op::Update(Bytes::new(), row.revision),
            None => Op::Create(Bytes::new()),
        };
        store.commit(MARKER, op).await?;
    }
    *last = store.revision();
    Ok(())
}

#[cfg(test)]
mod tests {
    use storage::Observers;
    use storage::engine::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn idle_store_advances_once_an_interval() {
        let store = MemoryStore::new(Arc::new(Observers(Vec::new())));
        let mut last = store.revision();
        for written in 1..=2 {
            advance_if_idle(&store, &mut last).await.unwrap();
            assert_eq!((store.revision(), last), (Revision(written), Revision(written)));
        }
        let mut stale = Revision(1);
        advance_if_idle(&store, &mut stale).await.unwrap();
        assert_eq!(
            (store.revision(), stale),
            (Revision(2), Revision(2)),
            "another write makes an advance unnecessary"
        );
    }
}
