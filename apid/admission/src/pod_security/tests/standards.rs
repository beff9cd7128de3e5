//! Tests of each control and each of its rules: one allowed and one violating pod.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{container, faults, pod, standard};
use crate::pod_security::Level;
use crate::pod_security::controls::CONTROLS;
use crate::pod_security::policy::{Standard, Version};

/// Control, release, patch of an allowed pod, patch of a violating pod, and expected message.
type Row = (&'static str, u64, Value, Value, &'static str);

fn spec(patch: Value) -> Value {
    json!({ "spec": patch })
}

/// A pod with these containers.
fn pod_with_containers(containers: &[Value]) -> Value {
    spec(json!({ "containers": containers }))
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn sysctl(name: &str) -> Value {
    spec(json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}))
}

fn windows(patch: Value) -> Value {
    spec(json!({"os": {"name": "windows"}, "containers": [container("c", patch)]}))
}

fn baseline() -> Vec<Row> {
    vec![
        (
            "appArmorProfile",
            0,
            spec(json!({"securityContext": {"appArmorProfile": {"type": "Localhost"}}})),
            spec(json!({
                "securityContext": {"appArmorProfile": {"type": "Unconfined"}},
                "containers": [container("c", json!({"appArmorProfile": {"type": "Odd"}}))],
            })),
            r#"forbidden AppArmor profiles (pod and container "c" must not set AppArmor profile type to "Odd", "Unconfined")"#,
        ),
        (
            "appArmorProfile",
            0,
            annotated("container.apparmor.security.beta.kubernetes.io/c", "localhost/mine"),
            annotated("container.apparmor.security.beta.kubernetes.io/c", "unconfined"),
            r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/c="unconfined"")"#,
        ),
        (
            "capabilities_baseline",
            0,
            pod_with_containers(&[container("c", json!({"capabilities": {"add": ["CHOWN", "SYS_CHROOT"]}}))]),
            pod_with_containers(&[
                container("c", json!({"capabilities": {"add": ["NET_RAW", "CHOWN"]}})),
                container("d", json!({"capabilities": {"add": ["ALL"]}})),
            ]),
            r#"non-default capabilities (containers "c", "d" must not include "ALL", "NET_RAW" in securityContext.capabilities.add)"#,
        ),
        (
            "hostNamespaces",
            0,
            spec(json!({"hostNetwork": false, "hostUsers": true})),
            spec(json!({"hostIPC": true, "hostPID": true, "hostNetwork": true})),
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (
            "hostPathVolumes",
            0,
            spec(json!({"volumes": [{"name": "a", "nfs": {}}]})),
            spec(
                json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "hostPath": {}}]}),
            ),
            r#"hostPath volumes (volumes "a", "b")"#,
        ),
        (
            "hostPorts",
            0,
            pod_with_containers(&[json!({"name": "c", "ports": [{"containerPort": 80, "hostPort": 0}]})]),
            pod_with_containers(&[
                json!({"name": "c", "ports": [{"hostPort": 9}, {"hostPort": 80}, {"containerPort": 7}]}),
            ]),
            r#"hostPort (container "c" uses hostPorts 80, 9)"#,
        ),
        (
            "privileged",
            0,
            pod_with_containers(&[container("c", json!({"privileged": false}))]),
            spec(json!({"initContainers": [container("i", json!({"privileged": true}))]})),
            r#"privileged (container "i" must not set securityContext.privileged=true)"#,
        ),
        (
            "procMount",
            0,
            pod_with_containers(&[container("c", json!({"procMount": "Default"}))]),
            spec(
                json!({"hostUsers": false, "containers": [container("c", json!({"procMount": "Unmasked"}))]}),
            ),
            r#"procMount (container "c" must not set securityContext.procMount to "Unmasked")"#,
        ),
        (
            "seLinuxOptions",
            0,
            spec(json!({"securityContext": {"seLinuxOptions": {"type": "container_kvm_t", "level": "s0"}}})),
            spec(json!({
                "securityContext": {"seLinuxOptions": {"type": "container_engine_t"}},
                "ephemeralContainers": [container("e", json!({"seLinuxOptions": {"user": "u", "role": "r"}}))],
            })),
            r#"seLinuxOptions (pod and container "e" set forbidden securityContext.seLinuxOptions: type "container_engine_t"; user may not be set; role may not be set)"#,
        ),
        (
            "seLinuxOptions",
            31,
            spec(json!({"securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}})),
            spec(json!({"securityContext": {"seLinuxOptions": {"role": "r"}}})),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: role may not be set)",
        ),
        (
            "seccompProfile_baseline",
            0,
            annotated("seccomp.security.alpha.kubernetes.io/pod", "docker/default"),
            json!({"metadata": {"annotations": {
                "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
                "container.seccomp.security.alpha.kubernetes.io/c": "",
                "container.seccomp.security.alpha.kubernetes.io/none": "unconfined",
            }}}),
            r#"seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/c="", seccomp.security.alpha.kubernetes.io/pod="unconfined")"#,
        ),
        (
            "seccompProfile_baseline",
            19,
            spec(json!({"securityContext": {"seccompProfile": null}})),
            pod_with_containers(&[container("c", json!({"seccompProfile": {"type": "Unconfined"}}))]),
            r#"seccompProfile (container "c" must not set securityContext.seccompProfile.type to "Unconfined")"#,
        ),
        (
            "sysctls",
            0,
            sysctl("kernel.shm_rmid_forced"),
            spec(json!({"securityContext": {"sysctls": [
                {"name": "net.ipv4.ip_local_reserved_ports"}, {"name": "net.ipv4.tcp_syncookies"}, {"name": "vm.x"},
            ]}})),
            "forbidden sysctls (net.ipv4.ip_local_reserved_ports, vm.x)",
        ),
        (
            "sysctls",
            27,
            sysctl("net.ipv4.ip_local_reserved_ports"),
            sysctl("net.ipv4.tcp_keepalive_time"),
            "forbidden sysctls (net.ipv4.tcp_keepalive_time)",
        ),
        (
            "sysctls",
            29,
            sysctl("net.ipv4.tcp_keepalive_time"),
            sysctl("net.ipv4.tcp_wmem"),
            "forbidden sysctls (net.ipv4.tcp_wmem)",
        ),
        ("sysctls", 32, sysctl("net.ipv4.tcp_wmem"), sysctl("net.core.x"), "forbidden sysctls (net.core.x)"),
        (
            "windowsHostProcess",
            0,
            spec(json!({"securityContext": {"windowsOptions": {"hostProcess": false}}})),
            spec(json!({
                "securityContext": {"windowsOptions": {"hostProcess": true}},
                "containers": [container("c", json!({"windowsOptions": {"hostProcess": true}}))],
            })),
            r#"hostProcess (pod and container "c" must not set securityContext.windowsOptions.hostProcess=true)"#,
        ),
    ]
}

