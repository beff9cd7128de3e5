//! Tests of the fields that reductions contain and omit.

use authproto::auth::Named;

use super::*;
use serde_json::json;

fn reduce(key: &str, value: &serde_json::Value) -> Option<MirrorObject> {
    let table = Reductions::for_tests();
    let entry = table.find_by_key(key).unwrap();
    table.reduce(entry, value.to_string().as_bytes())
}

#[test]
fn only_policy_relevant_fields_change_the_reduction() {
    let base = json!({"metadata": {"name": "r", "namespace": "a", "uid": "1"}, "rules": [{"verbs": ["get"], "apiGroups": [""]}]});
    let reduced = reduce("roles/a/r", &base).unwrap();
    let reduce_changed = |pointer: &str, value: serde_json::Value| {
        let mut changed = base.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        reduce("roles/a/r", &changed).unwrap()
    };
    for (pointer, value) in [
        ("/rules", json!([])),
        ("/rules/0/verbs", json!(["list"])),
        ("/rules/0/resourceNames", json!(["x"])),
        ("/rules/0/nonResourceURLs", json!(["/x"])),
        ("/metadata/uid", json!("2")),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ("/metadata/annotations", json!({"rbac.authorization.svc.internal/autoupdate": "false"})),
    ] {
        assert_ne!(reduce_changed(pointer, value), reduced, "{pointer} must change the reduction");
    }
    for (pointer, value) in [
        ("/metadata/labels", json!({"team": "x"})),
        ("/metadata/annotations", json!({"note": "x"})),
        ("/metadata/managedFields", json!([{"manager": "m"}])),
        ("/rules/0/resourceNames", json!(null)),
    ] {
        assert_eq!(reduce_changed(pointer, value), reduced, "{pointer} must not change the reduction");
    }
}

#[test]
fn cluster_role_reduction_contains_all_labels() {
    let plain = json!({"metadata": {"name": "r"}, "rules": null});
    let labelled = json!({"metadata": {"name": "r", "labels": {"team": "x"}}, "rules": []});
    assert_ne!(reduce("clusterroles/r", &plain), reduce("clusterroles/r", &labelled));
}

#[test]
fn empty_aggregation_rule_differs_from_absent_rule() {
    let with_rule =
        reduce("clusterroles/r", &json!({"metadata": {"name": "r"}, "aggregationRule": {}})).unwrap();
    let without_rule = reduce("clusterroles/r", &json!({"metadata": {"name": "r"}})).unwrap();
    assert_ne!(with_rule, without_rule);
}

#[test]
fn invalid_bytes_have_no_reduction() {
    for invalid in [
        json!([]),
        json!({}),
        json!({"metadata": {"name": 5}}),
        json!({"metadata": {"name": "r"}, "rules": {}}),
    ] {
        assert_eq!(reduce("roles/a/r", &invalid), None, "{invalid}");
    }
    assert!(Reductions::for_tests().find_by_key("configmaps/a/x").is_none());
}

#[test]
fn storage_key_maps_to_namespace_and_name() {
    let table = Reductions::for_tests();
    for (key, expected) in [("roles/a/r:1", ("a", "r:1")), ("clusterroles/system:x", ("", "system:x"))] {
        assert_eq!(table.find_by_key(key).unwrap().locate(key), expected);
    }
}

#[test]
fn secret_without_token_reduces_to_uid() {
    use mirror_object::Kind;
    let secret = |kind: &str| {
        json!({
            "metadata": {"namespace": "a", "name": "s", "uid": "u", "labels": {"x": "y"},
                "annotations": {"svc.internal/service-account.name": "robot", "other": "z"}},
            "type": kind, "data": {"token": "aGlkZGVu", "bad": "!"},
        })
    };
    for kind in ["Opaque", "svc.internal/dockerconfigjson", ""] {
        let reduced = reduce("secrets/a/s", &secret(kind)).unwrap();
        assert_eq!(reduced.uid, "u");
        assert!(matches!(reduced.kind, Some(Kind::Secret(secret)) if secret.data.is_empty()), "{kind}");
    }
    for kind in ["svc.internal/service-account-token", "bootstrap.svc.internal/token"] {
        let reduced = reduce("secrets/a/s", &secret(kind)).unwrap();
        assert_eq!(reduced.annotations.keys().collect::<Vec<_>>(), ["svc.internal/service-account.name"]);
        assert!(reduced.labels.is_empty());
        let Some(Kind::Secret(secret)) = reduced.kind else { panic!("no Secret") };
        assert_eq!(secret.data.into_iter().collect::<Vec<_>>(), [("token".to_owned(), b"hidden".to_vec())]);
    }
}

