//! The Node authorizer (requirements A-NODE).
//! Kubelets access their own Node, their pods and the objects of those pods.
//!
//! # Contract
//!
//! A node agent is a user `system:node:NAME` in the group `system:nodes`; on other users this authorizer has
//! no opinion. Rules that hold for every node decide most resources ([`rules`]). For the others a node may
//! access its own only, which the [`Graph`] determines. The authorizer never denies: a later authorizer may
//! allow.
//!
//! # Invariants
//!
//! INVARIANT (exact dependencies): a decision from the graph depends on the graph of that node, and on the
//! volumes if the decision read them. Every other decision has no dependencies.
//!
//! # Reference
//!
//! The Node authorizer of Kubernetes 1.33, with its messages. One difference: endpoints may also be listed
//! and watched (access control: "may read services, endpoints, …").

mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apimachinery::attributes::{Attributes, Operator, ParsedSelector};
use apimachinery::decision::{Decision, Verdict};
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::Dependencies;

use super::entry::Entry;
use super::{Answer, Authorizer, AuthzRequest, Rules, Settings};
use crate::mirror::graph::{Graph, ReferencedKind, Target};
use crate::mirror::{Mirror, MirrorNotReady};
use crate::rules::PolicyRule;

/// Username prefix of node agents.
const PREFIX: &str = "system:node:";
/// The group of node agents.
const GROUP: &str = "system:nodes";
/// The dependency component of volumes.
const VOLUMES: &str = "*";

/// The Node authorizer. See the module.
struct Node {
    mirror: Arc<Mirror>,
    law: NodePolicy,
}

pub(super) fn build(
    settings: &Settings,
    _: &Entry,
    mirror: &Arc<Mirror>,
) -> Result<Box<dyn Authorizer>, String> {
    let law = NodePolicy::new(&settings.names, settings.nodes_by_selectors);
    Ok(Box::new(Node { mirror: Arc::clone(mirror), law }))
}

/// The node name of a node agent; `""` if the username has none.
fn node_of(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix(PREFIX).filter(|_| user.in_group(GROUP))
}

/// The rules and settings for all nodes.
struct NodePolicy {
    rules: Vec<PolicyRule>,
    /// Gate `AuthorizeNodeWithSelectors`: a node reads its own Node and pods only.
    by_selectors: bool,
    lease_namespace: &'static str,
    coordination: String,
    storage: String,
    resource: String,
}

/// A decision and its dependencies.
#[derive(Debug, Default, PartialEq, Eq)]
struct NodeDecision {
    allowed: bool,
    /// The reason of a denial.
    reason: String,
    /// The decision holds for other names too.
    any_name: bool,
    /// The decision read the graph.
    over_graph: bool,
    /// The decision read volumes.
    over_volumes: bool,
}

impl NodeDecision {
    fn allow() -> Self {
        NodeDecision { allowed: true, any_name: true, ..NodeDecision::default() }
    }

    /// Does not allow, for any name.
    fn never(reason: impl Into<String>) -> Self {
        NodeDecision { reason: reason.into(), any_name: true, ..NodeDecision::default() }
    }

    /// Decides for this name only.
    fn this(allowed: bool, reason: &str) -> Self {
        let reason = if allowed { String::new() } else { reason.to_owned() };
        NodeDecision { allowed, reason, ..NodeDecision::default() }
    }
}

/// One request of a node, with the graph that decides it.
struct NodeRequest<'a> {
    law: &'a NodePolicy,
    node: &'a str,
    asked: &'a Attributes,
    graph: &'a Graph,
}

impl NodePolicy {
    fn new(names: &Names, by_selectors: bool) -> Self {
        NodePolicy {
            rules: rules::of_every_node(names),
            by_selectors,
            lease_namespace: names.node_lease_namespace,
            coordination: names.group("coordination"),
            storage: names.group("storage"),
            resource: names.group("resource"),
        }
    }
}

