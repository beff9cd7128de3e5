//! Tests of Protobuf: hand-written messages, and round trips of objects of every type.

use apimachinery::clock::{Rng, SeededRng};
use apimachinery::codec::Limits;
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use super::ProtobufError;
use super::read::DEPTH;
use super::write::FIELDS;
use crate::Schema;
use crate::table::{SchemaField, Type, index};

/// Encodes a length-delimited field.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

fn read(ty: &str, parts: &[Vec<u8>]) -> Result<Value, ProtobufError> {
    Schema::of(ty).unwrap().read_protobuf(&parts.concat(), Limits::BODY).map(Object::into_value)
}

#[test]
fn protobuf_messages_decode_to_json_tree() {
    let time = [8, 0x80, 0x8c, 0xa0, 0xbb, 6].to_vec();
    let meta = [
        bytes(1, b"x"),
        bytes(8, &time),
        bytes(11, &[bytes(1, b"k"), bytes(2, b"v")].concat()),
        vec![10 << 3, 30],
    ]
    .concat();
    let data = [bytes(1, b"a"), bytes(2, b"\x00\x01")].concat();
    assert_eq!(
        read("core/v1.Secret", &[bytes(1, &meta), bytes(2, &data), bytes(3, b"Opaque"), vec![5 << 3, 1]])
            .unwrap(),
        json!({
            "metadata": {
                "name": "x",
                "creationTimestamp": "2024-12-22T12:28:48Z",
                "labels": {"k": "v"},
                "deletionGracePeriodSeconds": 30,
            },
            "data": {"a": "AAE="},
            "type": "Opaque",
            "immutable": true,
        })
    );
    let rule = [bytes(1, b"get"), bytes(1, b"list"), bytes(2, b""), bytes(3, b"pods")].concat();
    assert_eq!(
        read("rbac/v1.Role", &[bytes(1, b""), bytes(2, &rule)]).unwrap(),
        json!({"metadata": {}, "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]})
    );
    let port = [vec![8, 1], bytes(3, b"http")].concat();
    let service_port = [bytes(4, &port), vec![3 << 3, 80]].concat();
    assert_eq!(
        read("core/v1.ServicePort", &[service_port]).unwrap(),
        json!({"targetPort": "http", "port": 80})
    );
    let extra = [bytes(1, b"k"), bytes(2, &[bytes(1, b"v1"), bytes(1, b"v2")].concat())].concat();
    assert_eq!(
        read("authentication/v1.UserInfo", &[bytes(4, &extra)]).unwrap(),
        json!({"extra": {"k": ["v1", "v2"]}})
    );
    let negative = [vec![9 << 3], vec![0xff; 9], vec![1]].concat();
    assert_eq!(read("core/v1.PodSpec", &[]).unwrap(), json!({}));
    assert_eq!(read("core/v1.ConfigMap", &[negative]).unwrap(), json!({}), "an unknown number");
}

#[test]
fn protobuf_embedded_types_are_flattened_in_json() {
    let reference = bytes(1, b"name");
    assert_eq!(
        read("core/v1.SecretEnvSource", &[bytes(1, &reference), vec![2 << 3, 1]]).unwrap(),
        json!({"name": "name", "optional": true})
    );
}

#[test]
fn malformed_protobuf_message_is_rejected() {
    for (parts, error) in [
        (vec![vec![10]], ProtobufError::Truncated),
        (vec![vec![10, 5, 1]], ProtobufError::Truncated),
        (vec![vec![10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]], ProtobufError::Truncated),
        (vec![vec![0x80; 11]], ProtobufError::Malformed),
        (vec![vec![11]], ProtobufError::Malformed),
        (vec![vec![2, 0]], ProtobufError::Malformed),
        (vec![vec![8, 1]], ProtobufError::WireType("metadata".into())),
        (vec![bytes(1, &bytes(1, b"\xff"))], ProtobufError::Utf8("name".into())),
    ] {
        assert_eq!(read("core/v1.ConfigMap", &parts), Err(error), "{parts:?}");
    }
    // Nested `not` fields.
    let nested = |levels| {
        (0..levels)
            .fold(Vec::new(), |inner: Vec<u8>, _| [vec![0xe2, 1], bytes(1, &inner).split_off(1)].concat())
    };
    assert!(read("apiextensions/v1.JSONSchemaProps", &[nested(DEPTH)]).is_ok());
    assert_eq!(read("apiextensions/v1.JSONSchemaProps", &[nested(DEPTH + 1)]), Err(ProtobufError::TooDeep));
}

fn encode(ty: &str, object: Value) -> Vec<u8> {
    let mut out = Vec::new();
    Schema::of(ty).unwrap().write_protobuf(&Object::from_value(object).unwrap(), &mut out);
    out
}

/// An empty `ObjectMeta`: every string that is no pointer, the creation time, the generation.
fn empty_meta() -> Vec<u8> {
    let text = |number| bytes(number, b"");
    [text(1), text(2), text(3), text(4), text(5), text(6), vec![7 << 3, 0], text(8)].concat()
}

#[test]
fn protobuf_encoding_writes_zero_values() {
    let meta = [bytes(1, b"x"), empty_meta().split_off(2)].concat();
    let entry = |key: &[u8], value: &[u8]| [bytes(1, key), bytes(2, value)].concat();
    for (ty, object, want) in [
        ("core/v1.ConfigMap", json!({"metadata": {}}), vec![bytes(1, &empty_meta())]),
        (
            "core/v1.ConfigMap",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "immutable": false,
                "data": {"b": "", "a": "1"}, "binaryData": {"k": "AAE="}}),
            vec![
                bytes(1, &meta),
                bytes(2, &entry(b"a", b"1")),
                bytes(2, &entry(b"b", b"")),
                bytes(3, &entry(b"k", b"\x00\x01")),
                vec![4 << 3, 0],
            ],
        ),
        (
            "core/v1.ServicePort",
            json!({"port": 80, "targetPort": "http"}),
            vec![
                bytes(1, b""),
                bytes(2, b""),
                vec![3 << 3, 80],
                bytes(4, &[vec![8, 1, 16, 0], bytes(3, b"http")].concat()),
                vec![5 << 3, 0],
            ],
        ),
        (
            "core/v1.SecretEnvSource",
            json!({"name": "n", "optional": true}),
            vec![bytes(1, &bytes(1, b"n")), vec![2 << 3, 1]],
        ),
        (
            "coordination/v1.LeaseSpec",
            json!({"renewTime": "2024-12-22T12:28:48.500000Z", "leaseDurationSeconds": -1}),
            vec![
                [vec![2 << 3], vec![0xff; 9], vec![1]].concat(),
                bytes(4, &[8, 0x80, 0x8c, 0xa0, 0xbb, 6, 16, 0x80, 0xca, 0xb5, 0xee, 1]),
            ],
        ),
        (
            "meta/v1.APIResource",
            json!({"name": "pods", "namespaced": true, "kind": "Pod", "singularName": "pod", "verbs": ["get", "list"]}),
            vec![
                bytes(1, b"pods"),
                vec![2 << 3, 1],
                bytes(3, b"Pod"),
                bytes(4, &[bytes(1, b"get"), bytes(1, b"list")].concat()),
                bytes(6, b"pod"),
                bytes(8, b""),
                bytes(9, b""),
                bytes(10, b""),
            ],
        ),
        (
            "authentication/v1.UserInfo",
            json!({"extra": {"k": ["v"]}}),
            vec![bytes(1, b""), bytes(2, b""), bytes(4, &entry(b"k", &bytes(1, b"v")))],
        ),
        (
            "core/v1.ResourceRequirements",
            json!({"limits": {"cpu": "100m"}}),
            vec![bytes(1, &entry(b"cpu", &bytes(1, b"100m")))],
        ),
    ] {
        assert_eq!(encode(ty, object.clone()), want.concat(), "{ty} {object}");
    }
    // Lengths above one byte.
    let long = "x".repeat(300);
    assert_eq!(encode("meta/v1.StatusCause", json!({"message": long}))[..5], [10, 0, 18, 0xac, 2]);
    let nested = encode("meta/v1.StatusDetails", json!({"causes": [{"message": long}]}));
    let decoded = Schema::of("meta/v1.StatusDetails").unwrap().read_protobuf(&nested, Limits::BODY).unwrap();
    assert_eq!(decoded.at(&["causes"]).unwrap()[0]["message"], long);
}

