//! RBAC end to end: rules, subjects and scopes of bindings, escalation checks, request attributes.
//!
//! Requirements A-RBAC, A-AZD-23 to 31, A-DEF-56 to 60.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, TestResponse, eventually};

pub(crate) const MERGE: &str = "application/merge-patch+json";

/// A control plane with the same fixture objects in the namespaces `a` and `b`.
pub(crate) struct RbacFixture {
    pub(crate) plane: ControlPlane,
    pub(crate) admin: Client,
    rbac: String,
    group: String,
}

impl RbacFixture {
    pub(crate) async fn start() -> RbacFixture {
        let plane = ControlPlane::start(Options::kubernetes()).await;
        let fixture = RbacFixture {
            admin: plane.admin(),
            rbac: plane.api("rbac.authorization", "v1"),
            group: plane.names().group("rbac.authorization"),
            plane,
        };
        for namespace in ["a", "b"] {
            let core = format!("/api/v1/namespaces/{namespace}");
            let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let scaled = json!({"selector": {"matchLabels": {"app": "x"}}, "template": template});
            let mut set = scaled.clone();
            set["serviceName"] = "x".into();
            fixture.create("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
            for (collection, object) in [
                (format!("{core}/configmaps"), json!({"metadata": {"name": "x"}})),
                (format!("{core}/configmaps"), json!({"metadata": {"name": "y"}})),
                (format!("{core}/secrets"), json!({"metadata": {"name": "x"}})),
                (format!("{core}/serviceaccounts"), json!({"metadata": {"name": "x"}})),
                (
                    format!("{core}/pods"),
                    json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
                ),
                (
                    format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
                    json!({"metadata": {"name": "x"}, "spec": scaled}),
                ),
                (
                    format!("/apis/apps/v1/namespaces/{namespace}/statefulsets"),
                    json!({"metadata": {"name": "x"}, "spec": set}),
                ),
            ] {
                fixture.create(&collection, object).await;
            }
        }
        fixture
    }

    pub(crate) async fn create(&self, collection: &str, object: Value) -> Value {
        self.admin.post(collection, &object).await.expect(201)
    }

    pub(crate) fn user(&self, name: &str) -> Value {
        json!({"kind": "User", "apiGroup": self.group, "name": name})
    }

    pub(crate) fn binding(&self, name: &str, kind: &str, role: &str, subjects: Value) -> Value {
        json!({"metadata": {"name": name}, "subjects": subjects,
               "roleRef": {"apiGroup": self.group, "kind": kind, "name": role}})
    }

    pub(crate) fn roles(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/roles", self.rbac)
    }

    pub(crate) fn bindings(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/rolebindings", self.rbac)
    }

    pub(crate) fn cluster(&self, resource: &str) -> String {
        format!("{}/{resource}", self.rbac)
    }

    /// Creates a Role and a RoleBinding in a namespace for one user, both with the name of the user.
    pub(crate) async fn grant(&self, namespace: &str, user: &str, rules: Value) {
        self.create(&self.roles(namespace), json!({"metadata": {"name": user}, "rules": rules})).await;
        let binding = self.binding(user, "Role", user, json!([self.user(user)]));
        self.create(&self.bindings(namespace), binding).await;
    }

    /// Creates a ClusterRole and a ClusterRoleBinding for one user, both with the name of the user.
    pub(crate) async fn grant_cluster(&self, user: &str, rules: Value) {
        let role = json!({"metadata": {"name": user}, "rules": rules});
        self.create(&self.cluster("clusterroles"), role).await;
        let binding = self.binding(user, "ClusterRole", user, json!([self.user(user)]));
        self.create(&self.cluster("clusterrolebindings"), binding).await;
    }

    pub(crate) fn client(&self, user: &str) -> Client {
        self.plane.certificate(user, &[])
    }
}

pub(crate) fn rule(groups: &[&str], resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// Sends a request `METHOD path`.
///
/// `:rest` is a path in the namespace in the core group, `apps:rest` one in `apps`.
async fn send_request(client: &Client, request: &str, namespace: &str) -> TestResponse {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let path = match path.split_once(':') {
        Some(("", rest)) => format!("/api/v1/namespaces/{namespace}/{rest}"),
        Some((group, rest)) if !group.starts_with('/') => {
            format!("/apis/{group}/v1/namespaces/{namespace}/{rest}")
        }
        _ => path.to_owned(),
    };
    match method {
        "POST" => client.post(&path, &json!({"metadata": {"generateName": "new-"}})).await,
        "PUT" => client.put(&path, &json!({"metadata": {"name": "x"}, "data": {"put": "1"}})).await,
        "PATCH" => client.patch(&path, MERGE, &json!({"data": {"patched": "1"}})).await,
        method => client.request(method, &path, &[], b"").await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_rule_covers_only_its_groups_resources_names_and_verbs() {
    let fixture = RbacFixture::start().await;
    let get = &["get"][..];
    let table: &[(&str, Value, &[&str], &[&str])] = &[
        (
            "groups",
            rule(&["apps"], &["*"], &[], &["list"]),
            &["GET apps:deployments"],
            &["GET :pods", "GET apps:deployments/x"],
        ),
        (
            "resources",
            rule(&[""], &["pods"], &[], &["list"]),
            &["GET :pods"],
            &["GET :services", "GET :secrets"],
        ),
        (
            "names",
            rule(&[""], &["configmaps"], &["x"], &["get", "list", "create", "deletecollection", "update"]),
            &["GET :configmaps/x", "GET :configmaps?fieldSelector=metadata.name=x", "PUT :configmaps/x"],
            &[
                "GET :configmaps/y",
                "GET :configmaps",
                "POST :configmaps",
                "DELETE :configmaps",
                "GET :configmaps?fieldSelector=metadata.name=y",
            ],
        ),
        (
            "no-names",
            rule(&[""], &["configmaps"], &[], get),
            &["GET :configmaps/x", "GET :configmaps/y"],
            &["GET :configmaps"],
        ),
        ("part", rule(&[""], &["pods/status"], &[], get), &["GET :pods/x/status"], &["GET :pods/x"]),
        (
            "whole",
            rule(&[""], &["pods"], &[], get),
            &["GET :pods/x"],
            &["GET :pods/x/status", "GET :pods/x/log"],
        ),
        (
            "all-resources",
            rule(&[""], &["*"], &[], get),
            &["GET :pods/x", "GET :secrets/x", "GET :pods/x/status"],
            &["GET apps:deployments/x", "GET /healthz/ping"],
        ),
        (
            "all-groups",
            rule(&["*"], &["pods", "deployments"], &[], get),
            &["GET :pods/x", "GET apps:deployments/x"],
            &["GET :secrets/x"],
        ),
        (
            "all-verbs",
            rule(&[""], &["configmaps"], &[], &["*"]),
            &[
                "GET :configmaps",
                "GET :configmaps/x",
                "POST :configmaps",
                "PUT :configmaps/x",
                "PATCH :configmaps/x",
                "DELETE :configmaps?labelSelector=no%3Dsuch",
            ],
            &["GET :pods"],
        ),
        (
            "scales",
            rule(&["apps"], &["*/scale"], &[], get),
            &["GET apps:deployments/x/scale", "GET apps:statefulsets/x/scale"],
            &["GET apps:deployments/x", "GET apps:deployments/x/status"],
        ),
        (
            "create",
            rule(&[""], &["configmaps"], &[], &["create"]),
            &["POST :configmaps"],
            &["GET :configmaps", "PUT :configmaps/x"],
        ),
        (
            "get",
            rule(&[""], &["configmaps"], &[], get),
            &["GET :configmaps/x", "HEAD :configmaps/x"],
            &["GET :configmaps", "HEAD :configmaps"],
        ),
        (
            "list",
            rule(&[""], &["configmaps"], &[], &["list"]),
            &["GET :configmaps", "HEAD :configmaps"],
            &["GET :configmaps/x", "GET :configmaps?watch=1"],
        ),
        (
            "watch",
            rule(&[""], &["configmaps"], &[], &["watch"]),
            &["GET :configmaps?watch=1&timeoutSeconds=1"],
            &["GET :configmaps"],
        ),
        (
            "update",
            rule(&[""], &["configmaps"], &[], &["update"]),
            &["PUT :configmaps/x"],
            &["PATCH :configmaps/x", "POST :configmaps"],
        ),
        (
            "patch",
            rule(&[""], &["configmaps"], &[], &["patch"]),
            &["PATCH :configmaps/x"],
            &["PUT :configmaps/x"],
        ),
        (
            "delete",
            rule(&[""], &["configmaps"], &[], &["delete"]),
            &["DELETE :configmaps/y"],
            &["DELETE :configmaps"],
        ),
        (
            "deletecollection",
            rule(&[""], &["configmaps"], &[], &["deletecollection"]),
            &["DELETE :configmaps?labelSelector=no%3Dsuch"],
            &["DELETE :configmaps/x"],
        ),
        ("case", rule(&[""], &["Pods"], &[], &["GET", "List"]), &[], &["GET :pods", "GET :pods/x"]),
        ("empty", rule(&[""], &["pods"], &[], &["proxy", "redirect"]), &[], &["GET :pods", "GET :pods/x"]),
    ];
    for (user, rule, allowed, refused) in table {
        fixture.grant("a", user, json!([rule])).await;
        let client = fixture.client(user);
        for request in *allowed {
            let answer = send_request(&client, request, "a").await;
            assert!(answer.status < 300, "{user}: {request}: {} {}", answer.status, answer.text());
            assert_eq!(
                send_request(&client, request, "b").await.status,
                403,
                "{user}: {request} in another namespace"
            );
        }
        for request in *refused {
            assert_eq!(send_request(&client, request, "a").await.status, 403, "{user}: {request}");
        }
    }
    // Verbs without a request, such as `proxy`, are still granted in access reviews.
    for verb in ["proxy", "redirect"] {
        let attributes = json!({"namespace": "a", "resource": "pods", "name": "x", "verb": verb});
        let review = json!({"spec": {"user": "empty", "resourceAttributes": attributes}});
        let path = format!("{}/subjectaccessreviews", fixture.plane.api("authorization", "v1"));
        let answer = fixture.admin.post(&path, &review).await.expect(201);
        assert_eq!(answer["status"]["allowed"], true, "{verb}");
    }
    let unbound_user = fixture.client("nobody");
    for request in ["GET :pods", "GET :configmaps/x", "POST :configmaps", "GET /metrics"] {
        assert_eq!(send_request(&unbound_user, request, "a").await.status, 403, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn non_resource_urls_are_granted_by_cluster_roles_only() {
    let fixture = RbacFixture::start().await;
    for (user, urls, allowed, refused) in [
        (
            "one",
            json!(["/metrics"]),
            &["GET /metrics"][..],
            &["GET /metrics/x", "GET /healthz/ping", "POST /metrics"][..],
        ),
        ("below", json!(["/healthz/*"]), &["GET /healthz/ping"], &["GET /metrics", "GET /livez/ping"]),
        ("all", json!(["*"]), &["GET /metrics", "GET /livez/ping"], &["GET /api/v1/nodes"]),
    ] {
        let rule = json!({"nonResourceURLs": urls, "verbs": ["get"]});
        fixture.grant_cluster(user, json!([rule])).await;
        let client = fixture.client(user);
        for request in allowed {
            assert_eq!(send_request(&client, request, "a").await.status, 200, "{user}: {request}");
        }
        for request in refused {
            let status = send_request(&client, request, "a").await.status;
            assert!(
                [403, 404].contains(&status) && (status == 403 || *request == "GET /metrics/x"),
                "{user}: {request}: {status}"
            );
        }
        let path = if user == "all" { "*" } else { "/metrics" };
        let role =
            json!({"metadata": {"name": "paths"}, "rules": [{"nonResourceURLs": [path], "verbs": ["get"]}]});
        fixture.admin.post(&fixture.roles("a"), &role).await.expect(422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_grants_only_its_subjects_in_its_scope() {
    let fixture = RbacFixture::start().await;
    let read = json!([rule(&[""], &["configmaps"], &[], &["get"]), rule(&[""], &["nodes"], &[], &["list"])]);
    let role = json!({"metadata": {"name": "read"}, "rules": read});
    fixture.create(&fixture.cluster("clusterroles"), role.clone()).await;
    fixture.create(&fixture.roles("a"), role).await;
    let mut clients = std::collections::HashMap::from([
        ("jane", fixture.plane.certificate("jane", &["dev"])),
        ("JANE", fixture.plane.certificate("JANE", &["DEV"])),
        ("odd", fixture.plane.certificate("oidc:1234", &["any string"])),
        ("mail", fixture.plane.certificate("jane@example.com", &[])),
        ("anonymous", fixture.plane.anonymous()),
    ]);
    let default = "/api/v1/namespaces/a/serviceaccounts/default";
    eventually("the default service account exists", || async {
        (fixture.admin.get(default).await.status == 200).then_some(())
    })
    .await;
    // A pod without a service account gets the default one.
    let pod = fixture.admin.get("/api/v1/namespaces/a/pods/x").await.expect(200);
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    let bound = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "x", "uid": pod["metadata"]["uid"]}});
    for (name, namespace, account, spec) in
        [("a:x", "a", "x", json!({})), ("b:x", "b", "x", json!({})), ("a:default", "a", "default", bound)]
    {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let issued = fixture.admin.post(&path, &json!({"spec": spec})).await.expect(201);
        clients.insert(name, fixture.plane.token(issued["status"]["token"].as_str().expect("a token")));
    }
    // `CLIENT TARGET`: the client reads a ConfigMap in namespace `a` or `b`, or lists the cluster's
    // nodes.
    let status = async |target: &str| {
        let (client_name, target_object) = target.split_once(' ').expect("a client and a target");
        let (request, namespace) = match target_object {
            "here" => ("GET :configmaps/x", "a"),
            "there" => ("GET :configmaps/x", "b"),
            _ => ("GET /api/v1/nodes", ""),
        };
        send_request(&clients[client_name], request, namespace).await.status
    };
    let (user, group) = (
        |name: &str| fixture.user(name),
        |name: &str| json!({"kind": "Group", "apiGroup": fixture.group, "name": name}),
    );
    let account = |name: &str| json!({"kind": "ServiceAccount", "namespace": "a", "name": name});
    // The subject; a Role, a ClusterRole in the namespace, or one cluster-wide; permitted and forbidden
    // requests.
    for (subject, to, may, may_not) in [
        (
            user("jane"),
            "Role",
            &["jane here"][..],
            &["jane there", "jane nodes", "JANE here", "odd here"][..],
        ),
        (user("jane"), "ClusterRole", &["jane here"], &["jane there", "jane nodes", "JANE here"]),
        (user("jane"), "everywhere", &["jane here", "jane there", "jane nodes"], &["JANE here"]),
        (user("oidc:1234"), "Role", &["odd here"], &["jane here"]),
        (user("jane@example.com"), "Role", &["mail here"], &["jane here"]),
        (user("system:serviceaccount:a:x"), "Role", &["a:x here"], &["b:x here", "jane here"]),
        (group("dev"), "Role", &["jane here"], &["JANE here", "odd here"]),
        (group("any string"), "Role", &["odd here"], &["jane here"]),
        (group("system:serviceaccounts:a"), "Role", &["a:x here"], &["b:x here", "jane here"]),
        (group("system:serviceaccounts"), "everywhere", &["a:x here", "b:x there"], &["jane here"]),
        (group("system:authenticated"), "Role", &["b:x here", "odd here"], &["anonymous here"]),
        (group("system:unauthenticated"), "Role", &["anonymous here"], &["jane here"]),
        (account("default"), "Role", &["a:default here"], &["a:x here", "b:x here"]),
        (account("x"), "everywhere", &["a:x here", "a:x there", "a:x nodes"], &["b:x here", "jane here"]),
    ] {
        let all = || may.iter().chain(may_not);
        for target in all() {
            assert_eq!(status(target).await, 403, "{subject}, {to}: {target}, before");
        }
        let (collection, kind) = match to {
            "everywhere" => (fixture.cluster("clusterrolebindings"), "ClusterRole"),
            kind => (fixture.bindings("a"), kind),
        };
        fixture.create(&collection, fixture.binding("b", kind, "read", json!([subject]))).await;
        for target in may {
            assert_eq!(status(target).await, 200, "{subject}, {to}: {target}");
        }
        for target in may_not {
            assert_eq!(status(target).await, 403, "{subject}, {to}: {target}");
        }
        fixture.admin.delete(&format!("{collection}/b")).await.expect(200);
        for target in all() {
            assert_eq!(status(target).await, 403, "{subject}, {to}: {target}, after");
        }
    }
    // A service account without bindings may read discovery documents only.
    assert_eq!(send_request(&clients["a:x"], "GET /apis", "").await.status, 200);
}

/// The fields in the causes of a 422 response.
fn fields(answer: &TestResponse) -> Vec<String> {
    let causes = answer.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.iter().map(|cause| cause["field"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_objects_are_stored_and_invalid_ones_return_422() {
    let fixture = RbacFixture::start().await;
    let resources = fixture.admin.get(&fixture.rbac).await.expect(200);
    for (resource, namespaced) in
        [("roles", true), ("clusterroles", false), ("rolebindings", true), ("clusterrolebindings", false)]
    {
        let listed = resources["resources"].as_array().expect("resources");
        let found = listed.iter().find(|finalized| finalized["name"] == resource).expect("it is listed");
        assert_eq!(found["namespaced"], namespaced, "{resource}");
    }
    let (roles, bindings) = (fixture.roles("a"), fixture.bindings("a"));
    let (cluster_roles, cluster_bindings) =
        (fixture.cluster("clusterroles"), fixture.cluster("clusterrolebindings"));
    let rules =
        json!([rule(&[""], &["pods"], &[], &["get"]), rule(&["apps"], &["*"], &["x"], &["list", "watch"])]);
    let subjects = json!([fixture.user("jane"), {"kind": "ServiceAccount", "namespace": "b", "name": "x"}]);
    let aggregated = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    for (collection, object, kept) in [
        (&roles, json!({"metadata": {"name": "a:b"}, "rules": rules}), "rules"),
        (&cluster_roles, json!({"metadata": {"name": "a:b"}, "rules": rules}), "rules"),
        (&cluster_roles, aggregated, "aggregationRule"),
        (&bindings, fixture.binding("a:b", "Role", "nosuch", subjects.clone()), "subjects"),
        (&cluster_bindings, fixture.binding("a:b", "ClusterRole", "nosuch", subjects), "subjects"),
    ] {
        fixture.create(collection, object.clone()).await;
        let name = object["metadata"]["name"].as_str().expect("a name");
        let read = fixture.admin.get(&format!("{collection}/{name}")).await.expect(200);
        assert_eq!(read[kept], object[kept], "{collection}");
        let namespace = if collection.contains("/namespaces/") { json!("a") } else { Value::Null };
        assert_eq!(read["metadata"]["namespace"], namespace, "{collection}");
        if kept == "subjects" {
            assert_eq!(read["roleRef"], object["roleRef"], "{collection}");
        }
    }
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let bound = |change: &dyn Fn(&mut Value)| {
        let mut binding = fixture.binding("w", "ClusterRole", "view", json!([fixture.user("jane")]));
        change(&mut binding);
        binding
    };
    let mut refused = vec![
        (&roles, json!({"rules": []}), "metadata.name"),
        (&cluster_roles, json!({"rules": []}), "metadata.name"),
        (
            &roles,
            role("w", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": []}])),
            "rules[0].verbs",
        ),
        (&roles, role("w", json!([{"apiGroups": [""], "verbs": ["get"]}])), "rules[0].resources"),
        (&roles, role("w", json!([{"resources": ["pods"], "verbs": ["get"]}])), "rules[0].apiGroups"),
        (
            &roles,
            role("w", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])),
            "rules[0].nonResourceURLs",
        ),
        (&bindings, bound(&|b| drop(b.as_object_mut().unwrap().remove("roleRef"))), "roleRef.kind"),
        (&cluster_bindings, bound(&|b| drop(b.as_object_mut().unwrap().remove("roleRef"))), "roleRef.kind"),
        (&cluster_bindings, bound(&|b| b["roleRef"]["kind"] = "Role".into()), "roleRef.kind"),
        (&bindings, bound(&|b| b["roleRef"]["kind"] = "Foo".into()), "roleRef.kind"),
        (&bindings, bound(&|b| b["roleRef"]["apiGroup"] = "example.com".into()), "roleRef.apiGroup"),
        (&bindings, bound(&|b| b["roleRef"]["name"] = "".into()), "roleRef.name"),
        (&bindings, bound(&|b| b["subjects"][0]["apiGroup"] = "example.com".into()), "subjects[0].apiGroup"),
        (&bindings, bound(&|b| b["subjects"][0]["kind"] = "Robot".into()), "subjects[0].kind"),
        (
            &cluster_bindings,
            bound(&|b| b["subjects"][0] = json!({"kind": "ServiceAccount", "name": "x"})),
            "subjects[0].namespace",
        ),
    ];
    for name in ["a/b", ".", "..", "a%b"] {
        refused.push((&roles, role(name, json!([])), "metadata.name"));
        refused.push((&cluster_bindings, bound(&|b| b["metadata"]["name"] = name.into()), "metadata.name"));
    }
    for (collection, object, field) in refused {
        let answer = fixture.admin.post(collection, &object).await;
        assert_eq!(answer.status, 422, "{object}: {}", answer.text());
        assert!(
            fields(&answer).iter().any(|found| found == field),
            "{object}: the causes {:?} lack {field}",
            fields(&answer)
        );
    }
    // User and Group subjects default to the RBAC API group.
    let bare = fixture.binding("bare", "ClusterRole", "view", json!([{"kind": "Group", "name": "dev"}]));
    let made = fixture.create(&bindings, bare).await;
    assert_eq!(made["subjects"][0]["apiGroup"], fixture.group.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_role_ref_is_immutable_until_recreated() {
    let fixture = RbacFixture::start().await;
    for (name, resource) in [("maps", "configmaps"), ("secrets", "secrets")] {
        let rules = json!([rule(&[""], &[resource], &[], &["get"])]);
        fixture.create(&fixture.roles("a"), json!({"metadata": {"name": name}, "rules": rules})).await;
    }
    let (jane, bindings) = (fixture.client("jane"), fixture.bindings("a"));
    let binding_to_role = |role: &str| fixture.binding("b", "Role", role, json!([fixture.user("jane")]));
    let may = async |maps: u16, secrets: u16| {
        let got = (
            send_request(&jane, "GET :configmaps/x", "a").await.status,
            send_request(&jane, "GET :secrets/x", "a").await.status,
        );
        assert_eq!(got, (maps, secrets));
    };
    fixture.create(&bindings, binding_to_role("maps")).await;
    may(200, 403).await;
    let answer = fixture.admin.put(&format!("{bindings}/b"), &binding_to_role("secrets")).await;
    assert_eq!((answer.status, fields(&answer)), (422, vec!["roleRef".to_owned()]), "{}", answer.text());
    assert!(answer.text().contains("cannot change roleRef"), "{}", answer.text());
    may(200, 403).await;
    fixture.admin.delete(&format!("{bindings}/b")).await.expect(200);
    may(403, 403).await;
    fixture.create(&bindings, binding_to_role("secrets")).await;
    may(403, 200).await;
    // Permissions of two bindings are added.
    let mut second = binding_to_role("maps");
    second["metadata"]["name"] = "c".into();
    fixture.create(&bindings, second).await;
    may(200, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_cannot_grant_permissions_not_held_without_escalate_or_bind() {
    let fixture = RbacFixture::start().await;
    let group = fixture.group.as_str();
    let all = &["get", "create", "update", "patch", "delete"][..];
    let writer = rule(&[group], &["roles", "rolebindings", "clusterroles", "clusterrolebindings"], &[], all);
    let pods = rule(&[""], &["pods"], &[], &["get"]);
    let secrets = rule(&[""], &["secrets"], &[], &["get"]);
    let special = |verb: &str, resource: &str, names: &[&str]| rule(&[group], &[resource], names, &[verb]);
    // Every user may write roles and bindings and read pods; further rules apply in `a` or cluster-wide.
    for (user, everywhere, more) in [
        ("plain", false, vec![]),
        ("escalator", false, vec![special("escalate", "roles", &[])]),
        ("one-escalator", false, vec![special("escalate", "roles", &["held"])]),
        ("binder", false, vec![special("bind", "roles", &["big"])]),
        ("cluster-plain", true, vec![]),
        ("cluster-escalator", true, vec![special("escalate", "clusterroles", &[])]),
        ("cluster-binder", true, vec![special("bind", "clusterroles", &["big"])]),
    ] {
        let mut rules = vec![writer.clone(), pods.clone()];
        rules.extend(more);
        if everywhere {
            fixture.grant_cluster(user, json!(rules)).await
        } else {
            fixture.grant("a", user, json!(rules)).await
        }
    }
    for collection in [fixture.roles("a"), fixture.cluster("clusterroles")] {
        fixture.create(&collection, json!({"metadata": {"name": "big"}, "rules": [secrets]})).await;
        fixture.create(&collection, json!({"metadata": {"name": "held"}, "rules": [pods]})).await;
    }
    let role = |rules: &[&Value]| json!({"metadata": {"name": "new"}, "rules": rules});
    let binding = |kind: &str, role: &str| fixture.binding("new", kind, role, json!([fixture.user("joe")]));
    let (roles, bindings) = (fixture.roles("a"), fixture.bindings("a"));
    let (cluster_roles, cluster_bindings) =
        (fixture.cluster("clusterroles"), fixture.cluster("clusterrolebindings"));
    let star = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    for (user, collection, object, want) in [
        ("plain", &roles, role(&[&pods]), 201),
        ("plain", &roles, role(&[]), 201),
        ("plain", &roles, role(&[&secrets]), 403),
        ("plain", &roles, role(&[&pods, &secrets]), 403),
        ("plain", &roles, role(&[&star]), 403),
        ("plain", &bindings, binding("Role", "held"), 201),
        ("plain", &bindings, binding("Role", "big"), 403),
        ("plain", &bindings, binding("ClusterRole", "big"), 403),
        ("plain", &bindings, binding("ClusterRole", "cluster-admin"), 403),
        ("plain", &bindings, binding("Role", "no-such-role"), 404),
        ("plain", &cluster_roles, role(&[&pods]), 403),
        ("escalator", &roles, role(&[&secrets]), 201),
        ("escalator", &bindings, binding("Role", "big"), 403),
        ("one-escalator", &roles, role(&[&secrets]), 403),
        ("binder", &bindings, binding("Role", "big"), 201),
        ("binder", &bindings, binding("ClusterRole", "big"), 403),
        ("binder", &roles, role(&[&secrets]), 403),
        ("cluster-plain", &cluster_roles, role(&[&pods]), 201),
        ("cluster-plain", &cluster_roles, role(&[&secrets]), 403),
        ("cluster-plain", &cluster_bindings, binding("ClusterRole", "held"), 201),
        ("cluster-plain", &cluster_bindings, binding("ClusterRole", "big"), 403),
        ("cluster-plain", &bindings, binding("ClusterRole", "held"), 201),
        ("cluster-escalator", &cluster_roles, role(&[&secrets]), 201),
        ("cluster-escalator", &roles, role(&[&secrets]), 403),
        ("cluster-binder", &cluster_bindings, binding("ClusterRole", "big"), 201),
        ("cluster-binder", &bindings, binding("ClusterRole", "big"), 201),
        ("cluster-binder", &bindings, binding("Role", "big"), 403),
    ] {
        let answer = fixture.client(user).post(collection, &object).await;
        assert_eq!(answer.status, want, "{user} creates {object} in {collection}: {}", answer.text());
        if want == 201 {
            fixture.admin.delete(&format!("{collection}/new")).await.expect(200);
        }
    }
    // Updates need all permissions of the new role as well, except for updates of metadata for garbage
    // collection.
    fixture.create(&roles, role(&[&secrets])).await;
    fixture.create(&bindings, binding("Role", "big")).await;
    let more_subjects =
        fixture.binding("new", "Role", "big", json!([fixture.user("joe"), fixture.user("plain")]));
    let labels = json!({"metadata": {"name": "new", "labels": {"a": "b"}}, "rules": [secrets]});
    let finalized =
        json!({"metadata": {"name": "new", "finalizers": ["example.com/held"]}, "rules": [secrets]});
    let released = role(&[&secrets]);
    for (user, collection, object, want) in [
        ("plain", &roles, role(&[&secrets, &star]), 403),
        ("plain", &roles, labels, 403),
        ("plain", &roles, finalized, 200),
        ("plain", &roles, released, 200),
        ("escalator", &roles, role(&[&secrets, &star]), 200),
        ("plain", &roles, role(&[&pods]), 200),
        ("plain", &bindings, more_subjects.clone(), 403),
        ("binder", &bindings, more_subjects, 200),
    ] {
        let answer = fixture.client(user).put(&format!("{collection}/new"), &object).await;
        assert_eq!(answer.status, want, "{user} changes to {object} in {collection}: {}", answer.text());
    }
    // The check also covers patches of one's own role, aggregation rules, and aggregation labels.
    let mine = format!("{roles}/plain");
    let answer = fixture.client("plain").patch(&mine, MERGE, &json!({"rules": [star]})).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let answer = fixture.client("cluster-plain").post(&cluster_roles, &sum).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    let into_admin = fixture.plane.names().aggregate_to_label("admin");
    let labelled = json!({"metadata": {"name": "new", "labels": {into_admin: "true"}}, "rules": [secrets]});
    let answer = fixture.client("cluster-plain").post(&cluster_roles, &labelled).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_cluster_role_has_rules_of_selected_roles() {
    let fixture = RbacFixture::start().await;
    let cluster_roles = fixture.cluster("clusterroles");
    let part = |name: &str, resource: &str, label: &str| json!({"metadata": {"name": name, "labels": {"part": label}}, "rules": [rule(&[""], &[resource], &[], &["get"])]});
    let holds = async |want: &[&str]| {
        eventually("the aggregated rules are updated", || async {
            let finalized = fixture.admin.get(&format!("{cluster_roles}/sum")).await.expect(200);
            let rules = finalized["rules"].as_array().cloned().unwrap_or_default();
            let mut found: Vec<String> = rules
                .iter()
                .map(|rule| rule["resources"][0].as_str().unwrap_or_default().to_owned())
                .collect();
            found.sort();
            (found == want).then_some(())
        })
        .await;
    };
    fixture.create(&cluster_roles, part("one", "pods", "yes")).await;
    let selectors = json!([{"matchLabels": {"part": "yes"}}, {"matchLabels": {"part": "too"}}]);
    let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []});
    fixture.create(&cluster_roles, sum).await;
    holds(&["pods"]).await;
    fixture.create(&cluster_roles, part("two", "secrets", "too")).await;
    fixture.create(&cluster_roles, part("three", "nodes", "no")).await;
    holds(&["pods", "secrets"]).await;
    let mut written = fixture.admin.get(&format!("{cluster_roles}/sum")).await.expect(200);
    written["rules"] = json!([rule(&[""], &["services"], &[], &["get"])]);
    fixture.admin.put(&format!("{cluster_roles}/sum"), &written).await.expect(200);
    holds(&["pods", "secrets"]).await;
    fixture.admin.delete(&format!("{cluster_roles}/one")).await.expect(200);
    holds(&["secrets"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn create_on_update_requires_both_verbs_and_pod_binding_its_own() {
    let fixture = RbacFixture::start().await;
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}});
    for (user, verbs, want) in [("updates", &["update"][..], 403), ("both", &["update", "create"], 201)] {
        fixture.grant("a", user, json!([rule(&["coordination.k8s.io"], &["leases"], &[], verbs)])).await;
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/a/leases/{user}");
        let answer = fixture.client(user).put(&path, &lease(user)).await;
        assert_eq!(answer.status, want, "{user}: {}", answer.text());
    }
    // In the default policy, the scheduler may bind pods but not update them.
    let scheduler = fixture.client("system:kube-scheduler");
    let binding = json!({"metadata": {"name": "x"}, "target": {"kind": "Node", "name": "n"}});
    scheduler.post("/api/v1/namespaces/a/pods/x/binding", &binding).await.expect(201);
    let bound = scheduler.get("/api/v1/namespaces/a/pods/x").await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    scheduler.put("/api/v1/namespaces/a/pods/x", &bound).await.expect(403);
}
