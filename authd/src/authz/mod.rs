//! Authorization: the configured authorizers run in order, one file per authorizer.
//!
//! # Contract
//!
//! The group `system:masters` is allowed before any authorizer runs (requirements A-AZD-43 to A-AZD-45).
//! Then the first authorizer that allows or denies decides; if none has an opinion, the request is forbidden
//! (A-AZD-3 to A-AZD-8).
//! A decision lists exactly the components of the policy revisions that the consulted authorizers read.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): an authorizer reads the mirror only through [`Mirror::policy`] and
//! [`Mirror::graph`], with the minimum revision of the request. If the mirror is older, the whole request
//! fails with [`MirrorNotReady`]; there is no partial decision.
//! INVARIANT (any name): a decision applies to other object names only if every consulted authorizer reports
//! that its opinion applies to them.

pub mod abac;
pub mod access_review;
mod always;
pub mod conditions;
pub mod entry;
pub mod escalation;
mod metrics;
mod node;
pub mod opinion;
mod rbac;
pub mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::{MASTERS, UserInfo};
use async_trait::async_trait;
use authproto::auth::Dependencies;

use crate::config_error::ConfigError;
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::rules::{Explanation, PolicyRule};
use crate::webhook::WebhookContext;
use conditions::{ConditionResult, Conditions};
use entry::{Entry, OnFailure, WebhookSettings};
use metrics::AuthorizerCounters;
pub use metrics::AuthzMetrics;
use opinion::{Opinion, Opinions};

/// The flag with the ordered list of modes.
const MODE_FLAG: &str = "--authorization-mode";

/// One authorization request, as authorizers see it.
#[derive(Clone, Copy, Debug)]
pub struct AuthzRequest<'a> {
    /// The user who makes the request.
    pub user: &'a UserInfo,
    /// The attributes of the request.
    pub attributes: &'a Attributes,
    /// The mirror of the apid that sent the request, at its minimum revision.
    pub at_least: AtLeast<'a>,
}

/// The decision of one authorizer, or of all together.
#[derive(Clone, Debug, Default)]
pub struct AuthzOutcome {
    /// The decision with its reason; the default denies.
    pub decision: Decision,
    /// The components of the policy revisions that the decision depends on.
    pub depends_on: Dependencies,
    /// The decision applies to every object name of the same resource and namespace.
    pub any_name: bool,
    /// The time for which a decision that involves a webhook may be cached.
    /// None if the decision is valid until its dependencies change.
    pub ttl: Option<Duration>,
}

/// The rules of a user in a namespace, as far as the authorizers can list them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Rules on resources and on paths.
    pub rules: Vec<PolicyRule>,
    /// An authorizer cannot list its rules, so the list is incomplete.
    pub incomplete: bool,
    /// Errors while the rules were collected, such as a missing role.
    pub problems: Vec<String>,
}

/// Settings of the authorizers, from flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Gate `AuthorizeNodeWithSelectors`: nodes read their own Node and pods only.
    pub nodes_by_selectors: bool,
    /// `--authorization-policy-file`: the policies of mode ABAC.
    pub policy_file: Option<PathBuf>,
    /// Parts of the process: names preset, clock and random source.
    pub context: WebhookContext,
    /// The metrics of all authorizers.
    pub metrics: AuthzMetrics,
}

impl Settings {
    /// Creates the settings without flags, and registers the metrics.
    pub fn new(context: WebhookContext) -> Self {
        let metrics = AuthzMetrics::register(&context.metrics);
        Settings { nodes_by_selectors: true, policy_file: None, context, metrics }
    }
}

