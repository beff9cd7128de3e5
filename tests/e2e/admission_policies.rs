//! ValidatingAdmissionPolicy: denials, warnings, audit annotations, parameters, authorization, type checks, freshness.
//!
//! `ROUNDS` sets the number of rounds of three trials of the freshness test (default 300), `WORKERS` the number of clients
//! (default 4), `RESTARTS` the number of restarts (default 1).

use std::sync::Arc;

use apimachinery::names::Preset;
use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, Session, eventually};

use super::fresh_policy::env_number;
use super::policy_objects::{apply, create_mutating_policy, merge, with_mutating_policies};

const MAPS: &str = "/api/v1/namespaces/team/configmaps";

/// Creates admission policies whose bindings select the namespace `team`.
struct Policies<'p> {
    plane: &'p ControlPlane,
    admin: Client,
}

impl<'p> Policies<'p> {
    async fn new(plane: &'p ControlPlane) -> Policies<'p> {
        let admin = plane.admin();
        let namespace = json!({"metadata": {"name": "team", "labels": {"judged": "yes"}}});
        admin.post("/api/v1/namespaces", &namespace).await.expect(201);
        Policies { plane, admin }
    }

    fn path(&self, resource: &str) -> String {
        format!("{}/{resource}", self.plane.api("admissionregistration", "v1"))
    }

    /// Creates a policy on config maps with these further fields, and its binding of the same name.
    async fn create(&self, name: &str, policy: Value, binding: Value) {
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"],
        });
        let spec = merge(json!({"matchConstraints": {"resourceRules": [rule]}}), policy);
        let binding_spec = json!({
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"judged": "yes"}}},
        });
        let object = |spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let policies = self.path("validatingadmissionpolicies");
        let written = self.admin.post(&policies, &object(spec)).await;
        assert_eq!((written.status, written.header("warning")), (201, ""), "{}", written.text());
        let bindings = self.path("validatingadmissionpolicybindings");
        self.admin.post(&bindings, &object(merge(binding_spec, binding))).await.expect(201);
    }

    async fn delete(&self, name: &str) {
        for resource in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
            self.admin.delete(&format!("{}/{name}", self.path(resource))).await.expect(200);
        }
    }
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": value}})
}

