//! Converts the verb and the resource of a command line to attributes of a request.
//!
//! # Contract
//!
//! A resource is `NAME[.GROUP][/SUBRESOURCE]`; a path begins with `/`. The discovery documents of the server
//! complete the group and resolve singular and short names. A resource that no document lists is used as
//! written, because rules may name resources that the server does not serve.

use apimachinery::attributes::Attributes;
use serde_json::Value;

use super::connection::Connection;
use super::{InspectError, items, text};

/// A resource of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceArgument {
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    /// The path of a non-resource request; empty for a resource.
    pub(super) path: String,
    /// Whether the resource is namespaced; true if discovery does not list it.
    pub(super) namespaced: bool,
    /// Whether a discovery document lists the resource.
    pub(super) is_listed: bool,
}

impl ResourceArgument {
    /// Parses a resource or path without discovery; an absent group is empty.
    pub(super) fn parse(text: &str) -> Self {
        if text.starts_with('/') {
            return ResourceArgument { path: text.to_owned(), ..ResourceArgument::default() };
        }
        let (name, subresource) = text.split_once('/').unwrap_or((text, ""));
        let (resource, group) = name.split_once('.').unwrap_or((name, ""));
        ResourceArgument {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            path: String::new(),
            namespaced: true,
            is_listed: false,
        }
    }

    /// Parses a resource or path and completes it by the discovery documents of the server.
    pub(super) async fn resolve(connection: &Connection, text: &str) -> Result<Self, InspectError> {
        let mut argument = ResourceArgument::parse(text);
        if !argument.path.is_empty() || argument.resource == "*" {
            return Ok(argument);
        }
        let core = connection.get("/api/v1").await?;
        if argument.group.is_empty() && argument.complete(&core, "") {
            return Ok(argument);
        }
        let groups = connection.get("/apis").await?;
        for group in items(&groups, "groups") {
            let Some(name) = group.get("name").and_then(Value::as_str) else { continue };
            if !argument.group.is_empty() && argument.group != name {
                continue;
            }
            let Some(version) = group.pointer("/preferredVersion/groupVersion").and_then(Value::as_str)
            else {
                continue;
            };
            // If an aggregated API is unavailable, the search continues with the other groups.
            let Ok(document) = connection.get(&format!("/apis/{version}")).await else { continue };
            if argument.complete(&document, name) {
                break;
            }
        }
        Ok(argument)
    }

    /// Sets group, plural and scope from a discovery document; false if the document does not list the
    /// resource.
    fn complete(&mut self, document: &Value, group: &str) -> bool {
        let requested = self.resource.to_lowercase();
        for resource in items(document, "resources") {
            let plural = text(resource, "name").to_lowercase();
            let is_match = plural == requested
                || !plural.contains('/') && text(resource, "singularName").to_lowercase() == requested
                || items(resource, "shortNames").any(|name| name.as_str() == Some(&requested));
            if is_match {
                self.is_listed = true;
                self.resource = plural;
                group.clone_into(&mut self.group);
                self.namespaced = resource.get("namespaced").and_then(Value::as_bool).unwrap_or(true);
                return true;
            }
        }
        false
    }

    /// Returns a comment line if [`ResourceArgument::resolve`] found the resource in no discovery document.
    pub(super) fn unlisted_comment(&self) -> String {
        if self.is_listed || !self.path.is_empty() || self.resource == "*" {
            return String::new();
        }
        format!("# the server has no resource `{self}`, or its discovery documents do not list it\n")
    }

    /// Returns the attributes of a request with this verb. A cluster-scoped resource ignores the namespace.
    pub(super) fn attributes(&self, verb: &str, namespace: &str, name: &str) -> Attributes {
        let ResourceArgument { group, resource, subresource, path, namespaced, is_listed: _ } = self.clone();
        let is_resource = path.is_empty();
        Attributes {
            verb: verb.to_owned(),
            resource_request: is_resource,
            version: if is_resource { "*".to_owned() } else { String::new() },
            group,
            resource,
            subresource,
            namespace: if namespaced { namespace.to_owned() } else { String::new() },
            name: name.to_owned(),
            path,
            ..Attributes::default()
        }
    }
}

impl std::fmt::Display for ResourceArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ResourceArgument { group, resource, subresource, path, .. } = self;
        f.write_str(if path.is_empty() { resource } else { path })?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if subresource.is_empty() { Ok(()) } else { write!(f, "/{subresource}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resource_argument_is_parsed_and_printed() {
        for (text, group, resource, subresource, path) in [
            ("pods", "", "pods", "", ""),
            ("pods/log", "", "pods", "log", ""),
            ("deployments.apps", "apps", "deployments", "", ""),
            ("deployments.apps/scale", "apps", "deployments", "scale", ""),
            ("/metrics", "", "", "", "/metrics"),
        ] {
            let argument = ResourceArgument::parse(text);
            let ResourceArgument { group: g, resource: r, subresource: s, path: p, .. } = &argument;
            assert_eq!((&**g, &**r, &**s, &**p), (group, resource, subresource, path));
            assert_eq!(argument.to_string(), text);
        }
    }

    #[test]
    fn short_and_singular_names_are_completed_by_discovery() {
        let document = json!({"resources": [
            {"name": "deployments", "singularName": "deployment", "shortNames": ["deploy"], "namespaced": true},
            {"name": "deployments/scale", "singularName": "", "namespaced": true},
            {"name": "nodes", "singularName": "node", "shortNames": ["no"], "namespaced": false},
        ]});
        for (text, plural, namespace) in
            [("deploy/scale", "deployments", "a"), ("Deployment", "deployments", "a"), ("no", "nodes", "")]
        {
            let mut argument = ResourceArgument::parse(text);
            assert_ne!(argument.unlisted_comment(), "", "{text}");
            assert!(argument.complete(&document, "apps"), "{text}");
            assert_eq!(argument.unlisted_comment(), "", "{text}");
            let attributes = argument.attributes("get", "a", "x");
            assert_eq!((attributes.resource.as_str(), attributes.namespace.as_str()), (plural, namespace));
            assert_eq!(attributes.group, "apps");
        }
        let mut widgets = ResourceArgument::parse("widgets.example.com");
        assert!(!widgets.complete(&document, "example.com"));
        assert!(widgets.unlisted_comment().starts_with("# the server has no resource `widgets.example.com`"));
        for without_discovery in ["*", "/metrics"] {
            assert_eq!(ResourceArgument::parse(without_discovery).unlisted_comment(), "");
        }
    }
}
