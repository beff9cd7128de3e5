//! Uses of deprecated and removed API versions in metrics, audit logs and manifests.
//!
//! # Contract
//!
//! A [`Report`] collects uses by version. Each source adds uses; [`Report::findings`] returns one finding for
//! each used version, in the order of the release that removes it. The report recognizes built-in kinds under
//! the groups of both names presets, so that a wrong preset hides no use. A custom kind is not in the table of
//! [`lifecycle`]. The report finds its deprecated versions only in metrics and audit logs, where the server
//! marks them. It does not know their replacements.

mod audit;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

pub use audit::AuditError;

use kinds::lifecycle::{self, CURRENT, Release, Version};

/// Maximum number of places that a report lists for one version.
const MAX_PLACES: usize = 20;

/// A request for a resource that a metric or an audit log contains.
struct ResourceRequest {
    group_version: GroupVersion,
    /// Plural name.
    resource: String,
    /// The place of the request, as text.
    place: String,
    /// Whether the server marked the version as deprecated.
    is_marked: bool,
    /// The release that removes the version, as the server reports it.
    removed: Option<String>,
}

/// A row of the lifecycle table, and whether only the other names preset has the group in use.
type UsedRow = (&'static Version, bool);

/// Places that use one version.
#[derive(Debug, Default)]
struct Places {
    /// The row of the version; None for a version that the table lacks.
    row: Option<UsedRow>,
    /// At most [`MAX_PLACES`] places, as text.
    listed: BTreeSet<String>,
    /// Number of all uses.
    count: usize,
    /// The release that removes the version, as a server reports it.
    removed: Option<String>,
}

/// The uses of deprecated and removed versions that have been added.
pub struct Report<'a> {
    names: &'a Names,
    other_names: Names,
    /// Places by the subject of their finding.
    uses: BTreeMap<String, Places>,
}

/// A deprecated or removed version that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Group, version and kind, or the plural name of a custom kind.
    pub subject: String,
    /// Release of the deprecation.
    pub deprecated: Option<Release>,
    /// First release without the version, for example `1.22`.
    pub removed: Option<String>,
    /// Whether the current release no longer has the version.
    pub is_removed: bool,
    /// Group, version and kind to use instead.
    pub replacement: Option<String>,
    /// The value of `apid convert --output-version`.
    pub output_version: Option<String>,
    /// The flags of `apid convert` that select the names preset of the version.
    pub names_flags: String,
    /// Differences between the version and its replacement, or advice if there is no replacement.
    pub changes: String,
    /// Places of uses, at most twenty.
    pub places: Vec<String>,
    /// Number of all uses.
    pub count: usize,
}

impl<'a> Report<'a> {
    /// Creates a report without uses. A group that exists in both names presets is taken as a group of
    /// `names`.
    pub fn new(names: &'a Names) -> Self {
        Report { names, other_names: names.with_other_preset(), uses: BTreeMap::new() }
    }

