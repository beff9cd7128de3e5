//! Tests of mutations of config maps and deployments.

use std::sync::Arc;

use apimachinery::names::Preset;
use apimachinery::object::Value;
use kinds::{CurrentRegistry, EnabledVersions, Registry};
use serde_json::json;

use super::*;
use crate::Chain;
use crate::plugins::AnyPlugin;
use crate::testing::{Fake, PluginResult, TestedWrite};

/// A server with policies and their bindings of the same names.
struct Server {
    fake: Fake,
    chain: AdmissionChain,
}

/// Serves alpha versions.
fn enable_alpha_apis(fake: &mut Fake) {
    let (versions, _) = EnabledVersions::parse(["api/alpha=true"], &fake.names).unwrap();
    let registry = Registry::with_versions(&fake.names, &versions);
    fake.environment.registry = Arc::new(CurrentRegistry::new(registry));
}

/// A chain as one plugin, with both rounds of the mutating phase.
struct AdmissionChain(Chain);

impl Plugin for AdmissionChain {
    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        self.0.mutate(attributes, object).await.map(drop)
    }
}

/// A plugin that changes the object once, after all policies.
struct ChangingPlugin;

impl Plugin for ChangingPlugin {
    async fn mutate(&self, _: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        if let Some(data) = object.and_then(|object| object.get_mut("data")) {
            data["late"] = "yes".into();
        }
        Ok(())
    }
}

impl Server {
    fn new() -> Self {
        Server::with_plugins(Vec::new())
    }

