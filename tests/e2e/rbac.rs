//! Escalation checks of RBAC end to end (A-RBAC-56 to 64), and the fixture of other tests of authorization.
//!
//! `authd/src/rules` tests rules, subjects and scopes of bindings; `apid/kinds` tests the validation of the objects.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

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
