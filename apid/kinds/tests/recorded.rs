//! Replays recorded creations without a server.
//! An object that kube-apiserver rejected with 422 gets the same causes; a created object gets the same
//! stored form. The recordings are in `CONFORMANCE_DIR`, default `../shared/conformance` beside the
//! repository. Without recordings the test prints a notice and passes.

use std::fs;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use kinds::{Context, Kind, Registry, Storage};

/// Resources with complete rules.
/// For other resources the test skips rejected objects and ignores defaults that are not implemented.
const COMPLETE_RESOURCES: &[&str] = &[
    "clusterrolebindings",
    "clusterroles",
    "configmaps",
    "customresourcedefinitions",
    "events",
    "leases",
    "namespaces",
    "rolebindings",
    "roles",
    "secrets",
    "serviceaccounts",
];

/// Cases with a rule that is not implemented: kube-apiserver drops a field of the request.
const KNOWN_DIFFERENCES: &[&str] = &["validation/service-external-name-and-load-balancer"];

/// Parts of recorded messages that apid words differently: kube-apiserver shows the error of its JSON parser.
const DIFFERENT_MESSAGES: &[&str] = &["<secret contents redacted>"];

#[test]
fn recorded_creations_return_same_objects_and_causes() {
    let Some(recordings) = prerequisites::recordings() else { return };
    let files = fs::read_dir(recordings.join("cases")).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let text = text.replace("${ns}", "team").replace("${id}", "someid");
        let file: Value = serde_json::from_str(&text).unwrap();
        for case in file["cases"].as_array().unwrap() {
            for step in case["steps"].as_array().unwrap() {
                if let Some(difference) = check(case, step, &mut count) {
                    wrong.push(format!("{}: {} {difference}", case["name"], step["path"]));
                }
            }
        }
    }
    println!("{count} creations");
    assert!(count > 130, "{count} creations");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns the difference between apid and one recorded creation with a JSON body; None means no difference, or
/// the test skips the creation.
fn check(case: &Value, step: &Value, count: &mut usize) -> Option<String> {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let registry = Registry::new(&names);
    let (namespace, resource) = collection(&registry, step["path"].as_str()?)?;
    let has_complete_rules = COMPLETE_RESOURCES.contains(&resource.plural());
    let body = step["body"].as_object()?;
    let same_kind = body.get("kind").is_none_or(|kind| kind == resource.name());
    let answer = &step["answer"];
    let status = answer["status"].as_u64()?;
    // Skips bodies with captured values and responses that were recorded in part.
    if step["method"] != "POST"
        || !same_kind
        || !matches!(status, 201 | 422)
        || step["body"].to_string().contains("${")
    {
        return None;
    }
    if !answer["body"]["apiVersion"].is_string() || !step["select"].is_null() || !step["headers"].is_null() {
        return None;
    }
    let ignored = [&case["ignore"], &step["ignore"]].into_iter().filter_map(Value::as_array).flatten();
    let ignored: Vec<&str> = ignored.filter_map(Value::as_str).collect();
    if !has_complete_rules && (status != 201 || KNOWN_DIFFERENCES.contains(&case["name"].as_str()?)) {
        return None;
    }
    *count += 1;
    let (clock, rng) = (ManualClock::at(time::parse("2024-01-02T03:04:05Z")?), SeededRng::new(1));
    let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
    let mut object = Object(body.clone());
    object.set_type(&resource.api_version(), resource.name());
    if let Err(error) = resource.conform(&mut object) {
        return Some(error.to_string());
    }
    resource.default(&mut object, &ctx);
    resource.prepare_create(&mut object, namespace, &ctx);
    resource.complete_new(&mut object, &ctx);
    resource.canonicalize(&mut object, &ctx);
    let errors = resource.validate_create(&object, &ctx);
    if status == 201 {
        if !errors.is_empty() {
            return Some(format!("{errors:?}"));
        }
        let mut recorded = answer["body"].clone();
        let have = object.into_value();
        if !has_complete_rules {
            drop_defaults(&mut recorded, &have);
        }
        return compare(&recorded, &have, "", &ignored);
    }
    let have = Status::invalid(&resource.group_kind, object.name(), &errors).to_value();
    if DIFFERENT_MESSAGES
        .iter()
        .any(|part| answer["body"]["message"].as_str().is_some_and(|m| m.contains(part)))
    {
        return None;
    }
    let (mut recorded, mut have) = (answer["body"].clone(), have);
    drop_long_messages(&mut recorded, &mut have);
    compare(&recorded, &have, "", &ignored)
}