#[test]
fn pod_reduction_contains_uid_node_and_deletion_time() {
    let pod = |phase: &str, deleted: Option<&str>| {
        json!({
            "metadata": {"namespace": "a", "name": "p", "uid": "u", "deletionTimestamp": deleted},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": phase},
        })
    };
    let running = reduce("pods/a/p", &pod("Running", None)).unwrap();
    assert_eq!(
        Some(&running),
        reduce("pods/a/p", &pod("Pending", None)).as_ref(),
        "a status write is not a policy write"
    );
    let ending = reduce("pods/a/p", &pod("Running", Some("1970-01-01T00:00:10Z"))).unwrap();
    assert_eq!((ending.terminating, ending.deleted_at_ms), (true, 10_000));
    assert_eq!((running.terminating, running.deleted_at_ms), (false, 0));
    assert!(matches!(running.kind, Some(mirror_object::Kind::Pod(pod)) if pod.node_name == "n"));
}

#[test]
fn only_cluster_info_config_map_is_mirrored() {
    let table = Reductions::for_tests();
    assert!(table.find_by_key("configmaps/svc-public/cluster-info").is_some());
    for key in
        ["configmaps/svc-public/other", "configmaps/a/cluster-info", "configmaps/svc-public/cluster-info2"]
    {
        assert!(table.find_by_key(key).is_none(), "{key}");
    }
}

#[test]
fn unscheduled_pod_and_mirror_pod_have_no_references() {
    let pod = |node: &str, mirror: bool| {
        let annotations = if mirror {
            json!({"svc.internal/config.mirror": "h"})
        } else {
            json!({"note": "config.mirror"})
        };
        json!({
            "metadata": {"namespace": "a", "name": "p", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": node, "serviceAccountName": "robot", "imagePullSecrets": [{"name": "pull"}]},
        })
    };
    for (node, mirror, expected) in [("n", false, "robot"), ("", false, ""), ("n", true, "")] {
        let Some(mirror_object::Kind::Pod(reduced)) = reduce("pods/a/p", &pod(node, mirror)).unwrap().kind
        else {
            panic!("no pod")
        };
        assert_eq!((reduced.node_name.as_str(), reduced.service_account.as_str()), (node, expected));
        assert_eq!(reduced.secrets.is_empty(), expected.is_empty(), "{node} {mirror}");
    }
}

/// The pod has a reference in every field in which a pod references an object that its node reads.
#[test]
fn pod_reduction_contains_every_reference() {
    let secret = |name: &str| json!({"secretRef": {"name": name}});
    let pod = json!({
        "metadata": {"namespace": "a", "name": "p", "uid": "u"},
        "spec": {
            "nodeName": "n", "serviceAccountName": "robot", "imagePullSecrets": [{"name": "s01"}, {}],
            "initContainers": [{"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s02", "key": "k"}}}]}],
            "containers": [{
                "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}}, {"name": "F", "value": "x"},
                    {"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"secretRef": {"name": "s03"}}, {"configMapRef": {"name": "c2"}}, {"prefix": "x"}],
            }],
            "ephemeralContainers": [{"envFrom": [{"configMapRef": {"name": "c3"}}]}],
            "volumes": [
                {"name": "v", "secret": {"secretName": "s04"}}, {"name": "v", "azureFile": {"secretName": "s05"}},
                {"name": "v", "cephfs": secret("s06")}, {"name": "v", "cinder": secret("s07")},
                {"name": "v", "flexVolume": secret("s08")}, {"name": "v", "iscsi": secret("s09")},
                {"name": "v", "rbd": secret("s10")}, {"name": "v", "scaleIO": secret("s11")},
                {"name": "v", "storageos": secret("s12")}, {"name": "v", "csi": {"nodePublishSecretRef": {"name": "s13"}}},
                {"name": "v", "projected": {"sources": [{"secret": {"name": "s14"}}, {"configMap": {"name": "c4"}},
                    {"serviceAccountToken": {"path": "t"}}]}},
                {"name": "v", "configMap": {"name": "c5"}}, {"name": "v", "emptyDir": {}},
                {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "scratch", "ephemeral": {}},
            ],
            "resourceClaims": [{"name": "direct", "resourceClaimName": "gpu"}, {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "not-made-yet", "resourceClaimTemplateName": "t"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]},
    });
    let object = reduce("pods/a/p", &pod).unwrap();
    assert_eq!(graph_part(&object), Some("n"));
    let Some(mirror_object::Kind::Pod(reduced)) = object.kind else { panic!("no pod") };
    let numbered = |prefix: &str, width: usize, count: usize| -> Vec<String> {
        (1..=count).map(|i| format!("{prefix}{i:0width$}")).collect()
    };
    assert_eq!(reduced.secrets, numbered("s", 2, 14));
    assert_eq!(reduced.config_maps, numbered("c", 1, 5));
    assert_eq!(reduced.volume_claims, ["data", "p-scratch"]);
    assert_eq!(reduced.resource_claims, ["gpu", "p-made-x"]);
    assert_eq!(reduced.service_account, "robot");
}

