//! Encodings of responses and bodies (requirements D-HDR, D-MT, D-TBL, D-GZIP).
//!
//! Covers media types, Tables, compression and response headers.

use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::{MAPS, Reply, Server, map};
use crate::response::protobuf;

async fn get(server: &Server, url: &str, accept: &str) -> Reply {
    server.send("GET", url, &[("accept", accept)], "").await
}

#[tokio::test]
async fn accept_header_selects_media_type_by_quality_and_order() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let (json, yaml, protobuf) = ("application/json", "application/yaml", "application/vnd.svc.protobuf");
    for (accept, code, media_type) in [
        ("", 200, json),
        ("*/*", 200, json),
        ("application/*", 200, json),
        ("application/yaml", 200, yaml),
        ("application/yaml, application/json", 200, yaml),
        ("application/json, application/yaml", 200, json),
        ("application/json;q=0.1, application/yaml;q=0.2", 200, yaml),
        ("application/json;q=0.1, application/yaml", 200, yaml),
        ("text/html, application/yaml;q=0.9, */*;q=0.8", 200, yaml),
        ("image/png, */*;q=0.1", 200, json),
        ("application/vnd.svc.protobuf, application/json", 200, protobuf),
        ("application/vnd.kubernetes.protobuf, application/json", 200, json),
        ("application/json; charset=utf-8", 200, json),
        ("image/png", 406, json),
        ("text/csv", 406, json),
        ("application/cbor", 406, json),
        ("application/cbor-seq", 406, json),
        ("application/json;q=0", 406, json),
        ("application/json;as=Nothing;g=meta.example.test;v=v1", 406, json),
    ] {
        for url in [&object_url, MAPS] {
            let reply = get(&server, url, accept).await;
            assert_eq!((reply.code, reply.header("content-type")), (code, media_type), "{accept} {url}");
            if code == 406 {
                assert_eq!(reply.json()["reason"], "NotAcceptable", "{accept}");
            }
        }
    }
    let nothing = server.send("GET", &object_url, &[], "").await;
    assert_eq!(nothing.header("content-type"), json);
    let several = server.send("GET", &object_url, &[("accept", "image/png"), ("accept", yaml)], "").await;
    assert_eq!(several.header("content-type"), yaml, "two Accept headers");
    assert_eq!(get(&server, &format!("{MAPS}?watch=1"), yaml).await.code, 406, "a watch has no YAML");
}

#[tokio::test]
async fn write_responses_use_negotiated_representation() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let json_type = ("content-type", "application/json");
    let table = "application/json;as=Table;g=meta.example.test;v=v1";
    let partial = "application/json;as=PartialObjectMetadata;g=meta.example.test;v=v1";
    for (method, url, accept, body, code, kind) in [
        ("POST", MAPS, table, map("one", "1").to_string(), 201, "Table"),
        ("PUT", &object_url, partial, map("one", "2").to_string(), 200, "PartialObjectMetadata"),
        ("DELETE", &object_url, "application/json", String::new(), 200, "Status"),
    ] {
        let reply = server.send(method, url, &[json_type, ("accept", accept)], body).await;
        assert_eq!((reply.code, &reply.json()["kind"]), (code, &json!(kind)), "{method}");
    }
    // A request whose response format is not acceptable has no effect.
    for (method, url, body) in [("POST", MAPS, map("two", "1").to_string()), ("DELETE", MAPS, String::new())]
    {
        let reply = server.send(method, url, &[json_type, ("accept", "image/png")], body).await;
        assert_eq!(reply.code, 406, "{method}");
    }
    assert_eq!(server.get(&format!("{MAPS}/two")).await.code, 404);
    let yaml = server
        .send("POST", MAPS, &[json_type, ("accept", "application/yaml")], map("y", "1").to_string())
        .await;
    assert!(yaml.code == 201 && yaml.body.starts_with(b"apiVersion: v1\n"));
    let missing = get(&server, &format!("{MAPS}/none"), "application/yaml").await;
    assert_eq!((missing.code, missing.header("content-type")), (404, "application/yaml"));
    assert!(missing.body.windows(12).any(|text| text == b"kind: Status"));
}

