//! May they: the configured modes are asked in order, one file a mode.
//!
//! # Contract
//!
//! The group `system:masters` is allowed before any mode is asked (requirements A-AZD-43 to A-AZD-45). Then the first
//! mode that allows or denies decides; when none has an opinion the request is refused (A-AZD-3 to A-AZD-8). An answer
//! names the components of the policy vector it depended on, exactly: those that a mode read which was asked.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a mode reads the mirror only through [`Mirror::policy`] with the question's revision; when
//! the mirror is not there the whole question is [`NotYet`], and no partial answer exists.
//! INVARIANT (any name): an answer holds for other names only when every mode that was asked says so.

mod abac;
pub mod access_review;
mod always;
pub mod conditions;
pub mod entry;
pub mod escalation;
mod node;
mod rbac;
pub mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::names::Names;
use apimachinery::user::{MASTERS, UserInfo};
use async_trait::async_trait;
use authproto::auth::Dependencies;

use crate::meters::{Meters, ModeCounters};
use crate::mirror::{Mirror, NotYet};
use crate::rules::PolicyRule;
use conditions::{Conditions, Match};
use entry::{Entry, OnFailure, Webhook};
use webhook::Webhooks;

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who asks.
    pub user: &'a UserInfo,
    /// What for.
    pub attributes: &'a Attributes,
    /// The policy must be at least of this revision.
    pub at_least: u64,
    /// Explain a refusal.
    pub explain: bool,
}

/// One mode's answer, and the answer of all.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The zero value refuses.
    pub decision: Decision,
    /// What it depended on.
    pub depends_on: Dependencies,
    /// It holds for every name of the same resource and namespace.
    pub any_name: bool,
    /// The nearest misses of a refusal, when asked for.
    pub explanation: Vec<String>,
    /// How long it may be kept, where nothing tells when it ends (an answer of another service); None: until what it
    /// depends on changes.
    pub ttl: Option<Duration>,
}

/// What a user may do in a namespace, as far as the modes can list it.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Rules on resources and on paths.
    pub rules: Vec<PolicyRule>,
    /// A mode cannot list its rules.
    pub incomplete: bool,
    /// Problems on the way.
    pub problems: Vec<String>,
}

/// What the modes are configured with by flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The names preset.
    pub names: Arc<Names>,
    /// Gate `AuthorizeNodeWithSelectors`: nodes read their own Node and pods alone.
    pub nodes_by_selectors: bool,
    /// The policies of mode ABAC.
    pub policy_file: Option<PathBuf>,
    /// What webhooks stand on.
    pub webhooks: Webhooks,
}

/// A configured mode. One that decides from memory answers without waiting; one that asks another service waits for it.
#[async_trait]
trait Authorizer: Send + Sync {
    async fn authorize(&self, question: Question<'_>) -> Result<Answer, NotYet>;
    fn rules(&self, user: &UserInfo, namespace: &str, at_least: u64) -> Result<Rules, NotYet>;
}

/// Makes a mode, or says which flag or file is wrong.
type Build = fn(&Settings, &Entry, &Arc<Mirror>) -> Result<Box<dyn Authorizer>, String>;

/// The modes by name, with what `--help` says of them.
const MODES: &[(&str, &str, Build)] = &[
    ("AlwaysAllow", "allows every request; for testing only", always::allow),
    ("AlwaysDeny", "refuses every request; for testing only", always::deny),
    ("RBAC", "roles and bindings", rbac::build),
    ("Node", "what node agents need of the pods on their nodes", node::build),
    ("ABAC", "attribute policies from a file", abac::build),
    ("Webhook", "asks a remote service", webhook::build),
];

/// The modes for `--help`: a line each.
pub fn help() -> String {
    let lines = MODES.iter().map(|(name, about, _)| format!("{name}: {about}"));
    lines.collect::<Vec<_>>().join("; ")
}

/// The mode of a type, as [`Entry`] holds it; None when no mode is called so.
pub fn kind(name: &str) -> Option<&'static str> {
    MODES.iter().find(|(known, ..)| *known == name).map(|(known, ..)| *known)
}

