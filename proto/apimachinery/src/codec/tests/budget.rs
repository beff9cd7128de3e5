//! Tests of the decode budget in every format.

use serde_json::json;

use super::*;
use crate::codec::{Decoded, cbor, json, yaml};

type Decode = fn(&[u8], Limits) -> Result<Decoded, DecodeError>;

const DECODERS: [(&str, Decode); 3] =
    [("JSON", json::decode as Decode), ("YAML", yaml::decode as Decode), ("CBOR", cbor::decode as Decode)];

fn encoded(format: &str, tree: &Value) -> Vec<u8> {
    match format {
        "JSON" => json::encode(tree),
        "YAML" => yaml::encode(tree),
        _ => cbor::encode(tree),
    }
}

fn tree() -> Value {
    let many: serde_json::Map<String, Value> = (0..30).map(|i| (format!("key-{i:02}"), json!(i))).collect();
    json!({"a": [null, true, 1, 1.5, "text", {}, []], "b": {"c": {}}, "f:b": {".": {}, "f:c": {}}, "many": many})
}

#[test]
fn tree_at_decode_limit_is_decoded_and_above_limit_rejected() {
    let mut budget = Budget::new(Limits::NONE);
    budget.charge_tree(&tree()).unwrap();
    let Cost { elements, tree_bytes } = budget.spent();
    assert_eq!(elements, 45);
    for (format, decode) in DECODERS {
        let text = encoded(format, &tree());
        let exact = Limits { elements, tree_bytes, ..Limits::BODY };
        assert_eq!(decode(&text, exact).map(|d| d.value), Ok(tree()), "{format}");
        let fewer = Limits { elements: elements - 1, ..exact };
        assert_eq!(decode(&text, fewer), Err(DecodeError::TooManyElements(elements - 1)), "{format}");
        let smaller = Limits { tree_bytes: tree_bytes - 1, ..exact };
        assert_eq!(decode(&text, smaller), Err(DecodeError::TreeTooLarge(tree_bytes - 1)), "{format}");
    }
    assert_eq!(Limits { elements, tree_bytes, ..Limits::BODY }.check(&tree()), Ok(()));
    assert!(Limits { elements: elements - 1, ..Limits::BODY }.check(&tree()).unwrap_err().exceeds_budget());
}

#[test]
fn empty_managed_fields_object_costs_less_than_defaulted_object() {
    let cost = |tree: Value| {
        let mut budget = Budget::new(Limits::NONE);
        budget.charge_tree(&tree).unwrap();
        budget.spent().tree_bytes
    };
    assert_eq!(cost(json!({"f_a": {}})) - cost(json!({"f:a": {}})), NODE_BYTES);
    assert_eq!(cost(json!([{}])) - cost(json!([1])), 2 * NODE_BYTES);
}

#[test]
fn million_empty_objects_or_nulls_are_rejected_in_every_format() {
    for item in ["{}", "null", "[]"] {
        let list = format!("[{}]", vec![item; 700_000].join(","));
        assert!(list.len() < Limits::BODY.bytes * 2);
        let limits = Limits { bytes: usize::MAX, ..Limits::BODY };
        for (format, decode) in &DECODERS[..2] {
            assert!(decode(list.as_bytes(), limits).unwrap_err().exceeds_budget(), "{format} {item}");
        }
    }
    for item in [0xa0, 0xf6, 0x80] {
        let mut list = vec![0x9a, 0, 10, 0, 0];
        list.extend(vec![item; 10 << 16]);
        assert!(cbor::decode(&list, Limits::BODY).unwrap_err().exceeds_budget(), "{item:x}");
    }
}

#[test]
fn yaml_aliases_are_charged_per_use() {
    let limits = Limits { elements: 1_000, ..Limits::BODY };
    let list = vec!["1"; 90].join(", ");
    let document_with_aliases =
        |times: usize| format!("a: &a [{list}]\nb: [{}]\n", vec!["*a"; times].join(", "));
    assert!(yaml::decode(document_with_aliases(8).as_bytes(), limits).is_ok());
    assert_eq!(
        yaml::decode(document_with_aliases(12).as_bytes(), limits).map(drop),
        Err(DecodeError::TooManyElements(1_000))
    );
}

#[test]
fn largest_real_objects_are_within_the_body_limits() {
    let config_map: serde_json::Map<String, Value> =
        (0..100_000).map(|i| (format!("key-{i:06}"), json!("v"))).collect();
    let address = |i: usize| {
        json!({"ip": format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255), "nodeName": "node-17",
            "targetRef": {"kind": "Pod", "namespace": "production", "name": format!("server-7d9f8b6c5-{i:05}"),
            "uid": "3f0c6c2e-6a52-4a56-9d0a-0f3f6c1c9f6e"}})
    };
    let endpoints: Vec<Value> = (0..10_000).map(address).collect();
    let property = |i: usize| {
        json!({"description": "A field of a resource of an operator: its effect, its first version, and its default.",
            "type": "string", "properties": {format!("field{i}"): {"type": "string"}}})
    };
    let schema: serde_json::Map<String, Value> =
        (0..8_000).map(|i| (format!("property{i}"), property(i))).collect();
    for (object, tree) in [
        ("ConfigMap of 100,000 keys", json!({"data": config_map})),
        ("Endpoints of 10,000 addresses", json!({"subsets": [{"addresses": endpoints}]})),
        ("CustomResourceDefinition of 1.5 MB", json!({"spec": {"properties": schema}})),
    ] {
        let text = json::encode(&tree);
        assert!(text.len() > 1_300_000, "{object}: {}", text.len());
        assert!(json::decode(&text, Limits::BODY).is_ok(), "{object}: {} bytes", text.len());
    }
}

#[test]
fn constant_costs_equal_charges_of_the_values() {
    assert_eq!(Cost::EMPTY_ITEM, Cost::OBJECT.plus(Cost::object_end(0, None)));
    assert_eq!(Cost::NAMED_SCALAR, Cost::SCALAR.plus(Cost::key(0, NODE_KEYS)));
}
