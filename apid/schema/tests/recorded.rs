//! Every complete object in the recorded exchanges is in stored form: conforming drops nothing, adds only
//! null, and changes nothing.
//!
//! The recordings are in `CONFORMANCE_DIR`, by default `../shared/conformance` beside the repository. Without
//! recordings the test prints a message and passes.

use std::fs;

use apimachinery::codec::Limits;
use apimachinery::object::{Object, Value};
use schema::Schema;

/// Replacement of a masked time, valid as a `Time` and as a `MicroTime`.
const TIME: &str = "2024-01-02T03:04:05.000000Z";

#[test]
fn recorded_objects_are_in_stored_form() {
    let Some(recordings) = prerequisites::recordings() else { return };
    let files = fs::read_dir(recordings.join("cases")).unwrap();
    let (mut objects, mut wrong) = (0, Vec::new());
    for file in files {
        let file: Value = serde_json::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        for case in file["cases"].as_array().unwrap() {
            for step in case["steps"].as_array().unwrap() {
                let name = case["name"].as_str().unwrap();
                // Ignored parts are absent in the recording.
                let is_complete = is_whole(&case["ignore"]) && is_whole(&step["ignore"]);
                if step["select"].is_null() {
                    objects += check(&step["answer"]["body"], name, is_complete, &mut wrong);
                }
            }
        }
    }
    println!("{objects} objects");
    assert!(objects > 500);
    assert!(wrong.is_empty(), "{} of {objects}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether the ignored paths leave the object complete for this test.
fn is_whole(ignored: &Value) -> bool {
    ignored.as_array().into_iter().flatten().all(|path| path == "metadata.managedFields")
}

/// Checks a body, and returns the number of checked objects: 1 for a stored object, otherwise 0.
fn check(body: &Value, case: &str, is_complete: bool, wrong: &mut Vec<String>) -> usize {
    let Some(kind) = body["kind"].as_str().filter(|k| !k.ends_with("List") && *k != "Table") else {
        return 0;
    };
    let Some(schema) = body["apiVersion"].as_str().and_then(|version| Schema::of_kind(version, kind)) else {
        return 0;
    };
    let mut before = body.clone();
    unmask(&mut before);
    let mut object = Object::from_value(before.clone()).unwrap();
    match schema.conform(&mut object) {
        Err(error) => wrong.push(format!("{case}: {kind}: {error}")),
        Ok(conformed) => {
            wrong.extend(conformed.unknown.iter().map(|path| format!("{case}: {kind}: unknown {path}")));
            let mut differences = Vec::new();
            compare(
                &before,
                &Value::Object(object.0.clone()),
                "",
                &format!("{case}: {kind}"),
                &mut differences,
            );
            wrong.extend(differences.into_iter().filter(|d| is_complete || !d.contains(": null became ")));
            round_trip(schema, object, &format!("{case}: {kind}"), wrong);
        }
    }
    1
}

/// Checks the Protobuf round trip. Two differences are expected: list items lose `kind` and `apiVersion`, and
/// empty lists become null.
fn round_trip(schema: &'static Schema, object: Object, title: &str, wrong: &mut Vec<String>) {
    let mut bytes = Vec::new();
    schema.write_protobuf(&object, &mut bytes);
    match schema.read_protobuf(&bytes, Limits::BODY) {
        Err(error) => wrong.push(format!("{title}: {error}")),
        Ok(mut decoded) => {
            decoded.set_type(object.api_version(), object.kind());
            if let Err(error) = schema.conform(&mut decoded) {
                wrong.push(format!("{title}: {error}"));
            }
            let mut differences = Vec::new();
            compare(&object.into_value(), &decoded.into_value(), "", title, &mut differences);
            let inner_type = |d: &str| d.contains("].kind: ") || d.contains("].apiVersion: ");
            wrong.extend(
                differences.into_iter().filter(|d| !d.contains(": [] became null") && !inner_type(d)),
            );
        }
    }
}

fn unmask(value: &mut Value) {
    match value {
        Value::String(text) if text == "<time>" => *text = TIME.to_owned(),
        Value::Array(list) => list.iter_mut().for_each(unmask),
        Value::Object(map) => map.values_mut().for_each(unmask),
        _ => {}
    }
}

fn compare(before: &Value, after: &Value, path: &str, title: &str, wrong: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let member =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                compare(&member(a), &member(b), &format!("{path}.{key}"), title, wrong);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{i}]"), title, wrong);
            }
        }
        (Value::String(a), Value::String(b)) if a == TIME && b.starts_with("2024-01-02T03:04:05") => {}
        _ if before == after => {}
        _ => wrong.push(format!("{title}: {path}: {before} became {after}")),
    }
}
