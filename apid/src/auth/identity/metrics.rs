//! The metrics of authentication (requirements, appendix (c)).
//!
//! # Invariants
//!
//! INVARIANT (limited labels): no label is an arbitrary user name. `authenticated_user_requests` has the
//! few names that the reference distinguishes, and one label for all others.

use std::time::Duration;

use serving::metrics::{Counter, Counters, Definition, Histogram, Histograms, Metrics, Stability};

type Label = [(&'static str, &'static str); 1];

const ATTEMPTS: Definition =
    Definition::new("authentication_attempts", Stability::Alpha, "Authentication attempts, by result");
const DURATION: Definition = Definition::new(
    "authentication_duration_seconds",
    Stability::Alpha,
    "Authentication latency in seconds, by result",
);
const USERS: Definition = Definition::new(
    "authenticated_user_requests",
    Stability::Alpha,
    "Number of authenticated requests, by user name; most names count as `other`",
);
const CACHE: Definition = Definition::new(
    "authentication_token_cache_request_total",
    Stability::Alpha,
    "Number of look-ups in the identity cache, by status",
);

/// Upper limits of the buckets in seconds.
const BUCKETS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// The result of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::auth) enum AuthenticationResult {
    /// A user was identified, possibly the anonymous user.
    Success,
    /// The credentials were rejected.
    Failure,
    /// authd gave no result.
    Error,
}

/// Handles of the metrics, looked up once.
pub(in crate::auth) struct AuthMetrics {
    results: [(Counter, Histogram); 3],
    users: [(&'static str, Counter); 6],
    hit: Counter,
    miss: Counter,
}

impl AuthMetrics {
    /// Registers the metrics.
    pub(in crate::auth) fn new(metrics: &Metrics) -> Self {
        let attempts: Counters<Label> = metrics.counter(&ATTEMPTS);
        let durations: Histograms<Label> = metrics.histogram(&DURATION, BUCKETS);
        let users: Counters<Label> = metrics.counter(&USERS);
        let cache: Counters<Label> = metrics.counter(&CACHE);
        let of = |result| {
            let label = [("result", result)];
            (attempts.get_or_create(&label).clone(), durations.get_or_create(&label).clone())
        };
        let user = |name| (name, users.get_or_create(&[("username", name)]).clone());
        let status = |status| cache.get_or_create(&[("status", status)]).clone();
        AuthMetrics {
            results: [of("success"), of("failure"), of("error")],
            users: [
                user("admin"),
                user("client"),
                user("kube_proxy"),
                user("kubelet"),
                user(EMAIL),
                user(OTHER),
            ],
            hit: status("hit"),
            miss: status("miss"),
        }
    }

    /// Records the result and the duration of an authentication.
    pub(in crate::auth) fn record_authentication(&self, result: AuthenticationResult, took: Duration) {
        let [success, failure, error] = &self.results;
        let (counter, histogram) = match result {
            AuthenticationResult::Success => success,
            AuthenticationResult::Failure => failure,
            AuthenticationResult::Error => error,
        };
        counter.inc();
        histogram.observe(took.as_secs_f64());
    }

    /// Counts a request of an identified user.
    pub(in crate::auth) fn count_user(&self, name: &str) {
        let label = if name.contains('@') { EMAIL } else { name };
        let known = self.users.iter().find(|(known, _)| *known == label).or(self.users.last());
        if let Some((_, counter)) = known {
            counter.inc();
        }
    }

    /// Counts a look-up in the identity cache.
    pub(in crate::auth) fn count_cache_lookup(&self, found: bool) {
        if found {
            self.hit.inc()
        } else {
            self.miss.inc()
        };
    }
}

/// The label of names that look like an e-mail address.
const EMAIL: &str = "email_id";
/// The label of all other names.
const OTHER: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_metrics_have_kubernetes_names_and_labels() {
        let metrics = Metrics::new();
        let auth_metrics = AuthMetrics::new(&metrics);
        auth_metrics.record_authentication(AuthenticationResult::Success, Duration::from_millis(3));
        auth_metrics.record_authentication(AuthenticationResult::Failure, Duration::ZERO);
        for user in ["admin", "jane", "jane@example.test", "system:admin", "other"] {
            auth_metrics.count_user(user);
        }
        auth_metrics.count_cache_lookup(true);
        let text = metrics.text();
        for line in [
            "authentication_attempts{result=\"success\"} 1",
            "authentication_attempts{result=\"failure\"} 1",
            "authentication_attempts{result=\"error\"} 0",
            "authentication_duration_seconds_count{result=\"success\"} 1",
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 1",
            "authenticated_user_requests{username=\"other\"} 3",
            "authentication_token_cache_request_total{status=\"hit\"} 1",
            "# HELP authentication_attempts [ALPHA] Authentication attempts, by result.",
            "# TYPE authentication_attempts counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
