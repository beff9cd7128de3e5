//! API requests of kubectl commands: documented paths, one request per object.

use serde_json::Value;
use tests::harness::ControlPlane;

use super::manifest_directory::DIRECTORY;
use super::{Kubectl, with_each_release};

/// A request from the `-v=6` log of kubectl.
#[derive(Debug)]
struct Request {
    method: String,
    path: String,
    status: u16,
}

/// Runs a command, and returns its API requests and its standard output.
fn requests(plane: &ControlPlane, kubectl: &Kubectl, line: &str) -> (Vec<Request>, String) {
    let ran = kubectl.run(&format!("{line} -v=6"), "");
    assert!(ran.status.success(), "{ran}");
    // `GET https://… 200 OK in 2 milliseconds`, since 1.33 `verb="GET" url="https://…" status="200 OK"`.
    let requests = ran.err.lines().filter_map(|line| {
        let (before, rest) = line.split_once(&plane.url())?;
        let method = before.trim_end_matches(" url=\"").split([' ', '"']).rfind(|word| !word.is_empty())?;
        let (url, rest) = rest.split_once([' ', '"'])?;
        let status = rest.trim_start_matches([' ', '"']).trim_start_matches("status=\"");
        Some(Request {
            method: method.to_owned(),
            path: url.split_once('?').map_or(url, |(path, _)| path).to_owned(),
            status: status.get(..3)?.parse().ok()?,
        })
    });
    (requests.collect(), ran.out)
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_sends_one_request_per_object() {
    with_each_release(assert_one_request_per_object).await;
}

fn assert_one_request_per_object(plane: &ControlPlane, kubectl: &Kubectl) {
    let count = |requests: &[Request], method: &str| requests.iter().filter(|r| r.method == method).count();
    let mut all = Vec::new();

    let (made, out) = requests(plane, kubectl, &format!("create -f {DIRECTORY}"));
    assert_eq!(count(&made, "POST"), out.lines().count(), "{made:?}");
    all.extend(made);

    let (applied, out) = requests(plane, kubectl, &format!("apply -f {DIRECTORY}/04-settings.yaml"));
    let read = applied.iter().filter(|r| r.path.starts_with("/api/v1/namespaces/bakery/")).count();
    assert_eq!((out.lines().count(), count(&applied, "PATCH")), (2, 2), "{applied:?}");
    assert_eq!(read, 4, "one GET and one PATCH per object: {applied:?}");
    all.extend(applied);

    // kubectl assembles a list of several kinds from several requests.
    let (lists, out) = requests(plane, kubectl, "get configmaps,secrets -n bakery -o json");
    let list: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"List".into(), &"v1".into()));
    let kinds: Vec<&Value> =
        list["items"].as_array().expect("items").iter().map(|item| &item["kind"]).collect();
    assert!(kinds.contains(&&"ConfigMap".into()) && kinds.contains(&&"Secret".into()), "{kinds:?}");
    let listed: Vec<&str> =
        lists.iter().map(|r| r.path.as_str()).filter(|path| path.starts_with("/api/v1/")).collect();
    assert_eq!(listed, ["/api/v1/namespaces/bakery/configmaps", "/api/v1/namespaces/bakery/secrets"]);
    all.extend(lists);

    for line in [
        "get pods -A -o wide",
        "describe deployment shop -n bakery",
        "label configmap recipes -n bakery a=b",
        "scale deployment shop -n bakery --replicas=1",
        "explain pods.spec",
        "auth can-i list pods",
        "delete configmap recipes -n bakery --wait=false",
    ] {
        all.extend(requests(plane, kubectl, line).0);
    }
    for Request { method, path, status } in &all {
        let is_documented = ["/api", "/apis", "/openapi/v2", "/openapi/v3", "/version"]
            .iter()
            .any(|root| path == root || path.starts_with(&format!("{root}/")));
        assert!(is_documented, "{method} {path}");
        assert!(["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()), "{method} {path}");
        assert!(*status < 400, "{method} {path}: {status}");
    }
}