/// The types of all modes.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    MODES.iter().map(|(name, ..)| *name)
}

/// A checked list of modes.
#[derive(Clone, Debug)]
pub struct Modes {
    entries: Vec<Entry>,
    /// What the log should say at start.
    pub warnings: Vec<String>,
}

impl Modes {
    /// Checks `--authorization-mode`; None is the flag left out, which allows everything.
    ///
    /// # Errors
    ///
    /// Every mistake.
    pub fn parse(flag: Option<&str>) -> Result<Self, Vec<String>> {
        let Some(flag) = flag else {
            let warning = "no --authorization-mode: every request is allowed (AlwaysAllow)".to_owned();
            return Ok(Modes { entries: vec![Entry::of("AlwaysAllow")], warnings: vec![warning] });
        };
        let mut entries: Vec<Entry> = Vec::new();
        let mut mistakes = Vec::new();
        for word in flag.split(',') {
            match kind(word) {
                None => mistakes.push(format!(
                    "--authorization-mode: unknown mode `{word}`: use {}",
                    kinds().collect::<Vec<_>>().join(", ")
                )),
                Some(kind) if entries.iter().any(|entry| entry.kind == kind) => {
                    mistakes.push(format!("--authorization-mode: `{kind}` comes twice"));
                }
                Some(kind) => entries.push(Entry::of(kind)),
            }
        }
        if mistakes.is_empty() { Ok(Modes::of(entries)) } else { Err(mistakes) }
    }

    /// These modes in this order.
    pub fn of(entries: Vec<Entry>) -> Self {
        let allows = entries.iter().any(|entry| entry.kind == "AlwaysAllow");
        let warning = || "authorization mode AlwaysAllow: every request is allowed".to_owned();
        Modes { entries, warnings: allows.then(warning).into_iter().collect() }
    }

    /// Webhooks that a flag names and nobody has told yet how they are asked are asked so.
    #[must_use]
    pub fn with_webhook(mut self, how: Option<Webhook>) -> Self {
        for entry in
            self.entries.iter_mut().filter(|entry| entry.kind == "Webhook" && entry.webhook.is_none())
        {
            entry.webhook.clone_from(&how);
        }
        self
    }

    /// The modes in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether every request is allowed by some mode: anonymous access is then off unless it is asked for.
    pub fn allow_everything(&self) -> bool {
        self.has("AlwaysAllow")
    }

    /// Whether a mode of this type is among them.
    pub fn has(&self, kind: &str) -> bool {
        self.entries.iter().any(|entry| entry.kind == kind)
    }
}

/// The configured modes in order.
pub struct Union {
    modes: Vec<Mode>,
    /// See [`Union::asks_others`].
    asks_others: bool,
}

struct Mode {
    name: String,
    authorizer: Box<dyn Authorizer>,
    /// Which questions it is asked, and what is decided when that cannot be told; of a webhook.
    conditions: Option<(Arc<Conditions>, OnFailure)>,
    counters: ModeCounters,
    clock: Arc<dyn Clock>,
}

impl Mode {
    async fn authorize(&self, question: Question<'_>) -> Result<Answer, NotYet> {
        let Some((conditions, on_failure)) = &self.conditions else {
            return self.authorizer.authorize(question).await;
        };
        let mut skipped = Answer::default();
        let begun = self.clock.monotonic();
        let matched = conditions.check(question.user, question.attributes);
        self.counters.matched(self.clock.monotonic().saturating_sub(begun));
        match matched {
            Match::Matches => return self.authorizer.authorize(question).await,
            Match::Skipped => {
                self.counters.excluded();
                skipped.decision.verdict = Verdict::NoOpinion;
            }
            Match::Failed(problem) => {
                self.counters.condition_failed();
                tracing::warn!(mode = self.name, problem, "match conditions of an authorizer failed");
                skipped.decision.verdict = on_failure.verdict();
                skipped.decision.evaluation_error = format!("{}: match conditions: {problem}", self.name);
            }
        }
        Ok(skipped)
    }
}

