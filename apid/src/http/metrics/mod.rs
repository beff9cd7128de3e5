//! Request metrics (requirements D-METRIC-1 to -9, -13).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use kinds::{Resource, Subresource};
use parking_lot::RwLock;
use serving::metrics::{Counter, Counters, Definition, Gauges, Histogram, Histograms, Metrics, Stability};

use super::query::Query;
use super::request_info::RequestInfo;

const REQUESTS: Definition = Definition::new(
    "apiserver_request_total",
    Stability::Stable,
    "Number of completed requests by verb, resource, scope and HTTP code",
);

const DURATION: Definition = Definition::new(
    "apiserver_request_duration_seconds",
    Stability::Stable,
    "Time from the request head to the response head in seconds, by verb, resource and scope, without watches",
);

const ABORTS: Definition = Definition::new(
    "apiserver_request_aborts_total",
    Stability::Alpha,
    "Number of responses aborted at the request deadline, by verb, resource and scope",
);

const DEPRECATED: Definition = Definition::new(
    "apiserver_requested_deprecated_apis",
    Stability::Stable,
    "Requested deprecated APIs (value 1), by group, version, resource, subresource and removed release",
);

/// Histogram bucket limits, in seconds.
const BUCKETS: &[f64] =
    &[0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];

type Labels = Vec<(&'static str, String)>;

/// The metrics of requests.
///
/// No label contains text of a client: unknown resources count with empty labels.
pub struct RequestMetrics {
    requests: Counters<Labels>,
    durations: Histograms<Labels>,
    aborts: Counters<Labels>,
    deprecated: Gauges<Labels>,
    /// Cache of used series, so that counting a request does not allocate.
    used: RwLock<HashMap<Series, (Counter, Histogram)>>,
}

/// The key of a series.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Series {
    verb: &'static str,
    /// Hash of group and resource; 0 for no resource.
    kind: u64,
    version: VersionLabel,
    subresource: &'static str,
    scope: &'static str,
    dry_run: bool,
    code: u16,
}

/// Hashes the fields that distinguish most series, because every request hashes one.
impl Hash for Series {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let verb = self.verb.as_bytes().first().copied().unwrap_or_default();
        (self.kind ^ u64::from(self.code) << 8 ^ u64::from(verb)).hash(state);
    }
}

/// A version in place: a lookup allocates nothing. A longer version is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VersionLabel([u8; VersionLabel::BYTES]);

impl VersionLabel {
    /// Longer than the version of any built-in kind.
    const BYTES: usize = 24;

    fn new(version: &str) -> Self {
        let mut end = version.len().min(VersionLabel::BYTES);
        while !version.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; VersionLabel::BYTES];
        for (to, from) in bytes.iter_mut().zip(version.as_bytes().iter().take(end)) {
            *to = *from;
        }
        VersionLabel(bytes)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("").trim_end_matches('\0')
    }
}

impl RequestMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        RequestMetrics {
            requests: metrics.counter(&REQUESTS),
            durations: metrics.histogram(&DURATION, BUCKETS),
            aborts: metrics.counter(&ABORTS),
            deprecated: metrics.gauge(&DEPRECATED),
            used: RwLock::default(),
        }
    }

    /// Counts a completed request. `resource` is its served resource.
    pub(super) fn count(
        &self,
        info: &RequestInfo,
        query: &Query,
        resource: Option<&Resource>,
        code: u16,
        latency: Duration,
    ) {
        let a = &info.attributes;
        let subresource = |r: &Resource| r.kind.subresource(&a.subresource).copied();
        let resource = resource.filter(|r| a.subresource.is_empty() || subresource(r).is_some());
        let series = Series {
            verb: verb(&a.verb),
            kind: resource.map_or(0, |r| r.hash),
            version: VersionLabel::new(resource.map_or("", |_| a.version.as_str())),
            subresource: resource.and_then(subresource).map_or("", |s: Subresource| s.name),
            scope: scope(info, resource.is_some()),
            dry_run: query.all("dryRun").any(|value| value == "All"),
            code,
        };
        let count = |(requests, durations): &(Counter, Histogram)| {
            requests.inc();
            if series.verb != "WATCH" {
                durations.observe(latency.as_secs_f64());
            }
        };
        // Counts under the read lock, so that requests do not contend for reference counts of the series.
        if let Some(metrics) = self.used.read().get(&series) {
            return count(metrics);
        }
        let made = self.make(&series, resource);
        count(&made);
        self.used.write().insert(series, made);
    }

    /// Marks a deprecated resource as requested. The release that removes it is unknown.
    pub(super) fn deprecated(&self, resource: &Resource, version: &str, subresource: &str) {
        let labels: Labels = vec![
            ("group", resource.group_resource.group.clone()),
            ("version", version.to_owned()),
            ("resource", resource.group_resource.resource.clone()),
            ("subresource", subresource.to_owned()),
            ("removed_release", String::new()),
        ];
        self.deprecated.get_or_create(&labels).set(1);
    }

    /// Returns a closure that counts an aborted response.
    pub(super) fn aborts(
        &self,
        info: &RequestInfo,
        resource: Option<&Resource>,
    ) -> impl FnOnce() + Send + 'static {
        let a = &info.attributes;
        let of = |text: &str| if resource.is_some() { text.to_owned() } else { String::new() };
        let labels: Labels = vec![
            ("verb", verb(&a.verb).to_owned()),
            ("group", of(&a.group)),
            ("version", of(&a.version)),
            ("resource", of(&a.resource)),
            ("subresource", of(&a.subresource)),
            ("scope", scope(info, resource.is_some()).to_owned()),
        ];
        let aborts = self.aborts.clone();
        move || {
            aborts.get_or_create(&labels).inc();
        }
    }

    fn make(&self, series: &Series, resource: Option<&Resource>) -> (Counter, Histogram) {
        let mut labels: Labels = vec![
            ("verb", series.verb.to_owned()),
            ("dry_run", if series.dry_run { "All" } else { "" }.to_owned()),
            ("group", resource.map_or_else(String::new, |r| r.group_resource.group.clone())),
            ("version", series.version.as_str().to_owned()),
            ("resource", resource.map_or_else(String::new, |r| r.group_resource.resource.clone())),
            ("subresource", series.subresource.to_owned()),
            ("scope", series.scope.to_owned()),
            ("component", "apiserver".to_owned()),
        ];
        let durations = self.durations.get_or_create(&labels).clone();
        labels.push(("code", series.code.to_string()));
        (self.requests.get_or_create(&labels).clone(), durations)
    }
}

fn verb(verb: &str) -> &'static str {
    match verb {
        "create" | "post" => "POST",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "other",
    }
}

fn scope(info: &RequestInfo, served: bool) -> &'static str {
    match (served, info.path_name(), info.namespace.as_str()) {
        (false, ..) => "",
        (true, name, _) if !name.is_empty() => "resource",
        (true, _, namespace) if !namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}
