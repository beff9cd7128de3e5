//! Round trips through removed versions, and conversions that `kubectl convert` does not have.

use std::fs;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::time;
use migration::{Conversion, ConvertError, Converter};
use serde_json::json;

fn try_convert(preset: Preset, object: &Value, to: Option<&str>) -> Result<Conversion, ConvertError> {
    let names = Names::new(preset, "example.test").unwrap();
    let clock = ManualClock::at(time::parse("2026-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(1);
    let target = to.map(|to| GroupVersion::parse(to).unwrap());
    Converter::new(&names, &clock, &rng).convert(Object::from_value(object.clone()).unwrap(), target.as_ref())
}

fn convert(object: &Value, to: &str) -> (Value, Vec<String>) {
    let conversion = try_convert(Preset::Kubernetes, object, Some(to)).unwrap();
    (conversion.object.into_value(), conversion.warnings)
}

/// Whether `tree` has all values of `part`. `tree` may have more fields: the old version sets defaults.
fn contains(tree: &Value, part: &Value) -> bool {
    match (tree, part) {
        (Value::Object(tree), Value::Object(part)) => {
            // An empty selector selects everything, so it contains only an empty one.
            part.is_empty() == tree.is_empty()
                && part.iter().all(|(key, value)| tree.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(tree), Value::Array(part)) => {
            tree.len() == part.len() && tree.iter().zip(part).all(|(found, value)| contains(found, value))
        }
        (tree, part) => tree == part,
    }
}

/// Converts an object of a served version to another version and back; the result has all values of the object.
fn check_round_trip(object: &Value, through: &str) {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (served, _) = convert(object, api_version);
    let (other, _) = convert(&served, through);
    assert_eq!(other["apiVersion"], through, "{served}");
    let (back, _) = convert(&other, api_version);
    assert!(contains(&back, &served), "{served}\nthrough {other}\nbecomes {back}");
}

#[test]
fn recorded_objects_survive_round_trip_through_removed_version() {
    let Some(file) = prerequisites::conversions() else { return };
    for line in fs::read_to_string(file).unwrap().lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        let (input, output) = (&fact["input"], &fact["output"]);
        // The round trip begins with the object of the newer version.
        let is_old = input["apiVersion"].as_str().unwrap().contains("beta") || fact["to"] == "autoscaling/v1";
        let (object, through) = if is_old { (output, input) } else { (input, output) };
        if object["apiVersion"].as_str().unwrap().contains("alpha") {
            continue;
        }
        check_round_trip(object, through["apiVersion"].as_str().unwrap());
    }
}

/// Objects of served versions with combinations of the fields that removed versions name differently, and the
/// removed versions.
fn generated_objects() -> Vec<(Value, &'static [&'static str])> {
    let mut objects: Vec<(Value, &'static [&'static str])> = Vec::new();
    let backends = [
        json!({"service": {"name": "s", "port": {"number": 80}}}),
        json!({"service": {"name": "s", "port": {"name": "http"}}}),
        json!({"resource": {"apiGroup": "e.com", "kind": "B", "name": "b"}}),
    ];
    for (backend, path_type) in
        backends.iter().flat_map(|b| ["Exact", "Prefix"].map(|path_type| (b, path_type)))
    {
        for default in backends.iter().map(Some).chain([None]) {
            let mut spec = json!({"rules": [{"host": "h", "http": {"paths": [
                {"path": "/a", "pathType": path_type, "backend": backend},
                {"path": "/b", "pathType": "ImplementationSpecific", "backend": backend},
            ]}}, {"host": "i"}]});
            if let Some(default) = default {
                spec["defaultBackend"] = default.clone();
            }
            let ingress = json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "x"}, "spec": spec,
            });
            objects.push((ingress, &["extensions/v1beta1", "networking.k8s.io/v1beta1"]));
        }
    }
    for selector in [json!({}), json!({"matchLabels": {"a": "b"}}), Value::Null] {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"},
            "spec": {"maxUnavailable": "50%", "selector": selector},
        });
        objects.push((budget, &["policy/v1beta1"]));
    }
    for (node, zone) in [(None, None), (Some("a"), None), (None, Some("z")), (Some("a"), Some("z"))] {
        for topology in [None, Some(json!({"k": "v"}))] {
            let mut endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}});
            let fields = [
                ("nodeName", node.map(Value::from)),
                ("zone", zone.map(Value::from)),
                ("deprecatedTopology", topology),
            ];
            for (field, value) in fields {
                if let Some(value) = value {
                    endpoint[field] = value;
                }
            }
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"},
                "addressType": "IPv4", "endpoints": [endpoint], "ports": [{"name": "p", "port": 80}],
            });
            objects.push((slice, &["discovery.k8s.io/v1beta1"]));
        }
    }
    for shares in [1, 30, 100] {
        let level = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "x"}, "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": shares, "lendablePercent": 10, "limitResponse": {"type": "Reject"}}},
        });
        let versions = &[
            "flowcontrol.apiserver.k8s.io/v1beta1",
            "flowcontrol.apiserver.k8s.io/v1beta2",
            "flowcontrol.apiserver.k8s.io/v1beta3",
        ];
        objects.push((level, versions));
    }
    objects
}

