//! Protection of volumes: removes the protection finalizers of claims and volumes that nothing uses.
//!
//! # Contract
//!
//! A terminating PersistentVolumeClaim loses the finalizer `pvc-protection` when no scheduled pod of its
//! namespace uses the claim. A terminating PersistentVolume loses the finalizer `pv-protection` when no
//! stored claim is bound to the volume. The admission plugin `StorageObjectInUseProtection` adds both
//! finalizers. The task examines terminating objects after each change of a pod, a claim or a volume, and at
//! an interval.
//!
//! # Errors
//!
//! A failed read or write is logged and retried after a pause.
//!
//! # Reference
//!
//! Use of claims follows Kubernetes 1.33. A pod without a node does not use its claims. A finished pod uses
//! its claims until it is deleted. Kubernetes decides by the phase of a volume whether the volume is used. No
//! controller of apid writes the phase, so the stored claims decide.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use memchr::memmem::Finder;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::EnabledControllers;
use super::actor::{Actor, Target, ignore_race};
use super::reflector::{ObjectEvent, reflect};
use super::stored;
use verbs::{Collection, Item};

use crate::ControllerState;

/// Debounce interval: changes within the interval cause one examination. The interval also leaves a script
/// time to remove the finalizer itself right after the deletion, as scripts for servers without controllers
/// do.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Pause before an examination with failures is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum wait for a change before the next examination, because the reflector can miss a deletion.
const INTERVAL: Duration = Duration::from_secs(60);

/// Terminating claims and volumes, and the notification of a change that can end their use.
#[derive(Default)]
struct TerminatingObjects {
    /// Namespace and name of each terminating claim.
    claims: Mutex<BTreeSet<(String, String)>>,
    /// Names of the terminating volumes.
    volumes: Mutex<BTreeSet<String>>,
    changed: Notify,
}

/// State of the task that removes the protection finalizers.
struct Protection {
    pods: Arc<Collection>,
    claims: Arc<Collection>,
    volumes: Arc<Collection>,
    claim_writer: Actor,
    volume_writer: Actor,
    terminating: Arc<TerminatingObjects>,
    enabled: EnabledControllers,
}

/// Removes the protection finalizers of unused claims and volumes until the process ends. `enabled` tells
/// whether the task handles claims, and whether it handles volumes.
pub(super) async fn run(state: Arc<ControllerState>, enabled: EnabledControllers) {
    let core = |resource| stored::core(&state.api_state, resource);
    let (Ok(pods), Ok(claims), Ok(volumes)) =
        (core("pods"), core("persistentvolumeclaims"), core("persistentvolumes"))
    else {
        return;
    };
    let terminating = Arc::new(TerminatingObjects::default());
    let (pod_observer, claim_observer, volume_observer) =
        (Arc::clone(&terminating), Arc::clone(&terminating), Arc::clone(&terminating));
    let observe_pods = reflect(Arc::clone(&pods.items), move |event| pod_observer.observe_pod(event));
    let observe_claims = reflect(Arc::clone(&claims.items), move |event| claim_observer.observe_claim(event));
    let observe_volumes =
        reflect(Arc::clone(&volumes.items), move |event| volume_observer.observe_volume(event));
    let protection = Protection {
        pods,
        claims,
        volumes,
        claim_writer: state.controller("pvc-protection-controller"),
        volume_writer: state.controller("pv-protection-controller"),
        terminating,
        enabled,
    };
    tokio::join!(observe_pods, observe_claims, observe_volumes, protection.work());
}

impl TerminatingObjects {
    /// Requests an examination after a change of a pod, if a claim in its namespace is terminating.
    fn observe_pod(&self, event: ObjectEvent<'_>) {
        let (ObjectEvent::Exists(pod) | ObjectEvent::Deleted(pod)) = event;
        if self.claims.lock().iter().any(|(namespace, _)| namespace == pod.namespace()) {
            self.changed.notify_one();
        }
    }

