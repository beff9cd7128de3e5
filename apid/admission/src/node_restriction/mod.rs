//! NodeRestriction: limits a kubelet to its own node and the pods on it.
//!
//! # Contract
//!
//! A kubelet is a user `system:node:NAME` in the group `system:nodes`. The plugin restricts no other users
//! (requirements A-NODE-27 to A-NODE-31, A-NODE-35). The plugin rejects writes that the authorizer cannot
//! judge, because the authorizer does not see the object:
//!
//! - Node, Lease, CSINode and ResourceSlice objects of other nodes;
//! - labels and taints that would attract workloads to the node;
//! - pods on other nodes, and tokens for such pods;
//! - tokens for audiences that no volume of the pod needs;
//! - certificates of other nodes.
//!
//! # Reference
//!
//! The plugin of Kubernetes 1.33, with its messages and with `ServiceAccountNodeAudienceRestriction` enabled.

mod labels;
mod nodes;
mod pods;
mod tokens;

use std::sync::Arc;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

use crate::{Attributes, Environment, Interest, ObjectKind, Operation, Plugin, certificate_request};

/// Prefix of kubelet user names.
const PREFIX: &str = "system:node:";
/// Group of kubelets.
const GROUP: &str = "system:nodes";

const CLAIM: ObjectKind = ObjectKind::new("", "PersistentVolumeClaim");

/// The plugin, with the names and label rules that depend on the preset.
pub(crate) struct NodeRestriction {
    /// Key of the annotation of mirror pods.
    mirror: String,
    lease_namespace: &'static str,
    labels: labels::LabelRules,
    /// Signers of kubelet certificates.
    signers: [String; 2],
}

impl NodeRestriction {
    pub(crate) fn new(environment: &Environment) -> Self {
        let names = &environment.names;
        NodeRestriction {
            mirror: names.label_key("config.mirror"),
            lease_namespace: names.node_lease_namespace,
            labels: labels::LabelRules::new(names),
            signers: ["kubelet-serving", "kube-apiserver-client-kubelet"].map(|name| names.label_key(name)),
        }
    }
}

/// Node name of a kubelet user: `""` if the user name has no node name, None for other users.
fn node_of(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix(PREFIX).filter(|_| user.in_group(GROUP))
}

/// A write by a kubelet.
struct KubeletWrite<'a> {
    plugin: &'a NodeRestriction,
    attributes: &'a Attributes<'a>,
    node: &'a str,
    object: Option<&'a Object>,
}

impl Plugin for NodeRestriction {
    const INTEREST: Interest =
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Delete]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(node) = node_of(attributes.user) else { return Ok(()) };
        if node.is_empty() {
            let reason = format!("could not determine node from user {:?}", attributes.user.name);
            return Err(attributes.forbidden(&reason));
        }
        KubeletWrite { plugin: self, attributes, node, object: object.as_deref() }.check().await
    }
}