#[test]
fn generated_objects_survive_round_trip_through_removed_versions() {
    let objects = generated_objects();
    assert!(objects.len() > 30);
    for (object, versions) in objects {
        for version in versions {
            check_round_trip(&object, version);
        }
    }
}

fn autoscaler(metrics: Value) -> Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x", "namespace": "n"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "minReplicas": 2,
                 "maxReplicas": 5, "metrics": metrics},
    })
}

#[test]
fn autoscalers_of_beta_versions_convert_without_loss() {
    let metrics = json!([
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
        {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "10"}}},
        {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "30"}}},
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
    ]);
    let object = autoscaler(metrics);
    for through in ["autoscaling/v1", "autoscaling/v2beta1", "autoscaling/v2beta2"] {
        check_round_trip(&object, through);
    }
    let old = json!({
        "apiVersion": "autoscaling/v2beta1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "targetAverageUtilization": 60}},
            {"type": "Object", "object": {"target": {"kind": "Service", "name": "s"}, "metricName": "hits", "targetValue": "10"}},
        ]},
    });
    let (new, _) = convert(&old, "autoscaling/v2");
    let target = json!({"type": "Utilization", "averageUtilization": 60});
    assert_eq!(new["spec"]["metrics"][0]["resource"]["target"], target, "{new}");
    assert_eq!(new["spec"]["metrics"][1]["object"]["metric"]["name"], "hits");
    assert_eq!(new["spec"]["metrics"][1]["object"]["describedObject"]["name"], "s");
    assert!(new["metadata"].get("annotations").is_none(), "{new}");
}

#[test]
fn definition_of_v1beta1_becomes_structural_definition_with_fields_in_each_version() {
    let old = json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crons.e.com"},
        "spec": {
            "group": "e.com", "version": "v1", "names": {"plural": "crons", "kind": "Cron"},
            "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true, "storage": false}],
            "validation": {"openAPIV3Schema": {"properties": {"spec": {"type": "object"}}}},
            "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".spec.a"}],
            "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "https://h/c"}},
        },
    });
    let (new, warnings) = convert(&old, "apiextensions.k8s.io/v1");
    let spec = &new["spec"];
    assert_eq!(spec["scope"], "Namespaced");
    for version in spec["versions"].as_array().unwrap() {
        let schema = &version["schema"]["openAPIV3Schema"];
        assert_eq!(
            (&schema["type"], &schema["x-kubernetes-preserve-unknown-fields"]),
            (&json!("object"), &json!(true))
        );
        assert_eq!(schema["properties"]["spec"]["type"], "object");
        assert_eq!(version["subresources"], json!({"status": {}}));
        assert_eq!(version["additionalPrinterColumns"][0]["jsonPath"], ".spec.a");
    }
    for removed in
        ["version", "validation", "subresources", "additionalPrinterColumns", "preserveUnknownFields"]
    {
        assert!(spec.get(removed).is_none(), "{removed} in {spec}");
    }
    let webhook = json!({"clientConfig": {"url": "https://h/c"}, "conversionReviewVersions": ["v1beta1"]});
    assert_eq!(spec["conversion"]["webhook"], webhook);
    assert!(!warnings.iter().any(|warning| warning.contains("will reject")), "{warnings:?}");
    check_round_trip(&new, "apiextensions.k8s.io/v1beta1");
}

