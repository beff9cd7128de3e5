//! Merge patch (RFC 7386): objects merge, null removes, everything else replaces.

use apimachinery::object::{Map, Value};

/// Applies a patch to a target, and returns the patched value.
pub fn apply(target: Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut fields = match target {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (field, change) in changes {
        if change.is_null() {
            fields.remove(field);
        } else {
            let old = fields.remove(field).unwrap_or(Value::Null);
            fields.insert(field.clone(), apply(old, change));
        }
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_7386_examples_merge_as_specified() {
        for (target, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(apply(parse(target), &parse(patch)), parse(expected), "{target} {patch}");
        }
    }
}