/// A configured authorizer.
/// `authorize` returns at once if it decides from memory; a webhook waits for its service.
#[async_trait]
trait Authorizer: Send + Sync {
    async fn authorize(&self, request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady>;
    fn rules(&self, user: &UserInfo, namespace: &str, at_least: AtLeast<'_>)
    -> Result<Rules, MirrorNotReady>;

    /// Explains the opinion; the explanation of an authorizer without rules in memory is empty.
    fn explain(&self, _: AuthzRequest<'_>) -> Result<Explanation, MirrorNotReady> {
        Ok(Explanation::default())
    }
}

/// Builds an authorizer. The error names the invalid flag or file.
type BuildAuthorizer = fn(&Settings, &Entry) -> Result<Box<dyn Authorizer>, ConfigError>;

/// All authorizer types with their `--help` texts.
const MODES: &[(&str, &str, BuildAuthorizer)] = &[
    ("AlwaysAllow", "allows every request; for testing only", always::allow),
    ("AlwaysDeny", "denies every request; for testing only", always::deny),
    ("RBAC", "roles and bindings", rbac::build),
    ("Node", "Nodes and pods of node agents, and the objects of those pods", node::build),
    ("ABAC", "attribute policies from a file", abac::build),
    ("Webhook", "calls a remote service", webhook::build),
];

/// Returns the list of authorizer types for `--help`.
pub fn help() -> String {
    let lines = MODES.iter().map(|(name, about, _)| format!("{name}: {about}"));
    lines.collect::<Vec<_>>().join("; ")
}

/// The static name of an authorizer type, as [`Entry`] stores it; None if the type is unknown.
pub fn kind(name: &str) -> Option<&'static str> {
    MODES.iter().find(|(known, ..)| *known == name).map(|(known, ..)| *known)
}

/// Returns the names of all authorizer types.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    MODES.iter().map(|(name, ..)| *name)
}

/// A valid list of authorizers with their settings, not built yet.
#[derive(Clone, Debug)]
pub struct Modes {
    entries: Vec<Entry>,
    /// Warnings for the log at start.
    pub warnings: Vec<String>,
}

impl Modes {
    /// Parses `--authorization-mode`; without the flag (None) the mode is AlwaysAllow.
    ///
    /// # Errors
    ///
    /// All unknown and all duplicate modes.
    pub fn parse(flag: Option<&str>) -> Result<Self, Vec<ConfigError>> {
        let Some(flag) = flag else {
            let warning = "no --authorization-mode: every request is allowed (AlwaysAllow)".to_owned();
            return Ok(Modes { entries: vec![Entry::for_kind("AlwaysAllow")], warnings: vec![warning] });
        };
        let mut entries: Vec<Entry> = Vec::new();
        let mut errors = Vec::new();
        for word in flag.split(',') {
            match kind(word) {
                None => errors.push(ConfigError::flag(
                    MODE_FLAG,
                    format!("unknown mode `{word}`: use {}", kinds().collect::<Vec<_>>().join(", ")),
                )),
                Some(kind) if entries.iter().any(|entry| entry.kind == kind) => {
                    errors.push(ConfigError::flag(MODE_FLAG, format!("`{kind}` is duplicated")));
                }
                Some(kind) => entries.push(Entry::for_kind(kind)),
            }
        }
        if errors.is_empty() { Ok(Modes::from_entries(entries)) } else { Err(errors) }
    }

    /// Creates the list from checked entries in order.
    pub fn from_entries(entries: Vec<Entry>) -> Self {
        let has_always_allow = entries.iter().any(|entry| entry.kind == "AlwaysAllow");
        let warning = || "authorization mode AlwaysAllow: every request is allowed".to_owned();
        Modes { entries, warnings: has_always_allow.then(warning).into_iter().collect() }
    }