impl KubeletWrite<'_> {
    async fn check(&self) -> Result<(), Status> {
        let kind = self.attributes.resource;
        let is_creation = self.attributes.operation == Operation::Create;
        let Some(stem) = kind.stem() else { return Ok(()) };
        match (stem, kind.name(), self.attributes.subresource) {
            ("", "Pod", "") if is_creation => self.check_pod_creation().await,
            ("", "Pod", "") => self.check_pod_deletion(),
            ("", "Pod", "status") => self.check_pod_status(),
            ("", "Pod", "eviction") => self.check_eviction().await,
            ("", "Pod", other) => self.reject(&format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
            ("", "Node", _) => self.check_node(),
            ("", "PersistentVolumeClaim", "status") => self.check_claim_status(),
            ("", "PersistentVolumeClaim", other) => self.reject(&format!(
                "may only update PVC status, and not {}",
                if other.is_empty() { "the claim" } else { other }
            )),
            ("", "ServiceAccount", "token") if is_creation => self.check_token_request().await,
            ("coordination", "Lease", _) => self.check_lease(),
            ("storage", "CSINode", _) => {
                self.check_own_name("can only access CSINode with the same name as the requesting node")
            }
            ("resource", "ResourceSlice", _) => self.check_resource_slice(),
            ("certificates", "CertificateSigningRequest", "") => self.check_certificate(),
            _ => Ok(()),
        }
    }

    fn reject(&self, reason: &str) -> Result<(), Status> {
        Err(self.attributes.forbidden(reason))
    }

    fn reject_with_node(&self, reason: &str) -> Result<(), Status> {
        self.reject(&format!("node {:?} {reason}", self.node))
    }

    fn unexpected_operation(&self) -> Result<(), Status> {
        self.reject(&format!("unexpected operation {:?}", self.attributes.operation.as_str()))
    }

    fn check_own_name(&self, reason: &str) -> Result<(), Status> {
        if self.attributes.name == self.node { Ok(()) } else { self.reject(reason) }
    }

    fn check_lease(&self) -> Result<(), Status> {
        let namespace = self.plugin.lease_namespace;
        if self.attributes.namespace != namespace {
            return self.reject(&format!("can only access leases in the {namespace:?} system namespace"));
        }
        self.check_own_name("can only access node lease with the same name as the requesting node")
    }

    /// Checks the node of a created or deleted ResourceSlice. Validation keeps the node
    /// of an update unchanged, and the Node authorizer decides whether the node may update the slice.
    fn check_resource_slice(&self) -> Result<(), Status> {
        let is_own = |slice: Option<&Object>| {
            slice.and_then(|slice| slice.str_at(&["spec", "nodeName"])) == Some(self.node)
        };
        match self.attributes.operation {
            Operation::Create if !is_own(self.object) => {
                self.reject("can only create ResourceSlice with the same NodeName as the requesting node")
            }
            Operation::Delete if !is_own(self.attributes.old) => {
                self.reject("can only delete ResourceSlice with the same NodeName as the requesting node")
            }
            _ => Ok(()),
        }
    }

    fn check_certificate(&self) -> Result<(), Status> {
        let Some(request) = self.object.filter(|_| self.attributes.operation == Operation::Create) else {
            return Ok(());
        };
        let signer = request.str_at(&["spec", "signerName"]).unwrap_or_default();
        if !self.plugin.signers.iter().any(|kubelet_signer| kubelet_signer == signer) {
            return Ok(());
        }
        let expected = &self.attributes.user.name;
        match certificate_request::identity(request.str_at(&["spec", "request"]).unwrap_or_default()) {
            Err(reason) => self.reject(&format!("unable to parse csr: {reason}")),
            Ok(subject) if subject.common_name != *expected => {
                self.reject(&format!("can only create a node CSR with CN={expected}"))
            }
            Ok(_) => Ok(()),
        }
    }

    /// Checks that only the status fields change that a kubelet sets when it mounts or resizes a volume.
    fn check_claim_status(&self) -> Result<(), Status> {
        if self.attributes.operation != Operation::Update {
            return self.unexpected_operation();
        }
        let other_fields = |claim: Option<&Object>| {
            let mut claim = claim.cloned().unwrap_or_default();
            for field in ["resourceVersion", "managedFields"] {
                claim.remove_meta(field);
            }
            for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
                claim.part_mut("status").remove(field);
            }
            claim.remove("kind");
            claim.remove("apiVersion");
            without_empty_values(&claim.into_value())
        };
        if other_fields(self.object) == other_fields(self.attributes.old) {
            return Ok(());
        }
        self.reject_with_node(
            "is not allowed to update fields other than status.quantity and status.conditions",
        )
    }

    /// Returns a pod from the cache; 404 if it is missing.
    async fn pod(&self, name: &str) -> Result<Arc<Object>, Status> {
        let found =
            self.attributes.environment.reader.get(ObjectKind::POD, self.attributes.namespace, name).await?;
        found.ok_or_else(|| not_found("pod", name))
    }
}

/// Returns 404 for an object to which the write refers. Only the message names the resource; `details.kind`
/// is empty, as in kube-apiserver.
fn not_found(resource: &str, name: &str) -> Status {
    let group_resource =
        apimachinery::gvk::GroupResource { group: String::new(), resource: resource.to_owned() };
    let mut status = Status::not_found(&group_resource, name);
    if let Some(details) = &mut status.details {
        details.kind.clear();
    }
    status
}

/// A value without nulls, empty lists and empty objects; None if nothing remains.
fn without_empty_values(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(fields) => {
            let fields =
                fields.iter().filter_map(|(key, value)| Some((key.clone(), without_empty_values(value)?)));
            let fields: apimachinery::object::Map<String, Value> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests;
