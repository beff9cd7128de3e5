//! Names, labels and help texts of all metrics; one file for each component with metrics.
//!
//! # Contract
//!
//! A component gets its counters and histograms from [`AuthdMetrics`]. This module imports no component.
//!
//! # Invariants
//!
//! INVARIANT (limited cardinality): labels are authenticators, authorizers, issuers and results, never users
//! or objects. The counters of authentications and decisions are looked up when they are created, so counting
//! is one atomic addition.

mod authorizer;
mod jwt;
mod reload;
mod webhook;

use std::sync::Arc;

use apimachinery::decision::Verdict;
use serving::metrics::{Counter, Definition, Gauge, Metrics, Stability};

pub use authorizer::AuthorizerCounters;
use authorizer::AuthorizerFamilies;
pub use jwt::JwtMetrics;
pub use reload::ReloadMetrics;
pub use webhook::{TokenWebhookMetrics, WebhookMetrics};

/// The names and values of `N` labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

const AUTHENTICATIONS: Definition = Definition::new(
    "authentication_attempts_total",
    Stability::Alpha,
    "Authenticated requests, by the accepting method; `failure` if none accepted",
);
const AUTHORIZATIONS: Definition =
    Definition::new("authorization_attempts_total", Stability::Alpha, "Authorized requests, by result");
const ROLES: Definition =
    Definition::new("authd_mirror_roles", Stability::Alpha, "Roles and ClusterRoles in the mirror");
const BINDINGS: Definition = Definition::new(
    "authd_mirror_bindings",
    Stability::Alpha,
    "RoleBindings and ClusterRoleBindings in the mirror",
);
const REVISION: Definition =
    Definition::new("authd_mirror_revision", Stability::Alpha, "Revision up to which the mirror is applied");
const SYNCED: Definition = Definition::new(
    "authd_mirror_synced",
    Stability::Alpha,
    "1 while the mirror stream of apid is open and the mirror is complete",
);

/// The prefix of the metrics of authd that apid also exports.
const SHARED_PREFIX: &str = "apiserver_";
/// The label value of a failed authentication.
const FAILURE: &str = "failure";
/// Histogram bucket limits of the duration of webhook calls, in seconds.
const WEBHOOK_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// All metrics of the process.
#[derive(Debug)]
pub struct AuthdMetrics {
    registry: Metrics,
    authentications: Vec<(&'static str, Counter)>,
    allowed: Counter,
    denied: Counter,
    no_opinion: Counter,
    undecided: Counter,
    authorizers: AuthorizerFamilies,
    /// Authorization webhooks.
    pub webhooks: WebhookMetrics,
    /// The token webhook.
    pub token_webhook: TokenWebhookMetrics,
    /// Reloads of the authentication configuration.
    pub authn_reloads: ReloadMetrics,
    /// Reloads of the authorization configuration.
    pub authz_reloads: ReloadMetrics,
    /// JWT authenticators and their issuer keys.
    pub jwt: JwtMetrics,
    roles: Gauge,
    bindings: Gauge,
    revision: Gauge,
    synced: Gauge,
}

/// The values of the mirror gauges.
#[derive(Clone, Copy, Debug)]
pub struct MirrorGaugeValues {
    /// Roles and ClusterRoles.
    pub roles: usize,
    /// RoleBindings and ClusterRoleBindings.
    pub bindings: usize,
    /// The revision of the mirror.
    pub revision: u64,
    /// Whether a feed is connected and its snapshot is complete.
    pub synced: bool,
}

impl AuthdMetrics {
    /// Creates all metrics at zero. `methods` are the label values for authenticators.
    pub fn new(methods: impl IntoIterator<Item = &'static str>) -> Arc<Self> {
        AuthdMetrics::in_registry(Metrics::new(), methods)
    }