/// The fast comparison agrees with the reductions, and recognizes status-only writes.
#[test]
fn fast_comparison_agrees_with_reductions() {
    let base = json!({
        "metadata": {"namespace": "a", "name": "p", "uid": "u", "annotations": {"x": "y"}},
        "spec": {"nodeName": "n", "containers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]},
        "status": {"phase": "Pending"},
    });
    let table = Reductions::for_tests();
    let entry = table.find_by_key("pods/a/p").unwrap();
    for (pointer, value, is_equal) in [
        ("/status", json!({"phase": "Running", "podIP": "10.0.0.1"}), true),
        ("/metadata/labels", json!({"a": "b"}), true),
        ("/metadata/managedFields", json!([{"manager": "m"}]), true),
        ("/metadata/annotations", json!({"x": "z"}), true),
        ("/metadata/annotations", json!({"svc.internal/config.mirror": "h"}), false),
        ("/metadata/uid", json!("v"), false),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), false),
        ("/spec/nodeName", json!("m"), false),
        ("/spec/containers", json!([]), false),
        ("/spec/ephemeralContainers", json!([{"envFrom": [{"configMapRef": {"name": "c"}}]}]), false),
    ] {
        let mut changed = base.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        match parent {
            "" => changed[field] = value,
            parent => changed.pointer_mut(parent).unwrap()[field] = value,
        }
        let is_certainly_equal =
            table.is_certainly_equal(entry, base.to_string().as_bytes(), changed.to_string().as_bytes());
        assert_eq!(is_certainly_equal, is_equal, "{pointer}");
        assert_eq!(reduce("pods/a/p", &base) == reduce("pods/a/p", &changed), is_equal, "{pointer}");
    }
    assert!(!table.is_certainly_equal(entry, b"{}", b"{}"), "unreadable bytes must not count as equal");
}

#[test]
fn volume_reduction_contains_claim_and_node_secrets() {
    let volume = |spec: serde_json::Value| {
        let object =
            reduce("persistentvolumes/v", &json!({"metadata": {"name": "v"}, "spec": spec})).unwrap();
        assert_eq!(graph_part(&object), Some(VOLUMES));
        let Some(mirror_object::Kind::Volume(volume)) = object.kind else { panic!("no volume") };
        let pair = |named: &Named| format!("{}/{}", named.namespace, named.name);
        (volume.claim.as_ref().map(pair), volume.secrets.iter().map(pair).collect::<Vec<_>>())
    };
    let claim = json!({"namespace": "a", "name": "data"});
    let csi = json!({
        "controllerPublishSecretRef": {"namespace": "x", "name": "no"}, "controllerExpandSecretRef": {"namespace": "x", "name": "no"},
        "nodePublishSecretRef": {"namespace": "x", "name": "p"}, "nodeStageSecretRef": {"namespace": "x", "name": "s"},
        "nodeExpandSecretRef": {"namespace": "x", "name": "e"},
    });
    for (spec, expected) in [
        (json!({"claimRef": claim, "csi": csi}), vec!["x/e", "x/p", "x/s"]),
        (json!({"claimRef": claim, "rbd": {"secretRef": {"name": "s"}}}), vec!["a/s"]),
        (json!({"claimRef": claim, "iscsi": {"secretRef": {"namespace": "b", "name": "s"}}}), vec!["b/s"]),
        (json!({"claimRef": claim, "azureFile": {"secretName": "s"}}), vec!["a/s"]),
        (json!({"claimRef": claim, "azureFile": {"secretName": "s", "secretNamespace": "b"}}), vec!["b/s"]),
        (json!({"claimRef": claim, "hostPath": {"path": "/x"}}), vec![]),
    ] {
        assert_eq!(
            volume(spec),
            (Some("a/data".to_owned()), expected.iter().map(|s| (*s).to_owned()).collect())
        );
    }
    assert_eq!(volume(json!({"csi": csi})), (None, Vec::new()), "a volume without a claim");
}

#[test]
fn volume_attachment_and_resource_slice_reduce_to_node() {
    for key in ["volumeattachments/x", "resourceslices/x"] {
        let object =
            |spec: serde_json::Value| reduce(key, &json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
        assert_eq!(graph_part(&object(json!({"nodeName": "n", "driver": "d"}))), Some("n"), "{key}");
        assert_eq!(graph_part(&object(json!({"allNodes": true}))), None, "{key}");
    }
}
