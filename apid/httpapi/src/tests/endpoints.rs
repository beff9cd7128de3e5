//! Paths, methods and error reasons (requirements D-EP, D-TERM, D-SVC, D-ERR).

use serde_json::{Value, json};
use serving::compatibility::CompatibilityVersions;

use super::{MAPS, Reply, Server, map};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn collection_paths_follow_resource_scope() {
    let server = Server::start().await;
    for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "three")] {
        let url = format!("/api/v1/namespaces/{namespace}/configmaps");
        assert_eq!(server.post(&url, map(name, "1")).await.code, 201);
    }
    assert_eq!(server.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.code, 201);
    for (url, kind, want) in [
        ("/api/v1/configmaps", "ConfigMapList", vec!["one", "two", "three"]),
        ("/api/v1/namespaces/a/configmaps", "ConfigMapList", vec!["one", "two"]),
        ("/api/v1/namespaces/none/configmaps", "ConfigMapList", vec![]),
        ("/api/v1/namespaces", "NamespaceList", vec!["a", "b"]),
        ("/api/v1/nodes", "NodeList", vec!["n1"]),
        ("/api/v1/pods", "PodList", vec![]),
        ("/api/v1/services", "ServiceList", vec![]),
        ("/apis/apps/v1/deployments", "DeploymentList", vec![]),
    ] {
        let list = server.get(url).await.json();
        assert_eq!((&list["kind"], names(&list)), (&json!(kind), want), "{url}");
    }
    for (url, kind, name) in [
        ("/api/v1/nodes/n1", "Node", "n1"),
        ("/api/v1/namespaces/a", "Namespace", "a"),
        ("/api/v1/namespaces/b/configmaps/three", "ConfigMap", "three"),
    ] {
        let object = server.get(url).await.json();
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!(kind), &json!(name)), "{url}");
        let head = server.send("HEAD", url, &[], "").await;
        assert_eq!((head.code, head.body.len()), (200, 0), "{url}");
    }
    let head = server.send("HEAD", "/api/v1/configmaps", &[], "").await;
    assert_eq!((head.code, head.body.len()), (200, 0));
    let deleted = server.delete(&format!("{MAPS}?labelSelector=none%3Dsuch"), json!(null)).await;
    assert_eq!((deleted.code, names(&deleted.json()).len()), (200, 0));
    let deleted = server.delete(MAPS, json!({"gracePeriodSeconds": 0})).await.json();
    assert_eq!(names(&deleted), ["one", "two"]);
    assert_eq!(names(&server.get("/api/v1/configmaps").await.json()), ["three"]);
}

#[tokio::test]
async fn create_of_list_returns_400() {
    let server = Server::start().await;
    let list = json!({"kind": "List", "apiVersion": "v1", "items": [map("x", "1")]});
    let maps = json!({"kind": "ConfigMapList", "apiVersion": "v1", "items": [map("x", "1")]});
    for body in [list, maps, json!([map("x", "1")])] {
        let reply = server.post(MAPS, body.clone()).await;
        assert_eq!((reply.code, &reply.json()["reason"]), (400, &json!("BadRequest")), "{body}");
    }
    assert_eq!(server.put(MAPS, map("x", "1")).await.code, 405);
    assert_eq!(server.merge(MAPS, json!({})).await.code, 405);
    assert_eq!(names(&server.get(MAPS).await.json()).len(), 0);
    // Effects of earlier requests remain after a failed request.
    assert_eq!(server.post(MAPS, map("first", "1")).await.code, 201);
    assert_eq!(server.post(MAPS, map("Not_A_Name", "1")).await.code, 422);
    assert_eq!(server.get(&format!("{MAPS}/first")).await.code, 200);
}