#[test]
fn definition_of_v1beta1_without_schema_accepts_every_field() {
    let old = json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crons.e.com"},
        "spec": {"group": "e.com", "version": "v1", "scope": "Cluster", "names": {"plural": "crons", "kind": "Cron"}},
    });
    let (new, warnings) = convert(&old, "apiextensions.k8s.io/v1");
    let version = &new["spec"]["versions"][0];
    assert_eq!(
        (&version["name"], &version["served"], &version["storage"]),
        (&json!("v1"), &json!(true), &json!(true))
    );
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(version["schema"]["openAPIV3Schema"], schema);
    assert!(warnings.iter().any(|warning| warning.contains("v1 requires a schema")), "{warnings:?}");
}

#[test]
fn api_service_and_csr_of_v1beta1_convert_to_v1() {
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1beta1", "kind": "APIService", "metadata": {"name": "v1.e.com"},
        "spec": {"group": "e.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
                 "service": {"name": "s", "namespace": "n"}, "insecureSkipTLSVerify": true},
    });
    let (new, warnings) = convert(&service, "apiregistration.k8s.io/v1");
    assert_eq!(
        (&new["apiVersion"], &new["spec"]["service"]["port"]),
        (&json!("apiregistration.k8s.io/v1"), &json!(443))
    );
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn topology_keys_of_endpoints_become_fields() {
    let slice = |node: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice", "metadata": {"name": "x"},
            "addressType": "IPv4", "ports": [],
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": node,
                           "topology": {"kubernetes.io/hostname": "a", "topology.kubernetes.io/zone": "z"}}],
        })
    };
    let (same, _) = convert(&slice(json!("a")), "discovery.k8s.io/v1");
    let endpoint = &same["endpoints"][0];
    assert_eq!((&endpoint["nodeName"], &endpoint["zone"]), (&json!("a"), &json!("z")));
    assert!(endpoint.get("deprecatedTopology").is_none(), "{endpoint}");
    let (other, warnings) = convert(&slice(json!("b")), "discovery.k8s.io/v1");
    assert_eq!(other["endpoints"][0]["deprecatedTopology"], json!({"kubernetes.io/hostname": "a"}));
    assert!(warnings.iter().any(|warning| warning.contains("nodeName")), "{warnings:?}");
}

#[test]
fn zero_shares_of_priority_levels_keep_their_meaning() {
    let level = |shares: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "x"},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "limitResponse": {"type": "Reject"}}},
        })
    };
    check_round_trip(&level(json!(0)), "flowcontrol.apiserver.k8s.io/v1beta3");
    let (old, _) = convert(&level(json!(0)), "flowcontrol.apiserver.k8s.io/v1beta3");
    let key = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
    assert_eq!(old["metadata"]["annotations"], json!({key: ""}));
}