    /// The stem of a group of either preset, and whether only the other preset has the group.
    fn stem<'g>(&self, group: &'g str) -> Option<(&'g str, bool)> {
        let given = self.names.stem(group).map(|stem| (stem, false));
        given.or_else(|| self.other_names.stem(group).map(|stem| (stem, true)))
    }

    /// Adds a manifest of a file, if its version is deprecated or removed.
    pub fn add_manifest(&mut self, file: &str, manifest: &Object) {
        let Some(group_version) = GroupVersion::parse(manifest.api_version()) else { return };
        let Some((stem, is_other)) = self.stem(&group_version.group) else { return };
        let row = lifecycle::of_kind(stem, &group_version.version, manifest.kind());
        if let Some(row) = row.filter(|row| is_reported(row)) {
            let place = match (manifest.namespace(), manifest.name()) {
                ("", name) => format!("{file}: {name}"),
                (namespace, name) => format!("{file}: {namespace}/{name}"),
            };
            self.add(format!("{group_version} {}", row.kind), Some((row, is_other)), place, None);
        }
    }

    /// Adds the uses that metrics in the Prometheus text format report as requested deprecated APIs.
    pub fn add_metrics(&mut self, text: &str) {
        metrics::requests(text).for_each(|request| self.add_request(request));
    }

    /// Adds the events of an audit log with one JSON object in each line.
    ///
    /// # Errors
    ///
    /// The first line that is not a JSON object.
    pub fn add_audit(&mut self, text: &str) -> Result<(), AuditError> {
        let requests = audit::requests(text, &[self.names, &self.other_names])?;
        requests.into_iter().for_each(|request| self.add_request(request));
        Ok(())
    }

    /// Adds a request for a resource, if a server marked its version as deprecated, or the table lists the
    /// version as deprecated or removed.
    fn add_request(&mut self, request: ResourceRequest) {
        let ResourceRequest { group_version, resource, place, is_marked, removed } = request;
        let row = self.stem(&group_version.group).and_then(|(stem, is_other)| {
            let row = lifecycle::of_resource(stem, &group_version.version, &resource)?;
            Some((row, is_other))
        });
        if is_marked || row.is_some_and(|(row, _)| is_reported(row)) {
            let kind = row.map_or(resource.as_str(), |(row, _)| row.kind);
            self.add(format!("{group_version} {kind}"), row, place, removed);
        }
    }

    fn add(&mut self, subject: String, row: Option<UsedRow>, place: String, removed: Option<String>) {
        let places = self.uses.entry(subject).or_insert_with(|| Places { row, ..Places::default() });
        places.count += 1;
        places.removed = removed.or_else(|| places.removed.take());
        if places.listed.len() < MAX_PLACES {
            places.listed.insert(place);
        }
    }

    /// One finding for each used version, in the order of the release that removes the version. Versions
    /// without such a release come last.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> =
            self.uses.iter().map(|(subject, places)| self.finding(subject, places)).collect();
        let release = |finding: &Finding| {
            let minor =
                finding.removed.as_ref().and_then(|text| text.strip_prefix("1.")?.parse::<u32>().ok());
            (minor.unwrap_or(u32::MAX), finding.subject.clone())
        };
        findings.sort_by_key(release);
        findings
    }

    fn finding(&self, subject: &str, places: &Places) -> Finding {
        let row = places.row.map(|(row, _)| row);
        let names = match places.row {
            Some((_, true)) => &self.other_names,
            _ => self.names,
        };
        let replacement = row.and_then(|row| row.replacement);
        let is_convertible = row.is_some_and(|row| replacement.is_some_and(|new| new.kind == row.kind));
        Finding {
            subject: subject.to_owned(),
            deprecated: row.and_then(|row| row.deprecated),
            removed: row
                .and_then(|row| row.removed)
                .map(|release| release.to_string())
                .or(places.removed.clone()),
            is_removed: row.is_some_and(|row| row.is_removed(CURRENT)),
            replacement: replacement.map(|new| format!("{} {}", new.group_version(names), new.kind)),
            output_version: replacement
                .filter(|_| is_convertible)
                .map(|new| new.group_version(names).to_string()),
            names_flags: names.flags(),
            changes: row.map_or("", |row| row.changes).to_owned(),
            places: places.listed.iter().cloned().collect(),
            count: places.count,
        }
    }
}

/// Whether a use of the version is a finding: the current release has deprecated or removed the version.
fn is_reported(row: &Version) -> bool {
    row.is_deprecated(CURRENT) || row.is_removed(CURRENT)
}