fn validation(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

#[tokio::test]
async fn failed_validation_denies_warns_and_audits() {
    for preset in [Preset::Svc, Preset::Kubernetes] {
        let audit = AuditLog::new();
        let options = Options { preset, ..Options::default() };
        let plane = ControlPlane::start(options.flag(&audit.flag())).await;
        let policies = Policies::new(&plane).await;
        let admin = plane.admin();
        let policy = json!({
            "variables": [{"name": "value", "expression": "object.data['k']"}],
            "validations": [{"expression": "request.operation == 'DELETE' || variables.value == 'good'",
                "messageExpression": "'value is ' + variables.value", "reason": "Forbidden"}],
            "auditAnnotations": [{"key": "name", "valueExpression": "request.name"}],
        });
        policies.create("deny", policy.clone(), json!({})).await;
        let status = admin.post(MAPS, &config_map("a", "bad")).await.expect(403);
        let denial = "ValidatingAdmissionPolicy 'deny' with binding 'deny' denied request: value is bad";
        assert_eq!(status["message"], format!("configmaps \"a\" is forbidden: {denial}"));
        assert_eq!(status["details"]["causes"], json!([{"message": denial}]));
        admin.post(MAPS, &config_map("a", "good")).await.expect(201);
        admin.put(&format!("{MAPS}/a"), &config_map("a", "bad")).await.expect(403);
        admin.post("/api/v1/namespaces/default/configmaps", &config_map("a", "bad")).await.expect(201);
        policies.delete("deny").await;

        policies.create("warn", policy, json!({"validationActions": ["Warn", "Audit"]})).await;
        let written = admin.post(MAPS, &config_map("b", "bad")).await;
        written.expect(201);
        let warning =
            "Validation failed for ValidatingAdmissionPolicy 'warn' with binding 'warn': value is bad";
        assert!(written.header("warning").contains(warning), "{}", written.header("warning"));
        let is_annotated = |event: &Value| event["annotations"]["warn/name"] == "b";
        let event = audit.event("an event with the annotation", is_annotated).await;
        let key = plane.names().group_sub_key("validation.policy.admission", "validation_failure");
        let failure = event["annotations"][&key].as_str().expect("the failed validation");
        let failure: Value = serde_json::from_str(failure).expect("JSON");
        assert_eq!(
            (&failure[0]["message"], &failure[0]["expressionIndex"]),
            (&json!("value is bad"), &json!(0))
        );
    }
}

#[tokio::test]
async fn parameters_of_built_in_and_custom_kinds_are_applied() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let policies = Policies::new(&plane).await;
    let admin = plane.admin();
    let definition = json!({
        "metadata": {"name": "limits.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "limits", "kind": "Limit"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"size": {"type": "integer"}}}}}]},
    });
    let policy = merge(
        validation("object.data.k.size() <= params.size"),
        json!({
            "paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"},
        }),
    );
    let reference = json!({"paramRef": {"name": "one", "parameterNotFoundAction": "Deny"}});
    policies.create("size", policy, reference).await;
    let status = admin.post(MAPS, &config_map("a", "x")).await.expect(422);
    assert!(
        status["message"].as_str().expect("text").contains("failed to find resource referenced by paramKind")
    );
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    let limits = "/apis/example.com/v1/limits";
    eventually("the kind is served", || async { (admin.get(limits).await.status == 200).then_some(()) })
        .await;
    let status = admin.post(MAPS, &config_map("a", "x")).await.expect(422);
    assert!(status["message"].as_str().expect("text").contains("no params found for policy binding"));
    let limit =
        json!({"apiVersion": "example.com/v1", "kind": "Limit", "metadata": {"name": "one"}, "size": 2});
    admin.post(limits, &limit).await.expect(201);
    admin.post(MAPS, &config_map("a", "xx")).await.expect(201);
    admin.post(MAPS, &config_map("b", "xxx")).await.expect(422);
    let merge_patch = "application/merge-patch+json";
    admin.patch(&format!("{limits}/one"), merge_patch, &json!({"size": 3})).await.expect(200);
    admin.post(MAPS, &config_map("b", "xxx")).await.expect(201);
    policies.delete("size").await;

    for (name, value) in [("p1", "x"), ("p2", "y")] {
        let mut param = config_map(name, value);
        param["metadata"]["labels"] = json!({"param": "yes"});
        admin.post("/api/v1/namespaces/default/configmaps", &param).await.expect(201);
    }
    let policy = merge(
        validation("object.data.k.contains(params.data.k)"),
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        }),
    );
    let reference = json!({"paramRef": {"namespace": "default", "parameterNotFoundAction": "Deny",
        "selector": {"matchLabels": {"param": "yes"}}}});
    policies.create("labels", policy, reference).await;
    admin.post(MAPS, &config_map("c", "x")).await.expect(422);
    admin.post(MAPS, &config_map("c", "xy")).await.expect(201);
}

#[tokio::test]
async fn status_shows_type_errors_of_expressions() {
    let plane = ControlPlane::start(Options::default()).await;
    let policies = Policies::new(&plane).await;
    policies.create("typed", validation("object.dat == null"), json!({})).await;
    let path = format!("{}/typed", policies.path("validatingadmissionpolicies"));
    let status = eventually("the type check", || async {
        let policy = policies.admin.get(&path).await.expect(200);
        (policy["status"]["observedGeneration"] == 1).then(|| policy["status"].clone())
    })
    .await;
    let warning = &status["typeChecking"]["expressionWarnings"][0];
    assert_eq!(warning["fieldRef"], "spec.validations[0].expression");
    let text = warning["warning"].as_str().expect("text");
    assert!(text.starts_with("/v1, Kind=ConfigMap: ") && text.contains("undefined field 'dat'"), "{text}");
}

/// The objects of one client of the freshness test, and the collections that they govern.
struct Trials {
    policy: String,
    param: String,
    mutation: String,
    by_policy: String,
    by_param: String,
    by_mutation: String,
}

