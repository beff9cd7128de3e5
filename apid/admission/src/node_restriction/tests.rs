//! Tests of writes by the kubelet of node `n1`.
//! An expected `""` means allowed; any other text is the end of the rejection message.

use apimachinery::names::Preset;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

use super::*;
use crate::testing::{Fake, TestedWrite};

const NODE_UID: &str = "uid-of-n1";

fn agent(name: &str, group: &str) -> UserInfo {
    UserInfo { name: name.to_owned(), groups: vec![group.to_owned()], ..UserInfo::default() }
}

/// Nodes `n1` and `n2`, and in namespace `team` the pods `own` and `foreign`.
fn fake() -> Fake {
    let pod = |name: &str, node: &str| {
        json!({
            "metadata": {"namespace": "team", "name": name, "uid": format!("uid-of-{name}")},
            "spec": {"nodeName": node, "serviceAccountName": "robot", "volumes": [
                {"name": "t", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {"path": "t", "audience": "vault"}}]}},
                {"name": "d", "csi": {"driver": "direct"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "u", "persistentVolumeClaim": {"claimName": "unbound"}},
            ]},
        })
    };
    let claim = |name: &str, volume: &str| json!({"metadata": {"namespace": "team", "name": name}, "spec": {"volumeName": volume}});
    let volume =
        |name: &str, driver: &str| json!({"metadata": {"name": name}, "spec": {"csi": {"driver": driver}}});
    let driver = |name: &str| json!({"metadata": {"name": name}, "spec": {"tokenRequests": [{"audience": format!("for-{name}")}]}});
    Fake::new(Preset::Kubernetes)
        .with_objects(
            "",
            "Node",
            &[
                json!({"metadata": {"name": "n1", "uid": NODE_UID}}),
                json!({"metadata": {"name": "n2", "uid": "x"}}),
            ],
        )
        .with_objects("", "Pod", &[pod("own", "n1"), pod("foreign", "n2")])
        .with_objects(
            "",
            "PersistentVolumeClaim",
            &[claim("data", "v1"), claim("own-e", "v2"), claim("unbound", "")],
        )
        .with_objects("", "PersistentVolume", &[volume("v1", "claimed"), volume("v2", "scratch")])
        .with_objects("storage", "CSIDriver", &["direct", "claimed", "scratch", "unused"].map(driver))
}

/// Checks a write by the kubelet of `n1`.
/// `expected` is `""` or the end of the message after `forbidden: `.
async fn check(fake: &Fake, write: TestedWrite<'_>, object: Value, expected: &str) {
    let plugin = NodeRestriction::new(&fake.environment);
    let request = format!(
        "{} {:?} {} {object} of {:?}",
        write.operation.as_str(),
        write.kind,
        write.subresource,
        write.old
    );
    let user = agent("system:node:n1", GROUP);
    let answer = fake.run_plugin(&plugin, TestedWrite { user, ..write }, object).await;
    let message = answer.message();
    let reason = message.split_once("is forbidden: ").map_or(message, |(_, reason)| reason);
    assert_eq!(reason, expected, "{request}");
    if let Err(status) = &answer.result {
        assert_eq!(status.code, if message.ends_with("not found") { 404 } else { 403 }, "{request}");
    }
}

fn node(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

const OF_NODE: TestedWrite<'static> = TestedWrite {
    operation: Operation::Create,
    kind: ("", "Node"),
    subresource: "",
    namespace: "",
    user: UserInfo {
        name: String::new(),
        uid: String::new(),
        groups: Vec::new(),
        extra: std::collections::BTreeMap::new(),
    },
    old: None,
    dry_run: false,
    deadline: None,
};

