//! Conversion webhooks: objects are stored in one version and served in all, and a failure concerns one kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use webhooks::CallFailure;

use super::custom_kinds::{DEFINITIONS, WIDGETS, define, events, eventually, widget, with_controller};
use super::{MAPS, Server, map};
use verbs::conversion::{ConversionCallError, ConversionClient, ConversionResponse};

const WIDGETS_V2: &str = "/apis/shop.example.com/v2/namespaces/a/widgets";

/// A converter between `spec.size` of v1 and `spec.length` of v2.
#[derive(Default)]
struct Converter {
    is_down: AtomicBool,
    /// Whether calls wait forever.
    is_stuck: AtomicBool,
    changes_names: AtomicBool,
    /// Whether responses contain no objects.
    drops_objects: AtomicBool,
    /// Whether returned reviews have no field `response`.
    is_silent: AtomicBool,
    reviews: Mutex<Vec<Value>>,
}

#[async_trait]
impl ConversionClient for Converter {
    async fn post(
        &self,
        client_config: &Value,
        review: Value,
    ) -> Result<ConversionResponse, ConversionCallError> {
        if self.is_stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.is_down.load(Ordering::SeqCst) {
            let url = client_config["url"].as_str().unwrap().to_owned();
            return Err(CallFailure::Transport { url, problem: "connection refused".to_owned() }.into());
        }
        self.reviews.lock().push(review.clone());
        let version = review["request"]["desiredAPIVersion"].clone();
        let mut objects = review["request"]["objects"].clone();
        for object in objects.as_array_mut().unwrap() {
            let (from, to) =
                if version == "shop.example.com/v2" { ("size", "length") } else { ("length", "size") };
            if let Some(value) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
                object["spec"][to] = value;
            }
            object["spec"]["undeclared"] = json!(1);
            object["metadata"]["generation"] = json!(77);
            object["apiVersion"] = version.clone();
            if self.changes_names.load(Ordering::SeqCst) {
                object["metadata"]["name"] = json!("other");
            }
        }
        if self.drops_objects.load(Ordering::SeqCst) {
            objects = json!([]);
        }
        let mut response = json!({
            "uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects,
        });
        if self.is_silent.load(Ordering::SeqCst) {
            response = Value::Null;
        }
        let review = json!({
            "kind": "ConversionReview", "apiVersion": review["apiVersion"], "response": response,
        });
        Ok(review.into())
    }
}

fn definition(storage: &str) -> Value {
    let version = |name: &str, field: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                "properties": {field: {"type": "integer", "maximum": 9}}}}}},
            "selectableFields": [{"jsonPath": format!(".spec.{field}")}],
            "additionalPrinterColumns": [{"name": field, "type": "integer", "jsonPath": format!(".spec.{field}")}],
        })
    };
    json!({
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://converter.test/c"},
                "conversionReviewVersions": ["v1"]}},
            "versions": [version("v1", "size"), version("v2", "length")]},
    })
}

async fn start(storage: &str) -> (Server, Arc<Converter>) {
    let converter = Arc::<Converter>::default();
    let server = with_controller(Server::start_with_converter(converter.clone()).await).await;
    define(&server, definition(storage)).await;
    (server, converter)
}

