//! Tests of the default policy: object names, their form under both presets, and limits on the rules.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::object::{Object, Value};
use bootstrap::{DefaultPolicy, default_policy};

fn names(preset: Preset) -> Names {
    Names::new(preset, DEFAULT_API_DOMAIN).unwrap()
}

fn policies_of_presets() -> [(Names, DefaultPolicy); 2] {
    [Preset::Kubernetes, Preset::Svc].map(|preset| {
        let names = names(preset);
        let policy = default_policy(&names);
        (names, policy)
    })
}

fn strings<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
    value[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn rules(object: &Object) -> impl Iterator<Item = &Value> {
    object.get("rules").and_then(Value::as_array).into_iter().flatten()
}

/// Formats an object as `Kind [namespace/]name`, for lists and messages.
fn title(object: &Object) -> String {
    match object.namespace() {
        "" => format!("{} {}", object.kind(), object.name()),
        namespace => format!("{} {namespace}/{}", object.kind(), object.name()),
    }
}

/// Without this test, a file that is not compiled in would have no effect and cause no error.
#[test]
fn every_manifest_file_is_compiled_in() {
    let folder = format!("{}/policy", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = entries.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let in_files: usize = texts.iter().map(|text| text.matches("\nroleRef:").count()).sum();
    let policy = default_policy(&names(Preset::Kubernetes));
    assert_eq!(policy.cluster_role_bindings.len() + policy.role_bindings.len(), in_files);
    let in_files: usize =
        texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("kind: ")).count();
    assert_eq!(policy.objects().count(), in_files);
}

/// Compares all defaults with a committed list, so that reviews show changes.
/// `UPDATE=1` rewrites the list.
#[test]
fn default_objects_match_committed_list() {
    for (names, policy) in policies_of_presets() {
        let mut titles: Vec<String> = policy.objects().map(title).collect();
        titles.sort();
        let unique: BTreeSet<&String> = titles.iter().collect();
        assert_eq!(unique.len(), titles.len(), "the manifests contain an object twice");
        let file = format!("{}/testdata/objects.{}.txt", env!("CARGO_MANIFEST_DIR"), names.preset());
        let list = titles.join("\n") + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &list).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap();
        assert_eq!(list, expected, "the manifests and {file} differ");
    }
}

#[test]
fn default_objects_have_bootstrap_label_and_autoupdate_annotation() {
    for (names, policy) in policies_of_presets() {
        let group = names.group("rbac.authorization");
        for (kind, list) in [
            ("ClusterRole", &policy.cluster_roles),
            ("ClusterRoleBinding", &policy.cluster_role_bindings),
            ("Role", &policy.roles),
            ("RoleBinding", &policy.role_bindings),
        ] {
            assert!(!list.is_empty());
            for object in list {
                let title = title(object);
                assert_eq!(object.kind(), kind);
                assert_eq!(object.api_version(), format!("{group}/v1"), "{title}");
                assert_eq!(object.label(&names.bootstrapping_label()), Some("rbac-defaults"), "{title}");
                assert_eq!(object.annotation(&names.autoupdate_annotation()), Some("true"), "{title}");
                assert_eq!(object.namespace().is_empty(), kind.starts_with("Cluster"), "{title}");
                assert_eq!(object.get("roleRef").is_some(), kind.ends_with("Binding"), "{title}");
                assert_eq!(object.get("rules").is_some(), kind.ends_with("Role"), "{title}");
            }
        }
    }
}

#[test]
fn default_rules_are_sorted_resource_or_non_resource_rules() {
    for (_, policy) in policies_of_presets() {
        for role in policy.cluster_roles.iter().chain(&policy.roles) {
            for rule in rules(role) {
                let title = format!("{}: {rule}", title(role));
                for field in ["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"] {
                    let items = strings(rule, field);
                    let sorted: BTreeSet<&str> = items.iter().copied().collect();
                    assert_eq!(items, sorted.into_iter().collect::<Vec<_>>(), "{field} of {title}");
                }
                assert!(!strings(rule, "verbs").is_empty(), "{title}");
                let on_paths = !strings(rule, "nonResourceURLs").is_empty();
                assert_eq!(strings(rule, "resources").is_empty(), on_paths, "{title}");
                assert_eq!(strings(rule, "apiGroups").is_empty(), on_paths, "{title}");
                assert!(strings(rule, "resourceNames").is_empty() || !on_paths, "{title}");
                let paths = strings(rule, "nonResourceURLs");
                assert!(paths.iter().all(|path| path.starts_with('/') || *path == "*"), "{title}");
            }
        }
    }
}

