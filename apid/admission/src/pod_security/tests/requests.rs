//! Tests of requests: pods, pod templates, namespaces and exemptions.

use apimachinery::names::Preset;
use apimachinery::user::UserInfo;
use serde_json::{Value, json};

use super::{container, merged, pod};
use crate::pod_security::PodSecurity;
use crate::testing::{Fake, PluginResult, TestedWrite};
use crate::{Configuration, Operation};

const CONFIGURATION: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {}
    exemptions: {usernames: [root], namespaces: [loose], runtimeClasses: [kata]}
";

fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels =
        labels.iter().map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), json!(value)));
    json!({"metadata": {"name": name, "labels": Value::Object(labels.collect())}})
}

fn fake(labels: &[(&str, &str)]) -> Fake {
    Fake::new(Preset::Kubernetes).with_objects(
        "",
        "Namespace",
        &[namespace("team", labels), namespace("loose", labels)],
    )
}

fn plugin(fake: &Fake) -> PodSecurity {
    let file = Configuration::parse("f", CONFIGURATION.as_bytes(), &fake.names, &|_| {
        Err(std::io::Error::other("none"))
    })
    .unwrap();
    PodSecurity::new(&fake.environment, file.for_plugin("PodSecurity")).unwrap()
}

async fn write_with_labels(labels: &[(&str, &str)], write: TestedWrite<'_>, object: Value) -> PluginResult {
    let fake = fake(labels);
    fake.run_plugin(&plugin(&fake), write, object).await
}

fn annotation<'a>(answer: &'a PluginResult, key: &str) -> Option<&'a str> {
    let key = format!("pod-security.kubernetes.io/{key}");
    answer.annotations.iter().find(|(k, _)| *k == key).map(|(_, value)| value.as_str())
}

fn privileged() -> Value {
    pod(&json!({"spec": {"containers": [container("c", json!({"privileged": true}))]}}))
}

const FAULT: &str = "privileged (container \"c\" must not set securityContext.privileged=true)";

#[tokio::test]
async fn violating_pod_is_rejected_warned_and_audited_by_mode() {
    let answer = write_with_labels(&[], TestedWrite::default(), privileged()).await;
    assert_eq!((answer.message(), annotation(&answer, "enforce-policy")), ("", Some("privileged:latest")));
    assert!(answer.warnings.is_empty());

    let answer = write_with_labels(
        &[("enforce", "baseline"), ("audit", "baseline")],
        TestedWrite::default(),
        privileged(),
    )
    .await;
    let refusal = format!("pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": {FAULT}");
    assert_eq!(answer.message(), refusal);
    assert_eq!(answer.result.as_ref().unwrap_err().code, 403);
    assert!(answer.warnings.is_empty(), "a rejection has no warnings");
    assert_eq!(annotation(&answer, "enforce-policy"), Some("baseline:latest"));
    let would = format!("would violate PodSecurity \"baseline:latest\": {FAULT}");
    assert_eq!(annotation(&answer, "audit-violations"), Some(would.as_str()));

    let answer = write_with_labels(
        &[("warn", "baseline"), ("warn-version", "v1.20")],
        TestedWrite::default(),
        privileged(),
    )
    .await;
    assert_eq!(answer.message(), "");
    assert_eq!(answer.warnings, [would.replace("latest", "v1.20")]);
    assert_eq!(annotation(&answer, "audit-violations"), None);

    let answer =
        write_with_labels(&[("enforce", "restricted")], TestedWrite::default(), pod(&json!({}))).await;
    assert_eq!((answer.message(), answer.warnings.len()), ("", 0));

    let answer = write_with_labels(&[("enforce", "odd")], TestedWrite::default(), privileged()).await;
    assert!(answer.message().contains("violates PodSecurity \"restricted:latest\""), "{}", answer.message());
    let error = annotation(&answer, "error").unwrap();
    assert!(error.starts_with("Failed to parse policy: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"odd\": must be one of privileged, baseline, restricted"), "{error}");

    let lost =
        write_with_labels(&[], TestedWrite { namespace: "gone", ..TestedWrite::default() }, privileged())
            .await;
    assert_eq!(lost.result.unwrap_err().code, 500);
}

#[tokio::test]
async fn pod_update_is_evaluated_if_containers_change() {
    let good = pod(&json!({}));
    for (patch, sub, refused) in [
        (json!({"metadata": {"labels": {"a": "b"}}}), "", false),
        (json!({"spec": {"activeDeadlineSeconds": 5}}), "", false),
        (json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "x"}}}), "", true),
        (
            json!({"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/c": "x"}}}),
            "",
            true,
        ),
        (
            json!({"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/x": "x"}}}),
            "",
            false,
        ),
        (json!({"spec": {"ephemeralContainers": [{"name": "e"}]}}), "ephemeralcontainers", true),
        (json!({"spec": {"initContainers": [{"name": "i"}]}}), "", true),
        (json!({"spec": {"resources": {"limits": {"cpu": "1"}}}}), "resize", false),
    ] {
        let old = merged(good.clone(), &json!({"spec": {"hostPID": true}}));
        let new = merged(old.clone(), &patch);
        let write = TestedWrite {
            operation: Operation::Update,
            subresource: sub,
            old: Some(old),
            ..TestedWrite::default()
        };
        let answer = write_with_labels(&[("enforce", "baseline")], write, new).await;
        assert_eq!(answer.result.is_err(), refused, "{patch}");
    }
    let image = merged(privileged(), &json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}));
    let write =
        TestedWrite { operation: Operation::Update, old: Some(privileged()), ..TestedWrite::default() };
    let answer = write_with_labels(&[("enforce", "restricted")], write, image).await;
    assert!(answer.result.is_err(), "a changed image is evaluated");
}

