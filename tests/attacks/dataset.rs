//! Objects for the attacks, and permissions of the reference client.
//!
//! The objects are a large collection, one large object, one object and a collection that attackers replace, and
//! targets of patches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admission_objects;
use crate::client::{Error, Link, Prepared, READ_STREAM_WINDOW, expect_code, tls};
use crate::server::{PRIVILEGED_TOKEN, REFERENCE_TOKEN};

/// Namespace of the reference client.
pub const REFERENCE_NAMESPACE: &str = "polite";
/// Object that the reference client reads.
pub const REFERENCE_OBJECT: &str = "object";
/// Namespace of the attacked objects.
pub const NAMESPACE: &str = "attacked";
/// Name of every single object that attackers read or patch.
pub const TARGET: &str = "target";
/// Name of the Secret that attackers replace.
const REPLACED: &str = "replaced";
/// Namespace of the ConfigMaps that attackers replace.
const REPLACED_NAMESPACE: &str = "replaced";
/// Path of the definitions of custom kinds.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Number of ConfigMaps that attackers replace.
pub const REPLACED_OBJECT_COUNT: usize = 8;
/// Media type of responses that contain only the metadata of an object.
const METADATA_MEDIA_TYPE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Bytes of text in each object of the large collection: a list of 50,000 objects has about 30 MB.
const TEXT_BYTES: usize = 300;
/// Bytes of the large object.
const LARGE_OBJECT_BYTES: usize = 2_500_000;
/// Bytes of base64 in a replacement.
const REPLACEMENT_BYTES: usize = 1_200_000;
/// Bytes of text in each replacement of a ConfigMap: a list of these objects has about 8 MB.
const REPLACEMENT_TEXT_BYTES: usize = 1_000_000;
/// Group of the custom kind with a large default.
const CUSTOM_GROUP: &str = "attacked.example.com";
/// Bytes of the default of each item in a custom object.
const DEFAULT_BYTES: usize = 100_000;
/// Group of the custom kind whose fields have patterns.
const PATTERN_GROUP: &str = "patterns.example.com";
/// Number of distinct patterns of this kind.
pub const PATTERN_COUNT: usize = 4_000;
/// Group of the custom kinds in one large OpenAPI document.
const DOCUMENTED_GROUP: &str = "documented.example.com";
/// Number of custom kinds in the large OpenAPI document.
const DOCUMENTED_KINDS: usize = 300;
/// Number of fields of each of these kinds; each field has about 200 bytes of schema.
const DOCUMENTED_FIELDS: usize = 100;
/// Number of concurrent writers that fill the collection.
const WRITERS: usize = 48;
/// Time limit for the server to become ready.
const READY_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the path of the large collection.
pub fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

/// Returns the path of the large object.
pub fn large_object() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions/{TARGET}")
}

/// Returns the path of the custom objects whose items have a large default.
pub fn expanding_objects() -> String {
    format!("/apis/{CUSTOM_GROUP}/v1/expandings")
}

