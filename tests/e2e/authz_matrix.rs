//! Compares the default policy with the reviewed access matrix `authz_matrix.out` (requirements A-DEF).
//!
//! The matrix has a row for each route of the discovery documents and a column for each kind of user.
//! The test fails if a route has no row or a cell differs. `UPDATE=1` rewrites the file; security reviewers
//! then review the diff.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

const EXPECTED_MATRIX: &str = include_str!("authz_matrix.out");

const HEAD: &str = "\
# Access of each user under the default policy of a new server (--authorization-mode Node,RBAC), from SubjectAccessReviews.
# A cell has a letter for each allowed verb: g get, l list, w watch, c create, u update, p patch, d delete,
# D deletecollection; a dot means that no verb is allowed. Reviews of namespaced resources and of single namespaces use
# the namespace `a`, where role bindings give the users view, edit and admin the roles of the same names. Members of
# system:masters have full access. tests/e2e/nodes.rs tests the access of nodes to single objects, for example to objects
# that the pods of the node use; in this matrix the node has no pods.
#
";

const VERBS: [(&str, char); 8] = [
    ("get", 'g'),
    ("list", 'l'),
    ("watch", 'w'),
    ("create", 'c'),
    ("update", 'u'),
    ("patch", 'p'),
    ("delete", 'd'),
    ("deletecollection", 'D'),
];

/// Number of concurrent reviews.
const CONCURRENCY: usize = 8;

/// Column title, user name and groups of each kind of user.
const USERS: [(&str, &str, &[&str]); 12] = [
    ("anonymous", "system:anonymous", &["system:unauthenticated"]),
    ("nobody", "nobody", &["system:authenticated"]),
    ("view", "view", &["system:authenticated"]),
    ("edit", "edit", &["system:authenticated"]),
    ("admin", "admin-of-a", &["system:authenticated"]),
    (
        "account",
        "system:serviceaccount:a:default",
        &["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"],
    ),
    ("node", "system:node:n", &["system:nodes", "system:authenticated"]),
    ("bootstrap", "system:bootstrap:abcdef", &["system:bootstrappers", "system:authenticated"]),
    ("scheduler", "system:kube-scheduler", &["system:authenticated"]),
    ("manager", "system:kube-controller-manager", &["system:authenticated"]),
    ("proxy", "system:kube-proxy", &["system:authenticated"]),
    ("monitoring", "monitor", &["system:monitoring", "system:authenticated"]),
];

/// A row of the matrix: a resource, or a non-resource path.
#[derive(Clone, Debug)]
struct Route {
    /// First cell of the row.
    label: String,
    /// Review attributes without the verb.
    attributes: Value,
    verbs: Vec<&'static str>,
}

impl Route {
    fn review(&self, verb: &str, user: &str, groups: &[&str]) -> Value {
        let mut attributes = self.attributes.clone();
        attributes["verb"] = verb.into();
        // Reviews of a single namespace use the namespace `a` as name and as namespace.
        if attributes["resource"] == "namespaces" && ["get", "update", "patch", "delete"].contains(&verb) {
            (attributes["namespace"], attributes["name"]) = ("a".into(), "a".into());
        }
        let kind = if attributes["path"].is_null() { "resourceAttributes" } else { "nonResourceAttributes" };
        json!({"spec": {"user": user, "groups": groups, kind: attributes}})
    }
}

