//! The names that `--controllers` accepts.
//!
//! # Contract
//!
//! The names of all controllers of kube-controller-manager are accepted, so that its command lines can be
//! used. Controllers that neither process implements have no effect. Any other name is an error, because a
//! misspelt `-name` would disable nothing. An empty value is valid and enables no controller.
//!
//! # Reference
//!
//! The controllers of Kubernetes 1.33, with their names before 1.28 where these differ.

use crate::arguments::most_similar;

/// The name of each controller, and its name before Kubernetes 1.28 if that differs, else empty.
const KNOWN: &[(&str, &str)] = &[
    ("bootstrap-signer-controller", "bootstrapsigner"),
    ("certificatesigningrequest-approving-controller", "csrapproving"),
    ("certificatesigningrequest-cleaner-controller", "csrcleaner"),
    ("certificatesigningrequest-signing-controller", "csrsigning"),
    ("cloud-node-lifecycle-controller", "cloud-node-lifecycle"),
    ("clusterrole-aggregation-controller", "clusterrole-aggregation"),
    ("cronjob-controller", "cronjob"),
    ("daemonset-controller", "daemonset"),
    ("deployment-controller", "deployment"),
    ("device-taint-eviction-controller", ""),
    ("disruption-controller", "disruption"),
    ("endpoints-controller", "endpoint"),
    ("endpointslice-controller", "endpointslice"),
    ("endpointslice-mirroring-controller", "endpointslicemirroring"),
    ("ephemeral-volume-controller", "ephemeral-volume"),
    ("garbage-collector-controller", "garbagecollector"),
    ("horizontal-pod-autoscaler-controller", "horizontalpodautoscaling"),
    ("job-controller", "job"),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", ""),
    ("legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner"),
    ("namespace-controller", "namespace"),
    ("node-ipam-controller", "nodeipam"),
    ("node-lifecycle-controller", "nodelifecycle"),
    ("node-route-controller", "route"),
    ("persistentvolume-attach-detach-controller", "attachdetach"),
    ("persistentvolume-binder-controller", "persistentvolume-binder"),
    ("persistentvolume-expander-controller", "persistentvolume-expander"),
    ("persistentvolume-protection-controller", "pv-protection"),
    ("persistentvolumeclaim-protection-controller", "pvc-protection"),
    ("pod-garbage-collector-controller", "podgc"),
    ("replicaset-controller", "replicaset"),
    ("replicationcontroller-controller", "replicationcontroller"),
    ("resourceclaim-controller", "resource-claim-controller"),
    ("resourcequota-controller", "resourcequota"),
    ("root-ca-certificate-publisher-controller", "root-ca-cert-publisher"),
    ("selinux-warning-controller", ""),
    ("service-cidr-controller", ""),
    ("service-lb-controller", "service"),
    ("serviceaccount-controller", "serviceaccount"),
    ("serviceaccount-token-controller", "serviceaccount-token"),
    ("statefulset-controller", "statefulset"),
    ("storage-version-migrator-controller", ""),
    ("storageversion-garbage-collector-controller", "storage-version-gc"),
    ("taint-eviction-controller", ""),
    ("token-cleaner-controller", "tokencleaner"),
    ("ttl-after-finished-controller", "ttl-after-finished"),
    ("ttl-controller", "ttl"),
    ("validatingadmissionpolicy-status-controller", ""),
    ("volumeattributesclass-protection-controller", ""),
];

/// The name of a controller before Kubernetes 1.28; None if that name is the same or unknown.
pub fn old_name(name: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(known, old)| *known == name && !old.is_empty()).map(|(_, old)| *old)
}

/// An entry of `--controllers` with an unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is not in the list of known controllers{}", similar.map(hint).unwrap_or_default())]
pub struct UnknownController {
    /// The entry.
    pub entry: String,
    /// A known name that is similar to the name in the entry.
    pub similar: Option<&'static str>,
}

fn hint(name: &str) -> String {
    format!("; a similar controller is `{name}`")
}

/// Returns an error for each entry with an unknown name.
pub fn find_unknown(entries: &[String]) -> Vec<UnknownController> {
    let is_known = |word: &str| {
        let name = word.strip_prefix('-').unwrap_or(word);
        word == "*" || (!name.is_empty() && KNOWN.iter().any(|(new, old)| name == *new || name == *old))
    };
    let is_empty_value = entries.len() == 1 && entries.iter().all(|word| word.trim().is_empty());
    let unknown = entries.iter().map(|word| word.trim()).filter(|word| !is_empty_value && !is_known(word));
    let names = || KNOWN.iter().flat_map(|(new, old)| [*new, *old]).filter(|name| !name.is_empty());
    let error = |word: &str| UnknownController {
        entry: word.to_owned(),
        similar: most_similar(word.strip_prefix('-').unwrap_or(word), names()),
    };
    unknown.map(error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_controller_name_is_rejected() {
        for (flag, error_count) in [
            ("*", 0),
            ("", 0),
            ("*,tokencleaner,bootstrapsigner", 0),
            ("*, -token-cleaner-controller", 0),
            ("-ttl,deployment-controller", 0),
            ("*,tokencleaner,boostrapsigner", 1),
            ("-*", 1),
            ("--tokencleaner", 1),
            ("TokenCleaner,-,", 3),
        ] {
            let entries: Vec<String> = flag.split(',').map(str::to_owned).collect();
            let got = find_unknown(&entries);
            assert_eq!(got.len(), error_count, "{flag}: {got:?}");
        }
        assert!(find_unknown(&[]).is_empty());
    }

    #[test]
    fn error_suggests_similar_controller() {
        let text = |entry: &str| find_unknown(&[entry.to_owned()]).first().map(ToString::to_string);
        let error = "`-tokencleaners` is not in the list of known controllers";
        assert_eq!(text("-tokencleaners"), Some(format!("{error}; a similar controller is `tokencleaner`")));
        assert_eq!(text("xyz").as_deref(), Some("`xyz` is not in the list of known controllers"));
    }

    #[test]
    fn old_name_is_present_only_if_it_differs() {
        let names =
            ["namespace-controller", "ttl-controller", "service-cidr-controller", "none"].map(old_name);
        assert_eq!(names, [Some("namespace"), Some("ttl"), None, None]);
    }

    #[test]
    fn known_controllers_are_sorted_and_unique() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