#[test]
fn stored_objects_of_removed_flow_control_versions_keep_their_shares() {
    let level = |version: &str, field: &str, shares: Value, annotations: Value| {
        json!({
            "apiVersion": format!("flowcontrol.apiserver.k8s.io/{version}"), "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "x", "annotations": annotations},
            "spec": {"type": "Limited", "limited": {field: shares, "limitResponse": {"type": "Reject"}}},
        })
    };
    let zero = json!({"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares": ""});
    let nominal = "nominalConcurrencyShares";
    for (version, field, shares, annotations, expected) in [
        ("v1beta3", nominal, json!(7), json!({}), 7),
        ("v1beta3", nominal, json!(0), zero, 0),
        ("v1beta3", nominal, json!(0), json!({}), 30),
        ("v1beta3", nominal, Value::Null, json!({}), 30),
        ("v1beta2", "assuredConcurrencyShares", json!(7), json!({}), 7),
        ("v1beta2", "assuredConcurrencyShares", Value::Null, json!({}), 30),
        ("v1beta1", "assuredConcurrencyShares", json!(7), json!({}), 7),
    ] {
        let old = level(version, field, shares, annotations);
        let (new, warnings) = convert(&old, "flowcontrol.apiserver.k8s.io/v1");
        let limited = &new["spec"]["limited"];
        assert_eq!(limited[nominal], expected, "{old}");
        assert!(limited.get("assuredConcurrencyShares").is_none(), "{new}");
        assert_eq!(limited["limitResponse"], json!({"type": "Reject"}), "{old}");
        assert!(new["metadata"].get("annotations").is_none_or(|all| *all == json!({})), "{new}");
        assert!(!warnings.iter().any(|warning| warning.contains("dropped")), "{warnings:?}");
    }
    let subject = json!({"kind": "User", "user": {"name": "alice"}});
    let rules =
        json!([{"subjects": [subject], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/x"]}]}]);
    for version in ["v1beta3", "v1beta2", "v1beta1"] {
        let schema = json!({
            "apiVersion": format!("flowcontrol.apiserver.k8s.io/{version}"), "kind": "FlowSchema", "metadata": {"name": "x"},
            "spec": {"priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": 5,
                     "distinguisherMethod": {"type": "ByUser"}, "rules": rules},
        });
        let (new, _) = convert(&schema, "flowcontrol.apiserver.k8s.io/v1");
        assert_eq!(new["apiVersion"], "flowcontrol.apiserver.k8s.io/v1");
        assert_eq!(new["spec"], schema["spec"]);
    }
}

#[test]
fn empty_selector_of_stored_budget_of_v1beta1_still_selects_nothing() {
    let budget = |selector: Value| {
        json!({
            "apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"},
            "spec": {"minAvailable": 1, "selector": selector},
        })
    };
    let (new, _) = convert(&budget(json!({})), "policy/v1");
    let selector = &new["spec"]["selector"];
    // The empty selector of policy/v1 selects all pods.
    assert!(!kinds::labels::selects_all(selector), "{new}");
    for labels in [json!({}), json!({"a": "b"})] {
        assert!(selector.is_null() || !kinds::labels::matches(selector, &labels), "{new}");
    }
    let (new, _) = convert(&budget(json!({"matchLabels": {"a": "b"}})), "policy/v1");
    assert_eq!(new["spec"]["selector"], json!({"matchLabels": {"a": "b"}}));
}

#[test]
fn subjects_of_rbac_v1alpha1_get_groups() {
    let old = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1alpha1", "kind": "ClusterRoleBinding", "metadata": {"name": "x"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "*"}, {"kind": "Robot", "name": "r", "apiVersion": "e.com/v1"}],
    });
    let (new, warnings) = convert(&old, "rbac.authorization.k8s.io/v1");
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([
        {"kind": "Group", "apiGroup": group, "name": "system:authenticated"},
        {"kind": "Robot", "apiGroup": "e.com", "name": "r"},
    ]);
    assert_eq!((&new["subjects"], &new["roleRef"]["apiGroup"]), (&subjects, &json!(group)));
    assert!(warnings[0].contains("the user `*`"), "{warnings:?}");
}

#[test]
fn conversion_without_target_or_with_other_group_uses_latest_version() {
    let ingress = json!({
        "apiVersion": "extensions/v1beta1", "kind": "Ingress", "metadata": {"name": "x"},
        "spec": {"backend": {"serviceName": "s", "servicePort": 80}},
    });
    let latest = try_convert(Preset::Kubernetes, &ingress, None).unwrap();
    assert_eq!((latest.object.api_version(), latest.warnings.len()), ("networking.k8s.io/v1", 0));
    let (other, warnings) = convert(&ingress, "apps/v1");
    assert_eq!(other["apiVersion"], "networking.k8s.io/v1");
    assert!(warnings[0].starts_with("apps/v1 has no Ingress"), "{warnings:?}");
}

#[test]
fn neutral_names_convert_with_their_own_domain() {
    let ingress = json!({
        "apiVersion": "networking.example.test/v1beta1", "kind": "Ingress", "metadata": {"name": "x"},
        "spec": {"backend": {"serviceName": "s", "servicePort": 80}},
    });
    let converted = try_convert(Preset::Svc, &ingress, Some("networking.example.test/v1")).unwrap();
    assert_eq!(converted.object.api_version(), "networking.example.test/v1");
    assert_eq!(converted.object.at(&["spec", "defaultBackend", "service", "name"]), Some(&json!("s")));
    let request = json!({
        "apiVersion": "certificates.example.test/v1beta1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"},
        "spec": {"request": "AA=="},
    });
    let converted = try_convert(Preset::Svc, &request, None).unwrap();
    assert_eq!(converted.object.at(&["spec", "signerName"]), Some(&json!("example.test/legacy-unknown")));
}

