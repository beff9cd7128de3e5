//! Answers of the rules in the form of recorded facts, and their comparison with the facts.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::status::Status;
use kinds::Kind;
use serde_json::{Map, Value};

/// Metadata that differs from run to run.
const VOLATILE: [&str; 4] = ["uid", "creationTimestamp", "resourceVersion", "managedFields"];

/// Maximum number of causes in a fact; the recording omits further causes.
const CAUSES_MAX: usize = 12;
/// Maximum number of characters of a recorded message; longer messages end with `…`.
const MESSAGE_CHARS_MAX: usize = 240;

/// An answer of the write path.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) code: u64,
    reason: &'static str,
    message: String,
    /// Reason, field and message of each cause.
    pub(super) causes: Vec<[String; 3]>,
    /// Value at the pointer of the fact, if it differs from the request; `"$absent"` if the rules removed it.
    pub(super) value: Option<Value>,
    /// The created object.
    pub(super) object: Option<Value>,
    /// Pointers to what an update changed.
    pub(super) changed: Option<Vec<String>>,
}

/// The result of a comparison.
pub(super) struct Comparison {
    pub(super) differences: Vec<String>,
    pub(super) same_messages: bool,
}

impl Answer {
    /// A request that could not be made.
    pub(super) fn failed(message: String) -> Self {
        Answer { message, ..Answer::default() }
    }

    /// A refusal with code 400.
    pub(super) fn malformed(message: String) -> Self {
        Answer { code: 400, reason: "BadRequest", message, ..Answer::default() }
    }

    /// A refusal with code 422 and the errors as causes.
    pub(super) fn invalid(resource: &Kind, errors: &FieldErrors) -> Self {
        let status = Status::invalid(&resource.group_kind, "", errors);
        let causes = status.details.unwrap().causes.into_iter();
        let causes = causes.map(|cause| [cause.reason, cause.field, shorten(&cause.message)]).collect();
        Answer { code: 422, reason: "Invalid", causes, ..Answer::default() }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Removes nulls and the metadata that differs from run to run.
pub(super) fn clean(value: &Value) -> Value {
    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let entries = map.iter().filter(|(_, value)| !value.is_null());
                entries.map(|(key, value)| (key.clone(), without_nulls(value))).collect::<Map<_, _>>().into()
            }
            Value::Array(list) => list.iter().map(without_nulls).collect(),
            value => value.clone(),
        }
    }
    let mut value = without_nulls(value);
    if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
        metadata.retain(|key, _| !VOLATILE.contains(&key.as_str()));
        if metadata.is_empty() {
            value.as_object_mut().unwrap().remove("metadata");
        }
    }
    value
}

/// Pointers at which two values differ: the highest ones that contain the whole difference.
pub(super) fn changed_pointers(a: &Value, b: &Value) -> Vec<String> {
    fn collect(a: &Value, b: &Value, pointer: &str, pointers: &mut Vec<String>) {
        match (a, b) {
            (Value::Object(x), Value::Object(y)) => {
                let keys: BTreeSet<&String> = x.keys().chain(y.keys()).collect();
                for key in keys {
                    let pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                    match (x.get(key), y.get(key)) {
                        (Some(a), Some(b)) => collect(a, b, &pointer, pointers),
                        _ => pointers.push(pointer),
                    }
                }
            }
            (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
                for (i, (a, b)) in x.iter().zip(y).enumerate() {
                    collect(a, b, &format!("{pointer}/{i}"), pointers);
                }
            }
            _ if a == b => {}
            _ => pointers.push(pointer.to_owned()),
        }
    }
    let mut pointers = Vec::new();
    collect(a, b, "", &mut pointers);
    pointers
}

/// Whether a value agrees with a recorded one, in which `"$any"` stands for any value.
fn agrees(recorded: Option<&Value>, value: Option<&Value>) -> bool {
    match (recorded, value) {
        (Some(Value::String(any)), Some(_)) if any == "$any" => true,
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            x.len() == y.len() && x.iter().all(|(key, recorded)| agrees(Some(recorded), y.get(key)))
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| agrees(Some(x), Some(y)))
        }
        (Some(Value::Number(x)), Some(Value::Number(y))) => x.as_f64() == y.as_f64(),
        (recorded, value) => recorded == value,
    }
}

