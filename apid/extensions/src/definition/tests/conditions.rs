//! Tests of accepted names and conditions.

use super::*;
use apimachinery::names::Preset;

fn definition(plural: &str, kind: &str, short_names: Value) -> Object {
    let names = json!({
        "plural": plural, "singular": kind.to_lowercase(), "kind": kind,
        "listKind": format!("{kind}List"), "shortNames": short_names,
    });
    let status =
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]});
    Object::from_value(json!({"spec": {"group": "example.com", "names": names}, "status": status})).unwrap()
}

/// Applies the result of [`accept_names`] as the background task does.
fn apply(definition: &mut Object, in_use: &NamesInUse) -> AcceptedNames {
    let accepted = accept_names(definition, in_use);
    definition.part_mut("status").insert("acceptedNames".to_owned(), accepted.names.clone());
    set_condition(definition, &accepted.names_accepted, "2024-01-02T03:04:05Z");
    if let Some(condition) = &accepted.established {
        set_condition(definition, condition, "2024-01-02T03:04:05Z");
    }
    accepted
}

fn in_use(definitions: &[&Object]) -> NamesInUse {
    let mut names = NamesInUse::default();
    definitions.iter().for_each(|definition| names.add(definition));
    names
}

#[test]
fn free_names_are_accepted_then_established() {
    let mut widget = definition("widgets", "Widget", json!(["w"]));
    assert!(has_pending_names(&widget));
    assert_eq!(established(&widget), None);
    let others = in_use(&[&widget]);
    let accepted = apply(&mut widget, &others);
    assert_eq!(accepted.names_accepted.reason, "NoConflicts");
    assert_eq!(widget.at(&["status", "acceptedNames"]), widget.at(&["spec", "names"]));
    assert!(!has_pending_names(&widget) && !is_established(&widget));
    let installing = find_condition(&widget, ESTABLISHED).unwrap();
    assert_eq!((&installing["status"], &installing["reason"]), (&json!("False"), &json!("Installing")));
    let condition = established(&widget).unwrap();
    assert!(set_condition(&mut widget, &condition, "2024-01-02T03:04:06Z"));
    assert!(is_established(&widget));
    assert_eq!(find_condition(&widget, ESTABLISHED).unwrap()["lastTransitionTime"], "2024-01-02T03:04:06Z");
    assert_eq!(established(&widget), None);
}

#[test]
fn conflicting_kind_is_not_accepted_until_released() {
    let mut widget = definition("widgets", "Widget", json!(["w"]));
    let others = in_use(&[&widget]);
    apply(&mut widget, &others);
    let mut gadget = definition("gadgets", "Widget", json!(["g"]));
    gadget.get_mut("spec").unwrap()["names"]["singular"] = json!("gadget");
    gadget.get_mut("spec").unwrap()["names"]["listKind"] = json!("GadgetList");
    let others = in_use(&[&widget, &gadget]);
    let accepted = apply(&mut gadget, &others);
    assert_eq!(
        accepted.names,
        json!({"plural": "gadgets", "singular": "gadget", "kind": "", "listKind": "GadgetList", "shortNames": ["g"]})
    );
    assert_eq!(
        accepted.names_accepted,
        Condition::new(NAMES_ACCEPTED, "False", "KindConflict", "\"Widget\" is already in use")
    );
    assert_eq!(accepted.established.unwrap().reason, "NotAccepted");
    assert_eq!(established(&gadget), None);
    // A second attempt changes nothing; without the other definition the name is free.
    let others = in_use(&[&widget, &gadget]);
    assert_eq!(accept_names(&gadget, &others).established, None);
    let others = in_use(&[&gadget]);
    let accepted = apply(&mut gadget, &others);
    assert_eq!(accepted.names_accepted.status, "True");
    assert_eq!(accepted.established.unwrap().reason, "Installing");
}

#[test]
fn conflicting_short_names_keep_old_short_names() {
    let mut widget = definition("widgets", "Widget", json!(["w", "x"]));
    let others = in_use(&[&widget]);
    apply(&mut widget, &others);
    let mut gadget = definition("gadgets", "Gadget", json!(["w", "x", "gadgets"]));
    let others = in_use(&[&widget, &gadget]);
    let accepted = apply(&mut gadget, &others);
    assert_eq!(accepted.names_accepted.reason, "ShortNamesConflict");
    assert_eq!(accepted.names_accepted.message, "[\"w\" is already in use, \"x\" is already in use]");
    assert_eq!(accepted.names.get("shortNames"), None);
}

#[test]
fn names_of_built_in_kinds_are_never_accepted() {
    let mut built_in = NamesInUse::default();
    built_in.add_built_in(["roles", "role", "ro"], ["Role", "RoleList"]);
    for (plural, kind, short_names, reason) in [
        ("roles", "Widget", json!([]), "PluralConflict"),
        ("widgets", "Role", json!([]), "ListKindConflict"),
        ("widgets", "Widget", json!(["ro"]), "ShortNamesConflict"),
    ] {
        let mut new = definition(plural, kind, short_names);
        let accepted = apply(&mut new, &built_in);
        assert_eq!(
            (accepted.names_accepted.status, accepted.names_accepted.reason.as_str()),
            ("False", reason)
        );
        assert_eq!(accepted.established.unwrap().reason, "NotAccepted");
        assert_eq!(established(&new), None);
    }
    // A definition that was established before loses the condition.
    let mut old = definition("roles", "Widget", json!([]));
    let others = in_use(&[&old]);
    apply(&mut old, &others);
    let condition = established(&old).unwrap();
    set_condition(&mut old, &condition, "2024-01-02T03:04:05Z");
    assert!(is_established(&old) && built_in.has_built_in(&old));
    apply(&mut old, &built_in);
    assert!(!is_established(&old) && !is_condition_true(&old, NAMES_ACCEPTED));
}

