//! The Node authorizer (requirements A-NODE).
//! Kubelets access their own Node, their pods and the objects of those pods.
//!
//! # Contract
//!
//! A node agent is a user `system:node:NAME` in the group `system:nodes`; on other users this authorizer has
//! no opinion. For most resources the rules of all nodes decide ([`rules`]). Of the other resources a node
//! may access only its own objects: those with its name, or those that the [`Graph`] connects with the node.
//! The admission plugin NodeRestriction checks the objects that a node creates.
//! The authorizer never denies: a later authorizer may allow.
//!
//! # Invariants
//!
//! INVARIANT (exact dependencies): a decision that read the graph depends on the component of the node agent.
//! If it read volumes, it also depends on the component of volumes. No other decision has dependencies.
//!
//! # Reference
//!
//! The Node authorizer of Kubernetes 1.33, with its messages. One difference: endpoints may also be listed
//! and watched (access control: "may read services, endpoints, …").

mod rules;
#[cfg(test)]
mod tests;

use apimachinery::attributes::{Attributes, Operator, ParsedSelector};
use apimachinery::decision::{Decision, Verdict};
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::Dependencies;

use super::entry::Entry;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::graph::{Graph, ReferencedKind, Target};
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::rules::PolicyRule;

/// The prefix of the usernames of node agents.
const PREFIX: &str = "system:node:";
/// The group of node agents.
const GROUP: &str = "system:nodes";
/// The name of the component of volumes among the node components; no node has this name.
const VOLUMES: &str = "*";

/// Decides on requests of node agents. See the module.
struct NodeAuthorizer {
    policy: NodePolicy,
}

pub(super) fn build(settings: &Settings, _: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    let policy = NodePolicy::new(&settings.context.names, settings.nodes_by_selectors);
    Ok(Box::new(NodeAuthorizer { policy }))
}

/// Returns the node name in the username of a node agent; it may be empty. Returns None if the user is no node agent.
fn node_of(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix(PREFIX).filter(|_| user.in_group(GROUP))
}

/// The rules and names that are the same for all nodes.
struct NodePolicy {
    rules: Vec<PolicyRule>,
    /// Gate `AuthorizeNodeWithSelectors`: a node reads its own Node and pods only.
    by_selectors: bool,
    lease_namespace: &'static str,
    coordination: String,
    storage: String,
    resource: String,
}

/// The decision on one request of a node agent, and its dependencies.
#[derive(Debug, Default, PartialEq, Eq)]
struct NodeDecision {
    allowed: bool,
    /// The reason if the request is not allowed; else empty.
    reason: String,
    /// The decision applies to all other object names too.
    any_name: bool,
    /// The decision read the graph.
    uses_graph: bool,
    /// The decision read volumes of the graph.
    uses_volumes: bool,
}

impl NodeDecision {
    fn allow() -> Self {
        NodeDecision { allowed: true, any_name: true, ..NodeDecision::default() }
    }

    /// Does not allow the request, whatever the object name; the authorizer then has no opinion.
    fn deny_any_name(reason: impl Into<String>) -> Self {
        NodeDecision { reason: reason.into(), any_name: true, ..NodeDecision::default() }
    }

    /// Decides for the object name of the request only.
    fn for_name(allowed: bool, reason: &str) -> Self {
        let reason = if allowed { String::new() } else { reason.to_owned() };
        NodeDecision { allowed, reason, ..NodeDecision::default() }
    }
}

/// One request of a node agent, with the data that decides it.
struct NodeRequest<'a> {
    policy: &'a NodePolicy,
    node: &'a str,
    request: &'a Attributes,
    graph: &'a Graph,
}

impl NodePolicy {
    fn new(names: &Names, by_selectors: bool) -> Self {
        NodePolicy {
            rules: rules::node_rules(names),
            by_selectors,
            lease_namespace: names.node_lease_namespace,
            coordination: names.group("coordination"),
            storage: names.group("storage"),
            resource: names.group("resource"),
        }
    }
}