impl Union {
    /// The modes over a mirror.
    ///
    /// # Errors
    ///
    /// Every mode that cannot be made, a line each.
    pub fn build(
        modes: &Modes,
        settings: &Settings,
        mirror: &Arc<Mirror>,
        meters: &Meters,
    ) -> Result<Self, Vec<String>> {
        let mut built = Vec::new();
        let mut mistakes = Vec::new();
        for entry in &modes.entries {
            let Entry { kind, name, webhook } = entry;
            let Some((.., build)) = MODES.iter().find(|(known, ..)| known == kind) else {
                continue;
            };
            match build(settings, entry, mirror) {
                Ok(authorizer) => built.push(Mode {
                    name: name.clone(),
                    authorizer,
                    conditions: webhook
                        .as_ref()
                        .filter(|webhook| !webhook.conditions.is_empty())
                        .map(|webhook| (Arc::clone(&webhook.conditions), webhook.on_failure)),
                    counters: meters.mode(kind, name),
                    clock: Arc::clone(&settings.webhooks.ground.clock),
                }),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        let asks_others = modes.has("Webhook");
        if mistakes.is_empty() { Ok(Union { modes: built, asks_others }) } else { Err(mistakes) }
    }

    /// No mode: nothing is allowed but to `system:masters`.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        Union { modes: Vec::new(), asks_others: false }
    }

    /// The modes of a flag, over a mirror.
    #[cfg(test)]
    pub(crate) fn of(flag: &str, mirror: &Arc<Mirror>) -> Self {
        let modes = Modes::parse(Some(flag)).expect("a good flag");
        let settings = Settings {
            names: Arc::new(tests::names()),
            nodes_by_selectors: true,
            policy_file: None,
            webhooks: Webhooks::new(crate::webhook::Ground {
                names: Arc::new(tests::names()),
                clock: Arc::new(apimachinery::clock::SystemClock::new()),
                chance: Arc::new(apimachinery::clock::SystemChance),
            }),
        };
        Union::build(&modes, &settings, mirror, &Meters::new([])).expect("modes that can be made")
    }

    /// Whether another service may take part in a decision.
    pub fn asks_others(&self) -> bool {
        self.asks_others
    }

    /// Decides one question.
    ///
    /// # Errors
    ///
    /// [`NotYet`]: ask again when the mirror is there.
    pub async fn authorize(&self, question: Question<'_>) -> Result<Answer, NotYet> {
        if question.user.in_group(MASTERS) {
            let decision = Decision { verdict: Verdict::Allow, ..Decision::default() };
            return Ok(Answer { decision, any_name: true, ..Answer::default() });
        }
        let mut all = Answer { any_name: true, ..Answer::default() };
        all.decision.verdict = Verdict::NoOpinion;
        for mode in &self.modes {
            let answer = mode.authorize(question).await?;
            mode.counters.count(answer.decision.verdict);
            merge(&mut all.depends_on, answer.depends_on);
            all.any_name = all.any_name && answer.any_name;
            all.ttl = [all.ttl, answer.ttl].into_iter().flatten().min();
            match answer.decision.verdict {
                Verdict::Allow | Verdict::Deny => {
                    all.decision = answer.decision;
                    all.explanation.extend(answer.explanation);
                    return Ok(all);
                }
                Verdict::NoOpinion => {
                    append(&mut all.decision.reason, &answer.decision.reason);
                    append(&mut all.decision.evaluation_error, &answer.decision.evaluation_error);
                    all.explanation.extend(answer.explanation);
                }
            }
        }
        Ok(all)
    }

    /// Everything the user may do in a namespace.
    ///
    /// # Errors
    ///
    /// [`NotYet`].
    pub fn rules(&self, user: &UserInfo, namespace: &str, at_least: u64) -> Result<Rules, NotYet> {
        let mut all = Rules::default();
        for mode in &self.modes {
            let rules = mode.authorizer.rules(user, namespace, at_least)?;
            all.rules.extend(rules.rules);
            all.incomplete |= rules.incomplete;
            all.problems.extend(rules.problems);
        }
        Ok(all)
    }
}

impl std::fmt::Debug for Union {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.modes.iter().map(|mode| &mode.name)).finish()
    }
}