#[tokio::test]
async fn kubelet_registers_own_node_with_allowed_labels() {
    let fake = fake();
    let set = "node \"n1\" is not allowed to set the following labels: ";
    for (name, labels, expected) in [
        ("n1", json!({}), String::new()),
        ("n2", json!({}), "node \"n1\" is not allowed to modify node \"n2\"".to_owned()),
        ("n1", json!({"plain": "", "example.com/rack": ""}), String::new()),
        (
            "n1",
            json!({"kubernetes.io/hostname": "", "kubernetes.io/os": "", "kubernetes.io/arch": ""}),
            String::new(),
        ),
        (
            "n1",
            json!({"beta.kubernetes.io/os": "", "beta.kubernetes.io/arch": "", "beta.kubernetes.io/instance-type": ""}),
            String::new(),
        ),
        (
            "n1",
            json!({"topology.kubernetes.io/zone": "", "topology.kubernetes.io/region": ""}),
            String::new(),
        ),
        (
            "n1",
            json!({"failure-domain.beta.kubernetes.io/zone": "", "failure-domain.beta.kubernetes.io/region": ""}),
            String::new(),
        ),
        (
            "n1",
            json!({"node.kubernetes.io/x": "", "a.node.kubernetes.io/x": "", "kubelet.kubernetes.io/x": "", "a.kubelet.kubernetes.io/x": ""}),
            String::new(),
        ),
        ("n1", json!({"xnode.kubernetes.io/x": ""}), format!("{set}xnode.kubernetes.io/x")),
        (
            "n1",
            json!({"kubernetes.io/role": "", "k8s.io/x": "", "a.k8s.io/x": ""}),
            format!("{set}a.k8s.io/x, k8s.io/x, kubernetes.io/role"),
        ),
        ("n1", json!({"beta.kubernetes.io/x": ""}), format!("{set}beta.kubernetes.io/x")),
        ("n1", json!({"topology.kubernetes.io/rack": ""}), format!("{set}topology.kubernetes.io/rack")),
        (
            "n1",
            json!({"node-restriction.kubernetes.io/x": ""}),
            format!("{set}node-restriction.kubernetes.io/x"),
        ),
        (
            "n1",
            json!({"a.node-restriction.kubernetes.io/x": ""}),
            format!("{set}a.node-restriction.kubernetes.io/x"),
        ),
        ("n1", json!({"kubernetes.io.example.com/x": "", "notkubernetes.io/x": ""}), String::new()),
    ] {
        check(&fake, OF_NODE, node(name, labels), &expected).await;
    }
    let source = json!({"metadata": {"name": "n1"}, "spec": {"configSource": {"configMap": {"name": "c"}}}});
    check(&fake, OF_NODE, source, "node \"n1\" is not allowed to create pods with a non-nil configSource")
        .await;
}

#[tokio::test]
async fn kubelet_cannot_change_restricted_labels_and_taints_of_node() {
    let fake = fake();
    let old = json!({
        "metadata": {"name": "n1", "labels": {"node-restriction.kubernetes.io/team": "a", "plain": "x"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    });
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        new
    };
    let (taints, team) = (
        "node \"n1\" is not allowed to modify taints",
        "is not allowed to modify labels: node-restriction.kubernetes.io/team",
    );
    let mut without_team = old.clone();
    without_team["metadata"]["labels"] = json!({"plain": "x"});
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]);
    for (new, expected) in [
        (old.clone(), ""),
        (changed("/metadata/labels/plain", json!("y")), ""),
        (changed("/metadata/labels", json!({"node-restriction.kubernetes.io/team": "b"})), team),
        (without_team, team),
        (changed("/spec/taints", json!([])), taints),
        (changed("/spec/taints", json!([{"key": "k", "effect": "NoExecute"}])), taints),
        (
            changed("/spec/configSource", json!({"configMap": {"name": "c"}})),
            "node \"n1\" is not allowed to update configSource to a new non-nil configSource",
        ),
        (
            changed("/metadata/ownerReferences", owners),
            "node \"n1\" is not allowed to modify ownerReferences",
        ),
        (changed("/metadata/ownerReferences", json!([])), ""),
        (changed("/spec/podCIDR", json!("10.0.0.0/24")), ""),
    ] {
        for subresource in ["", "status"] {
            let write =
                TestedWrite { operation: Operation::Update, subresource, old: Some(old.clone()), ..OF_NODE };
            check(&fake, write, new.clone(), expected).await;
        }
    }
    let other = node("n2", json!({}));
    let write = TestedWrite { operation: Operation::Update, old: Some(other.clone()), ..OF_NODE };
    check(&fake, write, other.clone(), "node \"n1\" is not allowed to modify node \"n2\"").await;
    let write = TestedWrite { operation: Operation::Delete, old: Some(other), ..OF_NODE };
    check(&fake, write, Value::Null, "node \"n1\" is not allowed to modify node \"n2\"").await;
}

