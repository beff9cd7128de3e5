//! Decisions and their reasons under one policy.

use super::super::{RbacDecision, RoleKind, RulesLimit};
use super::*;

fn example_policy() -> Policy {
    let mut p = policy();
    p.put_role(RoleKind::ClusterRole, "", "reader", role(&["get,list|-|configmaps,pods"]));
    p.put_role(RoleKind::ClusterRole, "", "health", role(&["get||||/healthz/*,/version"]));
    p.put_role(RoleKind::Role, "a", "writer", role(&["update|-|configmaps|one", "delete|-|pods"]));
    p.put_role(RoleKind::Role, "b", "writer", role(&["*|*|*"]));
    p.put_binding("", "everywhere", binding("ClusterRole/reader", &["U:alice"]));
    p.put_binding("", "probes", binding("ClusterRole/health", &["G:system:authenticated"]));
    p.put_binding("a", "team", binding("Role/writer", &["G:team", "U:carol"]));
    p.put_binding("a", "reads", binding("ClusterRole/reader", &["G:readers", "S:/robot", "S:b/robot"]));
    p.put_binding("a", "gone", binding("Role/nosuch", &["U:dave", "U:erin"]));
    p.put_binding("", "gone", binding("ClusterRole/nosuch", &["U:erin"]));
    p.put_binding("", "wrong", binding("Role/writer", &["U:frank"]));
    p
}