    /// Sets the settings of `Webhook` entries without settings, which `--authorization-mode` created.
    #[must_use]
    pub fn with_webhook(mut self, settings: Option<WebhookSettings>) -> Self {
        for entry in
            self.entries.iter_mut().filter(|entry| entry.kind == "Webhook" && entry.webhook.is_none())
        {
            entry.webhook.clone_from(&settings);
        }
        self
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The client configuration files of the webhooks.
    pub fn client_configs(&self) -> Vec<PathBuf> {
        let webhooks = self.entries.iter().filter_map(|entry| entry.webhook.as_ref());
        webhooks.map(|webhook| webhook.client_config.clone()).collect()
    }

    /// Whether AlwaysAllow is configured; anonymous access is then off by default.
    pub fn has_always_allow(&self) -> bool {
        self.has("AlwaysAllow")
    }

    /// Whether an authorizer of this type is configured.
    pub fn has(&self, kind: &str) -> bool {
        self.entries.iter().any(|entry| entry.kind == kind)
    }
}

/// The configured authorizers in order.
pub struct Union {
    modes: Vec<Mode>,
    /// See [`Union::uses_remote_service`].
    uses_remote_service: bool,
}

struct Mode {
    name: String,
    kind: &'static str,
    authorizer: Box<dyn Authorizer>,
    /// The match conditions of a webhook, and the failure policy for their evaluation.
    conditions: Option<(Arc<Conditions>, OnFailure)>,
    counters: AuthorizerCounters,
    clock: Arc<dyn Clock>,
}

impl Mode {
    async fn authorize(&self, request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let Some((conditions, on_failure)) = &self.conditions else {
            return self.authorizer.authorize(request).await;
        };
        let mut outcome = AuthzOutcome::default();
        let started = self.clock.monotonic();
        let result = conditions.check(request.user, request.attributes);
        self.counters.observe_condition(self.clock.monotonic().saturating_sub(started));
        match result {
            ConditionResult::Matches => return self.authorizer.authorize(request).await,
            ConditionResult::Skipped => {
                self.counters.count_exclusion();
                outcome.decision.verdict = Verdict::NoOpinion;
            }
            ConditionResult::Failed(problem) => {
                self.counters.count_condition_error();
                tracing::warn!(mode = self.name, problem, "authorizer match conditions failed");
                outcome.decision.verdict = on_failure.verdict();
                outcome.decision.evaluation_error = format!("{}: match conditions: {problem}", self.name);
            }
        }
        Ok(outcome)
    }
}

impl Union {
    /// Builds the authorizers.
    ///
    /// # Errors
    ///
    /// One error for each authorizer that cannot be built.
    pub fn build(modes: &Modes, settings: &Settings) -> Result<Self, Vec<ConfigError>> {
        let mut authorizers = Vec::new();
        let mut errors = Vec::new();
        for entry in &modes.entries {
            let Entry { kind, name, webhook } = entry;
            let Some((.., build)) = MODES.iter().find(|(known, ..)| known == kind) else {
                continue;
            };
            match build(settings, entry) {
                Ok(authorizer) => authorizers.push(Mode {
                    name: name.clone(),
                    kind,
                    authorizer,
                    conditions: webhook
                        .as_ref()
                        .filter(|webhook| !webhook.conditions.is_empty())
                        .map(|webhook| (Arc::clone(&webhook.conditions), webhook.on_failure)),
                    counters: settings.metrics.counters(kind, name),
                    clock: Arc::clone(&settings.context.clock),
                }),
                Err(error) => errors.push(error),
            }
        }
        let uses_remote_service = modes.has("Webhook");
        if errors.is_empty() { Ok(Union { modes: authorizers, uses_remote_service }) } else { Err(errors) }
    }

    /// No authorizer: only `system:masters` is allowed.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Union { modes: Vec::new(), uses_remote_service: false }
    }

    /// Builds the authorizers of a value of `--authorization-mode`.
    #[cfg(test)]
    pub(crate) fn from_flag(flag: &str) -> Self {
        let modes = Modes::parse(Some(flag)).expect("a good flag");
        let settings = Settings::new(WebhookContext::new(Arc::new(tests::names()), Arc::default()));
        Union::build(&modes, &settings).expect("modes that can be made")
    }

    /// Whether a decision may call a webhook.
    pub fn uses_remote_service(&self) -> bool {
        self.uses_remote_service
    }

    /// Decides one request.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`]: retry when the mirror has reached the minimum revision.
    pub async fn authorize(&self, request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        if request.user.in_group(MASTERS) {
            let decision = Decision { verdict: Verdict::Allow, ..Decision::default() };
            return Ok(AuthzOutcome { decision, any_name: true, ..AuthzOutcome::default() });
        }
        let mut outcome = AuthzOutcome { any_name: true, ..AuthzOutcome::default() };
        outcome.decision.verdict = Verdict::NoOpinion;
        for mode in &self.modes {
            let answer = mode.authorize(request).await?;
            mode.counters.count_decision(answer.decision.verdict);
            add_dependencies(&mut outcome.depends_on, answer.depends_on);
            outcome.any_name = outcome.any_name && answer.any_name;
            outcome.ttl = [outcome.ttl, answer.ttl].into_iter().flatten().min();
            match answer.decision.verdict {
                Verdict::Allow | Verdict::Deny => {
                    outcome.decision = answer.decision;
                    return Ok(outcome);
                }
                Verdict::NoOpinion => {
                    append_line(&mut outcome.decision.reason, &answer.decision.reason);
                    append_line(&mut outcome.decision.evaluation_error, &answer.decision.evaluation_error);
                }
            }
        }
        Ok(outcome)
    }

