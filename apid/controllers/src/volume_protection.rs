//! Protection of volumes: removes the protection finalizers of claims and volumes that nothing uses.
//!
//! # Contract
//!
//! A terminating PersistentVolumeClaim loses the finalizer `pvc-protection` when no scheduled pod of its
//! namespace uses the claim. A terminating PersistentVolume loses the finalizer `pv-protection` when no
//! stored claim is bound to the volume. The admission plugin `StorageObjectInUseProtection` adds both
//! finalizers. The controllers examine terminating objects after each change of a pod, a claim or a volume,
//! and at an interval. A pod or claim that cannot be decoded may be a use: while the pod is in the namespace of
//! a claim, or while any such claim exists, the finalizers stay and the controllers retry. Each decision sees the pods
//! and claims that other servers have written before.
//!
//! # Reference
//!
//! Use of claims follows Kubernetes 1.33. A pod without a node does not use its claims. A finished pod uses
//! its claims until it is deleted. Kubernetes decides by the phase of a volume whether the volume is used. No
//! controller of apid writes the phase, so the stored claims decide.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use kinds::entry::Entry;
use memchr::memmem::Finder;
use parking_lot::Mutex;

use super::actor::{Actor, Target, ignore_race};
use super::reflector::ObjectEvent;
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::{Collection, Item};

use crate::ControllerState;

/// Debounce interval: changes within the interval cause one examination. The interval also leaves a script
/// time to remove the finalizer itself right after the deletion, as scripts for servers without controllers
/// do.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Maximum wait for a change before the next examination, because the reflector can miss a deletion.
const INTERVAL: Duration = Duration::from_secs(60);

/// Names of the terminating claims by namespace.
type TerminatingClaims = Arc<Mutex<HashMap<String, BTreeSet<String>>>>;

/// The controller of claims. Its keys are namespaces, whose scheduled pods are read once for all claims.
struct ClaimProtection {
    pods: Arc<Collection>,
    claims: Arc<Collection>,
    actor: Actor,
    terminating: TerminatingClaims,
}

/// Removes the protection finalizers of unused claims until the process ends.
pub(super) async fn protect_claims(state: Arc<ControllerState>) {
    let core = |resource| stored::core(&state.api_state, resource);
    let (Ok(pods), Ok(claims)) = (core("pods"), core("persistentvolumeclaims")) else { return };
    let terminating = TerminatingClaims::default();
    let (namespaces, observed) = (Arc::clone(&terminating), Arc::clone(&terminating));
    let runner = Runner::new(&state, "pvcprotection")
        .debounce(DEBOUNCE)
        .watch(&pods.items, move |event| {
            let namespace = event.entry().namespace();
            namespaces.lock().contains_key(namespace).then(|| namespace.to_owned())
        })
        .watch(&claims.items, move |event| observe_claim(&observed, event));
    let actor = state.controller("pvc-protection-controller");
    runner.run(Arc::new(ClaimProtection { pods, claims, actor, terminating })).await;
}

/// Records whether a claim is terminating. Returns its namespace if so.
fn observe_claim(terminating: &TerminatingClaims, event: ObjectEvent<'_>) -> Option<String> {
    let claim = event.entry();
    let mut terminating = terminating.lock();
    if matches!(event, ObjectEvent::Exists(_)) && claim.is_terminating() {
        let namespace = claim.namespace().to_owned();
        terminating.entry(namespace.clone()).or_default().insert(claim.name().to_owned());
        return Some(namespace);
    }
    let names = terminating.get_mut(claim.namespace())?;
    names.remove(claim.name());
    if names.is_empty() {
        terminating.remove(claim.namespace());
    }
    None
}

impl Reconcile for ClaimProtection {
    type Key = String;

    async fn reconcile(&self, namespace: &String) -> Result<Requeue, Status> {
        let names = self.terminating.lock().get(namespace).cloned().unwrap_or_default();
        if names.is_empty() {
            return Ok(Requeue::No);
        }
        stored::catch_up(self.actor.api_state()).await?;
        let pods = scheduled_pods(&self.pods, namespace).await?;
        let mut result = Ok(());
        for name in &names {
            result = result.and(self.release(namespace, name, &pods).await);
        }
        result.map(|()| Requeue::After(INTERVAL))
    }
}

/// Returns the pods of a namespace that have a node.
///
/// # Errors
///
/// The store cannot be read, or a pod of the namespace cannot be decoded.
async fn scheduled_pods(pods: &Collection, namespace: &str) -> Result<Vec<Object>, Status> {
    let scope = pods.kind.key(namespace, "");
    let has_node = |_: &Item, pod: &Entry| !pod.field("spec.nodeName").is_empty();
    stored::selected_decodable_objects(pods, &scope, has_node).await
}

impl ClaimProtection {
    /// Removes the finalizer of a claim if the claim is terminating and no pod uses it.
    async fn release(&self, namespace: &str, name: &str, pods: &[Object]) -> Result<(), Status> {
        let finalizer = self.actor.api_state().names.label_key("pvc-protection");
        let Some(claim) = stored::get(&self.claims, namespace, name).await? else { return Ok(()) };
        if !is_protected(&claim, &finalizer) || pods.iter().any(|pod| uses_claim(pod, &claim)) {
            return Ok(());
        }
        let target = Target { collection: &self.claims, namespace, name, subresource: "" };
        remove_finalizer(&self.actor, target, claim, &finalizer).await
    }
}

/// The controller of volumes; its keys are names of volumes.
struct VolumeProtection {
    claims: Arc<Collection>,
    volumes: Arc<Collection>,
    actor: Actor,
}

