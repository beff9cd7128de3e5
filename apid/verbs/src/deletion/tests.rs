//! Tables of deletes: one object, consecutive deletes.

use apimachinery::names::{Names, Preset};
use std::sync::Arc;

use kinds::Registry;
use serde_json::json;

use super::*;

const NOW: &str = "2026-03-01T12:00:00Z";

fn timestamp(text: &str) -> Timestamp {
    time::parse(text).unwrap()
}

fn kind_of(kind: &str) -> Arc<Kind> {
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
    let resource = registry.resources().iter().find(|resource| resource.name() == kind).unwrap();
    Arc::clone(resource)
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

fn options(propagation: Option<Propagation>, orphan: Option<bool>) -> DeleteOptions {
    DeleteOptions { propagation, orphan_dependents: orphan, ..DeleteOptions::default() }
}

fn grace(seconds: Option<i64>) -> DeleteOptions {
    DeleteOptions { grace_period_seconds: seconds, ..DeleteOptions::default() }
}

#[test]
fn propagation_policy_sets_finalizer() {
    use Propagation::{Background, Foreground, Orphan};
    let hold = "example.com/hold";
    for (kind, before, propagation, orphan, after) in [
        // A kind with background propagation by default.
        ("ConfigMap", &[][..], None, None, None),
        ("ConfigMap", &[], Some(Background), None, None),
        ("ConfigMap", &[], None, Some(false), None),
        ("ConfigMap", &[], Some(Orphan), None, Some(&["orphan"][..])),
        ("ConfigMap", &[], None, Some(true), Some(&["orphan"])),
        ("ConfigMap", &[], Some(Foreground), None, Some(&["foregroundDeletion"])),
        ("ConfigMap", &[hold], None, None, Some(&[hold])),
        ("ConfigMap", &[hold], Some(Orphan), None, Some(&[hold, "orphan"])),
        // The object's finalizers decide if the options specify no policy.
        ("ConfigMap", &["orphan"], None, None, Some(&["orphan"])),
        ("ConfigMap", &["foregroundDeletion", hold], None, None, Some(&["foregroundDeletion", hold])),
        ("ConfigMap", &["orphan"], Some(Background), None, None),
        ("ConfigMap", &["orphan", hold], Some(Foreground), None, Some(&[hold, "foregroundDeletion"])),
        ("ConfigMap", &["foregroundDeletion"], None, Some(true), Some(&["orphan"])),
        // A kind with orphan propagation by default.
        ("Job", &[], None, None, Some(&["orphan"])),
        ("Job", &[], Some(Background), None, None),
        ("Job", &[], None, Some(false), None),
        ("Job", &["foregroundDeletion"], None, None, Some(&["foregroundDeletion"])),
        ("ReplicationController", &[], None, None, Some(&["orphan"])),
        ("ReplicaSet", &[], None, None, None),
        ("CronJob", &[], None, None, None),
        // A kind without dependents.
        ("Event", &[], Some(Orphan), None, None),
        ("Event", &["orphan"], None, None, None),
    ] {
        let mut old = object(json!({"metadata": {"name": "x"}}));
        if !before.is_empty() {
            old.set_meta("finalizers", before.to_vec());
        }
        let got = step(&old, &options(propagation, orphan), &kind_of(kind), timestamp(NOW));
        let case = format!("{kind} {before:?} {propagation:?} {orphan:?}");
        match (got, after) {
            (DeletionStep::Remove, None) => {}
            (DeletionStep::Mark(new), Some(after)) => {
                assert_eq!(new.finalizers().collect::<Vec<_>>(), after, "{case}");
                assert_eq!(new.meta_str("deletionTimestamp"), NOW, "{case}");
                assert_eq!(stored_grace_seconds(&new), 0, "{case}");
            }
            (got, after) => panic!("{case}: {got:?}, not {after:?}"),
        }
    }
}

#[test]
fn pod_grace_period_only_shrinks() {
    let pod = |spec: Value, phase: &str| {
        object(json!({"metadata": {"name": "p", "generation": 1}, "spec": spec, "status": {"phase": phase}}))
    };
    let scheduled_spec = json!({"nodeName": "n"});
    for (spec, phase, requested, want) in [
        (scheduled_spec.clone(), "Running", None, 30),
        (json!({"nodeName": "n", "terminationGracePeriodSeconds": 20}), "Running", None, 20),
        (json!({"nodeName": "n", "terminationGracePeriodSeconds": -4}), "Running", None, 1),
        (scheduled_spec.clone(), "Running", Some(50), 50),
        (scheduled_spec.clone(), "Running", Some(-3), 1),
        (scheduled_spec.clone(), "Running", Some(0), 0),
        (scheduled_spec.clone(), "Succeeded", Some(9), 0),
        (scheduled_spec.clone(), "Failed", None, 0),
        (json!({"terminationGracePeriodSeconds": 20}), "Pending", Some(5), 0),
    ] {
        let got = step(&pod(spec.clone(), phase), &grace(requested), &kind_of("Pod"), timestamp(NOW));
        let (new, removed) = match got {
            DeletionStep::Mark(new) => (new, false),
            DeletionStep::MarkAndRemove(new) => (new, true),
            other => panic!("{spec} {phase} {requested:?}: {other:?}"),
        };
        assert_eq!((stored_grace_seconds(&new), removed), (want, want == 0), "{spec} {phase} {requested:?}");
        assert_eq!(new.generation(), 2);
        assert_eq!(
            time::parse(new.meta_str("deletionTimestamp")).unwrap(),
            add_seconds(timestamp(NOW), want)
        );
    }

    // Consecutive deletes, one second apart: (requested seconds, seconds left, end in seconds after the first
    // request).
    let DeletionStep::Mark(mut now) =
        step(&pod(scheduled_spec, "Running"), &grace(None), &kind_of("Pod"), timestamp(NOW))
    else {
        panic!("marked")
    };
    for (i, (requested, want)) in [
        (None, None),
        (Some(30), None),
        (Some(50), None),
        (Some(20), Some((20, 20))),
        (Some(25), None),
        // A grace period that is shorter than the elapsed time ends now, never in the past.
        (Some(3), Some((3, 6))),
        (Some(-9), Some((1, 7))),
        (Some(0), Some((0, 8))),
    ]
    .into_iter()
    .enumerate()
    {
        let time = add_seconds(timestamp(NOW), i as i64 + 1);
        match (step(&now, &grace(requested), &kind_of("Pod"), time), want) {
            (DeletionStep::Wait, None) => {}
            (DeletionStep::Mark(new), Some((seconds, end))) if seconds > 0 => {
                assert_eq!(stored_grace_seconds(&new), seconds);
                assert_eq!(
                    timestamp(new.meta_str("deletionTimestamp")),
                    add_seconds(timestamp(NOW), end),
                    "{requested:?}"
                );
                assert_eq!(new.generation(), 2, "generation increases once");
                now = new;
            }
            (DeletionStep::MarkAndRemove(new), Some((0, end))) => {
                assert_eq!(timestamp(new.meta_str("deletionTimestamp")), add_seconds(timestamp(NOW), end));
            }
            (got, want) => panic!("{requested:?}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn second_delete_changes_only_propagation_policy() {
    let old = object(json!({"metadata": {"name": "x", "generation": 3, "finalizers": ["example.com/hold"]}}));
    let DeletionStep::Mark(marked) =
        step(&old, &options(Some(Propagation::Foreground), None), &kind_of("ReplicaSet"), timestamp(NOW))
    else {
        panic!("marked")
    };
    assert_eq!(marked.generation(), 4);
    let later = add_seconds(timestamp(NOW), 60);
    for again in [DeleteOptions::default(), grace(Some(5)), options(Some(Propagation::Foreground), None)] {
        assert_eq!(step(&marked, &again, &kind_of("ReplicaSet"), later), DeletionStep::Wait, "{again:?}");
    }
    let orphan = options(Some(Propagation::Orphan), None);
    let DeletionStep::Mark(orphaning) = step(&marked, &orphan, &kind_of("ReplicaSet"), later) else {
        panic!("marked")
    };
    assert_eq!(orphaning.finalizers().collect::<Vec<_>>(), ["example.com/hold", "orphan"]);
    assert_eq!((orphaning.generation(), orphaning.meta_str("deletionTimestamp")), (4, NOW));
    // The marked object has no finalizers and no grace period, as after a crash between two writes.
    let mut without_finalizers = marked;
    without_finalizers.remove_meta("finalizers");
    assert!(is_deletion_complete(&without_finalizers, &kind_of("ReplicaSet")));
    assert_eq!(
        step(&without_finalizers, &DeleteOptions::default(), &kind_of("ReplicaSet"), later),
        DeletionStep::Remove
    );
}

#[test]
fn namespace_delete_marks_terminating_until_spec_finalizers_are_removed() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let old = object(json!({
        "metadata": {"name": "x"}, "spec": {"finalizers": [names.api_service]}, "status": {"phase": "Active"},
    }));
    let DeletionStep::Mark(marked) = step(&old, &grace(Some(0)), &kind_of("Namespace"), timestamp(NOW))
    else {
        panic!("marked")
    };
    assert_eq!(marked.str_at(&["status", "phase"]), Some("Terminating"));
    assert!(marked.meta().unwrap().get("deletionGracePeriodSeconds").is_none());
    let again = options(Some(Propagation::Orphan), None);
    assert_eq!(step(&marked, &again, &kind_of("Namespace"), timestamp(NOW)), DeletionStep::Wait);
    assert!(!is_deletion_complete(&marked, &kind_of("Namespace")));
}

#[test]
fn deletion_completes_without_finalizers_and_grace_period() {
    for (metadata, want) in [
        (json!({}), false),
        (json!({"deletionTimestamp": NOW}), true),
        (json!({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0}), true),
        (json!({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}), false),
        (json!({"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0, "finalizers": ["a/b"]}), false),
        (json!({"deletionGracePeriodSeconds": 0}), false),
    ] {
        let object = object(json!({"metadata": metadata}));
        assert_eq!(is_deletion_complete(&object, &kind_of("Pod")), want, "{metadata}");
    }
}
