//! Replays recorded custom objects: the areas `crd/` and `cel/` of the recorded exchanges, without a server.
//! The recordings are in `CONFORMANCE_DIR`, by default beside the checkout; `none` skips the tests.
//!
//! The test compiles the schema of each recorded definition. It conforms, defaults and validates each created
//! object and each merge-patched object, and compares status, causes and content with the recording.
//!
//! The recorded server is of a release after 1.33: causes show values in another form; see [`is_same_message`].

use std::collections::BTreeMap;

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::object::{Map, Object};
use extensions::definition::{self, Environment};
use extensions::structural::Schema;
use serde_json::{Value, json};

/// Cases that depend on more than the schema of one version.
const SKIPPED: [&str; 6] = [
    "crd/status-subresource-and-generation",
    "crd/scale-subresource",
    "crd/storage-version-change",
    "crd/object-finalizer-holds-the-definition",
    "crd/update-needs-a-resource-version",
    "crd/conflicting-names-wait",
];

fn names() -> Names {
    Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap()
}

fn no_metadata_rules(_: &Map<String, Value>, _: &FieldPath) -> FieldErrors {
    FieldErrors::new()
}

fn cases(area: &str) -> Option<Vec<Value>> {
    let folder = prerequisites::recordings()?;
    let text = std::fs::read_to_string(folder.join(format!("cases/{area}.json"))).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file["cases"].as_array().unwrap().iter();
    Some(
        cases
            .filter(|case| case["name"].as_str().unwrap().starts_with(&format!("{area}/")))
            .cloned()
            .collect(),
    )
}

fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let fields = target.as_object_mut().unwrap();
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge_patch(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

/// Applies a merge patch, or the operations `add` and `replace` of a JSON Patch on objects.
fn patch(target: &mut Value, body: &Value) -> bool {
    let Some(operations) = body.as_array() else {
        merge_patch(target, body);
        return true;
    };
    operations.iter().all(|operation| {
        let (parent, name) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let fields = target.pointer_mut(parent).and_then(Value::as_object_mut);
        match (operation["op"].as_str(), fields) {
            (Some("add" | "replace"), Some(fields)) => {
                fields.insert(name.to_owned(), operation["value"].clone());
                true
            }
            _ => false,
        }
    })
}

/// The outcome of a write: the stored object, or the causes.
fn write(schema: &Schema, new: &Value, old: Option<&Value>) -> Result<Value, Vec<[String; 3]>> {
    let mut object = Object::from_value(new.clone()).unwrap();
    schema.conform(&mut object).unwrap();
    schema.default(&mut object).unwrap();
    let old = old.map(|old| Object::from_value(old.clone()).unwrap());
    let validation = schema.validate(&object, old.as_ref(), FieldErrors::new(), &no_metadata_rules);
    if validation.errors.is_empty() {
        return Ok(object.into_value());
    }
    let mut causes: Vec<[String; 3]> = validation
        .errors
        .iter()
        .map(|error| [error.kind.reason().to_owned(), error.path.as_str().to_owned(), error.body()])
        .collect();
    causes.sort();
    Err(causes)
}

/// Whether a message equals a recorded one, apart from the form of shown values of custom objects.
///
/// 1.33 shows the type of the schema for a failed rule: `Invalid value: "integer": detail`. The recorded
/// release shows a scalar, and nothing for other values. 1.33 shows objects in Go's syntax, the recorded release as JSON.
fn is_same_message(recorded: &str, message: &str) -> bool {
    const INVALID: &str = "Invalid value: ";
    if let Some(json) = message.strip_prefix("Duplicate value: map[string]interface {}") {
        return recorded.strip_prefix("Duplicate value: ") == Some(&json.replace(", \"", ",\""));
    }
    let without_type = ["object", "array", "string", "integer", "number", "boolean"]
        .iter()
        .find_map(|name| message.strip_prefix(&format!("{INVALID}\"{name}\": ")));
    let recorded_value = without_type
        .and_then(|detail| recorded.strip_prefix(INVALID)?.strip_suffix(detail))
        .filter(|value| value.is_empty() || value.ends_with(": "));
    recorded == message || recorded_value.is_some()
}

fn recorded_causes(body: &Value) -> Option<Vec<[String; 3]>> {
    let causes = body.get("details.causes").or_else(|| body.get("details")?.get("causes"))?.as_array()?;
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    let mut causes: Vec<[String; 3]> = causes
        .iter()
        .map(|cause| [text(cause, "reason"), text(cause, "field"), text(cause, "message")])
        .collect();
    causes.sort();
    Some(causes)
}

/// Replays the objects of an area. Returns the number of compared steps; None when the test is skipped.
fn replay(area: &str) -> Option<usize> {
    let cases = cases(area)?;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for case in cases.iter().filter(|case| !SKIPPED.contains(&case["name"].as_str().unwrap())) {
        let name = case["name"].as_str().unwrap();
        let mut definition = Value::Null;
        let mut schema: Option<Schema> = None;
        let mut stored: BTreeMap<String, Value> = BTreeMap::new();
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let (body, status) = (&step["body"], step["answer"]["status"].as_u64().unwrap());
            let path = step["path"].as_str().unwrap();
            let answer = &step["answer"]["body"];
            let of_definition = path.contains("customresourcedefinitions");
            if of_definition {
                match step["method"].as_str() {
                    Some("POST") if status == 201 => definition = body.clone(),
                    Some("PATCH") if status == 200 && patch(&mut definition, body) => {}
                    _ => continue,
                }
                let version = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                schema = Some(Schema::compile(version).unwrap());
                continue;
            }
            let Some(schema) = &schema else { continue };
            let content_type = step["headers"]["Content-Type"].as_str().unwrap_or_default();
            let object_name = path.split('?').next().unwrap().rsplit('/').next().unwrap();
            let (new, old) = match step["method"].as_str().unwrap() {
                "POST" if body.is_object() && matches!(status, 201 | 422) => (body.clone(), None),
                "PATCH" if content_type.contains("merge-patch") => {
                    let Some(old) = stored.get(object_name) else { continue };
                    let mut new = old.clone();
                    merge_patch(&mut new, body);
                    (new, Some(old.clone()))
                }
                _ => continue,
            };
            if path.contains("fieldValidation=Strict") {
                continue;
            }
            compared += 1;
            match (write(schema, &new, old.as_ref()), status) {
                (Ok(object), 200 | 201) => {
                    for part in ["spec", "extra"].iter().filter(|part| answer[**part].is_object()) {
                        if without_times(&object[*part]) != without_times(&answer[*part]) {
                            wrong.push(format!(
                                "{name} step {index}: {} not {}",
                                object[*part], answer[*part]
                            ));
                        }
                    }
                    if !path.contains("dryRun") {
                        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                        stored.insert(name, object);
                    }
                }
                (Err(causes), 422) => {
                    let recorded = recorded_causes(answer);
                    let is_same = |(recorded, cause): (&[String; 3], &[String; 3])| {
                        let is_masked = recorded[2].contains("<uid>") || recorded[2].contains("<time>");
                        is_masked || (recorded[..2] == cause[..2] && is_same_message(&recorded[2], &cause[2]))
                    };
                    let is_equal = recorded.as_ref().is_none_or(|recorded| {
                        recorded.len() == causes.len() && recorded.iter().zip(&causes).all(is_same)
                    });
                    if !is_equal {
                        wrong.push(format!("{name} step {index}:\n  {causes:?}\nnot\n  {recorded:?}"));
                    }
                }
                (outcome, _) => wrong.push(format!("{name} step {index}: {outcome:?}, status {status}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Some(compared)
}

/// A value without masked texts and without the fields `date-time` and `uuid`.
fn without_times(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, value)| {
                !matches!(value.as_str(), Some("<time>" | "<uid>"))
                    && !matches!(name.as_str(), "date-time" | "uuid")
            });
            // The recordings do not distinguish 1.0 and 1.
            Value::Object(kept.map(|(name, value)| (name.clone(), without_times(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_times).collect(),
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        other => other.clone(),
    }
}

/// The part of a message after the text of the rule.
fn detail(message: &str) -> String {
    let known =
        ["compilation failed", "cel expression must", "messageExpression must", "estimated rule cost"];
    let start = known.iter().filter_map(|text| message.find(text)).min();
    let tail = start.map_or(message, |start| &message[start..]);
    // The advice after the factor (`100x (`) has other words in the recording.
    tail.split("x (").next().unwrap_or_default().to_owned()
}

#[test]
fn custom_objects_match_recorded_results() {
    let Some(compared) = replay("crd") else { return };
    assert!(compared > 60, "{compared}");
}

#[test]
fn rules_on_objects_match_recorded_results() {
    let Some(compared) = replay("cel") else { return };
    assert!(compared > 40, "{compared}");
}

/// Compares fields, reasons and details of all causes that the rules of recorded definitions have.
#[test]
fn rules_of_definitions_match_recorded_results() {
    let Some(cases) = cases("cel") else { return };
    let names = names();
    let environment = Environment { names: &names, metadata: &no_metadata_rules };
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for case in &cases {
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let body: Value = serde_json::from_str(&step["body"].to_string().replace("${id}", "a")).unwrap();
            if body["kind"] != "CustomResourceDefinition" {
                continue;
            }
            let mut object = Object::from_value(body).unwrap();
            object.set("status", json!({}));
            definition::set_defaults(&mut object);
            definition::record_stored_version(&mut object);
            let errors = definition::validate_create(&object, environment);
            let causes = errors
                .iter()
                .map(|error| [error.kind.reason().to_owned(), error.path.as_str().to_owned(), error.body()]);
            let mut causes: Vec<[String; 3]> = causes.collect();
            // Long rules are shortened in messages, so only the details are compared.
            causes.iter_mut().for_each(|cause| cause[2] = detail(&cause[2]));
            causes.sort();
            let answer = &step["answer"];
            let is_refused = answer["status"] == 422;
            refused += usize::from(is_refused);
            let mut recorded = recorded_causes(&answer["body"]).unwrap_or_default();
            recorded.iter_mut().for_each(|cause| cause[2] = detail(&cause[2]));
            recorded.sort();
            let first = answer["body"]["details.causes[0].field"].as_str();
            let is_first_right = first.is_none_or(|field| causes.iter().any(|cause| cause[1] == field));
            let is_right = recorded.is_empty() || recorded == causes;
            if is_refused == causes.is_empty() || !is_first_right || !is_right {
                wrong.push(format!("{} step {index}:\n  {causes:?}\nnot\n  {recorded:?}", case["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 8, "{refused}");
}
