//! Tests of `authd audit-roles` with audit logs.

use std::io::Write as _;

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    flags: AuditRolesFlags,
}

fn event(user: &str, verb: &str, reference: Value) -> Value {
    json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete", "verb": verb,
        "user": {"username": user}, "objectRef": reference, "requestURI": "/api/v1/x?y",
        "annotations": {"authorization.k8s.io/decision": "allow"},
    })
}

fn core(resource: &str, namespace: &str, name: &str) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({"resource": resource, "subresource": subresource, "namespace": namespace, "name": name, "apiVersion": "v1"})
}

fn run_on(events: &[Value], flags: &[&str]) -> Result<Value, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for event in events {
        writeln!(file, "{event}").unwrap();
    }
    let path = file.path().to_str().unwrap();
    let line = Line::try_parse_from([&["audit-roles", path, "-o", "json"], flags].concat()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let output = runtime.block_on(run(line.flags)).map_err(|error| error.to_string())?;
    Ok(serde_json::from_str::<Value>(&output.text).unwrap()["items"].clone())
}

fn roles(events: &[Value], flags: &[&str]) -> Vec<Value> {
    let Value::Array(items) = run_on(events, flags).unwrap() else { panic!() };
    items.into_iter().filter(|item| item.get("rules").is_some()).collect()
}

#[test]
fn roles_grant_exactly_the_requests_of_the_user() {
    let events = [
        event("alice", "get", core("configmaps", "a", "x")),
        event("alice", "get", core("configmaps", "a", "y")),
        event("alice", "update", core("configmaps", "a", "x")),
        event("alice", "list", core("pods", "a", "")),
        event("alice", "list", core("secrets", "a", "")),
        event("alice", "get", core("pods/log", "a", "web")),
        event("alice", "create", core("configmaps", "b", "made")),
        event("alice", "list", core("nodes", "", "")),
        event("bob", "delete", core("nodes", "", "n")),
    ];
    assert_eq!(
        roles(&events, &["--user=alice"]),
        [
            json!({
                "kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": "audit-roles:alice"},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
            }),
            json!({
                "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": "audit-roles:alice", "namespace": "a"},
                "rules": [
                    {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["list"]},
                    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"], "resourceNames": ["web"]},
                    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["update"], "resourceNames": ["x"]},
                    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["x", "y"]},
                ],
            }),
            json!({
                "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1",
                "metadata": {"name": "audit-roles:alice", "namespace": "b"},
                "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}],
            }),
        ]
    );
}

/// The printed roles and bindings permit each request of the log, and no other request of a sample.
#[test]
fn printed_policy_decides_like_the_log() {
    let account = "system:serviceaccount:a:robot";
    let granted = [
        event(account, "get", core("configmaps", "a", "x")),
        event(account, "watch", core("pods", "", "")),
        event(account, "create", core("pods/exec", "b", "web")),
        json!({"apiVersion": "audit.k8s.io/v1", "verb": "get", "user": {"username": account}, "requestURI": "/metrics?x"}),
    ];
    let items = run_on(&granted, &["--service-account=a:robot"]).unwrap();
    let resource = |item: &Value| match item["kind"].as_str().unwrap() {
        "ClusterRole" => "clusterroles",
        "Role" => "roles",
        "ClusterRoleBinding" => "clusterrolebindings",
        _ => "rolebindings",
    };
    let objects = items.as_array().unwrap().iter().map(|item| (resource(item), item.clone()));
    let policy = policy::policy_of(objects).unwrap();
    let is_allowed = |name: &str, event: &Value| {
        let user = UserInfo { name: name.to_owned(), ..UserInfo::default() };
        matches!(policy.decide(&user, &attributes(event)), RbacDecision::Allowed { .. })
    };
    for event in &granted {
        assert!(is_allowed(account, event), "{event}");
        assert!(!is_allowed("other", event), "{event}");
    }
    for refused in [
        event(account, "get", core("configmaps", "a", "y")),
        event(account, "list", core("pods", "", "")),
        event(account, "create", core("pods/exec", "b", "other")),
        event(account, "create", core("pods", "b", "web")),
    ] {
        assert!(!is_allowed(account, &refused), "{refused}");
    }
}

#[test]
fn requests_that_every_user_may_make_need_no_role() {
    let review = json!({"resource": "selfsubjectaccessreviews", "apiGroup": "authorization.k8s.io", "apiVersion": "v1"});
    let mut discovery = event("alice", "get", Value::Null);
    discovery["requestURI"] = "/apis/apps/v1?timeout=30s".into();
    assert_eq!(roles(&[event("alice", "create", review), discovery], &["--user=alice"]), [json!(null); 0]);
}