#[tokio::test]
async fn content_type_selects_body_format() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let json = map("x", "1").to_string();
    let yaml = "metadata:\n  name: x\ndata: {k: v}\n";
    for (method, url, media_type, body, code) in [
        ("POST", MAPS, None, json.as_str(), 201),
        ("POST", MAPS, Some("application/json"), &json, 201),
        ("POST", MAPS, Some("application/json; charset=utf-8"), &json, 201),
        ("POST", MAPS, Some("APPLICATION/JSON;charset=UTF-8"), &json, 201),
        ("POST", MAPS, Some("application/yaml"), yaml, 201),
        ("POST", MAPS, Some("application/yaml; charset=utf-8"), yaml, 201),
        ("POST", MAPS, Some("application/yaml"), &json, 201),
        ("POST", MAPS, None, yaml, 400),
        ("POST", MAPS, Some("application/json"), yaml, 400),
        ("POST", MAPS, Some("text/plain"), &json, 415),
        ("POST", MAPS, Some("application/cbor"), &json, 415),
        ("POST", MAPS, Some("application/x-www-form-urlencoded"), &json, 415),
        ("PATCH", &object_url, None, "{}", 415),
        ("PATCH", &object_url, Some("application/json"), "{}", 415),
        ("PATCH", &object_url, Some("application/yaml"), "{}", 415),
        ("PATCH", &object_url, Some("application/json-patch+cbor"), "{}", 415),
        ("PATCH", &object_url, Some("application/merge-patch+cbor"), "{}", 415),
        ("PATCH", &object_url, Some("application/strategic-merge-patch+cbor"), "{}", 415),
        ("PATCH", &object_url, Some("application/apply-patch+cbor"), "{}", 415),
        ("PATCH", &object_url, Some("application/merge-patch+json; charset=utf-8"), "{}", 200),
        ("DELETE", &object_url, Some("text/plain"), "{}", 415),
        ("DELETE", &object_url, Some("text/plain"), "", 200),
    ] {
        let headers: Vec<_> = media_type.map(|media_type| ("content-type", media_type)).into_iter().collect();
        let reply = server.send(method, url, &headers, body.to_owned()).await;
        assert_eq!(reply.code, code, "{method} {media_type:?} {body}: {:?}", reply.json());
        match code {
            201 => drop(server.delete(&format!("{MAPS}/x"), json!(null)).await),
            415 => assert_eq!(reply.json()["reason"], "UnsupportedMediaType"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn every_resource_is_served_as_json_and_table() {
    let server = Server::start().await;
    let mut served = 0;
    for resource in server.api_state.kinds.registry().resources() {
        if !resource.verbs.contains(&kinds::Verb::List) {
            continue;
        }
        let group = &resource.group_resource.group;
        for version in resource.versions() {
            let prefix =
                if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            let url = format!("{prefix}/{}", resource.plural());
            let reply = server.get(&url).await;
            assert_eq!((reply.code, reply.header("content-type")), (200, "application/json"), "{url}");
            assert_eq!(reply.json()["kind"], resource.names.list, "{url}");
            // Every kind has a Table with at least two columns.
            let accept = "application/json;as=Table;g=meta.example.test;v=v1,application/json";
            let table = get(&server, &url, accept).await.json();
            assert_eq!(
                (&table["kind"], &table["apiVersion"]),
                (&json!("Table"), &json!("meta.example.test/v1")),
                "{url}"
            );
            for column in table["columnDefinitions"].as_array().unwrap() {
                assert!(
                    column["name"].is_string()
                        && column["format"].is_string()
                        && column["description"].is_string()
                );
                let kind = column["type"].as_str().unwrap();
                assert!(["string", "integer", "number", "date", "boolean"].contains(&kind), "{url}: {kind}");
                assert!(column["priority"].is_u64(), "{url}");
            }
            assert!(protobuf::has_message(resource), "{url}");
            let form = schema::Schema::of_kind(&resource.api_version(), resource.name()).unwrap();
            assert_eq!(Some(form.name()), resource.schema.type_name(), "{url}");
            served += 1;
        }
    }
    assert!(served > 40, "{served}");
}

#[tokio::test]
async fn table_of_list_object_and_watch() {
    let server = Server::start().await;
    let (mine, other) = (
        "application/json;as=Table;g=meta.example.test;v=v1",
        "application/json;as=Table;g=meta.other.test;v=v1",
    );
    let roles = "/apis/rbac.authorization.example.test/v1/namespaces/a/roles";
    for name in ["r1", "r2"] {
        assert_eq!(server.post(roles, json!({"metadata": {"name": name}, "rules": []})).await.code, 201);
    }
    let json = server.get(roles).await.json();
    let table = get(&server, roles, mine).await.json();
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| (&c["name"], &c["type"])).collect();
    assert_eq!(columns, [(&json!("Name"), &json!("string")), (&json!("Created At"), &json!("date"))]);
    for (row, item) in table["rows"].as_array().unwrap().iter().zip(json["items"].as_array().unwrap()) {
        let meta = &item["metadata"];
        assert_eq!(row["cells"], json!([meta["name"], meta["creationTimestamp"]]));
        assert_eq!(
            (&row["object"]["kind"], &row["object"]["metadata"]),
            (&json!("PartialObjectMetadata"), meta)
        );
    }
    assert_eq!(table["metadata"]["resourceVersion"], json["metadata"]["resourceVersion"]);

    assert_eq!(get(&server, roles, other).await.code, 406);
    assert_eq!(get(&server, roles, &format!("{other},application/json")).await.json()["kind"], "RoleList");
    let page = get(&server, &format!("{roles}?limit=1"), mine).await.json();
    assert_eq!(
        (&page["metadata"]["remainingItemCount"], page["rows"].as_array().unwrap().len()),
        (&json!(1), 1)
    );
    let next = format!("{roles}?limit=1&continue={}", page["metadata"]["continue"].as_str().unwrap());
    assert_eq!(get(&server, &next, mine).await.json()["rows"][0]["cells"][0], "r2");

    for (include, kind) in [
        ("", json!("PartialObjectMetadata")),
        ("Metadata", json!("PartialObjectMetadata")),
        ("Object", json!("Role")),
        ("None", json!(null)),
    ] {
        let table = get(&server, &format!("{roles}/r1?includeObject={include}"), mine).await.json();
        assert_eq!((&table["kind"], table["rows"].as_array().unwrap().len()), (&json!("Table"), 1));
        assert_eq!(table["rows"][0]["object"]["kind"], kind, "{include}");
    }
    assert_eq!(get(&server, &format!("{roles}?includeObject=All"), mine).await.code, 400);

    let watch = get(&server, &format!("{roles}?watch=1&timeoutSeconds=1"), mine).await;
    let lines = watch.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let events: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(events.len(), 2);
    for (event, with_columns) in events.iter().zip([true, false]) {
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
        assert_eq!(event["object"]["rows"].as_array().unwrap().len(), 1);
        assert_eq!(
            !event["object"]["columnDefinitions"].is_null(),
            with_columns,
            "only the first event has column definitions"
        );
    }

    for (kind, url) in
        [("PartialObjectMetadata", format!("{roles}/r1")), ("PartialObjectMetadataList", roles.to_owned())]
    {
        let accept = format!("application/json;as={kind};g=meta.example.test;v=v1");
        let partial = get(&server, &url, &accept).await.json();
        assert_eq!(
            (&partial["kind"], &partial["apiVersion"]),
            (&json!(kind), &json!("meta.example.test/v1"))
        );
        assert!(partial.get("rules").is_none());
    }
}

#[tokio::test]
async fn partial_object_has_only_metadata() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/a/pods";
    let created = server.post(pods, body).await.json();
    let accept = |kind: &str| format!("application/json;as={kind};g=meta.example.test;v=v1");
    let item = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.example.test/v1", "metadata": created["metadata"]});
    assert_eq!(get(&server, &format!("{pods}/p"), &accept("PartialObjectMetadata")).await.json(), item);
    let list = get(&server, pods, &accept("PartialObjectMetadataList")).await.json();
    let fields: Vec<_> = list.as_object().unwrap().keys().collect();
    assert_eq!((&list["kind"], fields.len()), (&json!("PartialObjectMetadataList"), 4), "{fields:?}");
    assert_eq!(list["items"], json!([item]));
}

#[tokio::test]
async fn pod_table_wide_columns_have_priority_1() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/a/pods";
    assert_eq!(server.post(pods, pod).await.code, 201);
    let table = get(&server, pods, "application/json;as=Table;g=meta.example.test;v=v1").await.json();
    let columns = table["columnDefinitions"].as_array().unwrap();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap().len(), columns.len());
    let names_of_priority = |priority: u64| -> Vec<&str> {
        columns.iter().filter(|c| c["priority"] == priority).map(|c| c["name"].as_str().unwrap()).collect()
    };
    assert_eq!(names_of_priority(0), ["Name", "Ready", "Status", "Restarts", "Age"]);
    assert_eq!(names_of_priority(1), ["IP", "Node", "Nominated Node", "Readiness Gates"]);
    assert_eq!(columns[0]["format"], "name");
}

