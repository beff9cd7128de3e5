//! Query parameters, with the verbs they apply to (requirements D-QP, D-DRY, D-FV).

use serde_json::{Value, json};

use super::{MAPS, Reply, Server, map};

/// Returns the `Warning` headers.
fn warnings(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

async fn version(server: &Server, url: &str) -> String {
    server.get(url).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn query_parameters_of_get_list_and_watch() {
    let server = Server::start().await;
    for name in ["x", "y", "z"] {
        let mut body = map(name, name);
        body["metadata"]["labels"] = json!({"tier": name, "app": "web"});
        server.post(MAPS, body).await;
    }
    let v = version(&server, MAPS).await;
    let object_url = format!("{MAPS}/x");
    for (url, query, code, what) in [
        (MAPS, "watch=false".to_owned(), 200, "kind: ConfigMapList"),
        (MAPS, "watch=0".to_owned(), 200, "kind: ConfigMapList"),
        (MAPS, "limit=0".to_owned(), 200, "items: 3"),
        (MAPS, "limit=2".to_owned(), 200, "items: 2"),
        (MAPS, "limit=-1".to_owned(), 200, "items: 3"),
        (MAPS, "limit=abc".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "limit=1.5".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "timeoutSeconds=soon".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "timeoutSeconds=10".to_owned(), 200, "items: 3"),
        (MAPS, "continue=zzz".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "allowWatchBookmarks=true".to_owned(), 200, "items: 3"),
        (MAPS, "resourceVersion=0".to_owned(), 200, "items: 3"),
        (MAPS, format!("resourceVersion={v}&resourceVersionMatch=Exact"), 200, "items: 3"),
        (MAPS, format!("resourceVersion={v}&resourceVersionMatch=NotOlderThan"), 200, "items: 3"),
        (MAPS, format!("resourceVersion={v}&resourceVersionMatch=Foo"), 422, "reason: Invalid"),
        (MAPS, "resourceVersionMatch=Exact".to_owned(), 422, "reason: Invalid"),
        (MAPS, "resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422, "reason: Invalid"),
        (MAPS, "sendInitialEvents=true".to_owned(), 422, "reason: Invalid"),
        (
            MAPS,
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            422,
            "reason: Invalid",
        ),
        (MAPS, "resourceVersion=abc".to_owned(), 400, "reason: BadRequest"),
        (&object_url, "resourceVersion=0".to_owned(), 200, "kind: ConfigMap"),
        (&object_url, format!("resourceVersion={v}"), 200, "kind: ConfigMap"),
        (&object_url, "resourceVersion=abc".to_owned(), 500, "reason: "),
        (MAPS, "labelSelector=tier%3Dx".to_owned(), 200, "items: 1"),
        (MAPS, "labelSelector=tier%3D%3Dx".to_owned(), 200, "items: 1"),
        (MAPS, "labelSelector=tier!%3Dx".to_owned(), 200, "items: 2"),
        (MAPS, "labelSelector=tier+in+(x,y)".to_owned(), 200, "items: 2"),
        (MAPS, "labelSelector=tier+notin+(x,y)".to_owned(), 200, "items: 1"),
        (MAPS, "labelSelector=tier".to_owned(), 200, "items: 3"),
        (MAPS, "labelSelector=!tier".to_owned(), 200, "items: 0"),
        (MAPS, "labelSelector=tier%3Dx,app%3Dweb".to_owned(), 200, "items: 1"),
        (MAPS, "labelSelector=tier+in+x".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "labelSelector=%3Dx".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "fieldSelector=metadata.name%3Dx".to_owned(), 200, "items: 1"),
        (MAPS, "fieldSelector=metadata.name!%3Dx".to_owned(), 200, "items: 2"),
        (MAPS, "fieldSelector=metadata.namespace%3Da".to_owned(), 200, "items: 3"),
        (MAPS, "fieldSelector=metadata.namespace%3Db".to_owned(), 200, "items: 0"),
        (MAPS, "fieldSelector=data.k%3Dx".to_owned(), 400, "reason: BadRequest"),
        (MAPS, "fieldSelector=metadata.name".to_owned(), 400, "reason: BadRequest"),
        // Unknown parameters are ignored.
        (MAPS, "nothing=1&fieldValidation=Nope".to_owned(), 200, "items: 3"),
    ] {
        let reply = server.get(&format!("{url}?{query}")).await;
        let (field, want) = what.split_once(": ").unwrap();
        let found = match &reply.json()[field] {
            Value::Array(items) => items.len().to_string(),
            other => other.as_str().unwrap_or("").to_owned(),
        };
        assert_eq!((reply.code, found.as_str()), (code, want), "{url}?{query}: {:?}", reply.json());
    }
    for query in ["watch", "watch=1", "watch=true", "watch=yes", "watch="] {
        for url in [MAPS, &object_url] {
            let reply =
                server.get(&format!("{url}?{query}&timeoutSeconds=1&fieldSelector=metadata.name%3Dx")).await;
            let event: Value =
                serde_json::from_slice(reply.body.split(|b| *b == b'\n').next().unwrap()).unwrap();
            let name = &event["object"]["metadata"]["name"];
            assert_eq!((&event["type"], name), (&json!("ADDED"), &json!("x")), "{url}?{query}");
        }
    }
}

#[tokio::test]
async fn send_initial_events_requires_valid_parameters() {
    let server = Server::start_with_gates("WatchList=true").await;
    for name in ["x", "y"] {
        server.post(MAPS, map(name, name)).await;
    }
    for (query, code) in [
        ("watch=1&sendInitialEvents=true", 422),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=5", 422),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 422),
        ("watch=1&resourceVersionMatch=NotOlderThan", 422),
    ] {
        let reply = server.get(&format!("{MAPS}?{query}")).await;
        assert_eq!((reply.code, &reply.json()["reason"]), (code, &json!("Invalid")), "{query}");
    }
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let reply = server.get(&format!("{MAPS}?{query}")).await;
    let lines = reply.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let events: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().take(3).map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ADDED", "ADDED", "BOOKMARK"]);
    assert_eq!(events[2]["object"]["metadata"]["annotations"]["example.test/initial-events-end"], "true");
}

#[tokio::test]
async fn initial_events_are_off_by_default() {
    let query =
        format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1");
    let server = Server::start().await;
    let reply = server.get(&query).await;
    let cause = &reply.json()["details"]["causes"][0];
    assert_eq!((reply.code, &cause["field"]), (422, &json!("sendInitialEvents")), "{cause}");
    assert_eq!(cause["reason"], "FieldValueForbidden");
    // The same request succeeds with the feature gate.
    assert_eq!(Server::start_with_gates("WatchList=true").await.get(&query).await.code, 200);
}

#[tokio::test]
async fn unknown_field_of_selector_is_rejected_in_the_words_of_the_kind() {
    let server = Server::start().await;
    for (path, message) in [
        (
            "/api/v1/namespaces/a/configmaps",
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        ("/api/v1/namespaces/a/pods", "field label not supported: spec.x"),
        ("/apis/batch/v1/namespaces/a/jobs", "field label \"spec.x\" not supported for Job"),
    ] {
        let reply = server.get(&format!("{path}?fieldSelector=spec.x%3D1")).await;
        assert_eq!((reply.code, &reply.json()["message"]), (400, &json!(message)), "{path}");
    }
}

#[tokio::test]
async fn pretty_parameter_indents_every_json_response() {
    let server = Server::start().await;
    let is_indented = |reply: &Reply| reply.body.starts_with(b"{\n  \"");
    let object_url = format!("{MAPS}/one");
    let body = map("one", "1").to_string();
    let json_type = [("content-type", "application/json")];
    for (method, url, query, code, pretty) in [
        ("POST", MAPS, "dryRun&pretty=true", 201, true),
        ("GET", &object_url, "pretty=true", 200, true),
        ("GET", &object_url, "pretty", 200, true),
        ("GET", &object_url, "pretty=1", 200, true),
        ("GET", &object_url, "pretty=false", 200, false),
        ("GET", &object_url, "pretty=0", 200, false),
        ("GET", &object_url, "", 200, false),
        ("GET", MAPS, "pretty", 200, true),
        ("GET", &format!("{MAPS}/none"), "pretty", 404, true),
        ("GET", "/api/v1", "pretty=true", 200, true),
        ("GET", "/version", "pretty", 200, true),
        ("PUT", &object_url, "pretty", 200, true),
        ("DELETE", &object_url, "pretty", 200, true),
    ] {
        let body = if matches!(method, "POST" | "PUT") { body.clone() } else { String::new() };
        let reply = server.send(method, &format!("{url}?{query}"), &json_type, body).await;
        assert_eq!((reply.code, is_indented(&reply)), (code, pretty), "{method} {url}?{query}");
    }
    let protobuf = [("accept", "application/vnd.svc.protobuf")];
    let reply = server.send("GET", &format!("{MAPS}?pretty"), &protobuf, "").await;
    assert!(reply.body.starts_with(b"k8s\0"), "`pretty` has no effect on Protobuf");
}

#[tokio::test]
async fn dry_run_returns_result_without_storing() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let deployments = "/apis/apps/v1/namespaces/a/deployments";
    let watch = server.get(MAPS).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for (query, stored) in
        [("dryRun=All", false), ("dryRun=All&dryRun=All", false), ("dryRun", true), ("dryRun=", true)]
    {
        let reply = server.post(&format!("{MAPS}?{query}"), map("one", "1")).await;
        assert_eq!((reply.code, &reply.json()["data"]), (201, &json!({"k": "1"})), "{query}");
        assert_eq!(server.get(&object_url).await.code, if stored { 200 } else { 404 }, "{query}");
        if stored && query == "dryRun" {
            server.delete(&object_url, json!(null)).await;
        }
    }
    for query in ["dryRun=Some", "dryRun=all", "dryRun=true", "dryRun=All&dryRun=Some"] {
        for (method, url) in [("POST", MAPS), ("PUT", &object_url), ("DELETE", &object_url)] {
            let body = map("one", "1").to_string();
            let body = if method == "DELETE" { String::new() } else { body };
            let reply = server.send(method, &format!("{url}?{query}"), &[], body).await;
            assert_eq!((reply.code, &reply.json()["reason"]), (422, &json!("Invalid")), "{method} {query}");
        }
    }
    let before = server.get(&object_url).await.json();
    let merged =
        server.merge(&format!("{object_url}?dryRun=All"), json!({"data": {"more": "2"}})).await.json();
    assert_eq!(merged["data"], json!({"k": "1", "more": "2"}));
    assert_eq!(
        server.put(&format!("{object_url}?dryRun=All"), map("one", "3")).await.json()["data"],
        json!({"k": "3"})
    );
    assert_eq!(server.delete(&format!("{object_url}?dryRun=All"), json!(null)).await.code, 200);
    assert_eq!(server.get(&object_url).await.json(), before);

    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let whole = json!({"metadata": {"generateName": "d-"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let (one_run, other) = (
        server.post(&format!("{deployments}?dryRun=All"), whole.clone()).await,
        server.post(&format!("{deployments}?dryRun=All"), whole.clone()).await,
    );
    assert_eq!((one_run.code, other.code), (201, 201));
    for field in ["name", "uid"] {
        let (a, b) = (one_run.json()["metadata"][field].clone(), other.json()["metadata"][field].clone());
        assert!(a.is_string() && a != b, "{field}: {a} {b}");
    }
    assert!(one_run.json()["metadata"]["creationTimestamp"].is_string());
    assert!(one_run.json()["metadata"].get("resourceVersion").is_none());
    let bad = json!({"metadata": {"name": "Bad_Name"}});
    assert_eq!(server.post(&format!("{MAPS}?dryRun=All"), bad).await.code, 422);
    let body_with_finalizer = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    server.post(MAPS, body_with_finalizer).await;
    let deleted = server.delete(&format!("{MAPS}/held?dryRun=All"), json!(null)).await;
    assert!(deleted.code == 200 && deleted.json()["metadata"]["deletionTimestamp"].is_string());
    assert!(server.get(&format!("{MAPS}/held")).await.json()["metadata"].get("deletionTimestamp").is_none());
    // Watches get no events of dry runs.
    let reply = server.get(&format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={watch}")).await;
    let events = reply.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let events: Vec<Value> = events.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let changes: Vec<_> = events
        .iter()
        .map(|e| (e["type"].as_str().unwrap(), e["object"]["metadata"]["name"].as_str().unwrap()))
        .collect();
    assert_eq!(changes, [("ADDED", "one"), ("DELETED", "one"), ("ADDED", "one"), ("ADDED", "held")]);
}

/// An invalid body per format.
///
/// It has unknown fields at the top, nested and in metadata, and a duplicate field.
const JSON: &str = r#"{"metadata":{"name":"f","nope":1},"spec":{"foo":1,"containers":[{"name":"c","image":"i","bar":{}}],"nodeName":"a","nodeName":"b"}}"#;
const YAML: &str = "metadata: {name: f, nope: 1}\nspec:\n  foo: 1\n  containers:\n  - {name: c, image: i, bar: {}}\n  nodeName: a\n  nodeName: b\n";

#[tokio::test]
async fn unknown_or_duplicate_fields_by_field_validation_mode() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/a/pods";
    for (media_type, body, duplicate) in [
        ("application/json", JSON, "duplicate field \"spec.nodeName\""),
        ("application/yaml", YAML, "line 7: key \"nodeName\" already set in map"),
    ] {
        let texts = [
            duplicate,
            "unknown field \"metadata.nope\"",
            "unknown field \"spec.containers[0].bar\"",
            "unknown field \"spec.foo\"",
        ];
        let send = async |method: &str, url: &str| {
            server.send(method, url, &[("content-type", media_type)], body.to_owned()).await
        };
        let delete =
            async || drop(server.delete(&format!("{pods}/f"), json!({"gracePeriodSeconds": 0})).await);
        for (query, warns) in [
            ("", true),
            ("?fieldValidation=Warn", true),
            ("?fieldValidation=", true),
            ("?fieldValidation=Ignore", false),
        ] {
            let reply = send("POST", &format!("{pods}{query}")).await;
            assert_eq!(reply.code, 201, "{media_type} {query} {:?}", reply.json());
            let mut reported_warnings: Vec<String> = warnings(&reply)
                .into_iter()
                .map(|w| w["299 - \"".len()..w.len() - 1].replace('\\', ""))
                .collect();
            reported_warnings.sort_unstable();
            assert_eq!(
                reported_warnings,
                if warns { texts.to_vec() } else { Vec::new() },
                "{media_type} {query}"
            );
            let stored = server.get(&format!("{pods}/f")).await.json();
            assert_eq!(stored["spec"]["nodeName"], "b", "the last duplicate wins");
            assert!(stored["spec"].get("foo").is_none() && stored["metadata"].get("nope").is_none());
            delete().await;
        }
        let strict = send("POST", &format!("{pods}?fieldValidation=Strict")).await;
        let message = strict.json()["message"].as_str().unwrap_or("").to_owned();
        assert_eq!((strict.code, &strict.json()["reason"]), (400, &json!("BadRequest")), "{media_type}");
        assert!(message.contains("strict decoding error: "), "{message}");
        let yaml = "strict decoding error: yaml: unmarshal errors:\n  line 7: key";
        assert_eq!(message.contains(yaml), media_type == "application/yaml", "{message}");
        assert!(texts.iter().all(|text| message.contains(text)), "{message}");
        assert_eq!(server.get(&format!("{pods}/f")).await.code, 404);
        for value in ["Nope", "strict", "IGNORE"] {
            let reply = send("POST", &format!("{pods}?fieldValidation={value}")).await;
            assert_eq!((reply.code, &reply.json()["reason"]), (422, &json!("Invalid")), "{value}");
        }
    }
    // Type errors are rejected in every mode.
    for mode in ["Ignore", "Warn", "Strict"] {
        let reply = server
            .post(&format!("{MAPS}?fieldValidation={mode}"), json!({"metadata": {"name": "t"}, "data": 5}))
            .await;
        assert_eq!((reply.code, &reply.json()["reason"]), (400, &json!("BadRequest")), "{mode}");
    }
}

#[tokio::test]
async fn field_validation_of_updates_and_patches() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let whole = r#"{"metadata":{"name":"one"},"data":{"k":"2"},"spec":{}}"#;
    for (method, media_type, body) in [
        ("PUT", "application/json", whole),
        ("PATCH", "application/merge-patch+json", r#"{"spec":{}}"#),
        ("PATCH", "application/strategic-merge-patch+json", r#"{"spec":{}}"#),
        ("PATCH", "application/json-patch+json", r#"[{"op":"add","path":"/spec","value":{}}]"#),
    ] {
        let send = async |mode: &str| {
            let url = format!("{object_url}?fieldValidation={mode}");
            server.send(method, &url, &[("content-type", media_type)], body.to_owned()).await
        };
        let before = server.get(&object_url).await.body;
        let strict = send("Strict").await;
        assert!(
            strict.json()["message"].as_str().unwrap().contains("unknown field \"spec\""),
            "{media_type}"
        );
        assert_eq!((strict.code, server.get(&object_url).await.body), (400, before), "{method} {media_type}");
        let warned = send("Warn").await;
        assert_eq!(
            (warned.code, warnings(&warned)),
            (200, vec![r#"299 - "unknown field \"spec\"""#]),
            "{media_type}"
        );
        let ignored = send("Ignore").await;
        assert_eq!((ignored.code, warnings(&ignored).len()), (200, 0), "{media_type}");
        assert!(ignored.json().get("spec").is_none());
        assert_eq!(send("Nope").await.code, 422, "{method} {media_type}");
    }
}

#[tokio::test]
async fn field_manager_comes_from_query_or_user_agent() {
    let server = Server::start().await;
    let longest = "m".repeat(128);
    let too_long = "m".repeat(129);
    for (query, agent, manager) in [
        ("fieldManager=mine", Some("tool/1.2 (linux)"), Ok("mine")),
        ("", Some("tool/1.2 (linux)"), Ok("tool")),
        ("", Some("plain"), Ok("plain")),
        ("", None, Ok("unknown")),
        (&format!("fieldManager={longest}"), None, Ok(longest.as_str())),
        (&format!("fieldManager={too_long}"), None, Err(422)),
        ("fieldManager=a%00b", None, Err(422)),
    ] {
        let headers: Vec<_> = agent.map(|agent| ("user-agent", agent)).into_iter().collect();
        let reply =
            server.send("POST", &format!("{MAPS}?{query}"), &headers, map("m", "1").to_string()).await;
        match manager {
            Ok(manager) => {
                assert_eq!(
                    reply.json()["metadata"]["managedFields"][0]["manager"],
                    manager,
                    "{query} {agent:?}"
                );
                server.delete(&format!("{MAPS}/m"), json!(null)).await;
            }
            Err(code) => {
                assert_eq!((reply.code, &reply.json()["reason"]), (code, &json!("Invalid")), "{query}")
            }
        }
    }
}

#[tokio::test]
async fn timeout_parameter_is_a_go_duration() {
    let server = Server::start().await;
    for (timeout, code) in
        [("10s", 200), ("1m30s", 200), ("0s", 200), ("-5s", 200), ("", 200), ("invalid", 400), ("10", 400)]
    {
        let reply = server.get(&format!("{MAPS}?timeout={timeout}")).await;
        assert_eq!(reply.code, code, "{timeout}: {reply:?}");
        if code == 400 {
            let text = format!(
                "invalid timeout specified in the request URL - time: invalid duration \"{timeout}\""
            );
            assert_eq!(reply.json()["message"], text);
        }
    }
    // A watch has no such parameter.
    let watch = server.open("GET", &format!("{MAPS}?watch=1&timeout=invalid"), &[], "".into()).await;
    assert_eq!(watch.status(), 200);
}