#[tokio::test]
async fn get_or_delete_of_review_or_binding_returns_405() {
    let server = Server::start().await;
    let group = "/apis/authorization.example.test/v1";
    let reviews = format!("{group}/selfsubjectaccessreviews");
    for (method, url) in [
        ("GET", reviews.clone()),
        ("DELETE", reviews.clone()),
        ("PUT", reviews.clone()),
        ("GET", format!("{reviews}?watch=1")),
        ("GET", "/api/v1/namespaces/a/bindings".to_owned()),
        ("GET", "/api/v1/namespaces/a/pods/p/eviction".to_owned()),
        ("GET", "/api/v1/namespaces/a/pods/p/binding".to_owned()),
    ] {
        let reply = server.send(method, &url, &[], "").await;
        assert_eq!(
            (reply.code, &reply.json()["reason"]),
            (405, &json!("MethodNotAllowed")),
            "{method} {url}"
        );
    }
    assert_eq!(server.get(&format!("{reviews}/x")).await.code, 404);
}

#[tokio::test]
async fn oversized_review_is_rejected_before_authd_call() {
    let server = Server::start().await;
    let (authorization, authentication) =
        ("/apis/authorization.example.test/v1", "/apis/authentication.example.test/v1");
    let selector = |count: usize| json!({"requirements": vec![json!({}); count]});
    let attributes = json!({"verb": "list", "resource": "pods", "fieldSelector": selector(2_000)});
    for (url, spec, field) in [
        (
            format!("{authorization}/selfsubjectaccessreviews"),
            json!({"resourceAttributes": attributes}),
            "spec.resourceAttributes.fieldSelector.requirements",
        ),
        (
            format!("{authorization}/subjectaccessreviews"),
            json!({"groups": vec!["g"; 10_001], "nonResourceAttributes": {"verb": "get", "path": "/"}}),
            "spec.groups",
        ),
        (
            format!("{authentication}/tokenreviews"),
            json!({"token": "t", "audiences": vec!["a"; 1_001]}),
            "spec.audiences",
        ),
    ] {
        let reply = server.post(&url, json!({"spec": spec})).await;
        let status = reply.json();
        assert_eq!((reply.code, &status["reason"]), (422, &json!("Invalid")), "{url}: {status}");
        let causes = status["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), 1, "{status}");
        assert_eq!((&causes[0]["field"], &causes[0]["reason"]), (&json!(field), &json!("FieldValueTooMany")));
        assert!(causes[0]["message"].as_str().unwrap().starts_with("Too many"), "{status}");
    }
}

#[tokio::test]
async fn status_and_scale_subresources_of_deployment() {
    let server = Server::start().await;
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let body = json!({"metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let deployments = "/apis/apps/v1/namespaces/a/deployments";
    assert_eq!(server.post(deployments, body).await.code, 201);
    let object_url = format!("{deployments}/d");
    let scale = server.get(&format!("{object_url}/scale")).await.json();
    assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!(scale["spec"]["replicas"], 2);
    let status = server.get(&format!("{object_url}/status")).await.json();
    assert_eq!((&status["kind"], &status["metadata"]["name"]), (&json!("Deployment"), &json!("d")));
    // The object and its status subresource do not change each other's fields.
    let live = server.get(&object_url).await.json();
    let mut changed = live.clone();
    changed["spec"]["replicas"] = json!(3);
    changed["status"] = json!({"replicas": 9});
    let main = server.put(&object_url, changed.clone()).await.json();
    assert_eq!((&main["spec"]["replicas"], main["status"].get("replicas")), (&json!(3), None));
    changed["metadata"]["resourceVersion"] = main["metadata"]["resourceVersion"].clone();
    changed["spec"]["replicas"] = json!(7);
    let status = server.put(&format!("{object_url}/status"), changed).await.json();
    assert_eq!((&status["spec"]["replicas"], &status["status"]["replicas"]), (&json!(3), &json!(9)));
    let merged = server
        .merge(&format!("{object_url}/status"), json!({"spec": {"replicas": 8}, "status": {"replicas": 4}}))
        .await;
    assert_eq!(
        (&merged.json()["spec"]["replicas"], &merged.json()["status"]["replicas"]),
        (&json!(3), &json!(4))
    );
    for (method, url, code) in [
        ("GET", format!("{object_url}/nothing"), 404),
        ("GET", format!("{object_url}/status/more"), 404),
        ("POST", format!("{object_url}/scale"), 405),
        ("DELETE", format!("{object_url}/status"), 405),
        ("GET", format!("{deployments}/none/scale"), 404),
    ] {
        let reply = server.send(method, &url, &[], "").await;
        assert_eq!(reply.code, code, "{method} {url}: {:?}", reply.json());
    }
}

#[tokio::test]
async fn discovery_lists_the_verbs_of_subresources() {
    let server = Server::start().await;
    let (part, proxy) = ("get patch update", "create delete get patch update");
    let core: &[(&str, &str)] = &[
        ("namespaces/finalize", "update"),
        ("namespaces/status", part),
        ("nodes/proxy", proxy),
        ("nodes/status", part),
        ("persistentvolumeclaims/status", part),
        ("persistentvolumes/status", part),
        ("pods/attach", "create get"),
        ("pods/binding", "create"),
        ("pods/ephemeralcontainers", part),
        ("pods/eviction", "create"),
        ("pods/exec", "create get"),
        ("pods/log", "get"),
        ("pods/portforward", "create get"),
        ("pods/proxy", proxy),
        ("pods/resize", part),
        ("pods/status", part),
        ("replicationcontrollers/scale", part),
        ("replicationcontrollers/status", part),
        ("resourcequotas/status", part),
        ("serviceaccounts/token", "create"),
        ("services/proxy", proxy),
        ("services/status", part),
    ];
    let apps: &[(&str, &str)] = &[
        ("daemonsets/status", part),
        ("deployments/scale", part),
        ("deployments/status", part),
        ("replicasets/scale", part),
        ("replicasets/status", part),
        ("statefulsets/scale", part),
        ("statefulsets/status", part),
    ];
    let certificates: &[(&str, &str)] =
        &[("certificatesigningrequests/approval", part), ("certificatesigningrequests/status", part)];
    for (list, expected) in
        [("/api/v1", core), ("/apis/apps/v1", apps), ("/apis/certificates.example.test/v1", certificates)]
    {
        let document = server.get(list).await.json();
        let mut listed = Vec::new();
        for entry in document["resources"].as_array().unwrap() {
            let name = entry["name"].as_str().unwrap().to_owned();
            let verbs = entry["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap());
            if name.contains('/') {
                listed.push((name, verbs.collect::<Vec<_>>().join(" ")));
            }
        }
        listed.sort();
        let expected: Vec<_> =
            expected.iter().map(|(name, verbs)| ((*name).to_owned(), (*verbs).to_owned())).collect();
        assert_eq!(listed, expected, "{list}");
    }
}

#[tokio::test]
async fn discovery_documents_list_groups_versions_and_resources() {
    let server = Server::start().await;
    for (url, kind, field) in [
        ("/api", "APIVersions", "versions"),
        ("/apis", "APIGroupList", "groups"),
        ("/apis/apps", "APIGroup", "versions"),
        ("/apis/apps/", "APIGroup", "versions"),
        ("/api/v1", "APIResourceList", "resources"),
        ("/apis/apps/v1", "APIResourceList", "resources"),
        ("/apis/apps/v1?timeout=32s", "APIResourceList", "resources"),
        ("/api?timeout=32s", "APIVersions", "versions"),
    ] {
        let document = server.get(url).await.json();
        assert_eq!(document["kind"], kind, "{url}");
        assert!(!document[field].as_array().unwrap().is_empty(), "{url}");
    }
    // List items have the kind that discovery lists for the resource.
    for entry in server.get("/api/v1").await.json()["resources"].as_array().unwrap() {
        let verbs = entry["verbs"].as_array().unwrap();
        if verbs.contains(&json!("list")) {
            let list = server.get(&format!("/api/v1/{}", entry["name"].as_str().unwrap())).await.json();
            assert_eq!(list["kind"].as_str().unwrap(), format!("{}List", entry["kind"].as_str().unwrap()));
        }
    }
    for url in ["/api", "/apis"] {
        for version in ["v2", "v2beta1"] {
            let form = format!("g=apidiscovery.example.test;v={version};as=APIGroupDiscoveryList");
            let accept = format!("application/json;{form},application/json");
            let reply = server.send("GET", url, &[("accept", &accept)], "").await;
            assert_eq!(reply.header("content-type"), format!("application/json;{form}"), "{url}");
            assert_eq!(reply.header("vary"), "Accept", "{url}");
            let document = reply.json();
            assert_eq!(document["kind"], "APIGroupDiscoveryList");
            for group in document["items"].as_array().unwrap() {
                for resource in group["versions"][0]["resources"].as_array().unwrap() {
                    assert!(resource["responseKind"]["kind"].is_string(), "{resource}");
                    assert!(["Cluster", "Namespaced"].contains(&resource["scope"].as_str().unwrap()));
                }
            }
            let etag = reply.header("etag").to_owned();
            let known = [("accept", accept.as_str()), ("if-none-match", etag.as_str())];
            assert_eq!(server.send("GET", url, &known, "").await.code, 304);
        }
        let unknown = "application/json;g=apidiscovery.example.test;v=v3;as=APIGroupDiscoveryList";
        assert_eq!(server.send("GET", url, &[("accept", unknown)], "").await.code, 406);
        let fallback = format!("{unknown},application/json");
        assert_ne!(
            server.send("GET", url, &[("accept", &fallback)], "").await.json()["kind"],
            "APIGroupDiscoveryList"
        );
    }
    let version = server.get("/version").await.json();
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("33")));
    let build = super::BUILD;
    assert_eq!(
        (&version["gitCommit"], &version["buildDate"], &version["compiler"]),
        (&json!(build.commit_id()), &json!(build.date()), &json!(build.compiler))
    );
    let release = version["gitVersion"].as_str().unwrap();
    let patch = release.strip_prefix("v1.33.").unwrap_or_else(|| panic!("{release}"));
    assert!(!patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()), "{release}");
    let paths = server.get("/").await.json();
    for path in ["/api/v1", "/apis/apps/v1", "/livez", "/openapi/v2", "/openapi/v3", "/version"] {
        assert!(paths["paths"].as_array().unwrap().contains(&json!(path)), "{path}");
    }
}

#[tokio::test]
async fn health_endpoints_are_plain_text() {
    let server = Server::start().await;
    for url in ["/healthz", "/livez", "/readyz", "/livez/ping", "/readyz/ping", "/healthz/ping"] {
        let reply = server.get(url).await;
        assert_eq!((reply.code, &reply.body[..]), (200, &b"ok"[..]), "{url}");
        assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    }
    let verbose = server.get("/livez?verbose&exclude=ping&exclude=nope").await;
    let text = String::from_utf8(verbose.body.to_vec()).unwrap();
    assert_eq!(
        text,
        "[+]ping excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"nope\"\nhealthz check passed\n"
    );
    for (method, url, code) in
        [("GET", "/livez/nope", 404), ("POST", "/livez", 405), ("DELETE", "/readyz", 405)]
    {
        assert_eq!(server.send(method, url, &[], "").await.code, code, "{method} {url}");
    }
}

/// Whether a response body has all fields of a failure Status that clients use.
fn is_status(reply: &Reply) -> bool {
    let body = reply.json();
    body["kind"] == "Status"
        && body["apiVersion"] == "v1"
        && body["metadata"] == json!({})
        && body["status"] == "Failure"
        && body["code"] == reply.code
        && body["message"].is_string()
}

#[tokio::test]
async fn failed_request_returns_status_with_reason() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let immutable = json!({"metadata": {"name": "fixed"}, "immutable": true, "data": {"k": "1"}});
    server.post(MAPS, immutable).await;
    let json_type = ("content-type", "application/json");
    let patch = ("content-type", "application/json-patch+json");
    let many: Vec<Value> =
        (0..10_001).map(|_| json!({"op": "test", "path": "/data/k", "value": "1"})).collect();
    let (many, large) =
        (Value::from(many).to_string(), format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(4 << 20)));
    let huge = format!("{MAPS}?resourceVersion=99999999999");
    for (method, url, header, body, code, reason) in [
        ("POST", MAPS, json_type, "{", 400, "BadRequest"),
        ("POST", MAPS, json_type, "[]", 400, "BadRequest"),
        ("GET", &object_url, ("authorization", "Bearer bad"), "", 401, "Unauthorized"),
        ("GET", "/api/v1/namespaces/a/configmaps/none", json_type, "", 404, "NotFound"),
        ("PUT", MAPS, json_type, "{}", 405, "MethodNotAllowed"),
        ("GET", &object_url, ("accept", "image/png"), "", 406, "NotAcceptable"),
        ("POST", MAPS, json_type, r#"{"metadata":{"name":"one"}}"#, 409, "AlreadyExists"),
        (
            "PUT",
            &object_url,
            json_type,
            r#"{"metadata":{"name":"one","resourceVersion":"1"}}"#,
            409,
            "Conflict",
        ),
        ("POST", MAPS, json_type, &large, 413, "RequestEntityTooLarge"),
        ("PATCH", &object_url, patch, &many, 413, "RequestEntityTooLarge"),
        ("POST", MAPS, ("content-type", "text/plain"), "{}", 415, "UnsupportedMediaType"),
        ("POST", MAPS, json_type, r#"{"metadata":{"name":"Bad_Name"}}"#, 422, "Invalid"),
        ("PATCH", &object_url, patch, r#"[{"op":"test","path":"/data/k","value":"no"}]"#, 422, "Invalid"),
        ("PATCH", &object_url, patch, r#"[{"op":"remove","path":"/data/none"}]"#, 422, "Invalid"),
        ("PATCH", &object_url, patch, "{", 400, "BadRequest"),
        (
            "PUT",
            "/api/v1/namespaces/a/configmaps/fixed",
            json_type,
            r#"{"metadata":{"name":"fixed"},"immutable":true,"data":{"k":"2"}}"#,
            422,
            "Invalid",
        ),
        ("GET", &huge, json_type, "", 504, "Timeout"),
    ] {
        let reply = server.send(method, url, &[header], body.to_owned()).await;
        let shown = reply.json();
        assert!(is_status(&reply), "{method} {url}: {shown}");
        assert_eq!((reply.code, &shown["reason"]), (code, &json!(reason)), "{method} {url}: {shown}");
    }
    let missing = server.get(&format!("{MAPS}/none")).await.json();
    assert_eq!(missing["details"], json!({"name": "none", "kind": "configmaps"}));
    let exists = server.post(MAPS, map("one", "1")).await.json();
    assert_eq!(
        (&exists["details"]["name"], &exists["details"]["kind"]),
        (&json!("one"), &json!("configmaps"))
    );
    let invalid = server.post(MAPS, json!({"metadata": {"name": "Bad_Name"}})).await.json();
    assert_eq!(
        (&invalid["details"]["kind"], &invalid["details"]["causes"][0]["field"]),
        (&json!("ConfigMap"), &json!("metadata.name"))
    );
    let rejected = server.get(&huge).await;
    assert!(rejected.header("retry-after").parse::<u32>().is_ok_and(|seconds| seconds > 0), "{rejected:?}");
    assert_eq!(rejected.json()["details"]["retryAfterSeconds"].to_string(), rejected.header("retry-after"));
}

#[tokio::test]
async fn continue_token_of_compacted_revision_returns_410() {
    let server = Server::start().await;
    for name in ["one", "two", "three"] {
        server.post(MAPS, map(name, "1")).await;
    }
    // More lists than the cache keeps snapshots, so that the revision of the first one comes from the
    // history.
    let mut tokens = Vec::new();
    let mut version = String::new();
    for i in 0..20 {
        let page = server.get(&format!("{MAPS}?limit=1")).await.json();
        tokens.push(page["metadata"]["continue"].as_str().unwrap().to_owned());
        if i == 0 {
            version = page["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        }
        server.merge(&format!("{MAPS}/one"), json!({"data": {"k": i.to_string()}})).await;
    }
    let page = format!("{MAPS}?limit=1&continue={}", tokens[0]);
    assert_eq!(server.get(&page).await.code, 200, "the store history still contains the revision");
    let now = server.api_state.store.revision();
    server.api_state.store.compact(now).await.unwrap();
    let expired = server.get(&page).await;
    assert_eq!((expired.code, &expired.json()["reason"]), (410, &json!("Expired")));
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(server.get(&exact).await.code, 410);
    // Without `resourceVersionMatch`, a list with a limit is at exactly the resourceVersion. A list without a
    // limit is at least as new.
    let limited = server.get(&format!("{MAPS}?limit=1&resourceVersion={version}")).await;
    assert_eq!((limited.code, &limited.json()["reason"]), (410, &json!("Expired")));
    // A page that is not older than a compacted version is refused, a whole list is not (D-ERR-13).
    let at_least = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    assert_eq!(server.get(&at_least).await.code, 200);
    let limited = server.get(&format!("{at_least}&limit=1")).await;
    assert_eq!((limited.code, &limited.json()["reason"]), (410, &json!("Expired")));
    let newest = format!("{MAPS}?resourceVersion={now}&resourceVersionMatch=NotOlderThan&limit=1");
    assert_eq!(server.get(&newest).await.code, 200, "the compacted version itself is readable");
}

#[tokio::test]
async fn version_document_shows_emulated_and_compatible_release() {
    let texts = |versions: &[&str]| versions.iter().map(|version| (*version).to_owned()).collect::<Vec<_>>();
    for (emulated, oldest, expected) in [
        (&[][..], &[][..], ("33", "32")),
        (&["1.32"], &[], ("32", "31")),
        (&["1.32"], &["1.30"], ("32", "30")),
    ] {
        let versions = CompatibilityVersions::parse(&texts(emulated), &texts(oldest)).unwrap();
        let server = Server::start_with_versions(versions).await;
        let version = server.get("/version").await.json();
        assert_eq!((&version["minor"], &version["gitVersion"]), (&"33".into(), &"v1.33.0".into()));
        assert_eq!(
            (&version["emulationMajor"], &version["minCompatibilityMajor"]),
            (&"1".into(), &"1".into())
        );
        assert_eq!(version["emulationMinor"], expected.0);
        assert_eq!(version["minCompatibilityMinor"], expected.1);
    }
}

#[tokio::test]
async fn paths_with_a_slash_at_the_end_exist_as_in_kube_apiserver() {
    let server = Server::start().await;
    for (path, code) in [
        ("/healthz", 200),
        ("/healthz/", 404),
        ("/livez/", 404),
        ("/readyz/", 404),
        ("/healthz/ping", 200),
        ("/healthz/ping/", 404),
        ("/metrics/", 404),
        ("/openapi/v2/", 404),
        ("/openapi/v3/", 404),
        ("/version/", 200),
        ("/api/", 200),
        ("/apis/", 200),
        ("/apis/apps/", 200),
        ("/apis/apps/v1/", 200),
    ] {
        assert_eq!(server.get(path).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn field_of_wrong_type_in_built_in_kind_returns_400() {
    let server = Server::start().await;
    for (url, body) in [
        (MAPS, json!({"metadata": {"name": "x"}, "data": 5})),
        (MAPS, json!({"metadata": {"name": "x"}, "data": {"k": 5}})),
        (MAPS, json!({"metadata": {"name": "x", "labels": []}})),
        ("/api/v1/namespaces/a/pods", json!({"metadata": {"name": "x"}, "spec": {"containers": {}}})),
    ] {
        let reply = server.post(url, body.clone()).await;
        assert_eq!((reply.code, &reply.json()["reason"]), (400, &json!("BadRequest")), "{body}");
    }
}

#[tokio::test]
async fn object_of_named_group_has_group_and_version_as_api_version() {
    let server = Server::start().await;
    let url = "/apis/apps/v1/namespaces/a/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let created = server.post(url, deployment).await;
    assert_eq!(created.code, 201, "{}", created.json());
    for reply in [created, server.get(&format!("{url}/d")).await] {
        assert_eq!(
            (&reply.json()["apiVersion"], &reply.json()["kind"]),
            (&json!("apps/v1"), &json!("Deployment"))
        );
    }
    let list = server.get(url).await.json();
    assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("apps/v1"), &json!("DeploymentList")));
}
