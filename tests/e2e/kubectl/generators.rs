//! Objects that kubectl generates from command-line arguments.

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_generates_objects() {
    with_each_release(generate_objects).await;
}

/// Command line, object name, and expected values at JSON pointers.
type Generated = (&'static str, &'static str, Vec<(&'static str, Value)>);

fn generated() -> Vec<Generated> {
    vec![
        ("create namespace mill", "namespace/mill", vec![("/status/phase", json!("Active"))]),
        (
            "create deployment web -n mill --image=web:1 --replicas=2 --port=8080",
            "deployment.apps/web",
            vec![
                ("/spec/replicas", json!(2)),
                ("/spec/selector/matchLabels", json!({"app": "web"})),
                ("/spec/template/spec/containers/0/ports/0/containerPort", json!(8080)),
            ],
        ),
        (
            "create configmap settings -n mill --from-literal=grain=rye",
            "configmap/settings",
            vec![("/data", json!({"grain": "rye"}))],
        ),
        (
            "create secret generic login -n mill --from-literal=user=miller",
            "secret/login",
            vec![("/type", json!("Opaque")), ("/data", json!({"user": "bWlsbGVy"}))],
        ),
        (
            "create secret docker-registry pull -n mill --docker-server=registry.example --docker-username=u --docker-password=p",
            "secret/pull",
            vec![("/type", json!("kubernetes.io/dockerconfigjson"))],
        ),
        ("create serviceaccount miller -n mill", "serviceaccount/miller", vec![]),
        (
            "create role reader -n mill --verb=get,list --resource=pods,deployments.apps --resource-name=web",
            "role.rbac.authorization.k8s.io/reader",
            vec![("/rules/1/apiGroups", json!(["apps"])), ("/rules/0/resourceNames", json!(["web"]))],
        ),
        (
            "create rolebinding readers -n mill --role=reader --serviceaccount=mill:miller --group=millers",
            "rolebinding.rbac.authorization.k8s.io/readers",
            vec![("/roleRef/name", json!("reader")), ("/subjects/0/name", json!("millers"))],
        ),
        (
            "create clusterrole scrapers --verb=get --non-resource-url=/metrics",
            "clusterrole.rbac.authorization.k8s.io/scrapers",
            vec![("/rules/0/nonResourceURLs", json!(["/metrics"]))],
        ),
        (
            "create clusterrole gathered --aggregation-rule=mill.example/gather=yes",
            "clusterrole.rbac.authorization.k8s.io/gathered",
            vec![(
                "/aggregationRule/clusterRoleSelectors/0/matchLabels",
                json!({"mill.example/gather": "yes"}),
            )],
        ),
        (
            "create clusterrolebinding scrapers --clusterrole=scrapers --user=bob",
            "clusterrolebinding.rbac.authorization.k8s.io/scrapers",
            vec![("/subjects/0/kind", json!("User"))],
        ),
        (
            "create job once -n mill --image=grinder:1 -- grind --fine",
            "job.batch/once",
            vec![("/spec/template/spec/containers/0/command", json!(["grind", "--fine"]))],
        ),
        (
            "create cronjob nightly -n mill --image=grinder:1 --schedule='0 2 * * *' -- grind",
            "cronjob.batch/nightly",
            vec![("/spec/schedule", json!("0 2 * * *"))],
        ),
        (
            "create job by-hand -n mill --from=cronjob/nightly",
            "job.batch/by-hand",
            vec![
                ("/metadata/annotations/cronjob.kubernetes.io~1instantiate", json!("manual")),
                ("/metadata/ownerReferences/0/name", json!("nightly")),
            ],
        ),
        (
            "create ingress door -n mill --class=front --rule=mill.example/flour*=web:8080,tls=mill-tls",
            "ingress.networking.k8s.io/door",
            vec![
                ("/spec/rules/0/http/paths/0/pathType", json!("Prefix")),
                ("/spec/tls/0/secretName", json!("mill-tls")),
            ],
        ),
        (
            "create quota sacks -n mill --hard=configmaps=20,services=5",
            "resourcequota/sacks",
            vec![("/spec/hard", json!({"configmaps": "20", "services": "5"}))],
        ),
        (
            "create priorityclass harvest --value=100 --description='in summer only'",
            "priorityclass.scheduling.k8s.io/harvest",
            vec![("/value", json!(100)), ("/description", json!("in summer only"))],
        ),
        (
            "create poddisruptionbudget web -n mill --selector=app=web --min-available=50%",
            "poddisruptionbudget.policy/web",
            vec![("/spec/minAvailable", json!("50%"))],
        ),
        (
            "create service clusterip inner -n mill --tcp=80:8080 --clusterip=None",
            "service/inner",
            vec![("/spec/ports/0/targetPort", json!(8080)), ("/spec/clusterIP", json!("None"))],
        ),
        (
            "create service externalname outer -n mill --external-name=flour.example",
            "service/outer",
            vec![("/spec/type", json!("ExternalName"))],
        ),
        (
            "run sieve -n mill --image=sieve:1 --labels=app=sieve --port=9000 --env=MESH=fine",
            "pod/sieve",
            vec![
                ("/spec/containers/0/env", json!([{"name": "MESH", "value": "fine"}])),
                ("/metadata/labels", json!({"app": "sieve"})),
            ],
        ),
        (
            "expose deployment web -n mill --port=80 --target-port=8080",
            "service/web",
            vec![("/spec/selector", json!({"app": "web"})), ("/spec/ports/0/targetPort", json!(8080))],
        ),
        (
            "expose pod sieve -n mill --port=80 --name=sieve",
            "service/sieve",
            vec![("/spec/selector", json!({"app": "sieve"}))],
        ),
    ]
}

fn generate_objects(_: &ControlPlane, kubectl: &Kubectl) {
    for (line, object, facts) in generated() {
        let output = kubectl.ok(line, "");
        assert!(output.starts_with(object), "kubectl {line}: {output}");
        let namespace = if line.contains("-n mill") { "-n mill" } else { "" };
        let live: Value = serde_json::from_str(&kubectl.ok(&format!("get {object} {namespace} -o json"), ""))
            .expect("JSON");
        for (pointer, value) in facts {
            assert_eq!(live.pointer(pointer), Some(&value), "{pointer} of {object} by {line}:\n{live:#}");
        }
    }
    // A dry run stores nothing.
    for how in ["client", "server"] {
        let output = kubectl.ok(&format!("create configmap tried -n mill --dry-run={how} -o json"), "");
        let tried: Value = serde_json::from_str(&output).expect("JSON");
        assert_eq!(tried["metadata"]["uid"].is_string(), how == "server", "{output}");
        assert!(kubectl.must_fail("get configmap tried -n mill").contains("NotFound"));
    }
    assert!(kubectl.must_fail("create deployment web -n mill --image=web:1").contains("already exists"));
    assert!(kubectl.must_fail("create configmap x -n nowhere").contains("namespaces \"nowhere\" not found"));
}
