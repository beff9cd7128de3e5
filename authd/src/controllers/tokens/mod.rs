//! Controllers of tokens: delete and fill token Secrets, and sign `cluster-info`.
//!
//! # Contract
//!
//! A [`TokenControllers`] belongs to one feed and does no I/O, like the policy controllers.
//! [`TokenControllers::required_writes`] compares objects under the lock of the mirror.
//! [`PendingWrites::writes`] signs tokens and runs without the lock. [`TokenControllers::build_batch`] builds
//! the batch. [`TokenControllers::next_wake_up`] returns when to compare again without an event.
//! The controllers compare mirrored objects with the desired state, so they store nothing that a restart
//! would lose:
//!
//! - `serviceaccount-token` (on by default): deletes the token Secrets of a deleted service account, and
//!   fills token Secrets without a token (requirements A-SA-25). It also records the day of a token's last
//!   use in a label of the Secret;
//! - `tokencleaner` (optional): deletes expired bootstrap tokens (A-BOOT-9, A-BOOT-23);
//! - `bootstrapsigner` (optional): keeps a detached signature in `cluster-info` for each bootstrap token that
//!   may sign (A-SIGN).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use authproto::auth::{self, object_write::Verb, write_outcome::Outcome};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::batches::Batches;
use crate::mirror::identities::{Identities, TokenSecret};
use crate::tokens::bootstrap;
use crate::tokens::service_account::{Issuer, ObjectIdentity};

/// The ids of token batches count up from the number after this base.
/// The ids of policy batches count up from 1 and stay far below the base.
const BATCH_ID_BASE: u64 = 1 << 32;
/// The maximum number of writes of one batch; further writes follow in the next batch.
const MAX_WRITES: usize = 500;
/// The maximum number of tokens that are signed for one batch; further tokens follow in the next batch.
/// A signature takes some milliseconds, during which the mirror stream waits.
const MAX_TOKENS: usize = 32;

/// The name of each controller in batches and in the log.
const TOKENS: &str = "tokens-controller";
const CLEANER: &str = "token-cleaner";
const SIGNER: &str = "bootstrap-signer";

/// The prefix of data keys with a signature in `cluster-info`.
const SIGNATURE: &str = "jws-kubeconfig-";

/// The enabled controllers of authd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledControllers {
    /// Whether `clusterrole-aggregation` is enabled.
    pub aggregation: bool,
    /// Whether `serviceaccount-token` is enabled.
    pub tokens: bool,
    /// Whether `tokencleaner` is enabled.
    pub cleaner: bool,
    /// Whether `bootstrapsigner` is enabled.
    pub signer: bool,
}

impl EnabledControllers {
    /// Parses `--controllers`: `*` enables those that are on by default, `name` enables one, `-name` disables
    /// one, and an empty value enables none. The first entry about a controller decides.
    pub fn parse(entries: &[String]) -> Self {
        let is_enabled =
            |names: &[&str], by_default| serving::flags::is_controller_enabled(entries, names, by_default);
        EnabledControllers {
            aggregation: is_enabled(&["clusterrole-aggregation", "clusterrole-aggregation-controller"], true),
            tokens: is_enabled(&["serviceaccount-token", "serviceaccount-token-controller"], true),
            cleaner: is_enabled(&["tokencleaner", "token-cleaner-controller"], false),
            signer: is_enabled(&["bootstrapsigner", "bootstrap-signer-controller"], false),
        }
    }
}

/// The token controllers of one feed. See the module.
#[derive(Debug)]
pub struct TokenControllers {
    names: Arc<Names>,
    issuer: Option<Arc<Issuer>>,
    enabled: EnabledControllers,
    batches: Batches<()>,
    /// Whether an object that the controllers read changed since the last comparison.
    changed: bool,
    /// The next expiry of a bootstrap token; None if no token expires.
    next_expiry: Option<Timestamp>,
}

impl TokenControllers {
    /// Creates the controllers of a new feed, whose snapshot is not complete.
    pub fn new(names: Arc<Names>, issuer: Option<Arc<Issuer>>, enabled: EnabledControllers) -> Self {
        TokenControllers {
            names,
            issuer,
            enabled,
            batches: Batches::new(BATCH_ID_BASE),
            changed: true,
            next_expiry: None,
        }
    }