fn append(all: &mut String, more: &str) {
    if !more.is_empty() {
        if !all.is_empty() {
            all.push('\n');
        }
        all.push_str(more);
    }
}

fn merge(all: &mut Dependencies, more: Dependencies) {
    all.rbac_cluster |= more.rbac_cluster;
    all.identity |= more.identity;
    for (held, more) in
        [(&mut all.rbac_namespace, more.rbac_namespace), (&mut all.graph_node, more.graph_node)]
    {
        for item in more {
            if !held.contains(&item) {
                held.push(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use futures_util::FutureExt as _;

    pub(super) fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    #[test]
    fn the_flag_is_checked_whole() {
        for (flag, want) in [
            (None, Ok((vec!["AlwaysAllow"], 1))),
            (Some("RBAC"), Ok((vec!["RBAC"], 0))),
            (Some("Node,RBAC"), Ok((vec!["Node", "RBAC"], 0))),
            (Some("RBAC,AlwaysDeny"), Ok((vec!["RBAC", "AlwaysDeny"], 0))),
            (Some("RBAC,RBAC"), Err(1)),
            (Some("RBAC,ABAC"), Ok((vec!["RBAC", "ABAC"], 0))),
            (Some("ABAC,Webhook"), Ok((vec!["ABAC", "Webhook"], 0))),
            (Some("rbac"), Err(1)),
            (Some(""), Err(1)),
            (Some("Foo,RBAC,Bar"), Err(2)),
        ] {
            let got = Modes::parse(flag)
                .map(|m| (m.entries.iter().map(|entry| entry.kind).collect::<Vec<_>>(), m.warnings.len()))
                .map_err(|mistakes| mistakes.len());
            assert_eq!(got, want, "{flag:?}");
        }
    }

    #[test]
    fn order_decides_and_masters_come_first() {
        let mirror = Mirror::new(Arc::new(names()));
        let mut feed = mirror.begin();
        feed.synced(1).unwrap();
        let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
        let master = UserInfo { groups: vec![MASTERS.into()], ..user.clone() };
        let attributes =
            Attributes { resource_request: true, namespace: "a".into(), ..Attributes::default() };
        for (modes, want, reason, rbac) in [
            ("AlwaysAllow", Verdict::Allow, "", false),
            ("AlwaysDeny", Verdict::NoOpinion, "Everything is forbidden.", false),
            ("AlwaysDeny,AlwaysAllow", Verdict::Allow, "", false),
            ("AlwaysAllow,RBAC", Verdict::Allow, "", false),
            ("RBAC,AlwaysAllow", Verdict::Allow, "", true),
            ("RBAC,AlwaysDeny", Verdict::NoOpinion, "Everything is forbidden.", true),
            ("Node,RBAC", Verdict::NoOpinion, "", true),
            ("Node", Verdict::NoOpinion, "", false),
        ] {
            let union = Union::of(modes, &mirror);
            let decide =
                |question| union.authorize(question).now_or_never().expect("it waits for nobody").unwrap();
            let ask = |user| Question { user, attributes: &attributes, at_least: 1, explain: false };
            let answer = decide(ask(&user));
            assert_eq!((answer.decision.verdict, answer.decision.reason.as_str()), (want, reason), "{modes}");
            let namespaces: &[&str] = if rbac { &["a"] } else { &[] };
            assert_eq!(answer.depends_on.rbac_cluster, rbac, "{modes}");
            assert_eq!(answer.depends_on.rbac_namespace, namespaces, "{modes}");
            let answer = decide(Question { at_least: u64::MAX, ..ask(&master) });
            assert!(
                answer.decision.allowed() && answer.depends_on == Dependencies::default(),
                "{modes}: masters"
            );
        }
    }
}
