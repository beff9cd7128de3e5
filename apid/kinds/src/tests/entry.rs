//! Tests of cache entries: round trips, splicing and selection.

use apimachinery::clock::{Rng, SeededRng};
use apimachinery::names::{Names, Preset};
use serde_json::{Map, json};
use storage::cache::Decode as _;

use super::*;
use crate::Registry;

fn decoder(resource: &str) -> Decoder {
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "example.test").unwrap());
    Decoder::new(registry.resources().iter().find(|r| r.plural() == resource).unwrap())
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

fn entry_json(entry: &Entry, revision: u64, head: bool) -> String {
    let mut out = Vec::new();
    entry.write_json(&mut out, Revision(revision), head);
    String::from_utf8(out).unwrap()
}

#[test]
fn stored_bytes_begin_with_head_and_omit_resource_version() {
    let stored = encode(&object(json!({
        "data": {"a": "1"}, "apiVersion": "v1", "kind": "ConfigMap", "binaryData": {},
        "metadata": {"resourceVersion": "9", "name": "x", "namespace": "n"},
    })));
    let text = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","namespace":"n"},"data":{"a":"1"},"binaryData":{}}"#;
    assert_eq!(stored, text);
    let entry = decoder("configmaps").decode("core/configmaps/n/x", &stored).unwrap();
    assert_eq!(
        entry_json(&entry, 12, true),
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","namespace":"n","resourceVersion":"12"},"data":{"a":"1"},"binaryData":{}}"#
    );
    assert_eq!(
        entry_json(&entry, 12, false),
        r#"{"metadata":{"name":"x","namespace":"n","resourceVersion":"12"},"data":{"a":"1"},"binaryData":{}}"#
    );
}

#[test]
fn resource_version_follows_the_fields_that_precede_it_in_the_type() {
    let annotations = r#""annotations":{"name":"x","uid":"u"}"#;
    for (stored, expected) in [
        ("{}", r#"{"resourceVersion":"7"}"#.to_owned()),
        (r#"{"name":"x"}"#, r#"{"name":"x","resourceVersion":"7"}"#.to_owned()),
        (
            r#"{"name":"x","generateName":"\"","namespace":"n","uid":"u","generation":1}"#,
            r#"{"name":"x","generateName":"\"","namespace":"n","uid":"u","resourceVersion":"7","generation":1}"#.to_owned(),
        ),
        (r#"{"uid":"u","labels":{}}"#, r#"{"uid":"u","resourceVersion":"7","labels":{}}"#.to_owned()),
        // Bytes with sorted keys.
        (
            &format!(r#"{{{annotations},"name":"x","uid":"u"}}"#),
            format!(r#"{{"resourceVersion":"7",{annotations},"name":"x","uid":"u"}}"#),
        ),
    ] {
        let stored = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{stored}}}"#);
        let entry = decoder("configmaps").decode("", &stored.into()).unwrap();
        assert_eq!(entry_json(&entry, 7, false), format!(r#"{{"metadata":{expected}}}"#));
    }
}

#[test]
fn numbers_are_written_in_decimal() {
    for number in [0, 7, 10, 909, 1_000_000, u64::MAX] {
        let mut out = b"before".to_vec();
        write_number(&mut out, number);
        assert_eq!(String::from_utf8(out).unwrap(), format!("before{number}"));
    }
}

#[test]
fn entry_returns_metadata_labels_owners_and_fields() {
    let event = object(json!({
        "kind": "Event", "apiVersion": "v1",
        "metadata": {
            "name": "e", "namespace": "team", "uid": "u-1", "labels": {"a": "b", "c": ""},
            "ownerReferences": [{"uid": "o-1"}, {"uid": "o-2"}], "deletionTimestamp": "2024-01-02T03:04:05Z",
        },
        "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "R", "source": {"component": "c", "host": "h"},
        "message": "\"metadata\":{\"name\":\"fake\"}",
    }));
    let entry = decoder("events").decode("", &encode(&event)).unwrap();
    assert_eq!((entry.namespace(), entry.name(), entry.uid()), ("team", "e", "u-1"));
    assert!(entry.is_terminating());
    assert_eq!(entry.labels().collect::<Vec<_>>(), [("a", "b"), ("c", "")]);
    assert_eq!((entry.label("c"), entry.label("d")), (Some(""), None));
    assert_eq!(entry.owners().collect::<Vec<_>>(), ["o-1", "o-2"]);
    for (field, value) in [
        ("metadata.name", "e"),
        ("metadata.namespace", "team"),
        ("involvedObject.kind", "Pod"),
        ("involvedObject.uid", ""),
        ("reason", "R"),
        ("source", "c"),
        ("message", ""),
    ] {
        assert_eq!(entry.field(field), value, "{field}");
    }
}

/// Sets the value at a path of field names.
fn set_at(value: &mut Value, path: &str, text: &str) {
    let mut place = value;
    for field in path.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[field];
    }
    *place = text.into();
}

#[test]
fn entry_of_object_equals_decoded_entry() {
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "example.test").unwrap());
    for resource in registry.resources() {
        let decoder = Decoder::new(resource);
        let mut value = json!({
            "kind": resource.name(), "apiVersion": resource.api_version(), "extra": {"a": [1]},
            "metadata": {
                "name": "x", "generateName": "\"g", "namespace": "n", "uid": "u", "labels": {"a": "b", "c": ""},
                "ownerReferences": [{"uid": "o-1"}, {}], "deletionTimestamp": "2024-01-02T03:04:05Z",
                "annotations": {"k": "v"}, "resourceVersion": "9",
            },
        });
        for path in decoder
            .fields
            .iter()
            .map(|field| &**field)
            .chain(resource.row().unwrap().field_sources.iter().copied())
        {
            set_at(&mut value, path, &format!("text of {path}"));
        }
        let object = object(value);
        let stored = encode(&object);
        let decoded = decoder.decode("", &stored).unwrap();
        let built = decoder.entry_of(&object, &stored).unwrap();
        let parts = |entry: &Entry| {
            let Entry { body, metadata, revision, text, ends, labels, fields, terminating, expanding } =
                entry;
            assert!(expanding.is_none());
            (
                (body.clone(), *metadata, *revision, text.clone(), ends.clone()),
                (*labels, Arc::clone(fields), *terminating),
            )
        };
        assert_eq!(parts(&built), parts(&decoded), "{}", resource.name());
        assert!(built.is_terminating());
    }
}

/// The definition of a custom kind with this schema of `spec`.
fn widgets(spec: Value) -> Object {
    object(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]},
        "status": {"acceptedNames": {"plural": "widgets", "kind": "Widget"}},
    }))
}