    fn observe_claim(&self, event: ObjectEvent<'_>) {
        let (ObjectEvent::Exists(claim) | ObjectEvent::Deleted(claim)) = event;
        let key = (claim.namespace().to_owned(), claim.name().to_owned());
        let is_terminating = matches!(event, ObjectEvent::Exists(_)) && claim.is_terminating();
        let mut claims = self.claims.lock();
        if is_terminating {
            claims.insert(key);
        } else {
            claims.remove(&key);
        }
        // The deletion or change of a claim can end the use of a volume.
        if is_terminating || !self.volumes.lock().is_empty() {
            self.changed.notify_one();
        }
    }

    fn observe_volume(&self, event: ObjectEvent<'_>) {
        match event {
            ObjectEvent::Exists(volume) if volume.is_terminating() => {
                self.volumes.lock().insert(volume.name().to_owned());
                self.changed.notify_one();
            }
            ObjectEvent::Exists(volume) | ObjectEvent::Deleted(volume) => {
                self.volumes.lock().remove(volume.name());
            }
        }
    }
}

impl Protection {
    /// Examines the terminating claims and volumes after each notification, and at least every [`INTERVAL`].
    async fn work(&self) {
        loop {
            let _ = tokio::time::timeout(INTERVAL, self.terminating.changed.notified()).await;
            tokio::time::sleep(DEBOUNCE).await;
            let mut is_complete = true;
            if self.enabled.claim_protection {
                is_complete &= self.remove_claim_finalizers().await;
            }
            if self.enabled.volume_protection {
                is_complete &= self.remove_volume_finalizers().await;
            }
            if !is_complete {
                tokio::time::sleep(RETRY).await;
                self.terminating.changed.notify_one();
            }
        }
    }

    /// Removes the finalizer of each terminating claim that no pod uses. Returns false after a failure.
    async fn remove_claim_finalizers(&self) -> bool {
        let keys = self.terminating.claims.lock().clone();
        let mut is_complete = true;
        // The keys are sorted, so the scheduled pods of each namespace are read once.
        let mut pods = PodsOfNamespace::default();
        for (namespace, name) in &keys {
            if let Err(status) = self.release_claim(namespace, name, &mut pods).await {
                log_failure(&self.claims, namespace, name, &status);
                is_complete = false;
            }
        }
        is_complete
    }

    /// Removes the finalizer of a claim if the claim is terminating and no pod uses it.
    async fn release_claim(
        &self,
        namespace: &str,
        name: &str,
        pods: &mut PodsOfNamespace,
    ) -> Result<(), Status> {
        let finalizer = self.claim_writer.api_state().names.label_key("pvc-protection");
        let Some(claim) = stored::get(&self.claims, namespace, name).await? else { return Ok(()) };
        if !is_protected(&claim, &finalizer) {
            return Ok(());
        }
        if pods.namespace != namespace {
            let scope = self.pods.resource.key(namespace, "");
            let has_node =
                |pod: &Item| stored::entry(pod).is_some_and(|entry| !entry.field("spec.nodeName").is_empty());
            let objects = stored::selected_objects(&self.pods, &scope, has_node).await?;
            *pods = PodsOfNamespace { namespace: namespace.to_owned(), objects };
        }
        if pods.objects.iter().any(|pod| uses_claim(pod, &claim)) {
            return Ok(());
        }
        let target = Target { collection: &self.claims, namespace, name, subresource: "" };
        remove_finalizer(&self.claim_writer, target, claim, &finalizer).await
    }

    /// Removes the finalizer of each terminating volume to which no claim is bound. Returns false after a
    /// failure.
    async fn remove_volume_finalizers(&self) -> bool {
        let names = self.terminating.volumes.lock().clone();
        let mut is_complete = true;
        for name in &names {
            if let Err(status) = self.release_volume(name).await {
                log_failure(&self.volumes, "", name, &status);
                is_complete = false;
            }
        }
        is_complete
    }

    /// Removes the finalizer of a volume if the volume is terminating and no claim is bound to it.
    async fn release_volume(&self, name: &str) -> Result<(), Status> {
        let finalizer = self.volume_writer.api_state().names.label_key("pv-protection");
        let Some(volume) = stored::get(&self.volumes, "", name).await? else { return Ok(()) };
        if !is_protected(&volume, &finalizer) || self.has_bound_claim(&volume).await? {
            return Ok(());
        }
        let target = Target { collection: &self.volumes, namespace: "", name, subresource: "" };
        remove_finalizer(&self.volume_writer, target, volume, &finalizer).await
    }