/// Removes the protection finalizers of unused volumes until the process ends.
pub(super) async fn protect_volumes(state: Arc<ControllerState>) {
    let core = |resource| stored::core(&state.api_state, resource);
    let (Ok(claims), Ok(volumes)) = (core("persistentvolumeclaims"), core("persistentvolumes")) else {
        return;
    };
    let terminating = Arc::new(Mutex::new(BTreeSet::<String>::new()));
    let waiting = Arc::clone(&terminating);
    let runner = Runner::new(&state, "pvprotection")
        .debounce(DEBOUNCE)
        .watch(&volumes.items, move |event| {
            let name = event.existing_name().filter(|_| event.entry().is_terminating());
            match &name {
                Some(name) => terminating.lock().insert(name.clone()),
                None => terminating.lock().remove(event.entry().name()),
            };
            name
        })
        // The deletion or change of a claim can end the use of a volume.
        .watch(&claims.items, move |_| waiting.lock().clone());
    let actor = state.controller("pv-protection-controller");
    runner.run(Arc::new(VolumeProtection { claims, volumes, actor })).await;
}

impl Reconcile for VolumeProtection {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        stored::catch_up(self.actor.api_state()).await?;
        let finalizer = self.actor.api_state().names.label_key("pv-protection");
        let volume = stored::get_decodable(&self.volumes, "", name).await?;
        let Some(volume) = volume.filter(|volume| is_protected(volume, &finalizer)) else {
            return Ok(Requeue::No);
        };
        if has_bound_claim(&self.claims, &volume).await? {
            return Ok(Requeue::After(INTERVAL));
        }
        let target = Target { collection: &self.volumes, namespace: "", name, subresource: "" };
        remove_finalizer(&self.actor, target, volume, &finalizer).await?;
        Ok(Requeue::No)
    }
}

/// Whether a claim is bound to a volume.
///
/// # Errors
///
/// The store cannot be read, or a claim cannot be decoded.
async fn has_bound_claim(claims: &Collection, volume: &Object) -> Result<bool, Status> {
    let claim_ref_field = |part| volume.str_at(&["spec", "claimRef", part]).unwrap_or("");
    let referenced_key = claims.kind.key(claim_ref_field("namespace"), claim_ref_field("name"));
    let volume_name = Finder::new(volume.name());
    // A bound claim contains the name of the volume, or `claimRef` of the volume refers to the claim. No objects
    // are made of the other claims.
    let may_be_bound = |claim: &Item, _: &Entry| {
        **claim.key() == *referenced_key || volume_name.find(claim.value()).is_some()
    };
    let scope = &claims.kind.key_prefix;
    let claims = stored::selected_decodable_objects(claims, scope, may_be_bound).await?;
    Ok(claims.iter().any(|claim| is_bound(claim, volume)))
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

/// Whether a pod uses a claim of its namespace. The pod has a node, and one of its volumes names the claim, or
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
    use apimachinery::names::{Names, Preset};
    use bytes::Bytes;
    use kinds::Registry;
    use kinds::entry::Decoder;
    use serde_json::json;
    use storage::cache::Limits;
    use storage::engine::memory::MemoryStore;
    use storage::{Op, Store, unreadable_value};
    use verbs::Cache;

    use super::*;

    /// A store, and the collection of a core resource in its watch cache.
    fn collection(resource: &str) -> (Arc<dyn Store>, Collection) {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        let cache = Arc::new(Cache::new(Limits::default()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cache.clone()));
        cache.attach(&store);
        let resource = registry.find("", "v1", resource).unwrap();
        let items = cache.resource(&resource.key_prefix, Decoder::new(resource));
        (store, Collection { kind: Arc::clone(resource), items, converter: None })
    }

    async fn create(store: &Arc<dyn Store>, key: &str, value: Bytes) {
        store.commit(key, Op::Create(value)).await.unwrap();
    }

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

    #[tokio::test]
    async fn undecodable_pod_of_the_namespace_is_a_failure() {
        let (store, pods) = collection("pods");
        for (name, node) in [("scheduled", "n"), ("pending", "")] {
            let pod = object(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "a", "name": name}, "spec": {"nodeName": node},
            }));
            create(&store, &pods.kind.key("a", name), kinds::entry::encode(&pod)).await;
        }
        create(&store, &pods.kind.key("b", "p"), unreadable_value("wrong key")).await;
        let scheduled = scheduled_pods(&pods, "a").await.unwrap();
        assert_eq!(scheduled.iter().map(Object::name).collect::<Vec<_>>(), ["scheduled"]);
        let failure = scheduled_pods(&pods, "b").await.unwrap_err();
        assert!(failure.message.contains(&pods.kind.key("b", "p")), "{failure}");
    }

    #[tokio::test]
    async fn undecodable_claim_is_a_failure_for_each_volume() {
        let (store, claims) = collection("persistentvolumeclaims");
        let volume = object(json!({"metadata": {"name": "v"}}));
        let other = object(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "a", "name": "c"}, "spec": {"volumeName": "w"},
        }));
        create(&store, &claims.kind.key("a", "c"), kinds::entry::encode(&other)).await;
        assert!(!has_bound_claim(&claims, &volume).await.unwrap());
        create(&store, &claims.kind.key("a", "d"), unreadable_value("wrong key")).await;
        let failure = has_bound_claim(&claims, &volume).await.unwrap_err();
        assert!(failure.message.contains(&claims.kind.key("a", "d")), "{failure}");
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
