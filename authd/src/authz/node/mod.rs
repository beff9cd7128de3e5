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
use super::{Answer, Authorizer, Question, Rules, Settings};
use crate::mirror::graph::{Graph, Referred, Target};
use crate::mirror::{Mirror, NotYet};
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
    law: Law,
}

pub(super) fn build(
    settings: &Settings,
    _: &Entry,
    mirror: &Arc<Mirror>,
) -> Result<Box<dyn Authorizer>, String> {
    let law = Law::new(&settings.names, settings.nodes_by_selectors);
    Ok(Box::new(Node { mirror: Arc::clone(mirror), law }))
}

/// The node name of a node agent; `""` if the username has none.
fn node_of(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix(PREFIX).filter(|_| user.in_group(GROUP))
}

/// The rules and settings for all nodes.
struct Law {
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
struct Judgement {
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

impl Judgement {
    fn allow() -> Self {
        Judgement { allowed: true, any_name: true, ..Judgement::default() }
    }

    /// Does not allow, for any name.
    fn never(reason: impl Into<String>) -> Self {
        Judgement { reason: reason.into(), any_name: true, ..Judgement::default() }
    }

    /// Decides for this name only.
    fn this(allowed: bool, reason: &str) -> Self {
        let reason = if allowed { String::new() } else { reason.to_owned() };
        Judgement { allowed, reason, ..Judgement::default() }
    }
}

/// One request of a node, with the graph that decides it.
struct Case<'a> {
    law: &'a Law,
    node: &'a str,
    asked: &'a Attributes,
    graph: &'a Graph,
}

impl Law {
    fn new(names: &Names, by_selectors: bool) -> Self {
        Law {
            rules: rules::of_every_node(names),
            by_selectors,
            lease_namespace: names.node_lease_namespace,
            coordination: names.group("coordination"),
            storage: names.group("storage"),
            resource: names.group("resource"),
        }
    }
}

impl Case<'_> {
    fn judge(&self) -> Judgement {
        let asked = self.asked;
        if self.node.is_empty() {
            return Judgement::never(format!("unknown node for user {PREFIX:?}"));
        }
        let Law { coordination, storage, resource, by_selectors, .. } = self.law;
        let is = |group: &str| asked.group == group;
        match asked.resource.as_str() {
            _ if !asked.resource_request => self.by_rules(),
            "secrets" if is("") => self.read_named(Referred::Secret),
            "configmaps" if is("") => self.read_named(Referred::ConfigMap),
            "persistentvolumeclaims" if is("") && asked.subresource == "status" => self.write_claim_status(),
            "persistentvolumeclaims" if is("") => self.get(self.named(Referred::VolumeClaim)),
            "persistentvolumes" if is("") => self.get(Target::Volume(&asked.name)),
            "resourceclaims" if is(resource) => self.get(self.named(Referred::ResourceClaim)),
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

    fn named(&self, kind: Referred) -> Target<'_> {
        Target::Referred(kind, &self.asked.namespace, &self.asked.name)
    }

    fn by_rules(&self) -> Judgement {
        let allowed = self.law.rules.iter().any(|rule| rule.allows(self.asked));
        if allowed { Judgement::allow() } else { Judgement::never("") }
    }

    /// Allows if the graph has a path from the object to the node.
    fn related(&self, target: Target<'_>) -> Judgement {
        if self.asked.name.is_empty() {
            return Judgement::this(false, "No Object name found");
        }
        let found = self.graph.look_up(self.node, target);
        let reason = format!("no relationship found between node '{}' and this object", self.node);
        Judgement {
            over_graph: true,
            over_volumes: found.over_volumes,
            ..Judgement::this(found.related, &reason)
        }
    }

    fn get(&self, target: Target<'_>) -> Judgement {
        if self.asked.verb != "get" {
            return Judgement::never("can only get individual resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return Judgement::never("cannot get subresource");
        }
        self.related(target)
    }

    fn read_named(&self, kind: Referred) -> Judgement {
        if !self.asked.is_read_only() {
            return Judgement::never("can only read resources of this type");
        }
        if !self.asked.subresource.is_empty() {
            return Judgement::never("cannot read subresource");
        }
        if self.asked.namespace.is_empty() {
            return Judgement::never("can only read namespaced object of this type");
        }
        self.related(self.named(kind))
    }

    fn write_claim_status(&self) -> Judgement {
        match self.asked.verb.as_str() {
            "get" | "update" | "patch" => self.related(self.named(Referred::VolumeClaim)),
            _ => Judgement::never("can only get/update/patch this type"),
        }
    }

    fn service_account(&self) -> Judgement {
        let asked = self.asked;
        if asked.verb == "get" && asked.subresource.is_empty() {
            return Judgement::never("not allowed to get service accounts");
        }
        if asked.verb != "create" || asked.name.is_empty() {
            return Judgement::this(false, "can only create tokens for individual service accounts");
        }
        if asked.subresource != "token" {
            return Judgement::never("can only create token subresource of service account");
        }
        self.related(self.named(Referred::ServiceAccount))
    }

    fn lease(&self) -> Judgement {
        let asked = self.asked;
        if !matches!(asked.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return Judgement::never("can only get, create, update, patch, or delete a node lease");
        }
        let namespace = self.law.lease_namespace;
        if asked.namespace != namespace {
            return Judgement::never(format!("can only access leases in the {namespace:?} system namespace"));
        }
        self.own("can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> Judgement {
        if !matches!(self.asked.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
            return Judgement::never("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.asked.subresource.is_empty() {
            return Judgement::never("cannot authorize CSINode subresources");
        }
        self.own("can only access CSINode with the same name as the requesting node")
    }

    /// Allows objects with the name of the node.
    /// On create the name is unknown here; NodeRestriction checks it.
    fn own(&self, reason: &str) -> Judgement {
        if self.asked.verb == "create" {
            return Judgement::allow();
        }
        Judgement::this(self.asked.name == self.node, reason)
    }

    fn resource_slice(&self) -> Judgement {
        let asked = self.asked;
        if !asked.subresource.is_empty() {
            return Judgement::never("cannot authorize ResourceSlice subresources");
        }
        match asked.verb.as_str() {
            "create" => Judgement::allow(),
            "get" | "update" | "patch" | "delete" => self.related(Target::ResourceSlice(&asked.name)),
            "watch" | "list" | "deletecollection" if !self.law.by_selectors || self.selects_own() => {
                Judgement::allow()
            }
            "watch" | "list" | "deletecollection" => Judgement::never(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => Judgement::never(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, \
                 patch, delete, deletecollection",
            ),
        }
    }

    fn node(&self) -> Judgement {
        let (node, name) = (self.node, self.asked.name.as_str());
        match (self.asked.subresource.as_str(), self.asked.verb.as_str()) {
            // NodeRestriction checks that the object is the node's own; only admission knows the name of a
            // new one.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Judgement::allow(),
            ("", "get" | "list" | "watch") if name == node => Judgement::this(true, ""),
            ("", "get" | "list" | "watch") if name.is_empty() => Judgement::this(
                false,
                &format!("node '{node}' cannot read all nodes, only its own Node object"),
            ),
            ("", "get" | "list" | "watch") => Judgement::this(
                false,
                &format!("node '{node}' cannot read '{name}', only its own Node object"),
            ),
            _ => Judgement::never(""),
        }
    }

    fn pod(&self) -> Judgement {
        let asked = self.asked;
        let own = Target::Pod(&asked.namespace, &asked.name);
        match (asked.subresource.as_str(), asked.verb.as_str()) {
            ("", "get") => self.get(own),
            ("", "list" | "watch") if self.selects_own() => Judgement::allow(),
            ("", "list" | "watch") if asked.name.is_empty() => {
                Judgement::this(false, "can only list/watch pods with spec.nodeName field selector")
            }
            ("", "list" | "watch") => self.related(own),
            // NodeRestriction checks which pods.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Judgement::allow()
            }
            _ => Judgement::never(""),
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
    async fn authorize(&self, question: Question<'_>) -> Result<Answer, NotYet> {
        let Question { user, attributes: asked, at_least, .. } = question;
        let Some(node) = node_of(user) else {
            let decision = Decision { verdict: Verdict::NoOpinion, ..Decision::default() };
            return Ok(Answer { decision, any_name: true, ..Answer::default() });
        };
        let judgement = {
            let graph = self.mirror.graph(at_least)?;
            Case { law: &self.law, node, asked, graph: &graph }.judge()
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

    fn rules(&self, user: &UserInfo, _: &str, _: u64) -> Result<Rules, NotYet> {
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
