//! Decodes the body of a write into an object of the kind; malformed bodies return 400.
//!
//! Bodies in JSON, YAML and CBOR have the field names of the names preset. Protobuf bodies and the objects
//! that apid creates have the stored field names.

use apimachinery::codec::{self, DecodeError, Decoded, Limits};
use apimachinery::field::{quote, shorten};
use apimachinery::gvk::GroupVersion;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Kind, metadata};
use schema::{Schema, TypeError};
use serde_json::{Map, Value};

use super::envelope;
use super::options::FieldValidation;
use crate::ApiState;

/// The body of a write.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// JSON text.
    Json(&'a [u8]),
    /// YAML text.
    Yaml(&'a [u8]),
    /// CBOR data.
    Cbor(&'a [u8]),
    /// Protobuf in its envelope.
    Protobuf(&'a [u8]),
    /// An object that apid created.
    Object(Object),
}

/// Warning about duplicate owner references.
const DUPLICATE_OWNERS: &str = ".metadata.ownerReferences contains duplicate entries; API server dedups owner references \
                                in 1.20+, and may reject such requests as early as 1.24; please fix your requests; \
                                duplicate UID(s) observed: ";

/// The expected type of a body.
struct ExpectedType<'a> {
    /// The API group without its domain.
    group: &'a str,
    /// Schema type of a built-in kind.
    type_name: Option<&'static str>,
    kind: &'a str,
    version: &'a str,
    api_version: String,
    /// The custom kind; None for a built-in kind.
    custom: Option<&'a Kind>,
}

impl Payload<'_> {
    /// Decodes the payload to a tree and returns the paths of duplicate keys. `type_name` is the schema type
    /// of a Protobuf body; None if the type has no Protobuf encoding.
    ///
    /// # Errors
    ///
    /// The bytes are malformed, or exceed a limit.
    pub fn parse(self, type_name: Option<&str>, limits: Limits) -> Result<Decoded, DecodeError> {
        match self {
            Payload::Json(bytes) => codec::json::decode(bytes, limits),
            Payload::Yaml(bytes) => codec::yaml::decode(bytes, limits),
            Payload::Cbor(bytes) => codec::cbor::decode(bytes, limits),
            Payload::Protobuf(bytes) => {
                let schema = type_name
                    .and_then(Schema::of)
                    .ok_or_else(|| DecodeError::Syntax("the type has no Protobuf encoding".to_owned()))?;
                Ok(Decoded { value: envelope::read(bytes, schema, limits)?, duplicates: Vec::new() })
            }
            Payload::Object(object) => Ok(Decoded { value: object.into_value(), duplicates: Vec::new() }),
        }
    }
}

/// Returns 413 for a document over the decode limits; `malformed` builds the Status of any other error.
pub fn decode_error_status(error: &DecodeError, malformed: impl FnOnce(&str) -> Status) -> Status {
    let text = error.to_string();
    let flag = match error {
        DecodeError::TooManyElements(_) => "--max-request-elements",
        DecodeError::TreeTooLarge(_) => "--max-request-tree-bytes",
        _ => return malformed(&text),
    };
    Status::too_large(format!("Request entity too large: {text} (the limit is set by {flag})"))
}

/// Returns 413 for an object whose defaults exceed the decode limits; `mismatch` builds the Status of any other error.
pub(super) fn type_error_status(error: &TypeError, mismatch: impl FnOnce(&str) -> Status) -> Status {
    match &error.excess {
        Some(excess) => decode_error_status(excess, mismatch),
        None => mismatch(&error.message),
    }
}

/// Decodes the body of a write to an object with stored field names, and sets its `kind` and `apiVersion`.
/// Returns warnings about unknown fields, duplicate keys and duplicate owner references.
///
/// # Errors
///
/// 400: malformed, another kind, a field of the wrong type, or (`Strict`) unknown or duplicate fields. 413:
/// over the decode limits.
pub(super) fn decode(
    resource: &Kind,
    version: &str,
    payload: Payload<'_>,
    validation: FieldValidation,
    api_state: &ApiState,
) -> Result<(Object, Vec<String>), Status> {
    // As in kube-apiserver, only the warnings about JSON of built-in kinds follow the order of the document.
    let ordered_json = match &payload {
        Payload::Json(bytes) if !resource.is_custom() => Some(*bytes),
        _ => None,
    };
    let yaml = match &payload {
        Payload::Yaml(bytes) => Some(*bytes),
        _ => None,
    };
    let has_stored_names = matches!(payload, Payload::Protobuf(_) | Payload::Object(_));
    let group_version =
        GroupVersion { group: resource.group_resource.group.clone(), version: version.to_owned() };
    let custom = resource.is_custom().then_some(resource);
    let expected = ExpectedType {
        group: resource.stem().unwrap_or(&resource.group_resource.group),
        type_name: resource.schema.type_name(),
        kind: resource.name(),
        version,
        api_version: group_version.to_string(),
        custom,
    };
    let (mut object, duplicates) = read(payload, &expected, api_state.body_limits, |kind, api_version| {
        expected.reject_type(kind, api_version, api_state)
    })?;
    reset_owners_of_empty_list(&mut object);
    let conformance = match has_stored_names {
        true => resource.conform(&mut object),
        false => resource.conform_body(&mut object, &api_state.names),
    };
    let conformance = conformance.map_err(|error| {
        let mismatch = |reason: &str| expected.mismatch(expected.kind, reason);
        type_error_status(&error, mismatch)
    })?;
    let reject = |reason: String| expected.mismatch(expected.kind, &reason);
    let names = &api_state.names;
    let mut warnings = match yaml.filter(|_| !duplicates.is_empty()) {
        Some(yaml) => {
            let duplicate_keys = codec::yaml::duplicate_keys(yaml, api_state.body_limits);
            validation.report_yaml(&duplicate_keys, &conformance.unknown, names, reject)?
        }
        None => validation.report(&duplicates, &conformance.unknown, ordered_json, names, reject)?,
    };
    let duplicate_owners = metadata::remove_duplicate_owners(&mut object);
    if !duplicate_owners.is_empty() {
        warnings.push(format!("{DUPLICATE_OWNERS}{}", shorten(&duplicate_owners.join(", "))));
    }
    object.set_type(&expected.api_version, expected.kind);
    Ok((object, warnings))
}

/// Turns an empty list of managed fields into a list that resets the owners.
///
/// As in kube-apiserver, an empty list in a replace resets the owners. An empty list in a patch does not.
fn reset_owners_of_empty_list(object: &mut Object) {
    let list = object.meta().and_then(|metadata| metadata.get("managedFields"));
    if list.and_then(Value::as_array).is_some_and(Vec::is_empty) {
        object.set_meta("managedFields", vec![Value::Object(Map::new())]);
    }
}

impl ExpectedType<'_> {
    /// Returns 400 for a body of another kind or another version, for an object of a built-in kind.
    fn reject_type(&self, kind: &str, api_version: &str, api_state: &ApiState) -> Status {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let scheme = api_state.names.scheme_source(self.group);
        // The built-in kinds are the same in all snapshots, so the newest snapshot is sufficient.
        let registry = api_state.kinds.registry();
        let is_registered = registry
            .find_kind_version(group, version, kind)
            .and_then(|found| found.stem())
            .is_some_and(|stem| api_state.names.scheme_source(stem) == scheme);
        if is_registered && kind == self.kind {
            return self.reject_version(api_version);
        }
        let reason = if is_registered {
            let package = self.internal_package();
            format!("converting ({version}.{kind}) to ({package}.{}): unknown conversion", self.kind)
        } else {
            let (kind, version) = (quote(&shorten(kind)), quote(&shorten(api_version)));
            let scheme = scheme.map(|scheme| format!(" in scheme {}", quote(scheme))).unwrap_or_default();
            format!("no kind {kind} is registered for version {version}{scheme}")
        };
        ExpectedType { version, api_version: String::new(), ..*self }.mismatch(kind, &reason)
    }

    /// Go package of the internal type in kube-apiserver, for messages about other kinds.
    fn internal_package(&self) -> &str {
        kinds::internal_package(self.type_name, self.group)
    }

    fn mismatch(&self, kind: &str, reason: &str) -> Status {
        let text = format!(
            "{} in version {} cannot be handled as a {}: {reason}",
            shorten(kind),
            quote(self.version),
            self.kind
        );
        Status::bad_request(text)
    }

    /// Returns 400 for a body of another API version.
    fn reject_version(&self, api_version: &str) -> Status {
        Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            shorten(api_version),
            self.api_version
        ))
    }
}