#[tokio::test]
async fn large_response_is_compressed_if_client_accepts_gzip() {
    let server = Server::start().await;
    let large = "text that repeats itself, ".repeat(8_000);
    for name in ["one", "two"] {
        assert_eq!(server.post(MAPS, map(name, &large)).await.code, 201);
    }
    // The second object is just below the limit of 128 KiB, with its metadata.
    let other_maps = "/api/v1/namespaces/b/configmaps";
    for (name, size) in [("small", 1), ("below", 130_000)] {
        assert_eq!(server.post(other_maps, map(name, &"x".repeat(size))).await.code, 201);
    }
    let object_url = format!("{MAPS}/one");
    let (small, below) = (format!("{other_maps}/small"), format!("{other_maps}/below"));
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1");
    for (url, encoding, compressed) in [
        (&object_url, "gzip", true),
        (&MAPS.to_owned(), "gzip", true),
        (&object_url, "deflate, gzip", true),
        (&object_url, "GZIP", true),
        (&object_url, "", false),
        (&object_url, "identity", false),
        (&object_url, "gzip;q=0.5", false),
        (&object_url, "gzip;q=0", false),
        (&small, "gzip", false),
        (&below, "gzip", false),
        (&watch, "gzip", false),
    ] {
        let plain = server.get(url).await;
        let reply = server.send("GET", url, &[("accept-encoding", encoding)], "").await;
        assert_eq!(reply.code, 200, "{url} {encoding}");
        assert_eq!(
            reply.header("content-encoding"),
            if compressed { "gzip" } else { "" },
            "{url} {encoding}"
        );
        let varies = reply.header("vary").split(", ").any(|field| field == "Accept-Encoding");
        assert_eq!(varies, compressed, "{url} {encoding}");
        if compressed {
            let mut text = Vec::new();
            GzDecoder::new(&reply.body[..]).read_to_end(&mut text).unwrap();
            assert_eq!(text, plain.body);
            assert!(reply.body.len() < plain.body.len() / 4);
            // The server compresses the response while it sends it, so the length is unknown.
            assert_eq!(reply.header("content-length"), "");
            assert_eq!(reply.header("vary"), "Accept-Encoding");
        } else {
            assert_eq!(reply.body, plain.body, "{url} {encoding}");
        }
    }
    let protobuf = [("accept", "application/vnd.svc.protobuf"), ("accept-encoding", "gzip")];
    let reply = server.send("GET", &object_url, &protobuf, "").await;
    assert_eq!(reply.header("content-encoding"), "gzip");
    let off = Server::start_with_gates("APIResponseCompression=false").await;
    assert_eq!(off.post(MAPS, map("one", &large)).await.code, 201);
    let reply = off.send("GET", &object_url, &[("accept-encoding", "gzip")], "").await;
    assert_eq!((reply.code, reply.header("content-encoding")), (200, ""));
}

