//! Tests of label parsing and label errors.

use apimachinery::names::{Names, Preset};

use crate::Configuration;
use crate::pod_security::policy::{LabelKeys, NamespacePolicy, Version};
use crate::pod_security::settings::Settings;

fn names() -> Names {
    Names::new(Preset::Kubernetes, "").unwrap()
}

fn show(policy: &NamespacePolicy) -> String {
    format!("{} {} {}", policy.enforce, policy.audit, policy.warn)
}

#[test]
fn namespace_labels_are_parsed_to_policy() {
    let names = names();
    let labels = LabelKeys::new(&names);
    let defaults = {
        let text = r#"{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
            {"name": "PodSecurity", "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
                "defaults": {"enforce": "baseline", "enforce-version": "v1.30", "audit": "restricted", "warn": "restricted", "warn-version": "v1.29"}}}]}"#;
        let file =
            Configuration::parse("f", text.as_bytes(), &names, &|_| Err(std::io::Error::other("none")))
                .unwrap();
        Settings::read(file.for_plugin("PodSecurity").unwrap(), &names).unwrap().defaults
    };
    let no_defaults = NamespacePolicy::default();
    for (label_pairs, defaults_given, expected, errors) in [
        ("", no_defaults, "privileged:latest privileged:latest privileged:latest", 0),
        ("enforce=baseline", no_defaults, "baseline:latest privileged:latest baseline:latest", 0),
        (
            "enforce=restricted enforce-version=v1.22",
            no_defaults,
            "restricted:v1.22 privileged:latest restricted:v1.22",
            0,
        ),
        (
            "enforce=restricted enforce-version=v1.22 warn-version=v1.20",
            no_defaults,
            "restricted:v1.22 privileged:latest restricted:v1.20",
            0,
        ),
        (
            "enforce=restricted warn=privileged",
            no_defaults,
            "restricted:latest privileged:latest privileged:latest",
            0,
        ),
        (
            "audit=baseline audit-version=v1.0",
            no_defaults,
            "privileged:latest baseline:v1.0 privileged:latest",
            0,
        ),
        ("", defaults, "baseline:v1.30 restricted:latest restricted:v1.29", 0),
        ("enforce=privileged", defaults, "privileged:v1.30 restricted:latest restricted:v1.29", 0),
        ("enforce=Baseline", no_defaults, "restricted:latest privileged:latest privileged:latest", 1),
        ("audit=x warn=y", no_defaults, "privileged:latest privileged:latest privileged:latest", 2),
        (
            "enforce=baseline enforce-version=1.22",
            no_defaults,
            "baseline:latest privileged:latest baseline:latest",
            1,
        ),
    ] {
        let label_pairs: Vec<(String, &str)> = label_pairs
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), value))
            .collect();
        let label = |key: &str| label_pairs.iter().find(|(k, _)| k == key).map(|(_, value)| *value);
        let reading = labels.read(label, defaults_given);
        assert_eq!(show(&reading.policy), expected, "{label_pairs:?}");
        assert_eq!(reading.errors.len(), errors, "{label_pairs:?}");
    }
}

#[test]
fn version_label_accepts_latest_and_v1_minor() {
    for (text, expected) in [
        ("latest", Some(Version::Latest)),
        ("v1.0", Some(Version::Minor(0))),
        ("v1.33", Some(Version::Minor(33))),
        ("v1.1000", Some(Version::Minor(1000))),
        ("v1.01", None),
        ("v1.", None),
        ("v1.-1", None),
        ("v1.+1", None),
        ("1.22", None),
        ("v2.0", None),
        ("v1.22.1", None),
        ("v1.99999999999999999999", None),
        ("", None),
        ("Latest", None),
    ] {
        assert_eq!(Version::parse(text).ok(), expected, "{text}");
    }
    assert!(Version::Minor(u64::MAX) < Version::Latest);
}

#[test]
fn invalid_pod_security_configuration_is_rejected() {
    let names = names();
    let read_settings = |body: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration: {body}\n"
        );
        let file =
            Configuration::parse("f.yaml", text.as_bytes(), &names, &|_| Err(std::io::Error::other("none")))
                .unwrap();
        Settings::read(file.for_plugin("PodSecurity").unwrap(), &names)
    };
    let read_fields = |rest: &str| {
        read_settings(&format!(
            "{{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration{rest}}}"
        ))
    };
    assert_eq!(read_fields("").unwrap(), Settings::default());
    assert_eq!(read_fields(", defaults: {enforce: ''}").unwrap(), Settings::default());
    let full = read_fields(", exemptions: {usernames: [a, b], namespaces: [team], runtimeClasses: [kata.x]}")
        .unwrap();
    assert_eq!((full.users.len(), full.namespaces.len(), full.runtime_classes.len()), (2, 1, 1));
    for (rest, word) in [
        (", defaults: {enforce: strict}", "defaults.enforce"),
        (", defaults: {warn-version: '1.2'}", "defaults.warn-version"),
        (", defaults: {deny: baseline}", "defaults.deny"),
        (", exemptions: {usernames: ['']}", "exemptions.usernames[0]"),
        (", exemptions: {usernames: [a, a]}", "duplicate entry"),
        (", exemptions: {namespaces: [Big]}", "exemptions.namespaces[0]"),
        (", exemptions: {runtimeClasses: [a_b]}", "exemptions.runtimeClasses[0]"),
        (", exempt: {}", "exempt"),
    ] {
        let error = read_fields(rest).unwrap_err().to_string();
        assert!(error.contains(word), "{rest}: {error}");
    }
    assert!(read_settings("{apiVersion: v1, kind: Pod}").is_err());
}
