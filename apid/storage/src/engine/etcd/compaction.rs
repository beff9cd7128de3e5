//! Compaction by one of several servers, with the protocol of kube-apiserver.
//!
//! The key `compact_rev_key` holds the revision of the last compaction. Its version in etcd is the clock of all servers:
//! in each interval the server that advances the version compacts, at the revision that the store had one interval before.
//! The others learn the version and the compacted revision. kube-apiservers on the same cluster take part.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, Failure, Method, Rejection};
use super::protocol as pb;
use super::{Shared, revision_of, to_etcd};
use crate::Revision;

/// The key of the protocol; it has no prefix.
const KEY: &[u8] = b"compact_rev_key";

/// The state of this server in the protocol.
#[derive(Debug, Default)]
struct CompactionState {
    /// The last known version of the key.
    version: i64,
    /// The revision at which this server compacts next.
    revision: Revision,
}

/// Takes part in compaction until the store closes or is lost.
pub(super) async fn run(shared: Arc<Shared>, client: Arc<Client>, interval: Duration) {
    let mut state = CompactionState::default();
    loop {
        tokio::time::sleep(interval).await;
        if shared.check_open().is_err() {
            return;
        }
        if let Err(failure) = compact(&mut state, &shared, &client).await {
            tracing::warn!(error = %failure, "compaction of etcd failed; the next interval tries again");
        }
    }
}

async fn compact(state: &mut CompactionState, shared: &Shared, client: &Client) -> Result<(), Failure> {
    // Readers of this server keep their history. Other servers do not know of them.
    let leased = shared.history_leases.oldest();
    let revision = leased.map_or(state.revision, |oldest| oldest.min(state.revision));
    let request = pb::TxnRequest {
        compare: vec![pb::Compare {
            target: pb::VERSION,
            key: KEY.to_vec(),
            expected: Some(pb::Expected::Version(state.version)),
        }],
        success: vec![
            pb::Request::Put(pb::PutRequest {
                key: KEY.to_vec(),
                value: revision.to_string().into(),
                lease: 0,
            })
            .into(),
        ],
        failure: vec![pb::Request::Range(pb::RangeRequest::one(KEY.to_vec())).into()],
    };
    let response: pb::TxnResponse = client.call(Method::Txn, request).await?;
    let newest = revision_of(response.header.as_ref());
    state.revision = newest;
    if !response.succeeded {
        let found = response.into_found().unwrap_or_default();
        state.version = found.version;
        let text = std::str::from_utf8(&found.value).unwrap_or_default();
        if let Ok(compacted) = text.parse::<u64>() {
            // The key can come from another cluster.
            shared.raise_compacted(newest.min(Revision(compacted)));
        }
        return Ok(());
    }
    state.version += 1;
    if revision == Revision(0) {
        return Ok(());
    }
    let request = pb::CompactionRequest { revision: to_etcd(revision) };
    match client.call::<_, pb::CompactionResponse>(Method::Compact, request).await {
        Err(failure) if failure.rejection() != Rejection::Compacted => return Err(failure),
        _ => {}
    }
    shared.raise_compacted(revision);
    tracing::debug!(revision = revision.0, "etcd is compacted");
    Ok(())
}