impl NodeRequest<'_> {
    fn judge(&self) -> NodeDecision {
        let asked = self.asked;
        if self.node.is_empty() {
            return NodeDecision::never(format!("unknown node for user {PREFIX:?}"));
        }
        let NodePolicy { coordination, storage, resource, by_selectors, .. } = self.law;
        let is = |group: &str| asked.group == group;
        match asked.resource.as_str() {
            _ if !asked.resource_request => self.by_rules(),
            "secrets" if is("") => self.read_named(ReferencedKind::Secret),
            "configmaps" if is("") => self.read_named(ReferencedKind::ConfigMap),
            "persistentvolumeclaims" if is("") && asked.subresource == "status" => self.write_claim_status(),
            "persistentvolumeclaims" if is("") => self.get(self.named(ReferencedKind::VolumeClaim)),
            "persistentvolumes" if is("") => self.get(Target::Volume(&asked.name)),
            "resourceclaims" if is(resource) => self.get(self.named(ReferencedKind::ResourceClaim)),
            "volumeattachments" if is(storage) => self.get(Target::VolumeAttachment(&asked.name)),
            "serviceaccounts" if is("") => self.service_account(),
            "leases" if is(coordination) => self.lease(),
            "csinodes" if is(storage) => self.csi_node(),
            "resourceslices" if is(resource) => self.resource_slice(),
            "nodes" if is("") && *by_selectors => self.node(),
            "pods" if is("") && *by_selectors => self.pod(),
            _ => self.by_rules(),
        }
    }

    fn named(&self, kind: ReferencedKind) -> Target<'_> {
        Target::ReferencedKind(kind, &self.asked.namespace, &self.asked.name)
    }

    fn by_rules(&self) -> NodeDecision {
        let allowed = self.law.rules.iter().any(|rule| rule.allows(self.asked));
        if allowed { NodeDecision::allow() } else { NodeDecision::never("") }
    }

    /// Allows if the graph has a path from the object to the node.
    fn related(&self, target: Target<'_>) -> NodeDecision {
        if self.asked.name.is_empty() {
            return NodeDecision::this(false, "No Object name found");
        }
        let found = self.graph.look_up(self.node, target);
        let reason = format!("no relationship found between node '{}' and this object", self.node);
        NodeDecision {
            over_graph: true,
            over_volumes: found.over_volumes,
            ..NodeDecision::this(found.related, &reason)
        }
    }

    fn get(&self, target: Target<'_>) -> NodeDecision {
        if self.asked.verb != "get" {
            return NodeDecision::never("can only get individual resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return NodeDecision::never("cannot get subresource");
        }
        self.related(target)
    }

    fn read_named(&self, kind: ReferencedKind) -> NodeDecision {
        if !self.asked.is_read_only() {
            return NodeDecision::never("can only read resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return NodeDecision::never("cannot read subresource");
        }
        if self.asked.namespace.is_empty() {
            return NodeDecision::never("can only read namespaced object of this type");
        }
        self.related(self.named(kind))
    }

    fn write_claim_status(&self) -> NodeDecision {
        match self.asked.verb.as_str() {
            "get" | "update" | "patch" => self.related(self.named(ReferencedKind::VolumeClaim)),
            _ => NodeDecision::never("can only get/update/patch this type"),
        }
    }

    fn service_account(&self) -> NodeDecision {
        let asked = self.asked;
        if asked.verb == "get" && asked.subresource.is_empty() {
            return NodeDecision::never("not allowed to get service accounts");
        }
        if asked.verb != "create" || asked.name.is_empty() {
            return NodeDecision::this(false, "can only create tokens for individual service accounts");
        }
        if asked.subresource != "token" {
            return NodeDecision::never("can only create token subresource of service account");
        }
        self.related(self.named(ReferencedKind::ServiceAccount))
    }

    fn lease(&self) -> NodeDecision {
        let asked = self.asked;
        if !matches!(asked.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return NodeDecision::never("can only get, create, update, patch, or delete a node lease");
        }
        let namespace = self.law.lease_namespace;
        if asked.namespace != namespace {
            return NodeDecision::never(format!(
                "can only access leases in the {namespace:?} system namespace"
            ));
        }
        self.own("can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> NodeDecision {
        if !matches!(self.asked.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return NodeDecision::never("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.asked.subresource.is_empty() {
            return NodeDecision::never("cannot authorize CSINode subresources");
        }
        self.own("can only access CSINode with the same name as the requesting node")
    }

    /// Allows objects with the name of the node.
    /// On create the name is unknown here; NodeRestriction checks it.
    fn own(&self, reason: &str) -> NodeDecision {
        if self.asked.verb == "create" {
            return NodeDecision::allow();
        }
        NodeDecision::this(self.asked.name == self.node, reason)
    }

    fn resource_slice(&self) -> NodeDecision {
        let asked = self.asked;
        if !asked.subresource.is_empty() {
            return NodeDecision::never("cannot authorize ResourceSlice subresources");
        }
        match asked.verb.as_str() {
            "create" => NodeDecision::allow(),
            "get" | "update" | "patch" | "delete" => self.related(Target::ResourceSlice(&asked.name)),
            "watch" | "list" | "deletecollection" if !self.law.by_selectors || self.selects_own() => {
                NodeDecision::allow()
            }
            "watch" | "list" | "deletecollection" => NodeDecision::never(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => NodeDecision::never(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, \
                 patch, delete, deletecollection",
            ),
        }
    }

    fn node(&self) -> NodeDecision {
        let (node, name) = (self.node, self.asked.name.as_str());
        match (self.asked.subresource.as_str(), self.asked.verb.as_str()) {
            // NodeRestriction checks that the object is the node's own; only admission knows the name of a
            // new one.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => NodeDecision::allow(),
            ("", "get" | "list" | "watch") if name == node => NodeDecision::this(true, ""),
            ("", "get" | "list" | "watch") if name.is_empty() => NodeDecision::this(
                false,
                &format!("node '{node}' cannot read all nodes, only its own Node object"),
            ),
            ("", "get" | "list" | "watch") => NodeDecision::this(
                false,
                &format!("node '{node}' cannot read '{name}', only its own Node object"),
            ),
            _ => NodeDecision::never(""),
        }
    }

    fn pod(&self) -> NodeDecision {
        let asked = self.asked;
        let own = Target::Pod(&asked.namespace, &asked.name);
        match (asked.subresource.as_str(), asked.verb.as_str()) {
            ("", "get") => self.get(own),
            ("", "list" | "watch") if self.selects_own() => NodeDecision::allow(),
            ("", "list" | "watch") if asked.name.is_empty() => {
                NodeDecision::this(false, "can only list/watch pods with spec.nodeName field selector")
            }
            ("", "list" | "watch") => self.related(own),
            // NodeRestriction checks which pods.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                NodeDecision::allow()
            }
            _ => NodeDecision::never(""),
        }
    }

    /// Whether the field selector selects only objects of the node.
    fn selects_own(&self) -> bool {
        let ParsedSelector::Requirements(requirements) = &self.asked.field_selector else { return false };
        requirements.iter().any(|requirement| {
            requirement.key == "spec.nodeName"
                && requirement.operator == Operator::In
                && matches!(requirement.values.as_slice(), [value] if value == self.node)
        })
    }
}

#[async_trait]
impl Authorizer for Node {
    async fn authorize(&self, question: AuthzRequest<'_>) -> Result<Answer, MirrorNotReady> {
        let AuthzRequest { user, attributes: asked, at_least, .. } = question;
        let Some(node) = node_of(user) else {
            let decision = Decision { verdict: Verdict::NoOpinion, ..Decision::default() };
            return Ok(Answer { decision, any_name: true, ..Answer::default() });
        };
        let judgement = {
            let graph = self.mirror.graph(at_least)?;
            NodeRequest { law: &self.law, node, asked, graph: &graph }.judge()
        };
        let verdict = if judgement.allowed { Verdict::Allow } else { Verdict::NoOpinion };
        let parts = [(judgement.over_graph, node), (judgement.over_volumes, VOLUMES)];
        let depends_on = Dependencies {
            graph_node: parts.iter().filter(|(on, _)| *on).map(|(_, part)| (*part).to_owned()).collect(),
            ..Dependencies::default()
        };
        Ok(Answer {
            decision: Decision { verdict, reason: judgement.reason, ..Decision::default() },
            depends_on,
            any_name: judgement.any_name,
            ..Answer::default()
        })
    }

    fn rules(&self, user: &UserInfo, _: &str, _: u64) -> Result<Rules, MirrorNotReady> {
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