    async fn has_bound_claim(&self, volume: &Object) -> Result<bool, Status> {
        let claim_ref_field = |part| volume.str_at(&["spec", "claimRef", part]).unwrap_or("");
        let referenced_key = self.claims.resource.key(claim_ref_field("namespace"), claim_ref_field("name"));
        let volume_name = Finder::new(volume.name());
        // A bound claim contains the name of the volume, or `claimRef` of the volume refers to the claim. The
        // other claims are not decoded.
        let may_be_bound =
            |claim: &Item| **claim.key() == *referenced_key || volume_name.find(claim.value()).is_some();
        let scope = &self.claims.resource.key_prefix;
        let claims = stored::selected_objects(&self.claims, scope, may_be_bound).await?;
        Ok(claims.iter().any(|claim| is_bound(claim, volume)))
    }
}

/// The scheduled pods of one namespace.
#[derive(Default)]
struct PodsOfNamespace {
    namespace: String,
    objects: Vec<Object>,
}

fn log_failure(collection: &Collection, namespace: &str, name: &str, status: &Status) {
    let resource = &collection.resource.group_resource;
    tracing::warn!(%resource, namespace, name, reason = %status, "removing a protection finalizer failed; retrying");
}

/// Removes a finalizer. A concurrent write is not a failure: its notification causes the next attempt.
async fn remove_finalizer(
    writer: &Actor,
    target: Target<'_>,
    mut object: Object,
    finalizer: &str,
) -> Result<(), Status> {
    object.remove_finalizer(finalizer);
    ignore_race(writer.update(target, object).await)
}

/// Whether an object is terminating and has the finalizer.
fn is_protected(object: &Object, finalizer: &str) -> bool {
    object.is_terminating() && object.finalizers().any(|existing| existing == finalizer)
}

/// Whether a pod uses a claim of its namespace: the pod has a node, and one of its volumes names the claim or
/// is the ephemeral volume for which the claim was created.
fn uses_claim(pod: &Object, claim: &Object) -> bool {
    let is_scheduled = pod.str_at(&["spec", "nodeName"]).is_some_and(|node| !node.is_empty());
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array);
    let mut volumes = volumes.into_iter().flatten();
    is_scheduled
        && volumes.any(|volume| {
            let names_claim = volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str)
                == Some(claim.name());
            let is_ephemeral = !volume["ephemeral"].is_null() && !is_shut_down(pod) && {
                let name = volume["name"].as_str().unwrap_or("");
                claim.name() == format!("{}-{name}", pod.name()) && is_controlled_by(claim, pod)
            };
            names_claim || is_ephemeral
        })
}

/// Whether only finalizers block the deletion of a pod: its grace period is over.
fn is_shut_down(pod: &Object) -> bool {
    let grace_period = pod.at(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    pod.is_terminating() && grace_period == Some(0)
}

fn is_controlled_by(claim: &Object, pod: &Object) -> bool {
    let owners = claim.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == pod.uid())
}

/// Whether a claim is bound to a volume: both name each other, or one of them names the other and has the
/// phase `Bound`.
fn is_bound(claim: &Object, volume: &Object) -> bool {
    let has_bound_phase = |object: &Object| object.str_at(&["status", "phase"]) == Some("Bound");
    let names_volume = claim.str_at(&["spec", "volumeName"]) == Some(volume.name());
    let names_claim = names_claim(volume, claim);
    (names_volume && (names_claim || has_bound_phase(claim))) || (names_claim && has_bound_phase(volume))
}

