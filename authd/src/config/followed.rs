//! Files of keys, authorities and revoked certificates: read again when they change.
//!
//! # Contract
//!
//! [`follow`] puts changed files in force together, within half a second of the change, and drops what was answered on
//! the old ones: an identity that rested on a key or an authority that is gone ends, and so do its open watches. Files
//! that cannot be used leave the old in force, and are named in the log and in `/readyz?verbose`; so is what lists of revoked
//! certificates leave out. The static token file is not among them: it is read once (requirements A-TOKF-8).

use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::clock::Clock;
use serving::reload::{Snapshot, Watch};

use super::{KeyFiles, reloaded};
use crate::authn::{Settings, Trust};
use crate::live::Live;

/// The subject of notes on what is revoked.
const LISTS: &str = "lists of revoked certificates";
/// The subject of the note that an outdated list does not replace the one in force.
const KEPT_LISTS: &str = "outdated list of revoked certificates";

/// The files as they were just before they were first read.
#[derive(Debug)]
pub struct Followed {
    /// Authorities and lists of revoked certificates.
    pub certificates: Snapshot,
    /// Keys of service-account tokens.
    pub keys: Snapshot,
    /// Where those are.
    pub key_files: KeyFiles,
}

/// Follows the files until the answer is dropped.
pub fn follow(followed: Followed, authn: &Settings, live: &Arc<Live>, clock: &Arc<dyn Clock>) -> Vec<Watch> {
    let Followed { certificates, keys, key_files } = followed;
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

/// Says what the lists leave out: in the log, and without names for `/readyz?verbose`, which anybody may read.
fn remark(trust: &Trust, live: &Live) {
    let remarks = trust.remarks();
    if let Some(remarks) = &remarks {
        tracing::warn!(subject = LISTS, remarks, "not everybody can be revoked");
    }
    let kept =
        "it does not replace the list in force: what was revoked stays revoked until a valid list comes";
    live.note(KEPT_LISTS, trust.keeps_lists().then(|| kept.to_owned()));
    live.note(LISTS, remarks.map(|_| "not everybody can be revoked: the log says who and why".to_owned()));
}

/// One group of files.
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
    Some(reloaded::follow(subject, paths, before, Arc::clone(live), move || {
        apply()?;
        replaced.renew();
        Ok(())
    }))
}