#[test]
fn built_in_groups_of_other_preset_are_rejected_with_its_flags() {
    let policy = json!({"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy"});
    let ingress = json!({"apiVersion": "networking.svc.internal/v1beta1", "kind": "Ingress"});
    for (preset, object, flags) in
        [(Preset::Svc, policy, "--names kubernetes"), (Preset::Kubernetes, ingress, "--names svc")]
    {
        let error = try_convert(preset, &object, None).unwrap_err();
        assert!(matches!(&error, ConvertError::OtherNames(_, expected) if expected == flags), "{error}");
    }
}

#[test]
fn target_without_built_in_kind_is_rejected() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let (clock, rng) = (ManualClock::at(time::parse("2026-01-02T03:04:05Z").unwrap()), SeededRng::new(1));
    let converter = Converter::new(&names, &clock, &rng);
    let check = |text: &str| converter.check_target(&GroupVersion::parse(text).unwrap());
    for known in ["v1", "apps/v1", "extensions/v1beta1", "networking.example.test/v1"] {
        assert_eq!(check(known), Ok(()), "{known}");
    }
    for unknown in ["v2", "networking.example.test/v3", "networking.example.com/v1"] {
        assert!(matches!(check(unknown), Err(ConvertError::UnknownTarget(_))), "{unknown}");
    }
    let error = check("networking.k8s.io/v1").unwrap_err();
    assert!(error.to_string().ends_with("use `--names kubernetes`"), "{error}");
}

#[test]
fn manifest_that_cannot_convert_returns_error_and_custom_kind_stays() {
    let error = |object: Value| try_convert(Preset::Kubernetes, &object, None).unwrap_err();
    let policy =
        json!({"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy", "metadata": {"name": "x"}});
    assert!(matches!(error(policy), ConvertError::NoReplacement(..)));
    assert_eq!(error(json!({"kind": "Ingress"})), ConvertError::Untyped);
    assert_eq!(
        error(json!({"apiVersion": "a/b/c", "kind": "Ingress"})),
        ConvertError::ApiVersion("a/b/c".to_owned())
    );
    let ingress = json!({"apiVersion": "extensions/v1beta1", "kind": "Ingress", "spec": {"rules": 1}});
    assert!(matches!(error(ingress), ConvertError::Type(_)));
    let custom = json!({"apiVersion": "e.com/v1beta1", "kind": "Thing", "spec": {"a": null}});
    let (same, warnings) = convert(&custom, "apps/v1");
    assert_eq!(same, custom);
    assert!(warnings[0].contains("not a built-in kind"), "{warnings:?}");
}

#[test]
fn daemon_set_keeps_template_generation_and_stateful_set_its_claims() {
    let object = |annotations: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x", "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                     "spec": {"containers": [{"name": "c", "image": "i"}]}}},
        })
    };
    let key = "deprecated.daemonset.template.generation";
    let (old, _) = convert(&object(json!({key: "3"})), "extensions/v1beta1");
    assert_eq!((&old["spec"]["templateGeneration"], old["metadata"].get("annotations")), (&json!(3), None));
    let (old, _) = convert(&object(json!({})), "extensions/v1beta1");
    assert_eq!(old["spec"].get("templateGeneration"), None);
    let (old, _) = convert(&object(json!({})), "apps/v1beta2");
    assert_eq!(old["metadata"]["annotations"], json!({key: "0"}));
    let mut set = object(json!({}));
    set["kind"] = "StatefulSet".into();
    set["apiVersion"] = "apps/v1beta1".into();
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    let (set, _) = convert(&set, "apps/v1");
    let claim = &set["spec"]["volumeClaimTemplates"][0];
    assert_eq!(
        (&claim["kind"], &claim["spec"]["volumeMode"]),
        (&json!("PersistentVolumeClaim"), &json!("Filesystem"))
    );
}

#[test]
fn deprecated_and_unknown_fields_are_named_in_warnings() {
    let object = json!({
        "apiVersion": "apps/v1beta2", "kind": "Deployment", "metadata": {"name": "x"},
        "spec": {"rollbackTo": {"revision": 1}, "template": {"metadata": {"labels": {"a": "b"}},
                 "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    let (_, warnings) = convert(&object, "apps/v1");
    assert!(warnings.contains(&"spec.rollbackTo: dropped: unknown field".to_owned()), "{warnings:?}");
    assert!(
        warnings.iter().any(|w| w.contains("will reject") && w.contains("spec.selector")),
        "{warnings:?}"
    );
}
