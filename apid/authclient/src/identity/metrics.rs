//! The metrics of authentication and authorization (requirements, appendix (c)).
//!
//! # Invariants
//!
//! INVARIANT (limited labels): no label is an arbitrary user name. `authenticated_user_requests` has the few
//! names that kube-apiserver distinguishes, and one label for all others.

use std::time::Duration;

use apimachinery::decision::Verdict;
use serving::metrics::{
    Counter, Counters, Definition, Gauge, Gauges, Histogram, Histograms, Metrics, Stability,
};

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

const CACHE_DURATION: Definition = Definition::new(
    "authentication_token_cache_request_duration_seconds",
    Stability::Alpha,
    "Duration of authentications in seconds, by status of the look-up in the identity cache",
);
const FETCHES: Definition = Definition::new(
    "authentication_token_cache_fetch_total",
    Stability::Alpha,
    "Number of authentications by authd, by status",
);
const ACTIVE_FETCHES: Definition = Definition::new(
    "authentication_token_cache_active_fetch_count",
    Stability::Alpha,
    "Number of authentications in progress in authd, by status",
);
const EXPIRATION: Definition = Definition::new(
    "apiserver_client_certificate_expiration_seconds",
    Stability::Alpha,
    "Remaining lifetime in seconds of the client certificates of accepted requests",
);
const AUTHORIZATIONS: Definition =
    Definition::new("authorization_attempts_total", Stability::Alpha, "Authorization attempts, by result");
const AUTHORIZATION_DURATION: Definition = Definition::new(
    "authorization_duration_seconds",
    Stability::Alpha,
    "Authorization latency in seconds, by result",
);
const DECISION_LOOKUPS: Definition = Definition::new(
    "apid_decision_cache_requests_total",
    Stability::Alpha,
    "Number of look-ups in the decision cache, by status",
);

/// Upper limits of the buckets of remaining certificate lifetimes in seconds: up to 360 days.
const EXPIRATION_BUCKETS: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];
/// Upper limits of the buckets of authentication and authorization latencies, in seconds.
const BUCKETS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// Upper limits of the buckets of authentications by status of the cache look-up, in seconds.
const CACHE_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The result of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationResult {
    /// A user was identified, possibly the anonymous user.
    Success,
    /// The credentials were rejected.
    Failure,
    /// authd did not respond.
    Error,
}

/// The series of the authentication and authorization metrics, looked up once.
pub(crate) struct AuthMetrics {
    /// Authentications by result: success, failure, error.
    results: [(Counter, Histogram); 3],
    /// Authenticated requests by label value of the user name; the last value is [`OTHER`].
    users: [(&'static str, Counter); 6],
    /// Authentications with a hit in the identity cache.
    hit: (Counter, Histogram),
    /// Authentications with a miss in the identity cache.
    miss: (Counter, Histogram),
    /// Requests to authd for an authentication, by outcome: ok, error.
    fetches: [Counter; 2],
    active_fetches: Gauge,
    expiration: Histogram,
    /// Authorizations by result: allowed, denied, no-opinion, error.
    authorizations: [(Counter, Histogram); 4],
    /// Look-ups in the decision cache by result: hit, miss.
    decision_lookups: [Counter; 2],
}

/// Guard of one request to authd for an authentication. The request counts as active until the drop.
pub(crate) struct ActiveFetch(Gauge);

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl AuthMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let attempts: Counters<Label> = metrics.counter(&ATTEMPTS);
        let durations: Histograms<Label> = metrics.histogram(&DURATION, BUCKETS);
        let users: Counters<Label> = metrics.counter(&USERS);
        let cache: Counters<Label> = metrics.counter(&CACHE);
        let result_metrics = |result| {
            let label = [("result", result)];
            (attempts.get_or_create(&label).clone(), durations.get_or_create(&label).clone())
        };
        let user_counter = |name| (name, users.get_or_create(&[("username", name)]).clone());
        let cache_durations: Histograms<Label> = metrics.histogram(&CACHE_DURATION, CACHE_BUCKETS);
        let lookup_metrics = |status| {
            let label = [("status", status)];
            (cache.get_or_create(&label).clone(), cache_durations.get_or_create(&label).clone())
        };
        let fetches: Counters<Label> = metrics.counter(&FETCHES);
        let active_fetches: Gauges<Label> = metrics.gauge(&ACTIVE_FETCHES);
        let authorizations: Counters<Label> = metrics.counter(&AUTHORIZATIONS);
        let authorization_durations: Histograms<Label> = metrics.histogram(&AUTHORIZATION_DURATION, BUCKETS);
        let authorization_metrics = |result| {
            let label = [("result", result)];
            let counter = authorizations.get_or_create(&label).clone();
            (counter, authorization_durations.get_or_create(&label).clone())
        };
        let lookups: Counters<Label> = metrics.counter(&DECISION_LOOKUPS);
        AuthMetrics {
            results: [result_metrics("success"), result_metrics("failure"), result_metrics("error")],
            users: [
                user_counter("admin"),
                user_counter("client"),
                user_counter("kube_proxy"),
                user_counter("kubelet"),
                user_counter(EMAIL),
                user_counter(OTHER),
            ],
            hit: lookup_metrics("hit"),
            miss: lookup_metrics("miss"),
            fetches: ["ok", "error"].map(|status| fetches.get_or_create(&[("status", status)]).clone()),
            active_fetches: active_fetches.get_or_create(&[("status", "in_flight")]).clone(),
            expiration: metrics.single_histogram(&EXPIRATION, EXPIRATION_BUCKETS),
            authorizations: ["allowed", "denied", "no-opinion", "error"].map(authorization_metrics),
            decision_lookups: ["hit", "miss"]
                .map(|status| lookups.get_or_create(&[("status", status)]).clone()),
        }
    }