/// A generator of random objects.
struct RandomObjects<'a>(&'a SeededRng);

impl RandomObjects<'_> {
    fn below(&self, n: usize) -> usize {
        usize::try_from(self.0.bits() % n as u128).unwrap()
    }

    fn one_of<T: Clone>(&self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    fn message(&self, schema: &'static Schema, depth: usize) -> Map<String, Value> {
        let numbered_fields = schema.fields.iter().filter(|field: &&SchemaField| !field.tags.is_empty());
        let chosen_fields = numbered_fields.filter(|_| self.below(2 + depth) == 0);
        chosen_fields.map(|field| (field.name.to_owned(), self.value(&field.ty, depth + 1))).collect()
    }

    /// Generates a value, never an empty list or map: Protobuf does not distinguish these from absent ones.
    fn value(&self, ty: &'static Type, depth: usize) -> Value {
        let key = || self.one_of(&["a", "key", "x/y", ""]).to_owned();
        match ty {
            Type::Pointer(inner) => self.value(inner, depth),
            Type::String(_) => self.one_of(&["", "a", "two words", "ü\u{1f600}", "\"quoted\""]).into(),
            Type::Bool => (self.below(2) == 1).into(),
            Type::Int32 => self.one_of(&[0, 1, -1, 127, 128, i32::MIN, i32::MAX]).into(),
            Type::Int64 => self.one_of(&[0, 1, -1, 300, i64::MIN, i64::MAX]).into(),
            Type::Float64 => self.one_of(&[0.0, 1.0, -2.5, 1e300]).into(),
            Type::Bytes => self.one_of(&["", "AAE=", "AAEC", "/w=="]).into(),
            Type::Time => self.one_of(&["2024-12-22T12:28:48Z", "1969-12-31T23:59:59Z"]).into(),
            Type::MicroTime => {
                self.one_of(&["2024-12-22T12:28:48.000001Z", "2024-12-22T12:28:48.000000Z"]).into()
            }
            Type::Quantity => self.one_of(&["0", "100m", "1Gi", "-5", "1e3"]).into(),
            Type::ResourceList => json!({"cpu": "100m", key(): "3"}),
            Type::IntOrString => self.one_of(&[json!(0), json!(-7), json!(""), json!("50%")]),
            Type::Any => {
                self.one_of(&[json!({}), json!({"a": [1, null, {"b": 1.5}]}), json!("t"), json!([])])
            }
            Type::Struct(inner) if depth > 12 => inner.schema().unwrap().zero().clone(),
            Type::Struct(inner) => self.message(inner.schema().unwrap(), depth).into(),
            Type::SchemaOrBool(inner) | Type::SchemaOrArray(inner) | Type::SchemaOrStrings(inner) => {
                let schema = || Value::from(self.message(inner.schema().unwrap(), depth + 2));
                match (ty, self.below(2)) {
                    (_, 0) => schema(),
                    (Type::SchemaOrBool(_), _) => (self.below(2) == 1).into(),
                    (Type::SchemaOrArray(_), _) => json!([schema(), schema()]),
                    _ => json!(["a", "b"]),
                }
            }
            Type::List(inner) => (0..=self.below(2)).map(|_| self.value(inner, depth)).collect(),
            Type::Map(inner) => {
                Value::Object((0..=self.below(2)).map(|_| (key(), self.value(inner, depth))).collect())
            }
        }
    }
}

