//! Requests to an extension API server: users, representations, patches, watches, upgrades, discovery, OpenAPI.

use backends::apiserver::ApiServerOptions;
use serde_json::{Value, json};
use tests::harness::{Client, Options, eventually, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Aggregator, FLAVORS, Flavors, SERVICES, api_service, certificate, flavor};

#[tokio::test]
async fn requests_reach_the_server_with_the_user_and_without_identity_headers_of_the_client() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let (plane, server) = (flavors.plane(), flavors.server.as_ref().unwrap());
    let created = plane.admin().post(FLAVORS, &flavor("vanilla", "sweet")).await.expect(201);
    assert_eq!(created["metadata"]["annotations"]["flavors.example.com/created-by"], "admin");

    server.take_seen();
    let rules = json!([{"apiGroups": ["flavors.example.com"], "resources": ["flavors"], "verbs": ["get"]}]);
    plane.grant("", "readers", "User/bob", &rules).await;
    let spoofed = [
        ("x-remote-user", "root"),
        ("X_Remote_User", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-scopes", "all"),
        ("x_remote-group", "system:masters"),
    ];
    let path = format!("{FLAVORS}/vanilla");
    plane.user("bob").request("GET", &path, &spoofed, b"").await.expect(200);
    let seen = server.take_seen();
    let seen = seen.iter().find(|seen| seen.path == path).expect("the request");
    assert_eq!(seen.header("x-remote-user"), ["bob"]);
    assert_eq!(seen.header("x-remote-group"), ["team-a", "team-b", "system:authenticated"]);
    assert_eq!(seen.header("x-remote-uid"), ["bob-uid"]);
    let other = |name: &String| name.replace('_', "-").starts_with("x-remote-");
    let names: Vec<&String> = seen.headers.iter().map(|(name, _)| name).filter(|name| other(name)).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(seen.header("authorization").is_empty());
    assert_eq!(seen.client.as_deref(), Some("front-proxy-client"));

    // A request that apid rejects does not reach the server.
    plane.user("alice").get(&path).await.expect(403);
    plane.user("bob").delete(&path).await.expect(403);
    plane.anonymous().get("/apis/flavors.example.com/v1").await.expect(403);
    assert!(server.take_seen().iter().all(|seen| seen.header("x-remote-user") == ["system:kube-aggregator"]));

    // The server itself rejects a client without the proxy certificate.
    let direct = Client::new(server.address().port(), None);
    direct.request("GET", &path, &[("x-remote-user", "admin")], b"").await.expect(401);
}

/// Requirements D-TBL-9, D-PB-11, D-MT-24 and D-CRD-2.
#[tokio::test]
async fn representations_and_patches_are_those_of_the_server() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let plane = flavors.plane();
    let admin = plane.admin();
    admin.post(FLAVORS, &flavor("vanilla", "sweet")).await.expect(201);
    let path = format!("{FLAVORS}/vanilla");
    let accept = |value: &'static str| [("accept", value)];

    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let shown = admin.request("GET", FLAVORS, &accept(table), b"").await.expect(200);
    assert_eq!((&shown["kind"], &shown["rows"][0]["cells"]), (&json!("Table"), &json!(["vanilla", "sweet"])));

    // The metrics API has no Table, so the next type is sent.
    let server = flavors.server.as_ref().unwrap();
    let service = api_service("metrics.k8s.io", "v1beta1", server.address().port(), &flavors.certificate.ca);
    admin.post(SERVICES, &service).await.expect(201);
    flavors.aggregator.wait_for_reason("v1beta1.metrics.k8s.io", "Passed").await;
    let plain = admin.request("GET", "/apis/metrics.k8s.io/v1beta1/nodes", &accept(table), b"").await;
    assert_eq!(plain.header("content-type"), "application/json");
    assert_eq!(plain.expect(200)["kind"], "NodeMetricsList");

    let protobuf = "application/vnd.kubernetes.protobuf";
    admin.request("GET", &path, &accept(protobuf), b"").await.expect(406);

    let patch = json!({"spec": {"taste": "bitter"}});
    let rejected = admin.patch(&path, "application/strategic-merge-patch+json", &patch).await.expect(415);
    assert_eq!(rejected["reason"], "UnsupportedMediaType");
    let merged = admin.patch(&path, "application/merge-patch+json", &patch).await.expect(200);
    assert_eq!(merged["spec"]["taste"], "bitter");
}

