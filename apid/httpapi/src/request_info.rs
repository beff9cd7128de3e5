//! Request attributes: parses method, path and selectors. The options of verbs are read in `params`.
//!
//! # Contract
//!
//! [`RequestInfo::resolve`] reads method, path and query exactly as the request-info resolver of Kubernetes,
//! so policies have the same meaning. Two differences make a path unambiguous:
//!
//! - The path is split before it is percent-decoded. A path with an empty, `.` or `..` segment, or with an
//!   encoded slash, is not a resource path ([`RequestInfo::malformed`]).
//! - A GET with `watch` on the path of one object is a watch (requirements D-EP-25).
//!
//! # Invariants
//!
//! INVARIANT (one reading): routing uses the attributes that were authorized; no other code parses the path.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::selector::{field::FieldSelector, label::LabelSelector};
use forwarding::url_path;
use http::Method;
use percent_encoding::percent_decode_str;

use crate::query::{Query, is_well_formed};

/// The health check endpoints.
pub(super) const HEALTH_ENDPOINTS: [&str; 3] = ["livez", "readyz", "healthz"];

/// The parsed method, path and query of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestInfo {
    /// The attributes for authorization. For an object of `namespaces`, `name` and `namespace` are both its
    /// name.
    pub(super) attributes: Arc<Attributes>,
    /// Whether segments follow the name and subresource. Only proxy subresources accept such segments.
    pub(super) has_extra_segments: bool,
    /// The namespace of the URL, `""` for cluster scope.
    ///
    /// Unlike the namespace of the attributes, it is empty for objects of `namespaces`.
    pub(super) namespace: String,
    /// Whether the name of the attributes comes from the field selector, not from the path.
    pub(super) name_from_selector: bool,
    /// The valid label selector of the query, for verbs that have selectors.
    pub(super) labels: Option<LabelSelector>,
    /// The valid field selector of the query, for verbs that have selectors.
    pub(super) fields: Option<FieldSelector>,
    /// The reason why the path is malformed; None for a valid path. A malformed path names no resource.
    pub(super) malformed: Option<&'static str>,
    /// Decoded segments of a non-resource path.
    pub(super) segments: Vec<String>,
}

/// Whether a request is a stream that lasts as long as the client keeps it open: a watch, or a stream to or from a pod.
///
/// The request timeout does not end its stream, and it takes no in-flight permit. A non-resource
/// request is never long-running: its verb is the HTTP method, which the client chooses freely.
pub(super) fn is_long_running(attributes: &Attributes) -> bool {
    attributes.resource_request
        && (attributes.verb == "watch"
            || matches!(attributes.subresource.as_str(), "attach" | "exec" | "log" | "portforward" | "proxy"))
}

impl RequestInfo {
    /// Whether no time limit applies to the head of the response, which another server makes.
    pub(super) fn is_unlimited(&self) -> bool {
        let subresource = self.attributes.subresource.as_str();
        self.attributes.resource_request
            && matches!(subresource, "attach" | "exec" | "log" | "portforward" | "proxy")
    }

    /// Whether the request is for `/livez`, `/readyz` or `/healthz`.
    pub(super) fn is_for_health(&self) -> bool {
        self.segments.first().is_some_and(|first| HEALTH_ENDPOINTS.contains(&first.as_str()))
    }

    /// Whether the request is long-running: see [`is_long_running`].
    pub(super) fn is_long_running(&self) -> bool {
        is_long_running(&self.attributes)
    }

