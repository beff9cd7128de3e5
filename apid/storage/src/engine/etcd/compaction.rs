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

/// The state of one server.
#[derive(Debug, Default)]
struct Round {
    /// The last known version of the key.
    version: i64,
    /// The revision at which this server compacts next.
    revision: Revision,
}

/// Takes part in compaction until the store closes.
pub(super) async fn run(shared: Arc<Shared>, client: Arc<Client>, interval: Duration) {
    let mut round = Round::default();
    loop {
        tokio::time::sleep(interval).await;
        if let Err(failure) = compact(&mut round, &shared, &client).await {
            tracing::warn!(error = %failure, "compaction of etcd failed; the next interval tries again");
        }
    }
}

async fn compact(round: &mut Round, shared: &Shared, client: &Client) -> Result<(), Failure> {
    // Readers of this server keep their history. Other servers do not know of them.
    let leased = shared.history_leases.oldest();
    let revision = leased.map_or(round.revision, |oldest| oldest.min(round.revision));
    let request = pb::TxnRequest {
        compare: vec![pb::Compare {
            target: pb::VERSION,
            key: KEY.to_vec(),
            expected: Some(pb::Expected::Version(round.version)),
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
    round.revision = newest;
    if !response.succeeded {
        let found = response.into_found().unwrap_or_default();
        round.version = found.version;
        let text = std::str::from_utf8(&found.value).unwrap_or_default();
        if let Ok(compacted) = text.parse::<u64>() {
            // The key can come from another cluster.
            shared.raise_compacted(newest.min(Revision(compacted)));
        }
        return Ok(());
    }
    round.version += 1;
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