fn restricted() -> Vec<Row> {
    let escalates = r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)"#;
    let keeps =
        r#"unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"])"#;
    let adds = r#"unrestricted capabilities (container "d" must set securityContext.capabilities.drop=["ALL"]; container "c" must not include "CHOWN", "KILL" in securityContext.capabilities.add)"#;
    let unconfined = r#"seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#;
    vec![
        (
            "allowPrivilegeEscalation",
            8,
            json!({}),
            windows(json!({"allowPrivilegeEscalation": null})),
            escalates,
        ),
        (
            "allowPrivilegeEscalation",
            25,
            windows(json!({"allowPrivilegeEscalation": null})),
            pod_with_containers(&[container("c", json!({"allowPrivilegeEscalation": true}))]),
            escalates,
        ),
        (
            "capabilities_restricted",
            22,
            pod_with_containers(&[container("c", json!({"capabilities": {"add": ["NET_BIND_SERVICE"]}}))]),
            windows(json!({"capabilities": null})),
            keeps,
        ),
        (
            "capabilities_restricted",
            25,
            windows(json!({"capabilities": null})),
            pod_with_containers(&[
                container("c", json!({"capabilities": {"add": ["KILL", "CHOWN"]}})),
                container("d", json!({"capabilities": {"drop": ["KILL"]}})),
            ]),
            adds,
        ),
        (
            "restrictedVolumes",
            0,
            spec(json!({"volumes": [
                {"name": "a", "configMap": {}}, {"name": "b", "csi": {}}, {"name": "c", "downwardAPI": {}},
                {"name": "d", "emptyDir": {}}, {"name": "e", "ephemeral": {}}, {"name": "f", "secret": {}},
                {"name": "g", "persistentVolumeClaim": {}}, {"name": "h", "projected": {}},
            ]})),
            spec(json!({"volumes": [
                {"name": "a", "hostPath": {}}, {"name": "b", "nfs": {}}, {"name": "c", "image": {}},
                {"name": "d", "nfs": {}}, {"name": "e", "secret": {}},
            ]})),
            r#"restricted volume types (volumes "a", "b", "c", "d" use restricted volume types "hostPath", "nfs", "unknown")"#,
        ),
        (
            "restrictedVolumes",
            0,
            json!({}),
            spec(json!({"volumes": [{"name": "a", "gitRepo": {}}]})),
            r#"restricted volume types (volume "a" uses restricted volume type "gitRepo")"#,
        ),
        (
            "runAsNonRoot",
            0,
            spec(json!({
                "securityContext": {"runAsNonRoot": null},
                "containers": [container("c", json!({"runAsNonRoot": true}))],
            })),
            spec(json!({
                "hostUsers": false,
                "securityContext": {"runAsNonRoot": null},
                "containers": [container("c", json!({"runAsNonRoot": true})), container("d", json!({}))],
            })),
            r#"runAsNonRoot != true (pod or container "d" must set securityContext.runAsNonRoot=true)"#,
        ),
        (
            "runAsNonRoot",
            0,
            json!({}),
            spec(json!({
                "securityContext": {"runAsNonRoot": false},
                "containers": [container("c", json!({"runAsNonRoot": false})), container("d", json!({}))],
            })),
            r#"runAsNonRoot != true (pod and container "c" must not set securityContext.runAsNonRoot=false)"#,
        ),
        (
            "runAsUser",
            23,
            spec(json!({"securityContext": {"runAsUser": 1000}})),
            pod_with_containers(&[
                container("c", json!({"runAsUser": 0})),
                container("d", json!({"runAsUser": 0})),
            ]),
            r#"runAsUser=0 (containers "c", "d" must not set runAsUser=0)"#,
        ),
        (
            "seccompProfile_restricted",
            19,
            spec(json!({
                "securityContext": {"seccompProfile": null},
                "containers": [container("c", json!({"seccompProfile": {"type": "Localhost"}}))],
            })),
            spec(json!({"os": {"name": "windows"}, "securityContext": {"seccompProfile": null}})),
            unconfined,
        ),
        (
            "seccompProfile_restricted",
            25,
            spec(json!({"os": {"name": "windows"}, "securityContext": {"seccompProfile": null}})),
            spec(json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}})),
            r#"seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")"#,
        ),
    ]
}

