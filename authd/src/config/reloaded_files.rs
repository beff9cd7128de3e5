//! Hot-reloaded files of keys, CAs and revocation lists.
//!
//! # Contract
//!
//! [`follow`] activates changed files together, within half a second, and invalidates results cached under
//! the old ones. An identity that depends on a removed key or CA ends, and so do its open watches. Invalid
//! files leave the old ones active; the log and `/readyz?verbose` name them, and also the gaps of the
//! revocation lists. The static token file is not reloaded: it is read once (requirements A-TOKF-8).

use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::clock::Clock;
use serving::reload::{Snapshot, Watch};

use super::{KeyFiles, hot_reload};
use crate::authn::{Settings, Trust};
use crate::live::Live;

/// The subject of notes on revocation lists.
const LISTS: &str = "lists of revoked certificates";
/// The subject of the note that an outdated list does not replace the active one.
const KEPT_LISTS: &str = "outdated list of revoked certificates";

/// Snapshots of the files, taken before their first read.
#[derive(Debug)]
pub struct ReloadedFiles {
    /// CA bundles and revocation lists.
    pub certificates: Snapshot,
    /// Keys of service-account tokens.
    pub keys: Snapshot,
    /// The key files.
    pub key_files: KeyFiles,
}

/// Watches the files until the returned watches are dropped.
pub fn follow(
    followed: ReloadedFiles,
    authn: &Settings,
    live: &Arc<Live>,
    clock: &Arc<dyn Clock>,
) -> Vec<Watch> {
    let ReloadedFiles { certificates, keys, key_files } = followed;
    let mut watches = Vec::new();
    let (trust, clock) = (Arc::clone(&authn.trust), Arc::clone(clock));
    let paths = trust.paths();
    remark(&trust, live);
    let noted = Arc::clone(live);
    watches.extend(begin("client certificates", certificates, paths, live, move || {
        trust.reload(clock.now())?;
        remark(&trust, &noted);
        Ok(())
    }));
    if let Some(issuer) = authn.issuer.clone() {
        watches.extend(begin("service-account keys", keys, key_files.paths(), live, move || {
            issuer.replace_keys(key_files.read()?);
            Ok(())
        }));
    }
    watches
}

/// Reports the gaps of the revocation lists.
/// The log contains the names; the public `/readyz?verbose` does not.
fn remark(trust: &Trust, live: &Live) {
    let remarks = trust.remarks();
    if let Some(remarks) = &remarks {
        tracing::warn!(subject = LISTS, remarks, "some certificates cannot be revoked");
    }
    let kept =
        "it does not replace the active list; revoked certificates stay revoked until a valid list arrives";
    live.note(KEPT_LISTS, trust.keeps_outdated_lists().then(|| kept.to_owned()));
    live.note(LISTS, remarks.map(|_| "some certificates cannot be revoked; see the log".to_owned()));
}

/// Starts watching one group of files.
fn begin(
    subject: &'static str,
    before: Snapshot,
    paths: Vec<PathBuf>,
    live: &Arc<Live>,
    mut apply: impl FnMut() -> Result<(), Vec<String>> + Send + 'static,
) -> Option<Watch> {
    if paths.is_empty() {
        return None;
    }
    let replaced = Arc::clone(live);
    Some(hot_reload::follow(subject, paths, before, Arc::clone(live), move || {
        apply()?;
        replaced.renew();
        Ok(())
    }))
}
