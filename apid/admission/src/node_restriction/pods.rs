//! Writes of a kubelet to pods.
//!
//! A kubelet creates mirror pods, which its Node owns and which reference no API objects. A kubelet updates
//! the status of pods on its node, deletes them and evicts them.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use super::{KubeletWrite, not_found, without_empty_values};
use crate::pod_containers::all_containers;
use crate::tree::{items, items_at, text};
use crate::{ObjectKind, Operation};

const NODE: ObjectKind = ObjectKind::new("", "Node");

impl KubeletWrite<'_> {
    fn is_on_node(&self, pod: Option<&Object>) -> bool {
        pod.and_then(|pod| pod.str_at(&["spec", "nodeName"])) == Some(self.node)
    }

    pub(super) async fn check_pod_creation(&self) -> Result<(), Status> {
        let Some(pod) = self.object else { return self.unexpected_operation() };
        let node = self.node;
        let mirror = &self.plugin.mirror;
        if pod.annotation(mirror).is_none() {
            return self.reject(&format!(
                "pod does not have {mirror:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if !self.is_on_node(Some(pod)) {
            return self.reject_with_node("can only create pods with spec.nodeName set to itself");
        }
        self.check_owner(pod).await?;
        match referenced_kind(pod) {
            Some(kind) => self.reject_with_node(&format!("can not create pods that reference {kind}")),
            None => Ok(()),
        }
    }

    /// Checks that the only owner of the pod is the kubelet's Node, with its current uid.
    async fn check_owner(&self, pod: &Object) -> Result<(), Status> {
        let node = self.node;
        let owner = match items_at(pod, &["metadata", "ownerReferences"]) {
            [] => return self.reject_with_node("can only create pods with an owner reference set to itself"),
            [owner] => owner,
            _ => {
                return self
                    .reject_with_node("can only create pods with a single owner reference set to itself");
            }
        };
        let text = |field: &str| text(owner, field);
        let is_true = |field: &str| owner.get(field).and_then(Value::as_bool) == Some(true);
        if (text("apiVersion"), text("kind"), text("name")) != ("v1", "Node", node) {
            return self.reject_with_node("can only create pods with an owner reference set to itself");
        }
        if !is_true("controller") {
            return self
                .reject_with_node("can only create pods with a controller owner reference set to itself");
        }
        if is_true("blockOwnerDeletion") {
            return self.reject_with_node("must not set blockOwnerDeletion on an owner reference");
        }
        let stored = self.attributes.environment.reader.get(NODE, "", node).await?;
        let stored = stored.ok_or_else(|| not_found("node", node))?;
        let (claimed, real) = (text("uid"), stored.uid());
        if claimed != real {
            return self.reject(&format!("node {node} UID mismatch: expected {claimed} got {real}"));
        }
        Ok(())
    }

    /// Checks pod writes other than creations and subresources: only deletions of pods on the node are
    /// allowed.
    pub(super) fn check_pod_deletion(&self) -> Result<(), Status> {
        let node = self.node;
        match self.attributes.operation {
            Operation::Delete if self.is_on_node(self.attributes.old) => Ok(()),
            Operation::Delete => {
                self.reject_with_node("can only delete pods with spec.nodeName set to itself")
            }
            other => self.reject(&format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                other.as_str()
            )),
        }
    }

    pub(super) fn check_pod_status(&self) -> Result<(), Status> {
        let (Operation::Update, Some(new), Some(old)) =
            (self.attributes.operation, self.object, self.attributes.old)
        else {
            return self.unexpected_operation();
        };
        if !self.is_on_node(Some(old)) {
            return self
                .reject_with_node("can only update pod status for pods with spec.nodeName set to itself");
        }
        let labels = |pod: &Object| -> BTreeMap<String, String> {
            pod.labels().map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
        };
        if labels(old) != labels(new) {
            return self.reject_with_node("cannot update labels through pod status");
        }
        let claims =
            |pod: &Object| pod.at(&["status", "resourceClaimStatuses"]).and_then(without_empty_values);
        if claims(old) != claims(new) {
            // The spelling is that of kube-apiserver.
            return self.reject_with_node("cannot update resource claim statues");
        }
        Ok(())
    }

    pub(super) async fn check_eviction(&self) -> Result<(), Status> {
        if self.attributes.operation != Operation::Create {
            return self.unexpected_operation();
        }
        let pod = self.pod(self.attributes.name).await?;
        if self.is_on_node(Some(&pod)) {
            return Ok(());
        }
        self.reject(&format!("node {} can only evict pods with spec.nodeName set to itself", self.node))
    }
}

/// Returns the kind of an API object that a pod references, as the error message names it; None if the pod
/// references no object. If there are several kinds, returns the first in the order of the checks below.
fn referenced_kind(pod: &Object) -> Option<&'static str> {
    let has_value = |value: &Value, path: &[&str]| {
        let found = path.iter().try_fold(value, |value, field| value.get(field));
        found.is_some_and(|value| !value.is_null())
    };
    let volumes = || items_at(pod, &["spec", "volumes"]).iter();
    let has_volume_source = |path: &[&str]| volumes().any(|volume| has_value(volume, path));
    let any_item_has = |value: &Value, field: &str, path: &[&str]| {
        items(value, field).iter().any(|item| has_value(item, path))
    };
    let has_projection = |field: &str| {
        let mut projections = volumes().filter_map(|volume| volume.get("projected"));
        projections.any(|projected| any_item_has(projected, "sources", &[field]))
    };
    let has_variable_source = |from: &str, key: &str| {
        all_containers(pod).any(|(_, _, container)| {
            any_item_has(container, "envFrom", &[from]) || any_item_has(container, "env", &["valueFrom", key])
        })
    };
    // These volume sources have their secret reference in the field `secretRef`.
    let drivers = ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];
    let has_text = |field: &str| pod.str_at(&["spec", field]).is_some_and(|name| !name.is_empty());
    if has_text("serviceAccountName") || has_text("serviceAccount") {
        Some("a service account")
    } else if !items_at(pod, &["spec", "imagePullSecrets"]).is_empty()
        || has_variable_source("secretRef", "secretKeyRef")
        || has_volume_source(&["secret"])
        || has_projection("secret")
        || has_volume_source(&["azureFile", "secretName"])
        || has_volume_source(&["csi", "nodePublishSecretRef"])
        || drivers.iter().any(|driver| has_volume_source(&[driver, "secretRef"]))
    {
        Some("secrets")
    } else if has_variable_source("configMapRef", "configMapKeyRef")
        || has_volume_source(&["configMap"])
        || has_projection("configMap")
    {
        Some("configmaps")
    } else if has_projection("clusterTrustBundle") {
        Some("clustertrustbundles")
    } else if has_volume_source(&["persistentVolumeClaim"]) || has_volume_source(&["ephemeral"]) {
        Some("persistentvolumeclaims")
    } else if !items_at(pod, &["spec", "resourceClaims"]).is_empty() {
        Some("resourceclaims")
    } else {
        None
    }
}