#[tokio::test(flavor = "multi_thread")]
async fn converted_kind_is_read_and_written_in_both_versions() {
    let (server, converter) = start("v2").await;
    let created = server.post(WIDGETS, widget("x", json!({"size": 3}))).await;
    let created = (created.code, created.json());
    assert_eq!((created.0, &created.1["spec"]), (201, &json!({"size": 3})), "{}", created.1);
    assert_eq!(created.1["metadata"]["generation"], 1, "the webhook cannot change metadata");
    let request = converter.reviews.lock()[0].clone();
    assert_eq!(request["apiVersion"], "apiextensions.example.test/v1");
    assert_eq!(request["request"]["objects"][0]["apiVersion"], "shop.example.com/v1");
    assert!(request["request"]["objects"][0]["metadata"].get("resourceVersion").is_none());

    let reviews = converter.reviews.lock().len();
    let stored = server.get(&format!("{WIDGETS_V2}/x")).await.json();
    assert_eq!(stored["spec"], json!({"length": 3}), "undeclared fields of the webhook are dropped");
    assert_eq!(converter.reviews.lock().len(), reviews, "the storage version needs no conversion");
    let url = format!("{WIDGETS}/x");
    let mut object = server.get(&url).await.json();
    assert_eq!(
        (&object["apiVersion"], &object["spec"]),
        (&json!("shop.example.com/v1"), &json!({"size": 3}))
    );

    object["spec"]["size"] = json!(10);
    let invalid = server.put(&url, object.clone()).await;
    assert_eq!((invalid.code, &invalid.json()["details"]["causes"][0]["field"]), (422, &json!("spec.size")));
    object["spec"]["size"] = json!(4);
    assert_eq!(server.put(&url, object).await.json()["spec"], json!({"size": 4}));
    let patched = server.merge(&url, json!({"spec": {"size": 5}})).await.json();
    assert_eq!((&patched["spec"], &patched["metadata"]["generation"]), (&json!({"size": 5}), &json!(3)));
    let unchanged = server.merge(&url, json!({"spec": {"size": 5}})).await.json();
    assert_eq!(unchanged["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
    assert_eq!(server.get(&format!("{WIDGETS_V2}/x")).await.json()["spec"], json!({"length": 5}));

    let apply = [("content-type", "application/apply-patch+yaml")];
    let configuration = widget("x", json!({"size": 6})).to_string();
    let applied =
        server.send("PATCH", &format!("{url}?fieldManager=m&force=true"), &apply, configuration).await;
    assert_eq!((applied.code, &applied.json()["spec"]), (200, &json!({"size": 6})));
    let mut in_v2 = widget("x", json!({"length": 7}));
    in_v2["apiVersion"] = json!("shop.example.com/v2");
    let conflict =
        server.send("PATCH", &format!("{WIDGETS_V2}/x?fieldManager=n"), &apply, in_v2.to_string()).await;
    assert_eq!(conflict.code, 409, "the owner of the field in v1 owns the field of v2");
    let table = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    assert_eq!(server.send("GET", &url, &[table], "").await.json()["rows"][0]["cells"], json!(["x", 6]));
    assert_eq!(server.delete(&url, Value::Null).await.code, 200);
    assert_eq!(server.get(&format!("{WIDGETS_V2}/x")).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_watch_convert_objects_in_batches() {
    let (server, converter) = start("v2").await;
    for i in 0..5 {
        let mut object = widget(&format!("w{i}"), json!({"length": i}));
        object["apiVersion"] = json!("shop.example.com/v2");
        assert_eq!(server.post(WIDGETS_V2, object).await.code, 201);
    }
    assert!(converter.reviews.lock().is_empty());
    let list = server.get(WIDGETS).await.json();
    let sizes: Vec<&Value> =
        list["items"].as_array().unwrap().iter().map(|item| &item["spec"]["size"]).collect();
    assert_eq!(sizes, [0, 1, 2, 3, 4]);
    assert_eq!(converter.reviews.lock().len(), 1, "one request for all objects");
    let selected = server.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D3")).await.json();
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    assert_eq!(selected["items"][0]["metadata"]["name"], "w3");
    let first = server.get(&format!("{WIDGETS}?limit=2")).await.json();
    assert_eq!(
        (first["items"].as_array().unwrap().len(), &first["metadata"]["remainingItemCount"]),
        (2, &json!(3))
    );
    assert_eq!(converter.reviews.lock().len(), 1, "lists use converted objects of the cache");

    let url = format!("{WIDGETS}?watch=1&timeoutSeconds=2&fieldSelector=spec.size%3D8");
    let watch = server.open("GET", &url, &[], "".into()).await;
    let change = json!({"spec": {"length": 8}});
    assert_eq!(server.merge(&format!("{WIDGETS_V2}/w1"), change).await.code, 200);
    assert_eq!(server.delete(&format!("{WIDGETS_V2}/w1"), Value::Null).await.code, 200);
    let received = tokio::time::timeout(Duration::from_secs(20), watch.into_body().collect()).await;
    let received = events(&received.expect("the watch ends").unwrap().to_bytes());
    let received: Vec<_> =
        received.iter().map(|event| (event["type"].as_str().unwrap(), &event["object"]["spec"])).collect();
    let spec = json!({"size": 8});
    assert_eq!(received, [("ADDED", &spec), ("DELETED", &spec)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_lists_of_converted_objects_above_user_limit_return_429_until_closed() {
    let (server, _converter) = start("v2").await;
    for i in 0..140 {
        let mut object = widget(&format!("w{i:03}"), json!({"length": i % 8}));
        object["apiVersion"] = json!("shop.example.com/v2");
        object["metadata"]["annotations"] = json!({"large": "x".repeat(250_000)});
        assert_eq!(server.post(WIDGETS_V2, object).await.code, 201);
    }
    let mut unread_lists = Vec::new();
    for _ in 0..10 {
        unread_lists.push(server.open("GET", WIDGETS_V2, &[], "".into()).await);
    }
    let selective_url = format!("{WIDGETS}?labelSelector=!a");
    let mut rejections = 0;
    for url in [WIDGETS, &selective_url].into_iter().cycle().take(8) {
        let list = server.open("GET", url, &[], "".into()).await;
        rejections += usize::from(list.status() == 429);
        unread_lists.push(list);
    }
    assert_eq!(rejections, 3, "five lists count 6 MiB each, although they hold 35 MB each");
    drop(unread_lists);
    for url in [WIDGETS, &selective_url] {
        let list = server.get(url).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 140);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversions_by_webhook_are_measured() {
    let (server, converter) = start("v2").await;
    assert_eq!(server.post(WIDGETS, widget("x", json!({"size": 3}))).await.code, 201);
    for switch in
        [&converter.is_down, &converter.is_silent, &converter.drops_objects, &converter.changes_names]
    {
        switch.store(true, Ordering::SeqCst);
        assert_eq!(server.get(&format!("{WIDGETS}/x")).await.code, 500);
        switch.store(false, Ordering::SeqCst);
    }
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let value = |series: &str| {
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_default()
    };
    let requests = "apiserver_conversion_webhook_request_total";
    assert!(value(&format!("{requests}{{result=\"success\",failure_type=\"\"}}")) >= 1.0, "{text}");
    for failure in ["call", "malformed_response", "partial_response", "invalid_converted_object"] {
        let labels = format!("result=\"failure\",failure_type=\"conversion_webhook_{failure}_failure\"");
        assert!((value(&format!("{requests}{{{labels}}}")) - 1.0).abs() < 0.1, "{labels}: {text}");
    }
    let durations = "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"widgets.shop.example.com\",\
                     from_version=\"v2\",to_version=\"v1\",succeeded=\"false\"}";
    assert!((value(durations) - 4.0).abs() < 0.1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_converter_fails_requests_of_its_version_only() {
    let (server, converter) = start("v2").await;
    assert_eq!(server.post(WIDGETS, widget("x", json!({"size": 3}))).await.code, 201);
    converter.is_down.store(true, Ordering::SeqCst);
    let failed = server.get(&format!("{WIDGETS}/x")).await;
    let message = "conversion webhook for shop.example.com/v2, Kind=Widget failed: \
                   Post \"https://converter.test/c\": connection refused";
    assert_eq!((failed.code, failed.json()["message"].as_str()), (500, Some(message)));
    assert!(failed.json().get("reason").is_none());
    assert_eq!(server.get(WIDGETS).await.code, 500);
    let rejected = server.post(WIDGETS, widget("y", json!({"size": 3}))).await;
    assert_eq!(rejected.code, 500);
    assert!(
        rejected.json()["message"]
            .as_str()
            .unwrap()
            .starts_with("conversion webhook for shop.example.com/v1, Kind=Widget")
    );
    let watch = server.get(&format!("{WIDGETS}?watch=1&timeoutSeconds=9")).await;
    assert_eq!(events(&watch.body)[0]["type"], "ERROR");

    assert_eq!(server.get(&format!("{WIDGETS_V2}/x")).await.code, 200);
    assert_eq!(server.post(MAPS, map("m", "v")).await.code, 201);
    converter.is_down.store(false, Ordering::SeqCst);
    converter.changes_names.store(true, Ordering::SeqCst);
    let failed = server.get(&format!("{WIDGETS}/x")).await;
    let message = "conversion webhook for shop.example.com/v2, Kind=Widget returned invalid object: \
                   must have the same name: x != other";
    assert_eq!((failed.code, failed.json()["message"].as_str()), (500, Some(message)));
    assert_eq!(server.delete(&format!("{WIDGETS_V2}/x"), Value::Null).await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_earlier_storage_version_are_rewritten_on_write() {
    let (server, converter) = start("v1").await;
    assert_eq!(server.post(WIDGETS, widget("x", json!({"size": 3}))).await.code, 201);
    assert!(converter.reviews.lock().is_empty());
    let url = format!("{DEFINITIONS}/widgets.shop.example.com");
    assert_eq!(server.merge(&url, json!({"spec": definition("v2")["spec"]})).await.code, 200);
    let changed = server.get(&url).await.json();
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    let object_url = format!("{WIDGETS_V2}/x");
    let object = server.get(&object_url).await.json();
    assert_eq!(object["spec"], json!({"length": 3}));
    // While the definition controller has not replaced the kind, the update changes nothing.
    eventually("the rewrite in the new storage version", || async {
        let rewritten = server.put(&object_url, object.clone()).await.json();
        (rewritten["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]).then_some(())
    })
    .await;
    let table = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    assert_eq!(
        server.send("GET", WIDGETS_V2, &[table], "").await.json()["rows"][0]["cells"],
        json!(["x", 3])
    );
    converter.is_down.store(true, Ordering::SeqCst);
    assert_eq!(server.get(&object_url).await.json()["spec"], json!({"length": 3}), "no conversion");
    let trimmed = server.merge(&format!("{url}/status"), json!({"status": {"storedVersions": ["v2"]}})).await;
    assert_eq!(trimmed.json()["status"]["storedVersions"], json!(["v2"]));
}

/// Applies a size in v1 and a colour in v2, so that two managers own fields in two versions.
async fn apply_in_both_versions(server: &Server) {
    let apply = [("content-type", "application/apply-patch+yaml")];
    let first = widget("x", json!({"size": 3})).to_string();
    let url = format!("{WIDGETS}/x?fieldManager=first");
    assert_eq!(server.send("PATCH", &url, &apply, first).await.code, 201);
    let mut second = widget("x", json!({"length": 3}));
    second["apiVersion"] = json!("shop.example.com/v2");
    let url = format!("{WIDGETS_V2}/x?fieldManager=second");
    assert_eq!(server.send("PATCH", &url, &apply, second.to_string()).await.code, 200);
}

// The runtime has one thread, which a blocking conversion would stop.
#[tokio::test]
async fn write_with_managers_of_another_version_sends_one_review_for_the_version() {
    let (server, converter) = start("v2").await;
    apply_in_both_versions(&server).await;
    converter.reviews.lock().clear();
    let change = json!({"spec": {"length": 4}});
    assert_eq!(server.merge(&format!("{WIDGETS_V2}/x"), change).await.code, 200);
    let reviews = std::mem::take(&mut *converter.reviews.lock());
    let counts: Vec<usize> = reviews
        .iter()
        .map(|review| {
            assert_eq!(review["request"]["desiredAPIVersion"], "shop.example.com/v1");
            review["request"]["objects"].as_array().unwrap().len()
        })
        .collect();
    assert_eq!(counts, [2], "the old and the new object");
    let stored = server.get(&format!("{WIDGETS_V2}/x")).await.json();
    let owner = |version: &str| {
        let entries = stored["metadata"]["managedFields"].as_array().unwrap().iter();
        entries.filter(|entry| entry["apiVersion"] == format!("shop.example.com/{version}")).count()
    };
    assert_eq!((owner("v1"), owner("v2")), (0, 1), "the patch takes the field from both appliers: {stored}");
}

#[tokio::test]
async fn write_that_waits_for_a_conversion_ends_at_the_request_timeout() {
    let converter = Arc::<Converter>::default();
    let settings = super::Settings {
        conversion_client: converter.clone(),
        request_timeout: Duration::from_secs(2),
        ..super::Settings::default()
    };
    let server = with_controller(Server::start_with_settings(settings).await).await;
    define(&server, definition("v2")).await;
    apply_in_both_versions(&server).await;
    converter.is_stuck.store(true, Ordering::SeqCst);
    let url = format!("{WIDGETS_V2}/x");
    let write = server.merge(&url, json!({"spec": {"length": 4}}));
    let reply = tokio::time::timeout(Duration::from_secs(20), write).await.expect("the request ends");
    assert_eq!(reply.code, 504, "{reply:?}");
    assert_eq!(server.post(MAPS, map("m", "v")).await.code, 201, "other kinds are not concerned");
}

#[tokio::test]
async fn selective_list_with_a_limit_converts_no_more_than_one_batch_beyond_it() {
    let (server, converter) = start("v2").await;
    for i in 0..450 {
        let mut object = widget(&format!("w{i:03}"), json!({"length": i % 10}));
        object["apiVersion"] = json!("shop.example.com/v2");
        object["metadata"]["labels"] = json!({"group": if i % 100 < 2 { "few" } else { "many" }});
        assert_eq!(server.post(WIDGETS_V2, object).await.code, 201);
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let take_converted_counts = || {
        let reviews = std::mem::take(&mut *converter.reviews.lock());
        let counts = reviews.iter().map(|review| review["request"]["objects"].as_array().unwrap().len());
        counts.sum::<usize>()
    };
    let url = format!("{WIDGETS}?labelSelector=group%3Dfew&limit=3");
    let first = server.get(&url).await.json();
    assert_eq!(
        (names(&first), take_converted_counts()),
        (vec!["w000".into(), "w001".into(), "w100".into()], 200)
    );
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{url}&continue={token}")).await.json();
    assert_eq!(names(&second), ["w101", "w200", "w201"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{url}&continue={token}")).await.json();
    assert_eq!(names(&last), ["w300", "w301", "w400"]);
    let token = last["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{url}&continue={token}")).await.json();
    assert_eq!((names(&last), &last["metadata"]["continue"]), (vec!["w401".to_owned()], &json!("")));
    let all = server.get(&format!("{WIDGETS}?labelSelector=group%3Dfew")).await.json();
    assert_eq!(names(&all).len(), 10);
    let any = server.get(&format!("{url}&resourceVersion=0")).await.json();
    assert_eq!(names(&any).len(), 10, "a list at any version ignores the limit");
}

#[tokio::test]
async fn object_of_a_third_version_gets_the_defaults_of_its_version_before_the_conversion() {
    let (server, converter) = start("v1").await;
    assert_eq!(server.post(WIDGETS, widget("x", json!({"size": 3}))).await.code, 201);
    let mut changed = definition("v2");
    let versions = changed["spec"]["versions"].as_array_mut().unwrap();
    let mut third = versions[0].clone();
    third["name"] = json!("v3");
    for (version, colour) in versions.iter_mut().zip(["red", "blue"]) {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec["colour"] = json!({"type": "string", "default": colour});
    }
    versions.push(third);
    let url = format!("{DEFINITIONS}/widgets.shop.example.com");
    let reply = server.merge(&url, json!({"spec": changed["spec"]})).await;
    assert_eq!(reply.code, 200, "{reply:?}");
    let object = format!("{}/x", WIDGETS.replace("/v1/", "/v3/"));
    eventually("the third version", || async { (server.get(&object).await.code == 200).then_some(()) }).await;
    let reviews = converter.reviews.lock().clone();
    let sent = &reviews.last().unwrap()["request"]["objects"][0];
    assert_eq!(
        (&sent["apiVersion"], &sent["spec"]["colour"]),
        (&json!("shop.example.com/v1"), &json!("red"))
    );
}
