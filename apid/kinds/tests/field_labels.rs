//! Field labels of all kinds, compared with the lists in the conversion functions of kube-apiserver 1.33.

use std::collections::BTreeSet;

use apimachinery::names::{Names, Preset};
use kinds::{EnabledVersions, Registry};

const EVENT_LABELS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// Labels of a version of a resource, in addition to `metadata.name` and `metadata.namespace`. All other kinds have only
/// these two.
const LABELS: &[(&str, &str, &[&str])] = &[
    (
        "v1",
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "spec.host",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
    ),
    ("v1", "nodes", &["spec.unschedulable"]),
    ("v1", "replicationcontrollers", &["status.replicas"]),
    ("v1", "events", EVENT_LABELS),
    ("v1", "namespaces", &["status.phase"]),
    ("v1", "secrets", &["type"]),
    ("v1", "services", &["spec.clusterIP", "spec.type"]),
    ("batch/v1", "jobs", &["status.successful"]),
    ("certificates.k8s.io/v1", "certificatesigningrequests", &["spec.signerName"]),
    ("certificates.k8s.io/v1alpha1", "clustertrustbundles", &["spec.signerName"]),
    ("certificates.k8s.io/v1beta1", "clustertrustbundles", &["spec.signerName"]),
    ("coordination.k8s.io/v1alpha2", "leasecandidates", &["spec.leaseName"]),
    ("coordination.k8s.io/v1beta1", "leasecandidates", &["spec.leaseName"]),
    (
        "events.k8s.io/v1",
        "events",
        &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
    ),
    ("resource.k8s.io/v1alpha3", "resourceslices", &["spec.driver", "spec.nodeName"]),
    ("resource.k8s.io/v1beta1", "resourceslices", &["spec.driver", "spec.nodeName"]),
    ("resource.k8s.io/v1beta2", "resourceslices", &["spec.driver", "spec.nodeName"]),
];

/// Fields of several kinds that are no labels.
const REFUSED: [&str; 4] = ["spec.replicas", "metadata.uid", "metadata.labels", "status.conditions"];

#[test]
fn field_labels_of_all_kinds_are_those_of_kube_apiserver() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
    let registry = Registry::with_versions(&names, &versions);
    let candidates: BTreeSet<&str> =
        LABELS.iter().flat_map(|(_, _, labels)| *labels).copied().chain(REFUSED).collect();
    let (mut differences, mut found_rows) = (Vec::new(), 0);
    for resource in registry.resources() {
        let (version, plural) = (resource.api_version(), resource.plural());
        let row = LABELS.iter().find(|(row_version, name, _)| *row_version == version && *name == plural);
        found_rows += usize::from(row.is_some());
        let expected: BTreeSet<&str> = row.into_iter().flat_map(|(_, _, labels)| *labels).copied().collect();
        let accepted: BTreeSet<&str> =
            candidates.iter().copied().filter(|label| resource.stored_field(label).is_some()).collect();
        if accepted != expected {
            differences.push(format!("{version} {plural}: {accepted:?}, expected {expected:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(found_rows, LABELS.len(), "each row is a kind");
}