    /// Records that the snapshot is complete.
    pub fn mark_synced(&mut self) {
        self.batches.mark_synced();
    }

    /// Records a change of a Secret, a service account or `cluster-info`.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Returns the time until [`TokenControllers::required_writes`] may return writes without a further
    /// event. None if there is no such time.
    pub fn next_wake_up(&self, now: Duration, wall_time: Timestamp) -> Option<Duration> {
        if !self.batches.is_idle() {
            return None;
        }
        let pause = self.batches.retry_at().map(|retry_at| retry_at.saturating_sub(now));
        let retry = pause.filter(|_| self.changed);
        let end = self.next_expiry.map(|end| {
            let remaining = Duration::try_from(end.duration_since(wall_time)).unwrap_or_default();
            (remaining + Duration::from_millis(1)).max(pause.unwrap_or_default())
        });
        retry.into_iter().chain(end).min()
    }

    /// Returns the writes to request now, of one controller at a time. `now` is the monotonic time,
    /// `revision` that of the mirror. `used` are token Secrets whose token was used, as `namespace/name`. An
    /// entry is removed when the mirrored Secret has the label with the current day, or cannot get the label.
    pub fn required_writes(
        &mut self,
        now: Duration,
        wall_time: Timestamp,
        revision: u64,
        identities: &Identities,
        used: &mut BTreeSet<String>,
    ) -> Option<PendingWrites> {
        // Only the first use on a day needs a comparison, which scans all token Secrets; later uses are
        // dropped.
        let (label, today) = (self.last_used_label(), format_day(wall_time));
        used.retain(|key| {
            let secret = key.split_once('/').and_then(|(namespace, name)| identities.secret(namespace, name));
            self.enabled.tokens && secret.is_some_and(|secret| secret.annotations.get(&label) != Some(&today))
        });
        let has_expired = self.next_expiry.is_some_and(|end| end <= wall_time);
        let is_due = self.changed || has_expired || !used.is_empty();
        if !is_due || !self.batches.can_open(now, revision) {
            return None;
        }
        self.changed = false;
        self.next_expiry = identities
            .secrets()
            .filter_map(|(_, _, secret)| {
                bootstrap::parse_expiration(secret.text("expiration"), wall_time).ok()?
            })
            .min();
        let fills = self.token_secret_writes(&today, identities, used);
        if fills.is_none() {
            // No Secret needs a write, so the remaining Secrets of `used` cannot get the label.
            used.clear();
        }
        let pending = fills
            .or_else(|| self.expired_token_writes(wall_time, identities))
            .or_else(|| self.signature_writes(wall_time, identities))?;
        // The next comparison, after this batch, returns the writes of the other controllers.
        self.changed = true;
        Some(pending)
    }

    /// Builds the batch of a controller's writes.
    /// Returns None if `writes` is empty because no token could be signed, which counts as a failure.
    pub fn build_batch(
        &mut self,
        now: Duration,
        controller: &str,
        writes: Vec<auth::ObjectWrite>,
    ) -> Option<auth::WriteBatch> {
        if writes.is_empty() {
            self.batches.record_failure(now);
            return None;
        }
        Some(self.batches.open((), controller, writes))
    }

    /// Handles the result of a batch. A result without an open batch is ignored.
    pub fn handle_result(&mut self, now: Duration, result: &auth::WriteResult) {
        if self.batches.close(result).is_none() {
            return;
        }
        // 404 and 409 are not failures: another writer changed the object, and the next comparison sees the
        // change.
        let failure = result.outcomes.iter().find_map(|outcome| match &outcome.outcome {
            Some(Outcome::Failure(failure)) if !matches!(failure.code, 404 | 409) => Some(failure),
            Some(_) | None => None,
        });
        match failure {
            None => self.batches.record_success(),
            Some(failure) => {
                self.batches.record_failure(now);
                let (code, message) = (failure.code, &failure.message);
                tracing::warn!(code, message, "token controller write failed; retrying");
            }
        }
    }

    /// The label key for the day of a token's last use.
    fn last_used_label(&self) -> String {
        self.names.label_key("legacy-token-last-used")
    }

