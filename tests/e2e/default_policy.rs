//! End-to-end tests of the default RBAC policy: objects, access, reconciliation (requirements A-DEF).

use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, eventually};

const CONTROLLERS: &str = "attachdetach-controller certificate-controller clusterrole-aggregation-controller \
    cronjob-controller daemon-set-controller deployment-controller disruption-controller endpoint-controller \
    endpointslice-controller endpointslicemirroring-controller ephemeral-volume-controller expand-controller \
    generic-garbage-collector horizontal-pod-autoscaler job-controller legacy-service-account-token-cleaner \
    namespace-controller node-controller persistent-volume-binder pod-garbage-collector pv-protection-controller \
    pvc-protection-controller replicaset-controller replication-controller resourcequota-controller \
    root-ca-cert-publisher route-controller service-account-controller service-cidrs-controller service-controller \
    statefulset-controller ttl-controller ttl-after-finished-controller validatingadmissionpolicy-status-controller";

fn roles(plane: &ControlPlane) -> String {
    plane.api("rbac.authorization", "v1")
}

/// The names of the objects in a list response.
async fn names_of(client: &Client, path: &str) -> Vec<String> {
    let list = client.get(path).await.expect(200);
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

/// The subjects of a binding as `kind:name`.
async fn subjects(client: &Client, path: &str) -> Vec<String> {
    let binding = client.get(path).await.expect(200);
    let list = binding["subjects"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|s| format!("{}:{}", s["kind"].as_str().unwrap_or(""), s["name"].as_str().unwrap_or("")))
        .collect()
}

/// Creates a RoleBinding in `default` from a user of the token file to a ClusterRole.
async fn bind(plane: &ControlPlane, user: &str, role: &str) {
    let group = plane.names().group("rbac.authorization");
    let binding = json!({"metadata": {"name": format!("{user}-{role}")}, "subjects": [{"kind": "User", "name": user}],
                         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role}});
    let path = format!("{}/namespaces/default/rolebindings", roles(plane));
    plane.admin().post(&path, &binding).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn default_roles_and_bindings_exist_with_bootstrapping_label() {
    for options in [Options::default(), Options::kubernetes()] {
        let plane = ControlPlane::start(options).await;
        let (admin, base, names) = (plane.admin(), roles(&plane), plane.names());
        let marked =
            format!("labelSelector={}%3Drbac-defaults", names.bootstrapping_label().replace('/', "%2F"));
        for collection in ["clusterroles", "clusterrolebindings"] {
            let all = names_of(&admin, &format!("{base}/{collection}")).await;
            assert_eq!(
                all,
                names_of(&admin, &format!("{base}/{collection}?{marked}")).await,
                "all default objects have the label"
            );
            assert!(
                all.iter().all(|n| n.starts_with("system:")
                    || ["cluster-admin", "admin", "edit", "view"].contains(&n.as_str())),
                "{all:?}"
            );
            for controller in CONTROLLERS.split_whitespace() {
                assert!(
                    all.contains(&format!("system:controller:{controller}")),
                    "{collection}: {controller}"
                );
            }
        }
        for role in [
            "cluster-admin",
            "admin",
            "edit",
            "view",
            "system:kube-scheduler",
            "system:volume-scheduler",
            "system:kube-controller-manager",
            "system:node",
            "system:node-proxier",
            "system:auth-delegator",
            "system:kube-aggregator",
            "system:kubelet-api-admin",
            "system:node-bootstrapper",
            "system:persistent-volume-provisioner",
            "system:monitoring",
        ] {
            let object = admin.get(&format!("{base}/clusterroles/{role}")).await.expect(200);
            assert_eq!(object["metadata"]["annotations"][names.autoupdate_annotation()], "true", "{role}");
        }
        for (binding, expected) in [
            ("cluster-admin", &["Group:system:masters"][..]),
            ("system:basic-user", &["Group:system:authenticated"]),
            ("system:discovery", &["Group:system:authenticated"]),
            ("system:public-info-viewer", &["Group:system:authenticated", "Group:system:unauthenticated"]),
            ("system:monitoring", &["Group:system:monitoring"]),
            ("system:kube-scheduler", &["User:system:kube-scheduler"]),
            ("system:volume-scheduler", &["User:system:kube-scheduler"]),
            ("system:kube-controller-manager", &["User:system:kube-controller-manager"]),
            ("system:node-proxier", &["User:system:kube-proxy"]),
            ("system:node", &[]),
        ] {
            assert_eq!(
                subjects(&admin, &format!("{base}/clusterrolebindings/{binding}")).await,
                expected,
                "{binding}"
            );
        }
        let everything = admin.get(&format!("{base}/clusterroles/cluster-admin")).await.expect(200);
        assert_eq!(
            everything["rules"],
            json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}])
        );
        for (namespace, expected) in [
            (
                names.system_namespace,
                &[
                    "extension-apiserver-authentication-reader",
                    "system::leader-locking-kube-controller-manager",
                    "system::leader-locking-kube-scheduler",
                    "system:controller:bootstrap-signer",
                    "system:controller:cloud-provider",
                    "system:controller:token-cleaner",
                ][..],
            ),
            (names.public_namespace, &["system:controller:bootstrap-signer"]),
        ] {
            assert_eq!(names_of(&admin, &format!("{base}/namespaces/{namespace}/roles")).await, expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn component_roles_grant_expected_rules() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let rules = |role: &str| {
        let (admin, path) = (admin.clone(), format!("{}/clusterroles/{role}", roles(&plane)));
        async move { admin.get(&path).await.expect(200)["rules"].to_string() }
    };
    for (role, words) in [
        ("system:auth-delegator", &["tokenreviews", "subjectaccessreviews", "create"][..]),
        ("system:kubelet-api-admin", &["nodes/proxy", "nodes/stats", "nodes/metrics", "nodes/log"]),
        ("system:node-bootstrapper", &["certificatesigningrequests", "create", "get", "list", "watch"]),
    ] {
        let text = rules(role).await;
        assert!(words.iter().all(|word| text.contains(word)), "{role}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_reconciles_default_roles_and_keeps_added_rules() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let base = roles(&plane);
    let (discovery, binding) = (
        format!("{base}/clusterroles/system:discovery"),
        format!("{base}/clusterrolebindings/system:discovery"),
    );
    let basic = format!("{base}/clusterroles/system:basic-user");
    let own_rule = json!({"verbs": ["get"], "apiGroups": ["own.example"], "resources": ["things"]});

    let admin = plane.admin();
    let whole = admin.get(&discovery).await.expect(200);
    let mut role = whole.clone();
    role["rules"] = json!([own_rule]);
    admin.put(&discovery, &role).await.expect(200);
    let mut bound = admin.get(&binding).await.expect(200);
    bound["subjects"] =
        json!([{"kind": "User", "name": "guest", "apiGroup": plane.names().group("rbac.authorization")}]);
    admin.put(&binding, &bound).await.expect(200);
    let mut frozen = admin.get(&basic).await.expect(200);
    frozen["metadata"]["annotations"][plane.names().autoupdate_annotation()] = json!("false");
    frozen["rules"] = json!([own_rule]);
    admin.put(&basic, &frozen).await.expect(200);
    let viewer = format!("{base}/clusterrolebindings/system:public-info-viewer");
    let mut other = admin.get(&viewer).await.expect(200);
    admin.delete(&viewer).await.expect(200);
    other["metadata"] = json!({"name": "system:public-info-viewer"});
    other["roleRef"]["name"] = json!("view");
    admin.post(&format!("{base}/clusterrolebindings"), &other).await.expect(201);

    plane.stop().await;
    plane.launch().await;
    let admin = plane.admin();
    let restored = admin.get(&discovery).await.expect(200);
    let rules = restored["rules"].as_array().expect("rules");
    assert!(rules.contains(&own_rule), "reconciliation keeps added rules: {rules:?}");
    for rule in whole["rules"].as_array().expect("rules") {
        for url in rule["nonResourceURLs"].as_array().expect("paths") {
            assert!(
                rules.iter().any(|r| r["nonResourceURLs"].as_array().is_some_and(|u| u.contains(url))),
                "{url}"
            );
        }
    }
    let now = subjects(&admin, &binding).await;
    assert!(
        now.contains(&"User:guest".to_owned()) && now.contains(&"Group:system:authenticated".to_owned()),
        "{now:?}"
    );
    assert_eq!(
        admin.get(&basic).await.expect(200)["rules"],
        json!([own_rule]),
        "autoupdate=false: reconciliation skips the object"
    );
    assert_eq!(
        admin.get(&viewer).await.expect(200)["roleRef"]["name"],
        "system:public-info-viewer",
        "reconciliation recreates the object"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_requires_authentication_and_health_is_anonymous() {
    let plane = ControlPlane::start(Options::default()).await;
    let (carol, nobody) = (plane.user("carol"), plane.anonymous());
    for path in ["/livez", "/readyz", "/healthz", "/version", "/version/"] {
        nobody.get(path).await.expect(200);
        carol.get(path).await.expect(200);
    }
    for path in ["/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v2", "/openapi/v3"] {
        nobody.get(path).await.expect(403);
        carol.get(path).await.expect(200);
    }
    let reviews = plane.api("authorization", "v1");
    let access = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    for (path, body) in [
        (format!("{reviews}/selfsubjectaccessreviews"), access),
        (format!("{reviews}/selfsubjectrulesreviews"), json!({"spec": {"namespace": "default"}})),
        (format!("{}/selfsubjectreviews", plane.api("authentication", "v1")), json!({})),
    ] {
        carol.post(&path, &body).await.expect(201);
        nobody.post(&path, &body).await.expect(403);
    }
    carol.get("/api/v1/namespaces/default/configmaps").await.expect(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_edit_and_view_roles_grant_only_their_access() {
    let plane = ControlPlane::start(Options::default()).await;
    for (user, role) in [("alice", "admin"), ("bob", "edit"), ("carol", "view")] {
        bind(&plane, user, role).await;
    }
    let core = "/api/v1/namespaces/default";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}});
    plane.admin().post(&format!("{core}/secrets"), &secret).await.expect(201);
    let rbac = format!("{}/namespaces/default", roles(&plane));
    let slices = format!("{}/namespaces/default/endpointslices", plane.api("discovery", "v1"));
    let deployments = "/apis/apps/v1/namespaces/default/deployments".to_owned();
    let named = |name: &str| json!({"metadata": {"name": name}});
    let group = plane.names().group("rbac.authorization");
    let binding = |name: &str| {
        json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "x"}],
               "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"}})
    };
    let allowed = |response: u16| response != 403;

    for user in ["alice", "bob", "carol"] {
        let (client, writes, sees_roles) = (plane.user(user), user != "carol", user == "alice");
        let make = client.post(&format!("{core}/configmaps"), &named(user)).await.status;
        assert_eq!(make, if writes { 201 } else { 403 }, "create config map as {user}");
        assert_eq!(client.get(&format!("{core}/configmaps")).await.status, 200, "list config maps as {user}");
        assert_eq!(client.get(&format!("{core}/pods")).await.status, 200, "list pods as {user}");
        assert_eq!(
            allowed(client.post(&format!("{core}/pods"), &named("p")).await.status),
            writes,
            "create pod as {user}"
        );
        assert_eq!(
            allowed(client.post(&deployments, &named("d")).await.status),
            writes,
            "create deployment as {user}"
        );
        assert_eq!(
            client.get(&format!("{core}/secrets/s")).await.status,
            if writes { 200 } else { 403 },
            "get secret as {user}"
        );
        for (path, resource) in
            [(format!("{rbac}/roles"), "roles"), (format!("{rbac}/rolebindings"), "bindings")]
        {
            assert_eq!(
                client.get(&path).await.status,
                if sees_roles { 200 } else { 403 },
                "list {resource} as {user}"
            );
        }
        let bind = client.post(&format!("{rbac}/rolebindings"), &binding(&format!("by-{user}"))).await.status;
        assert_eq!(bind, if sees_roles { 201 } else { 403 }, "create role binding as {user}");
        for (path, resource) in [
            (format!("{core}/resourcequotas"), "quota"),
            (format!("{core}/endpoints"), "endpoints"),
            (slices.clone(), "slices"),
        ] {
            assert_eq!(client.post(&path, &named("x")).await.status, 403, "create {resource} as {user}");
        }
        assert_eq!(client.put(core, &named("default")).await.status, 403, "update namespace as {user}");
        assert_eq!(client.delete(core).await.status, 403, "delete namespace as {user}");
    }
}