    /// Runs the authorizers in order until one decides, and returns each opinion with its explanation.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub async fn opinions(&self, request: AuthzRequest<'_>) -> Result<Opinions, MirrorNotReady> {
        let mut undecided = Decision { verdict: Verdict::NoOpinion, ..Decision::default() };
        let mut list = Vec::new();
        let mut is_decided = request.user.in_group(MASTERS);
        if is_decided {
            let reason = format!("the user is in the group {MASTERS}, which may do everything");
            let decision = Decision { verdict: Verdict::Allow, reason, ..Decision::default() };
            list.push(Opinion {
                name: MASTERS.to_owned(),
                kind: "Group",
                decision: Some(decision),
                ..Opinion::default()
            });
        }
        for mode in &self.modes {
            let mut opinion = Opinion { name: mode.name.clone(), kind: mode.kind, ..Opinion::default() };
            if !is_decided {
                let started = mode.clock.monotonic();
                let decision = mode.authorize(request).await?.decision;
                opinion.latency = mode.clock.monotonic().saturating_sub(started);
                opinion.explanation = mode.authorizer.explain(request)?;
                is_decided = decision.verdict != Verdict::NoOpinion;
                append_line(&mut undecided.reason, &decision.reason);
                append_line(&mut undecided.evaluation_error, &decision.evaluation_error);
                opinion.decision = Some(decision);
            }
            list.push(opinion);
        }
        Ok(Opinions { list, undecided })
    }

    /// Returns the nearest misses of a denied request, one line each. Calls no webhook.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn nearest_misses(&self, request: AuthzRequest<'_>) -> Result<Vec<String>, MirrorNotReady> {
        let mut lines = Vec::new();
        for mode in &self.modes {
            lines.extend(mode.authorizer.explain(request)?.nearest_lines());
        }
        Ok(lines)
    }

    /// Returns the rules of the user in a namespace.
    ///
    /// # Errors
    ///
    /// [`MirrorNotReady`].
    pub fn rules(
        &self,
        user: &UserInfo,
        namespace: &str,
        at_least: AtLeast<'_>,
    ) -> Result<Rules, MirrorNotReady> {
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

fn append_line(text: &mut String, line: &str) {
    if !line.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(line);
    }
}

fn add_dependencies(all: &mut Dependencies, more: Dependencies) {
    all.rbac_cluster |= more.rbac_cluster;
    all.identity |= more.identity;
    for (items, more) in
        [(&mut all.rbac_namespace, more.rbac_namespace), (&mut all.graph_node, more.graph_node)]
    {
        for item in more {
            if !items.contains(&item) {
                items.push(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::Mirror;
    use apimachinery::names::{Names, Preset};
    use futures_util::FutureExt as _;

    pub(super) fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    #[test]
    fn authorization_mode_flag_reports_all_errors() {
        for (flag, expected) in [
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
                .map_err(|errors| errors.len());
            assert_eq!(got, expected, "{flag:?}");
        }
    }

    #[test]
    fn authorizer_order_decides_after_system_masters() {
        let mirror = Mirror::new(Arc::new(names()));
        let mut feed = mirror.begin();
        feed.synced(1).unwrap();
        let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
        let master = UserInfo { groups: vec![MASTERS.into()], ..user.clone() };
        let attributes =
            Attributes { resource_request: true, namespace: "a".into(), ..Attributes::default() };
        for (modes, expected, reason, rbac) in [
            ("AlwaysAllow", Verdict::Allow, "", false),
            ("AlwaysDeny", Verdict::NoOpinion, "Everything is forbidden.", false),
            ("AlwaysDeny,AlwaysAllow", Verdict::Allow, "", false),
            ("AlwaysAllow,RBAC", Verdict::Allow, "", false),
            ("RBAC,AlwaysAllow", Verdict::Allow, "", true),
            ("RBAC,AlwaysDeny", Verdict::NoOpinion, "Everything is forbidden.", true),
            ("Node,RBAC", Verdict::NoOpinion, "", true),
            ("Node", Verdict::NoOpinion, "", false),
        ] {
            let union = Union::from_flag(modes);
            let decide =
                |request| union.authorize(request).now_or_never().expect("it does not wait").unwrap();
            let request_of =
                |user| AuthzRequest { user, attributes: &attributes, at_least: mirror.at_least(1) };
            let answer = decide(request_of(&user));
            assert_eq!(
                (answer.decision.verdict, answer.decision.reason.as_str()),
                (expected, reason),
                "{modes}"
            );
            let namespaces: &[&str] = if rbac { &["a"] } else { &[] };
            assert_eq!(answer.depends_on.rbac_cluster, rbac, "{modes}");
            assert_eq!(answer.depends_on.rbac_namespace, namespaces, "{modes}");
            let answer = decide(AuthzRequest { at_least: mirror.at_least(u64::MAX), ..request_of(&master) });
            assert!(
                answer.decision.allowed() && answer.depends_on == Dependencies::default(),
                "{modes}: masters"
            );
        }
    }
}