    /// Parses a request.
    pub(super) fn resolve(method: &Method, path: &str, query: &Query) -> Self {
        let non_resource = |malformed, segments: Vec<Cow<'_, str>>| RequestInfo {
            attributes: Arc::new(Attributes {
                verb: method.as_str().to_ascii_lowercase(),
                path: path.to_owned(),
                ..Attributes::default()
            }),
            has_extra_segments: false,
            namespace: String::new(),
            name_from_selector: false,
            labels: None,
            fields: None,
            malformed,
            segments: segments.into_iter().map(Cow::into_owned).collect(),
        };
        let routed = path_to_proxy(path).unwrap_or(path);
        let segments = match split(routed) {
            Ok(segments) => segments,
            Err(reason) => return non_resource(Some(reason), Vec::new()),
        };
        let texts: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        let (group, version, rest) = match texts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return non_resource(None, segments),
        };
        let (is_watch_path, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        let (authorized_namespace, namespace, parts) = match rest {
            // Subresources of a namespace belong to the namespace object; all other paths below it are within
            // the namespace.
            ["namespaces", namespace, next, ..] if !matches!(*next, "status" | "finalize") => {
                (*namespace, *namespace, rest.get(2..).unwrap_or(&[]))
            }
            ["namespaces", namespace, ..] => (*namespace, "", rest),
            _ => ("", "", rest),
        };
        let resource = parts.first().copied().unwrap_or("");
        let mut name = parts.get(1).copied().unwrap_or("").to_owned();
        let subresource = parts.get(2).copied().unwrap_or("");

        let is_watch = query.switch("watch");
        let verb = match method.as_str() {
            _ if is_watch_path => "watch",
            "POST" => "create",
            "GET" | "HEAD" if is_watch && subresource.is_empty() => "watch",
            "GET" | "HEAD" if name.is_empty() => "list",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if name.is_empty() => "deletecollection",
            "DELETE" => "delete",
            _ => "",
        };
        let (mut field_selector, mut label_selector) = (ParsedSelector::default(), ParsedSelector::default());
        let (mut labels, mut fields) = (None, None);
        let mut name_from_selector = false;
        if matches!(verb, "list" | "watch" | "deletecollection") {
            let text = query.text("fieldSelector");
            if !text.is_empty() {
                match FieldSelector::parse(text) {
                    Ok(selector) => {
                        let exact = selector.exact("metadata.name").filter(|name| is_path_segment(name));
                        if let (true, false, true, Some(exact)) =
                            (name.is_empty(), is_watch_path, verb != "deletecollection", exact)
                        {
                            exact.clone_into(&mut name);
                            name_from_selector = true;
                        }
                        field_selector = selector.requirements();
                        fields = Some(selector);
                    }
                    Err(_) => field_selector = ParsedSelector::Unparsable(text.to_owned()),
                }
            }
            let text = query.text("labelSelector");
            if !text.is_empty() {
                match LabelSelector::parse(text) {
                    Ok(selector) => {
                        label_selector = selector.requirements();
                        labels = Some(selector);
                    }
                    Err(_) => label_selector = ParsedSelector::Unparsable(text.to_owned()),
                }
            }
        }
        RequestInfo {
            attributes: Arc::new(Attributes {
                verb: verb.to_owned(),
                resource_request: true,
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: authorized_namespace.to_owned(),
                name,
                path: path.to_owned(),
                field_selector,
                label_selector,
            }),
            has_extra_segments: parts.len() > 3 || routed.len() < path.trim_end_matches('/').len(),
            namespace: namespace.to_owned(),
            name_from_selector,
            labels,
            fields,
            malformed: None,
            segments: Vec::new(),
        }
    }

    /// Makes the watch of one object a get, unless the path begins the watch.
    ///
    /// Other API servers ignore `watch` on the path of an object, as the resolver of Kubernetes does.
    pub(super) fn read_object_watch_as_get(&mut self) {
        let attributes = &self.attributes;
        let is_of_object = attributes.verb == "watch" && !self.path_name().is_empty();
        let position = if attributes.group.is_empty() { 2 } else { 3 };
        let segment = attributes.path.split('/').skip(1).nth(position).unwrap_or_default();
        let is_watch_path = percent_decode_str(segment).decode_utf8_lossy() == "watch";
        if is_of_object && !is_watch_path {
            "get".clone_into(&mut Arc::make_mut(&mut self.attributes).verb);
        }
    }

    /// Returns the name in the path, `""` if the name came from the field selector.
    pub(super) fn path_name(&self) -> &str {
        if self.name_from_selector { "" } else { &self.attributes.name }
    }

    /// Returns the decoded path after the subresource as the backend gets it: cleaned, with a leading slash; `""` if
    /// the path ends with the subresource.
    pub(super) fn path_after_subresource(&self) -> String {
        match self.path_in_proxy() {
            "" => String::new(),
            path => url_path::decoded_directory(path),
        }
    }

    /// Returns the encoded path after the subresource, with a leading slash; `""` if the path ends with the
    /// subresource.
    pub(super) fn path_in_proxy(&self) -> &str {
        let attributes = &self.attributes;
        let group_segments = if attributes.group.is_empty() { 2 } else { 3 };
        let segments = group_segments + if self.namespace.is_empty() { 3 } else { 5 };
        let end = attributes.path.match_indices('/').nth(segments).map(|(position, _)| position);
        end.and_then(|end| attributes.path.get(end..)).unwrap_or_default()
    }
}