/// All resources and subresources of discovery by group and name, then all non-resource paths.
async fn routes(admin: &Client) -> Vec<Route> {
    let mut routes = Vec::new();
    let groups = admin.get("/apis").await.expect(200);
    let groups = groups["groups"].as_array().expect("groups").iter().map(|group| {
        let version = group["preferredVersion"]["groupVersion"].as_str().expect("a version");
        (group["name"].as_str().expect("a name").to_owned(), format!("/apis/{version}"))
    });
    for (group, path) in [(String::new(), "/api/v1".to_owned())].into_iter().chain(groups) {
        let listed = admin.get(&path).await.expect(200);
        for resource in listed["resources"].as_array().expect("resources") {
            let name = resource["name"].as_str().expect("a name");
            let (plural, part) = name.split_once('/').unwrap_or((name, ""));
            let namespace = if resource["namespaced"] == true { "a" } else { "" };
            let listed: Vec<&str> =
                resource["verbs"].as_array().expect("verbs").iter().filter_map(Value::as_str).collect();
            routes.push(Route {
                label: if group.is_empty() { name.to_owned() } else { format!("{group} {name}") },
                attributes: json!({"group": group, "resource": plural, "subresource": part, "namespace": namespace}),
                verbs: VERBS.iter().map(|(verb, _)| *verb).filter(|verb| listed.contains(verb)).collect(),
            });
        }
    }
    routes.sort_by(|a, b| a.label.cmp(&b.label));
    let paths = admin.get("/").await.expect(200);
    let mut paths: Vec<String> = paths["paths"]
        .as_array()
        .expect("paths")
        .iter()
        .filter_map(|path| path.as_str().map(str::to_owned))
        .collect();
    // The single checks of a health endpoint share one route.
    paths.retain(|path| !["/healthz/", "/livez/", "/readyz/"].iter().any(|probe| path.starts_with(probe)));
    paths.extend(["/healthz/ping", "/livez/ping", "/readyz/ping", "/", "/no/such/path"].map(str::to_owned));
    paths.sort();
    paths.dedup();
    routes.extend(paths.into_iter().map(|path| Route {
        attributes: json!({"path": path}),
        label: path,
        verbs: vec!["get"],
    }));
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn default_policy_equals_reviewed_matrix() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
    for (user, role) in [("view", "view"), ("edit", "edit"), ("admin-of-a", "admin")] {
        plane.bind("a", user, &format!("ClusterRole/{role}"), &format!("User/{user}")).await;
    }
    let routes = Arc::new(routes(&admin).await);
    assert!(routes.len() > 100, "number of routes in discovery: {}", routes.len());
    let reviews = format!("{}/subjectaccessreviews", plane.api("authorization", "v1"));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..CONCURRENCY {
        let (routes, admin, reviews) = (Arc::clone(&routes), admin.clone(), reviews.clone());
        tasks.spawn(async move {
            let mut session = admin.connect().await.expect("a connection");
            let mut rows = Vec::new();
            for (at, route) in routes.iter().enumerate().skip(worker).step_by(CONCURRENCY) {
                let mut cells = Vec::with_capacity(USERS.len());
                for (_, user, groups) in USERS {
                    let mut cell = String::new();
                    for verb in &route.verbs {
                        let review = route.review(verb, user, groups).to_string();
                        let response =
                            session.request("POST", &reviews, review.as_bytes()).await.expect("a response");
                        if response.expect(201)["status"]["allowed"] == true {
                            cell.extend(
                                VERBS.iter().find(|(known, _)| known == verb).map(|(_, letter)| *letter),
                            );
                        }
                    }
                    cells.push(if cell.is_empty() { ".".to_owned() } else { cell });
                }
                rows.push((at, cells));
            }
            rows
        });
    }
    let mut rows = tasks.join_all().await.concat();
    rows.sort();
    let found = render(&routes, &rows);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/authz_matrix.out");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &found).expect("the matrix");
        return;
    }
    let differ: Vec<String> = found
        .lines()
        .filter(|line| !EXPECTED_MATRIX.lines().any(|known| known == *line))
        .map(|line| format!("+ {line}"))
        .chain(
            EXPECTED_MATRIX
                .lines()
                .filter(|known| !found.lines().any(|line| line == *known))
                .map(|line| format!("- {line}")),
        )
        .collect();
    assert!(
        differ.is_empty(),
        "the default policy differs from the reviewed matrix (UPDATE=1 rewrites the file):\n{}",
        differ.join("\n")
    );
}

fn render(routes: &[Route], rows: &[(usize, Vec<String>)]) -> String {
    let column_width = |column: usize, head: &str| {
        rows.iter().map(|(_, cells)| cells[column].len()).max().unwrap_or(0).max(head.len())
    };
    let first = routes.iter().map(|route| route.label.len()).max().unwrap_or(0);
    let mut text = HEAD.to_owned();
    let mut line = |name: &str, cells: Vec<&str>| {
        let mut row = format!("{name:first$}");
        for (column, (head, ..)) in USERS.iter().enumerate() {
            let _ = write!(row, "  {:width$}", cells[column], width = column_width(column, head));
        }
        let _ = writeln!(text, "{}", row.trim_end());
    };
    line("", USERS.iter().map(|(head, ..)| *head).collect());
    for (at, cells) in rows {
        line(&routes[*at].label, cells.iter().map(String::as_str).collect());
    }
    text
}