#[test]
fn permissions_of_the_cluster_and_long_lists_of_names_shorten_roles() {
    let mut events: Vec<Value> =
        (0..4).map(|number| event("alice", "get", core("pods", "a", &format!("p{number}")))).collect();
    let rules = |events: &[Value], flags: &[&str]| -> Vec<Value> {
        roles(events, flags).iter().flat_map(|role| role["rules"].as_array().unwrap().clone()).collect()
    };
    assert_eq!(
        rules(&events, &["--user=alice", "--max-names=3"]),
        [json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})]
    );
    assert_eq!(
        rules(&events, &["--user=alice", "--max-names=0"])[0]["resourceNames"],
        json!(["p0", "p1", "p2", "p3"])
    );
    events.push(event("alice", "get", core("pods", "", "")));
    assert_eq!(roles(&events, &["--user=alice"]).len(), 1, "only the ClusterRole is left");
}

#[test]
fn impersonation_needs_its_own_permission_and_requests_belong_to_the_other_user() {
    let mut request = event("alice", "get", core("pods", "a", "x"));
    request["impersonatedUser"] = json!({"username": "bob", "groups": ["team", "system:authenticated"], "extra": {"reason": ["check"]}});
    let events = [request];
    let alice = roles(&events, &["--user=alice"]);
    assert_eq!(
        alice[0]["rules"],
        json!([
            {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
            {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["team"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/reason"], "verbs": ["impersonate"],
             "resourceNames": ["check"]},
        ])
    );
    assert_eq!(roles(&events, &["--user=bob"])[0]["kind"], "Role");
}

#[test]
fn denied_requests_count_unless_left_out() {
    let mut denied = event("alice", "get", core("pods", "a", "x"));
    denied["annotations"]["authorization.k8s.io/decision"] = "forbid".into();
    assert_eq!(roles(&[denied.clone()], &["--user=alice"]).len(), 1);
    assert_eq!(roles(&[denied], &["--user=alice", "--allowed-only"]).len(), 0);
}

#[test]
fn missing_user_and_damaged_lines_are_named() {
    let events = [event("alice", "get", core("pods", "a", "x"))];
    let error = run_on(&events, &[]).unwrap_err();
    assert!(error.contains("--user or --service-account") && error.contains("`alice`"), "{error}");
    let error = run_on(&events, &["--user=carol"]).unwrap_err();
    assert!(error.contains("no request of `carol`") && error.contains("`alice`"), "{error}");
    let error = run_on(&[json!("x"), json!(1)], &["--user=carol"]).unwrap_err();
    assert!(error.contains("apiVersion"), "{error}");
    assert!(run_on(&events, &["--service-account=robot"]).unwrap_err().contains("NAMESPACE:NAME"));
}

#[test]
fn lines_without_event_are_skipped_unless_the_log_has_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = AuditRolesFlags {
        files: vec![path.clone()],
        user: Some("alice".to_owned()),
        service_account: None,
        name: None,
        max_names: 10,
        allowed_only: false,
        watch: false,
        output: "json".to_owned(),
    };
    let event = event("alice", "get", core("pods", "a", "x"));
    std::fs::write(&path, format!("{{\"kind\":\"Ev\n{event}\n")).unwrap();
    let mut collected = Collected::new(&flags, flags.user.clone());
    collected.read_all(&mut LogLines::open(&path).unwrap()).unwrap();
    assert!(!collected.permissions.is_empty());
    std::fs::write(&path, "{\"kind\":\"Ev\n").unwrap();
    let mut collected = Collected::new(&flags, flags.user.clone());
    let error = collected.read_all(&mut LogLines::open(&path).unwrap()).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("one JSON event"), "{error}");
}

#[test]
fn rotated_log_is_followed_without_losing_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    std::fs::write(&path, "one\ntw").unwrap();
    let mut log = LogLines::open(&path).unwrap();
    let read = |log: &mut LogLines| {
        let mut lines = Vec::new();
        while let Some(line) = log.next_line().unwrap() {
            lines.push(line.trim_end().to_owned());
        }
        lines
    };
    assert_eq!(read(&mut log), ["one"]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"o\n").unwrap();
    std::fs::rename(&path, folder.path().join("audit-1.log")).unwrap();
    std::fs::write(&path, "three\n").unwrap();
    file.write_all(b"late\nfragm").unwrap();
    log.reopen_if_replaced().unwrap();
    assert_eq!(read(&mut log), ["two", "late", "fragm", "three"]);
}
