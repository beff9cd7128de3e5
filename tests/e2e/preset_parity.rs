//! Parity of presets: discovery and OpenAPI documents of both are equal except for names.

use std::collections::BTreeMap;

use apimachinery::names::{DEFAULT_API_DOMAIN, Preset};
use serde_json::{Map, Value};
use tests::harness::{ControlPlane, Options};

/// All discovery and OpenAPI documents by path.
async fn documents(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let client = plane.admin();
    let mut paths: Vec<String> =
        ["/api", "/apis", "/api/v1", "/openapi/v3", "/openapi/v2"].map(str::to_owned).to_vec();
    let groups = client.get("/apis").await.expect(200);
    for group in groups["groups"].as_array().expect("groups") {
        paths.push(format!("/apis/{}", group["name"].as_str().expect("a name")));
        for version in group["versions"].as_array().expect("versions") {
            paths.push(format!("/apis/{}", version["groupVersion"].as_str().expect("a version")));
        }
    }
    let index = client.get("/openapi/v3").await.expect(200);
    paths.extend(index["paths"].as_object().expect("paths").keys().map(|path| format!("/openapi/v3/{path}")));
    let mut documents = BTreeMap::new();
    for path in paths {
        let mut document = client.get(&path).await.expect(200);
        strip(&mut document);
        documents.insert(path, document);
    }
    let group = plane.names().group("apidiscovery");
    let aggregated = format!("application/json;g={group};v=v2;as=APIGroupDiscoveryList");
    for path in ["/api", "/apis"] {
        let answer = client.request("GET", path, &[("accept", &aggregated)], b"").await;
        assert!(answer.header("content-type").contains("APIGroupDiscoveryList"), "{:?}", answer.headers);
        documents.insert(format!("{path} (aggregated)"), answer.expect(200));
    }
    documents
}

/// Replaces server addresses and hashes of names, which differ between servers, by whether they are set.
///
/// Also removes the properties of `JSONSchemaProps` whose names begin with `x-`.
fn strip(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            for (_, schema) in fields.iter_mut().filter(|(name, _)| name.ends_with(".JSONSchemaProps")) {
                if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                    properties.retain(|name, _| !name.starts_with("x-"));
                }
            }
            for name in ["serverAddress", "serverRelativeURL", "storageVersionHash"] {
                if let Some(value) = fields.get_mut(name) {
                    *value = Value::Bool(value.as_str().is_some_and(|text| !text.is_empty()));
                }
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Kubernetes package prefixes of OpenAPI schema names with their neutral replacements, longest first.
const PACKAGES: [(&str, &str); 7] = [
    ("io.k8s.apiextensions-apiserver.pkg.apis.", "internal.svc.api."),
    ("io.k8s.kube-aggregator.pkg.apis.", "internal.svc.api."),
    ("io.k8s.apimachinery.pkg.apis.", "internal.svc.api."),
    ("io.k8s.apimachinery.pkg.util.", "internal.svc.api."),
    ("io.k8s.apimachinery.pkg.api.", "internal.svc.api."),
    ("io.k8s.apimachinery.pkg.", "internal.svc.api."),
    ("io.k8s.api.", "internal.svc.api."),
];

/// Replaces Kubernetes names in a text by neutral names.
fn neutralize(text: &str) -> String {
    match text {
        "policy" => return format!("policy.{DEFAULT_API_DOMAIN}"),
        "Kubernetes" => return "API".to_owned(),
        _ => {}
    }
    if let Some(start) = text.strip_suffix("apis/policy") {
        return format!("{start}apis/policy.{DEFAULT_API_DOMAIN}");
    }
    let mut text = text.replace("policy/v1", &format!("policy.{DEFAULT_API_DOMAIN}/v1"));
    text = text.replace("/apis/policy/", &format!("/apis/policy.{DEFAULT_API_DOMAIN}/"));
    for (package, neutral) in PACKAGES {
        text = text.replace(package, neutral);
    }
    for (kubernetes, neutral) in [
        ("x-kubernetes-", "x-svc-"),
        ("vnd.kubernetes", "vnd.svc"),
        ("kubernetes.io", DEFAULT_API_DOMAIN),
        ("k8s.io", DEFAULT_API_DOMAIN),
    ] {
        text = text.replace(kubernetes, neutral);
    }
    text
}

/// Replaces Kubernetes names in all keys and strings of a document.
fn neutralize_document(document: &Value) -> Value {
    match document {
        Value::String(text) => Value::String(neutralize(text)),
        Value::Array(items) => items.iter().map(neutralize_document).collect(),
        Value::Object(fields) => {
            let renamed = fields.iter().map(|(key, value)| {
                // A field named `policy` is not an API group.
                let name = if key == "policy" { key.clone() } else { neutralize(key) };
                // Tags of operations name groups without their domain.
                let value = if key == "tags" { value.clone() } else { neutralize_document(value) };
                (name, value)
            });
            Value::Object(renamed.collect::<Map<String, Value>>())
        }
        other => other.clone(),
    }
}

/// The path and values of the first difference of two documents.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    match (left, right) {
        (Value::Object(l), Value::Object(r)) => {
            let lone = l
                .keys()
                .find(|key| !r.contains_key(*key))
                .or_else(|| r.keys().find(|key| !l.contains_key(*key)));
            lone.map(|key| format!("{path}: only one document has `{key}`")).or_else(|| {
                l.iter().find_map(|(key, value)| difference(&format!("{path}/{key}"), value, &r[key]))
            })
        }
        (Value::Array(l), Value::Array(r)) if l.len() == r.len() => {
            l.iter().zip(r).enumerate().find_map(|(i, (l, r))| difference(&format!("{path}/{i}"), l, r))
        }
        _ => (left != right).then(|| format!("{path}: {left} is not {right}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_and_openapi_of_both_presets_are_equal_except_names() {
    let (svc, kubernetes) =
        tokio::join!(ControlPlane::start(Options::default()), ControlPlane::start(Options::kubernetes()));
    assert_eq!((svc.names().preset(), kubernetes.names().preset()), (Preset::Svc, Preset::Kubernetes));
    let (svc, kubernetes) = (documents(&svc).await, documents(&kubernetes).await);
    assert!(svc.len() > 60, "{} documents", svc.len());
    let renamed: BTreeMap<String, Value> =
        kubernetes.iter().map(|(path, document)| (neutralize(path), neutralize_document(document))).collect();
    let paths = |documents: &BTreeMap<String, Value>| documents.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(&renamed), paths(&svc));
    let differences: Vec<String> =
        renamed.iter().filter_map(|(path, document)| difference(path, document, &svc[path])).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Documents of the neutral preset contain no Kubernetes names.
    for (path, document) in &svc {
        let text = document.to_string();
        for word in ["k8s.io", "kubernetes", "Kubernetes"] {
            assert!(!text.contains(word), "{word} in {path}");
        }
    }
}
