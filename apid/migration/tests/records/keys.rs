//! Keys of annotations, labels, taints, finalizers and user extras, which product code builds with `Names`.
//!
//! Literals and constants are read from the calls. [`VARIABLES`] lists the keys of all other calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Functions of `Names` that build keys, with the domain of the keys.
const FUNCTIONS: [(&str, &str); 4] = [
    (".group_key(", "group"),
    (".group_sub_key(", "group"),
    (".label_key(", "label"),
    (".label_sub_key(", "label"),
];

/// Other names in the domains of keys: types of secrets, signers, an API version, a file path and an extension of
/// kubeconfig files.
const NOT_KEYS: [&str; 8] = [
    "abac.authorization/v1beta1",
    "bootstrap/token",
    "client.authentication/exec",
    "kube-apiserver-client",
    "legacy-unknown",
    "service-account-token",
    "serviceaccount",
    "tls",
];

/// Labels of nodes that rules and warnings name, and their replacements.
const NODE_LABELS: &[&str] = &[
    "app/created-by",
    "arch",
    "beta/arch",
    "beta/instance-type",
    "beta/os",
    "failure-domain.beta/region",
    "failure-domain.beta/zone",
    "node-role/control-plane",
    "node-role/master",
    "node/instance-type",
    "os",
    "scheduler.alpha/preferAvoidPods",
    "topology/region",
    "topology/zone",
];

/// Calls with arguments that are neither literals nor constants: file, arguments, keys. In a key, `*` is any
/// text.
///
/// A call without keys builds prefixes, types of secrets or names of signers.
const VARIABLES: &[(&str, &str, &[&str])] = &[
    (
        "apid/admission/src/default_toleration_seconds.rs",
        r#""node", name"#,
        &["node/not-ready", "node/unreachable"],
    ),
    ("apid/admission/src/node_restriction/labels.rs", r#"sub, """#, &[]),
    ("apid/admission/src/node_restriction/labels.rs", "name", &["arch", "hostname", "os"]),
    ("apid/admission/src/node_restriction/labels.rs", "sub, name", NODE_LABELS),
    ("apid/admission/src/node_restriction/mod.rs", "name", &[]),
    (
        "apid/admission/src/pod_security/mod.rs",
        r#""pod-security", name"#,
        &[
            "pod-security/audit-violations",
            "pod-security/enforce-policy",
            "pod-security/error",
            "pod-security/exempt",
        ],
    ),
    (
        "apid/admission/src/pod_security/policy.rs",
        r#""pod-security", mode.as_str()"#,
        &[
            "pod-security/audit",
            "pod-security/audit-version",
            "pod-security/enforce",
            "pod-security/enforce-version",
            "pod-security/warn",
            "pod-security/warn-version",
        ],
    ),
    (
        "apid/admission/src/pod_toleration_restriction.rs",
        r#""scheduler.alpha", name"#,
        &["scheduler.alpha/defaultTolerations", "scheduler.alpha/tolerationsWhitelist"],
    ),
    (
        "apid/admission/src/default_class.rs",
        r#"domain, "is-default-class""#,
        &[
            "ingressclass/is-default-class",
            "storageclass.beta/is-default-class",
            "storageclass/is-default-class",
        ],
    ),
    (
        "apid/admission/src/storage_object_in_use_protection.rs",
        "name",
        &["pv-protection", "pvc-protection", "vac-protection"],
    ),
    (
        "apid/admission/src/webhook/dispatcher.rs",
        r#"group, &format!("round_{}_index_{}", self.round, self.index)"#,
        &[
            "failed-open.mutation.webhook.admission/round_*_index_*",
            "failed-open.validating.webhook.admission/round_*_index_*",
            "mutation.webhook.admission/round_*_index_*",
        ],
    ),
    (
        "apid/kinds/src/autoscaling/horizontal_pod_autoscaler.rs",
        r#""autoscaling.alpha", name"#,
        &[
            "autoscaling.alpha/behavior",
            "autoscaling.alpha/conditions",
            "autoscaling.alpha/current-metrics",
            "autoscaling.alpha/metrics",
        ],
    ),
    ("apid/kinds/src/core/persistent_volume_rules.rs", "name", &["arch", "os"]),
    ("apid/kinds/src/core/persistent_volume_rules.rs", "sub, name", NODE_LABELS),
    ("apid/kinds/src/core/secret.rs", "d.name", &[]),
    ("apid/kinds/src/core/secret.rs", "name", &["service-account.name"]),
    (
        "apid/kinds/src/core/service_warnings.rs",
        r#""service", name"#,
        &["service/topology-aware-hints", "service/topology-mode"],
    ),
    ("apid/kinds/src/pods/app_armor.rs", "ANNOTATION, name", &["container.apparmor.security.beta/*"]),
    (
        "apid/kinds/src/pods/app_armor.rs",
        r#"ANNOTATION, container.text("name")"#,
        &["container.apparmor.security.beta/*"],
    ),
    (
        "apid/kinds/src/pods/defaults.rs",
        "sub_domain, name",
        &[
            "pod.alpha/init-container-statuses",
            "pod.alpha/init-containers",
            "pod.beta/init-container-statuses",
            "pod.beta/init-containers",
        ],
    ),
    (
        "apid/kinds/src/pods/validation/annotations.rs",
        "app_armor::ANNOTATION, name",
        &["container.apparmor.security.beta/*"],
    ),
    (
        "apid/kinds/src/pods/validation/annotations.rs",
        "SECCOMP_OF_CONTAINER, name",
        &["container.seccomp.security.alpha/*"],
    ),
    (
        "apid/kinds/src/pods/warnings.rs",
        "SECCOMP_OF_CONTAINER, name.text()",
        &["container.seccomp.security.alpha/*"],
    ),
    (
        "apid/kinds/src/pods/warnings.rs",
        r#"app_armor::ANNOTATION, container.child("name").text()"#,
        &["container.apparmor.security.beta/*"],
    ),
    (
        "apid/kinds/src/pods/warnings.rs",
        "sub, name",
        &["scheduler.alpha/critical-pod", "security.alpha/sysctls", "security.alpha/unsafe-sysctls"],
    ),
    ("apid/kinds/src/pods/warnings/scheduling.rs", "name", &["arch", "os"]),
    ("apid/kinds/src/pods/warnings/scheduling.rs", "sub, name", NODE_LABELS),
    (
        "apid/kinds/src/pods/warnings/volumes.rs",
        r#""volume.beta", name"#,
        &["volume.beta/mount-options", "volume.beta/storage-class"],
    ),
    ("apid/migration/src/deprecations/audit.rs", "name", &["deprecated", "removed-release"]),
    (
        "apid/migration/src/removed/autoscaling.rs",
        r#""autoscaling.alpha", name"#,
        &["autoscaling.alpha/conditions", "autoscaling.alpha/current-metrics", "autoscaling.alpha/metrics"],
    ),
    ("apid/migration/src/removed/certificates.rs", "signer", &[]),
    ("apid/controllers/src/certificates/rules.rs", "path", &[]),
    (
        "apid/controllers/src/start_objects/flow_control.rs",
        "AUTO_UPDATE.0, AUTO_UPDATE.1",
        &["apf/autoupdate-spec"],
    ),
    (
        "authd/src/authn/service_account.rs",
        r#""authentication", key"#,
        &[
            "authentication/credential-id",
            "authentication/node-name",
            "authentication/node-uid",
            "authentication/pod-name",
            "authentication/pod-uid",
        ],
    ),
    (
        "proto/apimachinery/src/names.rs",
        r#""rbac.authorization", &format!("aggregate-to-{role}")"#,
        &[
            "rbac.authorization/aggregate-to-admin",
            "rbac.authorization/aggregate-to-edit",
            "rbac.authorization/aggregate-to-view",
        ],
    ),
];

/// Returns the keys in the form `DOMAIN KEY`, where the domain is `group` or `label`.
///
/// # Panics
///
/// [`VARIABLES`] lacks a call, or lists a call that does not exist.
pub(super) fn keys() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = Vec::new();
    for folder in ["apid", "authd", "policies", "proto"] {
        add_product_code(&root, Path::new(folder), &mut sources);
    }
    let constants = constants(&sources);
    let (mut names, mut found) = (BTreeSet::new(), BTreeSet::new());
    for (file, code) in &sources {
        for (function, domain) in FUNCTIONS {
            for (start, matched) in code.match_indices(function) {
                let arguments = arguments(&code[start + matched.len()..]);
                let call = VARIABLES.iter().find(|(path, text, _)| path == file && *text == arguments);
                if let Some((path, text, keys)) = call {
                    found.insert((path, text));
                    names.extend(keys.iter().map(|key| format!("{domain} {key}")));
                    continue;
                }
                let parts = arguments.split(", ").map(|part| match part.strip_prefix('"') {
                    Some(literal) => literal.strip_suffix('"'),
                    None => constants.get(part.rsplit("::").next()?).copied().flatten(),
                });
                let parts: Option<Vec<&str>> = parts.collect();
                let parts =
                    parts.unwrap_or_else(|| panic!("{file}: `{function}{arguments})`: add it to VARIABLES"));
                let key = parts.join("/");
                if parts.last().is_some_and(|name| !name.is_empty()) && !NOT_KEYS.contains(&key.as_str()) {
                    names.insert(format!("{domain} {key}"));
                }
            }
        }
    }
    for (file, arguments, _) in VARIABLES {
        assert!(found.contains(&(file, arguments)), "{file} does not call with `{arguments}`: remove it");
    }
    names
}