impl Finding {
    /// The finding as lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!("{}: {}", self.subject, self.state())];
        match (&self.replacement, &self.output_version) {
            (Some(replacement), Some(version)) => {
                let flags = format!("--output-version {version} {}", self.names_flags);
                lines.push(format!("  use: {replacement} (apid convert -f FILE {flags})"));
            }
            (Some(replacement), None) => lines.push(format!("  use: {replacement}")),
            (None, _) => {}
        }
        if !self.changes.is_empty() {
            lines.push(format!("  changes: {}", self.changes));
        }
        lines.extend(self.places.iter().map(|place| format!("  used in: {place}")));
        if self.count > self.places.len() {
            lines.push(format!("  uses: {}", self.count));
        }
        lines.join("\n") + "\n"
    }

    fn state(&self) -> String {
        match (&self.removed, self.deprecated) {
            (Some(removed), _) if self.is_removed => format!("removed in {removed}"),
            (Some(removed), Some(deprecated)) => format!("deprecated in {deprecated}, removed in {removed}"),
            (Some(removed), None) => format!("deprecated, removed in {removed}"),
            (None, Some(deprecated)) => format!("deprecated in {deprecated}"),
            (None, None) => "deprecated".to_owned(),
        }
    }

    /// The finding as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "subject": self.subject,
            "deprecated": self.deprecated.map(|release| release.to_string()),
            "removed": self.removed,
            "isRemoved": self.is_removed,
            "replacement": self.replacement,
            "outputVersion": self.output_version,
            "namesFlags": self.names_flags,
            "changes": self.changes,
            "uses": self.count,
            "places": self.places,
        })
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    fn manifest(api_version: &str, kind: &str, name: &str) -> Object {
        Object::from_value(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}))
            .unwrap()
    }

    #[test]
    fn manifests_of_deprecated_and_removed_versions_are_found_with_replacement() {
        let names = names();
        let mut report = Report::new(&names);
        for (api_version, kind) in [
            ("v1", "Endpoints"),
            ("apps/v1", "Deployment"),
            ("policy/v1beta1", "PodSecurityPolicy"),
            ("extensions/v1beta1", "Ingress"),
            ("extensions/v1beta1", "Ingress"),
            ("example.com/v1beta1", "Ingress"),
        ] {
            report.add_manifest("a.yaml", &manifest(api_version, kind, "x"));
        }
        let findings = report.findings();
        let subjects: Vec<&str> = findings.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(
            subjects,
            ["extensions/v1beta1 Ingress", "policy/v1beta1 PodSecurityPolicy", "v1 Endpoints"]
        );
        let text = findings[0].text();
        assert!(
            text.starts_with(
                "extensions/v1beta1 Ingress: removed in 1.22\n  use: networking.k8s.io/v1 Ingress"
            ),
            "{text}"
        );
        assert!(
            text.contains("--output-version networking.k8s.io/v1 --names kubernetes)")
                && text.contains("pathType"),
            "{text}"
        );
        assert!(text.ends_with("  used in: a.yaml: x\n  uses: 2\n"), "{text}");
        assert!(findings[1].replacement.is_none() && findings[1].changes.contains("pod security"));
        assert!(!findings[2].is_removed && findings[2].output_version.is_none());
        assert_eq!(findings[2].state(), "deprecated in 1.33");
    }

    #[test]
    fn uses_in_names_of_other_preset_are_found_with_its_flags() {
        let kubernetes = names();
        let svc = kubernetes.with_other_preset();
        for (names, other) in [(&svc, &kubernetes), (&kubernetes, &svc)] {
            let mut report = Report::new(names);
            for (stem, version, kind) in
                [("policy", "v1beta1", "PodSecurityPolicy"), ("networking", "v1beta1", "Ingress")]
            {
                let api_version = format!("{}/{version}", other.group(stem));
                report.add_manifest("a.yaml", &manifest(&api_version, kind, "x"));
            }
            let event = json!({"objectRef": {"apiGroup": "a.b", "apiVersion": "v2", "resource": "things"},
                "annotations": { other.group_key("deprecated"): "true" }});
            report.add_audit(&event.to_string()).unwrap();
            let findings = report.findings();
            let subjects: Vec<String> = findings.iter().map(|finding| finding.subject.clone()).collect();
            let (networking, policy) = (other.group("networking"), other.group("policy"));
            assert_eq!(
                subjects,
                [
                    format!("{networking}/v1beta1 Ingress"),
                    format!("{policy}/v1beta1 PodSecurityPolicy"),
                    "a.b/v2 things".to_owned(),
                ]
            );
            let command = format!("--output-version {networking}/v1 {})", other.flags());
            assert!(findings[0].text().contains(&command), "{}", findings[0].text());
        }
    }

    #[test]
    fn series_of_requested_deprecated_apis_are_found() {
        let names = names();
        let mut report = Report::new(&names);
        report.add_metrics(
            "# HELP apiserver_requested_deprecated_apis x\n\
             apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"} 1\n\
             apiserver_requested_deprecated_apis{group=\"a.b\",removed_release=\"1.40\",resource=\"c\\\"d\",subresource=\"status\",version=\"v2\"} 1\n\
             apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"componentstatuses\",subresource=\"\",version=\"v1\"} 0\n\
             apiserver_request_total{resource=\"endpoints\"} 7\n",
        );
        let findings = report.findings();
        assert_eq!(findings.len(), 2);
        assert_eq!(
            (findings[0].subject.as_str(), findings[0].state()),
            ("a.b/v2 c\"d", "deprecated, removed in 1.40".to_owned())
        );
        assert_eq!(findings[1].subject, "v1 Endpoints");
        assert_eq!(findings[1].replacement.as_deref(), Some("discovery.k8s.io/v1 EndpointSlice"));
    }

    #[test]
    fn audit_events_of_deprecated_and_removed_versions_are_found_with_client() {
        let names = names();
        let mut report = Report::new(&names);
        let event = |api_version: &str, resource: &str, annotations: Value| {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            json!({
                "kind": "Event", "verb": "list", "user": {"username": "alice"}, "userAgent": "curl/8",
                "objectRef": {"apiGroup": group, "apiVersion": version, "resource": resource}, "annotations": annotations,
            })
            .to_string()
        };
        let marked = json!({"k8s.io/deprecated": "true", "k8s.io/removed-release": "1.40"});
        let lines = [
            event("v1", "endpoints", json!({"k8s.io/deprecated": "true"})),
            event("a.b/v2", "things", marked),
            event("extensions/v1beta1", "ingresses", json!({})),
            event("v1", "pods", json!({})),
            String::new(),
        ];
        report.add_audit(&lines.join("\n")).unwrap();
        let findings = report.findings();
        let subjects: Vec<&str> = findings.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(subjects, ["extensions/v1beta1 Ingress", "a.b/v2 things", "v1 Endpoints"]);
        assert_eq!(findings[1].removed.as_deref(), Some("1.40"));
        assert_eq!(findings[2].places, ["list by `alice` with curl/8"]);
        let error = report.add_audit("{}\nno json\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