/// Removes the messages of causes in which apid shortens a value of more than 100 characters.
///
/// The fields, reasons and codes of those causes, and the messages of the others, are still compared.
fn drop_long_messages(recorded: &mut Value, have: &mut Value) {
    let causes = have["details"]["causes"].as_array().into_iter().flatten();
    let long: Vec<usize> = causes
        .enumerate()
        .filter(|(_, cause)| cause["message"].as_str().is_some_and(|message| message.contains("… (")))
        .map(|(index, _)| index)
        .collect();
    if long.is_empty() {
        return;
    }
    for status in [recorded, have] {
        status["message"] = Value::Null;
        for index in &long {
            if let Some(cause) = status["details"]["causes"].get_mut(*index) {
                cause["message"] = Value::Null;
            }
        }
    }
}

/// Namespace and resource of a collection path of stored objects.
fn collection<'a, 'p>(registry: &'a Registry, path: &'p str) -> Option<(&'p str, &'a Kind)> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, "v1", rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, resource) = match rest {
        ["namespaces", namespace, resource] => (*namespace, *resource),
        [resource] => ("", *resource),
        _ => return None,
    };
    let found = registry.find(group, "v1", resource)?;
    (found.storage == Storage::Stored).then_some((namespace, found))
}

/// Replaces values that only the recording has.
/// Empty values count as absent: a default takes their place.
fn drop_defaults(recorded: &mut Value, have: &Value) {
    match (recorded, have) {
        (Value::Object(recorded), Value::Object(have)) => {
            recorded.retain(|key, _| have.contains_key(key));
            for (key, value) in recorded {
                drop_defaults(value, &have[key]);
            }
        }
        (Value::Array(recorded), Value::Array(have)) if recorded.len() >= have.len() => {
            recorded.truncate(have.len());
            recorded.iter_mut().zip(have).for_each(|(recorded, have)| drop_defaults(recorded, have));
        }
        (recorded, Value::Null | Value::Bool(false)) => *recorded = have.clone(),
        (recorded, empty) if *empty == 0 || *empty == "" || *empty == serde_json::json!([]) => {
            *recorded = have.clone();
        }
        _ => {}
    }
}

/// Returns the first difference. A mask matches any value, a missing value equals null, and the order of
/// causes is ignored.
fn compare(recorded: &Value, have: &Value, path: &str, ignored: &[&str]) -> Option<String> {
    match (recorded, have) {
        (Value::String(mask), _) if mask.starts_with('<') => None,
        (Value::String(text), Value::String(have)) if text.contains("<random>") => {
            let (head, _) = text.split_once("<random>")?;
            (!have.starts_with(head)).then(|| format!("{path}: {have}"))
        }
        (Value::Object(a), Value::Object(b)) => a.keys().chain(b.keys()).find_map(|key| {
            let path = format!("{path}.{key}");
            if ignored.contains(&&path[1..]) || matches!(key.as_str(), "managedFields" | "resourceVersion") {
                return None;
            }
            let member = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
            compare(&member(a), &member(b), &path, ignored)
        }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() && path.ends_with("causes") => a
            .iter()
            .find(|cause| !b.iter().any(|c| compare(cause, c, "", ignored).is_none()))
            .map(|c| format!("{path}: no {c}")),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (a, b))| compare(a, b, &format!("{path}[{i}]"), ignored)),
        _ if recorded == have => None,
        _ => Some(format!("{path}: {have} where {recorded} was recorded")),
    }
}