    /// Like [`AuthdMetrics::new`], in a registry that may show hidden metrics.
    pub fn in_registry(registry: Metrics, methods: impl IntoIterator<Item = &'static str>) -> Arc<Self> {
        let attempts = registry.counter::<Labels<2>>(&AUTHENTICATIONS);
        let attempt_counter = |method: &'static str, result: &'static str| {
            attempts.get_or_create(&[("result", result), ("method", method)]).clone()
        };
        let mut authentications: Vec<(&'static str, Counter)> =
            methods.into_iter().map(|method| (method, attempt_counter(method, "success"))).collect();
        authentications.push((FAILURE, attempt_counter("", FAILURE)));
        let results = registry.counter::<Labels<1>>(&AUTHORIZATIONS);
        let result_counter = |result: &'static str| results.get_or_create(&[("result", result)]).clone();
        Arc::new(AuthdMetrics {
            authentications,
            allowed: result_counter("allowed"),
            denied: result_counter("denied"),
            no_opinion: result_counter("no-opinion"),
            undecided: result_counter("error"),
            authorizers: AuthorizerFamilies::register(&registry),
            webhooks: WebhookMetrics::register(&registry),
            token_webhook: TokenWebhookMetrics::register(&registry),
            jwt: JwtMetrics::register(&registry),
            authn_reloads: ReloadMetrics::for_authentication(&registry),
            authz_reloads: ReloadMetrics::for_authorization(&registry),
            roles: registry.single_gauge(&ROLES),
            bindings: registry.single_gauge(&BINDINGS),
            revision: registry.single_gauge(&REVISION),
            synced: registry.single_gauge(&SYNCED),
            registry,
        })
    }

    /// Returns the counters of an authorizer; its name is its type unless a configuration file names it.
    pub fn authorizer_counters(&self, kind: &str, name: &str) -> AuthorizerCounters {
        self.authorizers.counters(kind, name)
    }

    /// Counts an authentication under the accepting authenticator; None: no authenticator accepted.
    pub fn count_authentication(&self, method: Option<&str>) {
        let method = method.unwrap_or(FAILURE);
        if let Some((_, counter)) = self.authentications.iter().find(|(name, _)| *name == method) {
            counter.inc();
        }
    }

    /// Counts the decision on a request, which all authorizers make together.
    pub fn count_decision(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.allowed.inc(),
            Verdict::Deny => self.denied.inc(),
            Verdict::NoOpinion => self.no_opinion.inc(),
        };
    }

    /// Counts an authorization that failed because the mirror was not ready in time.
    pub fn count_undecided(&self) {
        self.undecided.inc();
    }

    /// Returns the metrics that kube-apiserver has too, with the prefix `apiserver_`, in the text format.
    ///
    /// apid exports these metrics. apid counts attempts of authentication and authorization itself.
    pub fn shared_text(&self) -> String {
        let is_shared = |line: &&str| {
            let sample =
                line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
            sample.starts_with(SHARED_PREFIX)
        };
        self.registry.text().lines().filter(is_shared).flat_map(|line| [line, "\n"]).collect()
    }

    /// Returns all metrics in the text format.
    pub fn text(&self, values: MirrorGaugeValues) -> String {
        let as_gauge_value = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.roles.set(as_gauge_value(values.roles));
        self.bindings.set(as_gauge_value(values.bindings));
        self.revision.set(i64::try_from(values.revision).unwrap_or(i64::MAX));
        self.synced.set(i64::from(values.synced));
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apimachinery::clock::{Clock as _, ManualClock};

    use super::*;

    fn metrics_text(metrics: &AuthdMetrics) -> String {
        metrics.text(MirrorGaugeValues { roles: 2, bindings: 3, revision: 4, synced: true })
    }

    #[test]
    fn reload_metrics_have_time_and_count_by_status() {
        let metrics = AuthdMetrics::new([]);
        let clock = ManualClock::at(jiff::Timestamp::from_second(1_000).unwrap());
        for (reloads, stem) in
            [(&metrics.authn_reloads, "authentication"), (&metrics.authz_reloads, "authorization")]
        {
            let stem = format!("apiserver_{stem}_config_controller_automatic_reload");
            let value = |series: &str, status: &str| {
                let name = format!("{stem}{series}{{apiserver_id_hash=\"\",status=\"{status}\"}} ");
                let text = metrics_text(&metrics);
                let value = text.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned);
                value.map(|value| value.parse::<f64>().unwrap())
            };
            let time = |status| value("_last_timestamp_seconds", status);
            let start = clock.now().as_second() as f64;
            reloads.count("success", &clock);
            clock.advance(Duration::from_secs(60));
            reloads.count("failure", &clock);
            assert_eq!((time("success"), time("failure")), (Some(start), Some(start + 60.0)), "{stem}");
            clock.advance(Duration::from_secs(60));
            reloads.count("success", &clock);
            assert_eq!(
                (time("success"), time("failure")),
                (Some(start + 120.0), Some(start + 60.0)),
                "{stem}"
            );
            assert_eq!((value("s_total", "success"), value("s_total", "failure")), (Some(2.0), Some(1.0)));
        }
    }