#[tokio::test]
async fn watches_stream_events_and_end_with_their_server() {
    let mut flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    let mut watch = admin.watch(&format!("{FLAVORS}?watch=true")).await;
    admin.post(FLAVORS, &flavor("vanilla", "sweet")).await.expect(201);
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("vanilla")));
    admin.delete(&format!("{FLAVORS}/vanilla")).await.expect(200);
    assert_eq!(watch.next().await.expect("an event")["type"], "DELETED");
    flavors.server = None;
    assert!(watch.next().await.is_none());
}

/// Sends a request on a connection of its own and returns the head of the response and the connection.
async fn raw_request(port: u16, head: &str) -> (String, tokio_rustls::client::TlsStream<TcpStream>) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
    let mut stream = tls(&["http/1.1"]).connect(name, stream).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        received.push(stream.read_u8().await.unwrap());
    }
    (String::from_utf8_lossy(&received).into_owned(), stream)
}

#[tokio::test]
async fn upgraded_connections_pass_bytes_in_both_directions() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let port = flavors.plane().admin().port();
    let head = |path: &str, upgrade: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer admin-token\r\n\
             connection: Upgrade\r\nupgrade: {upgrade}\r\n\r\n"
        )
    };
    let (answer, mut stream) = raw_request(port, &head(&format!("{FLAVORS}/vanilla/taste"), "taste/1")).await;
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(answer.to_lowercase().contains("upgrade: taste/1"), "{answer}");
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let mut received = vec![0; sent.len()];
    let (written, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received));
    written.unwrap();
    read.unwrap();
    assert_eq!(received, sent);
    drop(stream);

    // After a refused upgrade, the connection still belongs to the client: the next request is authorized as any other.
    let (answer, mut stream) = raw_request(port, &head(&format!("{FLAVORS}/absent"), "taste/1")).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let smuggled =
        "GET /api/v1/namespaces/kube-system/secrets HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(smuggled.as_bytes()).await.ok();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.ok();
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("HTTP/1.1 200"), "{rest}");
}

#[tokio::test]
async fn discovery_and_openapi_contain_the_server() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    let aggregated = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let entry = |list: &Value| {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().find(|item| item["metadata"]["name"] == "flavors.example.com")
    };
    let found = eventually("the resources of the server", || async {
        let list = admin.request("GET", "/apis", &aggregated, b"").await.expect(200);
        entry(&list).filter(|entry| entry["versions"][0]["freshness"] == "Current")
    })
    .await;
    assert_eq!(found["versions"][0]["resources"][0]["resource"], "flavors");
    let groups = flavors.get("/apis").await.expect(200);
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.last().unwrap()["name"], "flavors.example.com");
    let group = flavors.get("/apis/flavors.example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "flavors.example.com/v1");
    let list = flavors.get("/apis/flavors.example.com/v1").await.expect(200);
    assert_eq!(list["resources"][0]["shortNames"], json!(["fl"]));
    assert_eq!(flavors.get("/apis/flavors.example.com/v2").await.text(), "404 page not found\n");

    let index = eventually("the OpenAPI document of the server", || async {
        let index = flavors.get("/openapi/v3").await.expect(200);
        index["paths"].get("apis/flavors.example.com/v1").cloned()
    })
    .await;
    let url = index["serverRelativeURL"].as_str().unwrap();
    let document = flavors.get(url).await;
    assert_eq!(document.header("etag"), "\"backend-v3\"");
    let schemas = document.expect(200)["components"]["schemas"].clone();
    assert!(schemas.get("com.example.flavors.v1.Flavor").is_some());
    let known = [("if-none-match", "\"backend-v3\"")];
    admin.request("GET", url, &known, b"").await.expect(304);

    let document = eventually("the merged OpenAPI 2 document", || async {
        let document = flavors.get("/openapi/v2").await.expect(200);
        let path = "/apis/flavors.example.com/v1/namespaces/{namespace}/flavors/{name}";
        document["paths"].get(path).is_some().then_some(document)
    })
    .await;
    let definitions = &document["definitions"];
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert!(definitions[meta]["properties"].get("labels").is_some(), "the own model stays");
    let renamed = format!("{meta}_v2");
    assert_eq!(definitions[&renamed]["description"], "The metadata of another release.");
    let reference = &definitions["com.example.flavors.v1.Flavor"]["properties"]["metadata"]["$ref"];
    assert_eq!(reference, &json!(format!("#/definitions/{renamed}")));
    assert!(
        document["paths"]
            .get("/version/")
            .is_none_or(|path| path["get"]["operationId"] != "getBackendVersion")
    );
}