/// Whether a name is a valid path segment; the RBAC kinds use this rule for names.
pub(super) fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%'])
}

/// Returns the path up to `proxy` of a request to a pod, a Service or a node. The rest is for the backend.
///
/// Authorization does not depend on the rest, so the rest may have empty segments, encoded slashes and `..`.
fn path_to_proxy(path: &str) -> Option<&str> {
    let segments = match path.split('/').skip(1).take(7).collect::<Vec<_>>().as_slice() {
        ["api", "v1", "nodes", _, "proxy", ..] => 5,
        ["api", "v1", "namespaces", _, "pods" | "services", _, "proxy", ..] => 7,
        _ => return None,
    };
    let end = path.match_indices('/').nth(segments).map(|(position, _)| position)?;
    path.get(..end)
}

/// Returns the decoded segments of a path. A trailing slash adds no segment.
fn split(path: &str) -> Result<Vec<Cow<'_, str>>, &'static str> {
    let Some(path) = path.strip_prefix('/') else { return Err("it does not begin with a slash") };
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = Vec::with_capacity(TYPICAL_SEGMENTS);
    if !path.is_empty() {
        for raw in path.split('/') {
            segments.push(parse_segment(raw)?);
        }
    }
    Ok(segments)
}

/// Number of segments for which no reallocation is needed: an object in a namespace with its subresource.
const TYPICAL_SEGMENTS: usize = 8;

fn parse_segment(raw: &str) -> Result<Cow<'_, str>, &'static str> {
    let text = if raw.contains('%') { percent_decode(raw)? } else { Cow::Borrowed(raw) };
    match text.as_ref() {
        "" => Err("a segment is empty"),
        "." | ".." => Err("a segment is `.` or `..`"),
        _ => Ok(text),
    }
}