/// Compares an answer with a fact.
pub(super) fn compare(fact: &Value, answer: &Answer) -> Comparison {
    let mut differences = Vec::new();
    let causes: Vec<[&str; 3]> = fact["c"].as_array().into_iter().flatten().map(cause_texts).collect();
    if fact["code"].as_u64() != Some(answer.code) {
        differences.push(format!(
            "expected {} {:?} {}, actual {} {:?} {}",
            fact["code"],
            causes,
            fact["msg"].as_str().unwrap_or(""),
            answer.code,
            answer.causes,
            answer.message
        ));
        return Comparison { differences, same_messages: false };
    }
    if answer.code >= 400 && fact["why"] != answer.reason {
        differences.push(format!("expected reason {}, actual {}", fact["why"], answer.reason));
    }
    let recorded: BTreeSet<(&str, &str)> =
        causes.iter().map(|[reason, field, _]| (*reason, *field)).collect();
    let actual: BTreeSet<(&str, &str)> =
        answer.causes.iter().map(|[r, f, _]| (r.as_str(), f.as_str())).collect();
    let same_causes = match fact["nc"].as_u64() {
        Some(count) => recorded.is_subset(&actual) && answer.causes.len() as u64 == count,
        None => recorded == actual,
    };
    if !same_causes {
        differences.push(format!("expected causes {causes:?}, actual {:?}", answer.causes));
    }
    let recorded_value = fact.get("r");
    if (recorded_value.is_some() || (answer.value.is_some() && fact.get("o").is_none()))
        && !agrees(recorded_value, answer.value.as_ref())
    {
        differences.push(format!("expected value {recorded_value:?}, actual {:?}", answer.value));
    }
    if fact.get("o").is_some() && answer.object.is_none() {
        differences.push("expected an object, actual none".to_owned());
    }
    if let (Some(recorded), Some(object)) = (fact.get("o"), &answer.object)
        && !agrees(Some(recorded), Some(object))
    {
        let pointers = changed_pointers(recorded, object);
        let examples = pointers.iter().take(6).map(|pointer| {
            format!(
                "{pointer}: expected {:?}, actual {:?}",
                recorded.pointer(pointer).map(ToString::to_string),
                object.pointer(pointer).map(ToString::to_string)
            )
        });
        differences.push(examples.collect::<Vec<_>>().join("; "));
    }
    if fact["d"].is_array() && answer.changed.is_none() {
        differences.push(format!("expected changes {}, actual none", fact["d"]));
    }
    if let (Some(recorded), Some(pointers)) = (fact["d"].as_array(), &answer.changed) {
        let mut recorded: Vec<&str> = recorded.iter().filter_map(Value::as_str).collect();
        recorded.sort_unstable();
        let mut pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
        pointers.sort_unstable();
        if recorded != pointers {
            differences.push(format!("expected changes {recorded:?}, actual {pointers:?}"));
        }
    }
    let same_messages = differences.is_empty() && same_texts(&causes, &answer.causes);
    Comparison { differences, same_messages }
}

/// Whether the recorded causes and the causes of the answer have the same texts, in any order.
fn same_texts(recorded: &[[&str; 3]], actual: &[[String; 3]]) -> bool {
    let mut recorded = recorded.to_vec();
    let mut actual: Vec<[&str; 3]> =
        actual.iter().take(CAUSES_MAX).map(|c| c.each_ref().map(String::as_str)).collect();
    recorded.sort_unstable();
    actual.sort_unstable();
    recorded.len() == actual.len()
        && recorded.iter().zip(&actual).all(|(x, y)| x[2] == "$any" || x[2] == y[2])
}

/// Reason, field and message of a recorded cause.
fn cause_texts(cause: &Value) -> [&str; 3] {
    [0, 1, 2].map(|i| cause[i].as_str().unwrap_or(""))
}