    #[test]
    fn metrics_text_has_expected_names_and_labels() {
        let metrics = AuthdMetrics::new(["x509", "anonymous"]);
        let entry = crate::authz::entry::Entry::for_kind("RBAC");
        metrics.authorizer_counters(entry.kind, &entry.name).count_decision(Verdict::Allow);
        metrics.count_authentication(Some("x509"));
        metrics.count_authentication(None);
        metrics.count_decision(Verdict::Allow);
        let text = metrics_text(&metrics);
        for expected in [
            "authentication_attempts_total{result=\"success\",method=\"x509\"} 1",
            "authentication_attempts_total{result=\"success\",method=\"anonymous\"} 0",
            "authentication_attempts_total{result=\"failure\",method=\"\"} 1",
            "authorization_attempts_total{result=\"allowed\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 0",
            "apiserver_authorization_decisions_total{type=\"RBAC\",name=\"rbac\",decision=\"allowed\"} 1",
            "authd_mirror_roles 2",
            "authd_mirror_bindings 3",
            "authd_mirror_revision 4",
            "authd_mirror_synced 1",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn shared_text_contains_only_families_of_reference() {
        let metrics = AuthdMetrics::new(["x509"]);
        metrics.count_authentication(Some("x509"));
        metrics.authorizer_counters("RBAC", "rbac").count_decision(Verdict::Allow);
        let clock = apimachinery::clock::ManualClock::at(jiff::Timestamp::from_second(7).unwrap());
        metrics.authz_reloads.count("success", &clock);
        let text = metrics.shared_text();
        let name = "apiserver_authorization_config_controller_automatic_reload";
        for expected in [
            format!("# TYPE {name}s_total counter"),
            format!("{name}s_total{{apiserver_id_hash=\"\",status=\"success\"}} 1"),
            format!("{name}_last_timestamp_seconds{{apiserver_id_hash=\"\",status=\"success\"}} 7.0"),
            "apiserver_authorization_decisions_total{type=\"RBAC\",name=\"rbac\",decision=\"allowed\"} 1"
                .to_owned(),
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        }
        assert!(text.lines().all(|line| line.contains("apiserver_")), "{text}");
    }

    #[test]
    fn metric_help_ends_with_one_full_stop() {
        let metrics = AuthdMetrics::new(["x509"]);
        let clock = apimachinery::clock::ManualClock::at(jiff::Timestamp::UNIX_EPOCH);
        // A metric without samples is not in the text.
        metrics.authorizer_counters("RBAC", "rbac").observe_condition(std::time::Duration::ZERO);
        metrics.webhooks.observe_call("hook", "error", 1.0, true);
        metrics.token_webhook.observe_call("error", 1.0);
        metrics.authn_reloads.count("success", &clock);
        metrics.authz_reloads.count("success", &clock);
        metrics.jwt.observe_authentication("hash", "success", 1.0);
        metrics.jwt.record_fetch("hash", "success", &clock);
        let text = metrics_text(&metrics);
        let help: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
        assert_eq!(help.len(), 21, "{text}");
        for line in help {
            assert!(line.ends_with('.') && !line.ends_with(".."), "{line}");
        }
    }
}