fn mirror_pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"namespace": "team", "name": "p", "annotations": {"kubernetes.io/config.mirror": "h"}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": NODE_UID, "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "volumes": [{"name": "h", "hostPath": {"path": "/x"}}]},
    });
    change(&mut pod);
    pod
}

#[tokio::test]
async fn kubelet_creates_mirror_pods_for_own_node_only() {
    let fake = fake();
    let own = "node \"n1\" can only create pods with an owner reference set to itself";
    let owner = |change: fn(&mut Value)| mirror_pod(|pod| change(&mut pod["metadata"]["ownerReferences"][0]));
    for (pod, expected) in [
        (mirror_pod(|_| ()), ""),
        (
            mirror_pod(|pod| pod["metadata"]["annotations"] = json!({})),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (
            mirror_pod(|pod| pod["spec"]["nodeName"] = json!("n2")),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (
            mirror_pod(|pod| pod["spec"]["nodeName"] = json!(null)),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (mirror_pod(|pod| pod["metadata"]["ownerReferences"] = json!(null)), own),
        (owner(|owner| owner["kind"] = json!("Pod")), own),
        (owner(|owner| owner["name"] = json!("n2")), own),
        (owner(|owner| owner["apiVersion"] = json!("apps/v1")), own),
        (
            owner(|owner| owner["controller"] = json!(false)),
            "node \"n1\" can only create pods with a controller owner reference set to itself",
        ),
        (
            owner(|owner| owner["blockOwnerDeletion"] = json!(true)),
            "node \"n1\" must not set blockOwnerDeletion on an owner reference",
        ),
        (owner(|owner| owner["uid"] = json!("other")), "node n1 UID mismatch: expected other got uid-of-n1"),
        (
            mirror_pod(|pod| pod["metadata"]["ownerReferences"] = json!([{}, {}])),
            "node \"n1\" can only create pods with a single owner reference set to itself",
        ),
    ] {
        check(&fake, TestedWrite { namespace: "team", kind: ("", "Pod"), ..OF_NODE }, pod, expected).await;
    }
    let nowhere = Fake::new(Preset::Kubernetes);
    check(
        &nowhere,
        TestedWrite { namespace: "team", kind: ("", "Pod"), ..OF_NODE },
        mirror_pod(|_| ()),
        "node \"n1\" not found",
    )
    .await;
}

#[tokio::test]
async fn mirror_pod_with_api_references_is_rejected() {
    let fake = fake();
    let by_secret = json!({"secretRef": {"name": "s"}});
    let (secrets, configs, claims) = ("secrets", "configmaps", "persistentvolumeclaims");
    let rows: Vec<(&str, Value, &str)> = vec![
        ("serviceAccountName", json!("robot"), "a service account"),
        ("serviceAccount", json!("robot"), "a service account"),
        ("imagePullSecrets", json!([{"name": "s"}]), secrets),
        ("containers", json!([{"envFrom": [{"secretRef": {"name": "s"}}]}]), secrets),
        ("initContainers", json!([{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]), secrets),
        ("ephemeralContainers", json!([{"envFrom": [{"configMapRef": {"name": "s"}}]}]), configs),
        ("containers", json!([{"env": [{"valueFrom": {"configMapKeyRef": {"name": "s"}}}]}]), configs),
        ("volumes", json!([{"secret": {"secretName": "s"}}]), secrets),
        ("volumes", json!([{"azureFile": {"secretName": "s"}}]), secrets),
        ("volumes", json!([{"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]), secrets),
        ("volumes", json!([{"rbd": by_secret}]), secrets),
        ("volumes", json!([{"scaleIO": by_secret}]), secrets),
        ("volumes", json!([{"projected": {"sources": [{"secret": {"name": "s"}}]}}]), secrets),
        ("volumes", json!([{"projected": {"sources": [{"configMap": {"name": "s"}}]}}]), configs),
        (
            "volumes",
            json!([{"projected": {"sources": [{"clusterTrustBundle": {"name": "s"}}]}}]),
            "clustertrustbundles",
        ),
        ("volumes", json!([{"configMap": {"name": "s"}}]), configs),
        ("volumes", json!([{"persistentVolumeClaim": {"claimName": "s"}}]), claims),
        ("volumes", json!([{"ephemeral": {"volumeClaimTemplate": {}}}]), claims),
        ("resourceClaims", json!([{"name": "gpu"}]), "resourceclaims"),
    ];
    for (field, value, reference) in rows {
        let pod = mirror_pod(|pod| pod["spec"][field] = value);
        let expected = format!("node \"n1\" can not create pods that reference {reference}");
        check(&fake, TestedWrite { namespace: "team", kind: ("", "Pod"), ..OF_NODE }, pod, &expected).await;
    }
    for harmless in [
        json!([{"emptyDir": {}}]),
        json!([{"projected": {"sources": [{"downwardAPI": {}}]}}]),
        json!([{"csi": {"driver": "d"}}]),
    ] {
        let pod = mirror_pod(|pod| pod["spec"]["volumes"] = harmless);
        check(&fake, TestedWrite { namespace: "team", kind: ("", "Pod"), ..OF_NODE }, pod, "").await;
    }
}

#[tokio::test]
async fn kubelet_updates_deletes_and_evicts_own_pods_only() {
    let fake = fake();
    let pod = |name: &str, node: &str| json!({"metadata": {"namespace": "team", "name": name, "labels": {"a": "b"}}, "spec": {"nodeName": node}, "status": {}});
    let (own, foreign) = (pod("own", "n1"), pod("foreign", "n2"));
    let of_pod = |operation, subresource, old: Option<&Value>| TestedWrite {
        operation,
        subresource,
        kind: ("", "Pod"),
        namespace: "team",
        old: old.cloned(),
        ..OF_NODE
    };
    let with = |pointer: &str, value: Value| {
        let mut new = own.clone();
        *new.pointer_mut(pointer).unwrap() = value;
        new
    };
    let status = |old: &Value| of_pod(Operation::Update, "status", Some(old));
    check(&fake, status(&own), with("/status", json!({"phase": "Running"})), "").await;
    check(
        &fake,
        status(&foreign),
        foreign.clone(),
        "node \"n1\" can only update pod status for pods with spec.nodeName set to itself",
    )
    .await;
    check(
        &fake,
        status(&own),
        with("/metadata/labels", json!({})),
        "node \"n1\" cannot update labels through pod status",
    )
    .await;
    let claims = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]});
    check(&fake, status(&own), with("/status", claims), "node \"n1\" cannot update resource claim statues")
        .await;

    check(&fake, of_pod(Operation::Delete, "", Some(&own)), Value::Null, "").await;
    check(
        &fake,
        of_pod(Operation::Delete, "", Some(&foreign)),
        Value::Null,
        "node \"n1\" can only delete pods with spec.nodeName set to itself",
    )
    .await;
    check(
        &fake,
        of_pod(Operation::Update, "", Some(&own)),
        own.clone(),
        "unexpected operation \"UPDATE\", node \"n1\" can only create and delete mirror pods",
    )
    .await;

    let eviction = |name: &str| json!({"metadata": {"namespace": "team", "name": name}});
    let evict = || of_pod(Operation::Create, "eviction", None);
    check(&fake, evict(), eviction("own"), "").await;
    check(
        &fake,
        evict(),
        eviction("foreign"),
        "node n1 can only evict pods with spec.nodeName set to itself",
    )
    .await;
    check(&fake, evict(), eviction("gone"), "pod \"gone\" not found").await;
    check(
        &fake,
        of_pod(Operation::Create, "binding", None),
        eviction("own"),
        "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed",
    )
    .await;
}

#[tokio::test]
async fn kubelet_token_request_requires_own_pod_and_named_audience() {
    let fake = fake().with_right("system:node:n1 request-serviceaccounts-token-audience granted robot");
    let bound = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let own = bound("own", "uid-of-own");
    let unnamed = |audience: &str| {
        format!(
            "audience {audience:?} not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience"
        )
    };
    let unbound = "node requested token not bound to a pod".to_owned();
    for (reference, audiences, expected) in [
        (json!(null), json!(["vault"]), unbound.clone()),
        (json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u"}), json!(["vault"]), unbound.clone()),
        (json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": NODE_UID}), json!(["vault"]), unbound.clone()),
        (json!({"apiVersion": "v1", "kind": "Pod", "uid": "u"}), json!(["vault"]), unbound),
        (json!({"apiVersion": "v1", "kind": "Pod", "name": "own"}), json!(["vault"]), "node requested token with a pod binding without a uid".to_owned()),
        (bound("own", "other"), json!(["vault"]), "the UID in the bound object reference (other) does not match the UID in record. The object might have been deleted and then recreated".to_owned()),
        (bound("foreign", "uid-of-foreign"), json!(["vault"]), "node requested token bound to a pod scheduled on a different node".to_owned()),
        (bound("gone", "u"), json!(["vault"]), "pod \"gone\" not found".to_owned()),
        (own.clone(), json!(["vault"]), String::new()),
        (own.clone(), json!(["for-direct"]), String::new()),
        (own.clone(), json!(["for-claimed"]), String::new()),
        (own.clone(), json!(["for-scratch"]), String::new()),
        (own.clone(), json!(["granted"]), String::new()),
        (own.clone(), json!(["for-unused"]), unnamed("for-unused")),
        (own.clone(), json!(["other"]), unnamed("other")),
        (own.clone(), json!([]), unnamed("")),
        (own.clone(), json!(null), unnamed("")),
        (own.clone(), json!(["vault", "other"]), "node may only request 0 or 1 audiences".to_owned()),
    ] {
        let request = json!({"metadata": {"namespace": "team", "name": "robot"}, "spec": {"boundObjectRef": reference, "audiences": audiences}});
        let write = TestedWrite { kind: ("", "ServiceAccount"), subresource: "token", namespace: "team", ..OF_NODE };
        check(&fake, write, request, &expected).await;
    }
}

#[tokio::test]
async fn kubelet_writes_own_lease_and_csi_node_only() {
    let fake = fake();
    let lease = "can only access node lease with the same name as the requesting node";
    let csi = "can only access CSINode with the same name as the requesting node";
    for (kind, namespace, name, expected) in [
        (("coordination", "Lease"), "kube-node-lease", "n1", ""),
        (("coordination", "Lease"), "kube-node-lease", "n2", lease),
        (
            ("coordination", "Lease"),
            "team",
            "n1",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (("storage", "CSINode"), "", "n1", ""),
        (("storage", "CSINode"), "", "n2", csi),
    ] {
        let object = json!({"metadata": {"name": name}});
        for (operation, old, new) in [
            (Operation::Create, None, object.clone()),
            (Operation::Update, Some(object.clone()), object.clone()),
            (Operation::Delete, Some(object.clone()), Value::Null),
        ] {
            check(&fake, TestedWrite { operation, kind, namespace, old, ..OF_NODE }, new, expected).await;
        }
    }
}

/// ResourceSlices are not served by default, so the test calls the rule directly.
#[test]
fn kubelet_writes_own_resource_slices_only() {
    let fake = fake();
    let plugin = NodeRestriction::new(&fake.environment);
    let registry = kinds::Registry::new(&fake.names);
    let (recorder, user) = (crate::Recorder::default(), Arc::new(agent("system:node:n1", GROUP)));
    for (spec, own) in [
        (json!({"nodeName": "n1"}), true),
        (json!({"nodeName": "n2"}), false),
        (json!({"allNodes": true}), false),
    ] {
        let slice = Object::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
        for (operation, object, old) in
            [(Operation::Create, Some(&slice), None), (Operation::Delete, None, Some(&slice))]
        {
            let attributes = Attributes {
                operation,
                resource: registry.find_kind("", "Node").unwrap(),
                served: registry.find_kind("", "Node").unwrap(),
                version: "v1",
                subresource: "",
                namespace: "",
                name: "s",
                old,
                user: &user,
                dry_run: false,
                options: &|| Value::Null,
                has_generated_name: false,
                is_in_collection: false,
                deadline: None,
                recorder: &recorder,
                environment: &fake.environment,
            };
            let case = KubeletWrite { plugin: &plugin, attributes: &attributes, node: "n1", object };
            assert_eq!(case.check_resource_slice().is_ok(), own, "{} {spec}", operation.as_str());
        }
    }
}

#[tokio::test]
async fn kubelet_csr_requires_own_common_name() {
    let fake = fake();
    let request = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        STANDARD.encode(params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap())
    };
    let (own, foreign) = (request("system:node:n1"), request("system:node:n2"));
    let rejection = "can only create a node CSR with CN=system:node:n1";
    for (signer, request, expected) in [
        ("kubernetes.io/kubelet-serving", &own, ""),
        ("kubernetes.io/kube-apiserver-client-kubelet", &own, ""),
        ("kubernetes.io/kubelet-serving", &foreign, rejection),
        ("kubernetes.io/kube-apiserver-client-kubelet", &foreign, rejection),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            &"bm90IHBlbQ==".to_owned(),
            "unable to parse csr: PEM block type must be CERTIFICATE REQUEST",
        ),
        ("example.com/other", &foreign, ""),
    ] {
        let object = json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": request}});
        check(
            &fake,
            TestedWrite { kind: ("certificates", "CertificateSigningRequest"), ..OF_NODE },
            object,
            expected,
        )
        .await;
    }
}

#[tokio::test]
async fn kubelet_claim_status_update_changes_mount_fields_only() {
    let fake = fake();
    let old = json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "metadata": {"namespace": "team", "name": "data", "resourceVersion": "1", "managedFields": []},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    });
    let other =
        "node \"n1\" is not allowed to update fields other than status.quantity and status.conditions";
    for (pointer, value, expected) in [
        ("/status/capacity", json!({"storage": "2Gi"}), ""),
        ("/status/conditions", json!([{"type": "Resizing"}]), ""),
        ("/status/allocatedResources", json!({"storage": "2Gi"}), ""),
        ("/status/allocatedResourceStatuses", json!({"storage": "NodeResizeFailed"}), ""),
        ("/metadata/resourceVersion", json!("2"), ""),
        ("/metadata/labels", json!({}), ""),
        ("/status/phase", json!("Lost"), other),
        ("/metadata/labels", json!({"a": "b"}), other),
        ("/metadata/finalizers", json!(["x"]), other),
    ] {
        let mut new = old.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        let write = TestedWrite {
            operation: Operation::Update,
            subresource: "status",
            kind: ("", "PersistentVolumeClaim"),
            namespace: "team",
            old: Some(old.clone()),
            ..OF_NODE
        };
        check(&fake, write, new, expected).await;
    }
    let write = TestedWrite {
        operation: Operation::Update,
        kind: ("", "PersistentVolumeClaim"),
        namespace: "team",
        old: Some(old.clone()),
        ..OF_NODE
    };
    check(&fake, write, old, "may only update PVC status, and not the claim").await;
}

#[tokio::test]
async fn node_restriction_ignores_other_users() {
    let fake = fake();
    let plugin = NodeRestriction::new(&fake.environment);
    for (name, group, refused) in [
        ("system:node:n1", GROUP, true),
        ("system:node:", GROUP, true),
        ("system:node:n1", "system:masters", false),
        ("system:nodes", GROUP, false),
        ("n1", GROUP, false),
        ("admin", "system:masters", false),
    ] {
        let write = TestedWrite { user: agent(name, group), ..OF_NODE };
        let answer = fake
            .run_plugin(&plugin, write, node("n2", json!({"node-restriction.kubernetes.io/x": ""})))
            .await;
        assert_eq!(answer.result.is_err(), refused, "{name} {group}");
    }
    let write = TestedWrite { user: agent("system:node:", GROUP), ..OF_NODE };
    let answer = fake.run_plugin(&plugin, write, node("n2", json!({}))).await;
    assert!(answer.message().ends_with("could not determine node from user \"system:node:\""));
}

#[tokio::test]
async fn neutral_preset_restricts_labels_in_its_own_domain() {
    let fake = Fake::new(Preset::Svc);
    let plugin = NodeRestriction::new(&fake.environment);
    for (label, refused) in [
        ("node-restriction.example.test/x", true),
        ("example.test/x", true),
        ("a.example.test/x", true),
        ("example.test/hostname", false),
        ("node.example.test/x", false),
        ("node-restriction.kubernetes.io/x", false),
    ] {
        let write = TestedWrite { user: agent("system:node:n1", GROUP), ..OF_NODE };
        let answer = fake.run_plugin(&plugin, write, node("n1", json!({label: ""}))).await;
        assert_eq!(answer.result.is_err(), refused, "{label}");
    }
}
