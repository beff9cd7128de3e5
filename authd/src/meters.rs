//! Names and labels of all metrics, in one place.
//!
//! # Invariants
//!
//! INVARIANT (limited cardinality): labels are authenticators, authorizers and results, never users or
//! objects. Counters are looked up once, at start; counting is one atomic addition.

use std::sync::Arc;
use std::time::Duration;

use crate::authn::jwt::{FetchLabels, JwtMeters, LatencyLabels};
use crate::authn::webhook::TokenWebhookMeters;
use crate::authz::webhook::{self, WebhookMeters};
use crate::config::hot_reload::{ReloadLabels, ReloadMeters};
use apimachinery::decision::Verdict;
use serving::metrics::{Counter, Counters, Definition, Gauge, Histogram, Histograms, Metrics, Stability};

/// Label names with their values.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The labels of [`DECISIONS`]; authorizer names come from a configuration file.
type DecisionLabels = [(&'static str, String); 3];
/// Type and name of an authorizer.
type ModeLabels = [(&'static str, String); 2];

const AUTHENTICATIONS: Definition = Definition::new(
    "authentication_attempts_total",
    Stability::Alpha,
    "Authenticated requests, by the accepting method; `failure` if none accepted.",
);
const AUTHORIZATIONS: Definition =
    Definition::new("authorization_attempts_total", Stability::Alpha, "Authorized requests, by result.");
const DECISIONS: Definition = Definition::new(
    "apiserver_authorization_decisions_total",
    Stability::Alpha,
    "Decisions of an authorizer, by its type, its name and the decision.",
);
const EXCLUSIONS: Definition = Definition::new(
    "apiserver_authorization_match_condition_exclusions_total",
    Stability::Alpha,
    "Requests that skipped an authorizer because a match condition was false, by its type and name.",
);
const CONDITION_ERRORS: Definition = Definition::new(
    "apiserver_authorization_match_condition_evaluation_errors_total",
    Stability::Alpha,
    "Requests whose match conditions failed to evaluate, by type and name of the authorizer.",
);
const CONDITION_SECONDS: Definition = Definition::new(
    "apiserver_authorization_match_condition_evaluation_seconds",
    Stability::Alpha,
    "Duration in seconds of match-condition evaluation, by type and name of the authorizer.",
);
const WEBHOOK_EVALUATIONS: Definition = Definition::new(
    "apiserver_authorization_webhook_evaluations_total",
    Stability::Beta,
    "Requests sent to an authorization webhook, by its name and the result: success, timeout or error.",
);
const WEBHOOK_DURATION: Definition = Definition::new(
    "apiserver_authorization_webhook_duration_seconds",
    Stability::Beta,
    "Duration in seconds of authorization webhook calls, all attempts together, by name and result.",
);
const WEBHOOK_FAIL_OPEN: Definition = Definition::new(
    "apiserver_authorization_webhook_evaluations_fail_open_total",
    Stability::Beta,
    "Failed authorization webhook calls whose decision fell to the next authorizer, by name and result.",
);
const TOKEN_WEBHOOK_REQUESTS: Definition = Definition::new(
    "authd_token_webhook_requests_total",
    Stability::Alpha,
    "Tokens sent to the token webhook, by result: success, refused, timeout or error.",
);
const TOKEN_WEBHOOK_DURATION: Definition = Definition::new(
    "authd_token_webhook_duration_seconds",
    Stability::Alpha,
    "Duration in seconds of token webhook calls, all attempts together, by result.",
);
/// Histogram bucket limits of remote-service durations, in seconds.
const SERVICE_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Histogram bucket limits of [`CONDITION_SECONDS`].
const CONDITION_BOUNDS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const ROLES: Definition =
    Definition::new("authd_mirror_roles", Stability::Alpha, "Roles and ClusterRoles in the mirror.");
const BINDINGS: Definition = Definition::new(
    "authd_mirror_bindings",
    Stability::Alpha,
    "RoleBindings and ClusterRoleBindings in the mirror.",
);
const REVISION: Definition =
    Definition::new("authd_mirror_revision", Stability::Alpha, "Revision up to which the mirror is applied.");
const SYNCED: Definition = Definition::new(
    "authd_mirror_synced",
    Stability::Alpha,
    "1 while the feed from apid is connected and complete.",
);

const AUTHN_RELOADS: Definition = Definition::new(
    "apiserver_authentication_config_controller_automatic_reloads_total",
    Stability::Alpha,
    "Reloads of the authentication configuration, by status and server.",
);
const AUTHN_RELOADED: Definition = Definition::new(
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last authentication configuration reload, by status and server.",
);
const AUTHZ_RELOADS: Definition = Definition::new(
    "apiserver_authorization_config_controller_automatic_reloads_total",
    Stability::Alpha,
    "Reloads of the authorization configuration, by status and server.",
);
const AUTHZ_RELOADED: Definition = Definition::new(
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last authorization configuration reload, by status and server.",
);

const JWT_LATENCY: Definition = Definition::new(
    "apiserver_authentication_jwt_authenticator_latency_seconds",
    Stability::Alpha,
    "Duration in seconds of JWT authentication, by result and issuer; cache hits in apid are not counted.",
);
const JWKS_FETCHED: Definition = Definition::new(
    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last JWKS fetch, by result, issuer and server.",
);
/// Histogram bucket limits of [`JWT_LATENCY`], in seconds.
const JWT_LATENCIES: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// All metrics of the process.
#[derive(Debug)]
pub struct Meters {
    metrics: Metrics,
    authentications: Vec<(&'static str, Counter)>,
    allowed: Counter,
    denied: Counter,
    no_opinion: Counter,
    count_undecided: Counter,
    decisions: Counters<DecisionLabels>,
    exclusions: Counters<ModeLabels>,
    condition_errors: Counters<ModeLabels>,
    condition_seconds: Histograms<ModeLabels>,
    /// Authorization webhooks.
    pub webhooks: WebhookMeters,
    /// The token webhook.
    pub token_webhook: TokenWebhookMeters,
    /// Reloads of the authentication configuration.
    pub authn_reloads: ReloadMeters,
    /// Reloads of the authorization configuration.
    pub authz_reloads: ReloadMeters,
    /// JWT authenticators and their issuer keys.
    pub jwt: JwtMeters,
    mirror: MirrorGauges,
}

#[derive(Debug)]
struct MirrorGauges {
    roles: Gauge,
    bindings: Gauge,
    revision: Gauge,
    synced: Gauge,
}

/// The counters of one authorizer.
#[derive(Clone, Debug)]
pub struct ModeCounters {
    allowed: Counter,
    denied: Counter,
    excluded: Counter,
    condition_failed: Counter,
    condition_seconds: Histogram,
}

/// The state of the mirror for metrics.
#[derive(Clone, Copy, Debug)]
pub struct MirrorState {
    /// Roles and ClusterRoles.
    pub roles: usize,
    /// RoleBindings and ClusterRoleBindings.
    pub bindings: usize,
    /// See [`crate::mirror::Progress`].
    pub revision: u64,
    /// See [`crate::mirror::Progress`].
    pub synced: bool,
}

impl Meters {
    /// Creates all metrics at zero. `methods` are the authenticators that can accept.
    pub fn new(methods: impl IntoIterator<Item = &'static str>) -> Arc<Self> {
        Meters::in_registry(Metrics::new(), methods)
    }

    /// Like [`Meters::new`], in a registry that may show hidden metrics.
    pub fn in_registry(metrics: Metrics, methods: impl IntoIterator<Item = &'static str>) -> Arc<Self> {
        let attempts = metrics.counter::<Labels<2>>(&AUTHENTICATIONS);
        let of = |method: &'static str, result: &'static str| {
            attempts.get_or_create(&[("result", result), ("method", method)]).clone()
        };
        let mut authentications: Vec<(&'static str, Counter)> =
            methods.into_iter().map(|method| (method, of(method, "success"))).collect();
        authentications.push((FAILURE, of("", FAILURE)));
        let results = metrics.counter::<Labels<1>>(&AUTHORIZATIONS);
        let result = |result: &'static str| results.get_or_create(&[("result", result)]).clone();
        let (allowed, denied, no_opinion, count_undecided) =
            (result("allowed"), result("denied"), result("no-opinion"), result("error"));
        let decisions = metrics.counter::<DecisionLabels>(&DECISIONS);
        let exclusions = metrics.counter::<ModeLabels>(&EXCLUSIONS);
        let condition_errors = metrics.counter::<ModeLabels>(&CONDITION_ERRORS);
        let condition_seconds = metrics.histogram::<ModeLabels>(&CONDITION_SECONDS, CONDITION_BOUNDS);
        let webhooks = WebhookMeters {
            evaluations: metrics.counter::<webhook::Labels>(&WEBHOOK_EVALUATIONS),
            duration: metrics.histogram::<webhook::Labels>(&WEBHOOK_DURATION, SERVICE_SECONDS),
            fail_open: metrics.counter::<webhook::Labels>(&WEBHOOK_FAIL_OPEN),
        };
        let token_webhook = TokenWebhookMeters {
            requests: metrics.counter::<Labels<1>>(&TOKEN_WEBHOOK_REQUESTS),
            duration: metrics.histogram::<Labels<1>>(&TOKEN_WEBHOOK_DURATION, SERVICE_SECONDS),
        };
        let reloads = |total, last| ReloadMeters {
            total: metrics.counter::<ReloadLabels>(total),
            last: metrics.float_gauge::<ReloadLabels>(last),
        };
        let jwt = JwtMeters {
            latency: metrics.histogram::<LatencyLabels>(&JWT_LATENCY, JWT_LATENCIES),
            fetched: metrics.float_gauge::<FetchLabels>(&JWKS_FETCHED),
        };
        let authn_reloads = reloads(&AUTHN_RELOADS, &AUTHN_RELOADED);
        let authz_reloads = reloads(&AUTHZ_RELOADS, &AUTHZ_RELOADED);
        let mirror = MirrorGauges {
            roles: metrics.single_gauge(&ROLES),
            bindings: metrics.single_gauge(&BINDINGS),
            revision: metrics.single_gauge(&REVISION),
            synced: metrics.single_gauge(&SYNCED),
        };
        Arc::new(Meters {
            metrics,
            authentications,
            allowed,
            denied,
            no_opinion,
            count_undecided,
            decisions,
            exclusions,
            condition_errors,
            condition_seconds,
            webhooks,
            token_webhook,
            authn_reloads,
            authz_reloads,
            jwt,
            mirror,
        })
    }

    /// Returns the counters of an authorizer; its name is its type unless a configuration file names it.
    pub fn mode(&self, kind: &str, name: &str) -> ModeCounters {
        let of = |decision: &str| {
            let labels = [("type", kind), ("name", name), ("decision", decision)];
            self.decisions.get_or_create(&labels.map(|(label, value)| (label, value.to_owned()))).clone()
        };
        let labels = [("type", kind.to_owned()), ("name", name.to_owned())];
        ModeCounters {
            allowed: of("allowed"),
            denied: of("denied"),
            excluded: self.exclusions.get_or_create(&labels).clone(),
            condition_failed: self.condition_errors.get_or_create(&labels).clone(),
            condition_seconds: self.condition_seconds.get_or_create(&labels).clone(),
        }
    }

    /// Counts an authentication: the authenticator that accepted, or none.
    pub fn authenticated(&self, method: Option<&str>) {
        let method = method.unwrap_or(FAILURE);
        if let Some((_, counter)) = self.authentications.iter().find(|(name, _)| *name == method) {
            counter.inc();
        }
    }

    /// Counts a decision of all authorizers together.
    pub fn authorized(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.allowed.inc(),
            Verdict::Deny => self.denied.inc(),
            Verdict::NoOpinion => self.no_opinion.inc(),
        };
    }

    /// Counts a request that ended without a decision.
    pub fn count_undecided(&self) {
        self.count_undecided.inc();
    }

    /// Returns the counters of configuration reloads in the text format.
    pub fn reload_text(&self) -> String {
        let names = [AUTHN_RELOADS, AUTHN_RELOADED, AUTHZ_RELOADS, AUTHZ_RELOADED].map(|metric| metric.name);
        let is_reload = |line: &&str| {
            let sample =
                line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
            names
                .iter()
                .any(|name| sample.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
        };
        self.metrics.text().lines().filter(is_reload).flat_map(|line| [line, "\n"]).collect()
    }

    /// Returns all metrics in the text format.
    pub fn text(&self, state: MirrorState) -> String {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.mirror.roles.set(number(state.roles));
        self.mirror.bindings.set(number(state.bindings));
        self.mirror.revision.set(i64::try_from(state.revision).unwrap_or(i64::MAX));
        self.mirror.synced.set(i64::from(state.synced));
        self.metrics.text()
    }
}

impl ModeCounters {
    /// Counts a match condition that was false.
    pub fn excluded(&self) {
        self.excluded.inc();
    }

    /// Records the duration of a match-condition evaluation.
    pub fn matched(&self, took: Duration) {
        self.condition_seconds.observe(took.as_secs_f64());
    }

    /// Counts match conditions that failed.
    pub fn condition_failed(&self) {
        self.condition_failed.inc();
    }

    /// Counts the decision of an authorizer.
    pub fn count(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => {
                self.allowed.inc();
            }
            Verdict::Deny => {
                self.denied.inc();
            }
            Verdict::NoOpinion => (),
        }
    }
}

const FAILURE: &str = "failure";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_text_has_expected_names_and_labels() {
        let meters = Meters::new(["x509", "anonymous"]);
        meters.mode("RBAC", "RBAC").count(Verdict::Allow);
        meters.authenticated(Some("x509"));
        meters.authenticated(None);
        meters.authorized(Verdict::Allow);
        let text = meters.text(MirrorState { roles: 2, bindings: 3, revision: 4, synced: true });
        for line in [
            "authentication_attempts_total{result=\"success\",method=\"x509\"} 1",
            "authentication_attempts_total{result=\"success\",method=\"anonymous\"} 0",
            "authentication_attempts_total{result=\"failure\",method=\"\"} 1",
            "authorization_attempts_total{result=\"allowed\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 0",
            "apiserver_authorization_decisions_total{type=\"RBAC\",name=\"RBAC\",decision=\"allowed\"} 1",
            "authd_mirror_roles 2",
            "authd_mirror_bindings 3",
            "authd_mirror_revision 4",
            "authd_mirror_synced 1",
        ] {
            assert!(text.lines().any(|held| held == line), "{line} in\n{text}");
        }
    }
    #[test]
    fn reload_text_contains_only_reload_metrics() {
        let meters = Meters::new(["x509"]);
        meters.authenticated(Some("x509"));
        let clock = apimachinery::clock::ManualClock::at(jiff::Timestamp::from_second(7).unwrap());
        meters.authz_reloads.count("success", &clock);
        let text = meters.reload_text();
        let name = "apiserver_authorization_config_controller_automatic_reload";
        for line in [
            format!("# TYPE {name}s_total counter"),
            format!("{name}s_total{{apiserver_id_hash=\"\",status=\"success\"}} 1"),
            format!("{name}_last_timestamp_seconds{{apiserver_id_hash=\"\",status=\"success\"}} 7.0"),
        ] {
            assert!(text.lines().any(|held| held == line), "{line} in\n{text}");
        }
        assert!(text.lines().all(|line| line.contains("_config_controller_automatic_reload")), "{text}");
    }
}