/// Without this test, a binding to a missing role would grant nothing and cause no error.
#[test]
fn default_bindings_reference_existing_default_roles() {
    for (names, policy) in policies_of_presets() {
        let group = names.group("rbac.authorization");
        let known: BTreeSet<String> = policy.cluster_roles.iter().chain(&policy.roles).map(title).collect();
        for binding in policy.cluster_role_bindings.iter().chain(&policy.role_bindings) {
            assert_eq!(binding.str_at(&["roleRef", "apiGroup"]), Some(group.as_str()));
            let kind = binding.str_at(&["roleRef", "kind"]).unwrap();
            let name = binding.str_at(&["roleRef", "name"]).unwrap();
            let role = match kind {
                "ClusterRole" => format!("ClusterRole {name}"),
                _ => format!("{kind} {}/{name}", binding.namespace()),
            };
            assert!(known.contains(&role), "{} names {role}", title(binding));
            for subject in binding.get("subjects").and_then(Value::as_array).into_iter().flatten() {
                let in_group = subject["kind"] != "ServiceAccount";
                assert_eq!(subject.get("apiGroup").is_some(), in_group, "{subject}");
                assert_eq!(subject.get("namespace").is_some(), !in_group, "{subject}");
            }
        }
    }
}

#[test]
fn aggregated_roles_have_expected_source_roles() {
    for (names, policy) in policies_of_presets() {
        for (role, feeders) in [
            ("admin", ["edit", "system:aggregate-to-admin"].as_slice()),
            ("edit", &["system:aggregate-to-edit", "view"]),
            ("view", &["system:aggregate-to-view"]),
        ] {
            let label = names.aggregate_to_label(role);
            let object = policy.cluster_roles.iter().find(|object| object.name() == role).unwrap();
            assert_eq!(object.get("rules"), Some(&Value::Null), "{role} is a projection");
            let selector = object.at(&["aggregationRule", "clusterRoleSelectors"]).unwrap();
            assert_eq!(selector, &serde_json::json!([{"matchLabels": {&label: "true"}}]), "{role}");
            let mut found: Vec<&str> = policy
                .cluster_roles
                .iter()
                .filter(|object| object.label(&label) == Some("true"))
                .map(Object::name)
                .collect();
            found.sort_unstable();
            assert_eq!(found, feeders, "{role}");
        }
    }
}

/// Requirements A-DEF-10 to 16, 41 and 56: the complete set of subjects with default permissions.
#[test]
fn default_bindings_have_only_expected_subjects() {
    for (names, policy) in policies_of_presets() {
        let mut granted: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for binding in policy.cluster_role_bindings.iter().chain(&policy.role_bindings) {
            for subject in binding.get("subjects").and_then(Value::as_array).into_iter().flatten() {
                let (kind, name) = (subject["kind"].as_str().unwrap(), subject["name"].as_str().unwrap());
                match kind {
                    "ServiceAccount" => assert_eq!(
                        subject["namespace"],
                        names.system_namespace,
                        "{}: service accounts of the system alone",
                        title(binding)
                    ),
                    _ => granted.entry(format!("{kind} {name}")).or_default().push(binding.name()),
                }
            }
        }
        let expected: BTreeMap<String, Vec<&str>> = [
            (
                "Group system:authenticated",
                vec!["system:discovery", "system:basic-user", "system:public-info-viewer"],
            ),
            ("Group system:masters", vec!["cluster-admin"]),
            ("Group system:monitoring", vec!["system:monitoring"]),
            ("Group system:serviceaccounts", vec!["system:service-account-issuer-discovery"]),
            ("Group system:unauthenticated", vec!["system:public-info-viewer"]),
            (
                "User system:kube-controller-manager",
                vec![
                    "system:kube-controller-manager",
                    "system::extension-apiserver-authentication-reader",
                    "system::leader-locking-kube-controller-manager",
                ],
            ),
            ("User system:kube-proxy", vec!["system:node-proxier"]),
            (
                "User system:kube-scheduler",
                vec![
                    "system:kube-scheduler",
                    "system:volume-scheduler",
                    "system::extension-apiserver-authentication-reader",
                    "system::leader-locking-kube-scheduler",
                ],
            ),
        ]
        .map(|(subject, bindings)| (subject.to_owned(), bindings))
        .into();
        assert_eq!(granted, expected);
    }
}