/// Returns the arguments of a call on one line, from the text after the opening parenthesis.
fn arguments(text: &str) -> String {
    let mut depth = 0;
    let end = text.find(|c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth < 0
    });
    let arguments: Vec<&str> = text[..end.unwrap()].split_whitespace().collect();
    arguments.join(" ").trim_end_matches(',').to_owned()
}

/// Returns the text of each constant by its name; None if several constants of this name have different
/// texts.
fn constants(sources: &[(String, String)]) -> BTreeMap<&str, Option<&str>> {
    let mut found = BTreeMap::new();
    for line in sources.iter().flat_map(|(_, code)| code.lines()) {
        if let Some((_, constant)) = line.split_once("const ")
            && let Some((name, text)) = constant.split_once(": &str = \"")
            && let Some(text) = text.strip_suffix("\";")
        {
            let known = found.entry(name).or_insert(Some(text));
            *known = known.filter(|known| *known == text);
        }
    }
    found
}

/// Adds the paths and the code of the Rust files in a folder, without tests.
fn add_product_code(root: &Path, folder: &Path, sources: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = folder.join(&name);
        if root.join(&path).is_dir() {
            if !matches!(name.as_str(), "tests" | "target" | "examples") {
                add_product_code(root, &path, sources);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let code = fs::read_to_string(root.join(&path)).unwrap();
            let end = code.find("#[cfg(test)]\nmod tests {").unwrap_or(code.len());
            sources.push((path.to_str().unwrap().to_owned(), code[..end].to_owned()));
        }
    }
}
