//! Encoding of OpenAPI 2 JSON as the Protobuf message `openapi.v2.Document` of gnostic.
//!
//! # Contract
//!
//! [`encode`] writes each JSON member that a table lists as a field. Maps are lists of named values.
//!
//! # Invariants
//!
//! INVARIANT (equal documents): the message contains everything in the JSON; a test converts it back.
//!
//! # Reference
//!
//! Field numbers of the package `openapi.v2`, file `OpenAPIv2.proto` of gnostic, limited to the used fields.

use prost::encoding;
use serde_json::{Map, Value};

use Type::{Entries, Flag, List, Message, OneOf, Text, Wrapped, Yaml};

/// A field of a message: its number, the JSON member with its value, and its type.
pub(super) type Field = (u32, &'static str, Type);

/// A field of a message with a choice of fields: its number, the condition on the JSON value, and its type.
pub(super) type Variant = (u32, fn(&Value) -> bool, &'static Type);

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum Type {
    /// A string.
    Text,
    /// A boolean; JSON contains only true.
    Flag,
    /// Any value as the text of its JSON, which is valid YAML.
    Yaml,
    /// A repeated field with the elements of a JSON list.
    List(&'static Type),
    /// A repeated field with the members of a JSON object as named values.
    Entries(&'static Type),
    /// A message with the members of a JSON object.
    Message(&'static [Field]),
    /// A message with the value in one field; gnostic has further fields, which are not used.
    Wrapped(u32, &'static Type),
    /// A message with the value in the first field whose condition is met.
    OneOf(&'static [Variant]),
}

/// In the place of a JSON member: all members whose names have this prefix, as named values of the type.
pub(super) const EXTENSIONS: &str = "x-";

/// The fields of a document.
pub(super) static DOCUMENT: &[Field] = &[
    (1, "swagger", Text),
    (2, "info", Message(&[(1, "title", Text), (2, "version", Text)])),
    (8, "paths", Wrapped(2, &Entries(&PATH_ITEM))),
    (9, "definitions", Wrapped(1, &Entries(&SCHEMA))),
    (10, "parameters", Wrapped(1, &Entries(&PARAMETER))),
    (12, "security", List(&Wrapped(1, &Entries(&Wrapped(1, &List(&Text)))))),
    (13, "securityDefinitions", Wrapped(1, &Entries(&Wrapped(2, &API_KEY)))),
];

static PATH_ITEM: Type = Message(&[
    (2, "get", OPERATION),
    (3, "put", OPERATION),
    (4, "post", OPERATION),
    (5, "delete", OPERATION),
    (6, "options", OPERATION),
    (7, "head", OPERATION),
    (8, "patch", OPERATION),
    (9, "parameters", List(&PARAMETER_ITEM)),
]);

static OPERATION: Type = Message(&[
    (1, "tags", List(&Text)),
    (3, "description", Text),
    (5, "operationId", Text),
    (6, "produces", List(&Text)),
    (7, "consumes", List(&Text)),
    (8, "parameters", List(&PARAMETER_ITEM)),
    (9, "responses", Wrapped(1, &Entries(&Wrapped(1, &RESPONSE)))),
    (10, "schemes", List(&Text)),
    (11, "deprecated", Flag),
    (13, EXTENSIONS, ANY),
]);

static PARAMETER_ITEM: Type =
    OneOf(&[(2, |item| item.get("$ref").is_some(), &REFERENCE), (1, |_| true, &PARAMETER)]);

static REFERENCE: Type = Message(&[(1, "$ref", Text)]);

static PARAMETER: Type =
    OneOf(&[(1, |parameter| is_in(parameter, "body"), &BODY_PARAMETER), (2, |_| true, &NON_BODY_PARAMETER)]);

static BODY_PARAMETER: Type =
    Message(&[(2, "name", Text), (3, "in", Text), (4, "required", Flag), (5, "schema", SCHEMA)]);

static NON_BODY_PARAMETER: Type =
    OneOf(&[(4, |parameter| is_in(parameter, "path"), &PATH_PARAMETER), (3, |_| true, &QUERY_PARAMETER)]);

static PATH_PARAMETER: Type = Message(&[
    (1, "required", Flag),
    (2, "in", Text),
    (3, "description", Text),
    (4, "name", Text),
    (5, "type", Text),
    (19, "uniqueItems", Flag),
]);

static QUERY_PARAMETER: Type = Message(&[
    (2, "in", Text),
    (3, "description", Text),
    (4, "name", Text),
    (6, "type", Text),
    (20, "uniqueItems", Flag),
]);

static RESPONSE: Type = Message(&[(1, "description", Text), (2, "schema", Wrapped(1, &SCHEMA))]);

static SCHEMA: Type = Message(&[
    (1, "$ref", Text),
    (2, "format", Text),
    (4, "description", Text),
    (19, "required", List(&Text)),
    (20, "enum", List(&ANY)),
    (21, "additionalProperties", Wrapped(1, &SCHEMA)),
    (22, "type", Wrapped(1, &Text)),
    (23, "items", Wrapped(1, &SCHEMA)),
    (25, "properties", Wrapped(1, &Entries(&SCHEMA))),
    (31, EXTENSIONS, ANY),
]);

static ANY: Type = Wrapped(2, &Yaml);

static API_KEY: Type =
    Message(&[(1, "type", Text), (2, "name", Text), (3, "in", Text), (4, "description", Text)]);

fn is_in(parameter: &Value, location: &str) -> bool {
    parameter.get("in").is_some_and(|value| value == location)
}

/// Encodes a document, or a part of it: a decoder merges the parts.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode_fields(DOCUMENT, document, &mut out);
    out
}

fn encode_fields(fields: &[Field], object: &Value, out: &mut Vec<u8>) {
    for (number, name, field_type) in fields {
        if *name == EXTENSIONS {
            let extensions = members(object).filter(|(name, _)| name.starts_with(EXTENSIONS));
            extensions.for_each(|(name, value)| encode_entry(*number, name, field_type, value, out));
        } else if let Some(value) = object.get(name) {
            encode_field(*number, field_type, value, out);
        }
    }
}

fn encode_field(number: u32, field_type: &Type, value: &Value, out: &mut Vec<u8>) {
    let mut content = Vec::new();
    match field_type {
        Text => content.extend(value.as_str().unwrap_or_default().as_bytes()),
        Flag => return encoding::bool::encode(number, &true, out),
        Yaml => content.extend(format!("{value}\n").as_bytes()),
        List(element) => {
            let elements = value.as_array().into_iter().flatten();
            return elements.for_each(|value| encode_field(number, element, value, out));
        }
        Entries(entry) => {
            return members(value).for_each(|(name, value)| encode_entry(number, name, entry, value, out));
        }
        Message(fields) => encode_fields(fields, value, &mut content),
        Wrapped(inner_number, inner) => encode_field(*inner_number, inner, value, &mut content),
        OneOf(variants) => {
            if let Some((number, _, variant)) = variants.iter().find(|(_, is_met, _)| is_met(value)) {
                encode_field(*number, variant, value, &mut content);
            }
        }
    }
    encoding::bytes::encode(number, &content, out);
}

/// Encodes a named value: a message with the fields `name` and `value`.
fn encode_entry(number: u32, name: &String, value_type: &Type, value: &Value, out: &mut Vec<u8>) {
    let mut entry = Vec::new();
    encoding::string::encode(1, name, &mut entry);
    encode_field(2, value_type, value, &mut entry);
    encoding::bytes::encode(number, &entry, out);
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