#[test]
fn component_roles_grant_expected_rules() {
    for (names, policy) in policies_of_presets() {
        let certificates = names.group("certificates");
        let (authentication, authorization) = (names.group("authentication"), names.group("authorization"));
        for (role, verb, group, resource) in [
            ("system:auth-delegator", "create", authentication.as_str(), "tokenreviews"),
            ("system:auth-delegator", "create", &authorization, "subjectaccessreviews"),
            ("system:kubelet-api-admin", "*", "", "nodes/proxy"),
            ("system:kubelet-api-admin", "*", "", "nodes/log"),
            ("system:kubelet-api-admin", "*", "", "nodes/metrics"),
            ("system:kubelet-api-admin", "*", "", "nodes/stats"),
            ("system:node-bootstrapper", "create", &certificates, "certificatesigningrequests"),
            ("system:node-bootstrapper", "watch", &certificates, "certificatesigningrequests"),
        ] {
            let object = policy.cluster_roles.iter().find(|object| object.name() == role).unwrap();
            let is_granted = rules(object).any(|rule| {
                strings(rule, "verbs").contains(&verb)
                    && strings(rule, "apiGroups").contains(&group)
                    && strings(rule, "resources").contains(&resource)
            });
            assert!(is_granted, "{role}: {verb} {resource}");
        }
    }
}

/// Each controller role has a binding to the service account with the name of the controller.
#[test]
fn controller_roles_are_bound_to_own_service_account() {
    for (names, policy) in policies_of_presets() {
        for role in &policy.cluster_roles {
            let Some(controller) = role.name().strip_prefix("system:controller:") else { continue };
            let binding =
                policy.cluster_role_bindings.iter().find(|binding| binding.name() == role.name()).unwrap();
            assert_eq!(
                binding.get("subjects").unwrap(),
                &serde_json::json!([
                    {"kind": "ServiceAccount", "name": controller, "namespace": names.system_namespace}
                ]),
            );
        }
    }
}

/// Requirements A-DEF-18 to 29 and 34 to 37: forbidden permissions of the user-facing roles.
#[test]
fn user_facing_roles_lack_forbidden_permissions() {
    const READS: [&str; 3] = ["get", "list", "watch"];
    for (names, policy) in policies_of_presets() {
        let rbac = names.group("rbac.authorization");
        let discovery = names.group("discovery");
        let covers = |role: &str, verb: &str, group: &str, resource: &str| {
            let object = policy.cluster_roles.iter().find(|object| object.name() == role).unwrap();
            rules(object).any(|rule| {
                strings(rule, "verbs").contains(&verb)
                    && strings(rule, "apiGroups").contains(&group)
                    && strings(rule, "resources").contains(&resource)
            })
        };
        let (view, edit, admin) =
            ("system:aggregate-to-view", "system:aggregate-to-edit", "system:aggregate-to-admin");
        for rule in rules(policy.cluster_roles.iter().find(|object| object.name() == view).unwrap()) {
            assert!(
                strings(rule, "verbs").iter().all(|verb| READS.contains(verb)),
                "view only reads: {rule}"
            );
        }
        for (role, verb, group, resource, expected) in [
            (view, "get", "", "pods", true),
            (view, "get", "", "secrets", false),
            (view, "get", rbac.as_str(), "roles", false),
            (edit, "get", "", "secrets", true),
            (edit, "create", "apps", "deployments", true),
            (edit, "get", &rbac, "roles", false),
            (edit, "create", &rbac, "rolebindings", false),
            (edit, "create", "", "endpoints", false),
            (edit, "create", &discovery, "endpointslices", false),
            (edit, "create", "", "resourcequotas", false),
            (edit, "create", "", "limitranges", false),
            (edit, "delete", "", "namespaces", false),
            (admin, "create", &rbac, "rolebindings", true),
            (admin, "update", &rbac, "roles", true),
            (admin, "create", "", "endpoints", false),
            (admin, "create", &discovery, "endpointslices", false),
            (admin, "create", "", "resourcequotas", false),
            (admin, "update", "", "namespaces", false),
        ] {
            assert_eq!(
                covers(role, verb, group, resource),
                expected,
                "{role}: {verb} {resource} in `{group}`"
            );
        }
    }
}

/// Renaming the Kubernetes names by the rule of requirements appendix (f) gives the objects of the preset
/// `svc`.
#[test]
fn default_policies_of_presets_differ_only_in_names() {
    let [(_, kubernetes), (names, svc)] = policies_of_presets();
    let rename_to_svc = |object: &Object| {
        let text = serde_json::to_string(&object.0).unwrap();
        let text = text
            .replace("kubernetes.io", DEFAULT_API_DOMAIN)
            .replace("k8s.io", DEFAULT_API_DOMAIN)
            .replace("\"policy\"", &format!("\"{}\"", names.group("policy")))
            .replace("kube-system", names.system_namespace)
            .replace("kube-public", names.public_namespace);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(kubernetes.objects().count(), svc.objects().count());
    for (ours, theirs) in svc.objects().zip(kubernetes.objects()) {
        let ours = ours.clone().into_value();
        assert_eq!(ours, rename_to_svc(theirs));
        let text = ours.to_string();
        assert!(!text.contains("k8s.io") && !text.contains("kubernetes.io"), "{text}");
        assert!(!text.contains("kube-system") && !text.contains("kube-public"), "{text}");
    }
}
