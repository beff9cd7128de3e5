//! What authd wants written about tokens: Secrets that go, Secrets that are filled, and the signatures of `cluster-info`.
//!
//! # Contract
//!
//! A [`TokenControllers`] belongs to one feed and does no I/O, like its sibling for policy. [`TokenControllers::compare`]
//! says under the mirror's lock what is wanted, [`Wanted::writes`] signs outside of it, [`TokenControllers::ask`] makes
//! the batch to send, and [`TokenControllers::wake_in`] says when to compare again though nothing happened. It compares
//! what is mirrored with what should be there, so that it needs no memory of its own and survives every restart:
//!
//! - `tokens-controller` (on by default): a service-account token Secret goes with its account, and is filled with a token
//!   when it has none (requirements A-SA-25); the day of a token's last use is noted in a label;
//! - `tokencleaner` (on request): an expired bootstrap token goes (A-BOOT-9, A-BOOT-23);
//! - `bootstrapsigner` (on request): `cluster-info` carries a detached signature for each bootstrap token that may sign
//!   (A-SIGN).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use authproto::auth::{self, object_write::Verb};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::batches::Batches;
use crate::mirror::identities::{Identities, TokenSecret};
use crate::tokens::bootstrap;
use crate::tokens::service_account::{Issuer, Named};

/// The ids of these batches begin here; those of policy count up from 1 and stay far below.
const FIRST_BATCH: u64 = 1 << 32;
/// Writes of a batch; the rest comes with the next.
const MOST_WRITES: usize = 500;
/// Tokens signed for a batch, each some milliseconds in which the stream waits.
const MOST_TOKENS: usize = 32;

const TOKENS: &str = "tokens-controller";
const CLEANER: &str = "token-cleaner";
const SIGNER: &str = "bootstrap-signer";

/// The prefix of signatures in `cluster-info`.
const SIGNATURE: &str = "jws-kubeconfig-";

/// Which of them run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enabled {
    /// `serviceaccount-token`
    pub tokens: bool,
    /// `tokencleaner`
    pub cleaner: bool,
    /// `bootstrapsigner`
    pub signer: bool,
}

