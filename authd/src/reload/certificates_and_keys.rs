//! Hot reload of keys, CA bundles and revocation lists, and the notice of changed files that are not reloaded.
//!
//! # Contract
//!
//! [`watch`] watches two groups of files: CA bundles with revocation lists, and keys. When no file of a group
//! has changed for 100 ms, authd activates the changed files of the group together and invalidates cached
//! identities. An identity that depends on a removed key or CA ends, and so do its open watches. Invalid
//! files leave the previous files active: the log has the errors, and `/readyz?verbose` names the group. The
//! log and `/readyz?verbose` also report missing and outdated revocation lists. The static token file is not
//! reloaded: authd reads it once (requirements A-TOKF-8).

use std::sync::Arc;

use serving::reload::{Snapshot, Watch};

use super::webhooks::{ClientConfigWatch, TOKEN_WEBHOOK};
use super::{Context, watch_files};
use crate::active_config::SharedConfig;
use crate::authn::{AuthnSettings, Trust};
use crate::config::ReloadedFiles;
use crate::config_error::ConfigError;

/// The subject of the note about missing and outdated revocation lists.
const LISTS: &str = "lists of revoked certificates";
/// The note while any revocation list is missing, outdated or from an unknown CA.
const LISTS_NOTE: &str = "some lists are missing, outdated or of an unknown CA; see the log";
/// The subject of the note that an outdated list does not replace the active one.
const KEPT_LISTS: &str = "outdated list of revoked certificates";
/// The text of the note that an outdated list does not replace the active one.
const KEPT_LISTS_NOTE: &str =
    "it does not replace the active list; revoked certificates stay revoked until a valid list arrives";

/// Watches both groups of files and the client configuration of the token webhook until the returned watches are
/// dropped.
pub fn watch(files: ReloadedFiles, authn: &AuthnSettings, context: &Context) -> Vec<Watch> {
    let ReloadedFiles { certificates, keys, key_files, token_webhook } = files;
    let config = &context.config;
    let token_webhook = ClientConfigWatch::new(TOKEN_WEBHOOK, token_webhook, config);
    let mut watches = Vec::from_iter(token_webhook.into_watch());
    let (trust, clock) = (Arc::clone(&authn.trust), Arc::clone(&context.clock));
    report_remarks(&trust, config);
    let shared_config = Arc::clone(config);
    watches.extend(watch_group("client certificates", certificates, config, move || {
        trust.reload(clock.now())?;
        report_remarks(&trust, &shared_config);
        Ok(())
    }));
    if let Some(issuer) = authn.issuer.clone() {
        watches.extend(watch_group("service-account keys", keys, config, move || {
            issuer.replace_keys(key_files.read()?);
            Ok(())
        }));
    }
    watches
}

/// Reports remarks on the revocation lists.
/// The log contains the remarks; `/readyz?verbose` is public and contains no names.
fn report_remarks(trust: &Trust, config: &SharedConfig) {
    let remarks = trust.remarks();
    if let Some(remarks) = &remarks {
        tracing::warn!(subject = LISTS, remarks, "lists are missing, outdated or of an unknown CA");
    }
    config.set_note(KEPT_LISTS, trust.keeps_outdated_lists().then(|| KEPT_LISTS_NOTE.to_owned()));
    config.set_note(LISTS, remarks.map(|_| LISTS_NOTE.to_owned()));
}

/// Starts watching one group of files; None if the group is empty.
fn watch_group(
    subject: &'static str,
    snapshot: Snapshot,
    config: &Arc<SharedConfig>,
    mut apply: impl FnMut() -> Result<(), Vec<ConfigError>> + Send + 'static,
) -> Option<Watch> {
    if snapshot.is_empty() {
        return None;
    }
    let shared_config = Arc::clone(config);
    Some(watch_files(subject, snapshot, Arc::clone(config), move || {
        apply()?;
        shared_config.invalidate_identities();
        Ok(())
    }))
}