#[tokio::test]
async fn deprecated_resource_returns_warning_header() {
    let server = Server::start().await;
    let reply = server.get("/api/v1/componentstatuses").await;
    assert_eq!(reply.code, 200);
    let warning = reply.header("warning");
    assert!(warning.starts_with("299 - \"") && warning.ends_with('"'), "{warning}");
    assert!(warning.contains("ComponentStatus is deprecated"), "{warning}");
    for url in ["/api/v1/namespaces/a/endpoints", "/api/v1/endpoints?limit=1"] {
        assert!(server.get(url).await.header("warning").contains("deprecated"), "{url}");
    }
    assert_eq!(server.get(MAPS).await.header("warning"), "");
}

/// kube-apiserver negotiates documents outside of resources in different ways.
#[tokio::test]
async fn index_documents_serve_accept_header_like_kube_apiserver() {
    let server = Server::start().await;
    let (json, yaml, text) = ("application/json", "application/yaml", "text/plain");
    for (path, accept, code, media_type) in [
        ("/", text, 200, json),
        ("/", yaml, 200, json),
        ("/openapi/v3", text, 200, json),
        ("/openapi/v3", yaml, 200, json),
        ("/openapi/v3/api/v1", text, 406, json),
        ("/openapi/v2", text, 406, json),
        ("/version", text, 406, json),
        ("/version", yaml, 406, yaml),
        ("/version", "*/*", 200, json),
        ("/version", "text/html, application/json;q=0.9", 200, json),
        ("/api", yaml, 200, yaml),
        ("/api", text, 406, json),
        ("/apis", yaml, 200, yaml),
        ("/apis", text, 406, json),
        ("/apis/apps", yaml, 200, yaml),
        ("/apis/apps", text, 406, json),
        ("/apis/apps/v1", yaml, 200, yaml),
        ("/apis/apps/v1", text, 406, json),
        ("/healthz", yaml, 200, "text/plain; charset=utf-8"),
    ] {
        let reply = get(&server, path, accept).await;
        assert_eq!((reply.code, reply.header("content-type")), (code, media_type), "{path} {accept}");
    }
    let message = |reply: &Reply| reply.json()["message"].as_str().unwrap_or_default().to_owned();
    let refused = message(&get(&server, "/apis", text).await);
    assert!(refused.starts_with("only the following media types are accepted"), "{refused}");
}

#[tokio::test]
async fn responses_have_content_type_cache_control_and_audit_id() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    for (url, media_type) in [
        (MAPS.to_owned(), "application/json"),
        (format!("{MAPS}/none"), "application/json"),
        (format!("{MAPS}?watch=1&timeoutSeconds=1"), "application/json"),
        ("/version".to_owned(), "application/json"),
        ("/livez".to_owned(), "text/plain; charset=utf-8"),
        ("/nothing".to_owned(), "text/plain; charset=utf-8"),
    ] {
        let reply = server.get(&url).await;
        assert_eq!(reply.header("content-type"), media_type, "{url}");
        assert_eq!(reply.header("cache-control"), "no-cache, private", "{url}");
        assert!(!reply.header("audit-id").is_empty(), "{url}");
    }
    let reply = server.send("GET", MAPS, &[("audit-id", "mine-1")], "").await;
    assert_eq!(reply.header("audit-id"), "mine-1");
    for url in ["/api", "/apis", "/api/v1"] {
        assert_eq!(server.get(url).await.header("vary"), "Accept", "{url}");
    }
}