/// Decodes a segment with percent signs. Only such a segment can contain a slash or, by the URI syntax, a zero byte.
fn percent_decode(raw: &str) -> Result<Cow<'_, str>, &'static str> {
    if !is_well_formed(raw) {
        return Err("a percent sign is not followed by two hexadecimal digits");
    }
    match percent_decode_str(raw).decode_utf8() {
        Err(_) => Err("a segment is not UTF-8"),
        Ok(text) if text.contains('/') => Err("a segment contains an encoded slash"),
        Ok(text) if text.contains('\0') => Err("a segment contains a zero byte"),
        Ok(text) => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(method: &str, url: &str) -> RequestInfo {
        let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
        RequestInfo::resolve(&Method::from_bytes(method.as_bytes()).unwrap(), path, &Query::parse(query))
    }

    /// Verb, group, version, attribute namespace, URL namespace, resource, subresource, name.
    type Row = (&'static str, &'static str, [&'static str; 8]);

    #[test]
    fn watch_of_object_becomes_get_unless_the_path_or_a_selector_begins_it() {
        for (path, verb) in [
            ("/apis/e.com/v1/namespaces/n/things/a?watch=1", "get"),
            ("/apis/e.com/v1/things/a?watch=true", "get"),
            ("/apis/e.com/v1/things?watch=1", "watch"),
            ("/apis/e.com/v1/things?watch=1&fieldSelector=metadata.name%3Da", "watch"),
            ("/apis/e.com/v1/watch/things/a", "watch"),
            ("/apis/e.com/v1/%77atch/things/a", "watch"),
            ("/api/v1/watch/namespaces/n/pods/a", "watch"),
            ("/api/v1/namespaces/n/pods/a?watch", "get"),
        ] {
            let mut info = resolve("GET", path);
            info.read_object_watch_as_get();
            assert_eq!(info.attributes.verb, verb, "{path}");
        }
    }

    #[test]
    fn resource_paths_resolve_to_attributes() {
        let table: &[Row] = &[
            ("GET", "/api/v1/pods", ["list", "", "v1", "", "", "pods", "", ""]),
            ("HEAD", "/api/v1/pods", ["list", "", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/pods/", ["list", "", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/pods?watch", ["watch", "", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/pods?watch=false", ["list", "", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/namespaces", ["list", "", "v1", "", "", "namespaces", "", ""]),
            ("GET", "/api/v1/namespaces/a", ["get", "", "v1", "a", "", "namespaces", "", "a"]),
            (
                "PUT",
                "/api/v1/namespaces/a/status",
                ["update", "", "v1", "a", "", "namespaces", "status", "a"],
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                ["update", "", "v1", "a", "", "namespaces", "finalize", "a"],
            ),
            ("GET", "/api/v1/namespaces/a/pods", ["list", "", "v1", "a", "a", "pods", "", ""]),
            ("GET", "/api/v1/namespaces/a/pods/x", ["get", "", "v1", "a", "a", "pods", "", "x"]),
            ("GET", "/api/v1/namespaces/a/pods/x?watch=1", ["watch", "", "v1", "a", "a", "pods", "", "x"]),
            ("GET", "/api/v1/namespaces/a/pods/x/log", ["get", "", "v1", "a", "a", "pods", "log", "x"]),
            (
                "GET",
                "/api/v1/namespaces/a/pods/x/log?watch=1",
                ["get", "", "v1", "a", "a", "pods", "log", "x"],
            ),
            ("DELETE", "/api/v1/namespaces/a/pods", ["deletecollection", "", "v1", "a", "a", "pods", "", ""]),
            ("DELETE", "/api/v1/namespaces/a/pods/x", ["delete", "", "v1", "a", "a", "pods", "", "x"]),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                ["deletecollection", "", "v1", "a", "a", "pods", "", ""],
            ),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments",
                ["create", "apps", "v1", "a", "a", "deployments", "", ""],
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/x/scale",
                ["patch", "apps", "v1", "a", "a", "deployments", "scale", "x"],
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods", ["watch", "", "v1", "a", "a", "pods", "", ""]),
            ("GET", "/api/v1/watch/pods", ["watch", "", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/watch/namespaces", ["watch", "", "v1", "", "", "namespaces", "", ""]),
            ("POST", "/api/v1/watch/namespaces/a/pods", ["watch", "", "v1", "a", "a", "pods", "", ""]),
            ("OPTIONS", "/api/v1/pods", ["", "", "v1", "", "", "pods", "", ""]),
            // A permission on namespaces in `a` does not apply to `b`: no route within a namespace leads to
            // `namespaces`.
            ("GET", "/api/v1/namespaces/a/namespaces", ["list", "", "v1", "a", "a", "namespaces", "", ""]),
            (
                "DELETE",
                "/api/v1/namespaces/a/namespaces/b",
                ["delete", "", "v1", "a", "a", "namespaces", "", "b"],
            ),
            (
                "GET",
                "/api/v1/watch/namespaces/a/namespaces/b",
                ["watch", "", "v1", "a", "a", "namespaces", "", "b"],
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/system%3Ax",
                ["get", "", "v1", "a", "a", "pods", "", "system:x"],
            ),
            ("GET", "/api/v1/namespaces/a/pods/%252e", ["get", "", "v1", "a", "a", "pods", "", "%2e"]),
        ];
        for (method, url, [verb, group, version, authorized, namespace, resource, subresource, name]) in table
        {
            let info = resolve(method, url);
            let a = &info.attributes;
            assert!(
                a.resource_request && info.malformed.is_none() && !info.has_extra_segments,
                "{method} {url}"
            );
            assert_eq!(
                [
                    a.verb.as_str(),
                    &a.group,
                    &a.version,
                    &a.namespace,
                    &info.namespace,
                    &a.resource,
                    &a.subresource,
                    &a.name
                ],
                [*verb, group, version, authorized, namespace, resource, subresource, name],
                "{method} {url}"
            );
        }
    }

    #[test]
    fn non_resource_path_has_method_as_verb() {
        for (method, url, verb) in [
            ("GET", "/", "get"),
            ("GET", "/healthz", "get"),
            ("HEAD", "/healthz", "head"),
            ("GET", "/api", "get"),
            ("GET", "/api/v1", "get"),
            ("GET", "/api/v1/", "get"),
            ("POST", "/apis/apps/v1", "post"),
            ("GET", "/apis/apps", "get"),
            ("GET", "/apiserver/v1/pods", "get"),
        ] {
            let info = resolve(method, url);
            assert!(!info.attributes.resource_request && info.malformed.is_none(), "{url}");
            assert_eq!((info.attributes.verb.as_str(), info.attributes.path.as_str()), (verb, url));
        }
    }

    #[test]
    fn path_in_proxy_is_for_the_backend() {
        for (path, expected, decoded) in [
            ("/api/v1/nodes/n/proxy", "", ""),
            ("/api/v1/nodes/n/proxy/", "/", "/"),
            ("/api/v1/nodes/n/proxy//a/../%2e%2E/%zz/", "//a/../%2e%2E/%zz/", "/%2e%2E/%zz/"),
            ("/api/v1/namespaces/a/pods/p:80/proxy/a%2Fb", "/a%2Fb", "/a/b"),
            ("/api/v1/namespaces/a/services/s/proxy/%00", "/%00", "/\0"),
        ] {
            let info = resolve("GET", path);
            assert!(info.malformed.is_none(), "{path}");
            assert_eq!(
                (info.attributes.subresource.as_str(), info.attributes.verb.as_str()),
                ("proxy", "get")
            );
            assert_eq!((info.path_in_proxy(), info.path_after_subresource().as_str()), (expected, decoded));
        }
        for path in
            ["/api/v1/nodes/../proxy/a", "/api/v1/namespaces/a%2Fb/pods/p/proxy/x", "/api/v1/nodes//proxy/a"]
        {
            assert!(resolve("GET", path).malformed.is_some(), "{path}");
        }
    }

    #[test]
    fn ambiguous_path_is_malformed() {
        for url in [
            "/api/v1/namespaces/a//pods",
            "//api/v1/pods",
            "/api/v1/pods//",
            "/api/v1/namespaces/a/../b/pods",
            "/api/v1/namespaces/%2e%2e/pods",
            "/api/v1/namespaces/a%2fpods",
            "/api/v1/namespaces/a%2Fb/pods/x",
            "/api/v1/pods/%zz",
            "/api/v1/pods/%ff",
            "/api/v1/pods/a%00b",
            "api/v1/pods",
        ] {
            let info = resolve("GET", url);
            assert!(info.malformed.is_some() && !info.attributes.resource_request, "{url}");
        }
        assert!(resolve("GET", "/api/v1/namespaces/a/pods/x/log/y").has_extra_segments);
    }
}