    /// Returns the writes that delete Secrets of deleted service accounts, fill Secrets without a token, and
    /// label Secrets in `used` with the day `today`.
    fn token_secret_writes(
        &self,
        today: &str,
        identities: &Identities,
        used: &BTreeSet<String>,
    ) -> Option<PendingWrites> {
        if !self.enabled.tokens {
            return None;
        }
        let kind = self.names.label_key("service-account-token");
        let (name_key, uid_key) =
            (self.names.label_key("service-account.name"), self.names.label_key("service-account.uid"));
        let last_used_label = self.last_used_label();
        let issuer = self.issuer.as_ref().filter(|issuer| issuer.signs());
        let (mut writes, mut fills, mut tokens) = (Vec::new(), Vec::new(), 0);
        for (namespace, name, secret) in identities.secrets().filter(|(_, _, secret)| secret.kind == kind) {
            let annotation = |key: &str| secret.annotations.get(key).map(String::as_str).unwrap_or_default();
            if secret.terminating || annotation(&name_key).is_empty() {
                continue;
            }
            if writes.len() + fills.len() == MAX_WRITES || tokens == MAX_TOKENS {
                break;
            }
            let account = identities.account(namespace, annotation(&name_key));
            let account = account
                .filter(|account| annotation(&uid_key).is_empty() || *account.uid == *annotation(&uid_key));
            let Some(account) = account else {
                writes.push(deletion(namespace, name, secret));
                continue;
            };
            let mut metadata = Map::new();
            if annotation(&uid_key).is_empty() {
                metadata.insert("annotations".to_owned(), json!({uid_key.as_str(): account.uid}));
            }
            if used.contains(&format!("{namespace}/{name}")) && annotation(&last_used_label) != today {
                metadata.insert("labels".to_owned(), json!({last_used_label.as_str(): today}));
            }
            let mut data = Map::new();
            if secret.text("namespace") != namespace {
                data.insert("namespace".to_owned(), STANDARD.encode(namespace).into());
            }
            let token = issuer.filter(|_| !secret.data.contains_key("token")).map(|issuer| {
                tokens += 1;
                let account =
                    ObjectIdentity { name: annotation(&name_key).to_owned(), uid: account.uid.to_string() };
                (Arc::clone(issuer), account)
            });
            if !metadata.is_empty() || !data.is_empty() || token.is_some() {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                fills.push(SecretFill { namespace, name, metadata, data, token });
            }
        }
        PendingWrites { controller: TOKENS, writes, fills }.non_empty()
    }

    /// Returns the name and the contents of each Secret with a bootstrap token.
    fn bootstrap_tokens<'i>(
        &self,
        identities: &'i Identities,
    ) -> impl Iterator<Item = (&'i str, &'i TokenSecret)> {
        let (kind, system) = (self.names.label_sub_key("bootstrap", "token"), self.names.system_namespace);
        identities
            .secrets()
            .filter(move |(namespace, _, secret)| {
                *namespace == system && secret.kind == kind && !secret.terminating
            })
            .map(|(_, name, secret)| (name, &**secret))
    }

    /// Returns the writes that delete expired bootstrap tokens.
    fn expired_token_writes(&self, wall_time: Timestamp, identities: &Identities) -> Option<PendingWrites> {
        if !self.enabled.cleaner {
            return None;
        }
        let namespace = self.names.system_namespace;
        let expired = self
            .bootstrap_tokens(identities)
            .filter(|(_, secret)| bootstrap::parse_expiration(secret.text("expiration"), wall_time).is_err())
            .take(MAX_WRITES);
        let writes = expired.map(|(name, secret)| deletion(namespace, name, secret));
        PendingWrites { controller: CLEANER, writes: writes.collect(), fills: Vec::new() }.non_empty()
    }

    /// Returns the write that updates the signatures in `cluster-info`.
    fn signature_writes(&self, wall_time: Timestamp, identities: &Identities) -> Option<PendingWrites> {
        if !self.enabled.signer {
            return None;
        }
        let namespace = self.names.public_namespace;
        let data = identities.config_map(namespace, "cluster-info")?;
        let kubeconfig = data.get("kubeconfig")?;
        let signatures: BTreeMap<String, String> = self
            .bootstrap_tokens(identities)
            .filter(|(name, secret)| {
                let id = secret.text("token-id");
                bootstrap::parse_expiration(secret.text("expiration"), wall_time).is_ok()
                    && secret.text("usage-bootstrap-signing") == "true"
                    && *name == format!("bootstrap-token-{id}")
            })
            .filter_map(|(_, secret)| {
                let token = format!("{}.{}", secret.text("token-id"), secret.text("token-secret"));
                let (id, _) = bootstrap::split_token(&token)?;
                Some((format!("{SIGNATURE}{id}"), sign_detached(kubeconfig, id, &token)))
            })
            .collect();
        let mut changes = Map::new();
        for key in data.keys().filter(|key| key.starts_with(SIGNATURE) && !signatures.contains_key(*key)) {
            changes.insert(key.clone(), Value::Null);
        }
        for (key, signature) in signatures {
            if data.get(&key) != Some(&signature) {
                changes.insert(key, signature.into());
            }
        }
        if changes.is_empty() {
            return None;
        }
        let patch = write(Verb::Patch, "configmaps", namespace, "cluster-info", json!({"data": changes}));
        Some(PendingWrites { controller: SIGNER, writes: vec![patch], fills: Vec::new() })
    }
}