#[tokio::test]
async fn server_without_openapi_3_has_a_converted_document() {
    let aggregator = Aggregator::start(Options::kubernetes()).await;
    let certificate = certificate();
    let options = ApiServerOptions { has_openapi_v3: false, ..ApiServerOptions::default() };
    let server = aggregator.server(&certificate, options).await;
    aggregator.register("flavors.example.com", "v1", &server, &certificate.ca).await;
    aggregator.wait_for_reason("v1.flavors.example.com", "Passed").await;
    let admin = aggregator.plane.admin();
    let index = eventually("the converted document", || async {
        let index = admin.get("/openapi/v3").await.expect(200);
        index["paths"].get("apis/flavors.example.com/v1").cloned()
    })
    .await;
    let url = index["serverRelativeURL"].as_str().unwrap();
    let document = admin.get(url).await;
    let etag = document.header("etag").to_owned();
    assert!(url.ends_with(&format!("?hash={}", etag.trim_matches('"'))), "{url} {etag}");
    let document = document.expect(200);
    let schemas = &document["components"]["schemas"];
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(schemas[meta]["description"], "The metadata of another release.");
    let reference = &schemas["com.example.flavors.v1.Flavor"]["properties"]["metadata"]["$ref"];
    assert_eq!(reference, &json!(format!("#/components/schemas/{meta}")));
    let path = "/apis/flavors.example.com/v1/namespaces/{namespace}/flavors/{name}";
    assert_eq!(document["paths"][path]["get"]["operationId"], "readFlavor");
    admin.request("GET", url, &[("if-none-match", &etag)], b"").await.expect(304);
}

#[tokio::test]
async fn api_service_with_server_precedes_a_definition_until_it_is_deleted() {
    let flavors = Flavors::start(Options::kubernetes()).await;
    let admin = flavors.plane().admin();
    let definition = json!({
        "metadata": {"name": "flavors.flavors.example.com"},
        "spec": {"group": "flavors.example.com", "scope": "Namespaced",
            "names": {"plural": "flavors", "singular": "flavor", "kind": "Flavor", "listKind": "FlavorList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    admin.post(definitions, &definition).await.expect(201);
    let path = format!("{definitions}/flavors.flavors.example.com");
    admin.wait_until_established(&path).await;
    admin.post(FLAVORS, &flavor("remote", "sweet")).await.expect(201);
    let service = format!("{SERVICES}/v1.flavors.example.com");
    let condition = admin.get(&service).await.expect(200)["status"]["conditions"][0].clone();
    assert_eq!(condition["reason"], "Passed");

    admin.delete(&service).await.expect(200);
    eventually("the definition is served", || async {
        (admin.get(&format!("{FLAVORS}/remote")).await.status == 404).then_some(())
    })
    .await;
    let local = eventually("the local APIService", || async {
        let object = admin.get(&service).await;
        (object.status == 200).then(|| object.json())
    })
    .await;
    assert!(local["spec"].get("service").is_none(), "{local}");
    admin.post(FLAVORS, &flavor("local", "sweet")).await.expect(201);

    admin.delete(&path).await.expect(200);
    admin.wait_until_deleted(&service).await;
    eventually("no flavors", || async { (admin.get(FLAVORS).await.status == 404).then_some(()) }).await;
}

#[tokio::test]
async fn server_without_a_service_or_with_a_bad_bundle_is_not_available() {
    let aggregator = Aggregator::start(Options::kubernetes()).await;
    let admin = aggregator.plane.admin();
    admin.post(SERVICES, &api_service("a.example.com", "v1", 443, &certificate().ca)).await.expect(201);
    let message = aggregator.wait_for_reason("v1.a.example.com", "ServiceNotFound").await;
    assert_eq!(message, "service/back in \"default\" is not present");
    let answer = admin.get("/apis/a.example.com/v1/things").await;
    assert_eq!((answer.status, answer.text().as_str()), (503, "service unavailable\n"));
    let server = aggregator.server(&certificate(), ApiServerOptions::default()).await;
    aggregator.register("b.example.com", "v1", &server, "no certificate").await;
    let message = aggregator.wait_for_reason("v1.b.example.com", "FailedDiscoveryCheck").await;
    assert!(message.contains("caBundle"), "{message}");
}