#[tokio::test]
async fn pod_templates_of_all_workloads_cause_warnings() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": privileged()["spec"]});
    let plain = json!({"spec": {"template": template}});
    let labels = [("enforce", "baseline"), ("audit", "baseline")];
    for (group, kind, object) in [
        ("apps", "Deployment", &plain),
        ("apps", "ReplicaSet", &plain),
        ("apps", "StatefulSet", &plain),
        ("apps", "DaemonSet", &plain),
        ("batch", "Job", &plain),
        ("", "ReplicationController", &plain),
        ("batch", "CronJob", &json!({"spec": {"jobTemplate": {"spec": {"template": template}}}})),
        ("", "PodTemplate", &json!({"template": template})),
    ] {
        let answer = write_with_labels(
            &labels,
            TestedWrite { kind: (group, kind), ..TestedWrite::default() },
            object.clone(),
        )
        .await;
        let would = format!("would violate PodSecurity \"baseline:latest\": {FAULT}");
        assert_eq!(answer.message(), "", "{kind}");
        assert_eq!(answer.warnings, [would.as_str()], "{kind}");
        assert_eq!(annotation(&answer, "audit-violations"), Some(would.as_str()), "{kind}");
        assert_eq!(annotation(&answer, "enforce-policy"), None, "{kind}: nothing is enforced here");
    }
    let kind = ("", "ReplicationController");
    let answer =
        write_with_labels(&labels, TestedWrite { kind, ..TestedWrite::default() }, json!({"spec": {}})).await;
    assert!(answer.warnings.is_empty(), "an object without a template has no violations");
    let answer = write_with_labels(
        &labels,
        TestedWrite { kind, namespace: "gone", ..TestedWrite::default() },
        plain.clone(),
    )
    .await;
    assert!(answer.result.is_ok() && annotation(&answer, "error").is_some());
}

#[tokio::test]
async fn exempt_write_is_allowed_with_audit_annotation() {
    let labels = [("enforce", "restricted")];
    let root = || UserInfo { name: "root".to_owned(), ..UserInfo::default() };
    let kata = merged(privileged(), &json!({"spec": {"runtimeClassName": "kata"}}));
    for (write, object, reason) in [
        (TestedWrite { user: root(), ..TestedWrite::default() }, privileged(), "user"),
        (TestedWrite { namespace: "loose", ..TestedWrite::default() }, privileged(), "namespace"),
        (TestedWrite::default(), kata, "runtimeClass"),
        (
            TestedWrite { kind: ("apps", "Deployment"), user: root(), ..TestedWrite::default() },
            json!({"spec": {"template": privileged()}}),
            "user",
        ),
    ] {
        let answer = write_with_labels(&labels, write, object).await;
        assert_eq!((answer.message(), annotation(&answer, "exempt")), ("", Some(reason)));
        assert!(answer.warnings.is_empty());
    }
    let other = merged(privileged(), &json!({"spec": {"runtimeClassName": "runc"}}));
    assert!(write_with_labels(&labels, TestedWrite::default(), other).await.result.is_err());
}

fn write_namespace(old: Option<Value>) -> TestedWrite<'static> {
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    TestedWrite { kind: ("", "Namespace"), operation, old, ..TestedWrite::default() }
}

