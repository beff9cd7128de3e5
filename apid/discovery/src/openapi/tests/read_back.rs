//! Conversion of the Protobuf message of an OpenAPI 2 document to JSON, for tests.

use std::collections::BTreeMap;

use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value};

use crate::openapi::protobuf::{DOCUMENT, EXTENSIONS, Field, Type};

/// The contents of the fields of a message by number. The content of a boolean is empty.
type Contents<'b> = BTreeMap<u32, Vec<&'b [u8]>>;

pub(super) fn document(bytes: &[u8]) -> Value {
    object(DOCUMENT, bytes)
}

fn contents(mut bytes: &[u8]) -> Contents<'_> {
    let mut contents = Contents::new();
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes).unwrap();
        let length = usize::try_from(decode_varint(&mut bytes).unwrap()).unwrap();
        let content = match wire_type {
            WireType::LengthDelimited => bytes.split_off(..length).unwrap(),
            _ => {
                assert_eq!((wire_type, length), (WireType::Varint, 1), "field {number} is no true boolean");
                &[]
            }
        };
        contents.entry(number).or_default().push(content);
    }
    contents
}

fn object(fields: &'static [Field], bytes: &[u8]) -> Value {
    let mut object = Map::new();
    for (number, contents) in contents(bytes) {
        let (_, name, field_type) = fields.iter().find(|(known, ..)| *known == number).unwrap();
        if *name == EXTENSIONS {
            let Value::Object(extensions) = value(&Type::Entries(field_type), &contents) else { panic!() };
            object.extend(extensions);
        } else {
            object.insert((*name).to_owned(), value(field_type, &contents));
        }
    }
    Value::Object(object)
}

/// Returns the value of a field. `all` has the contents of all occurrences of the field.
fn value(field_type: &Type, all: &[&[u8]]) -> Value {
    match field_type {
        Type::Text => str::from_utf8(all.last().unwrap()).unwrap().into(),
        Type::Flag => true.into(),
        Type::Yaml => serde_json::from_slice(all.last().unwrap()).unwrap(),
        Type::List(element) => all.iter().map(|content| value(element, &[content])).collect(),
        Type::Entries(entry) => {
            let named = all.iter().map(|bytes| {
                let fields = contents(bytes);
                (str::from_utf8(fields[&1][0]).unwrap().to_owned(), value(entry, &fields[&2]))
            });
            Value::Object(named.collect())
        }
        Type::Message(fields) => object(fields, &all.concat()),
        Type::Wrapped(number, inner) => {
            let message = all.concat();
            value(inner, contents(&message).get(number).map_or(&[], Vec::as_slice))
        }
        Type::OneOf(variants) => {
            let message = all.concat();
            let fields = contents(&message);
            let (number, contents) = fields.first_key_value().unwrap();
            assert_eq!(fields.len(), 1, "a choice has one field");
            let (.., variant) = variants.iter().find(|(known, ..)| known == number).unwrap();
            value(variant, contents)
        }
    }
}