/// Decodes a payload, and checks its kind and API version. Returns the paths of duplicate keys with the
/// object. `reject_type` builds the Status for a kind and an API version that no custom kind has.
fn read(
    payload: Payload<'_>,
    expected: &ExpectedType<'_>,
    limits: Limits,
    reject_type: impl FnOnce(&str, &str) -> Status,
) -> Result<(Object, Vec<String>), Status> {
    let unrecognized_status = |reason: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {reason}",
            expected.kind
        ))
    };
    let sent: &[u8] = match &payload {
        Payload::Json(bytes) | Payload::Yaml(bytes) | Payload::Cbor(bytes) => bytes,
        Payload::Protobuf(_) | Payload::Object(_) => b"",
    };
    let decoded = payload
        .parse(expected.type_name, limits)
        .map_err(|error| decode_error_status(&error, unrecognized_status))?;
    let map = match decoded.value {
        Value::Object(map) => map,
        // The reference decodes `null` as an object without fields.
        Value::Null => Map::new(),
        _ => return Err(unrecognized_status("the body is not an object")),
    };
    let object = Object(map);
    let text = |field: &str| match object.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(unrecognized_status(&format!("{field} is not a string"))),
    };
    let (kind, api_version) = (text("kind")?, text("apiVersion")?);
    if expected.custom.is_some() && kind.is_empty() {
        let (document, start) = (shorten(&String::from_utf8_lossy(sent)).into_owned(), summary(sent));
        return Err(unrecognized_status(&format!("Object 'Kind' is missing in '{document}' ({start})")));
    }
    let is_other = |text: &str, expected: &str| !text.is_empty() && text != expected;
    let lacks_version = expected.custom.is_some() && api_version.is_empty();
    let has_other_version = lacks_version || is_other(api_version, &expected.api_version);
    if expected.custom.is_none() && (is_other(kind, expected.kind) || has_other_version) {
        let kind = if kind.is_empty() { expected.kind } else { kind };
        let api_version = if api_version.is_empty() { &expected.api_version } else { api_version };
        return Err(reject_type(kind, api_version));
    }
    if has_other_version {
        return Err(expected.reject_version(api_version));
    }
    if let Some(resource) = expected.custom.filter(|_| is_other(kind, expected.kind)) {
        return Err(resource.invalid_kind(object.name(), kind));
    }
    Ok((object, decoded.duplicates))
}

