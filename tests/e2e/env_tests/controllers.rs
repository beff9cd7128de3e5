//! Controllers in env tests: none of kube-controller-manager runs unless `--controllers` names it.

use std::time::Duration;

use serde_json::{Value, json};
use tests::harness::{Client, eventually};

use super::assert_no_process;
use super::environment::Environment;

const NAMESPACES: &str = "/api/v1/namespaces";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// Longer than each controller takes for its first write.
const CONTROLLER_TIME: Duration = Duration::from_secs(4);

async fn make_namespace(client: &Client, name: &str) {
    client.post(NAMESPACES, &json!({"metadata": {"name": name}})).await.expect(201);
}

/// Creates one object for each controller: a terminating namespace with content, an object with an invented owner,
/// an object in foreground deletion, a quota, a policy and an aggregated role.
async fn make_work_for_controllers(client: &Client) {
    make_namespace(client, "kept").await;
    make_namespace(client, "ended").await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "invented", "uid": "invented"});
    for (path, object) in [
        (format!("{NAMESPACES}/ended/configmaps"), json!({"metadata": {"name": "content"}})),
        (
            format!("{NAMESPACES}/kept/configmaps"),
            json!({"metadata": {"name": "owned", "ownerReferences": [owner]}}),
        ),
        (format!("{NAMESPACES}/kept/configmaps"), json!({"metadata": {"name": "foreground"}})),
        (
            format!("{NAMESPACES}/kept/resourcequotas"),
            json!({"metadata": {"name": "quota"}, "spec": {"hard": {"count/secrets": "1"}}}),
        ),
        (
            POLICIES.to_owned(),
            json!({"metadata": {"name": "policy"}, "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                }]},
                "validations": [{"expression": "true"}],
            }}),
        ),
        (
            ROLES.to_owned(),
            json!({"metadata": {"name": "part", "labels": {"sum": "yes"}}, "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
            ]}),
        ),
        (
            ROLES.to_owned(),
            json!({"metadata": {"name": "sum"}, "aggregationRule": {
                "clusterRoleSelectors": [{"matchLabels": {"sum": "yes"}}],
            }}),
        ),
        (
            BINDINGS.to_owned(),
            json!({
                "metadata": {"name": "sum"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sum"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "testers"}],
            }),
        ),
    ] {
        client.post(&path, &object).await.expect(201);
    }
    let foreground = format!("{NAMESPACES}/kept/configmaps/foreground?propagationPolicy=Foreground");
    client.delete(&foreground).await.expect(200);
    client.delete(&format!("{NAMESPACES}/ended")).await.expect(200);
}

/// The names of the ServiceAccounts of all namespaces.
async fn account_names(client: &Client) -> Vec<Value> {
    let list = client.get("/api/v1/serviceaccounts").await.expect(200);
    let items = list["items"].as_array().expect("items").iter();
    items.map(|account| account["metadata"]["name"].clone()).collect()
}

/// Removes the finalizer `kubernetes` as the clean-up helper of controller-runtime does.
async fn finalize(client: &Client, name: &str) {
    let path = format!("{NAMESPACES}/{name}");
    let mut namespace = client.get(&path).await.expect(200);
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    namespace["spec"]["finalizers"] = json!([]);
    let finalized = client.put(&format!("{path}/finalize"), &namespace).await.expect(200);
    assert_eq!(finalized["metadata"]["name"], name);
    assert_eq!(finalized["spec"]["finalizers"], Value::Null);
    client.get(&path).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_runs_no_controller_of_the_controller_manager() {
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::start(folder.path()).await;
    let admin = environment.admin().client();
    let tester = environment.add_user("tester", "testers").client();
    make_work_for_controllers(&admin).await;
    tokio::time::sleep(CONTROLLER_TIME).await;

    let namespace = admin.get(&format!("{NAMESPACES}/ended")).await.expect(200);
    assert_eq!(namespace["status"], json!({"phase": "Terminating"}));
    admin.get(&format!("{NAMESPACES}/ended/configmaps/content")).await.expect(200);
    assert_eq!(account_names(&admin).await, Vec::<Value>::new());
    admin.get(&format!("{NAMESPACES}/kept/configmaps/owned")).await.expect(200);
    let foreground = admin.get(&format!("{NAMESPACES}/kept/configmaps/foreground")).await.expect(200);
    assert_eq!(foreground["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let maps = admin.get(&format!("{NAMESPACES}/kept/configmaps")).await.expect(200);
    assert_eq!(maps["items"].as_array().expect("items").len(), 2, "no kube-root-ca.crt: {maps}");
    let quota = admin.get(&format!("{NAMESPACES}/kept/resourcequotas/quota")).await.expect(200);
    assert!(quota["status"]["hard"].is_null(), "{quota}");
    // A quota without status limits nothing yet.
    let secret = json!({"metadata": {"name": "s"}});
    admin.post(&format!("{NAMESPACES}/kept/secrets"), &secret).await.expect(201);
    let policy = admin.get(&format!("{POLICIES}/policy")).await.expect(200);
    assert!(policy["status"]["typeChecking"].is_null(), "{policy}");
    assert!(admin.get(&format!("{ROLES}/sum")).await.expect(200)["rules"].is_null());
    assert!(admin.get(&format!("{ROLES}/admin")).await.expect(200)["rules"].is_null());
    tester.get("/api/v1/nodes").await.expect(403);

    finalize(&admin, "ended").await;
    // The content of the namespace stays, because no controller deletes it.
    make_namespace(&admin, "ended").await;
    admin.get(&format!("{NAMESPACES}/ended/configmaps/content")).await.expect(200);
    environment.stop().await;
    assert_no_process(folder.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn env_test_runs_the_controllers_that_its_flag_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = &[("controllers", "namespace,serviceaccount-controller,clusterrole-aggregation")];
    let environment = Environment::start_with(folder.path(), flags).await;
    let admin = environment.admin().client();
    let tester = environment.add_user("tester", "testers").client();
    make_work_for_controllers(&admin).await;

    admin.wait_until_deleted(&format!("{NAMESPACES}/ended")).await;
    eventually("the namespace has its account", || async {
        let account = admin.get(&format!("{NAMESPACES}/kept/serviceaccounts/default")).await;
        (account.status == 200).then_some(())
    })
    .await;
    eventually("the role is aggregated", || async {
        (tester.get("/api/v1/nodes").await.status == 200).then_some(())
    })
    .await;
    eventually("the rules are written", || async {
        let role = admin.get(&format!("{ROLES}/sum")).await.expect(200);
        (role["rules"][0]["resources"] == json!(["nodes"])).then_some(())
    })
    .await;
    tokio::time::sleep(CONTROLLER_TIME).await;
    let quota = admin.get(&format!("{NAMESPACES}/kept/resourcequotas/quota")).await.expect(200);
    assert!(quota["status"]["hard"].is_null(), "the quota controller is not named: {quota}");
    admin.get(&format!("{NAMESPACES}/kept/configmaps/owned")).await.expect(200);
    environment.stop().await;
    assert_no_process(folder.path()).await;
}