/// Builds the definition of the custom objects whose items have a large default.
fn definition_of_expanding_objects() -> Value {
    let item = json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(DEFAULT_BYTES)}}});
    let schema = json!({"type": "object", "properties": {"items": {"type": "array", "items": item}}});
    json!({
        "metadata": {"name": format!("expandings.{CUSTOM_GROUP}")},
        "spec": {
            "group": CUSTOM_GROUP, "scope": "Cluster",
            "names": {"plural": "expandings", "kind": "Expanding"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Returns the path of the custom objects whose fields have patterns.
pub fn objects_with_patterns() -> String {
    format!("/apis/{PATTERN_GROUP}/v1/patterneds")
}

/// Builds the definition of a custom kind with [`PATTERN_COUNT`] fields. Each has a different pattern, in which a
/// Unicode class is repeated. The field `slow` has a pattern whose evaluation follows hundreds of alternatives.
pub fn definition_with_patterns(plural: &str) -> Value {
    let text = |pattern: String| json!({"type": "string", "pattern": pattern});
    let field = |number: usize| (format!("f{number}"), text(format!(r"^[\pL]{{0,60}}{number}$")));
    let mut fields: serde_json::Map<String, Value> = (0..PATTERN_COUNT).map(field).collect();
    fields.insert("slow".to_owned(), text("(a|b)*a(a|b){900}c".to_owned()));
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    json!({
        "metadata": {"name": format!("{plural}.{PATTERN_GROUP}")},
        "spec": {
            "group": PATTERN_GROUP, "scope": "Cluster",
            "names": {"plural": plural, "kind": "Patterned"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Returns the path of the large OpenAPI document.
pub fn large_document() -> String {
    format!("/openapi/v3/apis/{DOCUMENTED_GROUP}/v1")
}

/// Returns the path of the definition of one of the kinds in the large OpenAPI document.
pub fn documented_definition(number: usize) -> String {
    format!("{DEFINITIONS}/kinds{number}.{DOCUMENTED_GROUP}")
}

/// Builds the definition of one of the kinds in the large OpenAPI document.
fn definition_of_documented_kind(number: usize) -> Value {
    let field = |index: usize| {
        let description = format!("field {index} of kind {number}, {}", "text ".repeat(25));
        (
            format!("field{index}"),
            json!({"type": "string", "maxLength": 100 + index, "description": description}),
        )
    };
    let fields: serde_json::Map<String, Value> = (0..DOCUMENTED_FIELDS).map(field).collect();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    json!({
        "metadata": {"name": format!("kinds{number}.{DOCUMENTED_GROUP}")},
        "spec": {
            "group": DOCUMENTED_GROUP, "scope": "Namespaced",
            "names": {"plural": format!("kinds{number}"), "kind": format!("Kind{number}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Waits until a collection is served.
async fn wait_served(link: &Link, path: &str) {
    let begun = Instant::now();
    while !matches!(link.call(&Prepared::get(path)).await, Ok(answer) if answer.code == 200) {
        assert!(begun.elapsed() < READY_TIME_LIMIT, "{path} is not served");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the path of the object that attackers replace.
pub fn replaced_object() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{REPLACED}")
}

/// Builds an update that replaces the data of [`replaced_object`]. `digit`: a digit of base64.
pub fn replacement(digit: &str) -> Prepared {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": REPLACED},
        "data": {"text": digit.repeat(REPLACEMENT_BYTES)},
    });
    Prepared::with_body("PUT", replaced_object(), "application/json", object.to_string())
}

/// Returns the path of the collection whose objects attackers replace.
pub fn replaced_collection() -> String {
    format!("/api/v1/namespaces/{REPLACED_NAMESPACE}/configmaps")
}

/// Builds updates that replace the data of all objects of [`replaced_collection`]. `letter`: the repeated text.
///
/// The responses contain only metadata. The requests have a `Content-Length` header, so that the server reserves the
/// memory of all bodies before they arrive.
pub fn replacements(letter: &str) -> Vec<Prepared> {
    let text = letter.repeat(REPLACEMENT_TEXT_BYTES);
    let replacement = |number| {
        let name = replaced_name(number);
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"text": text},
        });
        let (path, body) = (format!("{}/{name}", replaced_collection()), object.to_string());
        let length = body.len().to_string();
        Prepared::with_body("PUT", path, "application/json", body)
            .header("content-length", length)
            .header("accept", METADATA_MEDIA_TYPE)
    };
    (0..REPLACED_OBJECT_COUNT).map(replacement).collect()
}

fn replaced_name(number: usize) -> String {
    format!("object-{number}")
}

/// Connects as the privileged user.
pub async fn connect_privileged(port: u16) -> Result<Link, Error> {
    Link::open(port, &tls("h2"), Some(PRIVILEGED_TOKEN), READ_STREAM_WINDOW).await
}

/// Waits until the server is ready.
pub async fn wait_ready(port: u16) {
    let begun = Instant::now();
    loop {
        if let Ok(link) = connect_privileged(port).await
            && let Ok(answer) = link.call(&Prepared::get("/readyz")).await
            && answer.code == 200
        {
            return;
        }
        assert!(begun.elapsed() < READY_TIME_LIMIT, "apid is not ready");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Writes the data set.
pub async fn fill(port: u16, objects: usize) {
    let link = connect_privileged(port).await.expect("a connection");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": TARGET});
    let pod = json!({"containers": [{"name": "a", "image": "a"}]});
    let labels = json!({"a": "b"});
    for (path, object) in [
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": REFERENCE_NAMESPACE}})),
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": NAMESPACE}})),
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": REPLACED_NAMESPACE}})),
        (
            format!("/api/v1/namespaces/{REFERENCE_NAMESPACE}/configmaps"),
            json!({"metadata": {"name": REFERENCE_OBJECT}, "data": {"text": "x".repeat(1000)}}),
        ),
        (
            format!("{rbac}/namespaces/{REFERENCE_NAMESPACE}/rolebindings"),
            json!({
                "metadata": {"name": "polite"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "polite"}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            }),
        ),
        (
            format!("/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions"),
            json!({"metadata": metadata, "revision": 1, "data": {"text": "x".repeat(LARGE_OBJECT_BYTES)}}),
        ),
        (
            format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
            json!({
                "metadata": metadata,
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            }),
        ),
        (
            format!("/api/v1/namespaces/{NAMESPACE}/services"),
            json!({"metadata": metadata, "spec": {"selector": labels, "ports": [{"port": 80}]}}),
        ),
        (
            format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
            json!({"metadata": metadata, "data": {"a": "YQ=="}}),
        ),
        (format!("/api/v1/namespaces/{NAMESPACE}/secrets"), json!({"metadata": {"name": REPLACED}})),
        (format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), json!({"metadata": {"name": "default"}})),
        (format!("/api/v1/namespaces/{NAMESPACE}/pods"), json!({"metadata": metadata, "spec": pod})),
        (DEFINITIONS.to_owned(), definition_of_expanding_objects()),
        (DEFINITIONS.to_owned(), definition_with_patterns("patterneds")),
    ] {
        let answer = link.call(&Prepared::post(path.as_str(), object.to_string())).await;
        expect_code(&path, &answer, &[200, 201, 409]);
    }
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{TARGET}/status");
    let patch =
        Prepared::with_body("PATCH", path.as_str(), "application/merge-patch+json", status.to_string());
    expect_code(&path, &link.call(&patch).await, &[200]);
    for number in 0..REPLACED_OBJECT_COUNT {
        let object = json!({"metadata": {"name": replaced_name(number)}});
        let answer = link.call(&Prepared::post(replaced_collection(), object.to_string())).await;
        expect_code(&replaced_collection(), &answer, &[201, 409]);
    }
    for number in 0..DOCUMENTED_KINDS {
        let object = definition_of_documented_kind(number);
        let answer = link.call(&Prepared::post(DEFINITIONS, object.to_string())).await;
        expect_code(DEFINITIONS, &answer, &[201, 409]);
    }
    admission_objects::fill(&link).await;
    wait_served(&link, &format!("/apis/{DOCUMENTED_GROUP}/v1/kinds{}", DOCUMENTED_KINDS - 1)).await;
    wait_served(&link, &expanding_objects()).await;
    wait_served(&link, &objects_with_patterns()).await;
    fill_collection(&link, objects).await;
}

async fn fill_collection(link: &Link, objects: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..WRITERS {
        let (link, next) = (link.clone(), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= objects {
                    return;
                }
                let object: Value = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": format!("object-{i}"), "labels": {"number": i.to_string()}},
                    "data": {"text": "x".repeat(TEXT_BYTES)},
                });
                let answer = link.call(&Prepared::post(collection(), object.to_string())).await;
                expect_code(&collection(), &answer, &[201, 409]);
            }
        }));
    }
    for task in tasks {
        task.await.expect("a writer");
    }
}

/// Builds an access review that no cache answers.
pub fn access_review(number: u128) -> Prepared {
    let attributes = json!({"verb": "get", "resource": "pods", "name": format!("name-{number}")});
    let review = json!({"spec": {"resourceAttributes": attributes}});
    Prepared::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review.to_string())
}

/// Whether authd responds within a second to an [`access_review`] of the reference client.
pub async fn is_authorized(port: u16, number: u128) -> bool {
    let ask = async {
        let link = Link::open(port, &tls("h2"), Some(REFERENCE_TOKEN), READ_STREAM_WINDOW).await?;
        link.call(&access_review(number)).await
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(answer)) if answer.code == 201)
}

/// Reads the large collection, the large object and the OpenAPI documents once, so that they are in memory.
pub async fn load_data_set(port: u16) {
    let link = connect_privileged(port).await.expect("a connection");
    for path in
        [collection(), large_object(), "/openapi/v2".to_owned(), "/openapi/v3".to_owned(), large_document()]
    {
        let answer = link.exchange(&Prepared::get(path.as_str()), 0).await;
        expect_code(&path, &answer, &[200]);
    }
}