#[test]
fn deletion_begins_with_pending_condition() {
    let mut widget = definition("widgets", "Widget", json!([]));
    widget.set_meta("deletionTimestamp", "2024-01-02T03:04:05Z");
    begin_deletion(&mut widget);
    let condition = find_condition(&widget, TERMINATING).unwrap().clone();
    assert_eq!(
        condition,
        json!({"type": "Terminating", "status": "True", "lastTransitionTime": "2024-01-02T03:04:05Z",
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"})
    );
    assert!(set_condition(&mut widget, &terminating(&Deletion::InProgress), "2024-01-02T03:04:06Z"));
    let before = widget.clone();
    begin_deletion(&mut widget);
    assert_eq!(widget, before, "a second delete changes nothing");
}

#[test]
fn invalid_bundle_prevents_establishment() {
    let mut widget = definition("widgets", "Widget", json!([]));
    let webhook = json!({"clientConfig": {"caBundle": "YQ=="}});
    widget
        .part_mut("spec")
        .insert("conversion".to_owned(), json!({"strategy": "Webhook", "webhook": webhook}));
    let others = in_use(&[]);
    apply(&mut widget, &others);
    assert_eq!(established(&widget).unwrap().reason, "InvalidCABundle");
}

#[test]
fn condition_time_changes_only_with_status() {
    let mut widget = definition("widgets", "Widget", json!([]));
    let condition = |status, message: &str| Condition::new(TERMINATING, status, "R", message);
    assert!(set_condition(&mut widget, &condition("True", "a"), "1"));
    assert!(!set_condition(&mut widget, &condition("True", "a"), "2"));
    assert!(set_condition(&mut widget, &condition("True", "b"), "3"));
    assert_eq!(find_condition(&widget, TERMINATING).unwrap()["lastTransitionTime"], "1");
    assert!(set_condition(&mut widget, &condition("False", "b"), "4"));
    assert_eq!(find_condition(&widget, TERMINATING).unwrap()["lastTransitionTime"], "4");
    assert!(remove_condition(&mut widget, TERMINATING) && !remove_condition(&mut widget, TERMINATING));
}

#[test]
fn non_structural_schema_is_reported() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let definition_with = |schema: Value| {
        let version = json!({"name": "v1", "schema": {"openAPIV3Schema": schema}});
        Object::from_value(json!({"spec": {"versions": [version]}})).unwrap()
    };
    let reason = |schema: Value| non_structural_schema(&definition_with(schema), &names);
    assert_eq!(reason(json!({"type": "object"})), None);
    let path = "spec.versions[0].schema.openAPIV3Schema";
    let condition = reason(json!({})).unwrap();
    assert_eq!(condition.message, format!("{path}.type: Required value: must not be empty at the root"));
    assert_eq!((condition.status, condition.reason.as_str()), ("True", "Violations"));
    let condition = reason(json!({"type": "object", "$ref": "x"})).unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), ("Unknown", "StructuralError"));
}

#[test]
fn approval_condition_exists_only_in_protected_groups() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let definition_with = |group: &str, approval: &str| {
        let annotations = json!({(names.approval_annotation()): approval});
        Object::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"group": group}}))
            .unwrap()
    };
    assert_eq!(approval_policy(&definition_with("example.com", ""), &names), None);
    for (value, status, reason) in [
        ("", "False", "MissingAnnotation"),
        ("x", "False", "InvalidAnnotation"),
        ("unapproved", "False", "UnapprovedAnnotation"),
        ("https://a.example/1", "True", "ApprovedAnnotation"),
    ] {
        let condition = approval_policy(&definition_with("a.k8s.io", value), &names).unwrap();
        assert_eq!((condition.status, condition.reason.as_str()), (status, reason), "{value}");
    }
    assert_eq!(cleanup_finalizer(&names), "customresourcecleanup.apiextensions.k8s.io");
}

#[test]
fn terminating_condition_follows_deletion() {
    for (deletion, status, reason) in [
        (Deletion::InProgress, "True", "InstanceDeletionInProgress"),
        (Deletion::NeverEstablished, "False", "NeverEstablished"),
        (Deletion::Failed("could not list".to_owned()), "True", "InstanceDeletionFailed"),
        (Deletion::Completed, "False", "InstanceDeletionCompleted"),
    ] {
        let condition = terminating(&deletion);
        assert_eq!((condition.status, condition.reason.as_str()), (status, reason));
    }
}

#[test]
fn condition_names_documents_that_are_too_large() {
    let mut definition = definition("widgets", "Widget", json!([]));
    let paths = ["/openapi/v3/apis/a/v1".to_owned(), "/openapi/v2".to_owned()];
    let condition = openapi_not_published(&paths, 256 << 20);
    assert_eq!(
        condition.message,
        "/openapi/v3/apis/a/v1, /openapi/v2 would exceed 256 MiB and return 503: too many definitions or too large schemas"
    );
    assert!(!has_condition(&definition, OPENAPI_PUBLISHED));
    assert!(set_condition(&mut definition, &condition, "2024-01-02T03:04:06Z"));
    assert!(has_condition(&definition, OPENAPI_PUBLISHED));
    assert!(!is_condition_true(&definition, OPENAPI_PUBLISHED));
}

#[test]
fn cleanup_finalizer_has_domain_of_preset() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    assert_eq!(cleanup_finalizer(&names), "customresourcecleanup.apiextensions.example.test");
}
