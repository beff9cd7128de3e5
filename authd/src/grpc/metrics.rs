//! Metrics of authentications and decisions, and the metrics that apid also exports.
//!
//! # Invariants
//!
//! INVARIANT (limited cardinality): labels are authenticators and results, never users or objects. Counters are
//! looked up when they are created, so that counting is one atomic addition.

use std::sync::Arc;

use apimachinery::decision::Verdict;
use serving::metrics::{Counter, Definition, Metrics, Stability};

/// The names and values of `N` labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

const AUTHENTICATIONS: Definition = Definition::new(
    "authentication_attempts_total",
    Stability::Alpha,
    "Authenticated requests, by the accepting method; `failure` if none accepted",
);
const AUTHORIZATIONS: Definition =
    Definition::new("authorization_attempts_total", Stability::Alpha, "Authorized requests, by result");

/// The prefix of the metrics of authd that apid also exports.
const SHARED_PREFIX: &str = "apiserver_";
/// The label value of a failed authentication.
const FAILURE: &str = "failure";

/// The metrics of requests of apid.
#[derive(Debug)]
pub struct RequestMetrics {
    registry: Arc<Metrics>,
    authentications: Vec<(&'static str, Counter)>,
    allowed: Counter,
    denied: Counter,
    no_opinion: Counter,
    undecided: Counter,
}

impl RequestMetrics {
    /// Registers the metrics. `methods` are the label values for authenticators.
    pub fn register(registry: &Arc<Metrics>, methods: impl IntoIterator<Item = &'static str>) -> Arc<Self> {
        let attempts = registry.counter::<Labels<2>>(&AUTHENTICATIONS);
        let attempt_counter = |method: &'static str, result: &'static str| {
            attempts.get_or_create(&[("result", result), ("method", method)]).clone()
        };
        let mut authentications: Vec<(&'static str, Counter)> =
            methods.into_iter().map(|method| (method, attempt_counter(method, "success"))).collect();
        authentications.push((FAILURE, attempt_counter("", FAILURE)));
        let results = registry.counter::<Labels<1>>(&AUTHORIZATIONS);
        let result_counter = |result: &'static str| results.get_or_create(&[("result", result)]).clone();
        Arc::new(RequestMetrics {
            authentications,
            allowed: result_counter("allowed"),
            denied: result_counter("denied"),
            no_opinion: result_counter("no-opinion"),
            undecided: result_counter("error"),
            registry: Arc::clone(registry),
        })
    }

    /// Counts an authentication under the accepting authenticator, or as rejected if none accepted.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::AuthzMetrics;

    #[test]
    fn requests_are_counted_by_method_and_result() {
        let registry = Arc::<Metrics>::default();
        let metrics = RequestMetrics::register(&registry, ["x509", "anonymous"]);
        metrics.count_authentication(Some("x509"));
        metrics.count_authentication(None);
        metrics.count_decision(Verdict::Allow);
        let text = registry.text();
        for expected in [
            "authentication_attempts_total{result=\"success\",method=\"x509\"} 1",
            "authentication_attempts_total{result=\"success\",method=\"anonymous\"} 0",
            "authentication_attempts_total{result=\"failure\",method=\"\"} 1",
            "authorization_attempts_total{result=\"allowed\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 0",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn shared_text_contains_only_families_of_kube_apiserver() {
        let registry = Arc::<Metrics>::default();
        let metrics = RequestMetrics::register(&registry, ["x509"]);
        metrics.count_authentication(Some("x509"));
        AuthzMetrics::register(&registry).counters("RBAC", "rbac").count_decision(Verdict::Allow);
        let text = metrics.shared_text();
        let expected =
            "apiserver_authorization_decisions_total{type=\"RBAC\",name=\"rbac\",decision=\"allowed\"} 1";
        assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        assert!(text.lines().all(|line| line.contains("apiserver_")), "{text}");
    }
}