    fn with_plugins(later: Vec<(&'static str, AnyPlugin)>) -> Self {
        let mut fake = Fake::new(Preset::Kubernetes).with_objects(
            "",
            "Namespace",
            &[json!({"metadata": {"name": "team", "labels": {"team": "yes"}}})],
        );
        enable_alpha_apis(&mut fake);
        let plugin = MutatingAdmissionPolicy::new(&fake.environment).unwrap();
        let mut plugins = vec![("policies", AnyPlugin::from(plugin))];
        plugins.extend(later);
        let chain = AdmissionChain(Chain::from_plugins(plugins, fake.environment.clone()));
        Server { fake, chain }
    }

    /// Stores a policy with a binding, or replaces both.
    fn policy(&self, name: &str, mutations: &[Value], more: Value) -> &Self {
        self.policy_with_binding(name, mutations, more, json!({}))
    }

    fn policy_with_binding(&self, name: &str, mutations: &[Value], more: Value, binding: Value) -> &Self {
        let rule = json!({
            "apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps", "deployments"],
        });
        let mut spec = json!({
            "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": mutations,
            "matchConstraints": {"resourceRules": [rule]},
        });
        let mut binding_spec = json!({"policyName": name});
        for (base, more) in [(&mut spec, more), (&mut binding_spec, binding)] {
            base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        let version = self.fake.environment.reader.last_change(POLICY).unwrap_or(0).to_string();
        let metadata = json!({"name": name, "uid": name, "resourceVersion": version});
        let backend = &self.fake.backend;
        backend.put("admissionregistration", POLICY.kind, json!({"metadata": metadata, "spec": spec}));
        let metadata = json!({"name": name});
        backend.put(
            "admissionregistration",
            BINDING.kind,
            json!({"metadata": metadata, "spec": binding_spec}),
        );
        self
    }

    async fn write(&self, object: Value) -> PluginResult {
        self.write_as(TestedWrite { kind: ("", "ConfigMap"), ..TestedWrite::default() }, object).await
    }

    async fn write_as(&self, write: TestedWrite<'_>, object: Value) -> PluginResult {
        self.fake.run_plugin(&self.chain, write, object).await
    }

    /// The data of a config map after a write.
    async fn data(&self, data: Value) -> Value {
        let result = self.write(config_map(data)).await;
        assert!(result.result.is_ok(), "{}", result.message());
        result.object["data"].clone()
    }
}

fn config_map(data: Value) -> Value {
    let metadata = json!({"name": "a", "namespace": "team"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

fn deployment(spec: Value) -> Value {
    let metadata = json!({"name": "a", "namespace": "team"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

const DENIED: &str = "policy 'p' with binding 'p' denied request: ";

#[tokio::test]
async fn apply_configuration_merges_lists_and_maps_by_the_schema_of_the_kind() {
    let server = Server::new();
    let sidecar = "Object{metadata: Object.metadata{labels: {'side': 'yes'}}, spec: Object.spec{template: \
        Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{\
        name: 'side', image: 'side:1'}, Object.spec.template.spec.containers{name: 'main', env: \
        [Object.spec.template.spec.containers.env{name: 'A', value: '1'}]}]}}}}";
    server.policy("p", &[apply(sidecar)], json!({}));
    let pod = json!({"spec": {"containers": [{"name": "main", "image": "main:1", "env": [{"name": "B"}]}]}});
    let write = TestedWrite { kind: ("apps", "Deployment"), ..TestedWrite::default() };
    let written = server.write_as(write, deployment(json!({"replicas": 2, "template": pod}))).await;
    assert!(written.result.is_ok(), "{}", written.message());
    let containers = written.object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let container = |name: &str| containers.iter().find(|container| container["name"] == name).unwrap();
    assert_eq!((containers.len(), &container("side")["image"]), (2, &json!("side:1")));
    assert_eq!(container("main")["image"], "main:1");
    assert_eq!(container("main")["env"].as_array().unwrap().len(), 2);
    assert_eq!(container("side")["imagePullPolicy"], "IfNotPresent", "the changed object has defaults");
    assert_eq!(
        (&written.object["spec"]["replicas"], &written.object["metadata"]["labels"]["side"]),
        (&json!(2), &json!("yes"))
    );
    assert!(written.object["metadata"].get("managedFields").is_none(), "a policy owns no field");
}

#[tokio::test]
async fn patch_keeps_the_kind_of_the_object() {
    let server = Server::new();
    let unregistered = |kind: &str, version: &str| {
        format!(
            "Internal error occurred: no kind \"{kind}\" is registered for version \"{version}\" in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    let conversion = "converting (v1.Secret) to (core.ConfigMap): unknown conversion".to_owned();
    for (operation, message) in [
        ("op: 'replace', path: '/kind', value: 'Secret'", conversion),
        ("op: 'replace', path: '/kind', value: 'Nothing'", unregistered("Nothing", "v1")),
        ("op: 'replace', path: '/apiVersion', value: 'apps/v1'", unregistered("ConfigMap", "apps/v1")),
        ("op: 'replace', path: '/apiVersion', value: 'v2'", unregistered("ConfigMap", "v2")),
        (
            "op: 'replace', path: '/kind', value: 1",
            "Internal error occurred: couldn't get version/kind; json parse error: kind is not a string"
                .to_owned(),
        ),
        ("op: 'remove', path: '/kind'", String::new()),
        ("op: 'replace', path: '/apiVersion', value: ''", String::new()),
    ] {
        server.policy(
            "p",
            &[patch(&format!("[JSONPatch{{{operation}}}]"))],
            json!({"failurePolicy": "Ignore"}),
        );
        let written = server.write(config_map(json!({"a": "b"}))).await;
        assert_eq!(written.message(), message, "{operation}");
        if message.is_empty() {
            assert_eq!(
                (&written.object["kind"], &written.object["apiVersion"]),
                (&json!("ConfigMap"), &json!("v1"))
            );
        }
    }
}

#[tokio::test]
async fn patch_to_another_version_of_the_kind_is_converted() {
    let server = Server::new();
    let rule = json!({"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "operations": ["CREATE"],
        "resources": ["horizontalpodautoscalers"]});
    let operations = "[JSONPatch{op: 'replace', path: '/apiVersion', value: 'autoscaling/v1'}, \
        JSONPatch{op: 'add', path: '/spec/targetCPUUtilizationPercentage', value: 70}]";
    server.policy("p", &[patch(operations)], json!({"matchConstraints": {"resourceRules": [rule]}}));
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "a", "namespace": "team"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3}});
    let write = TestedWrite { kind: ("autoscaling", "HorizontalPodAutoscaler"), ..TestedWrite::default() };
    let written = server.write_as(write, autoscaler).await;
    assert_eq!(written.message(), "");
    assert_eq!(written.object["apiVersion"], "autoscaling/v2");
    let metric = &written.object["spec"]["metrics"][0]["resource"];
    assert_eq!((&metric["name"], &metric["target"]["averageUtilization"]), (&json!("cpu"), &json!(70)));
}

#[tokio::test]
async fn unusable_apply_configuration_denies_by_failure_policy() {
    let server = Server::new();
    let write = || TestedWrite { kind: ("apps", "Deployment"), ..TestedWrite::default() };
    for (expression, reason) in [
        (
            "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}",
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
        ),
        (
            "Object{spec: Object.spec{replicasx: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.replicasx: field not declared in schema",
        ),
        (
            "Object{spec: Object.specx{replicas: 1}}",
            "type mismatch: unexpected type name \"Object.specx\", expected \"Object.spec\", which matches field name path from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicas: object.spec.missing}}",
            "expression 'Object{spec: Object.spec{replicas: object.spec.missing}}' resulted in error: no such key: missing",
        ),
        ("Object.spec{}", "compilation error: must evaluate to Object but got Object.spec"),
    ] {
        server.policy("p", &[apply(expression)], json!({}));
        let denied = server.write_as(write(), deployment(json!({"replicas": 1}))).await.result.unwrap_err();
        assert_eq!(denied.message, format!("{DENIED}{reason}"));
        assert_eq!((denied.code, denied.reason), (403, Reason::Invalid));
        assert_eq!(denied.details.unwrap().causes[0].message, denied.message);
        server.policy("p", &[apply(expression)], json!({"failurePolicy": "Ignore"}));
        let written = server.write_as(write(), deployment(json!({"replicas": 1}))).await;
        assert_eq!(written.object["spec"]["replicas"], 1, "{}", written.message());
    }
}

#[tokio::test]
async fn denial_lists_configuration_errors_before_other_errors() {
    let server = Server::new();
    server.policy(
        "a",
        &[apply("Object{datax: 1}"), patch("[JSONPatch{op: 'remove', path: '/data/x'}]")],
        json!({}),
    );
    server.policy("b", &[apply("Object{}")], json!({"paramKind": {"apiVersion": "x.test/v1", "kind": "X"}}));
    let denied = server.write(config_map(json!({"k": "v"}))).await.result.unwrap_err();
    let defect = "policy \"b\" denied request: failed to configure policy: failed to find resource referenced by \
                  paramKind: 'x.test/v1, Kind=X'";
    assert_eq!((denied.message.as_str(), denied.code, denied.reason), (defect, 403, Reason::Forbidden));
    let causes: Vec<String> = denied.details.unwrap().causes.into_iter().map(|cause| cause.message).collect();
    assert_eq!(causes.len(), 3, "{causes:?}");
    assert!(
        causes[1].starts_with("policy 'a' with binding 'a' denied request: error applying patch"),
        "{causes:?}"
    );
    assert!(causes[2].contains("JSON Patch: the patch [{\"op\":\"remove\""), "{causes:?}");
}

#[tokio::test]
async fn json_patch_is_applied_unless_its_test_fails() {
    let server = Server::new();
    for (expression, expected) in [
        (
            "[JSONPatch{op: 'add', path: '/data/b', value: '2'}, JSONPatch{op: 'remove', path: '/data/a'}]",
            json!({"b": "2"}),
        ),
        (
            "[JSONPatch{op: 'test', path: '/data/a', value: '9'}, JSONPatch{op: 'remove', path: '/data/a'}]",
            json!({"a": "1"}),
        ),
        (
            "[JSONPatch{op: 'replace', path: '/data/' + jsonpatch.escapeKey('x~y'), value: '3'}]",
            json!({"a": "1", "x~y": "3"}),
        ),
        ("[JSONPatch{op: 'move', from: '/data/a', path: '/data/c'}]", json!({"c": "1"})),
        ("'a' in object.data ? [] : [JSONPatch{op: 'remove', path: '/data'}]", json!({"a": "1"})),
        ("[JSONPatch{op: 'add', path: '/data', value: Object.data{k: 'v'}}]", json!({"k": "v"})),
    ] {
        server.policy("p", &[patch(expression)], json!({}));
        assert_eq!(server.data(json!({"a": "1"})).await, expected, "{expression}");
    }
    let unknown = "[JSONPatch{op: 'add', path: '/datax', value: {'a': 'b'}}]";
    for policy in ["Fail", "Ignore"] {
        server.policy("p", &[patch(unknown)], json!({"failurePolicy": policy}));
        let failed = server.write(config_map(json!({}))).await.result.unwrap_err();
        let expected = "Internal error occurred: strict decoding error: unknown field \"datax\"";
        assert_eq!((failed.code, failed.message.as_str()), (500, expected));
    }
}

#[tokio::test]
async fn second_policy_applies_to_result_of_first() {
    let server = Server::new();
    let append = |text: &str| apply(&format!("Object{{data: Object.data{{k: object.data.k + '{text}'}}}}"));
    server.policy("b", &[append("c"), append("d")], json!({}));
    server.policy("a", &[append("b")], json!({}));
    let condition = json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'abcd'"}]});
    server.policy("c", &[append("e")], condition);
    let condition = json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'a'"}]});
    server.policy("d", &[append("f")], condition);
    let variables = json!({"variables": [{"name": "text", "expression": "object.data.k + '!'"}]});
    server.policy("e", &[apply("Object{data: Object.data{v: variables.text}}")], variables);
    assert_eq!(server.data(json!({"k": "a"})).await, json!({"k": "abcde", "v": "abcde!"}));
}

#[tokio::test]
async fn mutation_without_result_leaves_the_object_of_the_mutation_before() {
    let server = Server::new();
    let append = |text: &str| apply(&format!("Object{{data: Object.data{{k: object.data.k + '{text}'}}}}"));
    let failing_test = patch("[JSONPatch{op: 'test', path: '/data/k', value: '9'}]");
    let failure = apply("Object{data: Object.data{k: object.data.missing}}");
    let mutations = [failing_test.clone(), append("b"), failure, failing_test, append("c")];
    let condition = json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'a'"}]});
    for more in [json!({}), condition] {
        let mut spec = json!({"failurePolicy": "Ignore"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.policy("p", &mutations, spec);
        assert_eq!(server.data(json!({"k": "a"})).await, json!({"k": "abc"}));
    }
}

#[tokio::test]
async fn parameters_request_namespace_and_old_object_are_values_of_mutations() {
    let server = Server::new();
    let param = |name: &str, value: &str| {
        let metadata = json!({"name": name, "namespace": "team", "labels": {"p": "yes"}});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}})
    };
    server.fake.backend.put("", "ConfigMap", param("one", "1"));
    server.fake.backend.put("", "ConfigMap", param("two", "2"));
    let kind = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
    let append = apply("Object{data: Object.data{k: object.data.k + params.data.value}}");
    let reference = json!({"selector": {"matchLabels": {"p": "yes"}}, "parameterNotFoundAction": "Deny"});
    server.policy_with_binding("p", &[append], kind, json!({"paramRef": reference}));
    assert_eq!(server.data(json!({"k": "0"})).await, json!({"k": "012"}));
    server.fake.backend.put("", "ConfigMap", param("two", "9"));
    assert_eq!(
        server.data(json!({"k": "0"})).await,
        json!({"k": "019"}),
        "a changed parameter counts at once"
    );

    let values = "Object{data: Object.data{k: request.operation + oldObject.data.k + \
        namespaceObject.metadata.labels['team'] + string(request.dryRun)}}";
    server.policy("p", &[apply(values)], json!({}));
    let write = TestedWrite {
        kind: ("", "ConfigMap"),
        operation: Operation::Update,
        old: Some(config_map(json!({"k": "-old-"}))),
        dry_run: true,
        ..TestedWrite::default()
    };
    let written = server.write_as(write, config_map(json!({}))).await;
    assert_eq!(written.object["data"], json!({"k": "UPDATE-old-yestrue"}), "{}", written.message());
}

#[tokio::test]
async fn second_round_applies_reinvocable_policies_only() {
    let count = |policy: &str| {
        let expression = format!(
            "Object{{data: Object.data{{{policy}: (has(object.data.{policy}) ? object.data.{policy} : '') + \
             (has(object.data.late) ? 'L' : 'E')}}}}"
        );
        apply(&expression)
    };
    let server = Server::with_plugins(vec![("late", AnyPlugin::of_test(ChangingPlugin))]);
    server.policy("a", &[count("a")], json!({"reinvocationPolicy": "IfNeeded"}));
    server.policy("b", &[count("b")], json!({}));
    assert_eq!(server.data(json!({})).await, json!({"a": "EL", "b": "E", "late": "yes"}));
}

#[tokio::test]
async fn own_kinds_and_reviews_are_exempt_and_deletions_are_not_handled() {
    let server = Server::new();
    let rule = json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]});
    let constraints = json!({"matchConstraints": {"resourceRules": [rule]}});
    server.policy("p", &[apply("Object{metadata: Object.metadata{labels: {'m': 'yes'}}}")], constraints);
    for (kind, is_changed) in [
        (("admissionregistration", "ValidatingAdmissionPolicy"), false),
        (("admissionregistration", "MutatingWebhookConfiguration"), false),
        (("authorization", "SubjectAccessReview"), false),
        (("", "Secret"), true),
    ] {
        let write = TestedWrite { kind, ..TestedWrite::default() };
        let written = server.write_as(write, json!({"metadata": {"name": "x"}})).await;
        assert!(written.result.is_ok(), "{}", written.message());
        assert_eq!(written.object["metadata"].get("labels").is_some(), is_changed, "{kind:?}");
    }
    let plugin = MutatingAdmissionPolicy::new(&server.fake.environment).unwrap();
    let operations = [Operation::Create, Operation::Update, Operation::Connect];
    assert_eq!(plugin.interest().operations, operations);
    assert!(
        MutatingAdmissionPolicy::new(&Fake::new(Preset::Kubernetes).environment).is_none(),
        "the API is disabled"
    );
}

#[tokio::test]
async fn generated_fields_are_invisible_to_mutations_and_kept() {
    let server = Server::new();
    let expression = "Object{data: Object.data{seen: string(has(object.metadata.uid)) + string('uid' in object.metadata)}}";
    server.policy(
        "p",
        &[apply(expression), patch("[JSONPatch{op: 'add', path: '/metadata/uid', value: 'own'}]")],
        json!({}),
    );
    let mut object = config_map(json!({}));
    object["metadata"]["uid"] = "u1".into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let written = server.write(object).await;
    assert_eq!(written.object["data"], json!({"seen": "falsefalse"}), "{}", written.message());
    let metadata = &written.object["metadata"];
    assert_eq!(
        (&metadata["uid"], &metadata["creationTimestamp"]),
        (&json!("u1"), &json!("2026-01-01T00:00:00Z"))
    );
}
