//! The formats of a matrix of a small policy.

use super::*;

fn matrix() -> Matrix {
    matrix_of("a")
}

fn matrix_of(namespace: &str) -> Matrix {
    let rule = |verbs: &[&str], resource: &str, names: &[&str]| json!({"verbs": verbs, "apiGroups": ["apps"], "resources": [resource], "resourceNames": names});
    let objects = [
        (
            "clusterroles",
            json!({"metadata": {"name": "r"}, "rules": [rule(&["get", "list"], "deployments", &[]), rule(&["delete"], "deployments", &["web"])]}),
        ),
        (
            "clusterrolebindings",
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
                {"kind": "User", "name": "=cmd,\"x\""}, {"kind": "Group", "name": "<b>ops</b>"},
                {"kind": "Group", "name": "system:nodes"}]}),
        ),
        (
            "rolebindings",
            json!({"metadata": {"name": "c", "namespace": "a"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "ServiceAccount", "name": "robot"},
                    {"kind": "ServiceAccount", "name": "agent", "namespace": "b"},
                    {"kind": "ServiceAccount", "name": "namespace-controller", "namespace": "kube-system"}]}),
        ),
    ];
    let policy = policy::policy_of(objects).unwrap();
    let resources = named_resources(&policy);
    assert_eq!(resources.iter().map(ToString::to_string).collect::<Vec<_>>(), ["deployments.apps"]);
    let verbs = ["get", "delete", "create"].map(str::to_owned).to_vec();
    Matrix::compute(&policy, namespace, verbs, &resources, false)
}

#[test]
fn built_in_accounts_of_both_presets_are_known() {
    let accounts = built_in_accounts();
    for (namespace, name) in
        [("kube-system", "namespace-controller"), ("kube-system", "clusterrole-aggregation-controller")]
    {
        assert!(accounts.contains(&(namespace.to_owned(), name.to_owned())), "{name}");
    }
    assert!(
        accounts.iter().any(|(namespace, _)| namespace != "kube-system"),
        "the preset svc has other names"
    );
    assert!(!accounts.contains(&("a".to_owned(), "namespace-controller".to_owned())));
}

#[test]
fn unprintable_characters_are_escaped_in_every_format() {
    let mut matrix = matrix();
    matrix.rows.truncate(1);
    matrix.rows[0].subject.name = "ja\u{202e}ne\u{1b}[2J\n\u{7f}".into();
    for text in [matrix.to_text(), matrix.to_csv(), html::page(&matrix)] {
        assert!(text.contains("ja\\u{202e}ne\\u{1b}[2J\\n\\u{7f}"), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{1b}', '\u{7f}']), "{text}");
    }
}

#[test]
fn matrix_text_has_a_row_for_each_subject_with_access() {
    assert_eq!(
        matrix().to_text(),
        "SUBJECT                 RESOURCE          GET  DELETE  CREATE\n\
         User =cmd,\"x\"           deployments.apps  x    n       -\n\
         Group <b>ops</b>        deployments.apps  x    n       -\n\
         ServiceAccount robot/a  deployments.apps  x    n       -\n\
         ServiceAccount agent/b  deployments.apps  x    n       -\n\
         # x: all objects, n: only named objects, -: none. RBAC only\n"
    );
}

#[test]
fn matrix_without_namespace_says_that_role_bindings_are_not_included() {
    let without_namespace = matrix_of("");
    let text = without_namespace.to_text();
    assert!(!text.contains("robot"), "{text}");
    assert!(text.ends_with("# RoleBindings are not included; select a namespace with -n\n"), "{text}");
    assert!(html::page(&without_namespace).contains("RoleBindings are not included."));
    assert!(!html::page(&matrix()).contains("RoleBindings are not included."));
}

#[test]
fn matrix_csv_quotes_fields_and_disarms_formulas() {
    let csv = matrix().to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "kind,subject,resource,get,delete,create");
    assert_eq!(lines[1], "User,\"'=cmd,\"\"x\"\"\",deployments.apps,all,named,none");
}

#[test]
fn matrix_json_has_the_access_by_verb() {
    let json = matrix().to_json();
    assert_eq!(json["namespace"], "a");
    let access = json!({"get": "all", "delete": "named", "create": "none"});
    let row = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "a", "resource": "deployments.apps", "access": access});
    assert_eq!(json["rows"][2], row);
}

#[test]
fn matrix_page_contains_no_markup_of_names_and_no_outside_resource() {
    let page = html::page(&matrix());
    assert!(!page.contains("<b>ops"), "names are escaped");
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;b&gt;ops&lt;/b&gt;"));
    assert!(page.contains("default-src 'none'"));
}
