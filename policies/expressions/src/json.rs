//! Conversion to JSON of the values that expressions of mutations create, and the check of their message
//! types.
//!
//! # Contract
//! - [`Value::to_json`] converts a value: bytes become base64 text, times and durations their text.
//! - [`Value::misplaced_messages`] compares the names of message types with the paths of the messages.
//!
//! # Invariants
//! INVARIANT (bounded JSON): the JSON is not larger than the limit, although the same part can occur many
//! times in a value.

use base64::Engine as _;
use serde_json::{Map as JsonMap, Value as Json};

use crate::error::EvalError;
use crate::time;
use crate::value::Value;

/// Estimated memory of a JSON value without its text, in bytes.
const VALUE_BYTES: usize = 64;
/// Maximum number of error texts about misplaced messages; further texts are omitted.
const MISPLACED_MAX: usize = 100;

impl Value<'_> {
    /// Converts the value to JSON of at most `limit` bytes of memory.
    ///
    /// # Errors
    /// The value has no JSON form: it contains a type, a library value, a double that is not finite or a key that
    /// is not text, or it is too large.
    pub fn to_json(&self, limit: usize) -> Result<Json, EvalError> {
        let mut budget = limit;
        to_json_within(self, &mut budget)
    }

    /// Returns an error text for each message in this message whose type does not name the path of its field.
    ///
    /// A path is the type of this message with the names of the fields: `Object.spec.template`. Lists and
    /// maps do not change a path.
    pub fn misplaced_messages(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Value::Map(map) = self
            && let Some(name) = map.message()
        {
            check_message_types(self, name, &mut found);
        }
        found
    }
}

/// Charges a JSON value, or the key of a field, with its text.
fn charge(budget: &mut usize, text: usize) -> Result<(), EvalError> {
    let rest = budget.checked_sub(VALUE_BYTES.saturating_add(text));
    *budget = rest.ok_or_else(|| EvalError::failed("the value is too large"))?;
    Ok(())
}

fn to_json_within(value: &Value<'_>, budget: &mut usize) -> Result<Json, EvalError> {
    match value {
        Value::String(text) => charge(budget, text.as_str().len())?,
        Value::Bytes(bytes) => charge(budget, bytes.len().saturating_mul(2))?,
        _ => charge(budget, 0)?,
    }
    Ok(match value {
        Value::Null | Value::Optional(None) => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Double(value) => {
            let number = serde_json::Number::from_f64(*value);
            let not_finite = || EvalError::failed("a double that is not finite has no JSON form");
            Json::Number(number.ok_or_else(not_finite)?)
        }
        Value::String(text) => text.as_str().into(),
        Value::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes).into(),
        Value::Timestamp(at) => at.to_string().into(),
        Value::Duration(nanos) => time::format_duration(*nanos).into(),
        Value::Optional(Some(inner)) => to_json_within(inner, budget)?,
        Value::List(list) => {
            let mut items = Vec::new();
            for item in list.iter() {
                items.push(to_json_within(&item?, budget)?);
            }
            Json::Array(items)
        }
        Value::Map(map) => {
            let mut fields = JsonMap::new();
            for (key, value) in map.entries()? {
                let Value::String(key) = key else {
                    return Err(EvalError::failed(format!("map key {key:?} is not a string")));
                };
                charge(budget, key.as_str().len())?;
                let value = to_json_within(&value, budget)?;
                fields.insert(key.as_str().to_owned(), value);
            }
            Json::Object(fields)
        }
        Value::Type(_) | Value::Opaque(_) => {
            let ty = value.type_name();
            return Err(EvalError::failed(format!("a value of type {ty} has no JSON form")));
        }
    })
}