impl NodeRequest<'_> {
    fn decide(&self) -> NodeDecision {
        let request = self.request;
        if self.node.is_empty() {
            return NodeDecision::deny_any_name(format!("unknown node for user {PREFIX:?}"));
        }
        let NodePolicy { coordination, storage, resource, by_selectors, .. } = self.policy;
        let in_group = |group: &str| request.group == group;
        match request.resource.as_str() {
            _ if !request.resource_request => self.decide_by_rules(),
            "secrets" if in_group("") => self.decide_read(ReferencedKind::Secret),
            "configmaps" if in_group("") => self.decide_read(ReferencedKind::ConfigMap),
            "persistentvolumeclaims" if in_group("") && request.subresource == "status" => {
                self.decide_claim_status()
            }
            "persistentvolumeclaims" if in_group("") => {
                self.decide_get(self.named_target(ReferencedKind::VolumeClaim))
            }
            "persistentvolumes" if in_group("") => self.decide_get(Target::Volume(&request.name)),
            "resourceclaims" if in_group(resource) => {
                self.decide_get(self.named_target(ReferencedKind::ResourceClaim))
            }
            "volumeattachments" if in_group(storage) => {
                self.decide_get(Target::VolumeAttachment(&request.name))
            }
            "serviceaccounts" if in_group("") => self.decide_service_account(),
            "leases" if in_group(coordination) => self.decide_lease(),
            "csinodes" if in_group(storage) => self.decide_csi_node(),
            "resourceslices" if in_group(resource) => self.decide_resource_slice(),
            "nodes" if in_group("") && *by_selectors => self.decide_node(),
            "pods" if in_group("") && *by_selectors => self.decide_pod(),
            _ => self.decide_by_rules(),
        }
    }

    fn named_target(&self, kind: ReferencedKind) -> Target<'_> {
        Target::ReferencedObject(kind, &self.request.namespace, &self.request.name)
    }

    fn decide_by_rules(&self) -> NodeDecision {
        let allowed = self.policy.rules.iter().any(|rule| rule.allows(self.request));
        if allowed { NodeDecision::allow() } else { NodeDecision::deny_any_name("") }
    }

    /// Allows if the graph has a path from the object to the node.
    fn decide_by_graph(&self, target: Target<'_>) -> NodeDecision {
        if self.request.name.is_empty() {
            return NodeDecision::for_name(false, "No Object name found");
        }
        let found = self.graph.look_up(self.node, target);
        let reason = format!("no relationship found between node '{}' and this object", self.node);
        NodeDecision {
            uses_graph: true,
            uses_volumes: found.depends_on_volumes,
            ..NodeDecision::for_name(found.related, &reason)
        }
    }

    fn decide_get(&self, target: Target<'_>) -> NodeDecision {
        if self.request.verb != "get" {
            return NodeDecision::deny_any_name("can only get individual resources of this type");
        }
        if !self.request.subresource.is_empty() {
            return NodeDecision::deny_any_name("cannot get subresource");
        }
        self.decide_by_graph(target)
    }

    fn decide_read(&self, kind: ReferencedKind) -> NodeDecision {
        if !self.request.is_read_only() {
            return NodeDecision::deny_any_name("can only read resources of this type");
        }
        if !self.request.subresource.is_empty() {
            return NodeDecision::deny_any_name("cannot read subresource");
        }
        if self.request.namespace.is_empty() {
            return NodeDecision::deny_any_name("can only read namespaced object of this type");
        }
        self.decide_by_graph(self.named_target(kind))
    }

    fn decide_claim_status(&self) -> NodeDecision {
        match self.request.verb.as_str() {
            "get" | "update" | "patch" => {
                self.decide_by_graph(self.named_target(ReferencedKind::VolumeClaim))
            }
            _ => NodeDecision::deny_any_name("can only get/update/patch this type"),
        }
    }

    fn decide_service_account(&self) -> NodeDecision {
        let request = self.request;
        if request.verb == "get" && request.subresource.is_empty() {
            return NodeDecision::deny_any_name("not allowed to get service accounts");
        }
        if request.verb != "create" || request.name.is_empty() {
            return NodeDecision::for_name(false, "can only create tokens for individual service accounts");
        }
        if request.subresource != "token" {
            return NodeDecision::deny_any_name("can only create token subresource of service account");
        }
        self.decide_by_graph(self.named_target(ReferencedKind::ServiceAccount))
    }

    fn decide_lease(&self) -> NodeDecision {
        let request = self.request;
        if !matches!(request.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return NodeDecision::deny_any_name(
                "can only get, create, update, patch, or delete a node lease",
            );
        }
        let namespace = self.policy.lease_namespace;
        if request.namespace != namespace {
            return NodeDecision::deny_any_name(format!(
                "can only access leases in the {namespace:?} system namespace"
            ));
        }
        self.decide_own_name("can only access node lease with the same name as the requesting node")
    }

    fn decide_csi_node(&self) -> NodeDecision {
        if !matches!(self.request.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return NodeDecision::deny_any_name("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.request.subresource.is_empty() {
            return NodeDecision::deny_any_name("cannot authorize CSINode subresources");
        }
        self.decide_own_name("can only access CSINode with the same name as the requesting node")
    }

    /// Allows access to the object with the name of the node, and every create. The name of an object to
    /// create is unknown here: the admission plugin NodeRestriction checks the name.
    fn decide_own_name(&self, reason: &str) -> NodeDecision {
        if self.request.verb == "create" {
            return NodeDecision::allow();
        }
        NodeDecision::for_name(self.request.name == self.node, reason)
    }

    fn decide_resource_slice(&self) -> NodeDecision {
        let request = self.request;
        if !request.subresource.is_empty() {
            return NodeDecision::deny_any_name("cannot authorize ResourceSlice subresources");
        }
        match request.verb.as_str() {
            "create" => NodeDecision::allow(),
            "get" | "update" | "patch" | "delete" => {
                self.decide_by_graph(Target::ResourceSlice(&request.name))
            }
            "watch" | "list" | "deletecollection" if !self.policy.by_selectors || self.selects_own() => {
                NodeDecision::allow()
            }
            "watch" | "list" | "deletecollection" => NodeDecision::deny_any_name(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => NodeDecision::deny_any_name(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, \
                 patch, delete, deletecollection",
            ),
        }
    }

    fn decide_node(&self) -> NodeDecision {
        let (node, name) = (self.node, self.request.name.as_str());
        match (self.request.subresource.as_str(), self.request.verb.as_str()) {
            // The admission plugin NodeRestriction checks that a written Node is the node's own; only
            // admission knows the name of a new object.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => NodeDecision::allow(),
            ("", "get" | "list" | "watch") if name == node => NodeDecision::for_name(true, ""),
            ("", "get" | "list" | "watch") if name.is_empty() => NodeDecision::for_name(
                false,
                &format!("node '{node}' cannot read all nodes, only its own Node object"),
            ),
            ("", "get" | "list" | "watch") => NodeDecision::for_name(
                false,
                &format!("node '{node}' cannot read '{name}', only its own Node object"),
            ),
            _ => NodeDecision::deny_any_name(""),
        }
    }

    fn decide_pod(&self) -> NodeDecision {
        let request = self.request;
        let target = Target::Pod(&request.namespace, &request.name);
        match (request.subresource.as_str(), request.verb.as_str()) {
            ("", "get") => self.decide_get(target),
            ("", "list" | "watch") if self.selects_own() => NodeDecision::allow(),
            ("", "list" | "watch") if request.name.is_empty() => {
                NodeDecision::for_name(false, "can only list/watch pods with spec.nodeName field selector")
            }
            ("", "list" | "watch") => self.decide_by_graph(target),
            // The admission plugin NodeRestriction checks that the pods are the node's own.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                NodeDecision::allow()
            }
            _ => NodeDecision::deny_any_name(""),
        }
    }

    /// Whether the field selector restricts `spec.nodeName` to this node.
    fn selects_own(&self) -> bool {
        let ParsedSelector::Requirements(requirements) = &self.request.field_selector else { return false };
        requirements.iter().any(|requirement| {
            requirement.key == "spec.nodeName"
                && requirement.operator == Operator::In
                && matches!(requirement.values.as_slice(), [value] if value == self.node)
        })
    }
}

