//! Lists are of the version they say.

use serde_json::{Value, json};

use super::{MAPS, Server, map};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_are_one_snapshot() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.post(MAPS, map(name, "1")).await;
    }
    let first = server.get(&format!("{MAPS}?limit=2")).await.json();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
    let token = first["metadata"]["continue"].as_str().unwrap();

    server.delete(&format!("{MAPS}/d"), Value::Null).await;
    server.put(&format!("{MAPS}/c"), map("c", "2")).await;
    server.post(MAPS, map("bb", "1")).await;

    let second = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.json();
    assert_eq!((names(&second), &second["metadata"]["remainingItemCount"]), (vec!["c", "d"], &json!(1)));
    assert_eq!(second["items"][0]["data"]["k"], "1");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.json();
    assert_eq!((names(&third), third["metadata"].get("continue")), (vec!["e"], None));

    let other = server.get(&format!("/api/v1/namespaces/b/configmaps?limit=2&continue={token}")).await;
    assert_eq!(other.code, 400, "a token belongs to its list");
    let versioned = server.get(&format!("{MAPS}?continue={token}&resourceVersion=1")).await;
    assert_eq!(versioned.code, 400);
    assert_eq!(names(&server.get(MAPS).await.json()), ["a", "b", "bb", "c", "e"]);
}

#[tokio::test]
async fn each_combination_is_of_its_version() {
    let server = Server::start().await;
    let version =
        |reply: super::Reply| reply.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let one = version(server.post(MAPS, map("a", "1")).await);
    let two = version(server.post(MAPS, map("b", "1")).await);
    let three = version(server.put(&format!("{MAPS}/a"), map("a", "2")).await);
    for (query, want, first) in [
        (String::new(), vec!["a", "b"], "2"),
        ("resourceVersion=0".to_owned(), vec!["a", "b"], "2"),
        ("resourceVersion=0&limit=1".to_owned(), vec!["a", "b"], "2"),
        (format!("resourceVersion={one}"), vec!["a", "b"], "2"),
        (format!("resourceVersion={one}&resourceVersionMatch=NotOlderThan&limit=1"), vec!["a"], "2"),
        (format!("resourceVersion={one}&resourceVersionMatch=Exact"), vec!["a"], "1"),
        (format!("resourceVersion={two}&resourceVersionMatch=Exact"), vec!["a", "b"], "1"),
        (format!("resourceVersion={three}&resourceVersionMatch=Exact"), vec!["a", "b"], "2"),
        (format!("resourceVersion={two}&limit=1"), vec!["a"], "1"),
        (format!("resourceVersion={two}&resourceVersionMatch=Exact&labelSelector=!x"), vec!["a", "b"], "1"),
    ] {
        let list = server.get(&format!("{MAPS}?{query}")).await.json();
        assert_eq!((names(&list), list["items"][0]["data"]["k"].as_str().unwrap()), (want, first), "{query}");
    }
    let exact =
        server.get(&format!("{MAPS}?resourceVersion={two}&resourceVersionMatch=Exact&limit=1")).await.json();
    assert_eq!(exact["metadata"]["remainingItemCount"], 1, "counted in history");
    let token = exact["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{MAPS}?continue={token}")).await.json();
    assert_eq!((names(&rest), &rest["metadata"]["resourceVersion"]), (vec!["b"], &json!(two)));
}

#[tokio::test]
async fn history_that_is_gone_is_410_and_the_future_504() {
    let server = Server::start().await;
    for i in 0..4 {
        server.post(MAPS, map(&format!("m{i}"), "1")).await;
    }
    let first = server.get(&format!("{MAPS}?limit=1")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    server.put(&format!("{MAPS}/m0"), map("m0", "2")).await;
    let now = server.plane.store.revision();
    server.plane.store.compact(now).await.unwrap();
    let exact = server.get(&format!("{MAPS}?resourceVersion=1&resourceVersionMatch=Exact")).await;
    assert_eq!((exact.code, &exact.json()["reason"]), (410, &json!("Expired")));
    // The snapshot is still on the shelf.
    assert_eq!(server.get(&format!("{MAPS}?limit=1&continue={token}")).await.code, 200);
    let future = server.get(&format!("{MAPS}?resourceVersion=99999&resourceVersionMatch=Exact")).await;
    assert_eq!(
        (future.code, &future.json()["details"]["causes"][0]["reason"]),
        (504, &json!("ResourceVersionTooLarge"))
    );
}

#[tokio::test]
async fn selectors_choose() {
    let server = Server::start().await;
    for (name, labels) in
        [("both", json!({"env": "prod", "tier": "web"})), ("dev", json!({"env": "dev"})), ("none", json!({}))]
    {
        server.post(MAPS, json!({"metadata": {"name": name, "labels": labels}})).await;
    }
    for (query, want) in [
        ("labelSelector=env%3Dprod", vec!["both"]),
        ("labelSelector=env%20in%20(prod,dev)", vec!["both", "dev"]),
        ("labelSelector=!env", vec!["none"]),
        ("fieldSelector=metadata.name%3Ddev", vec!["dev"]),
        ("fieldSelector=metadata.name!%3Ddev", vec!["both", "none"]),
        ("fieldSelector=metadata.namespace%3Db", vec![]),
    ] {
        assert_eq!(names(&server.get(&format!("{MAPS}?{query}")).await.json()), want, "{query}");
    }
    let paged = server.get(&format!("{MAPS}?limit=1&labelSelector=env")).await.json();
    assert_eq!(paged["metadata"].get("remainingItemCount"), None);
    let deleted = server.delete(&format!("{MAPS}?labelSelector=env"), Value::Null).await.json();
    assert_eq!(names(&deleted), ["both", "dev"]);
    assert_eq!(names(&server.get("/api/v1/configmaps").await.json()), ["none"]);
}
