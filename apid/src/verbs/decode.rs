//! The body of a write: bytes to an object of the kind, or 400.

use apimachinery::codec::{self, Decoded, Limits};
use apimachinery::field::quote;
use apimachinery::gvk::GroupVersion;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::Resource;
use schema::Schema;
use serde_json::{Map, Value};

use super::envelope;
use super::options::FieldValidation;

/// The body of a write.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// JSON text.
    Json(&'a [u8]),
    /// YAML text.
    Yaml(&'a [u8]),
    /// CBOR.
    Cbor(&'a [u8]),
    /// Protobuf in its envelope.
    Protobuf(&'a [u8]),
    /// An object that this process made.
    Object(Object),
}

/// The type that a body must have, and the one it says it has.
struct Type<'a> {
    kind: &'a str,
    version: &'a str,
    api_version: String,
}

impl Payload<'_> {
    /// The tree, with the paths of duplicate keys. A Protobuf message is one of the named type of the schema table.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes.
    pub fn parse(self, type_name: &str) -> Result<Decoded, String> {
        match self {
            Payload::Json(bytes) => codec::json::decode(bytes, Limits::BODY).map_err(|e| e.to_string()),
            Payload::Yaml(bytes) => codec::yaml::decode(bytes, Limits::BODY).map_err(|e| e.to_string()),
            Payload::Cbor(bytes) => codec::cbor::decode(bytes, Limits::BODY).map_err(|e| e.to_string()),
            Payload::Protobuf(bytes) => {
                let schema = Schema::of(type_name).ok_or("there is no Protobuf form of it")?;
                Ok(Decoded { value: envelope::read(bytes, schema)?, duplicates: Vec::new() })
            }
            Payload::Object(object) => Ok(Decoded { value: object.into_value(), duplicates: Vec::new() }),
        }
    }
}

/// An object of a kind in stored form, with its type, and warnings about what was dropped.
///
/// # Errors
///
/// 400: not readable, another kind, a wrong type, or (`Strict`) unknown or duplicate fields.
pub(super) fn decode(
    resource: &Resource,
    version: &str,
    payload: Payload<'_>,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), Status> {
    let group_version =
        GroupVersion { group: resource.group_resource.group.clone(), version: version.to_owned() };
    let wanted = Type { kind: resource.kind.kind, version, api_version: group_version.to_string() };
    let (mut object, duplicates) = read(payload, &wanted, resource.kind.schema)?;
    let conformed =
        resource.conform(&mut object).map_err(|error| wanted.refuse(wanted.kind, &error.to_string()))?;
    let refuse = |why: String| wanted.refuse(wanted.kind, &why);
    let warnings = validation.report(&duplicates, &conformed.unknown, refuse)?;
    object.set_type(&wanted.api_version, wanted.kind);
    Ok((object, warnings))
}

impl Type<'_> {
    fn refuse(&self, kind: &str, why: &str) -> Status {
        let text =
            format!("{kind} in version {} cannot be handled as a {}: {why}", quote(self.version), self.kind);
        Status::bad_request(text)
    }
}

/// The tree of a payload, of the right type.
fn read(payload: Payload<'_>, wanted: &Type<'_>, schema: &str) -> Result<(Object, Vec<String>), Status> {
    let unrecognized = |why: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why}",
            wanted.kind
        ))
    };
    let decoded = payload.parse(schema).map_err(|why| unrecognized(&why))?;
    let map = match decoded.value {
        Value::Object(map) => map,
        // The reference reads it as an object without fields.
        Value::Null => Map::new(),
        _ => return Err(unrecognized("it is not an object")),
    };
    let object = Object(map);
    let text = |field: &str| match object.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(unrecognized(&format!("{field} is not a string"))),
    };
    let (kind, api_version) = (text("kind")?, text("apiVersion")?);
    if !kind.is_empty() && kind != wanted.kind {
        let version =
            GroupVersion::parse(api_version).map_or_else(|| wanted.version.to_owned(), |gv| gv.version);
        return Err(Type { version: &version, api_version: String::new(), ..*wanted }
            .refuse(kind, "it is another kind"));
    }
    if !api_version.is_empty() && api_version != wanted.api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            wanted.api_version
        )));
    }
    Ok((object, decoded.duplicates))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG_MAP: Type<'static> = Type { kind: "ConfigMap", version: "v1", api_version: String::new() };

    fn read_json(text: &str) -> Result<Object, u16> {
        let wanted = Type { api_version: "v1".to_owned(), ..CONFIG_MAP };
        read(Payload::Json(text.as_bytes()), &wanted, "core/v1.ConfigMap")
            .map(|(object, _)| object)
            .map_err(|status| status.code)
    }

    #[test]
    fn the_type_is_defaulted_or_must_fit() {
        for fine in [
            "{}",
            "null",
            r#"{"kind":"ConfigMap"}"#,
            r#"{"apiVersion":"v1"}"#,
            r#"{"kind":"","apiVersion":null}"#,
        ] {
            assert!(read_json(fine).is_ok(), "{fine}");
        }
        for bad in [
            "",
            "{",
            "[]",
            "3",
            "[{}]",
            r#"{"kind":"List"}"#,
            r#"{"kind":"Secret","apiVersion":"v1"}"#,
            r#"{"apiVersion":"v2"}"#,
            r#"{"kind":1}"#,
            r#"{} trailing"#,
        ] {
            assert_eq!(read_json(bad), Err(400), "{bad}");
        }
    }

    #[test]
    fn dropped_fields_are_reported_as_asked() {
        let (duplicates, unknown) = (vec!["data.a".to_owned()], vec!["extra".to_owned()]);
        let refuse = |why: String| CONFIG_MAP.refuse(CONFIG_MAP.kind, &why);
        let run = |validation: FieldValidation| validation.report(&duplicates, &unknown, refuse);
        assert_eq!(run(FieldValidation::Ignore), Ok(Vec::new()));
        assert_eq!(
            run(FieldValidation::Warn).unwrap(),
            [r#"duplicate field "data.a""#, r#"unknown field "extra""#]
        );
        let status = run(FieldValidation::Strict).unwrap_err();
        assert_eq!(
            (status.code, status.message.as_str()),
            (
                400,
                r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data.a", unknown field "extra""#
            )
        );
    }
}
