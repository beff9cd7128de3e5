//! Tests of service accounts, tokens and secrets of pods.

use apimachinery::names::Preset;

use super::*;
use crate::testing::{Fake, PluginResult, TestedWrite};

fn fake() -> Fake {
    let account = |name: &str, more: Value| {
        let mut account = json!({"metadata": {"name": name, "namespace": "team"}});
        for (field, value) in more.as_object().unwrap() {
            account[field] = value.clone();
        }
        account
    };
    Fake::new(Preset::Kubernetes).with_objects(
        "",
        "ServiceAccount",
        &[
            account("default", json!({})),
            account("quiet", json!({"automountServiceAccountToken": false})),
            account("puller", json!({"imagePullSecrets": [{"name": "registry"}]})),
            json!({
                "metadata": {"name": "strict", "namespace": "team", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
                "automountServiceAccountToken": false,
                "secrets": [{"name": "mine"}],
                "imagePullSecrets": [{"name": "registry"}],
            }),
        ],
    )
}

async fn create(spec: Value) -> PluginResult {
    let fake = fake();
    let plugin = ServiceAccount;
    fake.run_plugin(&plugin, TestedWrite::default(), json!({"metadata": {"name": "p"}, "spec": spec})).await
}

const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[tokio::test]
async fn pod_gets_default_service_account_and_token_volume() {
    let answer = create(json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]})).await;
    assert_eq!(answer.message(), "");
    let spec = &answer.object["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    let volume = spec["volumes"][0]["name"].as_str().unwrap();
    assert!(
        volume.starts_with("kube-api-access-") && volume.len() == "kube-api-access-".len() + 5,
        "{volume}"
    );
    assert_eq!(spec["volumes"][0], token_volume(volume));
    for list in ["containers", "initContainers"] {
        let mount = json!([{"name": volume, "readOnly": true, "mountPath": PATH}]);
        assert_eq!(spec[list][0]["volumeMounts"], mount, "{list}");
    }
}

#[tokio::test]
async fn token_mount_respects_opt_out_and_existing_mounts() {
    let mount = json!([{"name": "v", "mountPath": PATH}]);
    for (spec, volumes) in [
        (json!({"automountServiceAccountToken": false}), 0),
        (json!({"serviceAccountName": "quiet"}), 0),
        (json!({"serviceAccountName": "quiet", "automountServiceAccountToken": true}), 1),
        (json!({"serviceAccount": "quiet"}), 0),
        (
            json!({"containers": [{"name": "c", "volumeMounts": mount}], "volumes": [{"name": "v", "emptyDir": {}}]}),
            1,
        ),
        (json!({"volumes": [{"name": "kube-api-access-x", "projected": {}}]}), 1),
    ] {
        let mut pod_spec = spec.clone();
        if pod_spec.get("containers").is_none() {
            pod_spec["containers"] = json!([{"name": "c"}]);
        }
        let answer = create(pod_spec).await;
        assert_eq!(answer.message(), "", "{spec}");
        let have = answer.object["spec"]["volumes"].as_array().map_or(0, Vec::len);
        assert_eq!(have, volumes, "{spec}");
    }
    let pulls = |answer: PluginResult| answer.object["spec"]["imagePullSecrets"].clone();
    assert_eq!(pulls(create(json!({"serviceAccountName": "puller"})).await), json!([{"name": "registry"}]));
    let puller_spec = json!({"serviceAccountName": "puller", "imagePullSecrets": [{"name": "own"}]});
    assert_eq!(pulls(create(puller_spec).await), json!([{"name": "own"}]));
}

#[tokio::test]
async fn missing_account_or_unlisted_secret_is_rejected() {
    let env =
        |secret: &str| json!({"valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}, "name": "E"});
    for (spec, reason) in [
        (
            json!({"serviceAccountName": "nobody"}),
            "error looking up service account team/nobody: serviceaccount \"nobody\" not found",
        ),
        (
            json!({"serviceAccountName": "a/b%"}),
            "error looking up service account team/a/b%: invalid resource name \"a/b%\": [may not contain '/' may not contain '%']",
        ),
        (
            json!({"serviceAccountName": "strict", "volumes": [{"name": "v", "secret": {"secretName": "other"}}]}),
            "volume with secret.secretName=\"other\" is not allowed because service account strict does not reference that secret",
        ),
        (
            json!({"serviceAccountName": "strict", "volumes": [{"name": "v", "secret": {"secretName": "mine"}}]}),
            "",
        ),
        (
            json!({"serviceAccountName": "strict", "containers": [{"name": "c", "env": [env("mine"), env("other")]}]}),
            "container c with envVar E referencing secret.secretName=\"other\" is not allowed because service account strict does not reference that secret",
        ),
        (
            json!({"serviceAccountName": "strict", "initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "other"}}]}]}),
            "init container c with envFrom referencing secret.secretName=\"other\" is not allowed because service account strict does not reference that secret",
        ),
        (
            json!({"serviceAccountName": "strict", "imagePullSecrets": [{"name": "registry"}, {"name": "x"}]}),
            "imagePullSecrets[1].name=\"x\" is not allowed because service account strict does not reference that imagePullSecret",
        ),
    ] {
        let answer = create(spec.clone()).await;
        let expected =
            if reason.is_empty() { String::new() } else { format!("pods \"p\" is forbidden: {reason}") };
        assert_eq!(answer.message(), expected, "{spec}");
    }
}

#[tokio::test]
async fn mirror_pod_with_account_or_secret_is_rejected() {
    for (spec, reason) in [
        (json!({}), ""),
        (json!({"serviceAccountName": "default"}), "a mirror pod may not reference service accounts"),
        (json!({"volumes": [{"secret": {"secretName": "s"}}]}), "a mirror pod may not reference secrets"),
        (json!({"imagePullSecrets": [{"name": "s"}]}), "a mirror pod may not reference secrets"),
        (
            json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
    ] {
        let fake = fake();
        let plugin = ServiceAccount;
        let meta = json!({"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}});
        let answer = fake
            .run_plugin(&plugin, TestedWrite::default(), json!({"metadata": meta, "spec": spec.clone()}))
            .await;
        let expected =
            if reason.is_empty() { String::new() } else { format!("pods \"p\" is forbidden: {reason}") };
        assert_eq!(answer.message(), expected, "{spec}");
        assert_eq!(answer.object["spec"], spec, "the pod is unchanged");
    }
}

#[tokio::test]
async fn ephemeral_container_with_unlisted_secret_is_rejected() {
    let fake = fake();
    let plugin = ServiceAccount;
    let env = json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}]);
    let spec = json!({"serviceAccountName": "strict", "ephemeralContainers": [{"name": "d", "env": env}]});
    for (operation, subresource, refused) in
        [(Operation::Update, "ephemeralcontainers", true), (Operation::Update, "", false)]
    {
        let write = TestedWrite { operation, subresource, ..TestedWrite::default() };
        let answer =
            fake.run_plugin(&plugin, write, json!({"metadata": {"name": "p"}, "spec": spec.clone()})).await;
        assert_eq!(
            answer.message().contains("ephemeral container d with envVar E"),
            refused,
            "{subresource:?}"
        );
    }
}
