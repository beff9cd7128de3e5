//! The envelope of Protobuf bodies (requirements D-PB-1 to -9).
//!
//! The envelope consists of magic bytes and an `Unknown` message with the type of the object.

use apimachinery::codec::{DecodeError, Limits};
use apimachinery::field::quote;
use apimachinery::object::{Object, Value};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use schema::{ProtobufError, Schema, write_message};

/// First bytes of every Protobuf body.
const MAGIC: [u8; 4] = *b"k8s\0";

/// The message after the magic bytes.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    /// The encoded object.
    #[prost(bytes = "bytes", tag = "2")]
    raw: bytes::Bytes,
    /// The content encoding of the object; empty means no encoding.
    #[prost(string, tag = "3")]
    content_encoding: String,
    /// The media type of the object; empty means Protobuf.
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// Decodes the object in a Protobuf body by the schema of its type.
///
/// # Errors
///
/// The envelope or the message is malformed, or the tree exceeds the decode limits.
pub fn read(body: &[u8], schema: &'static Schema, limits: Limits) -> Result<Value, DecodeError> {
    read_object(open(body)?, schema, limits).map(Object::into_value)
}

/// Whether a stored value is an envelope.
pub fn is_envelope(value: &[u8]) -> bool {
    value.starts_with(&MAGIC)
}

/// Decodes the object in a stored envelope by the type that the envelope names.
///
/// # Errors
///
/// The envelope or the message is malformed, or the type is unknown.
pub fn read_stored(value: &[u8]) -> Result<Object, DecodeError> {
    let unknown = open(value)?;
    let TypeMeta { api_version, kind } = unknown.type_meta.clone().unwrap_or_default();
    let schema = Schema::of_kind(&api_version, &kind)
        .ok_or_else(|| syntax_error(format!("the type {api_version} {kind} is unknown")))?;
    read_object(unknown, schema, Limits::NONE)
}

/// Encodes an object in its stored form in an envelope; None if its type has no Protobuf message.
pub fn write_stored(object: &Object) -> Option<Vec<u8>> {
    let schema = Schema::of_kind(object.api_version(), object.kind())?;
    let mut out = Vec::with_capacity(1024);
    write(object.api_version(), object.kind(), &mut out, |out| schema.write_protobuf(object, out));
    Some(out)
}

fn syntax_error(reason: String) -> DecodeError {
    DecodeError::Syntax(reason)
}

fn open(body: &[u8]) -> Result<Unknown, DecodeError> {
    let message = body
        .strip_prefix(&MAGIC)
        .ok_or_else(|| syntax_error("the body does not begin with the Protobuf magic bytes".to_owned()))?;
    Unknown::decode(message)
        .map_err(|error| syntax_error(format!("the Protobuf envelope cannot be decoded: {error}")))
}

fn read_object(unknown: Unknown, schema: &'static Schema, limits: Limits) -> Result<Object, DecodeError> {
    let Unknown { type_meta, raw, content_encoding, content_type } = unknown;
    if !content_encoding.is_empty() {
        return Err(syntax_error(format!(
            "the content encoding {} is not supported",
            quote(&content_encoding)
        )));
    }
    if !content_type.is_empty() && !content_type.ends_with(".protobuf") {
        return Err(syntax_error(format!("the content type {} is not Protobuf", quote(&content_type))));
    }
    let mut object: Object = schema.read_protobuf(&raw, limits).map_err(|error| match error {
        ProtobufError::Budget(error) => error,
        error => syntax_error(error.to_string()),
    })?;
    if let Some(TypeMeta { api_version, kind }) = type_meta {
        object.set_type(&api_version, &kind);
    }
    Ok(object)
}

/// Appends an envelope around the Protobuf object that `content` appends.
pub fn write(api_version: &str, kind: &str, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    write_type(api_version, kind, out);
    write_message(2, out, content);
    out.extend_from_slice(&END);
}

/// Appends the envelope up to its content; `length` bytes of content and [`END`] must follow.
pub fn begin(api_version: &str, kind: &str, length: u64, out: &mut Vec<u8>) {
    write_type(api_version, kind, out);
    encode_key(2, WireType::LengthDelimited, out);
    encode_varint(length, out);
}

/// Appends the envelope up to its content.
fn write_type(api_version: &str, kind: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    write_message(1, out, |out| {
        write_message(1, out, |out| out.extend_from_slice(api_version.as_bytes()));
        write_message(2, out, |out| out.extend_from_slice(kind.as_bytes()));
    });
}

/// End of the envelope: empty content encoding and content type. The reference writes both fields.
pub const END: [u8; 4] = [0x1a, 0, 0x22, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(unknown: &Unknown) -> Vec<u8> {
        [&MAGIC[..], &unknown.encode_to_vec()].concat()
    }

    #[test]
    fn protobuf_envelope_decodes_type_and_object() {
        let schema = Schema::of("core/v1.ConfigMap").unwrap();
        // metadata { name: "x" }
        let unknown = Unknown {
            type_meta: Some(TypeMeta { api_version: "v1".into(), kind: "ConfigMap".into() }),
            raw: bytes::Bytes::from_static(&[10, 3, 10, 1, b'x']),
            ..Unknown::default()
        };
        let want = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
        assert_eq!(read(&body(&unknown), schema, Limits::BODY), Ok(want));
        for bad in [
            Vec::new(),
            unknown.encode_to_vec(),
            b"k8s\0\xff".to_vec(),
            body(&Unknown { content_encoding: "gzip".into(), ..unknown.clone() }),
            body(&Unknown { content_type: "application/json".into(), ..unknown.clone() }),
            body(&Unknown { raw: bytes::Bytes::from_static(&[10, 9]), ..unknown }),
        ] {
            assert!(read(&bad, schema, Limits::BODY).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn protobuf_envelope_encoding_round_trips() {
        let (mut out, mut parts) = (Vec::new(), Vec::new());
        write("v1", "ConfigMap", &mut out, |out| out.extend_from_slice(b"raw"));
        begin("v1", "ConfigMap", 3, &mut parts);
        assert_eq!([&parts[..], b"raw", &END].concat(), out);
        let unknown = Unknown::decode(out.strip_prefix(&MAGIC).unwrap()).unwrap();
        let type_meta = TypeMeta { api_version: "v1".into(), kind: "ConfigMap".into() };
        let raw = bytes::Bytes::from_static(b"raw");
        assert_eq!(unknown, Unknown { type_meta: Some(type_meta), raw, ..Unknown::default() });
    }
}