impl Enabled {
    /// As `--controllers` says: `*` is what is on by default, a name one more, `-name` one less.
    pub fn parse(words: &[String]) -> Self {
        let has = |word: &str| words.iter().any(|given| given.trim() == word);
        let on = |names: &[&str], by_default: bool| {
            let named = |prefix: &str| names.iter().any(|name| has(&format!("{prefix}{name}")));
            !named("-") && (named("") || (by_default && (words.is_empty() || has("*"))))
        };
        Enabled {
            tokens: on(&["serviceaccount-token", "serviceaccount-token-controller"], true),
            cleaner: on(&["tokencleaner", "token-cleaner-controller"], false),
            signer: on(&["bootstrapsigner", "bootstrap-signer-controller"], false),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct TokenControllers {
    names: Arc<Names>,
    issuer: Option<Arc<Issuer>>,
    enabled: Enabled,
    batches: Batches<()>,
    changed: bool,
    /// When the next bootstrap token ends.
    next_end: Option<Timestamp>,
}

impl TokenControllers {
    /// Before the snapshot.
    pub fn new(names: Arc<Names>, issuer: Option<Arc<Issuer>>, enabled: Enabled) -> Self {
        TokenControllers {
            names,
            issuer,
            enabled,
            batches: Batches::new(FIRST_BATCH),
            changed: true,
            next_end: None,
        }
    }

    /// The snapshot is complete.
    pub fn synced(&mut self) {
        self.batches.synced();
    }

    /// A Secret, an account or `cluster-info` changed, or a token was used.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// How long until [`TokenControllers::compare`] has something to say though nothing happens; None: for ever.
    pub fn wake_in(&self, now: Duration, wall: Timestamp) -> Option<Duration> {
        if !self.batches.is_idle() {
            return None;
        }
        let pause = self.batches.retry_at().map(|at| at.saturating_sub(now));
        let retry = pause.filter(|_| self.changed);
        let end = self.next_end.map(|end| {
            let left = Duration::try_from(end.duration_since(wall)).unwrap_or_default();
            (left + Duration::from_millis(1)).max(pause.unwrap_or_default())
        });
        retry.into_iter().chain(end).min()
    }

    /// What to ask for now. `now` is the monotonic clock; `used` are the token Secrets used since this last had
    /// something to do, each as `namespace/name`.
    pub fn compare(
        &mut self,
        now: Duration,
        wall: Timestamp,
        revision: u64,
        identities: &Identities,
        used: &mut BTreeSet<String>,
    ) -> Option<Wanted> {
        // Most uses are not the first of their day: those need no look at all Secrets.
        let (label, today) = (self.last_used(), day(wall));
        used.retain(|key| {
            let secret = key.split_once('/').and_then(|(namespace, name)| identities.secret(namespace, name));
            self.enabled.tokens && secret.is_some_and(|secret| secret.annotations.get(&label) != Some(&today))
        });
        let ended = self.next_end.is_some_and(|end| end <= wall);
        let due = self.changed || ended || !used.is_empty();
        if !due || !self.batches.may_open(now, revision) {
            return None;
        }
        self.changed = false;
        self.next_end = identities
            .secrets()
            .filter_map(|(_, _, secret)| bootstrap::expiration(secret.text("expiration"), wall).ok()?)
            .min();
        let used = std::mem::take(used);
        let wanted = self
            .fill(&today, identities, &used)
            .or_else(|| self.clean(wall, identities))
            .or_else(|| self.sign(wall, identities))?;
        // What the others want is computed again after this batch.
        self.changed = true;
        Some(wanted)
    }

    /// The batch of these writes of a controller. None: there are none, since no token could be signed, which is a
    /// failure.
    pub fn ask(
        &mut self,
        now: Duration,
        controller: &str,
        writes: Vec<auth::ObjectWrite>,
    ) -> Option<auth::WriteBatch> {
        if writes.is_empty() {
            self.batches.failed(now);
            return None;
        }
        Some(self.batches.open((), controller, false, writes))
    }

    /// The result of a batch. A result of no open batch is ignored.
    pub fn result(&mut self, now: Duration, result: &auth::WriteResult) {
        if self.batches.close(result).is_none() {
            return;
        }
        // Somebody else was faster, or it is gone: the next comparison knows.
        let bad = result.results.iter().find(|answer| !matches!(answer.code, 200..=299 | 404 | 409));
        match bad {
            None => self.batches.succeeded(),
            Some(problem) => {
                self.batches.failed(now);
                let (code, message) = (problem.code, &problem.message);
                tracing::warn!(code, message, "a write about tokens failed and will be tried again");
            }
        }
    }

    /// The label with the day of a token's last use.
    fn last_used(&self) -> String {
        self.names.label_key("legacy-token-last-used")
    }

    /// Secrets of accounts that are gone, Secrets without a token, and tokens that were used today.
    fn fill(&self, today: &str, identities: &Identities, used: &BTreeSet<String>) -> Option<Wanted> {
        if !self.enabled.tokens {
            return None;
        }
        let kind = self.names.label_key("service-account-token");
        let (name_key, uid_key) =
            (self.names.label_key("service-account.name"), self.names.label_key("service-account.uid"));
        let last_used = self.last_used();
        let issuer = self.issuer.as_ref().filter(|issuer| issuer.signs());
        let (mut writes, mut fills, mut tokens) = (Vec::new(), Vec::new(), 0);
        for (namespace, name, secret) in identities.secrets().filter(|(_, _, secret)| secret.kind == kind) {
            let noted = |key: &str| secret.annotations.get(key).map(String::as_str).unwrap_or_default();
            if secret.terminating || noted(&name_key).is_empty() {
                continue;
            }
            if writes.len() + fills.len() == MOST_WRITES || tokens == MOST_TOKENS {
                break;
            }
            let account = identities.account(namespace, noted(&name_key));
            let account =
                account.filter(|account| noted(&uid_key).is_empty() || *account.uid == *noted(&uid_key));
            let Some(account) = account else {
                writes.push(write(Verb::Delete, "secrets", namespace, name, Value::Null));
                continue;
            };
            let mut metadata = Map::new();
            if noted(&uid_key).is_empty() {
                metadata.insert("annotations".to_owned(), json!({uid_key.as_str(): account.uid}));
            }
            if used.contains(&format!("{namespace}/{name}")) && noted(&last_used) != today {
                metadata.insert("labels".to_owned(), json!({last_used.as_str(): today}));
            }
            let mut data = Map::new();
            if secret.text("namespace") != namespace {
                data.insert("namespace".to_owned(), STANDARD.encode(namespace).into());
            }
            let token = issuer.filter(|_| !secret.data.contains_key("token")).map(|issuer| {
                tokens += 1;
                let account = Named { name: noted(&name_key).to_owned(), uid: account.uid.to_string() };
                (Arc::clone(issuer), account)
            });
            if !metadata.is_empty() || !data.is_empty() || token.is_some() {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                fills.push(Fill { namespace, name, metadata, data, token });
            }
        }
        Wanted { controller: TOKENS, writes, fills }.some()
    }

    /// The bootstrap tokens, each with its Secret.
    fn bootstrap<'i>(&self, identities: &'i Identities) -> impl Iterator<Item = (&'i str, &'i TokenSecret)> {
        let (kind, system) = (self.names.label_sub_key("bootstrap", "token"), self.names.system_namespace);
        identities
            .secrets()
            .filter(move |(namespace, _, secret)| {
                *namespace == system && secret.kind == kind && !secret.terminating
            })
            .map(|(_, name, secret)| (name, &**secret))
    }

    fn clean(&self, wall: Timestamp, identities: &Identities) -> Option<Wanted> {
        if !self.enabled.cleaner {
            return None;
        }
        let namespace = self.names.system_namespace;
        let expired = self
            .bootstrap(identities)
            .filter(|(_, secret)| bootstrap::expiration(secret.text("expiration"), wall).is_err())
            .take(MOST_WRITES);
        let writes = expired.map(|(name, _)| write(Verb::Delete, "secrets", namespace, name, Value::Null));
        Wanted { controller: CLEANER, writes: writes.collect(), fills: Vec::new() }.some()
    }

    fn sign(&self, wall: Timestamp, identities: &Identities) -> Option<Wanted> {
        if !self.enabled.signer {
            return None;
        }
        let namespace = self.names.public_namespace;
        let data = identities.config_map(namespace, "cluster-info")?;
        let kubeconfig = data.get("kubeconfig")?;
        let wanted: BTreeMap<String, String> = self
            .bootstrap(identities)
            .filter(|(name, secret)| {
                let id = secret.text("token-id");
                bootstrap::expiration(secret.text("expiration"), wall).is_ok()
                    && secret.text("usage-bootstrap-signing") == "true"
                    && *name == format!("bootstrap-token-{id}")
            })
            .filter_map(|(_, secret)| {
                let token = format!("{}.{}", secret.text("token-id"), secret.text("token-secret"));
                let (id, _) = bootstrap::parts(&token)?;
                Some((format!("{SIGNATURE}{id}"), detached(kubeconfig, id, &token)))
            })
            .collect();
        let mut changes = Map::new();
        for key in data.keys().filter(|key| key.starts_with(SIGNATURE) && !wanted.contains_key(*key)) {
            changes.insert(key.clone(), Value::Null);
        }
        for (key, signature) in wanted {
            if data.get(&key) != Some(&signature) {
                changes.insert(key, signature.into());
            }
        }
        if changes.is_empty() {
            return None;
        }
        let signed = write(Verb::Patch, "configmaps", namespace, "cluster-info", json!({"data": changes}));
        Some(Wanted { controller: SIGNER, writes: vec![signed], fills: Vec::new() })
    }
}

/// What one controller wants written; the tokens among it are not signed yet.
#[derive(Debug)]
pub struct Wanted {
    /// Its name.
    pub controller: &'static str,
    writes: Vec<auth::ObjectWrite>,
    fills: Vec<Fill>,
}

/// What a token Secret lacks.
#[derive(Debug)]
struct Fill {
    namespace: String,
    name: String,
    metadata: Map<String, Value>,
    data: Map<String, Value>,
    /// Whose token is to be signed, and by whom.
    token: Option<(Arc<Issuer>, Named)>,
}

impl Wanted {
    fn some(self) -> Option<Self> {
        (!self.writes.is_empty() || !self.fills.is_empty()).then_some(self)
    }

    /// Signs the tokens, and says all writes. Takes some milliseconds a token.
    pub fn writes(self) -> Vec<auth::ObjectWrite> {
        self.writes.into_iter().chain(self.fills.into_iter().filter_map(Fill::write)).collect()
    }
}

impl Fill {
    fn write(mut self) -> Option<auth::ObjectWrite> {
        let (namespace, name) = (self.namespace.as_str(), self.name.as_str());
        if let Some((issuer, account)) = &self.token {
            match issuer.issue_for_secret(namespace, account, name) {
                Ok(token) => drop(self.data.insert("token".to_owned(), STANDARD.encode(token).into())),
                Err(why) => tracing::warn!(namespace, name, why, "a token Secret cannot be filled"),
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
        body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
    }
}

/// As labels have it.
fn day(wall: Timestamp) -> String {
    wall.strftime("%Y-%m-%d").to_string()
}

/// A detached JSON Web Signature (RFC 7515 appendix F) with the whole token as its secret.
fn detached(payload: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[cfg(test)]
mod tests;