#[async_trait]
impl Authorizer for NodeAuthorizer {
    async fn authorize(&self, authz_request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let AuthzRequest { user, attributes: request, at_least, .. } = authz_request;
        let Some(node) = node_of(user) else {
            let decision = Decision { verdict: Verdict::NoOpinion, ..Decision::default() };
            return Ok(AuthzOutcome { decision, any_name: true, ..AuthzOutcome::default() });
        };
        let node_decision = {
            let graph = at_least.graph()?;
            NodeRequest { policy: &self.policy, node, request, graph: &graph }.decide()
        };
        let verdict = if node_decision.allowed { Verdict::Allow } else { Verdict::NoOpinion };
        let parts = [(node_decision.uses_graph, node), (node_decision.uses_volumes, VOLUMES)];
        let depends_on = Dependencies {
            graph_node: parts
                .iter()
                .filter(|(is_used, _)| *is_used)
                .map(|(_, part)| (*part).to_owned())
                .collect(),
            ..Dependencies::default()
        };
        Ok(AuthzOutcome {
            decision: Decision { verdict, reason: node_decision.reason, ..Decision::default() },
            depends_on,
            any_name: node_decision.any_name,
            ..AuthzOutcome::default()
        })
    }

    fn rules(&self, user: &UserInfo, _: &str, _: AtLeast<'_>) -> Result<Rules, MirrorNotReady> {
        match node_of(user) {
            None => Ok(Rules::default()),
            Some(_) => Ok(Rules {
                incomplete: true,
                problems: vec!["node authorizer does not support user rule resolution".to_owned()],
                ..Rules::default()
            }),
        }
    }
}