#[test]
fn every_control_allows_and_rejects_its_example_pods() {
    let rows: Vec<Row> = baseline().into_iter().chain(restricted()).collect();
    for (id, since, good, bad, expected) in &rows {
        let control = CONTROLS.iter().find(|control| control.id == *id).unwrap();
        let (good, bad) = (pod(good), pod(bad));
        // A rule applies from its release until the release before the next rule.
        let next = control.rules.iter().map(|(next, _)| *next).filter(|next| next > since).min();
        let last = next.map_or(Version::Latest, |next| Version::Minor(next - 1));
        for version in [Version::Minor(*since), last] {
            let standard_of = |level| Standard { level, version };
            assert_eq!(faults(standard_of(control.level), &good), "", "{id} {version} allows: {good}");
            assert_eq!(
                faults(standard_of(control.level), &bad),
                *expected,
                "{id} {version} finds fault with: {bad}"
            );
            assert_eq!(faults(standard_of(Level::Privileged), &bad), "", "{id} is not in privileged");
            match control.level {
                Level::Baseline => {
                    assert_ne!(faults(standard_of(Level::Restricted), &bad), "", "{id} in restricted")
                }
                _ if control.replaces.is_none() => {
                    assert_eq!(faults(standard_of(Level::Baseline), &bad), "", "{id} is not in baseline");
                }
                _ => {}
            }
        }
    }
    let covered: BTreeSet<(&str, u64)> = rows.iter().map(|(id, since, ..)| (*id, *since)).collect();
    for control in CONTROLS {
        for (since, _) in control.rules {
            assert!(covered.contains(&(control.id, *since)), "{} since v1.{since} has no row", control.id);
        }
    }
}

#[test]
fn minimal_pod_violations_depend_on_release() {
    let plain = json!({"spec": {"containers": [{"name": "c"}]}});
    // Violations of a minimal pod by release.
    for (minor, reasons) in [
        (0, vec!["runAsNonRoot"]),
        (7, vec!["runAsNonRoot"]),
        (8, vec!["allowPrivilegeEscalation", "runAsNonRoot"]),
        (18, vec!["allowPrivilegeEscalation", "runAsNonRoot"]),
        (19, vec!["allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile"]),
        (22, vec!["allowPrivilegeEscalation", "unrestricted capabilities", "runAsNonRoot", "seccompProfile"]),
        (
            999,
            vec!["allowPrivilegeEscalation", "unrestricted capabilities", "runAsNonRoot", "seccompProfile"],
        ),
    ] {
        let have = faults(standard(Level::Restricted, minor), &plain);
        let places: Vec<_> = reasons.iter().map(|reason| have.find(reason).unwrap()).collect();
        assert!(places.is_sorted(), "v1.{minor}: {have}");
        assert_eq!(have.matches(" (").count(), reasons.len(), "v1.{minor}: {have}");
    }
    // A stricter control replaces the included control only while the stricter control is active.
    let adds = pod(&pod_with_containers(&[container("c", json!({"capabilities": {"add": ["NET_RAW"]}}))]));
    assert!(faults(standard(Level::Restricted, 21), &adds).starts_with("non-default capabilities ("));
    assert!(faults(standard(Level::Restricted, 22), &adds).starts_with("unrestricted capabilities ("));
    let root = pod(&spec(json!({"securityContext": {"runAsUser": 0}})));
    assert_eq!(faults(standard(Level::Restricted, 22), &root), "");
    assert_ne!(faults(standard(Level::Restricted, 23), &root), "");
}

#[test]
fn controls_and_rules_are_sorted() {
    let key = |level: Level, id: &'static str| (level, id);
    assert!(CONTROLS.iter().map(|control| key(control.level, control.id)).is_sorted());
    for control in CONTROLS {
        assert!(control.rules.iter().map(|(since, _)| *since).is_sorted(), "{}", control.id);
        if let Some(other) = control.replaces {
            assert!(CONTROLS.iter().any(|c| c.id == other && c.level < control.level), "{other}");
        }
    }
}