#[test]
fn rbac_decision_and_reason_by_table() {
    let p = example_policy();
    for (name, groups, ask, expected) in [
        (
            "alice",
            "",
            "get -/configmaps a/x",
            r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "alice""#,
        ),
        (
            "alice",
            "",
            "list -/pods z/",
            r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "alice""#,
        ),
        (
            "alice",
            "",
            "list -/pods /",
            r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "alice""#,
        ),
        ("Alice", "", "get -/configmaps a/x", ""),
        (
            "bob",
            "readers",
            "get -/pods a/x",
            r#"RBAC: allowed by RoleBinding "reads/a" of ClusterRole "reader" to Group "readers""#,
        ),
        ("bob", "readers", "get -/pods b/x", ""),
        ("bob", "readers", "get -/pods /x", ""),
        (
            "bob",
            "team,readers",
            "delete -/pods a/x",
            r#"RBAC: allowed by RoleBinding "team/a" of Role "writer" to Group "team""#,
        ),
        // Of two subjects that match the user, the reason names the first.
        (
            "carol",
            "team",
            "delete -/pods a/x",
            r#"RBAC: allowed by RoleBinding "team/a" of Role "writer" to Group "team""#,
        ),
        (
            "carol",
            "",
            "update -/configmaps a/one",
            r#"RBAC: allowed by RoleBinding "team/a" of Role "writer" to User "carol""#,
        ),
        ("carol", "", "update -/configmaps a/two", ""),
        ("carol", "", "update -/configmaps a/", ""),
        ("carol", "", "delete -/pods b/x", ""),
        // A ServiceAccount subject without a namespace means the namespace of the binding.
        (
            "system:serviceaccount:a:robot",
            "",
            "get -/pods a/x",
            r#"RBAC: allowed by RoleBinding "reads/a" of ClusterRole "reader" to ServiceAccount "robot/a""#,
        ),
        (
            "system:serviceaccount:b:robot",
            "",
            "get -/pods a/x",
            r#"RBAC: allowed by RoleBinding "reads/a" of ClusterRole "reader" to ServiceAccount "robot/b""#,
        ),
        ("system:serviceaccount:c:robot", "", "get -/pods a/x", ""),
        ("robot", "", "get -/pods a/x", ""),
        // Rules on non-resource URLs.
        (
            "zed",
            "system:authenticated",
            "get /healthz/ping",
            r#"RBAC: allowed by ClusterRoleBinding "probes" of ClusterRole "health" to Group "system:authenticated""#,
        ),
        ("zed", "system:authenticated", "get /metrics", ""),
        ("zed", "system:authenticated", "post /version", ""),
        ("zed", "", "get /version", ""),
        // The reason names missing roles.
        ("dave", "", "get -/pods a/x", r#"RBAC: role.rbac.authorization.k8s.io "nosuch" not found"#),
        ("dave", "", "get -/pods b/x", ""),
        (
            "erin",
            "",
            "get -/pods a/x",
            r#"RBAC: [clusterrole.rbac.authorization.k8s.io "nosuch" not found, role.rbac.authorization.k8s.io "nosuch" not found]"#,
        ),
        // A ClusterRoleBinding to a Role grants nothing.
        ("frank", "", "get -/pods a/x", r#"RBAC: role.rbac.authorization.k8s.io "writer" not found"#),
    ] {
        let groups: Vec<&str> = groups.split(',').filter(|g| !g.is_empty()).collect();
        let reason = match p.decide(&user(name, &groups), &request(ask)) {
            RbacDecision::Allowed { reason, .. } => reason,
            RbacDecision::NotAllowed { reason, .. } => reason,
        };
        assert_eq!(reason, expected, "{name} {groups:?} {ask}");
    }
}

#[test]
fn rbac_decision_reports_independence_of_object_name() {
    let p = example_policy();
    for (name, ask, allowed, any_name) in [
        ("alice", "get -/pods a/x", true, true),
        ("carol", "delete -/pods a/x", true, true),
        ("carol", "update -/configmaps a/one", true, false),
        ("carol", "update -/configmaps a/two", false, false),
        ("carol", "patch -/configmaps a/two", false, true),
        ("alice", "update -/configmaps a/two", false, true),
        ("alice", "get /metrics", false, false),
    ] {
        let got = match p.decide(&user(name, &[]), &request(ask)) {
            RbacDecision::Allowed { any_name, .. } => (true, any_name),
            RbacDecision::NotAllowed { any_name, .. } => (false, any_name),
        };
        assert_eq!(got, (allowed, any_name), "{name} {ask}");
    }
}

#[test]
fn policy_changes_take_effect_immediately() {
    let mut p = policy();
    let (alice, ask) = (user("alice", &[]), request("get -/pods a/x"));
    let allowed = |p: &Policy| matches!(p.decide(&alice, &ask), RbacDecision::Allowed { .. });
    p.put_binding("a", "b", binding("Role/r", &["U:alice", "U:alice"]));
    assert!(!allowed(&p), "the role does not exist yet");
    p.put_role(RoleKind::Role, "a", "r", role(&["get|-|pods"]));
    assert!(allowed(&p), "the role was created after its binding");
    p.put_role(RoleKind::Role, "a", "r", role(&["list|-|pods"]));
    assert!(!allowed(&p), "the rule was removed");
    p.put_role(RoleKind::Role, "a", "r", role(&["get|-|pods"]));
    p.put_binding("a", "b", binding("Role/r", &["U:bob"]));
    assert!(!allowed(&p), "the subject was removed");
    p.put_binding("a", "b", binding("Role/r", &["U:alice"]));
    p.delete_role(RoleKind::Role, "a", "r");
    assert!(!allowed(&p), "the role was deleted");
    p.put_role(RoleKind::Role, "a", "r", role(&["get|-|pods"]));
    p.delete_binding("a", "b");
    assert!(!allowed(&p), "the binding was deleted");
    p.delete_role(RoleKind::Role, "a", "r");
    p.delete_role(RoleKind::Role, "a", "r");
    p.delete_binding("a", "b");
    assert_eq!(p.role_and_binding_counts(), (0, 0));
    assert!(p.roles.iter().all(Option::is_none), "no slot is in use");
    p.put_role(RoleKind::Role, "a", "r2", role(&["get|-|pods"]));
    assert_eq!(p.roles.len(), 1, "slots are reused");
}

#[test]
fn denial_explanation_lists_nearest_misses() {
    let p = example_policy();
    let lines = |name: &str, ask: &str| p.explain(&user(name, &[]), &request(ask)).nearest_lines();
    let (carol, alice) = (
        r#"RoleBinding "team/a" of Role "writer" to User "carol" allows"#,
        r#"ClusterRoleBinding "everywhere" of ClusterRole "reader" to User "alice" allows"#,
    );
    for (name, ask, expected) in [
        (
            "carol",
            "update -/configmaps a/two",
            vec![format!("{carol} `update` on `configmaps` named `one`, not `two`")],
        ),
        (
            "carol",
            "update -/configmaps a/",
            vec![format!("{carol} `update` on `configmaps` named `one`, not without a name")],
        ),
        (
            "carol",
            "patch -/configmaps a/two",
            vec![format!("{carol} `update` on `configmaps` named `one`, not `patch`")],
        ),
        ("carol", "delete -/pods/log a/x", vec![format!("{carol} `delete` on `pods`, not on `pods/log`")]),
        (
            "carol",
            "delete metrics/pods a/x",
            vec![format!("{carol} `delete` on `pods` in API group ``, not `metrics`")],
        ),
        ("carol", "get -/secrets a/x", vec![]),
        ("carol", "delete -/pods b/x", vec![]),
        ("carol", "delete -/pods a/x", vec![]),
        ("alice", "delete -/pods a/x", vec![format!("{alice} `get`, `list` on `pods`, not `delete`")]),
        ("alice", "get /healthz/ping", vec![]),
        ("dave", "get -/pods a/x", vec![]),
    ] {
        assert_eq!(lines(name, ask), expected, "{name} {ask}");
    }
    let probe = p.explain(&user("zed", &["system:authenticated"]), &request("post /version")).nearest_lines();
    let path = r#"ClusterRoleBinding "probes" of ClusterRole "health" to Group "system:authenticated""#;
    assert_eq!(probe, [format!("{path} allows `get` on path `/version`, not `post`")]);
}

#[test]
fn denial_explanation_prefers_nearest_rules_and_counts_the_others() {
    let mut p = policy();
    p.put_role(
        RoleKind::Role,
        "a",
        "r",
        role(&["list|-|pods|y", "get|-|pods", "watch|-|pods", "list|-|pods|z", "create|-|pods"]),
    );
    p.put_binding("a", "b", binding("Role/r", &["U:alice"]));
    let lines = p.explain(&user("alice", &[]), &request("list -/pods a/x")).nearest_lines();
    let prefix = r#"RoleBinding "b/a" of Role "r" to User "alice" allows"#;
    assert_eq!(
        lines,
        [
            format!("{prefix} `list` on `pods` named `y`, not `x`"),
            format!("{prefix} `list` on `pods` named `z`, not `x`"),
            format!("{prefix} `get` on `pods`, not `list`"),
            "and 2 more".to_owned(),
        ]
    );
}

#[test]
fn denial_explanation_of_large_rule_is_bounded() {
    let mut p = policy();
    let verbs = vec!["v".repeat(100_000); 100].join(",");
    p.put_role(RoleKind::Role, "a", "r", role(&[&format!("{verbs},\n|-|pods")]));
    p.put_binding("a", "b", binding("Role/r", &["U:alice"]));
    let lines = p.explain(&user("alice", &[]), &request("get -/pods a/x")).nearest_lines();
    assert!(lines.len() == 1 && lines[0].len() < 1200, "{lines:?}");
    assert!(lines[0].contains("95 more on `pods`, not `get`"), "{lines:?}");
}

#[test]
fn decision_for_any_name_has_the_reason_of_every_name() {
    let mut p = policy();
    p.put_role(RoleKind::Role, "a", "named", role(&["get|-|pods|x"]));
    p.put_role(RoleKind::Role, "a", "all", role(&["get|-|pods"]));
    p.put_binding("a", "one", binding("Role/named", &["U:alice"]));
    p.put_binding("a", "two", binding("Role/all", &["U:alice"]));
    let decide = |name: &str| match p.decide(&user("alice", &[]), &request(&format!("get -/pods a/{name}"))) {
        RbacDecision::Allowed { reason, any_name, .. } => (reason, any_name),
        denied @ RbacDecision::NotAllowed { .. } => panic!("{denied:?}"),
    };
    let (decision_x, decision_y) = (decide("x"), decide("y"));
    assert_ne!(decision_x.0, decision_y.0, "two rules allow, so the reasons differ");
    assert_eq!((decision_x.1, decision_y.1), (false, false), "the reason of one name is not that of others");
}

#[test]
fn rules_of_user_are_listed_once_per_binding() {
    let mut p = example_policy();
    p.put_binding("a", "twice", binding("Role/writer", &["S:/robot", "U:x", "S:a/robot"]));
    let formatted_rules = |name: &str, groups: &[&str], namespace: &str| -> Vec<String> {
        let rules = p.rules_of(&user(name, groups), namespace, RulesLimit::NONE).rules;
        rules.iter().map(|rule| super::super::covers::format_rule(rule)).collect()
    };
    assert_eq!(formatted_rules("carol", &["team"], "a").len(), 2, "named by user and by group, listed once");
    assert_eq!(formatted_rules("carol", &["team"], "b"), [] as [&str; 0]);
    assert_eq!(
        formatted_rules("system:serviceaccount:a:robot", &[], "a").len(),
        3,
        "named twice, listed once"
    );
    assert_eq!(
        formatted_rules("alice", &["system:authenticated"], "a"),
        [
            r#"{APIGroups:[""], Resources:["configmaps" "pods"], Verbs:["get" "list"]}"#,
            r#"{NonResourceURLs:["/healthz/*" "/version"], Verbs:["get"]}"#
        ]
    );
    assert_eq!(p.rules_of(&user("erin", &[]), "a", RulesLimit::NONE).problems.len(), 2);
}

#[test]
fn rules_of_many_bindings_are_listed_once_and_within_limit() {
    let mut p = Policy::new(&names());
    let rules: Vec<String> = (0..100).map(|n| format!("get|-|r{n}")).collect();
    let rules: Vec<PolicyRule> = rules.iter().map(|text| rule(text)).collect();
    for role in ["one", "two"] {
        let spec = RoleSpec { rules: rules.clone(), ..RoleSpec::default() };
        p.put_role(RoleKind::ClusterRole, "", role, spec);
        for n in 0..60 {
            p.put_binding("", &format!("{role}-{n}"), binding(&format!("ClusterRole/{role}"), &["U:alice"]));
        }
    }
    let list = |limit| {
        let listed = p.rules_of(&user("alice", &[]), "a", limit);
        (listed.rules.len(), listed.is_truncated)
    };
    assert_eq!(list(RulesLimit::NONE), (100, false));
    assert_eq!(list(RulesLimit::new(100, usize::MAX)), (100, false));
    assert_eq!(list(RulesLimit::new(99, usize::MAX)), (99, true));
    let bytes = rules[..10].iter().map(PolicyRule::memory).sum();
    assert_eq!(list(RulesLimit::new(100, bytes)), (10, true));
}

#[test]
fn messages_about_missing_roles_are_limited() {
    let mut p = Policy::new(&names());
    let long_name = "x".repeat(100_000);
    p.put_binding("a", "long", binding(&format!("Role/{long_name}"), &["U:alice"]));
    for n in 0..1000 {
        p.put_binding("a", &format!("b{n}"), binding(&format!("Role/missing-{n}"), &["U:alice"]));
    }
    let problems = p.rules_of(&user("alice", &[]), "a", RulesLimit::NONE).problems;
    assert_eq!(problems.len(), 21);
    assert!(problems[20].contains("981 more bindings"), "{}", problems[20]);
    match p.decide(&user("alice", &[]), &request("get -/pods a/x")) {
        RbacDecision::NotAllowed { reason, .. } => assert!(reason.len() < 10_000, "{}", reason.len()),
        allowed @ RbacDecision::Allowed { .. } => panic!("{allowed:?}"),
    }
}