/// Returns the entry of a stored custom object whose schema has this default for `spec.text`.
fn entry_with_default(default: &str) -> (Entry, Bytes) {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let spec = json!({"type": "object", "properties": {
        "text": {"type": "string", "default": default}, "size": {"type": "integer"}}});
    let resources = crate::custom::resources(&widgets(spec), &names).unwrap();
    let stored = encode(&object(json!({"kind": "Widget", "apiVersion": "example.com/v1",
        "metadata": {"name": "x", "uid": "u"}, "spec": {"size": 1}})));
    (Decoder::new(&resources[0]).decode("", &stored).unwrap(), stored)
}

#[test]
fn large_later_default_is_served_and_not_kept() {
    for (default, is_kept) in [("small".to_owned(), true), ("x".repeat(100_000), false)] {
        let (entry, stored) = entry_with_default(&default);
        assert_eq!(entry.body == stored, !is_kept, "{}", entry.body.len());
        assert_eq!(entry.expanded_bytes() > default.len(), !is_kept, "lists count the work of the expansion");
        let expected = json!({"text": default, "size": 1});
        let value: Value = serde_json::from_str(&entry_json(&entry, 7, true)).unwrap();
        assert_eq!((&value["spec"], &value["metadata"]["resourceVersion"]), (&expected, &json!("7")));
        let mut split = Vec::new();
        let rest = entry.split_json(&mut split, Revision(7), true);
        assert_eq!([&split[..], &rest].concat(), entry_json(&entry, 7, true).as_bytes());
        assert_eq!(entry.object(Revision(7)).unwrap().get("spec"), Some(&expected));
        assert_eq!(entry.metadata(Revision(7)).unwrap()["name"], "x");
        assert_eq!(entry.api_version().as_deref(), Some("example.com/v1"));
    }
}