#[test]
fn every_type_round_trips_through_protobuf() {
    const SEED: u64 = 20;
    println!("seed {SEED}");
    let rng = SeededRng::new(SEED);
    let mut messages = 0;
    let mut slots: Vec<_> = index().values().collect();
    slots.sort_by_key(|slot| slot.name);
    for slot in slots {
        let schema = Schema::of(slot.name).unwrap();
        assert!(schema.fields.len() <= FIELDS, "{}", slot.name);
        // A type without numbered fields has no message.
        if schema.fields.iter().all(|field| field.tags.is_empty()) {
            continue;
        }
        for _ in 0..20 {
            let mut object = Object(RandomObjects(&rng).message(schema, 0));
            schema.conform(&mut object).unwrap_or_else(|error| panic!("{}: {error}: {object:?}", slot.name));
            let mut bytes = Vec::new();
            schema.write_protobuf(&object, &mut bytes);
            let mut decoded = schema
                .read_protobuf(&bytes, Limits::BODY)
                .unwrap_or_else(|e| panic!("{}: {e}: {object:?}", slot.name));
            schema.conform(&mut decoded).unwrap();
            // Fields without a number are in the stored form but not in the message.
            for field in schema.fields.iter().filter(|field| field.tags.is_empty()) {
                object.remove(field.name);
                decoded.remove(field.name);
            }
            assert_eq!(decoded, object, "{}", slot.name);
            messages += 1;
        }
    }
    assert!(messages > 10_000, "{messages}");
}
