//! Rewrites the stale values of a store: those that the first key of the first provider did not encrypt.
//!
//! # Contract
//!
//! Each rewritten object gets a new revision, as from an unchanged update. A value that another writer changes
//! meanwhile is read again. An interrupted rewrite continues with the next one, because a rewritten value is not stale.
//! Values that cannot be decrypted stay, and are named.

use std::sync::Arc;

use storage::{Error, Op, Revision, Row, Store, unreadable_reason};

use crate::decryption::FailedKeys;
use crate::store::Encryption;

/// Maximum number of rows in one read.
const PAGE: usize = 500;
/// Maximum size of the rows in one read in bytes. A larger row is read alone.
const PAGE_BYTES: usize = 4 << 20;
/// Maximum number of keys that a result names.
const MAX_KEYS: usize = 100;

/// The progress or the result of a rewrite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteProgress {
    /// Number of objects that were read.
    pub objects: u64,
    /// Number of objects that were written again.
    pub rewritten: u64,
    /// Number of objects that cannot be decrypted.
    pub unreadable: u64,
    /// The first keys of objects that cannot be decrypted, with the reason.
    pub unreadable_keys: Vec<(Arc<str>, String)>,
}

/// The reason why a rewrite ended early.
#[derive(Debug, thiserror::Error)]
#[error("after {} objects: {error}", .progress.objects)]
pub struct RewriteError {
    /// The work until then.
    pub progress: RewriteProgress,
    /// The failure.
    pub error: Error,
}

/// Rewrites all stale values of an engine. `report` gets the progress after each page.
///
/// # Errors
///
/// The engine or a KMS plugin is not available. All earlier work stays.
pub async fn rewrite(
    encryption: &Arc<Encryption>,
    engine: &Arc<dyn Store>,
    mut report: impl FnMut(&RewriteProgress),
) -> Result<RewriteProgress, RewriteError> {
    let store = encryption.store(Arc::clone(engine));
    let mut progress = RewriteProgress::default();
    let mut start = String::new();
    loop {
        let page = match engine.rows_within("", &start, PAGE, PAGE_BYTES, engine.revision()).await {
            Ok(page) => page,
            Err(error) => return Err(RewriteError { progress, error }),
        };
        let next = page.rows.last().filter(|_| page.more).map(|row| format!("{}\0", row.key));
        let mut failed = FailedKeys::default();
        for row in page.rows {
            if let Err(error) = rewrite_row(encryption, &*store, row, &mut failed, &mut progress).await {
                return Err(RewriteError { progress, error });
            }
        }
        report(&progress);
        match next {
            Some(next) => start = next,
            None => return Ok(progress),
        }
    }
}

/// Rewrites a row if it is stale.
async fn rewrite_row(
    encryption: &Arc<Encryption>,
    store: &dyn Store,
    row: Row,
    failed: &mut FailedKeys,
    progress: &mut RewriteProgress,
) -> Result<(), Error> {
    progress.objects += 1;
    let plain = encryption.open_plain(&row.key, &row.value, failed).await?;
    if let Some(reason) = unreadable_reason(&plain.value) {
        progress.unreadable += 1;
        if progress.unreadable_keys.len() < MAX_KEYS {
            progress.unreadable_keys.push((Arc::clone(&row.key), reason.to_owned()));
        }
        return Ok(());
    }
    if !plain.is_stale {
        return Ok(());
    }
    let (mut value, mut revision): (_, Revision) = (plain.value, row.revision);
    loop {
        match store.commit(&row.key, Op::Update(value, revision)).await {
            Ok(_) => {
                progress.rewritten += 1;
                return Ok(());
            }
            // The write of another client has removed the object, or has encrypted it anew.
            Err(Error::NotFound(_)) => return Ok(()),
            Err(Error::Conflict(current)) if store.is_stale(&row.key).await? => {
                (value, revision) = (current.value, current.revision);
            }
            Err(Error::Conflict(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