/// Adds an error text for each CEL message, such as `Object.spec{}`, whose type name differs from the path of
/// the field that holds the message.
fn check_message_types(value: &Value<'_>, path: &str, found: &mut Vec<String>) {
    if found.len() >= MISPLACED_MAX {
        return;
    }
    match value {
        Value::List(list) if !list.is_data() => {
            list.iter().flatten().for_each(|item| check_message_types(&item, path, found));
        }
        Value::Map(map) => {
            let message = map.message();
            if let Some(name) = message
                && name != path
            {
                found.push(format!(
                    "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
                ));
            }
            if map.is_data() {
                return;
            }
            for (key, value) in map.entries().unwrap_or_default() {
                match (message, key.as_str()) {
                    (Some(_), Some(field)) => check_message_types(&value, &format!("{path}.{field}"), found),
                    _ => check_message_types(&value, path, found),
                }
            }
        }
        Value::Optional(Some(inner)) => check_message_types(inner, path, found),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Cost, Environment, Type, Value};

    fn evaluate_and_check(source: &str, check: impl Fn(Value<'_>)) {
        let environment = Environment::new().with_mutation_types().variable("object", Type::Dyn);
        let program = environment.compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let object = json!({"a": [1, "x", null], "n": 1.5});
        let inputs = [("object", Value::of(&object, &Type::Dyn).unwrap())];
        check(program.evaluate(&inputs, &mut Cost::limit(1_000_000)).unwrap());
    }

    #[test]
    fn values_of_mutations_become_json() {
        for (source, expected) in [
            (
                "Object{spec: Object.spec{n: 1, list: [Object.spec.list{a: 'b'}]}}",
                json!({"spec": {"n": 1, "list": [{"a": "b"}]}}),
            ),
            (
                "Object{data: object, none: null, ?absent: optional.none()}",
                json!({"data": {"a": [1, "x", null], "n": 1.5}, "none": null}),
            ),
            ("{'k': b'\\x01\\x02'}", json!({"k": "AQI="})),
            ("duration('90s')", json!("90s")),
            ("timestamp('2026-01-02T03:04:05Z')", json!("2026-01-02T03:04:05Z")),
            ("Object{a: Object.b{c: 7}}.a.c", json!(7)),
            ("has(JSONPatch{op: 'add'}.op) && !has(JSONPatch{}.path)", json!(true)),
            ("'/' + jsonpatch.escapeKey('k8s.io/x~y')", json!("/k8s.io~1x~0y")),
            ("Object{a: 1} == Object{a: 1} && Object{a: Object.b{}} != Object{a: Object.c{}}", json!(true)),
        ] {
            evaluate_and_check(source, |value| {
                assert_eq!(value.to_json(10_000).unwrap(), expected, "{source}")
            });
        }
        for source in ["{1: 'a'}", "[type(1)]", "Object{a: url('https://a.b')}"] {
            evaluate_and_check(source, |value| assert!(value.to_json(10_000).is_err(), "{source}"));
        }
    }

    #[test]
    fn json_of_double_that_is_not_finite_is_an_error() {
        for source in ["[0.0 / 0.0]", "{'k': 1.0 / 0.0}", "-1.0 / 0.0"] {
            evaluate_and_check(source, |value| {
                let error = value.to_json(10_000).unwrap_err();
                assert!(error.to_string().contains("not finite"), "{source}: {error}");
            });
        }
    }

    #[test]
    fn json_of_shared_values_is_limited() {
        let doubled = (0..12).fold("'x'".to_owned(), |text, _| format!("[{text}].map(s, [s, s])"));
        evaluate_and_check(&doubled, |value| {
            assert!(value.to_json(100_000).is_err());
            assert!(value.to_json(10_000_000).is_ok());
        });
        let long_key = format!("{{'{}': 1}}", "x".repeat(10_000));
        let doubled = (0..8).fold(long_key, |text, _| format!("[{text}].map(m, [m, m])"));
        evaluate_and_check(&doubled, |value| {
            assert!(value.to_json(1_000_000).is_err());
            assert!(value.to_json(10_000_000).is_ok());
        });
    }

    #[test]
    fn message_types_name_paths_of_fields() {
        let error = |name: &str, path: &str| {
            format!(
                "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
            )
        };
        for (source, expected) in [
            ("Object{spec: Object.spec{a: [Object.spec.a{b: {'k': Object.spec.a.b{}}}]}}", vec![]),
            ("Object{spec: Object.specx{}}", vec![error("Object.specx", "Object.spec")]),
            ("Object{a: [{'k': Object{}}]}", vec![error("Object", "Object.a")]),
            ("Object.spec.list{a: Object.spec.list.a{}}", vec![]),
            ("Object.spec.list{a: Object.a{}}", vec![error("Object.a", "Object.spec.list.a")]),
            ("{'k': Object.a{}}", vec![]),
        ] {
            evaluate_and_check(source, |value| assert_eq!(value.misplaced_messages(), expected, "{source}"));
        }
    }
}
