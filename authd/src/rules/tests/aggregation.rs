//! Aggregated ClusterRoles: effective rules, levels, cycles, and written rules.

use std::collections::BTreeMap;

use super::super::covers::format_rule;
use super::super::selector::Selector;
use super::super::{RbacDecision, RoleKind};
use super::*;

fn selector(pairs: &[(&str, &str)]) -> Selector {
    let match_labels: BTreeMap<String, String> =
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Selector { match_labels, ..Selector::default() }
}

fn aggregating_role(selectors: Vec<Selector>, labels: &[(&str, &str)]) -> RoleSpec {
    RoleSpec { aggregation: Some(selectors), ..role_with_labels(&[], labels) }
}

fn put(p: &mut Policy, name: &str, spec: RoleSpec) {
    p.put_role(RoleKind::ClusterRole, "", name, spec);
}

fn effective(p: &Policy, name: &str) -> Vec<String> {
    p.effective_rules(RoleKind::ClusterRole, "", name).unwrap().iter().map(format_rule).collect()
}

const PODS: &str = r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#;
const MAPS: &str = r#"{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}"#;

#[test]
fn aggregated_role_follows_its_parts() {
    let mut p = policy();
    put(&mut p, "sum", aggregating_role(vec![selector(&[("to-sum", "true")])], &[]));
    p.put_binding("", "b", binding("ClusterRole/sum", &["U:alice"]));
    let is_allowed = |p: &Policy| {
        matches!(p.decide(&user("alice", &[]), &request("get -/pods a/x")), RbacDecision::Allowed { .. })
    };
    assert!(!is_allowed(&p));
    put(&mut p, "part", role_with_labels(&["get|-|pods"], &[("to-sum", "true")]));
    assert!(is_allowed(&p), "a part was added");
    put(&mut p, "also", role_with_labels(&["get|-|configmaps", "get|-|pods"], &[("to-sum", "true")]));
    assert_eq!(effective(&p, "sum"), [MAPS, PODS], "in name order, without duplicates");
    put(&mut p, "also", role_with_labels(&["get|-|configmaps"], &[("to-sum", "no")]));
    put(&mut p, "part", role_with_labels(&["list|-|pods"], &[("to-sum", "true")]));
    assert!(!is_allowed(&p), "one part lost its label, the second part its rule");
    put(&mut p, "part", role_with_labels(&["get|-|pods"], &[("to-sum", "true")]));
    assert!(is_allowed(&p));
    p.delete_role(RoleKind::ClusterRole, "", "part");
    assert!(!is_allowed(&p), "the part was deleted");
}

#[test]
fn role_without_aggregation_grants_its_written_rules() {
    let written = role_with_labels(&["get|-|pods"], &[]).rules;
    let sum = RoleSpec { rules: written, ..aggregating_role(vec![selector(&[("to-sum", "true")])], &[]) };
    for loads_snapshot in [false, true] {
        let empty = if loads_snapshot { Policy::for_snapshot(&names()) } else { policy() };
        let mut p = empty.with_aggregation(false);
        put(&mut p, "part", role_with_labels(&["get|-|configmaps"], &[("to-sum", "true")]));
        put(&mut p, "sum", sum.clone());
        p.complete_snapshot();
        assert_eq!(effective(&p, "sum"), [PODS]);
        assert!(p.stale_aggregated_roles().is_empty(), "the controller has no work");
        p.delete_role(RoleKind::ClusterRole, "", "part");
        assert_eq!(effective(&p, "sum"), [PODS]);
    }
}

#[test]
fn aggregation_through_levels_and_cycles_terminates() {
    let mut p = policy();
    put(&mut p, "view", aggregating_role(vec![selector(&[("to", "view")])], &[("to", "edit")]));
    put(&mut p, "edit", aggregating_role(vec![selector(&[("to", "edit")])], &[("to", "view")]));
    put(&mut p, "admin", aggregating_role(vec![selector(&[("to", "edit")])], &[]));
    put(&mut p, "leaf", role_with_labels(&["get|-|pods"], &[("to", "view")]));
    for name in ["view", "edit", "admin"] {
        assert_eq!(effective(&p, name), [PODS], "{name}");
    }
    p.delete_role(RoleKind::ClusterRole, "", "leaf");
    for name in ["view", "edit", "admin"] {
        assert_eq!(effective(&p, name), [] as [&str; 0], "{name}: a cycle keeps no rules alive");
    }
}

#[test]
fn aggregated_roles_are_computed_at_end_of_snapshot() {
    let mut p = Policy::for_snapshot(&names());
    put(&mut p, "sum", aggregating_role(vec![selector(&[("to", "sum")])], &[]));
    put(&mut p, "a", role_with_labels(&["get|-|pods"], &[("to", "sum")]));
    assert_eq!(effective(&p, "sum"), [] as [&str; 0]);
    p.complete_snapshot();
    assert_eq!(effective(&p, "sum"), [PODS]);
}

#[test]
fn written_rules_of_aggregated_role_are_ignored_and_replaced() {
    let mut p = policy();
    put(&mut p, "part", role_with_labels(&["get|-|pods"], &[("to", "sum")]));
    put(
        &mut p,
        "sum",
        RoleSpec { rules: vec![rule("*|*|*")], ..aggregating_role(vec![selector(&[("to", "sum")])], &[]) },
    );
    assert_eq!(effective(&p, "sum"), [PODS]);
    let stale = p.stale_aggregated_roles();
    assert_eq!(stale.len(), 1);
    assert_eq!((&*stale[0].0, format_rule(&stale[0].1[0]).as_str()), ("sum", PODS));
    put(
        &mut p,
        "sum",
        RoleSpec {
            rules: vec![rule("get|-|pods")],
            ..aggregating_role(vec![selector(&[("to", "sum")])], &[])
        },
    );
    assert_eq!(p.stale_aggregated_roles(), []);
    put(&mut p, "sum", aggregating_role(vec![], &[]));
    assert_eq!(
        effective(&p, "sum"),
        [] as [&str; 0],
        "an aggregation rule without a selector grants nothing"
    );
}

#[test]
fn aggregation_selector_matches_labels_and_expressions() {
    use apimachinery::attributes::{Operator, Requirement};
    let labels: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
    for (key, operator, values, expected) in [
        ("a", Operator::In, vec!["1", "2"], true),
        ("a", Operator::In, vec!["2"], false),
        ("b", Operator::In, vec![""], false),
        ("a", Operator::NotIn, vec!["1"], false),
        ("b", Operator::NotIn, vec!["1"], true),
        ("a", Operator::Exists, vec![], true),
        ("b", Operator::Exists, vec![], false),
        ("a", Operator::DoesNotExist, vec![], false),
        ("b", Operator::DoesNotExist, vec![], true),
    ] {
        let values = values.into_iter().map(str::to_owned).collect();
        let expression = Requirement { key: key.into(), operator, values };
        let selector = Selector { match_expressions: vec![expression], ..Selector::default() };
        assert_eq!(selector.matches(&labels), expected, "{selector:?}");
    }
    assert!(Selector::default().matches(&labels), "the empty selector chooses everything");
    assert!(!Selector { invalid: true, ..Selector::default() }.matches(&labels));
}
