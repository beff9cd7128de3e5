//! What authd wants written about tokens: Secrets that go, Secrets that are filled, and the signatures of `cluster-info`.
//!
//! # Contract
//!
//! A [`TokenControllers`] belongs to one feed and does no I/O, like its sibling for policy: [`TokenControllers::next`] says
//! what to send now, [`TokenControllers::wake_at`] when to ask again though nothing happened. It compares what is mirrored
//! with what should be there, so that it needs no memory of its own and survives every restart:
//!
//! - `tokens-controller` (on by default): a service-account token Secret goes with its account, and is filled with a token
//!   when it has none (requirements A-SA-25); the day of a token's last use is noted in a label;
//! - `tokencleaner` (on request): an expired bootstrap token goes (A-BOOT-9, A-BOOT-23);
//! - `bootstrapsigner` (on request): `cluster-info` carries a detached signature for each bootstrap token that may sign
//!   (A-SIGN).
//!
//! # Invariants
//!
//! INVARIANT (one at a time): one batch is open at most; the next is computed from a mirror that has seen its writes.

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

use crate::mirror::identities::{Identities, TokenSecret};
use crate::tokens::bootstrap;
use crate::tokens::service_account::{Issuer, Named};

/// The first pause after a failure; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The batches of this kind have even numbers, those of policy count up from 1 and stay far below.
const FIRST_BATCH: u64 = 1 << 32;
/// Writes of a batch; the rest comes with the next.
const MOST_WRITES: usize = 500;

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
    synced: bool,
    changed: bool,
    open: Option<u64>,
    not_before: Duration,
    failures: u32,
    not_below: u64,
    batches: u64,
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
            synced: false,
            changed: true,
            open: None,
            not_before: Duration::ZERO,
            failures: 0,
            not_below: 0,
            batches: FIRST_BATCH,
            next_end: None,
        }
    }

    /// The snapshot is complete.
    pub fn synced(&mut self) {
        self.synced = true;
    }

    /// A Secret, an account or `cluster-info` changed, or a token was used.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// How long until [`TokenControllers::next`] has something to say though nothing happens; None: for ever.
    pub fn wake_in(&self, now: Duration, wall: Timestamp) -> Option<Duration> {
        if !self.synced || self.open.is_some() {
            return None;
        }
        let retry = self.changed.then(|| self.not_before.saturating_sub(now));
        let end = self.next_end.map(|end| {
            let left = end.duration_since(wall);
            Duration::try_from(left).unwrap_or_default() + Duration::from_millis(1)
        });
        retry.into_iter().chain(end).min()
    }

    /// The batch to ask for now. `now` is the monotonic clock; `used` are the token Secrets used since this was last
    /// called, each as `namespace/name`.
    pub fn next(
        &mut self,
        now: Duration,
        wall: Timestamp,
        revision: u64,
        identities: &Identities,
        used: &mut BTreeSet<String>,
    ) -> Option<auth::WriteBatch> {
        let ended = self.next_end.is_some_and(|end| end <= wall);
        let due = self.changed || ended || !used.is_empty();
        if !self.synced || self.open.is_some() || !due || now < self.not_before || revision < self.not_below {
            return None;
        }
        self.changed = false;
        self.next_end = identities
            .secrets()
            .filter_map(|(_, _, secret)| bootstrap::expiration(secret.text("expiration"), wall).ok()?)
            .min();
        let mut wanted: [(&str, Vec<auth::ObjectWrite>); 3] = [
            (TOKENS, if self.enabled.tokens { self.fill(wall, identities, used) } else { Vec::new() }),
            (CLEANER, if self.enabled.cleaner { self.clean(wall, identities) } else { Vec::new() }),
            (SIGNER, if self.enabled.signer { self.sign(wall, identities) } else { Vec::new() }),
        ];
        used.clear();
        let (controller, writes) = wanted.iter_mut().find(|(_, writes)| !writes.is_empty())?;
        // What the others want is computed again after this batch.
        self.changed = true;
        writes.truncate(MOST_WRITES);
        self.batches += 1;
        self.open = Some(self.batches);
        Some(auth::WriteBatch {
            id: self.batches,
            controller: (*controller).to_owned(),
            system: false,
            writes: std::mem::take(writes),
        })
    }

    /// The result of a batch. A result of no open batch is ignored.
    pub fn result(&mut self, now: Duration, result: &auth::WriteResult) {
        if self.open.take_if(|open| *open == result.id).is_none() {
            return;
        }
        self.not_below = result.revision;
        // Somebody else was faster, or it is gone: the next comparison knows.
        let bad = result.results.iter().find(|answer| !matches!(answer.code, 200..=299 | 404 | 409));
        match bad {
            None => self.failures = 0,
            Some(problem) => {
                let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
                self.failures += 1;
                self.not_before = now + pause;
                let (code, message) = (problem.code, &problem.message);
                tracing::warn!(code, message, "a write about tokens failed and will be tried again");
            }
        }
    }

    /// Secrets of accounts that are gone, Secrets without a token, and tokens that were used today.
    fn fill(
        &self,
        wall: Timestamp,
        identities: &Identities,
        used: &BTreeSet<String>,
    ) -> Vec<auth::ObjectWrite> {
        let kind = self.names.label_key("service-account-token");
        let (name_key, uid_key) =
            (self.names.label_key("service-account.name"), self.names.label_key("service-account.uid"));
        let last_used = self.names.label_key("legacy-token-last-used");
        let today = wall.strftime("%Y-%m-%d").to_string();
        let mut writes = Vec::new();
        for (namespace, name, secret) in identities.secrets().filter(|(_, _, secret)| secret.kind == kind) {
            let noted = |key: &str| secret.annotations.get(key).map(String::as_str).unwrap_or_default();
            if secret.terminating || noted(&name_key).is_empty() {
                continue;
            }
            let account = identities.account(namespace, noted(&name_key));
            let account =
                account.filter(|account| noted(&uid_key).is_empty() || *account.uid == *noted(&uid_key));
            let Some(account) = account else {
                writes.push(self.write(Verb::Delete, "secrets", namespace, name, Value::Null));
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
            if !secret.data.contains_key("token")
                && let Some(issuer) = &self.issuer
            {
                let named = Named { name: noted(&name_key).to_owned(), uid: account.uid.to_string() };
                match issuer.issue_for_secret(namespace, &named, name) {
                    Ok(token) => drop(data.insert("token".to_owned(), STANDARD.encode(token).into())),
                    Err(why) => tracing::warn!(namespace, name, why, "a token Secret cannot be filled"),
                }
            }
            if secret.text("namespace") != namespace {
                data.insert("namespace".to_owned(), STANDARD.encode(namespace).into());
            }
            let mut body = Map::new();
            if !metadata.is_empty() {
                body.insert("metadata".to_owned(), metadata.into());
            }
            if !data.is_empty() {
                body.insert("data".to_owned(), data.into());
            }
            if !body.is_empty() {
                writes.push(self.write(Verb::Patch, "secrets", namespace, name, body.into()));
            }
        }
        writes
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

    fn clean(&self, wall: Timestamp, identities: &Identities) -> Vec<auth::ObjectWrite> {
        let expired = self
            .bootstrap(identities)
            .filter(|(_, secret)| bootstrap::expiration(secret.text("expiration"), wall).is_err());
        expired
            .map(|(name, _)| {
                self.write(Verb::Delete, "secrets", self.names.system_namespace, name, Value::Null)
            })
            .collect()
    }

    fn sign(&self, wall: Timestamp, identities: &Identities) -> Vec<auth::ObjectWrite> {
        let namespace = self.names.public_namespace;
        let Some(data) = identities.config_map(namespace, "cluster-info") else { return Vec::new() };
        let Some(kubeconfig) = data.get("kubeconfig") else { return Vec::new() };
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
            return Vec::new();
        }
        vec![self.write(Verb::Patch, "configmaps", namespace, "cluster-info", json!({"data": changes}))]
    }

    fn write(
        &self,
        verb: Verb,
        resource: &str,
        namespace: &str,
        name: &str,
        body: Value,
    ) -> auth::ObjectWrite {
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
}

/// A detached JSON Web Signature (RFC 7515 appendix F) with the whole token as its secret.
fn detached(payload: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use authproto::auth::mirror_object::Kind;

    use super::*;
    use crate::mirror::Mirror;

    fn names() -> Arc<Names> {
        Arc::new(Names::new(Preset::Kubernetes, "").unwrap())
    }

    fn words(text: &str) -> Vec<String> {
        text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn the_flag_turns_them_on_and_off() {
        for (flag, want) in [
            ("", (true, false, false)),
            ("*", (true, false, false)),
            ("*,tokencleaner", (true, true, false)),
            ("*,bootstrapsigner,tokencleaner", (true, true, true)),
            ("tokencleaner", (false, true, false)),
            ("*,-serviceaccount-token", (false, false, false)),
        ] {
            let enabled = Enabled::parse(&words(flag));
            assert_eq!((enabled.tokens, enabled.cleaner, enabled.signer), want, "{flag}");
        }
    }

    fn object(namespace: &str, name: &str, kind: Kind) -> auth::MirrorPut {
        let annotations = match &kind {
            Kind::Secret(secret) if secret.r#type.starts_with("kubernetes") => {
                [("kubernetes.io/service-account.name".to_owned(), "robot".to_owned())].into()
            }
            _ => Default::default(),
        };
        let object = auth::MirrorObject {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("uid-of-{name}"),
            annotations,
            kind: Some(kind),
            ..auth::MirrorObject::default()
        };
        auth::MirrorPut { revision: 1, object: Some(object) }
    }

    fn secret(kind: &str, data: &[(&str, &str)]) -> Kind {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        Kind::Secret(auth::MirrorSecret { r#type: kind.into(), data })
    }

    fn bootstrap_secret(more: &[(&str, &str)]) -> Kind {
        let all = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
        ];
        let all: Vec<_> = all.iter().chain(more).copied().collect();
        secret("bootstrap.kubernetes.io/token", &all)
    }

    /// What they want first of some objects, as `verb namespace/name body`.
    fn wanted(objects: Vec<auth::MirrorPut>, used: &[&str]) -> Vec<String> {
        let mirror = Mirror::new(names());
        let mut feed = mirror.begin();
        for object in objects {
            feed.put(object).unwrap();
        }
        feed.synced(1).unwrap();
        let mut controllers =
            TokenControllers::new(names(), None, Enabled { tokens: true, cleaner: true, signer: true });
        controllers.synced();
        let wall = Timestamp::from_second(1_000_000_000).unwrap();
        let mut used: BTreeSet<String> = used.iter().map(|key| (*key).to_owned()).collect();
        let batch =
            feed.read(|contents| controllers.next(Duration::ZERO, wall, 1, &contents.identities, &mut used));
        let Some(batch) = batch.unwrap() else { return Vec::new() };
        let told = batch.writes.iter().map(|write| {
            let body = String::from_utf8_lossy(&write.body);
            format!("{} {:?} {}/{} {body}", batch.controller, write.verb(), write.namespace, write.name)
        });
        told.collect()
    }

    #[test]
    fn a_secret_goes_with_its_account_and_is_filled_while_it_lives() {
        let kind = "kubernetes.io/service-account-token";
        let account = || object("a", "robot", Kind::ServiceAccount(auth::MirrorServiceAccount {}));
        assert_eq!(wanted(vec![object("a", "t", secret(kind, &[]))], &[]), ["tokens-controller Delete a/t "]);
        assert_eq!(
            wanted(vec![account(), object("a", "t", secret(kind, &[("token", "x")]))], &["a/t"]),
            [concat!(
                r#"tokens-controller Patch a/t {"data":{"namespace":"YQ=="},"metadata":{"annotations":"#,
                r#"{"kubernetes.io/service-account.uid":"uid-of-robot"},"#,
                r#""labels":{"kubernetes.io/legacy-token-last-used":"2001-09-09"}}}"#
            )]
        );
        assert_eq!(wanted(vec![object("a", "t", secret("Opaque", &[]))], &[]), Vec::<String>::new());
    }

    #[test]
    fn expired_bootstrap_tokens_go() {
        for (expiration, gone) in [
            ("2001-09-09T01:46:40Z", true),
            ("2001-09-09T01:46:41Z", false),
            ("next tuesday", true),
            ("", false),
        ] {
            let token = object(
                "kube-system",
                "bootstrap-token-abcdef",
                bootstrap_secret(&[("expiration", expiration)]),
            );
            assert_eq!(!wanted(vec![token], &[]).is_empty(), gone, "{expiration}");
        }
    }

    #[test]
    fn cluster_info_is_signed_with_each_token_that_may() {
        let info = |extra: &[(&str, &str)]| {
            let entries = [("kubeconfig", "k")].iter().chain(extra);
            let data = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            object("kube-public", "cluster-info", Kind::ConfigMap(auth::MirrorConfigMap { data }))
        };
        let token =
            |more: &[(&str, &str)]| object("kube-system", "bootstrap-token-abcdef", bootstrap_secret(more));
        let signature = detached("k", "abcdef", "abcdef.0123456789abcdef");
        let told = wanted(vec![info(&[]), token(&[])], &[]);
        let want = format!(
            r#"bootstrap-signer Patch kube-public/cluster-info {{"data":{{"jws-kubeconfig-abcdef":"{signature}"}}}}"#
        );
        assert_eq!(told, [want]);
        assert!(wanted(vec![info(&[("jws-kubeconfig-abcdef", &signature)]), token(&[])], &[]).is_empty());
        let removed =
            [r#"bootstrap-signer Patch kube-public/cluster-info {"data":{"jws-kubeconfig-zzzzzz":null}}"#];
        assert_eq!(wanted(vec![info(&[("jws-kubeconfig-zzzzzz", "x")])], &[]), removed);
        let silent = token(&[("usage-bootstrap-signing", "false")]);
        assert!(wanted(vec![info(&[]), silent], &[]).is_empty());
        let (header, rest) = signature.split_once("..").unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(header).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        assert_eq!(URL_SAFE_NO_PAD.decode(rest).unwrap().len(), 32);
    }
}