impl Trials {
    /// Creates the objects of a client.
    async fn new(plane: &ControlPlane, worker: u64) -> Trials {
        let policies = Policies { plane, admin: plane.admin() };
        let admin = plane.admin();
        let name = |part: &str| format!("{part}-{worker}");
        for namespace in [name("policy"), name("param"), name("mutation")] {
            let labels = json!({"case": namespace});
            let object = json!({"metadata": {"name": namespace, "labels": labels}});
            admin.post("/api/v1/namespaces", &object).await.expect(201);
        }
        let param = json!({"metadata": {"name": name("state")}, "data": {"state": "open"}});
        admin.post("/api/v1/namespaces/default/configmaps", &param).await.expect(201);
        let scope =
            |case: String| json!({"matchResources": {"namespaceSelector": {"matchLabels": {"case": case}}}});
        policies.create(&name("policy"), validation("true"), scope(name("policy"))).await;
        let kind = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
        let policy = merge(validation("params.data.state == 'open'"), kind);
        let reference =
            json!({"name": name("state"), "namespace": "default", "parameterNotFoundAction": "Deny"});
        let binding = merge(scope(name("param")), json!({"paramRef": reference}));
        policies.create(&name("param"), policy, binding).await;

        let policy = json!({"mutations": mutations(true)});
        create_mutating_policy(plane, &name("mutation"), policy, scope(name("mutation"))).await;
        let group = plane.api("admissionregistration", "v1alpha1");
        let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
        Trials {
            policy: format!("{}/{}", policies.path("validatingadmissionpolicies"), name("policy")),
            param: format!("/api/v1/namespaces/default/configmaps/{}", name("state")),
            mutation: format!("{group}/mutatingadmissionpolicies/{}", name("mutation")),
            by_policy: maps(&name("policy")),
            by_param: maps(&name("param")),
            by_mutation: maps(&name("mutation")),
        }
    }

    /// Changes both policies and the parameter. After each change the same client writes a governed object at
    /// once.
    async fn round(&self, session: &mut Session, is_open: bool) {
        let expression = if is_open { "true" } else { "false" };
        let policy = json!({"spec": {"validations": [{"expression": expression}]}});
        let param = json!({"data": {"state": state(is_open)}});
        let mutation = json!({"spec": {"mutations": mutations(is_open)}});
        for (path, patch) in [(&self.policy, policy), (&self.param, param), (&self.mutation, mutation)] {
            let body = patch.to_string();
            let changed = session.merge(path, body.as_bytes()).await.expect("a response");
            assert_eq!(changed.status, 200, "{}", changed.text());
            self.check(session, path, is_open).await;
        }
    }

    /// Writes an object that the changed policy or parameter governs.
    async fn check(&self, session: &mut Session, changed: &str, is_open: bool) {
        let maps = match changed {
            path if path == self.policy => &self.by_policy,
            path if path == self.param => &self.by_param,
            _ => &self.by_mutation,
        };
        let body = config_map("x", "v").to_string();
        let written = session.request("POST", maps, body.as_bytes()).await.expect("a response");
        if *maps == self.by_mutation {
            let label = &written.json()["metadata"]["labels"]["state"];
            assert_eq!(*label, state(is_open), "a stale policy changed the object: {}", written.text());
        } else {
            let code = if is_open { 201 } else { 422 };
            assert_eq!(written.status, code, "a stale policy validated the write: {}", written.text());
        }
    }

    /// Checks that a restarted server applies the policies stored before the restart.
    async fn check_all(&self, session: &mut Session, is_open: bool) {
        for path in [&self.policy, &self.param, &self.mutation] {
            self.check(session, path, is_open).await;
        }
    }
}

fn state(is_open: bool) -> &'static str {
    if is_open { "open" } else { "shut" }
}

/// The mutations of a policy that sets the label `state` of an object to `open` or `shut`.
fn mutations(is_open: bool) -> Value {
    let expression =
        format!("Object{{metadata: Object.metadata{{labels: {{'state': '{}'}}}}}}", state(is_open));
    json!([apply(&expression)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_after_policy_change_is_evaluated_with_changed_policy() {
    let mut plane = ControlPlane::start(with_mutating_policies(Options::kubernetes())).await;
    let workers = env_number("WORKERS", 4);
    let (rounds, restarts) = (env_number("ROUNDS", 300) / workers, env_number("RESTARTS", 1));
    let mut trials = Vec::new();
    for worker in 0..workers {
        trials.push(Arc::new(Trials::new(&plane, worker).await));
    }
    let starts = restarts + 1;
    let is_open = |round: u64| round % 2 == 1;
    for start in 0..starts {
        if start > 0 {
            plane.stop().await;
            plane.launch().await;
        }
        let (first, end) = (start * rounds / starts, (start + 1) * rounds / starts);
        let mut tasks = tokio::task::JoinSet::new();
        for trials in &trials {
            let (trials, admin) = (Arc::clone(trials), plane.admin());
            tasks.spawn(async move {
                let mut session = admin.connect().await.expect("a connection");
                if let Some(last) = first.checked_sub(1) {
                    trials.check_all(&mut session, is_open(last)).await;
                }
                for round in first..end {
                    trials.round(&mut session, is_open(round)).await;
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("no write is evaluated with a stale policy");
        }
    }
    let count = rounds * workers * 3;
    println!("{count} trials with {restarts} restarts: 0 writes evaluated with a stale policy or parameter");
}