/// The required writes of one controller, whose tokens are not signed yet.
#[derive(Debug)]
pub struct PendingWrites {
    /// The name of the controller.
    pub controller: &'static str,
    writes: Vec<auth::ObjectWrite>,
    fills: Vec<SecretFill>,
}

/// The missing metadata and data of a token Secret.
#[derive(Debug)]
struct SecretFill {
    namespace: String,
    name: String,
    metadata: Map<String, Value>,
    data: Map<String, Value>,
    /// The issuer and the service account of a missing token; None if the Secret has a token.
    token: Option<(Arc<Issuer>, ObjectIdentity)>,
}

impl PendingWrites {
    fn non_empty(self) -> Option<Self> {
        (!self.writes.is_empty() || !self.fills.is_empty()).then_some(self)
    }

    /// Signs the tokens, in some milliseconds each, and returns all writes.
    pub fn writes(self) -> Vec<auth::ObjectWrite> {
        self.writes.into_iter().chain(self.fills.into_iter().filter_map(SecretFill::write)).collect()
    }
}

impl SecretFill {
    fn write(mut self) -> Option<auth::ObjectWrite> {
        let (namespace, name) = (self.namespace.as_str(), self.name.as_str());
        if let Some((issuer, account)) = &self.token {
            match issuer.issue_for_secret(namespace, account, name) {
                Ok(token) => drop(self.data.insert("token".to_owned(), STANDARD.encode(token).into())),
                Err(error) => tracing::warn!(namespace, name, %error, "signing a token for a Secret failed"),
            }
        }
        let parts = [("metadata", self.metadata), ("data", self.data)].into_iter();
        let body: Map<String, Value> = parts
            .filter(|(_, part)| !part.is_empty())
            .map(|(key, part)| (key.to_owned(), part.into()))
            .collect();
        (!body.is_empty()).then(|| write(Verb::Patch, "secrets", namespace, name, body.into()))
    }
}

fn write(verb: Verb, resource: &str, namespace: &str, name: &str, body: Value) -> auth::ObjectWrite {
    auth::ObjectWrite {
        verb: verb.into(),
        group: String::new(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        body: body.to_string().into_bytes(),
    }
}

/// Returns the deletion of a mirrored Secret. It fails when the Secret has changed since: its owner may have renewed the
/// token, or created another Secret under the name.
fn deletion(namespace: &str, name: &str, secret: &TokenSecret) -> auth::ObjectWrite {
    let preconditions = json!({"uid": &*secret.identity.uid, "resourceVersion": secret.revision.to_string()});
    write(Verb::Delete, "secrets", namespace, name, preconditions)
}

/// Formats the day as the value of the label, `YYYY-MM-DD`.
fn format_day(wall_time: Timestamp) -> String {
    wall_time.strftime("%Y-%m-%d").to_string()
}

/// Returns a detached JSON Web Signature (RFC 7515 appendix F). The HMAC key is the whole token.
fn sign_detached(payload: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[cfg(test)]
mod tests;
