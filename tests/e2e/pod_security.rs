//! PodSecurity and admission plugins that are off by default.
//!
//! The tests cover rejections, warnings, audit annotations and exemptions of the admission configuration
//! file.

use std::fs;

use apimachinery::names::{DEFAULT_API_DOMAIN, Names};
use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, TestResponse, eventually};

/// Creates a namespace with the given metadata and waits for its default service account.
async fn namespace(admin: &Client, name: &str, metadata: Value) {
    let mut object = json!({ "metadata": metadata });
    object["metadata"]["name"] = json!(name);
    admin.post("/api/v1/namespaces", &object).await.expect(201);
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    eventually("the default service account exists", || async {
        (admin.get(&account).await.status == 200).then_some(())
    })
    .await;
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "img.example.com/app:1"}]},
    });
    for (field, value) in spec.as_object().expect("an object") {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn warnings(answer: &TestResponse) -> Vec<String> {
    let values = answer.headers.get_all("warning").iter();
    values.map(|value| value.to_str().expect("a text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_violating_namespace_standard_is_rejected_warned_and_audited() {
    let dir = tempfile::Builder::new().prefix("pod-security-").tempdir().expect("a folder");
    for options in [Options::default(), Options::kubernetes()] {
        let audit = AuditLog::new();
        let file = dir.path().join("admission.yaml");
        let names = Names::new(options.preset, DEFAULT_API_DOMAIN).expect("valid names");
        fs::write(
            &file,
            format!(
                "apiVersion: {}/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    \
                 apiVersion: {}/v1\n    kind: PodSecurityConfiguration\n    exemptions: {{namespaces: [loose]}}\n",
                names.group("apiserver.config"),
                names.group("pod-security.admission.config"),
            ),
        )
        .expect("a file");
        let options =
            options.flag(&format!("--admission-control-config-file={}", file.display())).flag(&audit.flag());
        let mut plane = ControlPlane::start(options).await;
        let admin = plane.admin();
        let label = |mode: &str| names.label_sub_key("pod-security", mode);
        let merge = "application/merge-patch+json";

        namespace(&admin, "team", json!({})).await;
        let pods = "/api/v1/namespaces/team/pods";
        admin.post(pods, &pod("before", json!({"hostPID": true}))).await.expect(201);
        let labels = json!({"metadata": {"labels": {label("enforce"): "restricted"}}});
        let answer = admin.patch("/api/v1/namespaces/team", merge, &labels).await;
        answer.expect(200);
        let text = warnings(&answer).join("\n");
        assert!(text.contains("before: host namespaces, allowPrivilegeEscalation != false"), "{text}");

        let refused = admin.post(pods, &pod("after", json!({"hostPID": true}))).await.expect(403);
        let message = refused["message"].as_str().expect("a message");
        let head = "pods \"after\" is forbidden: violates PodSecurity \"restricted:latest\": host namespaces (hostPID=true), ";
        assert!(message.starts_with(head), "{message}");
        let hardened = json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "img.example.com/app:1", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        });
        let answer = admin.post(pods, &pod("hardened", hardened)).await;
        answer.expect(201);
        assert!(warnings(&answer).is_empty());
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod("", json!({}))["spec"]});
        let deployment = json!({"metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "template": template}});
        let answer = admin.post("/apis/apps/v1/namespaces/team/deployments", &deployment).await;
        answer.expect(201);
        assert!(warnings(&answer).concat().contains("would violate PodSecurity"), "{:?}", warnings(&answer));

        let bad = json!({"metadata": {"labels": {label("warn-version"): "1.2"}}});
        let invalid = admin.patch("/api/v1/namespaces/team", merge, &bad).await.expect(422);
        let field = format!("metadata.labels[{}]", label("warn-version"));
        assert_eq!(invalid["details"]["causes"][0]["field"], field);

        namespace(&admin, "loose", json!({"labels": {label("audit"): "restricted"}})).await;
        let labels = json!({"metadata": {"labels": {label("enforce"): "restricted"}}});
        let answer = admin.patch("/api/v1/namespaces/loose", merge, &labels).await;
        answer.expect(200);
        assert!(
            warnings(&answer).concat().contains("is exempt from Pod Security"),
            "{:?}",
            warnings(&answer)
        );
        admin.post("/api/v1/namespaces/loose/pods", &pod("p", json!({"hostPID": true}))).await.expect(201);

        plane.stop().await;
        let events = audit.events();
        let annotation = |name: &str, key: &str| {
            let is_pod_creation =
                |event: &&Value| event["verb"] == "create" && event["objectRef"]["resource"] == "pods";
            let uri = |event: &&Value| event["requestURI"].as_str().is_some_and(|uri| uri.contains(name));
            let mut found = events
                .iter()
                .filter(is_pod_creation)
                .filter(uri)
                .map(|event| event["annotations"][label(key)].clone());
            found.find(|value| !value.is_null()).unwrap_or_default()
        };
        assert_eq!(annotation("/team/", "enforce-policy"), "privileged:latest", "policy of the first pod");
        assert_eq!(annotation("/loose/", "exempt"), "namespace");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_plugins_off_by_default_work_when_enabled() {
    let plugins = "AlwaysAdmit,AlwaysPullImages,DenyServiceExternalIPs,ExtendedResourceToleration,\
                   LimitPodHardAntiAffinityTopology,OwnerReferencesPermissionEnforcement,PodNodeSelector,\
                   PodTolerationRestriction";
    let flag = format!("--enable-admission-plugins={plugins}");
    let plane = ControlPlane::start(Options::kubernetes().flag(&flag)).await;
    let admin = plane.admin();
    let annotations = json!({
        "scheduler.alpha.kubernetes.io/node-selector": "disk=ssd",
        "scheduler.alpha.kubernetes.io/defaultTolerations": "[{\"key\": \"team\", \"operator\": \"Exists\"}]",
    });
    namespace(&admin, "team", json!({ "annotations": annotations })).await;
    let pods = "/api/v1/namespaces/team/pods";
    let asks = json!({"containers": [{"name": "c", "image": "a:1", "imagePullPolicy": "Never",
        "resources": {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}}}]});
    let made = admin.post(pods, &pod("p", asks)).await.expect(201);
    let spec = &made["spec"];
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["nodeSelector"], json!({"disk": "ssd"}));
    let tolerations = spec["tolerations"].as_array().expect("tolerations");
    let keys: Vec<&str> = tolerations.iter().filter_map(|t| t["key"].as_str()).collect();
    assert!(keys.contains(&"team") && keys.contains(&"example.com/gpu"), "{keys:?}");

    let apart = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {}}]}}});
    for (path, object, word) in [
        (pods.to_owned(), pod("a", apart), "has TopologyKey zone"),
        (pods.to_owned(), pod("b", json!({"nodeSelector": {"disk": "old"}})), "conflicts with its namespace"),
        (
            "/api/v1/namespaces/team/services".to_owned(),
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ["192.0.2.9"]}}),
            "Use of external IPs is denied",
        ),
    ] {
        let refused = admin.post(&path, &object).await.expect(403);
        assert!(refused["message"].as_str().is_some_and(|message| message.contains(word)), "{refused}");
    }

    // A user without the `delete` verb cannot set owner references.
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]);
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/team";
    admin
        .post(&format!("{roles}/roles"), &json!({"metadata": {"name": "maker"}, "rules": rules}))
        .await
        .expect(201);
    let binding = json!({"metadata": {"name": "maker"}, "subjects": [{"kind": "User", "name": "alice"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maker"}});
    admin.post(&format!("{roles}/rolebindings"), &binding).await.expect(201);
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}]);
    let owned = |name: &str| json!({"metadata": {"name": name, "ownerReferences": owner}});
    let maps = "/api/v1/namespaces/team/configmaps";
    let alice = plane.user("alice");
    alice.post(maps, &json!({"metadata": {"name": "free"}})).await.expect(201);
    let refused = alice.post(maps, &owned("owned")).await.expect(403);
    let message = refused["message"].as_str().expect("a message");
    assert!(message.contains("cannot set an ownerRef on a resource you can't delete"), "{message}");
    admin.post(maps, &owned("owned")).await.expect(201);
}
