//! Values that a kube-apiserver wrote, against what the same server then served.

use std::collections::HashMap;
use std::fs;

use apimachinery::names::{Names, Preset};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;
use storage::engine::etcd::KeyMap as _;

use super::*;
use crate::stored_keys::ReferenceKeys;

fn values(media_type: StorageMediaType) -> ReferenceValues {
    ReferenceValues::new(&Names::new(Preset::Kubernetes, "").unwrap(), media_type)
}

/// The lines of a recorded file.
fn lines(name: &str) -> Option<Vec<Value>> {
    let text = fs::read_to_string(prerequisites::etcd_data()?.join(name)).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

/// The key in the store and the value of each recorded key that is an object.
fn recorded(name: &str) -> Option<Vec<(String, String, Bytes)>> {
    let keys = ReferenceKeys::new(&Names::new(Preset::Kubernetes, "").unwrap());
    let objects = lines(name)?.into_iter().filter_map(|line| {
        let reference = text(&line, "key").to_owned();
        let key = keys.parse_etcd(reference.strip_prefix("/registry")?)?.into_owned();
        let value = STANDARD.decode(text(&line, "value")).unwrap();
        Some((reference, key, Bytes::from(value)))
    });
    Some(objects.collect())
}

/// Removes what a response adds to the stored object.
fn without_revision(mut body: Value) -> Value {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    body
}

#[test]
fn stored_values_are_served_as_recorded() {
    for (keys, served) in [("keys.jsonl", "served.jsonl"), ("keys-json.jsonl", "served-json.jsonl")] {
        let (Some(recorded), Some(served)) = (recorded(keys), lines(served)) else { return };
        let served: HashMap<String, Value> = served
            .into_iter()
            .filter(|line| !text(line, "path").starts_with("/apis/events.k8s.io/"))
            .map(|line| (text(&line, "key").to_owned(), line["body"].clone()))
            .collect();
        assert!(recorded.len() >= served.len(), "each served object has a key of the store");
        let values = values(StorageMediaType::Protobuf);
        let mut different = Vec::new();
        let mut compared = 0;
        for (reference, key, value) in &recorded {
            let Some(body) = served.get(reference) else { continue };
            compared += 1;
            let stored = values.read(key, value).unwrap_or_else(|error| panic!("{reference}: {error}"));
            let found: Value = serde_json::from_slice(&stored).unwrap();
            let expected = without_revision(body.clone());
            if found != expected {
                different.push(format!("{reference}\n  found    {found}\n  expected {expected}"));
            }
        }
        assert_eq!(compared, served.len());
        assert!(different.is_empty(), "{} of {compared}:\n{}", different.len(), different.join("\n"));
    }
}

/// Objects with JSON inside of Protobuf that has spaces, or whose keys are sorted by numbers in them.
const OTHER_JSON: [&str; 2] =
    ["/registry/controllerrevisions/probe/probe-full", "/registry/services/specs/shop/front-lb"];

#[test]
fn written_values_have_the_bytes_of_the_reference() {
    let Some(recorded) = recorded("keys.jsonl") else { return };
    let values = values(StorageMediaType::Protobuf);
    let mut different = Vec::new();
    for (reference, key, value) in &recorded {
        let Some(prefix) = kinds::resource_prefix(key) else { continue };
        // Without the defaults, which reading adds.
        let stored = entry::encode(&values.object(prefix, value).unwrap());
        let written = values.write(key, &stored).unwrap();
        if envelope::is_envelope(value) {
            assert_eq!(values.read(key, &written), values.read(key, value), "{reference}");
            if written != value && !OTHER_JSON.contains(&reference.as_str()) {
                different.push(reference.clone());
            }
        } else {
            let json = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).unwrap();
            assert!(written.ends_with(b"}\n"), "{reference}");
            assert!(
                json(&written) == json(value) || key.starts_with("apiextensions/"),
                "{reference}: custom objects and APIServices stay"
            );
        }
    }
    assert!(different.is_empty(), "{}: {}", different.len(), different.join("\n"));
}

#[test]
fn json_is_written_on_demand_and_read_back() {
    let Some(recorded) = recorded("keys.jsonl") else { return };
    let (json, protobuf) = (values(StorageMediaType::Json), values(StorageMediaType::Protobuf));
    let is_object = |key: &str| kinds::resource_prefix(key).is_some();
    for (reference, key, value) in recorded.iter().filter(|(_, key, _)| is_object(key)) {
        let stored = protobuf.read(key, value).unwrap();
        let written = json.write(key, &stored).unwrap();
        assert!(written.starts_with(b"{\"kind\":") && written.ends_with(b"}\n"), "{reference}");
        assert_eq!(json.read(key, &written).unwrap(), stored, "{reference}");
    }
}

#[test]
fn damaged_values_have_a_reason_and_other_data_pass() {
    let values = values(StorageMediaType::Protobuf);
    let read = |key: &str, value: &'static [u8]| values.read(key, &Bytes::from_static(value));
    for value in
        [&b"k8s\0\xff"[..], b"k8s\0", b"{", b"", b"[]", b"{\"kind\":\"Unknown\",\"apiVersion\":\"v1\"}"]
    {
        assert!(read("core/configmaps/a/b", value).is_err(), "{value:?}");
    }
    assert_eq!(read("/apid/continue-key", b"\0\xff").unwrap(), &b"\0\xff"[..]);
}
