//! The series of a request: its key in the cache of handles, and its labels.

use std::hash::{Hash, Hasher};

use http::request::Parts;
use http::{Method, header};
use kinds::{Kind, Subresource};
use serving::metrics::{Counter, Histogram};

use super::{Labels, RequestOutcome};
use crate::negotiate::media_type;
use crate::query::Query;
use crate::request_info::RequestInfo;

/// The key of a series.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Series {
    pub(super) verb: &'static str,
    /// Hash of group and resource; 0 for no resource.
    resource_hash: u64,
    version: VersionLabel,
    /// The subresource, or the path of a health endpoint.
    subresource: &'static str,
    scope: &'static str,
    component: &'static str,
    pub(super) dry_run: bool,
    pub(super) code: u16,
}

/// Hashes only the fields that distinguish most series, because every request computes this hash.
impl Hash for Series {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let verb = self.verb.as_bytes().first().copied().unwrap_or_default();
        (self.resource_hash ^ u64::from(self.code) << 8 ^ u64::from(verb)).hash(state);
    }
}

/// The handles of one series.
pub(super) struct SeriesHandles {
    pub(super) requests: Counter,
    /// None for watches.
    pub(super) duration: Option<Histogram>,
    /// None for watches.
    pub(super) sli: Option<Histogram>,
    /// None for requests other than GET and LIST.
    pub(super) response_size: Option<Histogram>,
}

impl SeriesHandles {
    /// Counts a request. Returns the histogram for the size of its response when this size is not known yet.
    pub(super) fn count(&self, outcome: RequestOutcome) -> Option<Histogram> {
        self.requests.inc();
        let seconds = outcome.latency.as_secs_f64();
        for durations in self.duration.iter().chain(&self.sli) {
            durations.observe(seconds);
        }
        match (&self.response_size, outcome.response_bytes) {
            (Some(sizes), Some(bytes)) => {
                sizes.observe(bytes as f64);
                None
            }
            (Some(sizes), None) => Some(sizes.clone()),
            (None, _) => None,
        }
    }
}

impl Series {
    /// Reads the properties of a request. `resource` is its served resource.
    pub(super) fn new(
        info: &RequestInfo,
        query: &Query,
        head: &Parts,
        resource: Option<&Kind>,
        code: u16,
    ) -> Self {
        let attributes = &info.attributes;
        let subresource_of = |r: &Kind| r.subresource(&attributes.subresource).copied();
        let resource = resource.filter(|r| attributes.subresource.is_empty() || subresource_of(r).is_some());
        let subresource = match resource {
            Some(resource) => subresource_of(resource).map_or("", |s: Subresource| s.name),
            None => health_path(info),
        };
        Series {
            verb: if attributes.resource_request {
                verb_label(&attributes.verb, head)
            } else {
                method_label(&head.method)
            },
            resource_hash: resource.map_or(0, |r| r.hash),
            version: VersionLabel::new(resource.map_or("", |_| attributes.version.as_str())),
            subresource,
            scope: scope(info, resource.is_some()),
            component: if subresource.starts_with('/') { "" } else { "apiserver" },
            dry_run: query.all("dryRun").any(|value| value == "All"),
            code,
        }
    }

    /// Whether the request creates or changes an object, so that its fields are validated.
    pub(super) fn is_write(&self) -> bool {
        self.resource_hash != 0 && matches!(self.verb, "POST" | "PUT" | "PATCH" | "APPLY")
    }

    /// The labels that most families share.
    pub(super) fn resource_labels(&self, resource: Option<&Kind>) -> Labels {
        let resource = resource.filter(|_| self.resource_hash != 0);
        vec![
            ("verb", self.verb.to_owned()),
            ("group", resource.map_or_else(String::new, |r| r.group_resource.group.clone())),
            ("version", self.version.as_str().to_owned()),
            ("resource", resource.map_or_else(String::new, |r| r.group_resource.resource.clone())),
            ("subresource", self.subresource.to_owned()),
            ("scope", self.scope.to_owned()),
            ("component", self.component.to_owned()),
        ]
    }
}

/// A version stored inline, so a lookup allocates nothing. A longer version is truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VersionLabel([u8; VersionLabel::BYTES]);

impl VersionLabel {
    /// Maximum length of a version in bytes; no built-in kind has a longer version.
    const BYTES: usize = 24;

    fn new(version: &str) -> Self {
        let end = version.floor_char_boundary(VersionLabel::BYTES);
        let mut bytes = [0; VersionLabel::BYTES];
        for (to, from) in bytes.iter_mut().zip(version.bytes().take(end)) {
            *to = from;
        }
        VersionLabel(bytes)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("").trim_end_matches('\0')
    }
}

/// The verb label of a resource request.
fn verb_label(verb: &str, head: &Parts) -> &'static str {
    match verb {
        "create" => "POST",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "update" => "PUT",
        "patch" if is_apply(head) => "APPLY",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "other",
    }
}

/// Whether a patch is a server-side apply.
fn is_apply(head: &Parts) -> bool {
    let media_type = media_type(head.headers.get(header::CONTENT_TYPE));
    media_type.is_some_and(|text| text.starts_with("application/apply-patch+"))
}

/// The verb label of a request that is no resource request.
fn method_label(method: &Method) -> &'static str {
    match *method {
        // The reference counts HEAD as GET.
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// The path of a health endpoint, which the reference shows as subresource; else `""`.
fn health_path(info: &RequestInfo) -> &'static str {
    match info.segments.first().map(String::as_str) {
        Some("healthz") => "/healthz",
        Some("livez") => "/livez",
        Some("readyz") => "/readyz",
        _ => "",
    }
}

/// The scope label: a create counts as a request for one object.
fn scope(info: &RequestInfo, is_served: bool) -> &'static str {
    if !is_served {
        return "";
    }
    let attributes = &info.attributes;
    if !info.path_name().is_empty() || !attributes.name.is_empty() || attributes.verb == "create" {
        "resource"
    } else if !info.namespace.is_empty() {
        "namespace"
    } else {
        "cluster"
    }
}
