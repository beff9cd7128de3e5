//! Order of the keys of JSON responses: the order of the types, in every representation.

use serde_json::json;

use super::{MAPS, Server, map};

/// The keys of indented JSON at a depth, in order.
fn keys(indented: &str, depth: usize) -> Vec<&str> {
    let indent = "  ".repeat(depth);
    let keys =
        indented.lines().filter_map(|line| line.strip_prefix(&indent)?.strip_prefix('"')?.split_once('"'));
    keys.map(|(key, _)| key).collect()
}

#[tokio::test]
async fn keys_of_json_responses_follow_the_order_of_the_type() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let autoscalers = "/apis/autoscaling/v1/namespaces/a/horizontalpodautoscalers";
    let scaler = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 2},
    });
    assert_eq!(server.post(autoscalers, scaler).await.code, 201);
    let (json_type, table) = ("application/json", "application/json;as=Table;g=meta.example.test;v=v1");
    let object: &[&str] = &["kind", "apiVersion", "metadata", "spec", "status"];
    let list: &[&str] = &["kind", "apiVersion", "metadata", "items"];
    for (url, accept, top) in [
        (format!("{MAPS}/one"), json_type, &["kind", "apiVersion", "metadata", "data"][..]),
        (format!("{autoscalers}/x"), json_type, object),
        (MAPS.to_owned(), json_type, list),
        (autoscalers.to_owned(), json_type, list),
        (MAPS.to_owned(), table, &["kind", "apiVersion", "metadata", "columnDefinitions", "rows"]),
        (
            format!("{MAPS}/none"),
            json_type,
            &["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"],
        ),
        ("/api".to_owned(), json_type, &["kind", "versions", "serverAddressByClientCIDRs"]),
        ("/api/v1".to_owned(), json_type, &["kind", "groupVersion", "resources"]),
    ] {
        let get = async |url: &str| {
            let reply = server.send("GET", url, &[("accept", accept)], "").await;
            String::from_utf8(reply.body.to_vec()).unwrap()
        };
        let (indented, compact) = (get(&format!("{url}?pretty=true")).await, get(&url).await);
        assert_eq!(keys(&indented, 1), top, "{url}");
        let without_whitespace = |text: &str| text.replace(char::is_whitespace, "");
        assert_eq!(without_whitespace(&indented), without_whitespace(&compact), "{url}");
    }
    let items = server.get(&format!("{autoscalers}?pretty=true")).await;
    let items = String::from_utf8(items.body.to_vec()).unwrap();
    assert_eq!(keys(&items, 3), ["metadata", "spec", "status"]);
    let metadata = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    assert_eq!(keys(&items, 4)[..5], metadata);
}