/// Whether `claimRef` of a volume names a claim. A `claimRef` without a uid names any claim with its name.
fn names_claim(volume: &Object, claim: &Object) -> bool {
    let claim_ref_field = |name: &str| volume.str_at(&["spec", "claimRef", name]).unwrap_or("");
    let uid = claim_ref_field("uid");
    claim_ref_field("name") == claim.name()
        && claim_ref_field("namespace") == claim.namespace()
        && (uid.is_empty() || uid == claim.uid())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    fn claim() -> Object {
        object(json!({
            "metadata": {
                "name": "p-data", "namespace": "a", "uid": "c1",
                "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "p1", "controller": true}],
            },
            "spec": {"volumeName": "v"},
        }))
    }

    #[test]
    fn scheduled_pod_uses_claims_of_its_volumes() {
        let by_name = json!({"name": "x", "persistentVolumeClaim": {"claimName": "p-data"}});
        let other_name = json!({"name": "x", "persistentVolumeClaim": {"claimName": "q-data"}});
        let ephemeral = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}});
        let other_ephemeral = json!({"name": "logs", "ephemeral": {"volumeClaimTemplate": {}}});
        let terminating =
            json!({"deletionTimestamp": "2025-05-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        let shut_down = json!({"deletionTimestamp": "2025-05-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        for (case, node, uid, metadata, volumes, expected) in [
            ("no volumes", "n", "p1", json!({}), json!([]), false),
            ("claim", "n", "p1", json!({}), json!([other_name, by_name]), true),
            ("claim without a node", "", "p1", json!({}), json!([by_name]), false),
            ("another claim", "n", "p1", json!({}), json!([other_name]), false),
            ("claim of a shut down pod", "n", "p1", shut_down.clone(), json!([by_name]), true),
            ("ephemeral volume", "n", "p1", json!({}), json!([ephemeral]), true),
            ("another ephemeral volume", "n", "p1", json!({}), json!([other_ephemeral]), false),
            ("ephemeral volume of a terminating pod", "n", "p1", terminating, json!([ephemeral]), true),
            ("ephemeral volume of a shut down pod", "n", "p1", shut_down, json!([ephemeral]), false),
            (
                "ephemeral volume of a later pod with the same name",
                "n",
                "p2",
                json!({}),
                json!([ephemeral]),
                false,
            ),
        ] {
            let mut pod =
                object(json!({"metadata": metadata, "spec": {"nodeName": node, "volumes": volumes}}));
            pod.set_meta("name", "p");
            pod.set_meta("uid", uid);
            assert_eq!(uses_claim(&pod, &claim()), expected, "{case}");
        }
    }

    #[test]
    fn claim_and_volume_are_bound_by_mutual_reference_or_phase() {
        let reference = |name: &str, uid: &str| json!({"namespace": "a", "name": name, "uid": uid});
        let (claim_ref, bound, pending) = (reference("p-data", "c1"), "Bound", "Pending");
        for (case, named, claim_phase, claim_ref, volume_phase, expected) in [
            ("mutual reference", "v", "", claim_ref.clone(), "", true),
            ("reference without uid", "v", "", reference("p-data", ""), "", true),
            ("phase of the claim", "v", bound, json!(null), "", true),
            ("request for a volume", "v", pending, json!(null), "", false),
            ("phase of the volume", "", pending, claim_ref.clone(), bound, true),
            ("volume that is reserved for the claim", "", pending, claim_ref.clone(), "Available", false),
            ("earlier claim of the name", "v", "", reference("p-data", "c0"), bound, false),
            ("reference to another claim", "v", pending, reference("q", "c1"), bound, false),
            ("claim of another volume", "w", bound, json!(null), "", false),
        ] {
            let mut claim = claim();
            claim.set("spec", json!({"volumeName": named}));
            claim.set("status", json!({"phase": claim_phase}));
            let volume = object(json!({
                "metadata": {"name": "v"}, "spec": {"claimRef": claim_ref}, "status": {"phase": volume_phase},
            }));
            assert_eq!(is_bound(&claim, &volume), expected, "{case}");
        }
    }

    #[test]
    fn is_protected_requires_deletion_and_finalizer() {
        const FINALIZER: &str = "kubernetes.io/pvc-protection";
        for (deletion, finalizer, expected) in [
            (json!("2025-05-01T00:00:00Z"), FINALIZER, true),
            (json!("2025-05-01T00:00:00Z"), "example.com/other", false),
            (json!(null), FINALIZER, false),
        ] {
            let mut claim = claim();
            claim.set_meta("finalizers", vec![finalizer.to_owned()]);
            if !deletion.is_null() {
                claim.set_meta("deletionTimestamp", deletion);
            }
            assert_eq!(is_protected(&claim, FINALIZER), expected);
        }
    }
}