/// Requirement A-DEF-22.
#[tokio::test(flavor = "multi_thread")]
async fn edit_role_creates_updates_and_deletes_deployments_and_config_maps() {
    let plane = ControlPlane::start(Options::default()).await;
    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let objects = [
        ("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})),
        ("/apis/apps/v1/namespaces/default/deployments", deployment),
    ];
    let client = plane.user("bob");
    for (path, object) in &objects {
        assert_eq!(client.post(path, object).await.status, 403, "{path}: create without the role");
    }
    bind(&plane, "bob", "edit").await;
    for (path, object) in &objects {
        let mut stored = client.post(path, object).await.expect(201);
        let one = format!("{path}/{}", stored["metadata"]["name"].as_str().expect("a name"));
        stored["metadata"]["labels"] = json!({"changed": "yes"});
        let updated = client.put(&one, &stored).await.expect(200);
        assert_eq!(updated["metadata"]["labels"]["changed"], "yes", "{path}");
        client.delete(&one).await.expect(200);
        client.get(&one).await.expect(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn labelled_roles_are_aggregated_to_view_edit_and_admin() {
    let plane = ControlPlane::start(Options::default()).await;
    let (admin, base) = (plane.admin(), roles(&plane));
    for (to, joined) in
        [("view", &["view", "edit", "admin"][..]), ("edit", &["edit", "admin"]), ("admin", &["admin"])]
    {
        let rule =
            json!({"apiGroups": ["own.example"], "resources": [format!("for-{to}")], "verbs": ["get"]});
        let role = json!({"metadata": {"name": format!("own-{to}"), "labels": {plane.names().aggregate_to_label(to): "true"}},
                          "rules": [rule]});
        admin.post(&format!("{base}/clusterroles"), &role).await.expect(201);
        for aggregate in ["view", "edit", "admin"] {
            let path = format!("{base}/clusterroles/{aggregate}");
            let has_rule =
                |object: &Value| object["rules"].as_array().is_some_and(|rules| rules.contains(&rule));
            if joined.contains(&aggregate) {
                eventually(&format!("{aggregate} aggregates the rule of {to}"), || async {
                    has_rule(&admin.get(&path).await.json()).then_some(())
                })
                .await;
            } else {
                assert!(
                    !has_rule(&admin.get(&path).await.expect(200)),
                    "{aggregate} does not aggregate the rule of {to}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn monitoring_reads_health_and_metrics() {
    let plane = ControlPlane::start(Options::default()).await;
    let group = plane.names().group("rbac.authorization");
    let binding = json!({"metadata": {"name": "watchman"}, "subjects": [{"kind": "User", "name": "alice"}],
                         "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:monitoring"}});
    plane.admin().post(&format!("{}/clusterrolebindings", roles(&plane)), &binding).await.expect(201);
    let member = plane.certificate("probe", &["system:monitoring"]);
    for path in ["/livez", "/livez/ping", "/readyz", "/readyz/ping", "/healthz", "/healthz/ping", "/metrics"]
    {
        plane.user("alice").get(path).await.expect(200);
        member.get(path).await.expect(200);
    }
    for path in ["/livez/ping", "/metrics"] {
        plane.user("carol").get(path).await.expect(403);
        plane.anonymous().get(path).await.expect(403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_denial_is_logged_at_verbosity_5() {
    let mut lines = Vec::new();
    for flag in ["-v=0", "-v=5", "--v=5"] {
        let plane = ControlPlane::start(Options::default().flag(flag)).await;
        plane.user("carol").get("/api/v1/namespaces").await.expect(403);
        lines.push(
            plane
                .log()
                .lines()
                .filter(|line| line.contains("RBAC: no rule allows the request") && line.contains("carol"))
                .count(),
        );
    }
    assert_eq!(lines[0], 0, "level 0 logs no RBAC denial");
    assert!(lines[1] > 0 && lines[2] > 0, "level 5 logs RBAC denials: {lines:?}");
}

/// The controller owns the rules of aggregated roles, so it applies them with force (requirement D-SSA-29).
#[tokio::test(flavor = "multi_thread")]
async fn aggregated_rules_are_applied_by_force_as_their_controller() {
    const CONTROLLER: &str = "clusterrole-aggregation-controller";
    let audit = AuditLog::new();
    let plane = ControlPlane::start(Options::default().flag(&audit.flag())).await;
    let (admin, base) = (plane.admin(), roles(&plane));
    let sum = json!({
        "metadata": {"name": "sum"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"sum": "yes"}}]},
        "rules": [{"apiGroups": ["example.com"], "resources": ["written"], "verbs": ["get"]}],
    });
    let part = json!({
        "metadata": {"name": "part", "labels": {"sum": "yes"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["aggregated"], "verbs": ["get"]}],
    });
    let path = format!("{base}/clusterroles/sum");
    // Without a part, the controller first removes the written rules with a merge patch.
    for role in [part, sum] {
        admin.post(&format!("{base}/clusterroles"), &role).await.expect(201);
    }
    let role = eventually("the rules are aggregated", || async {
        let role = admin.get(&path).await.expect(200);
        (role["rules"][0]["resources"] == json!(["aggregated"])).then_some(role)
    })
    .await;
    let owners: Vec<&Value> = role["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields")
        .iter()
        .filter(|entry| entry["fieldsV1"].get("f:rules").is_some())
        .collect();
    let [owner] = owners.as_slice() else { panic!("one owner of the rules: {owners:?}") };
    assert_eq!((&owner["manager"], &owner["operation"]), (&json!(CONTROLLER), &json!("Apply")));
    let is_write = |event: &Value| event["objectRef"]["name"] == "sum" && event["verb"] == "patch";
    let event = audit.event("the write of the controller", is_write).await;
    assert_eq!(event["requestURI"], format!("{path}?fieldManager={CONTROLLER}&force=true"));
    assert_eq!(event["userAgent"], format!("apid/{CONTROLLER}"));

    admin.delete(&format!("{base}/clusterroles/part")).await.expect(200);
    eventually("the rules are removed with the last part", || async {
        admin.get(&path).await.expect(200)["rules"].is_null().then_some(())
    })
    .await;
}