#[tokio::test]
async fn invalid_pod_security_labels_are_rejected_on_write() {
    let bad = namespace("n", &[("enforce", "strict"), ("warn-version", "1.2")]);
    let answer = write_with_labels(&[], write_namespace(None), bad.clone()).await;
    assert_eq!(
        answer.message(),
        "Namespace \"n\" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\"]"
    );
    assert_eq!(answer.result.unwrap_err().code, 422);
    let again = merged(bad.clone(), &json!({"metadata": {"annotations": {"a": "b"}}}));
    assert!(
        write_with_labels(&[], write_namespace(Some(bad.clone())), again).await.result.is_ok(),
        "unchanged"
    );
    let worse = namespace("n", &[("enforce", "stricter"), ("warn-version", "1.2")]);
    assert!(write_with_labels(&[], write_namespace(Some(bad)), worse).await.result.is_err());
}

#[tokio::test]
async fn stricter_enforce_label_warns_about_existing_pods() {
    let named_pod = |name: &str, owner: Option<&str>, patch: Value| {
        let owners = owner.map(|uid| json!([{"uid": uid, "controller": true}]));
        let named = json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": owners}});
        merged(merged(pod(&json!({})), &named), &patch)
    };
    let bare = json!({"spec": {"containers": [{"name": "c"}]}});
    let host_pid = json!({"spec": {"hostPID": true}});
    let kata = json!({"spec": {"hostPID": true, "runtimeClassName": "kata"}});
    let fake = fake(&[]).with_objects(
        "",
        "Pod",
        &[
            named_pod("fine", None, json!({})),
            named_pod("b", Some("1"), host_pid.clone()),
            named_pod("a", Some("1"), host_pid.clone()),
            named_pod("c", Some("2"), host_pid.clone()),
            named_pod("y", None, bare.clone()),
            named_pod("x", None, bare),
            named_pod("w", None, merged(host_pid, &json!({"spec": {"hostIPC": true, "containers": [container("c", json!({"privileged": true}))]}}))),
            named_pod("v", None, kata),
        ],
    );
    let plugin = plugin(&fake);
    let (before, after) = (namespace("n", &[]), namespace("n", &[("enforce", "restricted")]));
    let answer = fake.run_plugin(&plugin, write_namespace(Some(before.clone())), after.clone()).await;
    assert_eq!(
        answer.warnings,
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"restricted:latest\"",
            "a (and 2 other pods): host namespaces",
            "w: host namespaces, privileged",
            "x (and 1 other pod): allowPrivilegeEscalation != false, unrestricted capabilities",
        ]
    );
    for (old, new, warned) in [
        (after.clone(), namespace("n", &[("enforce", "baseline")]), false),
        (after.clone(), after.clone(), false),
        (after.clone(), namespace("n", &[("enforce", "baseline"), ("enforce-version", "v1.20")]), true),
        (after, namespace("n", &[("enforce", "privileged"), ("enforce-version", "v1.20")]), false),
        (before.clone(), namespace("n", &[("warn", "restricted")]), false),
    ] {
        let answer = fake.run_plugin(&plugin, write_namespace(Some(old)), new.clone()).await;
        assert_eq!(!answer.warnings.is_empty(), warned, "{new}");
    }

    let labelled =
        namespace("loose", &[("enforce", "baseline"), ("audit-version", "v1.3"), ("warn", "restricted")]);
    for old in [None, Some(namespace("loose", &[]))] {
        let answer = fake.run_plugin(&plugin, write_namespace(old), labelled.clone()).await;
        assert_eq!(
            answer.warnings,
            [
                "namespace \"loose\" is exempt from Pod Security, and the policy (enforce=baseline:latest, warn=restricted:latest) will be ignored"
            ]
        );
    }
}

#[tokio::test]
async fn existing_pod_check_is_limited_and_prefers_distinct_controllers() {
    let bad = |name: String, uid: &str| {
        merged(
            pod(&json!({"spec": {"hostPID": true}})),
            &json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": [{"uid": uid, "controller": true}]}}),
        )
    };
    let many: Vec<Value> = (0..3_005).map(|i| bad(format!("a{i:04}"), "same")).collect();
    let fake =
        fake(&[]).with_objects("", "Pod", &many).with_objects("", "Pod", &[bad("z".to_owned(), "other")]);
    let (before, after) = (namespace("n", &[]), namespace("n", &[("enforce", "baseline")]));
    let answer = fake.run_plugin(&plugin(&fake), write_namespace(Some(before)), after).await;
    assert_eq!(
        answer.warnings,
        [
            "new PodSecurity enforce level only checked against the first 3000 of 3006 existing pods",
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a0000 (and 2999 other pods): host namespaces",
        ]
    );
}