    /// Records the result and the duration of an authentication.
    pub(crate) fn record_authentication(&self, result: AuthenticationResult, duration: Duration) {
        let [success, failure, error] = &self.results;
        let (counter, histogram) = match result {
            AuthenticationResult::Success => success,
            AuthenticationResult::Failure => failure,
            AuthenticationResult::Error => error,
        };
        counter.inc();
        histogram.observe(duration.as_secs_f64());
    }

    /// Counts a successful authentication by the user name.
    pub(crate) fn count_user(&self, name: &str) {
        let label = if name.contains('@') { EMAIL } else { name };
        let series = self.users.iter().find(|(value, _)| *value == label).or(self.users.last());
        if let Some((_, counter)) = series {
            counter.inc();
        }
    }

    /// Records the status of the look-up in the identity cache and the duration of the authentication.
    pub(crate) fn record_cache_lookup(&self, is_hit: bool, duration: Duration) {
        let (counter, histogram) = if is_hit { &self.hit } else { &self.miss };
        counter.inc();
        histogram.observe(duration.as_secs_f64());
    }

    /// Counts an authentication by authd as active until the guard is dropped.
    pub(crate) fn begin_fetch(&self) -> ActiveFetch {
        self.active_fetches.inc();
        ActiveFetch(self.active_fetches.clone())
    }

    /// Counts a completed authentication by authd. `is_ok`: authd responded.
    pub(crate) fn count_fetch(&self, is_ok: bool) {
        let [ok, error] = &self.fetches;
        if is_ok { ok } else { error }.inc();
    }

    /// Records the remaining lifetime of a client certificate.
    pub(crate) fn observe_certificate_lifetime(&self, seconds: f64) {
        self.expiration.observe(seconds);
    }

    /// Records the result and the duration of an authorization; None if authd did not respond.
    pub(crate) fn record_authorization(&self, result: Option<Verdict>, duration: Duration) {
        let [allowed, denied, no_opinion, error] = &self.authorizations;
        let (counter, histogram) = match result {
            Some(Verdict::Allow) => allowed,
            Some(Verdict::Deny) => denied,
            Some(Verdict::NoOpinion) => no_opinion,
            None => error,
        };
        counter.inc();
        histogram.observe(duration.as_secs_f64());
    }

    /// Counts a look-up in the decision cache.
    pub(crate) fn count_decision_lookup(&self, is_hit: bool) {
        let [hit, miss] = &self.decision_lookups;
        if is_hit { hit } else { miss }.inc();
    }
}

/// The label value for user names that contain `@`.
const EMAIL: &str = "email_id";
/// The label value for all other user names.
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
        auth_metrics.record_cache_lookup(true, Duration::ZERO);
        auth_metrics.record_authorization(Some(Verdict::NoOpinion), Duration::ZERO);
        auth_metrics.observe_certificate_lifetime(4000.0);
        auth_metrics.count_decision_lookup(false);
        let fetch = auth_metrics.begin_fetch();
        auth_metrics.count_fetch(true);
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
            "authentication_token_cache_request_duration_seconds_count{status=\"hit\"} 1",
            "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 1",
            "authentication_token_cache_fetch_total{status=\"ok\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 1",
            "authorization_duration_seconds_count{result=\"allowed\"} 0",
            "apid_decision_cache_requests_total{status=\"miss\"} 1",
            "apiserver_client_certificate_expiration_seconds_bucket{le=\"3600\"} 0",
            "apiserver_client_certificate_expiration_seconds_bucket{le=\"7200\"} 1",
            "# HELP authentication_attempts [ALPHA] Authentication attempts, by result.",
            "# TYPE authentication_attempts counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        drop(fetch);
        assert!(metrics.text().contains("active_fetch_count{status=\"in_flight\"} 0"));
    }
}