/// The start of a body as kube-apiserver shows it: JSON as it is, other bytes in hexadecimal.
fn summary(body: &[u8]) -> String {
    /// Number of bytes that a message shows.
    const SHOWN_MAX: usize = 30;
    let shown = body.get(..SHOWN_MAX).unwrap_or(body);
    let more = if shown.len() < body.len() { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => {
            let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;

    const CONFIG_MAP: ExpectedType<'static> = ExpectedType {
        group: "",
        type_name: Some("core/v1.ConfigMap"),
        kind: "ConfigMap",
        version: "v1",
        api_version: String::new(),
        custom: None,
    };

    fn reject_type(kind: &str, api_version: &str) -> Status {
        Status::bad_request(format!("{api_version} {kind} is no v1 ConfigMap"))
    }

    fn read_json(text: &str) -> Result<Object, u16> {
        let expected = ExpectedType { api_version: "v1".to_owned(), ..CONFIG_MAP };
        read(Payload::Json(text.as_bytes()), &expected, Limits::BODY, reject_type)
            .map(|(object, _)| object)
            .map_err(|status| status.code)
    }

    #[test]
    fn body_with_other_kind_or_api_version_returns_400() {
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
    fn body_over_decode_limits_returns_413_with_limit_and_flag() {
        let expected = ExpectedType { api_version: "v1".to_owned(), ..CONFIG_MAP };
        let limits = Limits { elements: 3, ..Limits::BODY };
        let reject = |payload: Payload<'_>, limits: Limits| {
            let status = read(payload, &expected, limits, reject_type).unwrap_err();
            assert_eq!((status.code, status.reason.as_str()), (413, "RequestEntityTooLarge"));
            status.message
        };
        let json = br#"{"data":{"a":"1","b":"2","c":"3"}}"#;
        for payload in [Payload::Json(json), Payload::Yaml(json)] {
            let message = reject(payload, limits);
            assert!(message.contains("more than 3 values"), "{message}");
            assert!(message.contains("split the object"), "{message}");
            assert!(message.contains("--max-request-elements"), "{message}");
        }
        let message = reject(Payload::Json(json), Limits { tree_bytes: 2_000, ..Limits::BODY });
        assert!(message.contains("--max-request-tree-bytes"), "{message}");
        // Each two bytes are an entry of `data` that is an empty message.
        let mut raw = Vec::new();
        (0..5).for_each(|_| raw.extend([18, 0]));
        let mut body = Vec::new();
        envelope::write("v1", "ConfigMap", &mut body, |out| out.extend_from_slice(&raw));
        reject(Payload::Protobuf(&body), Limits { elements: 4, ..Limits::BODY });
    }

    #[test]
    fn unknown_and_duplicate_fields_follow_field_validation() {
        let (duplicates, unknown) = (vec!["data.a".to_owned()], vec!["extra".to_owned()]);
        let reject = |reason: String| CONFIG_MAP.mismatch(CONFIG_MAP.kind, &reason);
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let run =
            |validation: FieldValidation| validation.report(&duplicates, &unknown, None, &names, reject);
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

    #[test]
    fn strict_errors_of_json_follow_the_document() {
        let json = br#"{"extra":{"x":1,"x":2},"data":{"a":"1","a":"2"},"odd":1,"odd":2}"#;
        let duplicates = ["extra.x", "data.a", "odd"].map(str::to_owned);
        let unknown = ["odd", "extra"].map(str::to_owned);
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let reject = |reason: String| CONFIG_MAP.mismatch("", &reason);
        let report = |json| FieldValidation::Warn.report(&duplicates, &unknown, json, &names, reject);
        assert_eq!(
            report(Some(json.as_slice())).unwrap(),
            [r#"unknown field "extra""#, r#"duplicate field "data.a""#, r#"unknown field "odd""#]
        );
        assert_eq!(report(None).unwrap().len(), 5);
    }
}