#[test]
fn stored_cbor_is_read_as_the_same_object() {
    let (names, spec) = (Arc::new(Names::new(Preset::Kubernetes, "").unwrap()), json!({"type": "object"}));
    let resources = crate::custom::resources(&widgets(spec), &names).unwrap();
    let decoder = Decoder::new(&resources[0]);
    let widget = object(json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "x",
        "uid": "u", "resourceVersion": "3", "ownerReferences": [{"uid": "o"}], "labels": {"a": "b"}}}));
    let (stored, json) = (encode_cbor(widget.clone()), encode(&widget));
    assert!(is_cbor(&stored) && stored.starts_with(&[0xd9, 0xd9, 0xf7]) && !is_cbor(&json));
    assert_eq!((&*to_json(&stored).unwrap(), &*to_json(&json).unwrap()), (&json[..], &json[..]));
    assert_eq!(decode(&stored, Revision(7)).unwrap(), decode(&json, Revision(7)).unwrap());
    assert!(!parse(&stored).unwrap().meta().unwrap().contains_key("resourceVersion"));
    let (entry, of_json) = (decoder.decode("", &stored).unwrap(), decoder.decode("", &json).unwrap());
    assert_eq!(entry_json(&entry, 7, true), entry_json(&of_json, 7, true));
    assert_eq!((entry.uid(), entry.owners().collect::<Vec<_>>()), ("u", vec!["o"]));
    for broken in [&stored[..5], b"\xd9\xd9\xf7", b"\xd9\xd9\xf7\x01"] {
        assert!(parse(broken).is_err() && decoder.decode("", &Bytes::copy_from_slice(broken)).is_err());
    }
}

#[test]
fn escaped_quotes_in_head_do_not_hide_metadata() {
    let tricky = object(json!({
        "kind": "\"metadata\":{", "apiVersion": "\\\"metadata\":{\\", "metadata": {"name": "x"},
    }));
    let entry = decoder("configmaps").decode("", &encode(&tricky)).unwrap();
    let mut versioned = tricky;
    versioned.set_meta("resourceVersion", "5");
    assert_eq!(serde_json::from_str::<Value>(&entry_json(&entry, 5, true)).unwrap(), versioned.into_value());
}

#[test]
fn decode_of_invalid_stored_bytes_returns_error() {
    let decoder = decoder("events");
    for stored in ["", "null", "[]", "{}", "{\"metadata\":{", "{\"metadata\":{}} x", "{\"kind\":1}", "\u{0}"]
    {
        assert!(decoder.decode("", &Bytes::copy_from_slice(stored.as_bytes())).is_err(), "{stored}");
    }
    assert!(decode(b"[]", Revision(1)).is_err());
}

/// A random tree with escapes and empty containers at any position.
fn random_value(rng: &SeededRng, depth: usize) -> Value {
    let pick = |n: u128| usize::try_from(rng.bits() % n).unwrap();
    match pick(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => json!(pick(2) == 0),
        2 => json!(pick(1000)),
        3 => json!(-1.5),
        4 => json!(["", "a", "\"metadata\":{", "\\", "é\n\u{1}", "}"][pick(6)]),
        5 => (0..pick(3)).map(|_| random_value(rng, depth - 1)).collect(),
        _ => random_map(rng, depth - 1).into(),
    }
}

fn random_map(rng: &SeededRng, depth: usize) -> Map<String, Value> {
    const NAMES: [&str; 8] = ["metadata", "kind", "labels", "name", "", "\"", "\\\"metadata\":{", "ü"];
    let pick = |n: u128| usize::try_from(rng.bits() % n).unwrap();
    (0..pick(5)).map(|_| (NAMES[pick(8)].to_owned(), random_value(rng, depth))).collect()
}

#[test]
fn encode_decode_round_trip_returns_same_object() {
    let seed = 7;
    println!("seed {seed}");
    let rng = SeededRng::new(seed);
    let decoder = decoder("events");
    for round in 0..5_000 {
        let mut object = Object(random_map(&rng, 4));
        object.set_type("v1", "Event");
        object.set("metadata", random_map(&rng, 3));
        object.remove_meta("resourceVersion");
        let stored = encode(&object);
        let entry = decoder.decode("", &stored).unwrap();
        let revision = Revision(round);
        object.set_meta("resourceVersion", round.to_string());
        assert_eq!(entry.object(revision).unwrap(), object);
        let whole: Value = serde_json::from_str(&entry_json(&entry, round, true)).unwrap();
        assert_eq!(whole, object.clone().into_value());
        let mut bare = object.clone();
        bare.remove("kind");
        bare.remove("apiVersion");
        let headless: Value = serde_json::from_str(&entry_json(&entry, round, false)).unwrap();
        assert_eq!(headless, bare.into_value());
        assert_eq!(encode(&object), stored);
        assert_eq!(entry.name(), object.name());
        assert_eq!(entry.labels().collect::<Vec<_>>(), object.labels().collect::<Vec<_>>());
    }
}
