//! resourceVersion semantics of reads, from the store and from the watch cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use storage::Revision;

use super::{MAPS, Reply, Server, map};

/// Feature gates: past revisions are read from the store or from the cache.
const GATES: [&str; 2] = ["", "ListFromCacheSnapshot=true"];

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

fn version(reply: &Reply) -> String {
    reply.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The sum of the ConfigMap series of a metric.
async fn metric_sum(server: &Server, metric: &str) -> u64 {
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let of_maps = text.lines().filter(|line| line.starts_with(metric) && line.contains("configmaps"));
    of_maps.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

const FROM_STORE: &str = "apiserver_storage_list_total";
const CONSISTENT: &str = "apiserver_watch_cache_consistent_read_total";

#[tokio::test]
async fn list_pages_are_one_snapshot() {
    for gates in GATES {
        let server = Server::start_with_gates(gates).await;
        for name in ["a", "b", "c", "d", "e"] {
            server.post(MAPS, map(name, "1")).await;
        }
        let first = server.get(&format!("{MAPS}?limit=2")).await.json();
        assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
        let token = first["metadata"]["continue"].as_str().unwrap();

        server.delete(&format!("{MAPS}/d"), Value::Null).await;
        server.put(&format!("{MAPS}/c"), map("c", "2")).await;
        server.post(MAPS, map("bb", "1")).await;

        for also in ["", "&resourceVersion=0", "&resourceVersion="] {
            let second = server.get(&format!("{MAPS}?limit=2&continue={token}{also}")).await.json();
            let remaining = &second["metadata"]["remainingItemCount"];
            assert_eq!((names(&second), remaining), (vec!["c", "d"], &json!(1)), "{gates} {also}");
            assert_eq!(second["items"][0]["data"]["k"], "1");
            assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
            let token = second["metadata"]["continue"].as_str().unwrap();
            for limit in ["limit=2&", "limit=1&", ""] {
                let third = server.get(&format!("{MAPS}?{limit}continue={token}")).await.json();
                assert_eq!((names(&third), third["metadata"].get("continue")), (vec!["e"], None));
                assert_eq!(
                    third["metadata"].get("remainingItemCount"),
                    None,
                    "a complete list has no remaining items"
                );
            }
        }
        let remainder = server.get(&format!("{MAPS}?continue={token}")).await.json();
        assert_eq!(names(&remainder), ["c", "d", "e"], "without a limit, the rest of the list");

        let mut forged = token.to_owned();
        forged.replace_range(40..41, if &token[40..41] == "A" { "B" } else { "A" });
        for (query, code) in [
            (format!("continue={token}&resourceVersion=1"), 400),
            (format!("continue={token}&resourceVersion=0&resourceVersionMatch=Exact"), 422),
            (format!("continue={token}&resourceVersion=1&resourceVersionMatch=NotOlderThan"), 422),
            (format!("continue={forged}"), 400),
            (format!("continue={token}A"), 400),
            ("continue=zzz".to_owned(), 400),
            (format!("continue={token}&labelSelector=x"), 400),
            (format!("continue={token}&fieldSelector=metadata.name!%3Dx"), 400),
        ] {
            assert_eq!(server.get(&format!("{MAPS}?limit=2&{query}")).await.code, code, "{query}");
        }
        for other in ["/api/v1/namespaces/b/configmaps", "/api/v1/configmaps", "/api/v1/namespaces/a/secrets"]
        {
            let reply = server.get(&format!("{other}?limit=2&continue={token}")).await;
            assert_eq!(reply.code, 400, "continue token of another list: {other}");
        }
        assert_eq!(names(&server.get(MAPS).await.json()), ["a", "b", "bb", "c", "e"]);
    }
}

/// The list that a request returns, or its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedList {
    /// The newest state, complete or its first page.
    Newest { items: usize },
    /// The state of the requested resourceVersion, complete or its first page.
    Exact { items: usize },
    /// An error with this code.
    Rejected(u16),
}

#[tokio::test]
async fn list_outcome_by_resource_version_match_and_limit() {
    use ExpectedList::{Exact, Newest, Rejected};
    for gates in GATES {
        let server = Server::start_with_gates(gates).await;
        server.post(MAPS, map("a", "old")).await;
        let past = version(&server.post(MAPS, map("b", "old")).await);
        server.put(&format!("{MAPS}/a"), map("a", "new")).await;
        server.post(MAPS, map("c", "new")).await;
        let newest = server.api_state.cache.revision().to_string();
        // `resourceVersionMatch`, `limit`, and the expected lists: without resourceVersion, for `0`, and for
        // an existing resourceVersion.
        for (version_match, limit, expected_lists) in [
            ("", "", [Newest { items: 3 }, Newest { items: 3 }, Newest { items: 3 }]),
            ("", "1", [Newest { items: 1 }, Newest { items: 3 }, Exact { items: 1 }]),
            ("Exact", "", [Rejected(422), Rejected(422), Exact { items: 2 }]),
            ("Exact", "1", [Rejected(422), Rejected(422), Exact { items: 1 }]),
            ("NotOlderThan", "", [Rejected(422), Newest { items: 3 }, Newest { items: 3 }]),
            ("NotOlderThan", "1", [Rejected(422), Newest { items: 3 }, Newest { items: 1 }]),
            ("Newest", "", [Rejected(422), Rejected(422), Rejected(422)]),
        ] {
            for (resource_version, expected_list) in ["", "0", past.as_str()].into_iter().zip(expected_lists)
            {
                let parameters = [
                    ("resourceVersionMatch", version_match),
                    ("limit", limit),
                    ("resourceVersion", resource_version),
                ];
                let nonempty = parameters.iter().filter(|(_, value)| !value.is_empty());
                let query: Vec<_> = nonempty.map(|(name, value)| format!("{name}={value}")).collect();
                let url = format!("{MAPS}?{}", query.join("&"));
                let (from_store, consistent) =
                    (metric_sum(&server, FROM_STORE).await, metric_sum(&server, CONSISTENT).await);
                let reply = server.get(&url).await;
                let from_store = metric_sum(&server, FROM_STORE).await - from_store;
                let consistent = metric_sum(&server, CONSISTENT).await - consistent;
                let list = reply.json();
                match expected_list {
                    Rejected(code) => assert_eq!(reply.code, code, "{url}"),
                    Newest { items } => {
                        assert_eq!((names(&list).len(), version(&reply)), (items, newest.clone()), "{url}");
                        assert_eq!(list["items"][0]["data"]["k"], "new", "{url}");
                        assert_eq!(
                            (from_store, consistent),
                            (0, u64::from(resource_version.is_empty())),
                            "{url}"
                        );
                    }
                    Exact { items } => {
                        assert_eq!((names(&list).len(), version(&reply)), (items, past.clone()), "{url}");
                        assert_eq!(list["items"][0]["data"]["k"], "old", "{url}");
                        let remaining = &list["metadata"]["remainingItemCount"];
                        assert_eq!(*remaining, if items == 1 { json!(1) } else { Value::Null }, "{url}");
                        assert_eq!(from_store, u64::from(gates.is_empty()), "{url}");
                    }
                }
                // Items have their own resourceVersion, which may be older than that of the list.
                for item in list["items"].as_array().into_iter().flatten() {
                    let item_version: u64 =
                        item["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                    assert!(item_version <= version(&reply).parse().unwrap(), "{url}");
                }
                let object = server.get(&format!("{MAPS}/a?resourceVersion={resource_version}")).await;
                assert_eq!(
                    (object.code, &object.json()["data"]["k"]),
                    (200, &json!("new")),
                    "get of the newest state"
                );
            }
        }
        let page = format!("{MAPS}?resourceVersion={past}&resourceVersionMatch=Exact&limit=1");
        let token = server.get(&page).await.json()["metadata"]["continue"].as_str().unwrap().to_owned();
        let from_store = metric_sum(&server, FROM_STORE).await;
        let rest = server.get(&format!("{MAPS}?continue={token}")).await;
        assert_eq!((names(&rest.json()), version(&rest)), (vec!["b"], past.clone()), "{gates}");
        let from_store = metric_sum(&server, FROM_STORE).await - from_store;
        assert_eq!(
            from_store,
            u64::from(gates.is_empty()),
            "{gates}: the store or the snapshot serves page 2"
        );
        for (selector, want) in
            [("labelSelector=!x", vec!["a", "b"]), ("fieldSelector=metadata.name%3Db", vec!["b"])]
        {
            let url = format!("{MAPS}?resourceVersion={past}&resourceVersionMatch=Exact&{selector}");
            assert_eq!(names(&server.get(&url).await.json()), want, "{selector}");
        }
    }
}

#[tokio::test]
async fn list_of_compacted_revision_returns_410() {
    for gates in GATES {
        let server = Server::start_with_gates(gates).await;
        for i in 0..4 {
            server.post(MAPS, map(&format!("m{i}"), "1")).await;
        }
        let first = server.get(&format!("{MAPS}?limit=1")).await.json();
        let old = first["metadata"]["resourceVersion"].as_str().unwrap();
        let token = first["metadata"]["continue"].as_str().unwrap();
        server.put(&format!("{MAPS}/m0"), map("m0", "2")).await;
        server.put(&format!("{MAPS}/m1"), map("m1", "2")).await;
        let now = server.api_state.store.revision();
        server.api_state.store.compact(now).await.unwrap();
        let exact = server.get(&format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await;
        let next = server.get(&format!("{MAPS}?limit=1&continue={token}")).await;
        if !gates.is_empty() {
            // The cache still has the revision after the store has compacted it.
            assert_eq!((exact.code, next.code, names(&next.json())), (200, 200, vec!["m1"]));
            assert_eq!(next.json()["items"][0]["data"]["k"], "1");
            continue;
        }
        assert_eq!((exact.code, &exact.json()["reason"]), (410, &json!("Expired")));
        assert_eq!((next.code, &next.json()["reason"]), (410, &json!("Expired")));
        let fresh = next.json()["metadata"]["continue"].as_str().unwrap().to_owned();
        let rest = server.get(&format!("{MAPS}?limit=2&continue={fresh}")).await;
        assert_eq!(
            (names(&rest.json()), version(&rest)),
            (vec!["m1", "m2"], now.to_string()),
            "pages after the fresh token are from the newest revision"
        );
        assert_eq!(rest.json()["items"][0]["data"]["k"], "2");
        let token = rest.json()["metadata"]["continue"].as_str().unwrap().to_owned();
        assert_eq!(names(&server.get(&format!("{MAPS}?continue={token}")).await.json()), ["m3"]);
        assert_eq!(names(&server.get(MAPS).await.json()).len(), 4, "a new list succeeds after compaction");
        let newest = format!("{MAPS}?resourceVersion={now}&resourceVersionMatch=Exact");
        assert_eq!(server.get(&newest).await.code, 200, "the newest revision is never compacted");
    }
}

#[tokio::test]
async fn future_resource_version_returns_504() {
    let server = Server::start().await;
    server.post(MAPS, map("a", "1")).await;
    let object_url = format!("{MAPS}/a");
    for (url, query, retry) in [
        (MAPS, "", true),
        (MAPS, "&resourceVersionMatch=NotOlderThan&limit=1", true),
        (MAPS, "&resourceVersionMatch=Exact", false),
        (MAPS, "&limit=1", false),
        (object_url.as_str(), "", true),
    ] {
        let reply = server.get(&format!("{url}?resourceVersion=99999{query}")).await;
        let status = reply.json();
        assert_eq!((reply.code, &status["reason"]), (504, &json!("Timeout")), "{query}");
        assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{query}");
        assert!(status["message"].as_str().unwrap().contains("Too large resource version"), "{status}");
        assert_eq!(reply.header("retry-after"), if retry { "1" } else { "" }, "{query}");
        let seconds = &status["details"]["retryAfterSeconds"];
        assert_eq!(*seconds, if retry { json!(1) } else { Value::Null }, "{query}");
    }
    // A request succeeds if the requested resourceVersion is reached in time.
    let next = server.api_state.cache.revision().0 + 1;
    let newer = format!("{object_url}?resourceVersion={next}");
    let (waited, _) = tokio::join!(server.get(&newer), async {
        tokio::task::yield_now().await;
        server.put(&object_url, map("a", "2")).await
    });
    assert_eq!((waited.code, &waited.json()["data"]["k"]), (200, &json!("2")));
    for (url, code) in [(MAPS, 400), (object_url.as_str(), 500)] {
        for bad in ["words", "-1", "1.5"] {
            assert_eq!(server.get(&format!("{url}?resourceVersion={bad}")).await.code, code, "{bad}");
        }
    }
}

/// Compares pages and exact lists with the history of the store during concurrent writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_pages_are_one_snapshot_during_concurrent_writes() {
    let seed = rand::random::<u32>().into();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for gates in GATES {
        let server = Arc::new(Server::start_with_gates(gates).await);
        let (finish, finished) = tokio::sync::watch::channel(false);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (server, finished) = (Arc::clone(&server), finished.clone());
                let mut random = SmallRng::from_rng(&mut random);
                tokio::spawn(async move {
                    while !*finished.borrow() {
                        let name = format!("m{}", random.random_range(0..30));
                        let object_url = format!("{MAPS}/{name}");
                        match random.random_range(0..3) {
                            0 => server.post(MAPS, map(&name, "1")).await,
                            1 => {
                                server.put(&object_url, map(&name, &random.random::<u32>().to_string())).await
                            }
                            _ => server.delete(&object_url, Value::Null).await,
                        };
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let mut lists = Vec::new();
        for _ in 0..40 {
            let limit = random.random_range(1..8);
            let mut page = server.get(&format!("{MAPS}?limit={limit}")).await;
            let first_version = version(&page);
            let mut all: Vec<Value> = Vec::new();
            loop {
                assert_eq!((page.code, version(&page)), (200, first_version.clone()));
                let list = page.json();
                all.extend(list["items"].as_array().unwrap().iter().cloned());
                let Some(token) = list["metadata"]["continue"].as_str() else { break };
                assert!(list["items"].as_array().unwrap().len() == limit);
                let url = format!("{MAPS}?limit={limit}&continue={token}");
                tokio::task::yield_now().await;
                page = server.get(&url).await;
            }
            let exact = server
                .get(&format!("{MAPS}?resourceVersion={first_version}&resourceVersionMatch=Exact"))
                .await;
            assert_eq!(
                exact.json()["items"],
                json!(all),
                "{gates}: pages differ from the exact list at {first_version}"
            );
            lists.push((first_version.parse::<u64>().unwrap(), all));
        }
        finish.send_replace(true);
        for writer in writers {
            writer.await.unwrap();
        }
        let prefix = "/core/configmaps/a/";
        let prefix = server
            .api_state
            .kinds
            .collections()
            .into_iter()
            .map(|c| c.kind.key_prefix.clone())
            .find(|p| p.ends_with("/configmaps/"))
            .map_or(prefix.to_owned(), |p| format!("{p}a/"));
        let past = server
            .api_state
            .store
            .history(&prefix, Revision(0), server.api_state.store.revision(), usize::MAX)
            .await
            .unwrap();
        for (first_version, list) in lists {
            let mut rows = BTreeMap::new();
            for change in past.changes.iter().filter(|change| change.revision.0 <= first_version) {
                match change.new {
                    Some(_) => rows.insert(change.key.to_string(), change.revision.to_string()),
                    None => rows.remove(&*change.key),
                };
            }
            let list: Vec<_> = list
                .iter()
                .map(|item| {
                    (
                        format!("{prefix}{}", item["metadata"]["name"].as_str().unwrap()),
                        item["metadata"]["resourceVersion"].as_str().unwrap().to_owned(),
                    )
                })
                .collect();
            assert_eq!(
                list,
                rows.into_iter().collect::<Vec<_>>(),
                "{gates}: the list differs from the history at {first_version}"
            );
        }
    }
}

#[tokio::test]
async fn list_page_may_have_any_limit() {
    let server = Server::start().await;
    for i in 0..1_200 {
        server.post(MAPS, map(&format!("m{i:04}"), "1")).await;
    }
    let version = server.api_state.cache.revision();
    for query in ["limit=100000".to_owned(), format!("resourceVersion={version}&limit=100000"), String::new()]
    {
        let list = server.get(&format!("{MAPS}?{query}")).await.json();
        assert_eq!((names(&list).len(), list["metadata"].get("continue")), (1_200, None), "{query}");
        assert_eq!(list["metadata"].get("remainingItemCount"), None, "{query}");
    }
    let (mut token, mut all) = (String::new(), 0);
    loop {
        let page = server.get(&format!("{MAPS}?limit=700&resourceVersion=&continue={token}")).await.json();
        all += names(&page).len();
        let remaining = page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        assert_eq!(u64::try_from(all).unwrap() + remaining, 1_200);
        match page["metadata"]["continue"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert_eq!(all, 1_200);
}

#[tokio::test]
async fn list_applies_label_and_field_selectors() {
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
    for selector in ["labelSelector=env", "fieldSelector=metadata.namespace%3Da"] {
        let paged = server.get(&format!("{MAPS}?limit=1&{selector}")).await.json();
        assert!(paged["metadata"]["continue"].is_string(), "{selector}");
        assert_eq!(paged["metadata"].get("remainingItemCount"), None, "{selector}");
    }
    let deleted = server.delete(&format!("{MAPS}?labelSelector=env"), Value::Null).await.json();
    assert_eq!(names(&deleted), ["both", "dev"]);
    assert_eq!(names(&server.get("/api/v1/configmaps").await.json()), ["none"]);
}
